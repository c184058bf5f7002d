"""Metrics of predictions: in one call with `evaluate`, in a stream of batches, or as a state that merges."""

from counterpoise.metrics.comparison import Evaluation
from counterpoise.metrics.estimates import KEY_INFO, Estimate, Key, MetricInfo
from counterpoise.metrics.in_memory import ModelPredictions, compare, evaluate
from counterpoise.metrics.options import ScoreOptions
from counterpoise.metrics.protocol import Metric
from counterpoise.metrics.ranked import ConfidenceRanking, MisclassificationDetection, OodDetection
from counterpoise.metrics.scores import Scores
from counterpoise.metrics.slices import worst_slices
from counterpoise.metrics.standard import ClasswiseCalibration, Performance, TopLabelCalibration
from counterpoise.metrics.state import ScoreState
from counterpoise.metrics.stream import Stream, unpadded

__all__ = [
    "KEY_INFO",
    "ClasswiseCalibration",
    "ConfidenceRanking",
    "Estimate",
    "Evaluation",
    "Key",
    "Metric",
    "MetricInfo",
    "MisclassificationDetection",
    "ModelPredictions",
    "OodDetection",
    "Performance",
    "ScoreOptions",
    "ScoreState",
    "Scores",
    "Stream",
    "TopLabelCalibration",
    "compare",
    "evaluate",
    "unpadded",
    "worst_slices",
]
