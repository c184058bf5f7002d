"""The cost model of docs/scaling.md against independent counts, and what must hold at any size."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks import scaling_model as model
from benchmarks.scaling_counts import activation_bytes, network, peak_of
from benchmarks.scaling_machine import Size, file_bytes, loss_run, predictions, stepper, together
from benchmarks.scaling_rows import CLASSES, Assumptions
from counterpoise import Stream
from counterpoise.data import Images, MemoryLoader, hold_out_hashed
from counterpoise.data.row_groups import epoch_order
from counterpoise.metrics import ClasswiseCalibration
from counterpoise.models import Backbone, build_model
from counterpoise.predictions.parquet import most_rows
from counterpoise.recipes.config import DataOptions, Recipe
from counterpoise.training.data import named_data
from tools.scaling_tables import bytes_text, count_text, seconds_text

GPU = Assumptions().hardware(decode=5e7, decode_each=5e-4)
NETWORK = model.Network(
    "some", parameters=10**7, largest_unit=10**6, units=9, flops=1e9, activations=10**6, image=10**5
)
JOB = model.Job(NETWORK, (NETWORK,), classes=1000, images=10**6, batch=32, devices=8)
jobs = st.builds(
    model.Job,
    primary=st.just(NETWORK),
    auxiliaries=st.lists(st.just(NETWORK), min_size=1, max_size=3).map(tuple),
    classes=st.integers(2, 10**6),
    images=st.integers(1, 10**10),
    batch=st.integers(1, 1024),
    devices=st.integers(1, 4096),
    half=st.booleans(),
    sharded=st.booleans(),
)


@pytest.mark.parametrize("half", [False, True])
def test_a_network_is_counted_as_it_is(half):
    backbone, shape = Backbone("cnn", 4), (3, 8, 8)
    counted = network(backbone, classes=10, shape=shape, half=half)
    built = build_model(backbone, classes=10)
    assert counted.parameters == sum(parameter.numel() for parameter in built.parameters())
    units = [sum(parameter.numel() for parameter in child.parameters()) for child in built.children()]
    assert (counted.largest_unit, counted.units) == (max(units), sum(map(bool, units)))


@pytest.mark.slow
def test_activations_are_what_a_forward_pass_leaves_behind():
    backbone, images = Backbone("resnet10", 4), [torch.zeros(rows, 3, 16, 16) for rows in (2, 5)]
    built = build_model(backbone, classes=10)
    # What is left is the graph with its saved tensors; the logits are a few bytes of it, the images are not.
    two, five = (peak_of(lambda batch=batch: built(batch)).left for batch in images)
    expected = (five - two) / 3 - 10 * model.FLOAT
    assert activation_bytes(backbone, shape=(3, 16, 16), half=False) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("auxiliaries", [0, 1, 2, 3])
@pytest.mark.parametrize(("samples", "classes"), [(7, 3000), (64, 500)])
def test_the_peak_of_the_loss(samples, classes, auxiliaries):
    predicted = model.loss_bytes(samples=samples, classes=classes, auxiliaries=auxiliaries)
    peak = peak_of(loss_run(samples=samples, classes=classes, auxiliaries=auxiliaries)).most
    assert peak == pytest.approx(predicted, rel=0.01)


class Moved(TorchDispatchMode):
    """Bytes that operations read and write; views move nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        if not operation.is_view:
            tensors = (leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, torch.Tensor))
            self.bytes += sum(tensor.nbytes for tensor in tensors)
        return result


@pytest.mark.parametrize("auxiliaries", [0, 1, 2])
def test_what_the_loss_reads_and_writes(auxiliaries):
    run = loss_run(samples=32, classes=2000, auxiliaries=auxiliaries)
    with Moved() as moved:
        run()
    expected = model.LOSS_MOVED + model.LOSS_MOVED_EACH * auxiliaries
    assert moved.bytes / 32 / 2000 == pytest.approx(expected, rel=0.01)


def test_the_tensors_of_a_step():
    size = Size(Backbone("cnn", 8), Backbone("cnn", 4), batch=32, classes=3000, pixels=16)
    step = stepper(size)
    step()
    memory = model.training_memory(size.job())
    assert peak_of(step).most == pytest.approx(memory.of_batch - memory.images, rel=0.01)


@pytest.mark.parametrize(("classes", "bins"), [(10, 15), (2000, 15), (300, 7)])
def test_the_state_of_a_stream_is_the_formula(classes, bins):
    stream = Stream(ClasswiseCalibration(num_classes=classes, bins=bins))
    assert sum(value.nbytes for value in stream.sums.values()) == model.classwise_bytes(classes, bins=bins)


def test_the_peak_of_an_update():
    samples, classes = 50, 20_000
    logits, labels = predictions(samples=samples, classes=classes)
    stream = Stream(ClasswiseCalibration(num_classes=classes))
    stream.update(logits=logits, labels=labels)
    beside = model.update_bytes(samples=samples, classes=classes) - logits.nbytes - model.classwise_bytes(classes)
    peak = peak_of(lambda: stream.update(logits=logits, labels=labels)).most
    assert peak == pytest.approx(beside, rel=0.01)


@pytest.mark.parametrize(("precision", "width"), [("float32", 4), ("float16", 2)])
def test_a_file_is_its_values_and_little_else(precision, width):
    values = model.prediction_bytes(samples=500, classes=400, precision=width)
    assert values < file_bytes(samples=500, classes=400, precision=precision) < values + 500 * 24 + 5000


def test_limits_of_files_are_those_of_the_reader():
    for classes in CLASSES:
        assert most_rows(classes) == (1 << 16) * ((1 << 21) // classes)


def test_images_in_memory():
    pixels = torch.zeros(1000, 8, 8, 3, dtype=torch.uint8)
    images = Images.of(pixels, torch.zeros(1000, dtype=torch.long), mean=(0, 0, 0), std=(1, 1, 1))
    loader = MemoryLoader(images, batch=10, seed=0, augmentation=None, shuffle=True, drop_last=True)
    held = sum(tensor.nbytes for tensor in (images.pixels, images.labels, images.ids))
    order = peak_of(lambda: loader._order(0)).most
    assert held + order == model.memory_loader_bytes(1000, shape=(3, 8, 8))


def test_a_stream_holds_row_groups_and_what_is_held_out_and_nothing_of_other_rows(tmp_path: Path):
    image = pytest.importorskip("PIL.Image")
    arrow, parquet_module = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    picture = tmp_path / "one.png"
    image.fromarray(np.zeros((2, 2, 3), np.uint8)).save(picture)
    rows, held = 40_000, 70
    encoded = arrow.array([picture.read_bytes()] * rows)
    table = arrow.table({"image": encoded, "label": np.arange(rows) % 3})
    parquet_module.write_table(table, tmp_path / "train.parquet", row_group_size=100)
    options = DataOptions(name=str(tmp_path), pipeline="stream", workers=0, validation=held)
    loader = named_data(Recipe(data=options, batch=10)).training(0, 0, 1)
    split = loader._split
    order = epoch_order(split, seed=0, epoch=0, shuffle=True)
    found = (split.places, split.firsts, split.counts, order.order, order.ends, split.left_out)
    edge = 8
    assert sum(each.nbytes for each in found) - edge == model.stream_index_bytes(rows, row_group=100, excluded=held)


def test_choosing_rows_to_hold_out_takes_no_more_for_more_rows():
    few, many = (peak_of(lambda rows=rows: hold_out_hashed(rows, size=500, seed=0)).most for rows in (10**4, 10**12))
    assert few == many


@pytest.mark.slow
def test_ranks_send_what_the_formula_says():
    pair = together(repetitions=1, world=2)
    plain = replace(NETWORK, parameters=pair.gradients // model.FLOAT // 2)
    job = replace(JOB, primary=plain, auxiliaries=(plain,), devices=2)
    assert pair.gradients_sent == pytest.approx(model.traffic(job), rel=0.01)
    assert pair.sent == pytest.approx(pair.payload, rel=0.01)


def test_by_hand():
    assert model.traffic(JOB) == 7 / 8 * (2 * 4 * 2 * 10**7 + 2 * 16)
    assert model.traffic(replace(JOB, sharded=True)) == 7 / 8 * (3 * 4 * 2 * 10**7 + 2 * 16)
    assert model.traffic(replace(JOB, devices=1)) == model.collectives(replace(JOB, devices=1)) == 0
    assert model.training_memory(JOB).state == 12 * 2 * 10**7
    assert model.step_flops(JOB) == 3 * 32 * 2 * 1e9
    assert model.checkpoint_bytes(JOB) == 8 * 2 * 10**7
    assert model.merge_rounds(1000) == 10
    assert model.stream_index_bytes(10**10, row_group=1000, excluded=50_000) == 10**7 * 40 + 400_000
    assert (bytes_text(2.596e9), count_text(10**9), seconds_text(7200)) == ("2.6 GB", "1 B", "2 h")


@given(jobs)
@settings(max_examples=50, deadline=None)
def test_more_costs_more(job):
    memory, step = model.training_memory(job).peak, model.step_seconds(job, GPU)
    assert 0 <= step.communicating <= 1
    assert step.total > 0
    larger = (
        replace(job, batch=job.batch + 1),
        replace(job, classes=job.classes + 1),
        replace(job, auxiliaries=(*job.auxiliaries, NETWORK)),
    )
    for other in larger:
        assert model.training_memory(other).peak >= memory
        assert model.step_seconds(other, GPU).total >= step.total
    assert model.epoch_hours(replace(job, images=job.images + 10**6), GPU) > model.epoch_hours(job, GPU)


@given(jobs)
@settings(max_examples=50, deadline=None)
def test_devices_share_state_only_where_it_is_sharded(job):
    more = replace(job, devices=2 * job.devices)
    ours, theirs = model.training_memory(job), model.training_memory(more)
    assert theirs.state == (ours.state / 2 if job.sharded else ours.state)
    assert theirs.of_batch == ours.of_batch
    assert model.traffic(job) <= model.traffic(more) < (3 if job.sharded else 2) * 4 * job.parameters + 100
