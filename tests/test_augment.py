"""Transforms by name, mixup, CutMix and balanced classes: torchvision's own pixels, whatever else is drawn or killed."""

import random
from io import BytesIO
from itertools import islice

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from PIL import Image
from torchvision.transforms import v2

from counterpoise._choices import TRANSFORMS
from counterpoise.data import MemoryLoader, StreamLoader, load_images, normalised
from counterpoise.data.balance import balanced, class_weights
from counterpoise.data.keyed import MIXING, TRANSFORM, keyed_bits
from counterpoise.data.row_groups import class_counts, open_split
from counterpoise.data.sets import IMAGENET_MEAN, IMAGENET_STD
from counterpoise.data.sources import resolve
from counterpoise.data.transforms import Mixing, Transforms
from counterpoise.recipes import DataOptions
from counterpoise.recipes.config import Recipe
from counterpoise.training.data import named_data
from runs import striped_images
from test_data_memory import same
from test_data_sets import encoded

BOTH = ("RandomResizedCrop", "RandAugment")
IMAGES = striped_images(40, size=12)


def memory(images=IMAGES, *, transforms=None, workers=0, mixing=None, balance=False, batch=6, seed=3, world=1, rank=0):
    return MemoryLoader(
        images,
        batch=batch,
        seed=seed,
        augmentation=None,
        shuffle=True,
        drop_last=True,
        transforms=transforms,
        workers=workers,
        mixing=mixing,
        balance=balance,
        world=world,
        rank=rank,
    )


def transformed(images, ids, names, *, epoch=0):
    return Transforms(names, tuple(images.shape[1:]))(images, ids, seed=3, epoch=epoch)


# Transforms


@pytest.mark.parametrize(
    ("name", "channels"),
    [(name, channels) for name in TRANSFORMS for channels in (1, 3) if (name, channels) != ("RandomGrayscale", 1)],
)
def test_every_transform_is_a_function_of_seed_epoch_and_sample(name, channels):
    pixels = striped_images(24, size=16, channels=channels).pixels
    ids = torch.arange(24) * 7
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    first = transformed(pixels, ids, (name,))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before[1:]  # noqa: NPY002
    assert (first.shape, first.dtype) == (pixels.shape, torch.uint8)
    assert not torch.equal(first, pixels)
    assert not torch.equal(first, transformed(pixels, ids, (name,), epoch=1))
    random.seed(2)
    np.random.seed(2)  # noqa: NPY002
    torch.manual_seed(2)
    chosen = torch.tensor([5, 0, 17])  # alone, and beside others, and after other draws
    assert torch.equal(transformed(pixels[chosen], ids[chosen], (name,)), first[chosen])


def test_transforms_are_torchvisions_under_the_key():
    by_hand = v2.Compose([v2.RandomResizedCrop((12, 12), scale=(0.7, 1.0)), v2.RandAugment()])
    expected = []
    for image, key in zip(IMAGES.pixels, keyed_bits(3, 5, IMAGES.ids, TRANSFORM).tolist(), strict=True):
        torch.manual_seed(key)
        expected.append(by_hand(image))
    assert torch.equal(transformed(IMAGES.pixels, IMAGES.ids, BOTH, epoch=5), torch.stack(expected))


def test_threads_change_no_pixel():
    """A mean over an image of more than 2^15 pixels is shared between them."""
    images = striped_images(4, size=256)
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            found.append(transformed(images.pixels, images.ids, ("ColorJitter",)))
            assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*found)


def test_unknown_transforms_and_those_that_grey_images_have_no_use_for_are_refused():
    with pytest.raises(ValueError, match="there is no transform RandomCorp; there are RandomResizedCrop, "):
        Transforms(("RandomCorp",), (3, 8, 8))
    with pytest.raises(ValueError, match="RandomGrayscale changes the colours of an image, and these are grey"):
        Transforms(("RandomErasing", "RandomGrayscale"), (1, 8, 8))


# Loaders


def test_the_number_of_workers_changes_no_batch():
    transforms, mixing = Transforms(BOTH, (3, 12, 12)), Mixing(0.4, 1.0, 3)
    found = [list(memory(transforms=transforms, mixing=mixing, workers=workers)) for workers in (0, 1, 2)]
    assert len(found[0]) == 6
    assert same(found[0], found[1])
    assert same(found[0], found[2])


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop", [0, 1, 4, 5])
def test_batches_resume_where_they_stopped(workers, stop):
    def loader():
        transforms = Transforms((*BOTH, "RandomErasing"), (3, 12, 12))
        return memory(transforms=transforms, mixing=Mixing(0.4, 1.0, 3), balance=True, workers=workers)

    first = loader()
    first.set_epoch(2)
    whole = list(first)
    first.set_epoch(1)
    first.set_epoch(2)
    list(islice(first, stop))
    second = loader()
    second.load_state_dict(first.state_dict())
    torch.manual_seed(stop)
    assert same(list(second), whole[stop:])
    assert same(list(first), whole)  # the iteration that was left does not shorten the next
    assert same(list(second), whole)


def test_batches_of_transforms_are_normalised_images_under_their_labels():
    (found,) = memory(transforms=Transforms(BOTH, (3, 12, 12)), batch=40)
    pixels = transformed(IMAGES.pixels[found.ids], found.ids, BOTH)
    assert torch.equal(found.images, normalised(pixels, IMAGES.mean, IMAGES.std))
    assert torch.equal(found.labels, IMAGES.labels[found.ids])
    assert found.images.is_contiguous(memory_format=torch.channels_last)


def test_ranks_share_transformed_batches():
    alone = list(memory(transforms=Transforms(BOTH, (3, 12, 12))))
    for rank in range(2):
        share = list(memory(transforms=Transforms(BOTH, (3, 12, 12)), rank=rank, world=2))
        assert same(share, [tuple(each[rank::2] for each in batch) for batch in alone])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Photographs of different sizes, larger than what they are trained at."""
    path = tmp_path_factory.mktemp("photographs")
    generator = np.random.default_rng(0)
    sizes = [(20 + 3 * (row % 4), 32 - 2 * (row % 3)) for row in range(30)]
    images = [encoded(generator.integers(0, 256, (*size, 3), dtype=np.uint8)) for size in sizes]
    labels = [min(row % 6, 2) for row in range(30)]
    pq.write_table(pa.table({"image": images, "label": labels}), path / "train.parquet", row_group_size=7)
    return path


def stream(folder, names, *, workers=0, mixing=None):
    return StreamLoader(
        folder,
        "train",
        batch=5,
        seed=3,
        augmentation=None,
        shuffle=True,
        drop_last=True,
        workers=workers,
        window=11,
        size=16,
        transforms=Transforms(names, (3, 16, 16)),
        mixing=mixing,
    )


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_streamed_images_are_transformed_by_the_same_keys_and_resume(folder, workers):
    names, mixing = ("RandomHorizontalFlip", "RandAugment"), Mixing(0.0, 1.0, 3)
    squares = load_images(folder, "train", size=16)
    whole = list(stream(folder, names, workers=workers, mixing=mixing))
    for number, batch in enumerate(whole):
        pixels = transformed(squares.pixels[batch.ids], batch.ids, names)
        images = normalised(pixels, squares.mean, squares.std)
        expected = mixing(images, squares.labels[batch.ids], seed=3, epoch=0, number=number)
        assert same([batch[:2]], [expected])
    first, second = (stream(folder, names, workers=workers, mixing=mixing) for _ in range(2))
    list(islice(first, 3))
    second.load_state_dict(first.state_dict())
    assert same(list(second), whole[3:])


def cropped(image, *, row, size):
    """Torchvision's crop of a whole image `[C, h, w]`; of a longer image than 4:3, of a part at a random place."""
    torch.manual_seed(int(keyed_bits(3, 0, torch.tensor(row), TRANSFORM)))
    _, height, width = image.shape
    if width > height * 4 // 3:
        start = int(torch.randint(width - height * 4 // 3 + 1, ()))
        image = image[:, :, start : start + height * 4 // 3]
    return v2.RandomResizedCrop((size, size), scale=(0.7, 1.0))(image)


def test_a_stream_crops_from_images_as_they_are_stored(folder):
    seen = []
    stored = pq.read_table(folder / "train.parquet").column("image").to_pylist()
    loader = stream(folder, ("RandomResizedCrop",), workers=1)
    for batch in loader:
        for image, row in zip(batch.images, batch.ids.tolist(), strict=True):
            decoded = v2.functional.pil_to_tensor(Image.open(BytesIO(stored[row])))
            expected = normalised(cropped(decoded, row=row, size=16)[None], loader.mean, loader.std)[0]
            assert torch.equal(image, expected)
            seen.append(row)
    assert len(seen) == 30


def own_crops(folder, *, workers=0, epoch=0):
    """The training loader of images of unequal sizes in memory, of which six are held out."""
    options = DataOptions(
        name=str(folder), size=16, validation=6, workers=workers, augment=("RandomResizedCrop",), test=4
    )
    loader = named_data(Recipe(batch=5, seed=3, data=options)).training(3, 0, 1)
    loader.set_epoch(epoch)
    return loader


def test_images_in_memory_are_cropped_from_the_whole_resized_image(folder):
    """As Pillow resizes them: the shorter side to the size, the longer side in proportion."""
    stored = pq.read_table(folder / "train.parquet").column("image").to_pylist()
    for batch in (loader := own_crops(folder)):
        for image, row in zip(batch.images, batch.ids.tolist(), strict=True):
            opened = Image.open(BytesIO(stored[row]))
            scale = 16 / min(opened.size)
            resized = opened.resize([round(side * scale) for side in opened.size], Image.Resampling.BILINEAR)
            pixels = cropped(v2.functional.pil_to_tensor(resized), row=row, size=16)
            assert torch.equal(image, normalised(pixels[None], loader.images.mean, loader.images.std)[0])


def test_crops_of_whole_images_resume_with_any_number_of_workers(folder):
    whole = list(own_crops(folder))
    first, second = own_crops(folder), own_crops(folder, workers=2)
    list(islice(first, 2))
    second.load_state_dict(first.state_dict())
    assert same(list(second), whole[2:])


THIRDS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255)}


@pytest.mark.parametrize("size", [(192, 64), (64, 192)])
@pytest.mark.parametrize("pipeline", ["memory", "stream"])
def test_training_sees_the_borders_of_long_photos(tmp_path, size, pipeline):
    """In some batch of some epoch each third takes most of a crop; the centre alone would be green."""
    photo = Image.new("RGB", (3, 1) if size[0] > size[1] else (1, 3))
    photo.putdata(list(THIRDS.values()))
    image = encoded(np.asarray(photo.resize(size, Image.Resampling.NEAREST)))
    for split, rows in (("train", 12), ("test", 2)):
        pq.write_table(
            pa.table({"image": [image] * rows, "label": [0, 1] * (rows // 2)}), tmp_path / f"{split}.parquet"
        )
    options = DataOptions(
        name=str(tmp_path), size=32, validation=2, workers=0, augment=("RandomResizedCrop",), pipeline=pipeline
    )
    loader = named_data(Recipe(batch=5, data=options)).training(0, 0, 1)
    shares = torch.zeros(3)
    for epoch in range(6):
        loader.set_epoch(epoch)
        for batch in loader:
            lowest = normalised(torch.zeros(1, 3, 1, 1, dtype=torch.uint8), IMAGENET_MEAN, IMAGENET_STD)
            bright = (batch.images - lowest) > 2  # one channel in each third
            shares = torch.maximum(shares, bright.float().mean((2, 3)).amax(0))
    assert (shares > 0.5).all(), dict(zip(THIRDS, shares.tolist(), strict=True))


def test_a_stream_counts_its_labels(folder):
    opened = open_split(resolve(folder), "train")
    assert class_counts(opened).tolist() == [5, 5, 20]
    assert class_counts(opened.only(torch.tensor([0, 6, 3, 29]))).tolist() == [2, 0, 2]
    assert class_counts(opened.without(torch.tensor([0, 6, 3, 29]))).tolist() == [3, 5, 18]


# Mixing


def mixed_batch(mixing, *, number=0, epoch=0):
    images = normalised(IMAGES.pixels, IMAGES.mean, IMAGES.std)
    return mixing(images, IMAGES.labels, seed=3, epoch=epoch, number=number)


@pytest.mark.parametrize(("mixing", "by_hand"), [((0.3, 0.0), v2.MixUp), ((0.0, 0.7), v2.CutMix)])
def test_mixing_is_torchvisions_under_the_key_of_the_batch(mixing, by_hand):
    torch.manual_seed(int(keyed_bits(3, 2, torch.tensor(4), MIXING)))
    # Of one there is nothing to choose, which takes a draw.
    choice = v2.RandomChoice([by_hand(alpha=max(mixing), num_classes=3)])
    expected = choice(normalised(IMAGES.pixels, IMAGES.mean, IMAGES.std), IMAGES.labels)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    images, labels = mixed_batch(Mixing(*mixing, 3), number=4, epoch=2)
    assert torch.equal(torch.get_rng_state(), before)
    assert same([(images, labels)], [expected])
    assert (labels.dtype, labels.shape) == (torch.float32, (40, 3))
    assert torch.allclose(labels.sum(-1), torch.ones(40))
    assert images.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.slow
def test_one_of_both_by_a_fair_coin():
    """Mixup keeps no pixel of any image as it was; CutMix all of them, somewhere."""
    images = normalised(IMAGES.pixels, IMAGES.mean, IMAGES.std)
    shifted = images.roll(1, 0)
    cut = [
        bool(((found == images) | (found == shifted)).all())
        for found, _ in (mixed_batch(Mixing(0.5, 0.5, 3), number=number) for number in range(400))
    ]
    assert 160 < sum(cut) < 240  # four standard deviations; the keys are fixed


# Classes of different sizes


@pytest.mark.slow
@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.integers(0, 5))
@settings(max_examples=60)
def test_each_class_is_drawn_equally_often(labels, epoch):
    labels = torch.tensor(labels)
    ids = torch.arange(len(labels)) * 3 + 1
    rows, keys = balanced(labels, ids, seed=3, epoch=epoch)
    present = labels.unique()
    counts = torch.bincount(labels[rows], minlength=5)[present]
    assert len(rows) == len(labels)
    assert counts.max() - counts.min() <= 1
    assert len(set(keys.tolist())) == len(keys)
    for label in present.tolist():  # nobody a third time before all were seen twice
        draws = torch.bincount(rows[labels[rows] == label], minlength=len(labels))[labels == label]
        assert draws.max() - draws.min() <= 1
    first = keys < 1 << 40
    assert torch.equal(keys[first], ids[rows[first]])


def imbalanced():
    images = striped_images(120, size=12)
    order = torch.cat([torch.nonzero(images.labels == label)[:count, 0] for label, count in ((0, 4), (1, 8), (2, 24))])
    return images.take(order)


def test_a_balanced_loader_augments_each_draw_by_itself_and_anew_each_epoch():
    loader = memory(imbalanced(), transforms=Transforms(BOTH, (3, 12, 12)), balance=True, batch=36)
    (found,) = loader
    assert torch.bincount(found.labels).tolist() == [12, 12, 12]
    loader.set_epoch(1)
    (other,) = loader
    assert not torch.equal(found.ids, other.ids)
    rare = found.images[found.ids == found.ids[found.labels == 0][0]]
    assert len(rare) == 3
    assert not torch.equal(rare[0], rare[1])
    assert not torch.equal(rare[1], rare[2])


@given(st.lists(st.integers(0, 50), min_size=2, max_size=6).filter(any))
def test_class_weights_have_mean_1_over_the_samples(counts):
    counts = torch.tensor(counts)
    weights = class_weights(counts)
    assert float((weights * counts).sum() / counts.sum()) == pytest.approx(1)
    present = counts > 0
    shares = (weights * counts)[present]
    assert torch.allclose(shares, shares[0].expand_as(shares))


def test_a_stream_weighs_its_training_images(folder):
    recipe = Recipe(
        batch=5,
        data=DataOptions(name=str(folder), pipeline="stream", size=16, validation=6, balance="weights"),
    )
    data = named_data(recipe)
    labels = load_images(folder, "train", size=16).labels
    kept = torch.ones(30, dtype=torch.bool)
    kept[data.validation_rows] = False
    assert torch.allclose(data.class_weights, class_weights(torch.bincount(labels[kept], minlength=3)))
