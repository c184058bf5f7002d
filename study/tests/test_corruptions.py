"""Corruptions: independent of the batch, growing with severity, and held to plain loops and other libraries' filters."""

import colorsys
import io
import itertools
import math

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy import ndimage

from counterpoise.data import official_corrupted
from counterpoise_study.corruptions import CORRUPTIONS, EXTRA, SEVERITIES, STANDARD, corrupted
from counterpoise_study.corruptions.digital import elastic_transform
from counterpoise_study.corruptions.draws import Draws
from counterpoise_study.corruptions.filters import line_blurred
from counterpoise_study.corruptions.frost_textures import textures
from counterpoise_study.corruptions.weather import plasma

RANDOM = set(CORRUPTIONS) - {
    "brightness", "contrast", "defocus_blur", "gaussian_blur", "jpeg_compression", "pixelate", "saturate", "zoom_blur",
}  # fmt: skip
INCREASING = {
    # Mean absolute change falls, or jumps, where the published constants change what they do rather than how much:
    "glass_blur": [(2, 4), (3, 5)],  # one round and then two, with a deviation that goes up, down and up again
    "elastic_transform": [],  # the skew shrinks while the random field grows; the field has a test of its own
    "spatter": [(1, 2, 3), (4, 5)],  # water, then mud
    "saturate": [(1, 2), (3, 4, 5)],  # paler, then more colourful
}


@pytest.fixture(scope="module")
def photographs(real_data):
    """The first 300 test images of CIFAR-10."""
    file = pq.ParquetFile(real_data("cifar10") / "cifar10" / "test.parquet")
    cells = next(file.iter_batches(300, columns=["img"]))["img"].to_pylist()
    pixels = np.stack([np.asarray(Image.open(io.BytesIO(cell["bytes"])).convert("RGB")) for cell in cells])
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous()


def pictures(count, size=32, seed=0):
    """Coloured gradients with a little texture and a grey, a black and a white spot."""
    generator = torch.Generator().manual_seed(seed)
    corners = torch.rand(count, 3, 4, 4, generator=generator)
    smooth = torch.nn.functional.interpolate(corners, (size, size), mode="bilinear")
    pixels = (255 * (smooth + 0.05 * torch.randn(smooth.shape, generator=generator)).clamp(0, 1)).byte()
    for place, level in enumerate((128, 0, 255)):
        pixels[:, :, place, :3] = level
    return pixels


def change(before, after):
    return (before.float() - after.float()).abs().mean().item()


def decorrelation(before, after):
    both = torch.stack([before.float().flatten(1), after.float().flatten(1)], 1)
    return 1 - torch.stack([torch.corrcoef(pair)[0, 1] for pair in both]).mean().item()


def test_the_published_names():
    assert len(STANDARD) == 15
    assert len(EXTRA) == 4
    assert set(STANDARD) | set(EXTRA) == set(CORRUPTIONS)


@pytest.mark.parametrize("name", CORRUPTIONS)
@settings(max_examples=5)
@given(data=st.data())
def test_any_split_into_batches_gives_the_same_pixels(name, data):
    severity, size = data.draw(st.sampled_from(SEVERITIES)), data.draw(st.sampled_from([16, 32]))
    pixels, ids = pictures(9, size), torch.tensor([3, 0, 7, 2**62, -1, 12, 4, 9, 10_000])
    whole = corrupted(pixels, name, severity, seed=5, ids=ids)
    order = torch.tensor(data.draw(st.permutations(range(9))))
    cuts = sorted(data.draw(st.sets(st.integers(1, 8))))
    parts = [corrupted(pixels[some], name, severity, seed=5, ids=ids[some]) for some in torch.tensor_split(order, cuts)]
    assert torch.equal(torch.cat(parts), whole[order])


def test_blocks_inside_a_call_change_nothing():
    pixels = pictures(200)
    for name in ("zoom_blur", "contrast", "spatter"):
        whole = corrupted(pixels, name, 3, seed=0)
        assert torch.equal(whole[150:], corrupted(pixels[150:], name, 3, seed=0, ids=torch.arange(150, 200)))


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_randomness_is_keyed_and_the_global_state_is_left_alone(name):
    pixels = pictures(1).expand(2, -1, -1, -1)
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    first = corrupted(pixels, name, 2, seed=0)
    assert torch.equal(first, corrupted(pixels.contiguous(memory_format=torch.channels_last), name, 2, seed=0))
    assert torch.equal(torch_state, torch.get_rng_state())
    assert np.array_equal(numpy_state, np.random.get_state()[1])  # noqa: NPY002
    other_seed = corrupted(pixels, name, 2, seed=1)
    assert torch.equal(first, other_seed) == (name not in RANDOM)
    assert torch.equal(first[0], first[1]) == (name not in RANDOM)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_severity_grows_on_real_images(name, photographs):
    # Frost adds light and takes some away again, so what grows is how little of the picture is left in it.
    distance = decorrelation if name == "frost" else change
    distances = {
        severity: distance(photographs, corrupted(photographs, name, severity, seed=0)) for severity in SEVERITIES
    }
    assert min(distances.values()) > 0
    for chain in INCREASING.get(name, [SEVERITIES]):
        assert all(distances[less] < distances[more] for less, more in itertools.pairwise(chain)), distances


def test_the_random_field_of_elastic_transform_grows(photographs):
    images = photographs.float() / 255
    changes = []
    for strength, deviation, _ in CORRUPTIONS["elastic_transform"].constants:
        draws = Draws("test", torch.arange(len(images)))
        changes.append(change(images, elastic_transform(images, draws, strength, deviation, 0.0)))
    assert changes[0] < 1e-5
    assert all(less < more for less, more in itertools.pairwise(changes))


@pytest.mark.parametrize("name", CORRUPTIONS)
@pytest.mark.parametrize("size", [8, 45, 64])
def test_any_size_and_flat_images(name, size):
    pixels = pictures(3, size)
    pixels[1], pixels[2] = 0, 255
    for severity in SEVERITIES:
        result = corrupted(pixels, name, severity, seed=0)
        assert result.shape == pixels.shape
        assert result.dtype == torch.uint8
    assert corrupted(pixels[:0], name, 1, seed=0).shape == (0, 3, size, size)


@pytest.mark.parametrize(
    "name", ["defocus_blur", "gaussian_blur", "zoom_blur", "motion_blur", "glass_blur", "contrast", "elastic_transform"]
)
def test_what_averages_pixels_keeps_flat_images(name):
    flat = torch.arange(0, 256, 15, dtype=torch.uint8)[:, None, None, None].expand(-1, 3, 32, 32)
    for severity in SEVERITIES:
        assert torch.equal(corrupted(flat, name, severity, seed=0), flat)


GREY = torch.full((60, 3, 32, 32), 128, dtype=torch.uint8)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_noise_has_the_published_size(severity):
    place, x = severity - 1, 128 / 255
    deviation = {
        "gaussian_noise": [0.04, 0.06, 0.08, 0.09, 0.10][place],
        "shot_noise": math.sqrt(x / [500, 250, 100, 75, 50][place]),
        "speckle_noise": x * [0.06, 0.1, 0.12, 0.16, 0.2][place],
    }
    for name, expected in deviation.items():
        noisy = corrupted(GREY, name, severity, seed=0).double() / 255
        assert noisy.std().item() == pytest.approx(expected, rel=0.02)
        assert noisy.mean().item() == pytest.approx(x, abs=0.004)  # bytes are cut off, not rounded
    hit = corrupted(GREY, "impulse_noise", severity, seed=0)
    amount = [0.01, 0.02, 0.03, 0.05, 0.07][place]
    assert (hit == 0).double().mean().item() == pytest.approx(amount / 2, rel=0.1)
    assert (hit == 255).double().mean().item() == pytest.approx(amount / 2, rel=0.1)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_filters_agree_with_scipy(severity):
    pixels = pictures(2)
    images = pixels.double().numpy() / 255
    deviation = [0.4, 0.6, 0.7, 0.8, 1.0][severity - 1]
    expected = ndimage.gaussian_filter(images, (0, 0, deviation, deviation), mode="nearest")
    close(corrupted(pixels, "gaussian_blur", severity, seed=0), expected)

    radius, alias = [(0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)][severity - 1]
    steps = np.arange(-8, 9)
    disk = (steps[:, None] ** 2 + steps**2 <= radius**2).astype(float)
    taps = np.exp(-(np.array([-1, 0, 1]) ** 2) / (2 * alias**2))
    disk = ndimage.convolve(disk / disk.sum(), np.outer(taps, taps) / taps.sum() ** 2, mode="constant")
    close(
        corrupted(pixels, "defocus_blur", severity, seed=0), ndimage.correlate(images, disk[None, None], mode="mirror")
    )

    # The end of the published range, and with it how many zooms there are, comes from the rounding of floats.
    zooms = np.arange(1, [1.06, 1.11, 1.16, 1.21, 1.26][severity - 1], 0.01)
    total = images.copy()
    for zoom in zooms:
        side = math.ceil(32 / zoom)
        top = (32 - side) // 2
        large = ndimage.zoom(images[..., top : top + side, top : top + side], (1, 1, zoom, zoom), order=1)
        trim = (large.shape[-1] - 32) // 2
        total += large[..., trim : trim + 32, trim : trim + 32]
    close(corrupted(pixels, "zoom_blur", severity, seed=0), total / (len(zooms) + 1))


def close(pixels, expected):
    """Equal up to the level that a float's last bit decides."""
    difference = pixels.double().numpy() - np.floor(np.clip(255 * expected, 0, 255) + 1e-3)
    assert np.abs(difference).max() <= 1
    assert (difference != 0).mean() < 0.01


@pytest.mark.parametrize("severity", SEVERITIES)
def test_colours_agree_with_the_standard_library(severity):
    pixels = pictures(1, 16)
    pale, gain = [(0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)][severity - 1]
    more = [0.05, 0.1, 0.15, 0.2, 0.3][severity - 1]
    hsv = [colorsys.rgb_to_hsv(*rgb) for rgb in (pixels[0].flatten(1).T.double() / 255).tolist()]
    brighter = [colorsys.hsv_to_rgb(h, s, min(v + more, 1)) for h, s, v in hsv]
    close(corrupted(pixels, "brightness", severity, seed=0), np.array(brighter).T.reshape(1, 3, 16, 16))
    coloured = [colorsys.hsv_to_rgb(h, min(s * pale + gain, 1), v) for h, s, v in hsv]
    close(corrupted(pixels, "saturate", severity, seed=0), np.array(coloured).T.reshape(1, 3, 16, 16))


def test_glass_blur_moves_as_the_published_loop_does():
    # At severity 1 the Gaussian does nothing. Numbering the pixels shows where each came from.
    places = torch.arange(32 * 32).view(32, 32)
    pixels = torch.stack([places // 256, places % 256, torch.zeros_like(places)]).byte()[None]
    moved = corrupted(pixels, "glass_blur", 1, seed=0)[0].long()
    origin = moved[0] * 256 + moved[1]
    down, right = places // 32 - origin // 32, places % 32 - origin % 32
    assert set(down.unique().tolist()) == set(right.unique().tolist()) == {0, 1}
    assert down[2:, 2:].float().mean().item() == pytest.approx(0.5, abs=0.06)
    array = pixels[0].permute(1, 2, 0).numpy().copy()
    for y in range(31, 1, -1):
        for x in range(31, 1, -1):
            v, u = y - down[y, x].item(), x - right[y, x].item()
            array[y, x], array[v, u] = array[v, u], array[y, x]  # of views: a copy, not a swap
    assert np.array_equal(array, moved.permute(1, 2, 0).numpy())


def test_a_point_in_motion_draws_half_a_gaussian():
    image = torch.zeros(3, 1, 32, 32)
    image[:, :, 16, 16] = 1
    rightwards, downwards, slanted = line_blurred(
        image, torch.tensor([[0.0], [90.0], [-45.0]]), radius=6, deviation=2.0
    )
    weights = np.exp(-(np.arange(13) ** 2) / 8)
    weights /= weights.sum()
    expected = np.zeros((32, 32))
    expected[16, 16:3:-1] = weights
    np.testing.assert_allclose(rightwards[0], expected, atol=1e-6)
    np.testing.assert_allclose(downwards[0], expected.T, atol=1e-6)
    assert [slanted[0, 16 + step, 16 - step].item() > 0 for step in range(4)] == [True, True, True, True]


def test_elastic_skew_moves_three_points_to_their_places():
    size, skew = 30, 0.08
    image = torch.stack(
        [place.float() / size for place in torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")]
    )
    result = elastic_transform(image[None], Draws("skew", torch.arange(1)), 0.0, 0.0, skew)[0]
    moves = Draws("skew", torch.arange(1)).uniform(3, 2, low=-skew * size, high=skew * size)[0]
    for (x, y), (right, down) in zip([(25, 25), (25, 5), (5, 5)], moves.tolist(), strict=True):
        found = [
            ndimage.map_coordinates(plane, [[y + down], [x + right]], order=1)[0] * size for plane in result.numpy()
        ]
        assert found == pytest.approx([y, x], abs=0.2)


def test_snow_and_water_only_add_light_and_mud_only_brown():
    pixels = pictures(20).int()
    for name, severity in [("snow", 1), ("snow", 5), ("spatter", 1), ("spatter", 3)]:
        assert (corrupted(pixels.byte(), name, severity, seed=0) >= pixels).all()
    muddy, brown = corrupted(pixels.byte(), "spatter", 5, seed=0).int(), torch.tensor([63, 42, 20]).view(1, 3, 1, 1)
    assert (muddy >= torch.minimum(pixels, brown)).all()
    assert (muddy <= torch.maximum(pixels, brown)).all()
    assert 0.02 < (muddy != pixels).any(1).double().mean() < 0.3


def test_plasma_is_smooth_where_the_noise_decays_fast():
    rough, smooth = (plasma(Draws("test", torch.arange(20)), 32, decay) for decay in (1.2, 3.0))
    for heights in (rough, smooth):
        assert heights.amin((1, 2)).tolist() == [0] * 20
        assert heights.amax((1, 2)).tolist() == [1] * 20
    assert smooth.diff(dim=1).abs().mean() < rough.diff(dim=1).abs().mean() / 2


def test_frost_repeats_without_a_seam():
    inside = textures().diff(dim=1).abs().mean()
    seam = (textures()[:, 0] - textures()[:, -1]).abs().mean()
    assert seam < 1.5 * inside


def test_jpeg_and_pixelate_are_those_of_pillow():
    pixels = pictures(2)
    for before, small, squeezed in zip(
        pixels, corrupted(pixels, "pixelate", 4, seed=0), corrupted(pixels, "jpeg_compression", 4, seed=0), strict=True
    ):
        image, file = Image.fromarray(before.permute(1, 2, 0).numpy()), io.BytesIO()
        image.save(file, "JPEG", quality=50)
        assert np.array_equal(squeezed.permute(1, 2, 0), np.asarray(Image.open(file)))
        box = Image.Resampling.BOX
        assert np.array_equal(small.permute(1, 2, 0), np.asarray(image.resize((24, 24), box).resize((32, 32), box)))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"corruption": "rain"}, "no corruption is called 'rain'; known are gaussian_noise"),
        ({"severity": 6}, "severity must be one of .*, got 6"),
        ({"pixels": torch.zeros(2, 3, 32, 32)}, "must be uint8 .* got torch.float32"),
        ({"pixels": torch.zeros(2, 32, 32, 3, dtype=torch.uint8)}, r"3 channels and .* got \[32, 32, 3\]"),
        ({"pixels": torch.zeros(2, 3, 32, 16, dtype=torch.uint8)}, r"be square .* got \[3, 32, 16\]"),
        ({"ids": torch.arange(3)}, r"ids must be int64 of shape \[2\]"),
        ({"ids": torch.zeros(2)}, "got torch.float32"),
    ],
)
def test_refusals(wrong, message):
    arguments = {"pixels": pictures(2), "corruption": "fog", "severity": 1, "seed": 0, "ids": None} | wrong
    with pytest.raises(ValueError, match=message):
        corrupted(**arguments)


@pytest.fixture
def published(tmp_path):
    """A folder like CIFAR-10-C, of four images."""
    np.save(tmp_path / "fog.npy", np.random.default_rng(0).integers(0, 256, (20, 32, 32, 3), dtype=np.uint8))
    np.save(tmp_path / "labels.npy", np.tile(np.arange(4, dtype=np.uint8), 5))
    return tmp_path


def test_official_files(published):
    everything = np.load(published / "fog.npy")
    for severity in SEVERITIES:
        pixels, labels = official_corrupted(published, "fog", severity)
        assert pixels.dtype == torch.uint8
        assert labels.dtype == torch.int64
        assert labels.tolist() == [0, 1, 2, 3]
        assert np.array_equal(pixels.permute(0, 2, 3, 1), everything[4 * severity - 4 : 4 * severity])


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("fog", np.zeros((20, 32, 32, 3)), r"fog.npy must hold uint8 .* holds float64 \[20, 32, 32, 3\]"),
        ("fog", np.zeros((20, 3, 32, 32), np.uint8), r"fog.npy .* holds uint8 \[20, 3, 32, 32\]"),
        ("fog", np.zeros((21, 32, 32, 3), np.uint8), r"fog.npy .* holds uint8 \[21, 32, 32, 3\]"),
        ("fog", np.array([{}], dtype=object), "fog.npy is not a whole .npy file of numbers"),
        ("labels", np.zeros(19, np.uint8), r"labels.npy must hold integers of shape \[20\].*fog.npy"),
        ("labels", np.zeros(20), "labels.npy .* holds float64"),
    ],
)
def test_official_files_that_are_not_right(published, file, content, message):
    np.save(published / f"{file}.npy", content, allow_pickle=True)
    with pytest.raises(ValueError, match=message):
        official_corrupted(published, "fog", 1)


def test_official_files_that_are_cut_or_missing_or_archives(published):
    path = published / "fog.npy"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"fog.npy is not a whole .npy file"):
        official_corrupted(published, "fog", 1)
    with path.open("wb") as file:
        np.savez(file, images=np.zeros(1))
    with pytest.raises(ValueError, match=r"fog.npy is not a whole .npy file"):
        official_corrupted(published, "fog", 1)
    with pytest.raises(ValueError, match=r"snow.npy is missing"):
        official_corrupted(published, "snow", 1)
    with pytest.raises(ValueError, match="no corruption is called"):
        official_corrupted(published, "../fog", 1)
