"""`counterpoise methods`: the table of training methods."""

from dataclasses import dataclass

from counterpoise.recipes import METHODS


@dataclass(frozen=True)
class Methods:
    """List the training methods with the hyper-parameters that are tuned."""

    def run(self) -> None:
        """Print one line for each method."""
        for name, method in METHODS.items():
            grid = "; ".join(
                f"{key} in {', '.join(f'{value:g}' for value in values)}" for key, values in method.grid.items()
            )
            models = "1 model " if method.models == 1 else f"{method.models} models"
            print(f"{name:8} {method.title:24} {models}  {grid or 'nothing to tune'}")
