"""Images in memory and their loader: every sample once, any rank, any interruption, and under Lightning."""

from itertools import islice

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from torch import nn

from counterpoise.data import Augmentation, Images, MemoryLoader, normalised

AUGMENTATION = Augmentation(padding=1, flip=True)


def images(n: int) -> Images:
    generator = torch.Generator().manual_seed(n)
    pixels = torch.randint(0, 256, (n, 3, 4, 4), dtype=torch.uint8, generator=generator)
    return Images.of(pixels, torch.arange(n) % 5, classes="abcde", mean=[0.5] * 3, std=[0.25] * 3)


def loader(samples: Images, *, batch=4, seed=7, shuffle=True, drop_last=True, rank=0, world=1) -> MemoryLoader:
    return MemoryLoader(
        samples,
        batch=batch,
        seed=seed,
        augmentation=AUGMENTATION if shuffle else None,
        shuffle=shuffle,
        drop_last=drop_last,
        rank=rank,
        world=world,
    )


def same(first, second) -> bool:
    return len(first) == len(second) and all(
        torch.equal(a, b) for one, other in zip(first, second, strict=True) for a, b in zip(one, other, strict=True)
    )


@given(st.integers(1, 60), st.integers(1, 8), st.integers(1, 4), st.booleans(), st.booleans(), st.integers(0, 3))
def test_every_sample_once_over_all_ranks(n, local, world, shuffle, drop_last, epoch):
    samples, batch = images(n), local * world
    ids = []
    for rank in range(world):
        each = loader(samples, batch=batch, shuffle=shuffle, drop_last=drop_last, rank=rank, world=world)
        each.set_epoch(epoch)
        batches = list(each)
        assert len(batches) == len(each)
        assert all(len(found.ids) for found in batches)
        ids += [int(row) for found in batches for row in found.ids]
    assert len(ids) == len(set(ids)) == (n // batch * batch if drop_last else n)


@pytest.mark.slow
@given(st.integers(8, 60), st.integers(1, 4), st.integers(1, 3))
def test_ranks_share_the_batches_of_one_process(n, local, world):
    samples, batch = images(n), local * world
    alone = list(loader(samples, batch=batch))
    shares = [list(loader(samples, batch=batch, rank=rank, world=world)) for rank in range(world)]
    for number, whole in enumerate(alone):
        for rank in range(world):
            assert same([shares[rank][number]], [tuple(each[rank::world] for each in whole)])


@pytest.mark.slow
@given(st.integers(1, 40), st.integers(1, 6), st.booleans(), st.data())
def test_resuming_at_any_batch_gives_the_rest_of_the_epoch(n, batch, drop_last, data):
    samples = images(n)
    first = loader(samples, batch=batch, drop_last=drop_last)
    first.set_epoch(3)
    whole = list(first)
    stop = data.draw(st.integers(0, max(len(whole) - 1, 0)))
    first.set_epoch(4)
    first.set_epoch(3)
    list(islice(first, stop))
    state = first.state_dict()
    assert state == {"epoch": 3, "consumed": stop, "batch": batch}
    second = loader(samples, batch=batch, drop_last=drop_last)
    second.load_state_dict(state)
    iterator = iter(second)
    second.set_epoch(3)  # an engine calls it after iter()
    assert len(second) == len(whole)
    assert same(list(iterator), whole[stop:])
    assert same(list(second), whole)


def test_another_epoch_starts_at_its_first_batch():
    each = loader(images(20))
    each.load_state_dict({**each.state_dict(), "epoch": 0, "consumed": 2})
    each.set_epoch(1)
    assert len(list(each)) == 5
    assert each.state_dict() == {"epoch": 1, "consumed": 5, "batch": each.batch}


def test_a_state_at_the_end_of_an_epoch_starts_again():
    each = loader(images(20))
    each.load_state_dict({**each.state_dict(), "epoch": 0, "consumed": 5})
    assert len(list(each)) == 5


def test_an_iteration_that_was_left_does_not_shorten_the_next():
    each = loader(images(20))
    list(islice(each, 2))
    assert each.state_dict()["consumed"] == 2
    assert len(list(each)) == 5


def test_state_counts_the_batch_before_it_is_worked_on():
    each = loader(images(20))
    for number, _ in enumerate(each, start=1):
        assert each.state_dict()["consumed"] == number


@pytest.mark.slow
@given(st.integers(2, 40), st.data())
def test_pruned_samples_stay_out_and_the_order_of_the_others_stays(n, data):
    each = loader(images(n), batch=1)
    before = [int(found.ids) for found in each]
    kept = torch.tensor(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    each.use_only(kept)
    assert len(each) == int(kept.sum())
    assert [int(found.ids) for found in each] == [row for row in before if kept[row]]
    each.use_only(None)
    assert [int(found.ids) for found in each] == before


def test_pruning_waits_for_the_next_iteration():
    each = loader(images(20))
    iterator = iter(each)
    next(iterator)
    each.use_only(torch.arange(20) < 8)
    assert len(list(iterator)) == 4
    assert len(list(each)) == len(each) == 2


def test_order_and_pixels_are_keyed_by_sample_id():
    """Held out rows change neither the crop of another row nor the order of the others."""
    whole, samples = images(30), images(30)
    part = samples.take(torch.arange(0, 30, 3))
    by_id = {int(found.ids): found.images for found in loader(whole, batch=1)}
    order = [int(found.ids) for found in loader(whole, batch=1)]
    found = list(loader(part, batch=1))
    assert [int(each.ids) for each in found] == [row for row in order if row % 3 == 0]
    assert all(torch.equal(each.images, by_id[int(each.ids)]) for each in found)


def test_evaluation_batches_are_the_normalised_images():
    samples = images(10)
    found = list(loader(samples, shuffle=False, drop_last=False))
    assert [len(each.ids) for each in found] == [4, 4, 2]
    assert torch.equal(
        torch.cat([each.images for each in found]), normalised(samples.pixels, samples.mean, samples.std)
    )
    assert torch.equal(torch.cat([each.labels for each in found]), samples.labels)
    assert all(each.images.is_contiguous(memory_format=torch.channels_last) for each in found)


def test_batches_after_an_evaluation_in_inference_mode_can_be_trained_on():
    samples = images(8)
    with torch.inference_mode():
        list(loader(samples, shuffle=False))
    layer = nn.Conv2d(3, 1, 3)
    for batch in loader(samples):
        layer(batch.images).sum().backward()
    assert layer.weight.grad is not None


def test_the_global_random_state_is_left_alone():
    each, before = loader(images(20)), torch.random.get_rng_state()
    first = list(each)
    assert torch.equal(before, torch.random.get_rng_state())
    torch.manual_seed(99)
    assert same(first, list(each))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch": 5, "world": 2}, "a batch of 5 cannot be shared evenly by 2 ranks; choose a multiple of 2"),
        ({"batch": 0}, "a batch of 0"),
        ({"rank": 1}, r"rank must be in \[0, 1\), got 1"),
    ],
)
def test_impossible_shares_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        loader(images(20), **change)


def test_a_mask_of_the_wrong_length_is_refused():
    with pytest.raises(ValueError, match="a bool for each of 20 images"):
        loader(images(20)).use_only(torch.ones(19, dtype=torch.bool))


def test_images_from_either_layout_and_from_arrays():
    pixels = torch.randint(0, 256, (6, 3, 5, 7), dtype=torch.uint8)
    planes = Images.of(pixels, [0, 1, 2, 0, -1, 1])
    rows = Images.of(pixels.permute(0, 2, 3, 1).numpy(), np.array([0, 1, 2, 0, -1, 1], np.int32))
    assert torch.equal(planes.pixels, pixels)
    assert torch.equal(rows.pixels, pixels)
    assert rows.labels.tolist() == [0, 1, 2, 0, -1, 1]
    assert planes.classes == ("0", "1", "2")
    scaled = pixels.double() / 255
    assert planes.mean == pytest.approx(scaled.mean((0, 2, 3)).tolist())
    assert planes.std == pytest.approx(scaled.std((0, 2, 3), correction=0).tolist())
    frozen = pixels.numpy().copy()
    frozen.flags.writeable = False
    assert torch.equal(Images.of(frozen[::-1]).pixels, pixels.flip(0))
    assert Images.of(pixels).labels.tolist() == [-1] * 6
    taken = planes.take(torch.tensor([4, 1]))
    assert taken.ids.tolist() == [4, 1]
    assert torch.equal(taken.pixels, pixels[[4, 1]])


@pytest.mark.parametrize(
    ("pixels", "labels", "message"),
    [
        (torch.zeros(2, 3, 4, 4), [0, 1], "array of uint8, values from 0 to 255, got torch.float32"),
        (torch.zeros(2, 4, 4, dtype=torch.uint8), [0, 1], r"\[n, C, H, W\] or \[n, H, W, C\]"),
        (torch.zeros(2, 2, 4, 4, dtype=torch.uint8), [0, 1], "with C = 1 or 3"),
        (torch.zeros(2, 3, 4, 4, dtype=torch.uint8), [0], r"labels must have shape \[2\]"),
        (torch.zeros(2, 3, 4, 4, dtype=torch.uint8), [0, 3], r"the label of row 1 is 3, outside \[0, 3\)"),
        (torch.zeros(2, 3, 4, 4, dtype=torch.uint8), [-2, 1], "the label of row 0 is -2"),
        (torch.zeros(2, 3, 4, 4, dtype=torch.uint8), [0.5, 1], "integer class indices"),
    ],
)
def test_what_is_no_image_or_label_is_refused(pixels, labels, message):
    with pytest.raises(ValueError, match=message):
        Images.of(pixels, labels, classes=["a", "b", "c"], mean=[0.5] * 3, std=[0.5] * 3)


def test_images_need_a_mean_for_each_channel():
    with pytest.raises(ValueError, match="images of 3 channels need a mean and a std for each, got 1 and 3"):
        Images.of(torch.zeros(2, 3, 4, 4, dtype=torch.uint8), [0, 1], mean=[0.5], std=[0.5] * 3)


@pytest.mark.filterwarnings("ignore")  # Lightning's own
def test_lightning_resumes_in_the_middle_of_an_epoch(tmp_path):
    """From the checkpoint of any step on, the same samples come in the same order as without a stop."""
    lightning = pytest.importorskip("lightning.pytorch")

    class Recorder(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer, self.seen = nn.Linear(48, 5), []

        def on_train_start(self):  # an epoch that was interrupted has no start
            self.on_train_epoch_start()

        def on_train_epoch_start(self):
            self.trainer.train_dataloader.set_epoch(self.current_epoch)

        def training_step(self, batch):
            self.seen.append((self.current_epoch, batch.ids.tolist()))
            return self.layer(batch.images.flatten(1)).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    class Save(lightning.Callback):
        def on_train_batch_end(self, trainer, *_):
            trainer.save_checkpoint(tmp_path / f"{trainer.global_step}.ckpt")

        def on_train_epoch_end(self, trainer, *_):
            trainer.save_checkpoint(tmp_path / f"{trainer.global_step}-end.ckpt")

    def fit(callbacks, checkpoint=None):
        module = Recorder()
        trainer = lightning.Trainer(
            max_epochs=3,
            accelerator="cpu",
            callbacks=callbacks,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, loader(images(20)), ckpt_path=checkpoint)
        return module.seen

    whole = fit([Save()])
    assert [epoch for epoch, _ in whole] == [0] * 5 + [1] * 5 + [2] * 5
    assert whole[0][1] != whole[5][1]
    for step, name in [(3, "3"), (5, "5"), (5, "5-end"), (7, "7"), (14, "14")]:
        assert fit([], tmp_path / f"{name}.ckpt") == whole[step:], name
