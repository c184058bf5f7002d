"""`counterpoise export`: the trained primary as a file to deploy."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro


@dataclass(frozen=True)
class Export:
    """Write the trained primary of a run, without auxiliaries, in a format to deploy.

    The file says what its logits stand for and how images are normalised. ONNX and pt2 take batches of any size, and
    are compared with the model before they are written.
    """

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of the run."""
    to: Literal["safetensors", "onnx", "pt2"]
    """Format: weights alone, ONNX, or a torch.export program."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = None
    """File to write; by default `primary.FORMAT` in the run's folder."""

    def run(self) -> None:
        """Load the model and write the file."""
        import torch

        from counterpoise.export import export_model
        from counterpoise.training import load_run
        from counterpoise.training.networks import Members

        trained = load_run(self.folder)
        if isinstance(trained.model, Members):
            raise ValueError(f"{self.folder} is an ensemble: export its members, {self.folder / 'members'}/0 and so on")
        path = self.out or self.folder / f"primary.{self.to}"
        example = torch.zeros(2, *trained.shape)
        export_model(trained.model, path, to=self.to, example=example, metadata=trained.metadata)
        print(path)
