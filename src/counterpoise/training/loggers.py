"""Loggers besides the CSV files, where they are installed."""

import secrets
from collections.abc import Collection
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from lightning.pytorch.loggers import Logger, MLFlowLogger, TensorBoardLogger, WandbLogger

from counterpoise._files import write_text
from counterpoise.training.distributed import is_first_process

Name = Literal["tensorboard", "wandb", "mlflow"]


def require_loggers(names: Collection[Name]) -> None:
    """Refuse loggers that are not installed."""
    if missing := [name for name in names if find_spec(name) is None]:
        raise ImportError(f"engine.loggers needs {', '.join(missing)}: pip install {' '.join(missing)}")


def build_logger(name: Name, *, folder: Path, step: int) -> Logger:
    """One logger that writes below the run's folder; what TensorBoard holds beyond `step` is written again."""
    title = folder.name
    if name == "tensorboard":
        return TensorBoardLogger(folder, name="", version="tensorboard", purge_step=step)
    if name == "wandb":
        # The id makes a resumed run the same run; what it logged after its last checkpoint is there twice.
        # Other ranks log nothing, and must not choose another.
        run_id = _wandb_id(folder) if is_first_process() else None
        return WandbLogger(name=title, id=run_id, project="counterpoise", save_dir=folder, resume="allow")
    return MLFlowLogger(experiment_name="counterpoise", run_name=title, save_dir=str(folder / "mlflow"))


def finish_loggers(names: Collection[Name]) -> None:
    """End the run that Weights & Biases keeps for the process, or the next training would go on with it."""
    if "wandb" in names:
        import wandb

        wandb.finish()


def _wandb_id(folder: Path) -> str:
    """One for each folder, kept in it: names of folders are not unique."""
    path = folder / "wandb-id"
    if not path.exists():
        write_text(path, secrets.token_hex(8))
    return path.read_text()
