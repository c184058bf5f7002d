"""Files of predictions in, `Evaluation` out: one pass over each file, in memory that does not grow with its rows."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from counterpoise.functional.calibration import DEFAULT_BINS
from counterpoise.functional.intervals import DEFAULT_LEVEL
from counterpoise.metrics import Scores
from counterpoise.metrics.comparison import Evaluation, compare
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
    scorers = []
    for index, file in enumerate(models):
        scorer = ModelScorer(file, score=score, bins=bins, level=level, temperature=temperature, paired=several)
        scorer.read(register, is_first=index == 0, threads=threads, progress=progress)
        for beside in foreign[index : index + 1] if several else foreign:
            name = FOREIGN if several else beside.path.stem
            scorer.read_foreign(beside, name, foreign_register, is_first=index == 0, progress=progress)
        scorers.append(scorer)
    scores = _named([scorer.compute() for scorer in scorers])
    notices = [notice for model in scores for notice in model.source.notices]
    notices += [notice for file in foreign for notice in file.notices]
    comparison = None
    if several and all(scorer.paired for scorer in scorers):
        comparison = compare(scores, [scorer.grouped for scorer in scorers], level=level)
    elif several:
        notices.append("the files do not hold the same samples (ids and labels), so the models are not compared")
    return Evaluation(models=scores, comparison=comparison, notices=notices)


def _named(models: list[Scores]) -> list[Scores]:
    """A name for each model, from its header or its file, made distinct."""
    sources = [model.source for model in models]
    names = [" ".join(filter(None, (source.model, source.method))) for source in sources]
    stems = [Path(source.path).stem for source in sources]
    names = [name if name and names.count(name) == 1 else stem for name, stem in zip(names, stems, strict=True)]
    counts, seen = Counter(names), Counter[str]()
    named = []
    for model, source, name in zip(models, sources, names, strict=True):
        seen[name] += 1
        title = f"{name} ({seen[name]})" if counts[name] > 1 else name
        named.append(replace(model, source=replace(source, name=title)))
    return named
