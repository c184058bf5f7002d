"""Every calibrator against an independent fit of the same objective, and its invariants."""

import math
import warnings
from functools import partial

import numpy as np
import pytest
import scipy.optimize
import sklearn.isotonic
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_softmax, softmax
from sklearn.linear_model import LogisticRegression
from torch.utils._python_dispatch import TorchDispatchMode

from counterpoise.calibrators import (
    CALIBRATORS,
    DirichletCalibration,
    FitState,
    HistogramBinning,
    IsotonicRegression,
    MatrixScaling,
    Penalties,
    TemperatureScaling,
    VectorScaling,
)
from counterpoise.calibrators.binning import FLOOR
from counterpoise.calibrators.dirichlet import PENALTY_GRID, fold_of_each, validation_nll
from counterpoise.calibrators.inputs import LabelledLogits

# As quick as possible where the choice of penalties is not what is tested.
MAKE = {**CALIBRATORS, "dirichlet": partial(DirichletCalibration, 1e-2, 1e-2)}
LIKELIHOOD = ["temperature", "vector", "matrix"]
TAKES_MASKED = ["temperature", "vector", "histogram", "isotonic"]


def example(seed: int, n: int = 300, k: int = 4, *, scale: float = 3.0) -> tuple[np.ndarray, np.ndarray]:
    """Logits that are overconfident and biased by class; every class is some sample's label."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, k)) * scale + rng.normal(size=k)
    p = softmax(1.5 / scale * logits + rng.normal(size=k), -1)
    labels = (p.cumsum(-1) < rng.random((n, 1))).sum(-1).clip(0, k - 1)
    labels[: min(n, k)] = np.arange(k)[:n]
    return logits, labels


def nll(log_p: torch.Tensor | np.ndarray, labels: np.ndarray) -> float:
    return -float(np.mean(np.asarray(log_p)[np.arange(len(labels)), labels]))


def minimum(features, labels, *, matrix: bool, off_diagonal: float = 0.0, intercept: float = 0.0):
    """Value and scores at the minimum, by SciPy."""
    n, k = features.shape
    size = k * k if matrix else k
    hit, off = np.eye(k)[labels], 1 - np.eye(k)

    def objective(theta):
        w, b = (theta[:size].reshape(k, k) if matrix else theta[:k]), theta[size:]
        log_p = log_softmax((features @ w.T if matrix else features * w) + b, -1)
        residual = (np.exp(log_p) - hit) / n
        value = -(log_p * hit).sum() / n + intercept * np.mean(b**2)
        slope = residual.T @ features if matrix else (residual * features).sum(0)
        if matrix:
            value += off_diagonal * (off * w**2).sum() / off.sum()
            slope = slope + 2 * off_diagonal * off * w / off.sum()
        return value, np.concatenate([slope.ravel(), residual.sum(0) + 2 * intercept * b / k])

    start = np.concatenate([(np.eye(k) if matrix else np.ones(k)).ravel(), np.zeros(k)])
    options = {"maxiter": 20_000, "maxfun": 20_000, "ftol": 1e-16, "gtol": 1e-9}
    theta = scipy.optimize.minimize(objective, start, jac=True, method="L-BFGS-B", options=options)
    return theta.fun, (theta.x[:size].reshape(k, k) if matrix else theta.x[:k]), theta.x[size:]


def fitted(name: str, seed: int = 0, **sizes):
    logits, labels = example(seed, **sizes)
    return MAKE[name]().fit(logits, labels), logits, labels


# Against other implementations


@pytest.mark.parametrize("seed", range(20))
def test_temperature_is_the_minimum_that_scipy_finds(seed):
    logits, labels = example(seed, n=50 + 20 * seed, k=2 + seed % 5, scale=10.0 ** (seed % 4 - 1))
    scaling = TemperatureScaling().fit(logits, labels)
    found = scipy.optimize.minimize_scalar(
        lambda s: nll(log_softmax(s * logits, -1), labels),
        bounds=(0.01, 100),
        method="bounded",
        options={"xatol": 1e-12, "maxiter": 2000},
    )
    assert nll(scaling(logits), labels) <= found.fun + 1e-12
    assert 1 / scaling.temperature == pytest.approx(found.x, rel=1e-5)
    assert scaling.state is FitState.CONVERGED


def test_temperature_is_that_of_netcal():
    logits, labels = example(3, n=1000)
    from netcal.scaling import TemperatureScaling as Theirs  # takes seconds

    theirs = Theirs()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs.fit(softmax(logits, -1), labels)
        expected = theirs.transform(softmax(logits, -1))
    ours = TemperatureScaling().fit(logits, labels)(logits).exp()
    np.testing.assert_allclose(ours, expected, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vector", "matrix"])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("scale", [0.1, 3.0, 100.0])
def test_vector_and_matrix_scaling_reach_the_minimum_that_scipy_finds(name, seed, scale):
    logits, labels = example(seed, k=2 + seed, scale=scale)
    unit = logits / scale  # scale is no part of the minimum, and SciPy fails to converge at 100
    value, w, b = minimum(unit, labels, matrix=name == "matrix")
    calibrator = MAKE[name]().fit(logits, labels)
    assert calibrator.state is FitState.CONVERGED
    assert nll(calibrator(logits), labels) == pytest.approx(value, abs=1e-8)
    expected = softmax((unit @ w.T if name == "matrix" else unit * w) + b, -1)
    np.testing.assert_allclose(calibrator(logits).exp(), expected, atol=1e-4)


class LargestTensor(TorchDispatchMode):
    """Elements of the largest tensor that an operation gave."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        for tensor in found if isinstance(found, tuple | list) else (found,):
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return found


@pytest.mark.slow
def test_vector_scaling_makes_nothing_of_the_size_of_a_matrix():
    samples, classes = 20, 300
    logits, labels = torch.randn(samples, classes), torch.arange(samples)
    with LargestTensor() as largest:
        VectorScaling().fit(logits, labels)
    assert largest.elements <= samples * classes


def test_matrix_scaling_is_logistic_regression_on_the_logits():
    logits, labels = example(1)
    theirs = LogisticRegression(C=np.inf, tol=1e-10, max_iter=10_000).fit(logits, labels)
    np.testing.assert_allclose(
        MatrixScaling().fit(logits, labels)(logits).exp(), theirs.predict_proba(logits), atol=1e-5
    )


@pytest.mark.parametrize("off_diagonal", [1e-4, 1e-2, 1.0])
@pytest.mark.parametrize("intercept", [1e-3, 1.0])
def test_dirichlet_calibration_reaches_the_minimum_that_scipy_finds(off_diagonal, intercept):
    logits, labels = example(2)
    features = log_softmax(logits, -1)
    value, w, b = minimum(features, labels, matrix=True, off_diagonal=off_diagonal, intercept=intercept)
    calibration = DirichletCalibration(off_diagonal, intercept).fit(logits, labels)
    ours = nll(calibration(logits), labels)
    ours += off_diagonal * float((calibration.weight * (1 - torch.eye(4))).square().sum()) / 12
    ours += intercept * float(calibration.bias.square().mean())
    assert ours == pytest.approx(value, abs=1e-9)
    np.testing.assert_allclose(calibration(logits).exp(), softmax(features @ w.T + b, -1), atol=1e-4)
    assert calibration.penalties == Penalties(off_diagonal, intercept)
    same = MatrixScaling(off_diagonal, intercept).fit(features, labels)
    np.testing.assert_allclose(same(features), calibration(logits), atol=1e-12)


@pytest.mark.slow
def test_dirichlet_calibration_chooses_what_cross_validation_with_scipy_chooses():
    logits, labels = example(5, n=80, k=3)
    features, fold = log_softmax(logits, -1), fold_of_each(80).numpy()
    assert np.bincount(fold).tolist() == [16] * 5
    candidates = [Penalties(a, b) for a in (1.0, 0.1, 0.01, 1e-3, 1e-4) for b in (1.0, 0.1, 0.01, 1e-3, 1e-4)]
    theirs = np.zeros(25)
    for left_out in range(5):
        inside = fold != left_out
        for i, penalties in enumerate(candidates):
            _, w, b = minimum(features[inside], labels[inside], matrix=True, **vars(penalties))
            log_p = log_softmax(features[~inside] @ w.T + b, -1)
            theirs[i] += nll(log_p, labels[~inside]) * (~inside).sum()
    ours = sum(validation_nll(LabelledLogits(torch.tensor(features), torch.tensor(labels)), candidates))
    np.testing.assert_allclose(ours, theirs, rtol=1e-3)
    chosen = DirichletCalibration().fit(logits, labels).penalties
    assert chosen == candidates[theirs.argmin()]
    assert {chosen.off_diagonal, chosen.intercept} <= set(PENALTY_GRID)
    # One given, the other chosen.
    assert DirichletCalibration(intercept_penalty=0.5).fit(logits, labels).penalties.intercept == 0.5


def numpy_histogram(p: np.ndarray, labels: np.ndarray, bins: int) -> np.ndarray:
    edges, q = np.arange(bins + 1) / bins, np.empty_like(p)
    for column in range(p.shape[1]):
        index = np.clip(np.searchsorted(edges, p[:, column], side="left") - 1, 0, bins - 1)
        for b in np.unique(index):
            q[index == b, column] = np.mean(labels[index == b] == column)
    q = np.maximum(q, FLOOR)
    return q / q.sum(-1, keepdims=True)


@pytest.mark.parametrize("bins", [1, 5, 15])
def test_histogram_binning_gives_the_share_of_hits_of_each_bin(bins):
    logits, labels = example(7, n=500)
    binning = HistogramBinning(bins).fit(logits, labels)
    np.testing.assert_allclose(binning(logits).exp(), numpy_histogram(softmax(logits, -1), labels, bins), atol=1e-12)


def test_histogram_binning_is_that_of_netcal():
    logits, labels = example(8, n=2000, scale=1.0)
    p = softmax(logits, -1)
    from netcal.binning import HistogramBinning as Theirs  # takes seconds

    expected = Theirs(bins=5).fit(p, labels).transform(p)
    np.testing.assert_allclose(HistogramBinning(5).fit(logits, labels)(logits).exp(), expected, atol=1e-5)


def test_an_empty_bin_gives_its_midpoint():
    binning = HistogramBinning(4).fit(np.log([[0.9, 0.1], [0.8, 0.2]]), [0, 1])
    np.testing.assert_array_equal(binning.fitted.values, [[0.125, 0.375, 0.625, 0.5], [0.5, 0.375, 0.625, 0.875]])


def test_isotonic_regression_is_that_of_scikit_learn_for_each_class():
    logits, labels = example(9)
    new, _ = example(10, scale=6.0)
    regression = IsotonicRegression().fit(logits, labels)
    for z in (logits, new):
        columns = [
            sklearn.isotonic.IsotonicRegression(out_of_bounds="clip")
            .fit(softmax(logits, -1)[:, column], labels == column)
            .predict(softmax(z, -1)[:, column])
            for column in range(4)
        ]
        q = np.maximum(np.stack(columns, -1), FLOOR)
        np.testing.assert_allclose(regression(z).exp(), q / q.sum(-1, keepdims=True), atol=1e-12)


# Invariants


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("k", [2, 5])
def test_log_probabilities_of_every_dtype_and_shape(name, dtype, k):
    logits, labels = example(0, k=k)
    z = torch.tensor(logits, dtype=dtype)
    calibrator = MAKE[name]().fit(z.reshape(10, 30, k), labels.reshape(10, 30))
    log_p = calibrator(z)
    assert log_p.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    np.testing.assert_allclose(log_p.exp().sum(-1), 1.0, atol=1e-5)
    for same in (calibrator(z.reshape(10, 30, k)).reshape(-1, k), torch.stack([calibrator(row) for row in z])):
        np.testing.assert_allclose(same, log_p, atol=1e-5)
    assert calibrator(z[:0]).shape == (0, k)
    if name not in ("histogram", "isotonic"):  # their functions are steep
        np.testing.assert_allclose(log_p, calibrator(z.double()), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", LIKELIHOOD)
@settings(max_examples=20)
@given(st.integers(0, 10**6), st.integers(1, 60), st.integers(2, 5), st.sampled_from([1e-3, 1.0, 1e3]))
def test_the_likelihood_of_the_fitting_set_never_falls(name, seed, n, k, scale):
    rng = np.random.default_rng(seed)
    logits, labels = scale * rng.normal(size=(n, k)), rng.integers(k, size=n)
    log_p = MAKE[name]().fit(logits, labels)(logits)
    assert not log_p.isnan().any()
    assert nll(log_p, labels) <= nll(log_softmax(logits, -1), labels) + 1e-9


@given(st.integers(0, 10**6), st.sampled_from([1e-30, 1.0, 1e4, 1e30]))
def test_temperature_never_changes_the_prediction(seed, scale):
    rng = np.random.default_rng(seed)
    logits = torch.tensor(scale * rng.normal(size=(20, 5)), dtype=torch.float32)
    log_p = TemperatureScaling().fit(logits, rng.integers(5, size=20))(logits)
    largest = log_p.gather(-1, logits.argmax(-1, keepdim=True)).squeeze(-1)
    np.testing.assert_array_equal(largest, log_p.amax(-1))
    np.testing.assert_allclose(log_p.exp().sum(-1), 1.0, atol=1e-5)


@pytest.mark.parametrize("name", ["temperature", "dirichlet", "histogram", "isotonic"])
def test_a_constant_added_to_a_sample_changes_nothing(name):
    calibrator, logits, labels = fitted(name)
    shift = np.random.default_rng(1).integers(-8, 8, size=(len(logits), 1))
    np.testing.assert_allclose(calibrator(logits + shift), calibrator(logits), atol=1e-9)
    np.testing.assert_allclose(MAKE[name]().fit(logits + shift, labels)(logits), calibrator(logits), atol=1e-9)


@pytest.mark.parametrize("name", ["vector", "matrix"])
def test_a_constant_added_to_a_class_is_learned_away(name):
    calibrator, logits, labels = fitted(name)
    shifted = logits + np.array([100.0, 0.0, -3.0, 20.0])
    np.testing.assert_allclose(MAKE[name]().fit(shifted, labels)(shifted).exp(), calibrator(logits).exp(), atol=1e-5)


@pytest.mark.parametrize("name", MAKE)
def test_the_order_of_samples_does_not_matter(name):
    calibrator, logits, labels = fitted(name)
    order = np.random.default_rng(0).permutation(len(labels))
    again = MAKE[name]().fit(logits[order], labels[order])
    np.testing.assert_allclose(again(logits).exp(), calibrator(logits).exp(), atol=1e-6)


@pytest.mark.parametrize("name", MAKE)
def test_lists_arrays_and_tensors_are_the_same(name):
    logits, labels = example(0, n=30)
    expected = MAKE[name]().fit(logits, labels)(logits)
    for convert in (np.ndarray.tolist, torch.tensor, lambda array: array.astype(array.dtype.newbyteorder(">"))):
        assert torch.equal(MAKE[name]().fit(convert(logits), convert(labels))(convert(logits)), expected)


@pytest.mark.parametrize("name", MAKE)
def test_neither_fitting_nor_calling_changes_the_logits(name):
    logits, labels = example(0, n=30)
    if name in TAKES_MASKED:
        logits[0, 1 + labels[0] % 3] = -np.inf
    before = logits.copy()
    MAKE[name]().fit(logits, labels)(logits)
    np.testing.assert_array_equal(logits, before)


@pytest.mark.parametrize("name", ["temperature", "vector", "matrix", "dirichlet"])
def test_gradients_reach_the_logits(name):
    calibrator, logits, _ = fitted(name)
    z = torch.tensor(logits[:3], requires_grad=True)
    assert torch.autograd.gradcheck(calibrator, z)


# Where there is no minimum


def test_temperature_at_its_bounds():
    logits, _ = example(0)
    right = TemperatureScaling().fit(logits, logits.argmax(-1))
    assert (right.temperature, right.state) == (0.01, FitState.AT_LOWEST_TEMPERATURE)
    certain = TemperatureScaling().fit(1e4 * logits, logits.argmax(-1))  # its slope is 0 in float64
    assert (certain.temperature, certain.state) == (0.01, FitState.AT_LOWEST_TEMPERATURE)
    nearly = TemperatureScaling().fit([[1e-4, 0.0]] * 9 + [[0.0, 1e-4]], [0] * 10)
    assert (nearly.temperature, nearly.state) == (0.01, FitState.AT_LOWEST_TEMPERATURE)
    wrong = TemperatureScaling().fit(logits, logits.argmin(-1))
    assert (wrong.temperature, wrong.state) == (100.0, FitState.AT_HIGHEST_TEMPERATURE)
    flat = TemperatureScaling().fit([[2.0, 2.0, -math.inf]], [0])
    assert (flat.temperature, flat.state) == (1.0, FitState.CONVERGED)


@pytest.mark.parametrize("name", ["vector", "matrix", "dirichlet"])
@pytest.mark.parametrize("case", ["all right", "a class is missing", "one sample"])
def test_no_minimum_is_said_and_nothing_is_infinite(name, case):
    logits, labels = example(0)
    labels = {"all right": logits.argmax(-1), "a class is missing": labels % 3, "one sample": labels}[case]
    rows = slice(0, 1 if case == "one sample" else None)
    calibrator = MAKE[name]().fit(logits[rows], labels[rows])
    assert calibrator.state is FitState.NO_MINIMUM
    assert torch.isfinite(calibrator(logits)).all()
    assert torch.isfinite(calibrator.weight).all()


def test_all_wrong_is_learned_by_vector_scaling():
    logits, _ = example(0, k=2)
    scaling = VectorScaling().fit(logits, logits.argmin(-1))
    assert scaling.state is FitState.NO_MINIMUM
    assert (scaling(logits).argmax(-1).numpy() == logits.argmin(-1)).all()


@pytest.mark.parametrize("name", MAKE)
def test_one_sample_is_enough(name):
    calibrator = MAKE[name]().fit([[1.0, 0.0, 2.0]], [1])
    assert torch.isfinite(calibrator([1.0, 0.0, 2.0])).all()


def test_penalties_cannot_be_chosen_from_one_sample():
    with pytest.raises(ValueError, match="cross-validation from 1 sample"):
        DirichletCalibration().fit([[1.0, 0.0]], [1])
