"""The scikit-learn classifier: scikit-learn's own checks, the method against a loop by hand, and what ships."""

import importlib
import sys
from functools import partial

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import make_classification
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

import counterpoise
from counterpoise.export import export_safetensors, load_safetensors
from counterpoise.functional.transport import mutual_transport
from counterpoise.integrations.sklearn import MutualTransportClassifier, multilayer_perceptron
from example_scripts import example

EXCEPTIONS = {
    "check_sample_weight_equivalence_on_dense_data": "mini-batches of repeated samples are other batches; where one "
    "batch holds them all, float32 rounds the sums of repeated and of weighted samples differently: "
    "test_weights_are_repetitions holds that to 1e-4",
}
"""Every check of scikit-learn that is not passed, and why."""


def samples(count=120, *, classes=3, seed=0):
    X, y = make_classification(
        count, 6, n_informative=4, n_classes=classes, flip_y=0.2, class_sep=0.7, random_state=seed
    )
    return X.astype(np.float32), y


def quick(**changed):
    settings = {
        "primary": partial(multilayer_perceptron, width=16),
        "auxiliaries": partial(multilayer_perceptron, width=8),
    }
    return MutualTransportClassifier(**(settings | {"epochs": 4, "batch_size": 40, "random_state": 0} | changed))


@parametrize_with_checks([MutualTransportClassifier(epochs=10)], expected_failed_checks=lambda estimator: EXCEPTIONS)
def test_checks_of_scikit_learn(estimator, check):
    check(estimator)


def test_it_is_the_method_in_a_loop_by_hand():
    X, y = samples()
    fitted = quick(alpha=0.6, lr=0.05, auxiliary_lr=0.02, batch_size=200, epochs=5).fit(X, y)
    torch.manual_seed(np.random.RandomState(0).randint(np.iinfo(np.int32).max))
    primary, auxiliary = (multilayer_perceptron(6, 3, width=width) for width in (16, 8))
    optimizers = [
        torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=5e-4)
        for model, lr in ((primary, 0.05), (auxiliary, 0.02))
    ]
    features, labels = torch.tensor(X), torch.tensor(y)
    for _ in range(5):
        mutual_transport(primary(features), [auxiliary(features)], labels, alpha=0.6).loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    expected = torch.softmax(primary(features), -1).detach().numpy()
    np.testing.assert_allclose(fitted.predict_proba(X), expected, rtol=1e-4)


def test_random_state_alone_decides_and_the_global_state_stays():
    X, y = samples()

    def dropout(features, classes):
        return nn.Sequential(nn.Linear(features, 8), nn.Dropout(0.5), nn.Linear(8, classes))

    torch.manual_seed(7)
    before = torch.get_rng_state()
    first = quick(primary=dropout).fit(X, y).predict_proba(X)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(8)
    assert np.array_equal(quick(primary=dropout).fit(X, y).predict_proba(X), first)
    assert not np.array_equal(quick(primary=dropout, random_state=1).fit(X, y).predict_proba(X), first)


def test_a_weight_of_zero_removes_a_sample():
    X, y = samples()
    weight = np.random.default_rng(0).integers(0, 3, len(y)).astype(float)
    kept = weight > 0
    one, other = quick().fit(X, y, weight), quick().fit(X[kept], y[kept], weight[kept])
    assert np.array_equal(one.predict_proba(X), other.predict_proba(X))


def test_weights_are_repetitions():
    X, y = samples(60)
    weight = np.random.default_rng(0).integers(0, 3, len(y))
    one = quick(batch_size=1000).fit(X, y, weight)
    other = quick(batch_size=1000).fit(X.repeat(weight, axis=0), y.repeat(weight))
    np.testing.assert_allclose(one.predict_proba(X), other.predict_proba(X), rtol=1e-4)


def test_without_auxiliaries_it_is_cross_entropy_as_it_is_with_alpha_0():
    X, y = samples()
    # One batch an epoch, because the auxiliary's initial weights are drawn before the order of the samples.
    plain, without_pull = quick(auxiliaries=[], batch_size=200), quick(alpha=0.0, batch_size=200)
    np.testing.assert_allclose(plain.fit(X, y).predict_proba(X), without_pull.fit(X, y).predict_proba(X), rtol=1e-4)


def test_every_auxiliary_counts():
    X, y = samples()
    one, two = (quick(auxiliaries=[multilayer_perceptron] * count).fit(X, y).predict_proba(X) for count in (1, 2))
    assert not np.allclose(one, two)


def test_it_works_inside_scikit_learn():
    X, y = samples()
    y = np.array(["low", "middle", "high"])[y]
    search = GridSearchCV(
        make_pipeline(StandardScaler(), quick()),
        {"mutualtransportclassifier__alpha": [0.0, 0.8]},
        scoring="neg_log_loss",
        cv=2,
    ).fit(X, y)
    assert search.best_estimator_.predict(X).dtype == y.dtype
    assert clone(quick(alpha=0.3)).get_params()["alpha"] == 0.3
    crossed = cross_val_predict(quick(), X, y, cv=2, method="predict_proba")
    calibrated = CalibratedClassifierCV(quick(), cv=2).fit(X, y).predict_proba(X)
    for probabilities in (crossed, calibrated, search.predict_proba(X)):
        assert probabilities.shape == (len(y), 3)
        np.testing.assert_allclose(probabilities.sum(-1), 1)


def test_validation_samples_find_a_temperature():
    X, y = samples(300)
    fitted = quick(validation_fraction=0.3, epochs=40, auxiliaries=[]).fit(X, y)
    assert fitted.calibrator_.temperature > 1.2  # the labels are noisy, and were learned by heart
    logits = fitted.primary_(torch.tensor(X)).double()
    expected = torch.softmax(logits / fitted.calibrator_.temperature, -1).detach().numpy()
    np.testing.assert_allclose(fitted.predict_proba(X), expected)
    fresh = samples(2000)
    plain = quick(epochs=40, auxiliaries=[]).fit(X, y)
    assert fitted.evaluate(*fresh)["ece"].value < plain.evaluate(*fresh)["ece"].value


def test_no_temperature_is_made_up_where_every_validation_sample_is_right():
    X = np.repeat([[-1.0], [1.0]], 20, axis=0)
    classifier = quick(validation_fraction=0.2, epochs=20)
    with pytest.raises(
        ValueError, match=r"of 8 validation samples so many are classified correctly.*validation_fraction=0"
    ):
        classifier.fit(X, [0] * 20 + [1] * 20)
    with pytest.raises(NotFittedError):
        classifier.predict(X)


def test_scores_are_those_of_the_probabilities():
    X, y = samples()
    names = np.array(["a", "b", "c"])[y]
    fitted = quick().fit(X, names)
    scores = fitted.evaluate(X, names)
    expected = counterpoise.evaluate(probabilities=fitted.predict_proba(X), labels=y)
    assert scores["accuracy"].value == fitted.score(X, names)
    assert scores["ece"].value == pytest.approx(expected["ece"].value)
    assert scores.class_names == ["a", "b", "c"]
    with pytest.raises(ValueError, match=r"y row 1 is .*'d'.*not fitted to"):
        fitted.evaluate(X[:2], ["a", "d"])


def test_the_primary_ships_without_pickle_and_without_auxiliaries(tmp_path):
    X, y = samples()
    fitted = quick(validation_fraction=0.3).fit(X, y)
    assert [name for name, value in vars(fitted).items() if isinstance(value, nn.Module)] == ["primary_"]
    export_safetensors(fitted.primary_, tmp_path / "p.safetensors", metadata={}, temperature=fitted.calibrator_)
    loaded = multilayer_perceptron(fitted.n_features_in_, len(fitted.classes_), width=16)
    temperature = float(load_safetensors(loaded, tmp_path / "p.safetensors")["temperature"])
    probabilities = torch.softmax(loaded(torch.tensor(X)).double() / temperature, -1)
    np.testing.assert_allclose(probabilities.detach().numpy(), fitted.predict_proba(X))


def test_no_batch_is_a_single_sample():
    def normalised(features, classes):
        return nn.Sequential(nn.Linear(features, 8), nn.BatchNorm1d(8), nn.Linear(8, classes))

    quick(primary=normalised, batch_size=40).fit(*samples(121))


def test_a_schedule_of_alpha_is_followed():
    progress = []
    X, y = samples(80)
    quick(alpha=lambda p: progress.append(p) or 0.5, epochs=2).fit(X, y)
    assert progress == [0.0, 0.0, 0.25, 0.5, 0.75]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"validation_fraction": 1.0}, "validation_fraction is a share.*got 1.0"),
        ({"lr": 1e30}, "training diverged: scale the features"),
    ],
)
def test_what_cannot_be_trained_is_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        quick(**changed).fit(*samples())


def test_a_fit_that_fails_leaves_no_classifier():
    X, y = samples()
    classifier = quick().fit(X, y)
    with pytest.raises(ValueError, match="diverged"):
        classifier.set_params(lr=1e30).fit(X, np.array(["cat", "dog", "cow"])[y])
    with pytest.raises(NotFittedError):
        classifier.predict(X)


@pytest.mark.parametrize("weight", [-1.0, 0.0])
def test_wrong_weights_are_refused(weight):
    X, y = samples(20)
    with pytest.raises(ValueError, match=r"(?i)sample.weight"):
        quick().fit(X, y, np.full(20, weight))


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    monkeypatch.delitem(sys.modules, "counterpoise.integrations.sklearn")
    with pytest.raises(ImportError, match=r"pip install 'counterpoise\[sklearn\]'"):
        importlib.import_module("counterpoise.integrations.sklearn")


def test_the_example_searches_tests_and_writes_the_weights(tmp_path, capsys):
    path = tmp_path / "primary.safetensors"
    scores = example("scikit_learn").main(path, epochs=20)
    assert scores["accuracy"].value > 0.5
    assert path.exists()
    assert "alpha 0.8: mean log-likelihood" in capsys.readouterr().out


@pytest.mark.parametrize("batch_size", [1, 20, 100, 1000])
def test_weights_count_whatever_the_batches(batch_size):
    """Ten samples of weight 99 against 990 of weight 1, without a feature: one half each."""
    y = (np.arange(1000) < 10).astype(int)
    weight = np.where(y == 1, 99.0, 1.0)
    classifier = MutualTransportClassifier(
        primary=nn.Linear,
        auxiliaries=[],
        lr={1: 1e-3, 20: 2e-2, 100: 0.1, 1000: 1.0}[batch_size],
        momentum=0.0,
        weight_decay=0.0,
        epochs={1: 6, 20: 6, 100: 12, 1000: 30}[batch_size],
        batch_size=batch_size,
        random_state=0,
    )
    found = classifier.fit(np.zeros((1000, 1)), y, sample_weight=weight).predict_proba(np.zeros((1, 1)))[0, 1]
    assert found == pytest.approx(0.5, abs=0.06)


def test_a_factory_that_ignores_the_number_of_classes_is_refused():
    X, y = np.random.default_rng(0).normal(size=(30, 2)), np.arange(30) % 3
    with pytest.raises(ValueError, match=r"the primary returned logits of shape \[1, 10\] .*expected \[1, 3\]"):
        MutualTransportClassifier(primary=lambda features, _: nn.Linear(features, 10)).fit(X, y)


def test_no_batch_is_a_single_sample_where_two_are_asked_for():
    def normalised(features, classes):
        return nn.Sequential(nn.BatchNorm1d(features), nn.Linear(features, classes))

    X, y = np.random.default_rng(0).normal(size=(5, 2)), np.array([0, 1, 0, 1, 0])
    MutualTransportClassifier(primary=normalised, auxiliaries=normalised, batch_size=2, epochs=2).fit(X, y)


def test_one_class_alone_needs_no_temperature_and_no_scores():
    X, y = np.zeros((20, 2)), np.zeros(20)
    with pytest.raises(ValueError, match="one class alone does not need: set validation_fraction=0"):
        MutualTransportClassifier(validation_fraction=0.2).fit(X, y)
    with pytest.raises(ValueError, match="fitted to one class alone"):
        MutualTransportClassifier(epochs=1).fit(X, y).evaluate(X, y)
