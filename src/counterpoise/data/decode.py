"""One encoded image in, one uint8 array out; the same for sets in memory and for streams."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BytesIO
from typing import IO, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from counterpoise._extras import require
from counterpoise.data.chunks import Chunk

FORMATS: Final = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "AVIF")
"""Of images that are opened, as Pillow calls them. It would hand others, such as EPS, to programs."""

_MODES = {1: "L", 3: "RGB"}
_ORIENTATION = 0x0112
_UPRIGHT = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
"""What undoes each orientation of EXIF, as Pillow calls it."""

_LONGEST = 4
"""Sides of a whole image beyond this ratio are resized further, so that a panorama takes no more memory than this."""

_DECODING = (OSError, RuntimeError, SyntaxError, ValueError, TypeError, AttributeError, LookupError, struct.error)
"""What damaged files have made Pillow raise."""


def open_image(file: IO[bytes]) -> Any:
    """Pillow's image of a file in one of `FORMATS`, whatever its name says."""
    return require("PIL.Image", extra="train", purpose="decoding images").open(file, formats=FORMATS)


def decoded(data: bytes, *, channels: int, size: int | None) -> npt.NDArray[np.uint8]:
    """Pixels `[H, W, C]` of one encoded image, converted to grey (C = 1) or RGB (C = 3).

    `size` resizes the shorter side to it and crops the centre, with anti-aliasing.
    """
    return _decoded(data, channels=channels, size=size).pixels


class _Decoded(NamedTuple):
    """One image: pixels `[H, W, C]`, stored width and height, and the pixels of the whole image if it is resized."""

    pixels: npt.NDArray[np.uint8]
    stored: tuple[int, int]
    whole: npt.NDArray[np.uint8]


def _decoded(data: bytes, *, channels: int, size: int | None, whole: bool = False) -> _Decoded:
    image_module = require("PIL.Image", extra="train", purpose="decoding images")
    if size is None and channels == 3 and 0 < _plain_webp_pixels(data) <= (image_module.MAX_IMAGE_PIXELS or np.inf):
        pixels = _decoded_webp(data)
        return _Decoded(pixels, (pixels.shape[1], pixels.shape[0]), pixels)
    operations = require("PIL.ImageOps", extra="train", purpose="decoding images")
    with open_image(BytesIO(data)) as opened:
        opened.load()
        # Pillow's own `exif_transpose` writes the other tags anew, and fails on those that are odd.
        method = _UPRIGHT.get(opened.getexif().get(_ORIENTATION, 1))
        upright = opened.transpose(image_module.Transpose[method]) if method else opened
        if upright.mode in ("I", "F"):
            raise ValueError(
                f"its pixels are of Pillow's mode {upright.mode}, of no known range; store it as PNG of 8 or 16 bits"
            )
        if upright.mode.startswith("I;16"):  # which Pillow would cut off at 255
            upright = image_module.fromarray((np.asarray(upright) >> 8).astype(np.uint8))
        stored = upright.size
        if upright.mode == "P" and "transparency" in upright.info:  # else Pillow advises this
            upright = upright.convert("RGBA")
        # Grey becomes RGB when it is small: three channels that are alike take three times the memory.
        image = _in_mode(upright, "L" if upright.mode in ("1", "L") else _MODES[channels])
        bilinear, entire = image_module.Resampling.BILINEAR, image
        if size is not None and image.size != (size, size):
            image = operations.fit(image, (size, size), method=bilinear)
            entire = entire.resize(_whole_size(entire.width, entire.height, size), bilinear) if whole else image
        pixels, all_pixels = (
            np.asarray(_in_mode(each, _MODES[channels])).reshape(each.height, each.width, channels)
            for each in (image, entire)
        )
    return _Decoded(pixels, stored, all_pixels)


def _whole_size(width: int, height: int, size: int) -> tuple[int, int]:
    """Width and height of an image whose shorter side is resized.

    >>> _whole_size(192, 64, 32), _whole_size(3000, 100, 32)
    ((96, 32), (128, 4))
    """
    scale = min(size / min(width, height), _LONGEST * size / max(width, height))
    return max(1, round(width * scale)), max(1, round(height * scale))


def _in_mode(image: Any, mode: str) -> Any:
    """The image itself where it has the mode, which Pillow would copy."""
    return image if image.mode == mode else image.convert(mode)


class UnreadableImageError(ValueError):
    """An image that cannot be decoded, by its file and row."""


@dataclass
class Survey:
    """What is found while images are decoded.

    Attributes:
        skip: leave images out that cannot be decoded, instead of refusing them.
        sizes: width and height of each image, upright, before it is resized.
        unreadable: what is wrong with those left out.
    """

    skip: bool = False
    sizes: list[tuple[int, int]] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)


def decoded_images(chunk: Chunk, *, channels: int, size: int | None) -> Iterator[npt.NDArray[np.uint8]]:
    """Pixels `[H, W, C]` of one row after the other; errors name the row."""
    for row in range(len(chunk.ids)):
        yield _decoded_row(chunk, row, channels=channels, size=size, shape=None).pixels


def decoded_chunk(
    chunk: Chunk, *, channels: int, size: int | None, shape: tuple[int, ...] | None
) -> npt.NDArray[np.uint8]:
    """Pixels `[n, H, W, C]` of rows that all have one shape, the given one if there is one; errors name the row."""
    return surveyed_chunk(chunk, channels=channels, size=size, shape=shape, survey=Survey())[0]


def surveyed_chunk(
    chunk: Chunk,
    *,
    channels: int,
    size: int | None,
    shape: tuple[int, ...] | None,
    survey: Survey,
    whole: bool = False,
) -> tuple[npt.NDArray[np.uint8], Chunk, list[npt.NDArray[np.uint8]]]:
    """What `decoded_chunk` gives, the rows of it that were not left out, and whole images if asked for."""
    pixels, kept, entire = [], [], []
    for row in range(len(chunk.ids)):
        try:
            image, stored, everything = _decoded_row(chunk, row, channels=channels, size=size, shape=shape, whole=whole)
        except UnreadableImageError as error:
            if not survey.skip:
                raise
            survey.unreadable.append(str(error))
            continue
        shape = image.shape
        pixels.append(image)
        kept.append(row)
        survey.sizes.append(stored)
        if whole:
            entire.append(everything)
    stacked = np.stack(pixels) if pixels else np.empty((0, *(shape or ())), np.uint8)
    return stacked, chunk.part(np.array(kept, int)), entire


def _decoded_row(
    chunk: Chunk,
    row: int,
    *,
    channels: int,
    size: int | None,
    shape: tuple[int, ...] | None,
    whole: bool = False,
) -> _Decoded:
    image_module = require("PIL.Image", extra="train", purpose="decoding images")
    unidentified = require("PIL", extra="train", purpose="decoding images").UnidentifiedImageError
    where, data = f"{chunk.files[row]}, row {chunk.ids[row]} of the split", chunk.images[row]
    if data is None:
        raise ValueError(
            f"{where}: there are no image bytes; store the bytes, not the path of a file (of a hub repository of "
            "image files: download it, and give its folder)"
        )
    try:
        if isinstance(data, OSError):
            raise data
        found = _decoded(data, channels=channels, size=size, whole=whole)
    except unidentified:  # whose words are an address in memory
        reason = f"its format is not known ({', '.join(FORMATS)} are); save it as PNG" if data else "it is empty"
        if isinstance(data, bytes) and data[4:11] in (b"ftyphei", b"ftypmif"):
            reason = "it is in HEIC, as phones write it; save it as JPEG"
        raise UnreadableImageError(f"{where}: not an image that can be read: {reason}") from None
    except (*_DECODING, image_module.DecompressionBombError) as error:
        raise UnreadableImageError(f"{where}: not an image that can be read: {error}") from None
    image = found.pixels
    if shape is not None and image.shape != shape:
        raise ValueError(
            f"{where}: the image has {image.shape[1]} x {image.shape[0]} pixels and the first one "
            f"{shape[1]} x {shape[0]}; give a size that all are resized and cropped to: --data.size of `counterpoise "
            "train`, --size of `counterpoise predict`"
        )
    return found


def _plain_webp_pixels(data: bytes) -> int:
    """Pixels of a WebP file of one picture, without the extended header that orientation or animation need; else 0."""
    if len(data) < 30 or data[:4] != b"RIFF" or data[8:12] != b"WEBP":
        return 0
    if data[12:16] == b"VP8 ":  # 14 bits each after the frame's tag and its start code
        return (int.from_bytes(data[26:28], "little") & 0x3FFF) * (int.from_bytes(data[28:30], "little") & 0x3FFF)
    if data[12:16] == b"VP8L":  # 14 bits each after the signature, one less than they are
        sides = int.from_bytes(data[21:25], "little")
        return ((sides & 0x3FFF) + 1) * ((sides >> 14 & 0x3FFF) + 1)
    return 0


def _decoded_webp(data: bytes) -> npt.NDArray[np.uint8]:
    # The same library as Pillow's behind it, in less than half the time, because no animation decoder is set up.
    io = require("torchvision.io", extra="train", purpose="decoding images")
    pixels = io.decode_webp(torch.frombuffer(bytearray(data), dtype=torch.uint8), mode=io.ImageReadMode.RGB)
    array: npt.NDArray[np.uint8] = pixels.permute(1, 2, 0).numpy()
    return array
