"""A small run in a script of its own, so that launchers can start it on several processes.

`python parallel_run.py FOLDER DEVICES STRATEGY METHOD plain|batchnorm [stop|resume]`
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
from torch import nn

from counterpoise.recipes import METHODS
from counterpoise.training import resume, train
from counterpoise.training.engine import fit, is_first_process
from counterpoise.training.folder import RunFolder, conditions_now, start
from counterpoise.training.networks import recipe_models
from runs import Stop, small_data, small_recipe


def plain_networks(count: int, seed: int) -> list[nn.Module]:
    """No BatchNorm, whose statistics would be those of a rank's share."""
    torch.manual_seed(seed)
    return [
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 3))
        for _ in range(count)
    ]


def main() -> None:
    folder, devices, strategy, method, network, *action = sys.argv[1:]
    recipe = small_recipe(method, engine__devices=int(devices), engine__strategy=strategy)
    named = recipe_models(recipe, classes=3, channels=3)
    models = (lambda seed: plain_networks(METHODS[method].models, seed)) if network == "plain" else named
    data = small_data(recipe, test=True)
    if action == ["resume"]:
        resume(folder, models=models, data=data)
    elif action == ["stop"]:
        torch.set_num_threads(1)
        if is_first_process():
            start(RunFolder(Path(folder)), recipe, conditions_now(recipe, device="cpu", world_size=int(devices)))
        objective = METHODS[method].build(models(recipe.seed), **recipe.choice)
        try:
            fit(recipe, RunFolder(Path(folder)), objective, data, resume_from=None, callbacks=[Stop(7)])
        except RuntimeError as error:
            sys.stderr.write(f"{error}\n")
    else:
        train(recipe, folder, models=models, data=data)


if __name__ == "__main__":
    main()
