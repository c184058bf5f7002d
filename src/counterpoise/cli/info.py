"""`counterpoise info`: what a bug report needs."""

import platform
from dataclasses import dataclass
from importlib import metadata

import torch

import counterpoise

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
)


@dataclass(frozen=True)
class Info:
    """Print the versions of counterpoise and what it runs on."""

    def run(self) -> None:
        """Print one line for each part."""
        print(f"counterpoise {counterpoise.__version__}")
        print(f"python       {platform.python_version()} on {platform.system()} {platform.machine()}")
        for package in PACKAGES:
            print(f"{package:12} {_version(package)}")
        devices = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        print(f"{'devices':12} {', '.join(devices) or 'CPU'}, {torch.get_num_threads()} threads")


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
