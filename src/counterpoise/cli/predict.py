"""`counterpoise predict`: a trained model on any images."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from counterpoise.cli.evaluate import Flag
from counterpoise.cli.paths import require_file_path
from counterpoise.cli.program import usage_errors
from counterpoise.cli.progress import write
from counterpoise.cli.train import DataRoot


@dataclass(frozen=True)
class Predict:
    """Write what the trained model of a run says about a data set, as Parquet for `counterpoise evaluate`."""

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of the run."""
    data: Annotated[str, tyro.conf.arg(metavar="NAME")]
    """Data set: a name, a Parquet file or folder, an image folder, or a hub id."""
    split: str = "test"
    """Split of it; `all` of one that is not divided."""
    domain: str | None = None
    """Domain of it, for sets that have domains."""
    size: int | None = None
    """Resize and centre-crop images to this many pixels."""
    ood: Flag = False
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
        from counterpoise.data.sources import resolve
        from counterpoise.recipes.config import corruption_names
        from counterpoise.training.folder import RunFolder, trained_folders

        with usage_errors():
            if self.out is not None and self.out.suffix.lower() != ".parquet":
                raise ValueError(f"--out {self.out}: predictions are written as Parquet; give it the ending .parquet")
            corruption_names(self.corruptions)
        if self.out is not None:
            require_file_path(self.out, option="--out")
        trained_folders(RunFolder(self.folder))
        resolve(self.data, root=self.data_root)
        from counterpoise.data import load_images
        from counterpoise.training.devices import require_device
        from counterpoise.training.evaluation import OOD_PREFIX, predict, prediction_file
        from counterpoise.training.networks import load_run

        require_device(self.device)
        trained = load_run(self.folder)
        usual = self._usual_ood_split()
        split = usual or self.split
        images = load_images(self.data, split, root=self.data_root, domain=self.domain, size=self.size)
        # What a run itself predicts has the name that its recipe gives it, so that it is never counted twice.
        same = (name for name in trained.recipe.evaluation.ood if Path(name).resolve() == Path(self.data).resolve())
        name = next(same, self.data) if usual else "_".join(part for part in (self.data, self.domain, split) if part)
        if self.ood:
            name = f"{OOD_PREFIX}{name}"
        elif name.startswith(OOD_PREFIX):  # a run takes files of such names for OOD images
            name = f"own_{name}"
        path = self.out or prediction_file(RunFolder(self.folder), name)
        predict(
            trained,
            images,
            path,
            split="test" if usual else split,
            ood=self.ood,
            corruptions=self.corruptions,
            device=self.device,
            say=lambda text: write(f"{text}\n"),
        )
        print(path)

    def _usual_ood_split(self) -> str | None:
        """The split that a run predicts of an OOD set, if that is what is asked for."""
        from counterpoise.data.sources import ood_split

        if not self.ood or self.domain is not None:
            return None
        usual = ood_split(self.data, root=self.data_root)
        return usual if self.split in ("test", usual) else None
