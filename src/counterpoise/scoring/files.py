"""Files of predictions in, `Evaluation` out: one pass over each file.

Memory does not grow with the rows; but to compare several models, the ids and labels of the first are kept.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from counterpoise.functional.calibration import DEFAULT_BINS
from counterpoise.functional.intervals import DEFAULT_LEVEL
from counterpoise.metrics import Scores
from counterpoise.metrics.comparison import Evaluation, GroupedSums, compare
from counterpoise.metrics.evaluate import FOREIGN
from counterpoise.predictions import open_predictions
from counterpoise.scoring.model import ModelScorer, Progress
from counterpoise.scoring.pairing import SampleRegister

DEFAULT_THREADS = 2


def score_files(
    paths: Sequence[str | Path],
    *,
    ood: Sequence[str | Path] = (),
    score: str = "max_softmax",
    bins: int = DEFAULT_BINS,
    level: float = DEFAULT_LEVEL,
    temperature: float = 1.0,
    threads: int = DEFAULT_THREADS,
    progress: Progress | None = None,
) -> Evaluation:
    """Score the predictions of one or several models, and compare those that were made for the same samples.

    Args:
        paths: one file for each model.
        ood: predictions for foreign samples: any number of files for one model, else one for each model, in order.
        score: confidence score for misclassification and OOD detection.
        bins: number of calibration bins.
        level: nominal coverage of the intervals.
        temperature: that logits are divided by before anything is measured; `fit_temperature` finds one.
        threads: batches that are measured at a time. Operations on them are small: `torch.set_num_threads(1)` makes
            more of several cores, and is what the command line does.
        progress: called after every batch.

    Raises:
        PredictionFileError: a file cannot be trusted or understood.
    """
    if threads < 1:
        raise ValueError(f"threads must be at least 1, got {threads}")
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature must be positive, got {temperature}")
    several = len(paths) > 1
    if not paths:
        raise ValueError("give at least one file of predictions")
    if several and len(ood) not in (0, len(paths)):
        raise ValueError(
            f"there are {len(paths)} models and {len(ood)} files of foreign samples; give one for each model, in order"
        )
    models, foreign = [open_predictions(path) for path in paths], [open_predictions(path) for path in ood]
    register, foreign_register = (SampleRegister(), SampleRegister()) if several else (None, None)
    sets = [FOREIGN] * len(foreign) if several else distinct([beside.path for beside in foreign])
    scores, grouped = list[Scores](), list[GroupedSums]()
    paired, unpaired_sets = several, set[str]()
    for index, file in enumerate(models):
        scorer = ModelScorer(file, score=score, bins=bins, level=level, temperature=temperature, paired=several)
        scorer.read(register, is_first=index == 0, threads=threads, progress=progress)
        own = slice(index, index + 1) if several else slice(None)
        for name, beside in zip(sets[own], foreign[own], strict=True):
            scorer.read_foreign(beside, name, foreign_register, is_first=index == 0, progress=progress)
        # Of a model that was read, only what a comparison needs is kept.
        scores.append(scorer.compute())
        paired = paired and scorer.paired
        unpaired_sets |= scorer.unpaired_sets
        if paired:
            grouped.append(scorer.grouped)
    notices = [notice for model in scores for notice in model.source.notices]
    notices += [notice for file in foreign for notice in file.notices]
    named, comparison = _named(scores), None
    if paired:
        comparison = compare(named, grouped, level=level, without=unpaired_sets)
        if unpaired_sets:
            notices.append("the files of foreign samples do not hold the same samples (ids), so OOD is not compared")
    elif several:
        notices.append(
            "the files do not hold the same samples (ids, labels, and which are clean, corrupted or foreign), so the "
            "models are not compared"
        )
    return Evaluation(models=named, comparison=comparison, notices=notices)


def _named(models: list[Scores]) -> list[Scores]:
    """A name for each model: what its header says, with the seed if need be, else what is distinct about its path."""
    sources = [model.source for model in models]
    names = [" ".join(filter(None, (source.model, source.method))) for source in sources]
    seeded = [
        f"{name}, seed {each.seed}" if name and each.seed is not None else ""
        for name, each in zip(names, sources, strict=True)
    ]
    paths = [Path(source.path) for source in sources]
    found = [
        name if name and names.count(name) == 1 else other if other and seeded.count(other) == 1 else ""
        for name, other in zip(names, seeded, strict=True)
    ]
    rest = [index for index, name in enumerate(found) if not name]
    for index, name in zip(rest, distinct([paths[index] for index in rest]), strict=True):
        found[index] = name
    return [replace(model, source=replace(model.source, name=name)) for model, name in zip(models, found, strict=True)]


def distinct(paths: list[Path]) -> list[str]:
    """Names of files, where two are alike replaced by a folder that tells all of them apart, else numbered.

    >>> distinct([Path("runs/ce/predictions/test.npz"), Path("runs/mte/predictions/test.npz")])
    ['ce', 'mte']
    >>> distinct([Path("a.npz"), Path("b.npz"), Path("a.npz")])
    ['a (1)', 'b', 'a (2)']
    """
    names = [path.stem for path in paths]
    if len(set(names)) == len(names):
        return names
    absolute = [path.absolute() for path in paths]
    for depth in range(min((len(path.parts) for path in absolute), default=0) - 1):
        folders = [path.parents[depth].name for path in absolute]
        if len(set(folders)) == len(folders):
            return folders
    counts, seen = Counter(names), Counter[str]()
    numbered = []
    for name in names:
        seen[name] += 1
        numbered.append(f"{name} ({seen[name]})" if counts[name] > 1 else name)
    return numbered
