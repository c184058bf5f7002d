"""Options of every command that reads predictions: what columns hold, where their names do not tell."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

if TYPE_CHECKING:
    from counterpoise.predictions import Columns

Name = Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="")]
Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(help_behavior_hint="")]


@dataclass(frozen=True)
class ColumnArguments:
    """What columns hold, where their names do not tell."""

    label: Name = None
    """Column of labels, where its name does not tell."""
    probabilities: Name = None
    """Columns of probabilities: names or patterns such as 'p*', with commas between them."""
    logits: Name = None
    """Columns of logits, likewise."""
    confidence: Name = None
    """Column of the predicted class's probability, where nothing else is known."""
    prediction: Name = None
    """Column of the predicted class."""
    correct: Name = None
    """Column that says whether the prediction was right."""
    id: Name = None
    """Column of sample ids, which pair the samples of models."""
    labels: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = None
    """File of labels: by ids, where both files have them, else one for each row in their order."""
    row_by_row: Flag = False
    """The labels of that file are in the order of the rows, whatever ids there are."""
    class_names: Name = None
    """Names of the outputs in order, with commas between them, where labels are text."""
    percent: Flag = False
    """Probabilities are percentages."""
    one_hot: Flag = False
    """Labels are rows with a single 1."""
    multilabel: Flag = False
    """Each class is a yes-or-no question of its own."""

    def columns(self) -> "Columns":
        """The same for readers of files."""
        from counterpoise.predictions import Columns

        return Columns(**vars(self))
