"""Keyed randomness against plain Python integers and as statistics; augmentation against torchvision."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from counterpoise.data import Augmentation, hold_out, hold_out_hashed, normalised
from counterpoise.data.augment import cropped
from counterpoise.data.keyed import STRETCHES, keyed_bits, keyed_integers, permutation

WORD = (1 << 64) - 1
seeds = st.integers(0, WORD)
small = st.integers(0, 1 << 40)


def split_mix(state: int) -> int:
    """SplitMix64 as published: the output after a step from `state`."""
    z = (state + 0x9E3779B97F4A7C15) & WORD
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORD
    return z ^ (z >> 31)


def oracle(seed: int, epoch: int, index: int, stream: int) -> int:
    key = split_mix((split_mix((split_mix(seed) + epoch) & WORD) + stream) & WORD)
    bits = split_mix((key + index * 0x9E3779B97F4A7C15) & WORD)
    return bits - (1 << 64) if bits >> 63 else bits


def test_the_oracle_gives_the_published_sequence():
    # The first outputs of SplitMix64 seeded with 1234567, as in the reference implementation.
    state, outputs = 1234567, []
    for _ in range(3):
        outputs.append(split_mix(state))
        state = (state + 0x9E3779B97F4A7C15) & WORD
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@given(seeds, small, st.lists(st.integers(0, (1 << 63) - 1), min_size=1, max_size=5), st.integers(0, 9))
def test_bits_are_those_of_plain_integers(seed, epoch, indices, stream):
    found = keyed_bits(seed, epoch, torch.tensor(indices), stream).tolist()
    assert found == [oracle(seed, epoch, index, stream) for index in indices]


@given(seeds, small, st.integers(1, 1 << 31))
def test_integers_are_in_their_range(seed, epoch, high):
    indices = torch.arange(50)
    integers = keyed_integers(seed, epoch, indices, 1, high=high)
    assert integers.dtype == torch.int64
    assert integers.min() >= 0
    assert integers.max() < high
    expected = [((oracle(seed, epoch, i, 1) & WORD) >> 32) * high >> 32 for i in range(50)]
    assert integers.tolist() == expected


def test_high_must_fit_the_word():
    with pytest.raises(ValueError, match=r"\[1, 2\^31\], got 0"):
        keyed_integers(0, 0, torch.arange(1), 0, high=0)


@pytest.mark.parametrize("high", [2, 9, 162])
@pytest.mark.parametrize("key", [(0, 0, 0), (0, 1, 0), (1, 0, 1), (123456789, 349, 3)])
def test_integers_are_uniform(high, key):
    seed, epoch, stream = key
    n = 100_000
    counts = torch.bincount(keyed_integers(seed, epoch, torch.arange(n), stream, high=high), minlength=high)
    chi2 = ((counts - n / high) ** 2 / (n / high)).sum().item()
    freedom = high - 1
    assert abs(chi2 - freedom) < 5 * (2 * freedom) ** 0.5 + 5


@pytest.mark.parametrize("other", [(0, 1, 0, 0), (1, 0, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1), (0, 0, 0, 2)])
def test_neighbouring_keys_are_uncorrelated(other):
    """Seed, epoch, stream or index one further: correlations of n pairs are of the size 1/sqrt(n)."""
    n = 100_000
    seed, epoch, stream, shift = other
    first = keyed_bits(0, 0, torch.arange(n), 0).double()
    second = keyed_bits(seed, epoch, torch.arange(n) + shift, stream).double()
    correlation = torch.corrcoef(torch.stack([first, second]))[0, 1].item()
    assert abs(correlation) < 5 / n**0.5


def test_every_bit_is_fair():
    bits = keyed_bits(0, 0, torch.arange(40_000), 0)
    ones = torch.stack([((bits >> place) & 1).double().mean() for place in range(64)])
    assert (ones - 0.5).abs().max() < 5 * 0.5 / 200


@given(seeds, small, st.integers(1, 300), st.data())
def test_a_permutation_of_some_is_that_of_all_without_the_others(seed, epoch, n, data):
    order = permutation(seed, epoch, n)
    assert order.sort().values.tolist() == list(range(n))
    some = torch.tensor(sorted(data.draw(st.sets(st.integers(0, n - 1), min_size=1))))
    of_some = some[permutation(seed, epoch, some)]
    assert of_some.tolist() == [row for row in order.tolist() if row in set(some.tolist())]


def test_permutations_differ_between_epochs_and_leave_the_global_state_alone():
    before = torch.random.get_rng_state()
    assert permutation(0, 0, 1000).tolist() != permutation(0, 1, 1000).tolist()
    assert torch.equal(before, torch.random.get_rng_state())


@given(st.integers(2, 500), seeds, st.data())
def test_validation_rows_are_a_sorted_partition(rows, seed, data):
    size = data.draw(st.integers(1, rows - 1) | st.floats(0.6 / rows, 1 - 0.6 / rows))
    train, held = hold_out(rows, size=size, seed=seed)
    assert len(held) == (size if isinstance(size, int) else round(size * rows))
    assert torch.equal(train, train.sort().values)
    assert torch.equal(held, held.sort().values)
    assert sorted([*train.tolist(), *held.tolist()]) == list(range(rows))


@given(st.integers(2, 500) | st.integers(10**9, 10**12), seeds, st.data())
def test_hashed_rows_are_those_of_a_loop_over_stretches(rows, seed, data):
    count = data.draw(st.integers(1, min(rows - 1, 60)))
    begin = (oracle(seed, 1, 0, STRETCHES) & (WORD >> 1)) % rows
    expected = set()
    for stretch in range(count):
        start, stop = (edge * rows // count for edge in (stretch, stretch + 1))
        place = start + (oracle(seed, 0, stretch, STRETCHES) & (WORD >> 1)) % (stop - start)
        expected.add((begin + place) % rows)
    assert hold_out_hashed(rows, size=count, seed=seed).tolist() == sorted(expected)
    assert len(expected) == count


@given(st.integers(10, 10**6), st.floats(0.1, 0.9))
def test_a_hashed_share_is_exactly_the_share(rows, share):
    assert len(hold_out_hashed(rows, size=share, seed=0)) == round(share * rows)


@pytest.mark.slow
def test_every_row_is_as_likely_to_be_held_out():
    """Of 11 rows 6, over 10,000 seeds: each within five standard deviations of 6 / 11."""
    held = torch.cat([hold_out_hashed(11, size=6, seed=seed) for seed in range(10_000)])
    shares = torch.bincount(held, minlength=11).double() / 10_000
    assert ((shares - 6 / 11).abs() < 5 * (6 / 11 * 5 / 11 / 10_000) ** 0.5).all()


@pytest.mark.parametrize("size", [0, 10, 11, 0.0, 1.0, 0.01, -1])
def test_a_part_that_leaves_nothing_is_refused(size):
    for held in (hold_out, hold_out_hashed):
        with pytest.raises(ValueError, match="hold out"):
            held(10, size=size, seed=0)


@pytest.mark.parametrize(("channels", "height", "width", "padding"), [(3, 32, 32, 4), (1, 8, 8, 1), (3, 6, 9, 0)])
def test_crops_are_those_of_torchvision(channels, height, width, padding):
    from torchvision.transforms.v2 import functional

    n = 40
    images = torch.randint(0, 256, (n, channels, height, width), dtype=torch.uint8)
    top, left = torch.randint(0, 2 * padding + 1, (2, n))
    mirrored = torch.randint(0, 2, (n,))
    found = cropped(images, top=top, left=left, mirrored=mirrored, padding=padding)
    assert found.is_contiguous(memory_format=torch.channels_last)
    mean, std = [0.5, 0.4, 0.3][:channels], [0.2, 0.3, 0.1][:channels]
    for row in range(n):
        expected = functional.pad(images[row], [padding])
        expected = functional.crop(expected, int(top[row]), int(left[row]), height, width)
        expected = functional.horizontal_flip(expected) if mirrored[row] else expected
        assert torch.equal(found[row], expected)
        scaled = functional.normalize(functional.to_dtype(expected, torch.float32, scale=True), mean, std)
        assert torch.allclose(normalised(found[row : row + 1], mean, std)[0], scaled, atol=1e-6, rtol=1e-6)


@given(seeds, small, st.permutations(range(12)), st.integers(1, 12))
def test_augmentation_depends_on_the_key_alone(seed, epoch, order, batch):
    images = torch.randint(0, 256, (12, 3, 8, 8), dtype=torch.uint8)
    ids = torch.arange(12) * 1000
    augmentation = Augmentation(padding=2, flip=True)
    whole = augmentation(images, ids, seed=seed, epoch=epoch)
    for start in range(0, 12, batch):
        rows = torch.tensor(order[start : start + batch])
        assert torch.equal(augmentation(images[rows], ids[rows], seed=seed, epoch=epoch), whole[rows])


def test_every_crop_and_mirror_is_drawn_equally_often():
    n, padding = 20_000, 1
    images = torch.arange(1, 10, dtype=torch.uint8).view(1, 1, 3, 3).expand(n, 1, 3, 3)
    found = Augmentation(padding=padding, flip=True)(images, torch.arange(n), seed=0, epoch=0)
    _, counts = torch.unique(found.reshape(n, -1), dim=0, return_counts=True)
    expected = n / (2 * (2 * padding + 1) ** 2)
    assert len(counts) == 18
    assert ((counts - expected).abs() < 5 * expected**0.5).all()


def test_without_padding_and_flip_nothing_changes():
    images = torch.randint(0, 256, (5, 3, 4, 4), dtype=torch.uint8)
    assert torch.equal(Augmentation(padding=0, flip=False)(images, torch.arange(5), seed=0, epoch=0), images)
    with pytest.raises(ValueError, match="padding must not be negative"):
        Augmentation(padding=-1, flip=False)
