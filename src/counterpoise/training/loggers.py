"""Loggers besides the CSV files, where they are installed."""

from pathlib import Path
from typing import Literal

from lightning.pytorch.loggers import Logger, MLFlowLogger, TensorBoardLogger, WandbLogger

from counterpoise._extras import require

Name = Literal["tensorboard", "wandb", "mlflow"]


def build_logger(name: Name, *, folder: Path, step: int) -> Logger:
    """One logger that writes below the run's folder; what it holds beyond `step` is written again."""
    title = folder.name
    if name == "tensorboard":
        require("tensorboard", extra="train", purpose="logging to TensorBoard")
        return TensorBoardLogger(folder, name="", version="tensorboard", purge_step=step or None)
    if name == "wandb":
        require("wandb", extra="train", purpose="logging to Weights & Biases")
        # The id makes a resumed run the same run; steps that were logged before are ignored there.
        return WandbLogger(
            name=title, id=f"counterpoise-{title}", project="counterpoise", save_dir=folder, resume="allow"
        )
    require("mlflow", extra="train", purpose="logging to MLflow")
    return MLFlowLogger(experiment_name="counterpoise", run_name=title, save_dir=str(folder / "mlflow"))
