"""Mutual transport of two vision transformers under transformers.Trainer.

    python examples/transformers_image.py

The models are built from configs, so nothing is downloaded; `from_pretrained` works the same. The primary's learning
rate falls over training, the auxiliary's stays. The data are scikit-learn's digits. Prints Trainer's logs, the test
accuracy and both learning rates, and writes the primary as a checkpoint that `from_pretrained` loads.
"""

import math
import tempfile
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch.optim.lr_scheduler import LambdaLR
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

import counterpoise
from counterpoise.integrations.transformers import ObjectiveCallback


def network(width: int) -> ViTForImageClassification:
    """A tiny vision transformer for images of 8 x 8 pixels."""
    config = ViTConfig(
        image_size=8,
        patch_size=4,
        num_channels=1,
        num_labels=10,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    return ViTForImageClassification(config)


def digits() -> list[dict[str, Any]]:
    """Rows with the names that the models' `forward` has; a `datasets.Dataset` works as well."""
    images, labels = load_digits(return_X_y=True)
    pixels = torch.from_numpy(images).float().div(8).sub(1).view(-1, 1, 8, 8)
    return [{"pixel_values": image, "labels": label} for image, label in zip(pixels, labels.tolist(), strict=True)]


def main(folder: str | Path, *, epochs: int = 5) -> dict[str, float]:
    """Train, write the primary to `folder`/primary, and return its test accuracy and the last learning rates."""
    rows = digits()
    torch.manual_seed(0)
    objective = counterpoise.MutualTransport(network(64), auxiliaries=[network(32)], alpha=0.8)
    optimizer = torch.optim.AdamW(objective.parameter_groups(lr=3e-3, auxiliary_lr=1e-3))
    steps = epochs * math.ceil(len(rows[500:]) / 64)
    scheduler = LambdaLR(optimizer, [lambda step: 1.0 - step / steps, lambda _: 1.0])

    arguments = TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=epochs,
        per_device_train_batch_size=64,
        max_grad_norm=0,  # the default clips both models by one joint norm
        remove_unused_columns=False,  # the default drops the inputs that the objective passes on to its models
        logging_strategy="epoch",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(
        model=objective,
        args=arguments,
        train_dataset=rows[500:],
        eval_dataset=rows[:500],
        optimizers=(optimizer, scheduler),  # keeps the two groups; otherwise Trainer makes its own
        callbacks=[ObjectiveCallback()],
        compute_metrics=lambda prediction: {
            "accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())
        },
    )
    trainer.train()
    accuracy = trainer.evaluate()["eval_accuracy"]
    lr, auxiliary_lr = scheduler.get_last_lr()
    print(f"test accuracy {accuracy:.3f}, learning rates {lr:.4f} and {auxiliary_lr:.4f}")
    objective.primary.save_pretrained(Path(folder) / "primary")  # trainer.save_model writes the auxiliary as well
    return {"accuracy": accuracy, "lr": lr, "auxiliary_lr": auxiliary_lr}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(scratch)
