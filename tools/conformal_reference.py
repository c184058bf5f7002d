"""Prediction sets of other libraries, for tests to compare with; `tests/golden/conformal/README.md` has the commands.

Runs where the library is installed and counterpoise is not: needs NumPy, and torch for TorchCP.
"""

import argparse
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALPHAS = (0.05, 0.1, 0.3)
PROBLEMS = {"few": (4, 250, 80, 1.0), "many": (20, 300, 80, 2.0)}
"""Classes, calibration samples, test samples, and how sure the model is."""
PENALTY, FREE_RANKS = 0.05, 2
SEED = 7

Arrays = dict[str, NDArray[Any]]


def problem(name: str) -> tuple[NDArray[Any], NDArray[Any], int]:
    """Probabilities `[n + m, K]`, labels `[n + m]` drawn at a higher temperature, and n."""
    classes, calibration, test, scale = PROBLEMS[name]
    generator = np.random.default_rng(SEED)
    logits = scale * generator.standard_normal((calibration + test, classes))
    noise = generator.gumbel(size=logits.shape)
    softmax = np.exp(logits - logits.max(-1, keepdims=True))
    # Rounded, so that they can be kept as float32.
    p = (softmax / softmax.sum(-1, keepdims=True)).astype(np.float32).astype(np.float64)
    return p, (0.7 * logits + noise).argmax(-1), calibration


class Given:
    """A classifier, as scikit-learn has them, whose inputs are its probabilities."""

    def __init__(self, classes: int) -> None:
        self.classes_ = np.arange(classes)
        self.fitted_ = True

    def fit(self, *_: object) -> "Given":
        return self

    def predict_proba(self, X: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(X)

    def predict(self, X: NDArray[Any]) -> NDArray[Any]:
        prediction: NDArray[Any] = np.asarray(X).argmax(-1)
        return prediction


def mapie_sets() -> Arrays:
    """LAC; APS with each setting of the last label; RAPS without it, whose penalty and rank MAPIE chooses."""
    from mapie.classification import SplitConformalClassifier  # type: ignore[import-not-found]
    from sklearn.model_selection import StratifiedShuffleSplit

    found: Arrays = {}
    for name in PROBLEMS:
        p, labels, n = problem(name)
        # What MAPIE draws with this seed, once for the calibration samples and once for the test samples.
        found[f"{name}_u_calibration"] = np.random.RandomState(SEED).uniform(size=n)
        found[f"{name}_u_test"] = np.random.RandomState(SEED).uniform(size=len(p) - n)

        def fitted(score: Any, p: Any = p, labels: Any = labels, n: int = n) -> Any:
            classifier = SplitConformalClassifier(
                Given(p.shape[-1]),
                confidence_level=[1 - alpha for alpha in ALPHAS],
                conformity_score=score,
                random_state=SEED,
            )
            return classifier.conformalize(p[:n], labels[:n])

        found[f"{name}_lac"] = fitted("lac").predict_set(p[n:])[1]
        for last in (False, True, "randomized"):
            sets = fitted("aps").predict_set(p[n:], conformity_score_params={"include_last_label": last})[1]
            found[f"{name}_aps_{last}".lower()] = sets
        for index, alpha in enumerate(ALPHAS):
            classifier = SplitConformalClassifier(
                Given(p.shape[-1]), confidence_level=1 - alpha, conformity_score="raps", random_state=SEED
            ).conformalize(p[:n], labels[:n])
            sets = classifier.predict_set(p[n:], conformity_score_params={"include_last_label": False})[1]
            own = classifier._mapie_classifier.conformity_score_function_
            # The part of the calibration samples that it does not choose its settings on.
            split = StratifiedShuffleSplit(n_splits=1, test_size=own.size_raps, random_state=SEED)
            found[f"{name}_raps_rows"] = next(split.split(p[:n], labels[:n]))[0]
            found[f"{name}_raps_{index}"] = sets[..., 0]
            found[f"{name}_raps_{index}_chosen"] = np.array([float(own.lambda_star), float(own.k_star[0])])
    return found


def torchcp_sets() -> Arrays:
    """LAC, APS and RAPS without random numbers, for all samples together and by class."""
    sys.modules.setdefault("torchsort", _unused("torchsort", "soft_rank", "soft_sort"))  # of a loss for training
    import torch
    from torchcp.classification.predictor import (  # type: ignore[import-not-found]
        ClassConditionalPredictor,
        SplitPredictor,
    )
    from torchcp.classification.score import APS, LAC, RAPS  # type: ignore[import-not-found]

    scores: dict[str, Any] = {
        "lac": lambda: LAC(score_type="identity"),
        "aps": lambda: APS(score_type="identity", randomized=False),
        "raps": lambda: RAPS(score_type="identity", randomized=False, penalty=PENALTY, kreg=FREE_RANKS),
    }
    predictors = {"all": SplitPredictor, "class": ClassConditionalPredictor}
    found: Arrays = {"raps_chosen": np.array([PENALTY, FREE_RANKS])}
    for name in PROBLEMS:
        p, labels, n = problem(name)
        given, truth = torch.from_numpy(p), torch.from_numpy(labels)
        for score, make in scores.items():
            for by, kind in predictors.items():
                sets = []
                for alpha in ALPHAS:
                    predictor = kind(make(), alpha=alpha, device=torch.device("cpu"))
                    predictor.calculate_threshold(given[:n], truth[:n], alpha)
                    sets.append(predictor.predict_with_logits(given[n:]).bool().numpy())
                found[f"{name}_{score}_{by}"] = np.stack(sets, -1)
    return found


def _unused(name: str, *functions: str) -> types.ModuleType:
    module = types.ModuleType(name)
    for each in functions:
        setattr(module, each, None)
    return module


def main() -> None:
    """Write what one library says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", choices=("mapie", "torchcp"))
    parser.add_argument("--out", type=Path, default=Path("tests/golden/conformal"))
    options = parser.parse_args()
    found = mapie_sets() if options.library == "mapie" else torchcp_sets()
    inputs: Arrays = {"alphas": np.array(ALPHAS)}
    for name in PROBLEMS:
        p, labels, n = problem(name)
        inputs |= {f"{name}_probabilities": p.astype(np.float32), f"{name}_labels": labels, f"{name}_n": np.array(n)}
    for stem, arrays in (("inputs", inputs), (options.library, found)):
        path = options.out / f"{stem}.npz"
        np.savez_compressed(path, **arrays)  # type: ignore[arg-type]
        print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
