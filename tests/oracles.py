"""Slow definitions in NumPy, written from the formulas and sharing nothing with the package."""

import math

import numpy as np
import scipy.optimize


def cross_entropy(p, y):
    return -np.mean([math.log(row[label]) for row, label in zip(p, y, strict=True)])


def label_smoothing(p, y, *, smoothing):
    target = np.eye(p.shape[1])[y] * (1 - smoothing) + smoothing / p.shape[1]
    return -np.mean((target * np.log(p)).sum(1))


def entropy_regularised(p, y, *, beta):
    return cross_entropy(p, y) + beta * np.mean((p * np.log(p)).sum(1))


def focal(p, y, *, gamma):
    py = p[np.arange(len(y)), y]
    return np.mean(-((1 - py) ** gamma) * np.log(py))


def flsd53(p, y):
    return np.mean([-((1 - q) ** (5 if q < 0.2 else 3)) * math.log(q) for q in p[np.arange(len(y)), y]])


def dca(p, y):
    return abs(p.max(1).mean() - (p.argmax(1) == y).mean())


def mdca(p, y):
    return np.mean([abs(p[:, k].mean() - (y == k).mean()) for k in range(p.shape[1])])


def huber_gap(p, y, *, alpha):
    d = p.max(1).mean() - (p.argmax(1) == y).mean()
    return 0.5 * d * d if abs(d) <= alpha else alpha * (abs(d) - alpha / 2)


def _kernel(a, b):
    return np.exp(-np.abs(a[:, None] - b[None, :]) / 0.4)


def mmce(p, y):
    conf, correct = p.max(1), (p.argmax(1) == y).astype(float)
    residual = correct - conf
    return (residual[:, None] * residual[None, :] * _kernel(conf, conf)).sum() / len(y) ** 2


def weighted_mmce(p, y, *, normalise_twice=False):
    conf, correct = p.max(1), p.argmax(1) == y
    right, wrong = conf[correct], conf[~correct]
    m, w = len(right), len(wrong)
    if m == 0 or w == 0:
        return 0.0
    again = (m * m, w * w, m * w) if normalise_twice else (1, 1, 1)
    cc = ((1 - right)[:, None] * (1 - right)[None] * _kernel(right, right)).sum() / m**2 / again[0]
    ww = (wrong[:, None] * wrong[None] * _kernel(wrong, wrong)).sum() / w**2 / again[1]
    cw = ((1 - right)[:, None] * wrong[None] * _kernel(right, wrong)).sum() / (m * w) / again[2]
    return math.sqrt(max(0.0, cc + ww - 2 * cw))


def bins_of(confidence, bins):
    """(lo, hi], 0 into the first; edges in the dtype of the confidences."""
    upper_edges = (np.arange(1, bins + 1) / bins).astype(confidence.dtype)
    return np.minimum(np.searchsorted(upper_edges, confidence, side="left"), bins - 1)


def ece(p, y, bins):
    conf, correct = p.max(1), p.argmax(1) == y
    index = bins_of(conf, bins)
    total = 0.0
    for b in range(bins):
        inside = index == b
        if inside.any():
            total += inside.mean() * abs(correct[inside].mean() - conf[inside].astype(float).mean())
    return total


def mce(p, y, bins):
    conf, correct = p.max(1), p.argmax(1) == y
    index = bins_of(conf, bins)
    return max(
        abs(correct[index == b].mean() - conf[index == b].astype(float).mean())
        for b in range(bins)
        if (index == b).any()
    )


def classwise_ece(p, y, bins):
    total = 0.0
    for k in range(p.shape[1]):
        index = bins_of(p[:, k], bins)
        for b in range(bins):
            inside = index == b
            if inside.any():
                total += inside.mean() * abs((y[inside] == k).mean() - p[inside, k].astype(float).mean())
    return total / p.shape[1]


def brier_calibration(p, y, bins):
    total = 0.0
    for k in range(p.shape[1]):
        index = bins_of(p[:, k], bins)
        for b in range(bins):
            inside = index == b
            if inside.any():
                total += inside.mean() * ((y[inside] == k).mean() - p[inside, k].astype(float).mean()) ** 2
    return total


def equal_mass_ece(p, y, bins):
    conf, correct = p.max(1), p.argmax(1) == y
    index = np.array([bins * int((conf < c).sum()) // len(conf) for c in conf])
    return sum(abs((correct[index == b] - conf[index == b].astype(float)).sum()) for b in range(bins)) / len(y)


def smooth_ece(p, y):
    """Reflected Gaussian by images, the mean over 2,048 midpoints, fixed point by Brent's method."""
    conf, correct = p.max(1).astype(float), p.argmax(1) == y
    residual = correct - conf
    t = (np.arange(2048) + 0.5) / 2048

    def error(sigma):
        total = np.zeros_like(t)
        images = [sign * conf + shift for shift in range(-10, 11, 2) for sign in (1, -1)]
        for image in images:
            if image.max() > -9 * sigma and image.min() < 1 + 9 * sigma:
                z = (t[:, None] - image[None, :]) / sigma
                total += np.exp(-0.5 * z * z) @ residual / (sigma * math.sqrt(2 * math.pi))
        return np.abs(total / len(y)).mean()

    smallest = 0.0025
    if error(smallest) <= smallest:
        return error(smallest)
    return error(scipy.optimize.brentq(lambda sigma: error(sigma) - sigma, smallest, 1.0, xtol=1e-14, rtol=1e-14))


def _thresholds(scores):
    return np.unique(scores)[::-1]


def fpr_at_tpr(scores, positive, tpr=0.95):
    return min((scores[~positive] >= t).mean() for t in _thresholds(scores) if (scores[positive] >= t).mean() >= tpr)


def minimum_detection_error(scores, positive):
    errors = [((scores[positive] < t).mean() + (scores[~positive] >= t).mean()) / 2 for t in _thresholds(scores)]
    return min([0.5, *errors])


def detection_error_at_tpr(scores, positive, tpr=0.95):
    t = max(t for t in _thresholds(scores) if (scores[positive] >= t).mean() >= tpr)
    return ((scores[positive] < t).mean() + (scores[~positive] >= t).mean()) / 2


def aurc(scores, positive):
    """Expected over the orders of ties: the error rate within a tie spreads evenly."""
    order = np.argsort(-scores, kind="stable")
    s, wrong = scores[order], (~positive[order]).astype(float)
    for value in np.unique(s):
        wrong[s == value] = wrong[s == value].mean()
    return (np.cumsum(wrong) / np.arange(1, len(s) + 1)).mean()


def excess_aurc(scores, positive):
    return aurc(scores, positive) - aurc(positive.astype(float), positive)
