"""A model that predicts images, from a run, an ONNX file or an object, and in whatever process it is needed."""

import copy
import hashlib
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from counterpoise._addresses import as_path
from counterpoise._files import FilePath, digest_of
from counterpoise.data.augment import normalised
from counterpoise.export import ModelConfig, load_onnx
from counterpoise.export.primary import uncompiled
from counterpoise.objectives.models import call_for_logits, require_model
from counterpoise.predictions import Header
from counterpoise.recipes.config import EvaluationOptions
from counterpoise.training.devices import full_float32, require_device
from counterpoise.training.evaluation import config_of, shipped_temperature
from counterpoise.training.folder import RunFolder, installed_versions, local_run, trained_folders
from counterpoise.training.networks import Members, header_of, image_shape, load_run, stated_lists
from counterpoise.training.own_data import OwnData, own_data

DEFAULT_BATCH = EvaluationOptions().batch


class _Logits(Protocol):
    def __call__(self, images: Tensor, /) -> Tensor:
        """Logits `[n, K]`, or `[n, M, K]` of the members of an ensemble, of normalised images on the device."""
        ...


@dataclass(frozen=True)
class Predictor:
    """A model, and what it expects of images.

    Attributes:
        logits: the model.
        config: its classes, and the shape and normalisation of images; logits are divided by the temperature.
        header: where its predictions come from.
        batch: images that are predicted at a time, unless another number is asked for.
        members: of an ensemble, or None.
        device: where it computes.
        own: what it was trained on, if it is of a run.
    """

    logits: _Logits
    config: ModelConfig
    header: Header
    batch: int = DEFAULT_BATCH
    members: int | None = None
    device: str = "cpu"
    own: OwnData | None = None

    def __call__(self, pixels: Tensor) -> Tensor:
        """Logits, on the CPU, of uint8 images `[n, C, H, W]`."""
        channels, config = pixels.shape[1], self.config
        mean, std = config.mean or (0.0,) * channels, config.std or (1.0,) * channels
        with torch.inference_mode(), full_float32():
            logits = self.logits(normalised(pixels.to(self.device), mean, std)).cpu()
        return logits if config.temperature == 1 else logits / config.temperature


class ModelSource(Protocol):
    """What finds a model in any process; sent to others instead of the model.

    Attributes:
        digest: SHA-256 of the weights.
    """

    @property
    def digest(self) -> str: ...

    def __hash__(self) -> int: ...

    def load(self, device: str) -> Predictor:
        """The model, ready to compute on a device."""
        ...


@dataclass(frozen=True)
class RunModel:
    """The trained model of a run, in a folder that each process can read; `raw` before temperature scaling."""

    folder: FilePath
    digest: str
    raw: bool = False

    def load(self, device: str) -> Predictor:
        require_device(device)
        run = RunFolder(local_run(self.folder))  # of one in a store, a copy
        trained = load_run(run.path)
        model = trained.model.eval().to(device).float()
        return Predictor(
            logits=lambda images: call_for_logits(model, (images,), {}),
            config=config_of(trained, temperature=1.0 if self.raw else shipped_temperature(run)),
            header=header_of(trained),
            batch=trained.recipe.evaluation.batch,
            members=len(model.models) if isinstance(model, Members) else None,
            device=device,
            own=own_data(run),
        )


@dataclass(frozen=True)
class OnnxModel:
    """An ONNX file, which each process can read, and what it does not say of itself."""

    path: FilePath
    digest: str
    config: ModelConfig | None

    def load(self, device: str) -> Predictor:
        run, metadata = load_onnx(self.path, device=device)
        config = self.config or _stated(metadata, self.path)

        def logits(images: Tensor) -> Tensor:
            outputs = run(images)
            return outputs.get("logits", next(iter(outputs.values())))

        header = Header(
            class_names=config.class_names,
            model="-w".join(metadata[name] for name in ("model", "width") if name in metadata) or self.path.stem,
            method=metadata.get("method", ""),
            config_digest=metadata.get("config_digest", ""),
            versions=installed_versions(),
        )
        return Predictor(logits, config, header)  # the runtime moves the images to its device by itself


@dataclass(frozen=True, eq=False)
class OwnModel:
    """A module of this process; others are sent its pickle, and unpickle it once."""

    module: nn.Module
    config: ModelConfig

    @cached_property
    def digest(self) -> str:
        found = hashlib.sha256()
        for name, module in self.module.named_modules():
            settings = {key: value for key, value in vars(module).items() if _is_plain(value)}
            settings.pop("training")  # which predicting decides
            found.update(f"{name} {type(module).__module__}.{type(module).__qualname__} {settings}".encode())
        for name, tensor in (*self.module.named_parameters(), *self.module.named_buffers()):
            found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return found.hexdigest()

    def load(self, device: str) -> Predictor:
        require_device(device)
        model = copy.deepcopy(self.module).eval().to(device).float()
        return Predictor(
            logits=lambda images: call_for_logits(model, (images,), {}),
            config=self.config,
            header=Header(
                class_names=self.config.class_names, model=type(model).__name__, versions=installed_versions()
            ),
            device=device,
        )

    @cached_property
    def _pickled(self) -> bytes:
        try:
            return pickle.dumps((self.module, self.config))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ValueError(
                f"{type(self.module).__name__} cannot be sent to other processes ({error}): define it in a module that "
                "they can import, or export it and give the path of the ONNX file"
            ) from None

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (hashlib.sha256(self._pickled).hexdigest(), self._pickled)


def model_source(
    model: "str | FilePath | nn.Module", config: ModelConfig | None = None, *, raw: bool = False
) -> ModelSource:
    """What finds a model: the folder of a run, an ONNX file or its address, or a module with its configuration."""
    if raw and (isinstance(model, nn.Module) or as_path(model).suffix.lower() == ".onnx"):
        raise ValueError("raw logits are those of a run: an ONNX file has its temperature within, a module in config")
    if isinstance(model, nn.Module):
        if config is None or config.shape is None:
            raise ValueError("a module says nothing of its classes and images: give config=ModelConfig(..., shape=...)")
        require_model(model, name="model")
        return OwnModel(uncompiled(model), config)
    path = as_path(model)
    if path.suffix.lower() == ".onnx" and not path.is_dir():
        return OnnxModel(path.absolute() if isinstance(path, Path) else path, digest_of(path), config)
    if config is not None:
        raise ValueError(f"{path} is a run, which has its own configuration: leave config out")
    folders = trained_folders(RunFolder(local_run(path)))
    digests = "\n".join(digest_of(each.primary) for each in folders)
    return RunModel(
        path.absolute() if isinstance(path, Path) else path, hashlib.sha256(digests.encode()).hexdigest(), raw
    )


@lru_cache(maxsize=2)
def loaded(source: ModelSource, device: str) -> Predictor:
    """The model, which a process loads once for each device."""
    return source.load(device)


_sent: dict[str, OwnModel] = {}


def _unpickled(digest: str, data: bytes) -> OwnModel:
    """Of one digest, the same object each time, so that it is known to be loaded already."""
    if digest not in _sent:
        _sent.clear()
        _sent[digest] = OwnModel(*pickle.loads(data))  # noqa: S301 - sent by the process that started this one
    return _sent[digest]


def _is_plain(value: object) -> bool:
    """Whether a value's text says what it is."""
    return all(isinstance(each, str | int | float) for each in (value if isinstance(value, tuple) else (value,)))


def _stated(metadata: Mapping[str, str], path: FilePath) -> ModelConfig:
    if missing := [name for name in ("class_names", "channels", "size", "mean", "std") if name not in metadata]:
        raise ValueError(
            f"{path} was not written by `counterpoise export`: its metadata lack {', '.join(missing)}; from Python, "
            "give config=ModelConfig(...)"
        )
    names, mean, std = stated_lists(metadata, path)
    return ModelConfig(names, shape=image_shape(metadata), mean=mean, std=std)
