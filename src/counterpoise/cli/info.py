"""`counterpoise info`: what a bug report needs."""

import platform
from dataclasses import dataclass

import counterpoise
from counterpoise._extras import installed_version

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


@dataclass(frozen=True)
class Info:
    """Print the versions of counterpoise and what it runs on."""

    def run(self) -> None:
        for name, value in described().items():
            print(f"{name:12} {value}")


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


def _accelerators() -> list[str]:
    import torch

    if torch.backends.mps.is_available():
        return ["MPS"]
    properties = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return [f"{each.name} ({each.total_memory / 2**30:.0f} GiB)" for each in properties]
