"""`counterpoise methods`: the table of training methods."""

from dataclasses import dataclass

from counterpoise.recipes import METHODS


@dataclass(frozen=True)
class Methods:
    """List the training methods with the hyper-parameters that are tuned, and those besides with their usual values."""

    def run(self) -> None:
        """Print one line for each method."""
        for name, method in METHODS.items():
            grid = "; ".join(
                f"{key} in {', '.join(f'{value:g}' for value in values)}" for key, values in method.grid.items()
            )
            # The members of an ensemble train one by one, the models of a method together.
            count = method.models * method.members
            models = "1 model " if count == 1 else f"{count} models"
            besides = "".join(f"; besides {key} ({value:g})" for key, value in method.besides.items())
            print(f"{name:8} {method.title:24} {models}  {grid or 'nothing to tune'}{besides}")
