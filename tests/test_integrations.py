"""The torchmetrics adapter, the command line, and what the package loads."""

import subprocess
import sys

import pytest
import torch
import torchmetrics

from counterpoise import Stream, evaluate
from counterpoise.integrations.torchmetrics import StreamedMetric
from counterpoise.metrics import (
    ClasswiseCalibration,
    ConfidenceRanking,
    MisclassificationDetection,
    OodDetection,
    Performance,
    TopLabelCalibration,
)


def batches():
    generator = torch.Generator().manual_seed(0)
    for size in (30, 17):
        yield torch.randn(size, 4, generator=generator), torch.randint(4, (size,), generator=generator)


@pytest.mark.parametrize(
    "measure",
    [Performance(), TopLabelCalibration(), ClasswiseCalibration(num_classes=4), ConfidenceRanking()],
    ids=repr,
)
def test_adapter_equals_the_stream(measure):
    metric, stream = StreamedMetric(measure), Stream(measure)
    for logits, labels in batches():
        metric.update(logits=logits, labels=labels)
        stream.update(logits=logits, labels=labels)
    assert metric.estimates() == stream.compute()
    assert {key: value.item() for key, value in metric.compute().items()} == {
        str(key): estimate.value for key, estimate in stream.compute().items()
    }
    metric.reset()
    assert all((value == 0).all() for name, value in metric.metric_state.items())


def test_values_and_intervals_are_over_all_ranks():
    """Two ranks: the other one has the same sums, which torchmetrics would fetch from it."""
    metric, stream = StreamedMetric(Performance()), Stream(Performance())
    metric.distributed_available_fn = lambda: True
    metric.dist_sync_fn = lambda state, group: [state, state]
    for logits, labels in batches():
        metric.update(logits=logits, labels=labels)
        for _ in range(2):
            stream.update(logits=logits, labels=labels)
    estimates, expected = metric.estimates(), stream.compute()
    for key, estimate in expected.items():
        assert metric.compute()[str(key)].item() == pytest.approx(estimate.value)
        assert (estimates[key].low, estimates[key].high) == pytest.approx((estimate.low, estimate.high))


def test_adapter_in_a_collection_survives_casting_and_forward():
    collection = torchmetrics.MetricCollection(
        {"a": StreamedMetric(TopLabelCalibration()), "b": StreamedMetric(Performance())}
    )
    collection.to(torch.float16)
    for logits, labels in batches():
        collection(logits=logits, labels=labels)
    values = collection.compute()
    assert values["a_ece"].dtype == torch.float64 if "a_ece" in values else values["ece"].dtype == torch.float64


def test_measures_in_a_collection_do_not_share_their_states():
    """Equal after a first batch that is all right and all in-distribution, as a good model's often is."""
    measures = {
        "errors": MisclassificationDetection(),
        "ood": OodDetection(),
        "margin": MisclassificationDetection(score="margin"),
    }
    collection = torchmetrics.MetricCollection({name: StreamedMetric(each) for name, each in measures.items()})
    streams = {name: Stream(each) for name, each in measures.items()}
    certain = 5 * torch.eye(4)
    for logits, labels in [(certain, torch.arange(4)), *batches()]:
        inside = torch.arange(len(labels)) % 3 != 0 if len(labels) > 4 else torch.ones(4, dtype=torch.bool)
        for each in (collection, *streams.values()):
            each.update(logits=logits, labels=labels, in_distribution=inside)
    for name, stream in streams.items():
        assert collection[name].compute()["auroc"].item() == stream.compute()["auroc"].value


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "counterpoise", *arguments], capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_command_line():
    info = run("info")
    assert info.returncode == 0, info.stderr
    assert "torch" in info.stdout
    methods = run("methods")
    assert "MTE-2" in methods.stdout
    assert max(len(line) for line in methods.stdout.splitlines()) <= 100
    assert run("nothing").returncode == 2


@pytest.mark.slow
def test_a_missing_extra_is_named():
    code = "import sys; sys.modules['torchmetrics'] = None; import counterpoise.integrations.torchmetrics"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'counterpoise[torchmetrics]'" in result.stderr


def test_a_batch_of_padding_alone_loses_nothing():
    metric, stream = StreamedMetric(Performance()), Stream(Performance())
    (logits, labels), _ = batches()
    metric(logits=logits, labels=labels)
    stream.update(logits=logits, labels=labels)
    of_batch = metric(logits=logits, labels=labels, valid=torch.zeros(len(labels), dtype=torch.bool))
    assert all(value.isnan() for value in of_batch.values())
    assert metric.estimates() == stream.compute()


def test_confidences_are_streamed_where_no_more_is_known():
    confidence, correct = torch.rand(40, generator=torch.Generator().manual_seed(1)), torch.arange(40) % 3 > 0
    metric, stream = StreamedMetric(TopLabelCalibration()), Stream(TopLabelCalibration())
    for each in (metric, stream):
        each.update(confidence=confidence, correct=correct)
    assert metric.estimates() == stream.compute()
    assert stream.compute()["ece"].value == evaluate(confidence=confidence, correct=correct)["ece"].value
