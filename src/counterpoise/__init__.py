"""Train classifiers that know what they don't know, and measure how far their confidence can be trusted.

The heart is `MutualTransport`; `evaluate` measures any predictions. Importing this loads nothing else; the first use of
a name loads torch, numpy and safetensors.
"""

from typing import TYPE_CHECKING

from counterpoise._lazy import lazily

if TYPE_CHECKING:
    from counterpoise.metrics import Evaluation, Scores, Stream, compare, evaluate
    from counterpoise.objectives import (
        DeepMutualLearning,
        LossSum,
        MutualTransport,
        Objective,
        ObjectiveOutput,
        SupervisedObjective,
        linear_warmup,
    )
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "functional": "functional",
            "metrics": "metrics Evaluation Scores Stream compare evaluate",
            "objectives": "objectives DeepMutualLearning LossSum MutualTransport Objective ObjectiveOutput "
            "SupervisedObjective linear_warmup",
        },
    )

__version__ = "0.1.0"

__all__ = [
    "DeepMutualLearning",
    "Evaluation",
    "LossSum",
    "MutualTransport",
    "Objective",
    "ObjectiveOutput",
    "Scores",
    "Stream",
    "SupervisedObjective",
    "__version__",
    "compare",
    "evaluate",
    "linear_warmup",
]
