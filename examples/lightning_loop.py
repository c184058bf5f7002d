"""Mutual transport in a LightningModule of your own.

    python examples/lightning_loop.py

The primary's learning rate is divided by 10 after two thirds of training, the auxiliary's stays, and alpha grows over
the first half. The data are scikit-learn's digits. Prints the test accuracy of the primary and the learning rates.
"""

from typing import Any

import lightning as L  # noqa: N812
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

import counterpoise

Batch = list[Tensor]


class MutualTransportModule(L.LightningModule):
    """An objective, its optimizer with two groups, and a schedule for each group."""

    def __init__(self, primary: nn.Module, auxiliary: nn.Module, *, alpha: float) -> None:
        super().__init__()
        schedule = counterpoise.linear_warmup(alpha, fraction=0.5)
        self.objective = counterpoise.MutualTransport(primary, auxiliaries=[auxiliary], alpha=schedule)

    def configure_optimizers(self) -> dict[str, Any]:
        """One optimizer; a function of the step for each group."""
        groups = self.objective.parameter_groups(lr=0.1, auxiliary_lr=0.01)
        optimizer = torch.optim.SGD(groups, momentum=0.9, weight_decay=5e-4)
        decay_at = 2 * self.trainer.estimated_stepping_batches // 3
        scheduler = LambdaLR(optimizer, [lambda step: 0.1 if step >= decay_at else 1.0, lambda _: 1.0])
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:  # noqa: ARG002
        """Tell the alpha schedule how far training is; not needed where alpha is a number."""
        self.objective.set_progress(self.global_step / self.trainer.estimated_stepping_batches)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:  # noqa: ARG002
        """The one scalar of the objective."""
        images, labels = batch
        return self.objective(images, labels=labels).loss

    def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:  # noqa: ARG002
        """The primary alone."""
        return self.objective.primary(batch[0])


def network(width: int) -> nn.Module:
    """A small classifier; any model that returns logits will do."""
    return nn.Sequential(nn.Linear(64, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 10))


def main(*, epochs: int = 9, seed: int = 0) -> dict[str, float]:
    """Train, and return the test accuracy and the last learning rates."""
    torch.manual_seed(seed)
    images, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    images = images.float() / 16
    training = DataLoader(TensorDataset(images[500:], labels[500:]), batch_size=100, shuffle=True)
    test = DataLoader(TensorDataset(images[:500]), batch_size=100)

    module = MutualTransportModule(network(64), network(16), alpha=0.8)
    # No gradient_clip_val: it would clip both models by one joint norm.
    trainer = L.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, training)

    logits = torch.cat(trainer.predict(module, test))
    accuracy = (logits.argmax(-1) == labels[:500]).float().mean().item()
    lr, auxiliary_lr = (group["lr"] for group in trainer.optimizers[0].param_groups)
    print(f"test accuracy {accuracy:.3f}, learning rates {lr:.3f} and {auxiliary_lr:.3f}")
    return {"accuracy": accuracy, "lr": lr, "auxiliary_lr": auxiliary_lr, "alpha": module.objective.alpha.item()}


if __name__ == "__main__":
    main()
