"""`counterpoise methods`: the table of training methods."""

from dataclasses import dataclass

from counterpoise.recipes import METHODS


@dataclass(frozen=True)
class Methods:
    """List the training methods with their hyper-parameters: those that are tuned, and those that stay fixed."""

    def run(self) -> None:
        for name, method in METHODS.items():
            grid = "; ".join(
                f"{key} in {', '.join(f'{value:g}' for value in values)}" for key, values in method.grid.items()
            )
            # The members of an ensemble train one by one, the models of a method together.
            count = method.models * method.members
            models = "1 model " if count == 1 else f"{count} models"
            fixed = "".join(f"; fixed {key} ({value:g})" for key, value in method.fixed.items())
            print(f"{name:8} {method.title:24} {models}  {grid or 'nothing to tune'}{fixed}")
