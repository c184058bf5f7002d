"""What prediction sets and a threshold of the confidence would promise, tried on a random part of the predictions."""

from collections.abc import Sequence

import torch
from torch import Tensor

from counterpoise._choices import DEFAULT_ALPHA, DEFAULT_DELTA, DEFAULT_RISK
from counterpoise.calibrators import ConformalSets, SelectiveThreshold
from counterpoise.metrics.columns import GroupKey, group_code
from counterpoise.metrics.scores import CoverageTable, GuaranteeTrial
from counterpoise.metrics.trial import FEWEST_SAMPLES, TrialSample


def try_guarantees(
    sample: TrialSample,
    *,
    groups: Sequence[GroupKey] = (),
    alpha: float = DEFAULT_ALPHA,
    risk: float = DEFAULT_RISK,
    delta: float = DEFAULT_DELTA,
) -> GuaranteeTrial | None:
    """Fit both on one half of the samples and apply them to the other; None where there are too few.

    Sets are those of LAC, with one threshold for all samples: of classes and groups they promise nothing, which is what
    their coverage by class and group shows.
    """
    if len(sample) < FEWEST_SAMPLES:
        return None
    logits, labels, codes = sample.samples()
    half = len(labels) // 2
    sets = ConformalSets.fit(logits[:half], labels[:half], alpha=alpha)
    accept = SelectiveThreshold.fit(logits[:half], labels[:half], risk=risk, delta=delta)
    tried, truth = sets(logits[half:]), labels[half:]
    accepted = accept(logits[half:])
    held, size = tried.gather(-1, truth.unsqueeze(-1)).squeeze(-1), tried.sum(-1)
    wrong = logits[half:].argmax(-1) != truth
    places = {group_code(key): place for place, key in enumerate(groups)}
    group = torch.tensor([places.get(code, len(groups)) for code in codes[half:].tolist()])
    return GuaranteeTrial(
        alpha=sets.alpha,
        fitted_on=half,
        measured_on=len(truth),
        sizes=torch.bincount(size).tolist(),
        by_class=_coverage(truth, held, size, kinds=sets.classes),
        by_group=_coverage(group, held, size, kinds=len(groups)),
        risk=accept.risk,
        delta=accept.delta,
        threshold=accept.threshold,
        accepted=int(accepted.sum()),
        errors=int((accepted & wrong).sum()),
    )


def _coverage(kind: Tensor, held: Tensor, size: Tensor, *, kinds: int) -> CoverageTable:
    """Of the samples of each kind `[n]`; others have a larger one."""
    samples, own = (torch.bincount(rows, minlength=kinds)[:kinds] for rows in (kind, kind[held]))
    labels = torch.bincount(kind, weights=size.double(), minlength=kinds)[:kinds].long()
    return CoverageTable(samples.tolist(), own.tolist(), labels.tolist())
