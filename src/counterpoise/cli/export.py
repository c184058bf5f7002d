"""`counterpoise export`: the trained primary as a file to deploy, or as a folder to share."""

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from counterpoise._addresses import Address, as_path
from counterpoise._choices import DEFAULT_DELTA
from counterpoise._extras import require_installed
from counterpoise.cli.columns import Flag
from counterpoise.cli.paths import require_file_path, require_folder_path
from counterpoise.cli.program import usage_errors
from counterpoise.cli.progress import write

if TYPE_CHECKING:
    from counterpoise.calibrators import TemperatureScaling
    from counterpoise.export import Guarantees, Temperature
    from counterpoise.training import Trained

FITTED = "fitted"

_ENSEMBLE_SHARED = (
    "an ensemble cannot be shared on the hub: a card has the figures of the whole, and its repository one network; "
    "export its members one by one to another format, with --member"
)


@dataclass(frozen=True)
class Export:
    """Write the trained primary of a run, without auxiliaries, to deploy or to share.

    The file says what its logits stand for and how images are normalised. ONNX and pt2 take batches of any size, give
    logits and probabilities, and are compared with the model before they are written. hub is a folder for the Hugging
    Face Hub: weights, configuration and a model card with the calibration figures. Guarantees are fitted on one half of
    the validation images, a fitted temperature then on the other.
    """

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of the run, or its address in an object store."""
    to: Literal["safetensors", "onnx", "pt2", "hub"]
    """Format: weights alone, ONNX, a torch.export program, or a folder to share."""
    temperature: Annotated[str | None, tyro.conf.arg(metavar="fitted|NUMBER|FILE")] = None
    """Divide logits by it: fitted on the run's validation images, a number, or the file of a calibrator."""
    sets: Annotated[float | None, tyro.conf.arg(metavar="ALPHA")] = None
    """For onnx and pt2: an output `set` of labels that misses the right one with at most this probability."""
    accept_risk: Annotated[float | None, tyro.conf.arg(metavar="RISK")] = None
    """For onnx and pt2: an output `accept`; of what is accepted, at most this share is wrong."""
    delta: float = DEFAULT_DELTA
    """Largest probability that the risk of what is accepted is larger after all."""
    member: int | None = None
    """Member of an ensemble, counted from 0."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="PATH", help_behavior_hint="")] = None
    """File or folder to write; by default `primary.onnx`, `primary.pt2`, `export.safetensors`, `member-N.FORMAT` or
    `hub` in the run's folder."""
    license: str | None = None
    """For hub: licence of the weights as the Hub names it, such as apache-2.0."""
    repo: Annotated[str | None, tyro.conf.arg(metavar="USER/NAME")] = None
    """For hub: upload the folder to this repository, with the login of the Hub's own client."""
    public: Flag = False
    """For hub: make a new repository that everybody can see."""

    def run(self) -> None:
        with usage_errors():
            self._require_options_that_agree()
        if self.out is not None and self.to == "hub":
            require_folder_path(self.out, option="--out")
        elif self.out is not None:
            require_file_path(self.out, option="--out")
        self._require_temperature()
        self._require_extras()
        from counterpoise.training.folder import RunFolder, local_run, trained_folders

        if isinstance(as_path(self.folder), Address):
            if self.out is None:
                raise ValueError(f"{as_path(self.folder)} is only read: say with --out what to write")
            replace(self, folder=local_run(self.folder)).run()
            return
        trained_folders(RunFolder(self.folder), member=self.member)
        from counterpoise.training import load_run
        from counterpoise.training.networks import Members

        trained = load_run(self.folder, member=self.member)
        if isinstance(trained.model, Members):
            if self.to == "hub":
                raise ValueError(_ENSEMBLE_SHARED)
            last = len(trained.model.models) - 1
            raise ValueError(f"{self.folder} is an ensemble: export its members one by one, --member 0 to {last}")
        temperature = self._temperature()
        if self.to == "hub":
            self._share(trained, temperature)
        else:
            self._write(trained, temperature, self._guarantees(trained, temperature))

    def _write(self, trained: "Trained", temperature: "Temperature", guarantees: "Guarantees") -> None:
        import torch

        from counterpoise.export import export_model
        from counterpoise.training.folder import RunFolder

        assert self.to != "hub"  # noqa: S101
        stem = "export" if self.to == "safetensors" else "primary"  # primary.safetensors is the run's own
        stem = stem if self.member is None else f"member-{self.member}"
        path = self.out or self.folder / f"{stem}.{self.to}"
        if path.resolve() == RunFolder(self.folder).primary.resolve():
            raise ValueError(f"{path} holds the weights of the run, which stay as they were trained; give another file")
        example = torch.zeros(2, *trained.shape)
        export_model(
            trained.model,
            path,
            to=self.to,
            example=example,
            metadata=trained.metadata,
            temperature=temperature,
            guarantees=guarantees,
        )
        print(path)

    def _share(self, trained: "Trained", temperature: "Temperature") -> None:
        from counterpoise.export.temperature import temperature_value
        from counterpoise.integrations.hub import push_to_hub, save_pretrained
        from counterpoise.training.evaluation import config_of, measured_card

        config = config_of(trained, temperature=temperature_value(temperature))
        fitted = "The temperature was fitted on the validation images, which were not trained on."
        card = measured_card(
            self.folder,
            name=self.repo.rpartition("/")[-1] if self.repo else self.folder.resolve().name,
            license=self.license,
            temperature=config.temperature,
            notes=(fitted,) if self.temperature == FITTED else (),
        )
        path = self.out or self.folder / "hub"
        save_pretrained(trained.model, path, config=config, card=card)
        print(push_to_hub(path, self.repo, private=not self.public) if self.repo else path)

    def _require_options_that_agree(self) -> None:
        if self.to != "hub" and (self.license or self.repo or self.public):
            raise ValueError("--license, --repo and --public are for --to hub")
        if self.public and not self.repo:
            raise ValueError("--public is for a repository: name it with --repo")
        if self.to == "hub" and self.member is not None:
            raise ValueError(_ENSEMBLE_SHARED)
        if self.temperature == FITTED and self.member is not None:
            raise ValueError("validation predictions are of the whole ensemble: give a member's temperature by number")
        if not self._guaranteed:
            return
        if self.to not in ("onnx", "pt2"):
            raise ValueError("--sets and --accept-risk are outputs of a program: give --to onnx or --to pt2")
        if self.member is not None:
            raise ValueError(
                "validation predictions are of the whole ensemble: a member has no --sets or --accept-risk"
            )
        if self.sets is not None and not 0 < self.sets < 1:
            raise ValueError(f"--sets must lie between 0 and 1, such as 0.1 for a coverage of 90%, got {self.sets}")
        if self.accept_risk is not None and not 0 <= self.accept_risk < 1:
            raise ValueError(f"--accept-risk must be at least 0 and below 1, got {self.accept_risk}")
        if not 0 < self.delta < 1:
            raise ValueError(f"--delta must lie between 0 and 1, got {self.delta}")

    @property
    def _guaranteed(self) -> bool:
        return self.sets is not None or self.accept_risk is not None

    def _require_extras(self) -> None:
        if self.to == "onnx":
            require_installed("onnx", "onnxruntime", "onnxscript", extra="export", purpose="export to ONNX")
        if self.to == "hub":
            require_installed("jinja2", "matplotlib", "huggingface_hub", extra="hub", purpose="a model card")

    def _require_temperature(self) -> None:
        if self.temperature in (None, FITTED):
            return
        try:
            float(self.temperature)
        except ValueError:
            if not Path(self.temperature).is_file():
                raise ValueError(
                    f"--temperature {self.temperature} is neither {FITTED}, nor a number, nor a file"
                ) from None

    def _temperature(self) -> "Temperature":
        from counterpoise.calibrators import FitState, TemperatureScaling, load_calibrator

        if self.temperature is None:
            if self.member is None:
                write(
                    "note: no temperature is folded in; --temperature fitted folds in the one that `counterpoise "
                    "predict` divides the logits of a run by\n"
                )
            return None
        if self.temperature == FITTED:
            scaling = self._fitted_temperature()
            if scaling.state == FitState.CONVERGED:
                return scaling
            # As after a training that got every validation image right: there is a model to ship all the same.
            write(
                f"no temperature is folded in: the fit ended {scaling.state}, {scaling.temperature:g}, which the "
                "validation images are too few, or too well classified, to decide; give a number if you know one\n"
            )
            return None
        with suppress(ValueError):
            return float(self.temperature)
        calibrator = load_calibrator(self.temperature)
        if not isinstance(calibrator, TemperatureScaling):
            raise ValueError(
                f"{self.temperature} is a {type(calibrator).__name__}; only a temperature can be folded in"
            )
        return calibrator

    def _fitted_temperature(self) -> "TemperatureScaling":
        from counterpoise.export.guarantees import first_half_temperature
        from counterpoise.scoring import fit_temperature
        from counterpoise.training.evaluation import prediction_file, validation_samples
        from counterpoise.training.folder import RunFolder

        run = RunFolder(self.folder)
        if self._guaranteed:
            return first_half_temperature(*validation_samples(run))
        return fit_temperature(prediction_file(run, "validation"))

    def _guarantees(self, trained: "Trained", temperature: "Temperature") -> "Guarantees":
        from counterpoise.export import Guarantees, fit_guarantees
        from counterpoise.export.temperature import temperature_value
        from counterpoise.training.evaluation import validation_samples
        from counterpoise.training.folder import RunFolder

        if not self._guaranteed:
            return Guarantees()
        if trained.recipe.patience is not None:
            write(
                "the validation images have also decided which epoch ships (--patience), so that the model knows them "
                "slightly better than new ones, and what follows promises slightly too much\n"
            )
        found = fit_guarantees(
            *validation_samples(RunFolder(self.folder)),
            temperature=temperature_value(temperature),
            alpha=self.sets,
            risk=self.accept_risk,
            delta=self.delta,
        )
        for each in (found.sets, found.accept):
            if each is not None:
                write(f"{each.summary()}\n")
        return found
