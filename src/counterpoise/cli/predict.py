"""`counterpoise predict`: a trained model on any images."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from counterpoise.cli.evaluate import Flag
from counterpoise.cli.train import DataRoot


@dataclass(frozen=True)
class Predict:
    """Write what the trained model of a run says about a data set, as Parquet for `counterpoise evaluate`."""

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of the run."""
    data: Annotated[str, tyro.conf.arg(metavar="NAME")]
    """Data set: a name, a Parquet file or folder, an image folder, or a hub id."""
    split: str = "test"
    """Split of it."""
    domain: str | None = None
    """Domain of it, for sets that have domains."""
    size: int | None = None
    """Resize and centre-crop images to this many pixels."""
    foreign: Flag = False
    """The images are of other classes than the model knows: predict them as out of distribution."""
    corruptions: tuple[str, ...] = ()
    """CIFAR-C-style corruptions to predict too; `standard` for the usual 15, `all` for 19."""
    device: str = "cpu"
    """Where to compute, such as cuda."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = None
    """Parquet file to write; by default in the run's folder of predictions."""
    data_root: DataRoot = None
    """Folder of data sets as Parquet, used without the network; by default COUNTERPOISE_DATA."""

    def run(self) -> None:
        """Load the model and the images, and write the file."""
        from counterpoise.data import load_images
        from counterpoise.training import load_run, predict
        from counterpoise.training.folder import RunFolder
        from counterpoise.training.predict import FOREIGN_PREFIX, prediction_file

        trained = load_run(self.folder)
        images = load_images(self.data, self.split, root=self.data_root, domain=self.domain, size=self.size)
        prefix = FOREIGN_PREFIX if self.foreign else ""
        # The test split has the name that a run itself gives it, so that it is never counted twice.
        name = images.name if self.foreign and self.split == "test" else f"{images.name}_{self.split}"
        path = self.out or prediction_file(RunFolder(self.folder), f"{prefix}{name}")
        predict(
            trained,
            images,
            path,
            split=self.split,
            foreign=self.foreign,
            corruptions=self.corruptions,
            device=self.device,
            say=lambda text: print(text, file=sys.stderr),
        )
        print(path)
