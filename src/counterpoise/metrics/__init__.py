"""Measures of predictions: in one call with `evaluate`, or in a stream of batches with `Stream`."""

from counterpoise.metrics.estimates import KEY_INFO, Estimate, Key
from counterpoise.metrics.evaluate import evaluate
from counterpoise.metrics.measures import (
    ClasswiseCalibration,
    ConfidenceRanking,
    MisclassificationDetection,
    OodDetection,
    Performance,
    TopLabelCalibration,
)
from counterpoise.metrics.scores import Scores
from counterpoise.metrics.stream import Measure, Stream, unpadded

__all__ = [
    "KEY_INFO",
    "ClasswiseCalibration",
    "ConfidenceRanking",
    "Estimate",
    "Key",
    "Measure",
    "MisclassificationDetection",
    "OodDetection",
    "Performance",
    "Scores",
    "Stream",
    "TopLabelCalibration",
    "evaluate",
    "unpadded",
]
