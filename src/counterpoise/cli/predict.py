"""`counterpoise predict`: a trained model on any images."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from counterpoise._addresses import Address, as_path
from counterpoise._choices import DEFAULT_RISK
from counterpoise._files import FilePath
from counterpoise._text import printable
from counterpoise.cli.columns import Flag
from counterpoise.cli.engines import engine_of, require_one_engine
from counterpoise.cli.paths import require_file_path, require_folder_path
from counterpoise.cli.program import usage_errors
from counterpoise.cli.progress import ProgressLine, write
from counterpoise.cli.train import DataRoot
from counterpoise.recipes.config import Unreadable


@dataclass(frozen=True)
class Predict:
    """Write what a trained model says about a data set, as Parquet for `counterpoise evaluate`.

    With a folder for `--out`, or an address such as s3://bucket/predictions, images are predicted file by file and
    batch by batch: for each file of images one of predictions, and a manifest at last. Run it again after an
    interruption: files that are whole are not predicted again.
    """

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN|FILE.onnx")]
    """Folder of the run, or an ONNX file that `counterpoise export` wrote; or an address of such."""
    data: Annotated[str, tyro.conf.arg(metavar="NAME")]
    """Data set: a name, Parquet files or tar shards, by path or address, an image folder, or a hub id."""
    split: str | None = None
    """Split of it; by default test, or all of one that is not divided."""
    domain: str | None = None
    """Domain of it, for sets that have domains."""
    size: int | None = None
    """Resize and centre-crop images to this many pixels; by default as the run did."""
    ood: Flag = False
    """The images are of other classes than the model knows: predict them as out of distribution."""
    unreadable: Unreadable | None = None
    """What becomes of images that cannot be decoded: those that are skipped are named; by default as in training."""
    corruptions: tuple[str, ...] = ()
    """CIFAR-C-style corruptions to predict too; `standard` for the usual 15, `all` for 19. Needs the package
    counterpoise-study."""
    raw: Flag = False
    """Give logits before temperature scaling; by default a run's are divided by the temperature that ships."""
    device: str | None = None
    """Where to compute, such as cuda; by default cpu, or cuda with --gpus-per-worker."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE|FOLDER", help_behavior_hint="")] = None
    """Parquet file to write, by default in the run's folder of predictions; or a folder or address for many."""
    score_only: Flag = False
    """Write no predictions: print what `counterpoise evaluate` would print of them."""
    json: Flag = False
    """Print the scores as JSON instead of a table."""
    workers: int = 0
    """Processes of this machine that predict files in parallel; 0 for none but this one."""
    ray: Annotated[str | None, tyro.conf.arg(metavar="ADDRESS", help_behavior_hint="")] = None
    """Ray cluster that predicts files in parallel: auto for the one that this machine belongs to, or local."""
    gpus_per_worker: float = 0
    """GPUs of each of the cluster's workers; a fraction where several share one."""
    data_root: DataRoot = None
    """Folder of data sets as Parquet, used without the network; by default COUNTERPOISE_DATA."""

    def run(self) -> None:
        from counterpoise.predictions.formats import is_prediction_file
        from counterpoise.recipes.checks import corruption_names

        out = None if self.out is None else as_path(self.out)
        stored = any(isinstance(as_path(each), Address) for each in (self.model, self.data))
        one_file = out is None or out.suffix.lower() == ".parquet"
        program = self.model.suffix.lower() == ".onnx" and not self.model.is_dir()
        streamed = program or self.score_only or not one_file or stored
        with usage_errors():
            if out is not None and not one_file and is_prediction_file(out):
                raise ValueError(f"--out {out}: predictions are written as Parquet; give it the ending .parquet")
            corruption_names(self.corruptions)
            require_one_engine(self.workers, self.ray)
            self._require_options_that_agree(streamed=streamed, one_file=one_file)
        if out is not None and one_file:
            require_file_path(out, option="--out")
        elif isinstance(out, Path):
            require_folder_path(out, option="--out")
        if streamed:
            self._stream(out)
        else:
            self._predict(out)

    def _require_options_that_agree(self, *, streamed: bool, one_file: bool) -> None:
        if streamed and self.corruptions:
            raise ValueError("--corruptions are for a run whose predictions go to one file")
        if self.score_only and (self.out is not None or self.ood):
            raise ValueError("--score-only writes no file and needs labels: leave out --out and --ood")
        if streamed and self.out is None and not self.score_only:
            raise ValueError("name the file or folder for the predictions with --out, or choose --score-only")
        if self.json and not self.score_only:
            raise ValueError("--json is for --score-only")
        if (self.workers or self.ray is not None) and one_file and not self.score_only:
            raise ValueError("several workers write several files: name a folder with --out, or choose --score-only")
        if self.gpus_per_worker < 0 or (self.gpus_per_worker and self.ray is None):
            raise ValueError(f"--gpus-per-worker must be 0 or more, and is for --ray; got {self.gpus_per_worker:g}")

    def _stream(self, out: FilePath | None) -> None:
        """Predict file by file."""
        from counterpoise.training.predicting import predicted_shards, score_shards, write_shards

        progress, evaluation = ProgressLine(), None
        shards = predicted_shards(
            as_path(self.model),
            self.data,
            split=self.split,
            domain=self.domain,
            root=self.data_root,
            size=self.size,
            ood=self.ood,
            unreadable=self.unreadable,
            raw=self.raw,
            device=self.device or ("cuda" if self.gpus_per_worker else "cpu"),
        )
        with engine_of(workers=self.workers, ray=self.ray, gpus=self.gpus_per_worker) as engine:
            if out is not None:
                written = write_shards(shards, out, engine=engine, progress=progress.rows)
            else:
                evaluation = score_shards(shards, engine=engine, progress=progress.rows)
        progress.clear()
        if evaluation is None:
            print(written)
            return
        from counterpoise.report import terminal

        for notice in evaluation.notices:
            print(f"counterpoise: note: {printable(notice)}", file=sys.stderr)
        print(evaluation.to_json() if self.json else terminal.as_text(evaluation, risk=DEFAULT_RISK, everything=False))

    def _predict(self, out: FilePath | None) -> None:
        """Predict what fits into memory, to one file."""
        from counterpoise.data.sources import WHOLE, resolve
        from counterpoise.training.folder import RunFolder, trained_folders

        trained_folders(RunFolder(self.model))
        source = resolve(self.data, root=self.data_root)
        from counterpoise.training.devices import require_device
        from counterpoise.training.evaluation import (
            OOD_PREFIX,
            of_temperature,
            predict,
            prediction_file,
            shipped_temperature,
        )
        from counterpoise.training.inputs import load_inputs
        from counterpoise.training.networks import load_run
        from counterpoise.training.own_data import own_data

        device = self.device or "cpu"
        require_device(device)
        trained = load_run(self.model)
        usual = self._usual_ood_split()
        undivided = set(source.files) == {WHOLE} and not source.info.domains
        split = usual or self.split or (WHOLE if undivided else "test")
        progress = ProgressLine()

        def told(text: str) -> None:
            progress.clear()
            write(f"{text}\n")

        images = load_inputs(
            own_data(RunFolder(self.model)),
            self.data,
            split,
            root=self.data_root,
            domain=self.domain,
            size=self.size,
            unreadable=self.unreadable,
            progress=lambda done, total: progress.rows(f"reading {self.data}", done, total),
            say=told,
        )
        # What a run itself predicts has the name that its recipe gives it, so that it is never counted twice.
        same = (name for name in trained.recipe.evaluation.ood if Path(name).resolve() == Path(self.data).resolve())
        name = next(same, self.data) if usual else "_".join(part for part in (self.data, self.domain, split) if part)
        if self.ood:
            name = f"{OOD_PREFIX}{name}"
        elif name.startswith(OOD_PREFIX):  # a run takes files of such names for OOD images
            name = f"own_{name}"
        path = out or prediction_file(RunFolder(self.model), name)
        # OOD predictions in the run's folder are scored with its own test predictions, which are not scaled.
        raw = self.raw or (self.ood and out is None)
        temperature = 1.0 if raw else shipped_temperature(RunFolder(self.model))
        if temperature != 1:
            told(of_temperature(temperature))
        predict(
            trained,
            images,
            path,
            split="test" if usual else split,
            ood=self.ood,
            corruptions=self.corruptions,
            temperature=temperature,
            device=device,
            say=told,
            progress=progress.rows,
        )
        progress.clear()
        print(path)

    def _usual_ood_split(self) -> str | None:
        """The split that a run predicts of an OOD set, if that is what is asked for."""
        from counterpoise.data.sources import ood_split

        if not self.ood or self.domain is not None:
            return None
        usual = ood_split(self.data, root=self.data_root)
        return usual if self.split in (None, "test", usual) else None
