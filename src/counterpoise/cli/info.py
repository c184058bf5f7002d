"""`counterpoise info`: what a bug report needs."""

import platform
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import counterpoise
from counterpoise._extras import installed_version, require_installed
from counterpoise._text import printable

if TYPE_CHECKING:
    import torch
    from torch import Tensor

PACKAGES = (
    "torch",
    "numpy",
    "safetensors",
    "tyro",
    "pyarrow",
    "matplotlib",
    "jinja2",
    "scikit-learn",
    "torchmetrics",
    "lightning",
    "torchvision",
    "datasets",
    "timm",
    "ray",
)
LARGEST_ERROR = 1e-5
"""Relative, of losses and gradients in float32."""
_CLASSES, _PIXELS, _BATCH = 3, 8, 20


@dataclass(frozen=True)
class Info:
    """Print the versions of counterpoise and what it runs on."""

    check: bool = False
    """Also train, save and load a small model; exits with 1 if that fails."""

    def run(self) -> None:
        if self.check:
            require_installed("lightning", extra="train", purpose="--check")
        for name, value in described().items():
            print(f"{name:12} {value}")
        passed = [_passed(name, check) for name, check in CHECKS.items()] if self.check else []
        if not all(passed):
            raise SystemExit(1)


def described() -> dict[str, str]:
    """Versions and devices, by what they are of."""
    import torch

    packages = {package: installed_version(package) or "not installed" for package in PACKAGES}
    return {
        "counterpoise": counterpoise.__version__,
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        **packages,
        "devices": f"{', '.join(_accelerators()) or 'CPU'}, {torch.get_num_threads()} threads",
    }


def losses_and_gradients() -> str:
    """Compare MTE's loss and gradients in float32 on the device with float64 on the CPU."""
    import torch

    from counterpoise.recipes.config import EngineOptions
    from counterpoise.training.engine import device_type

    device = device_type(EngineOptions())
    pairs = zip(_loss_and_gradients(device, torch.float32), _loss_and_gradients("cpu", torch.float64), strict=True)
    error = max(float((one.cpu().double() - other).abs().max() / other.abs().max()) for one, other in pairs)
    if not error <= LARGEST_ERROR:
        raise ArithmeticError(f"relative error {error:.1g} on {device}, at most {LARGEST_ERROR:g} is expected")
    return f"relative error {error:.1g} on {device}"


def train_save_load() -> str:
    """Train two small networks for two epochs, and load the saved one bit for bit."""
    import torch

    from counterpoise.data.images import Images
    from counterpoise.models import Backbone
    from counterpoise.recipes.config import DataOptions, Recipe
    from counterpoise.training import from_images, load_run, train
    from counterpoise.training.folder import STEP_COLUMNS, RowLog, RunFolder
    from counterpoise.training.networks import recipe_models
    from counterpoise.training.progress import quiet

    network = Backbone("cnn", width=4)
    options = DataOptions(name="noise", validation=_BATCH, padding=1)
    recipe = Recipe(method="mte1", primary=network, auxiliary=network, epochs=2, batch=_BATCH, data=options)
    pixels = torch.randint(256, (5 * _BATCH, _PIXELS, _PIXELS, 3), generator=torch.Generator().manual_seed(0))
    images = Images.of(pixels.to(torch.uint8), torch.arange(5 * _BATCH) % _CLASSES, name="noise")
    build = recipe_models(recipe, classes=_CLASSES, channels=3)
    models = build(recipe.seed)
    with tempfile.TemporaryDirectory() as folder, quiet():
        run = RunFolder(Path(folder) / "run")
        train(recipe, run.path, data=from_images(recipe, images), models=lambda _: models, page=False)
        losses = [float(row["loss"]) for row in RowLog(run.steps, STEP_COLUMNS).rows()]
        saved = load_run(run.path, models=build).model.state_dict()
    if not torch.tensor(losses).isfinite().all():
        raise ArithmeticError(f"losses are not finite: {losses}")
    differing = [name for name, value in models[0].state_dict().items() if not torch.equal(value.cpu(), saved[name])]
    if differing:
        raise ArithmeticError(f"{differing[0]} is not what was saved")
    return f"{len(losses)} steps, last loss {losses[-1]:.3f}"


CHECKS = {"losses and gradients": losses_and_gradients, "train, save, load": train_save_load}


def _passed(name: str, check: Callable[[], str]) -> bool:
    try:
        status, detail = "ok", check()
    except Exception as error:  # whatever it is, it is the finding
        status, detail = "WRONG", f"{type(error).__name__}: {printable(str(error))}"
    print(f"{status:6} {name:22} {detail}", flush=True)
    return status == "ok"


def _loss_and_gradients(device: str, dtype: "torch.dtype") -> "list[Tensor]":
    import torch

    from counterpoise.functional.transport import mutual_transport

    values = torch.randn(2, 64, _CLASSES, generator=torch.Generator().manual_seed(0))
    logits = [value.to(device, dtype).requires_grad_() for value in values]
    loss = mutual_transport(logits[0], logits[1:], torch.arange(64, device=device) % _CLASSES, alpha=0.8).loss
    return [loss.detach(), *torch.autograd.grad(loss, logits)]


def _accelerators() -> list[str]:
    import torch

    if torch.backends.mps.is_available():
        return ["MPS"]
    properties = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return [f"{each.name} ({each.total_memory / 2**30:.0f} GiB)" for each in properties]
