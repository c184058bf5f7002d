"""One encoded image in, one uint8 array out; the same for sets in memory and for streams."""

import struct
from collections.abc import Iterator
from io import BytesIO

import numpy as np
import numpy.typing as npt
import torch

from counterpoise._extras import require
from counterpoise.data.rows import Chunk

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

_DECODING = (OSError, RuntimeError, SyntaxError, ValueError, TypeError, AttributeError, LookupError, struct.error)
"""What damaged files have made Pillow raise."""


def decoded(data: bytes, *, channels: int, size: int | None) -> npt.NDArray[np.uint8]:
    """Pixels `[H, W, C]` of one encoded image, converted to grey (C = 1) or RGB (C = 3).

    `size` resizes the shorter side to it and crops the centre, with anti-aliasing.
    """
    image_module = require("PIL.Image", extra="train", purpose="decoding images")
    if size is None and channels == 3 and 0 < _plain_webp_pixels(data) <= (image_module.MAX_IMAGE_PIXELS or np.inf):
        return _decoded_webp(data)
    operations = require("PIL.ImageOps", extra="train", purpose="decoding images")
    with image_module.open(BytesIO(data)) as opened:
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
        image = upright.convert(_MODES[channels])
    if size is not None and image.size != (size, size):
        image = operations.fit(image, (size, size), method=image_module.Resampling.BILINEAR)
    pixels: npt.NDArray[np.uint8] = np.asarray(image)
    return pixels.reshape(*pixels.shape[:2], channels)


def decoded_images(chunk: Chunk, *, channels: int, size: int | None) -> Iterator[npt.NDArray[np.uint8]]:
    """Pixels `[H, W, C]` of one row after the other; errors name the row."""
    image_module = require("PIL.Image", extra="train", purpose="decoding images")
    unidentified = require("PIL", extra="train", purpose="decoding images").UnidentifiedImageError
    for row, data in enumerate(chunk.images):
        if data is None:
            raise ValueError(
                f"{_place(chunk, row)}: there are no image bytes; store the bytes, not the path of a file (of a hub "
                "repository of image files: download it, and give its folder)"
            )
        try:
            image = decoded(data, channels=channels, size=size)
        except unidentified:  # whose words are an address in memory
            raise ValueError(f"{_place(chunk, row)}: not an image that can be read: its format is not known") from None
        except (*_DECODING, image_module.DecompressionBombError) as error:
            raise ValueError(f"{_place(chunk, row)}: not an image that can be read: {error}") from None
        yield image


def decoded_chunk(
    chunk: Chunk, *, channels: int, size: int | None, shape: tuple[int, ...] | None
) -> npt.NDArray[np.uint8]:
    """Pixels `[n, H, W, C]` of rows that all have one shape, the given one if there is one; errors name the row."""
    images = []
    for row, image in enumerate(decoded_images(chunk, channels=channels, size=size)):
        shape = shape or image.shape
        if image.shape != shape:
            raise ValueError(
                f"{_place(chunk, row)}: the image has {image.shape[0]} x {image.shape[1]} pixels and the first one "
                f"{shape[0]} x {shape[1]}; give a size that all are resized and cropped to"
            )
        images.append(image)
    return np.stack(images)


def _place(chunk: Chunk, row: int) -> str:
    return f"{chunk.files[row]}, row {chunk.ids[row]} of the split"


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
