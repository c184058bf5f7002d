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
    member: int | None = None
    """Member of an ensemble, counted from 0."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = None
    """File to write; by default `primary.FORMAT` or `member-N.FORMAT` in the run's folder."""

    def run(self) -> None:
        """Load the model and write the file."""
        import torch

        from counterpoise.export import export_model
        from counterpoise.training import load_run
        from counterpoise.training.networks import Members

        trained = load_run(self.folder, member=self.member)
        if isinstance(trained.model, Members):
            last = len(trained.model.models) - 1
            raise ValueError(f"{self.folder} is an ensemble: export its members one by one, --member 0 to {last}")
        name = f"primary.{self.to}" if self.member is None else f"member-{self.member}.{self.to}"
        path = self.out or self.folder / name
        example = torch.zeros(2, *trained.shape)
        export_model(trained.model, path, to=self.to, example=example, metadata=trained.metadata)
        print(path)
