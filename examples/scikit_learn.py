"""A mutual-transport ensemble inside scikit-learn: a pipeline, a search over alpha, a test, and the weights to ship.

    python examples/scikit_learn.py

The made-up data have four classes, and a fifth of the labels is drawn at random: a network that learns them by heart
is overconfident. The search chooses alpha by the likelihood of samples that it left out; alpha 0 is plain
cross-entropy. Prints the likelihood for each alpha and scores on test data, and writes `primary.safetensors`.
"""

from collections.abc import Sequence
from pathlib import Path

from sklearn.datasets import make_classification
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

import counterpoise
from counterpoise.export import describe, export_safetensors
from counterpoise.integrations.sklearn import MutualTransportClassifier


def network(features: int, classes: int) -> nn.Module:
    """The primary; `fit` calls it with the numbers of features and classes."""
    return nn.Sequential(nn.Linear(features, 100), nn.ReLU(), nn.Dropout(0.1), nn.Linear(100, classes))


def small_network(features: int, classes: int) -> nn.Module:
    """The auxiliary."""
    return nn.Sequential(nn.Linear(features, 50), nn.ReLU(), nn.Linear(50, classes))


def main(
    path: Path = Path("primary.safetensors"), *, alphas: Sequence[float] = (0.0, 0.8), epochs: int = 40
) -> counterpoise.Scores:
    """Search, test, write the weights to `path`, and return the scores."""
    samples, labels = make_classification(4000, n_informative=8, n_classes=4, flip_y=0.2, random_state=0)
    train_samples, test_samples, train_labels, test_labels = train_test_split(
        samples, labels, train_size=1000, random_state=0
    )
    classifier = MutualTransportClassifier(primary=network, auxiliaries=[small_network], epochs=epochs, random_state=0)
    search = GridSearchCV(
        Pipeline([("scale", StandardScaler()), ("classify", classifier)]),
        {"classify__alpha": alphas},
        scoring="neg_log_loss",
        cv=3,
    )
    search.fit(train_samples, train_labels)
    for alpha, likelihood in zip(alphas, search.cv_results_["mean_test_score"], strict=True):
        print(f"alpha {alpha}: mean log-likelihood {likelihood:.3f}")

    scaler, best = search.best_estimator_["scale"], search.best_estimator_["classify"]
    scores = best.evaluate(scaler.transform(test_samples), test_labels)
    print(scores)
    needed = describe(class_names=scores.class_names, mean=scaler.mean_, std=scaler.scale_)
    export_safetensors(best.primary_, path, metadata=needed, temperature=best.calibrator_)
    return scores


if __name__ == "__main__":
    main()
