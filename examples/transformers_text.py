"""Mutual transport of two text classifiers under transformers.Trainer: BERT as primary, DistilBERT as auxiliary.

    python examples/transformers_text.py

The models are built from configs and the sentences are made-up token ids, so nothing is downloaded. Both models get
the same inputs. The primary's learning rate falls over training, the auxiliary's stays, and alpha grows over the first
half. Prints Trainer's logs, the test accuracy and both learning rates.
"""

import math
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    Trainer,
    TrainingArguments,
)

import counterpoise
from counterpoise.integrations.transformers import ObjectiveCallback

CLASSES, VOCABULARY, LENGTH = 4, 100, 16


def primary() -> nn.Module:
    """A tiny BERT."""
    config = BertConfig(
        vocab_size=VOCABULARY,
        max_position_embeddings=LENGTH,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_labels=CLASSES,
    )
    return BertForSequenceClassification(config)


def auxiliary() -> nn.Module:
    """A tinier DistilBERT."""
    config = DistilBertConfig(
        vocab_size=VOCABULARY,
        max_position_embeddings=LENGTH,
        dim=16,
        hidden_dim=32,
        n_layers=1,
        n_heads=2,
        num_labels=CLASSES,
    )
    return DistilBertForSequenceClassification(config)


def sentences(count: int) -> list[dict[str, Any]]:
    """Token ids of which half come from the class's own part of the vocabulary, padded to one length."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    part = VOCABULARY // CLASSES
    anything = torch.randint(1, VOCABULARY, (count, LENGTH), generator=generator)
    own = labels[:, None] * part + torch.randint(1, part, (count, LENGTH), generator=generator)
    tokens = torch.where(torch.rand(count, LENGTH, generator=generator) < 1 / 2, own, anything)
    mask = (torch.arange(LENGTH) < torch.randint(LENGTH // 2, LENGTH + 1, (count, 1), generator=generator)).long()
    return [
        {"input_ids": ids, "attention_mask": valid, "labels": label}
        for ids, valid, label in zip(tokens * mask, mask, labels.tolist(), strict=True)
    ]


def main(folder: str | Path, *, epochs: int = 3) -> dict[str, float]:
    """Train, and return the test accuracy of the primary, the last learning rates and the last alpha."""
    rows = sentences(1200)
    torch.manual_seed(0)
    alpha = counterpoise.linear_warmup(0.8, fraction=0.5)
    objective = counterpoise.MutualTransport(primary(), auxiliaries=[auxiliary()], alpha=alpha)
    optimizer = torch.optim.AdamW(objective.parameter_groups(lr=1e-2, auxiliary_lr=1e-3))
    steps = epochs * math.ceil(1000 / 50)
    scheduler = LambdaLR(optimizer, [lambda step: 1.0 - step / steps, lambda _: 1.0])

    arguments = TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=epochs,
        per_device_train_batch_size=50,
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
        train_dataset=rows[:1000],
        optimizers=(optimizer, scheduler),  # keeps the two groups; otherwise Trainer makes its own
        callbacks=[ObjectiveCallback()],  # refuses settings that change the method, and tells alpha the progress
    )
    trainer.train()
    prediction = trainer.predict(rows[1000:])
    accuracy = float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())
    lr, auxiliary_lr = scheduler.get_last_lr()
    print(f"test accuracy {accuracy:.3f}, learning rates {lr:.4f} and {auxiliary_lr:.4f}")
    return {"accuracy": accuracy, "lr": lr, "auxiliary_lr": auxiliary_lr, "alpha": objective.alpha.item()}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(scratch)
