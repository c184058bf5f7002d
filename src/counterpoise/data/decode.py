"""One encoded image in, one uint8 array out; the same for sets in memory and for streams."""

from io import BytesIO

import numpy as np
import numpy.typing as npt
import torch

from counterpoise._extras import require
from counterpoise.data.rows import Chunk

_MODES = {1: "L", 3: "RGB"}


def decoded(data: bytes, *, channels: int, size: int | None) -> npt.NDArray[np.uint8]:
    """Pixels `[H, W, C]` of one encoded image, converted to grey (C = 1) or RGB (C = 3).

    `size` resizes the shorter side to it and crops the centre, with anti-aliasing.
    """
    if size is None and channels == 3 and _is_plain_webp(data):
        return _decoded_webp(data)
    image_module = require("PIL.Image", extra="train", purpose="decoding images")
    operations = require("PIL.ImageOps", extra="train", purpose="decoding images")
    with image_module.open(BytesIO(data)) as opened:
        upright = operations.exif_transpose(opened)
        if upright.mode in ("I", "F"):
            raise ValueError(f"its pixels are of Pillow's mode {upright.mode}, of no known range; store 8 or 16 bits")
        if upright.mode.startswith("I;16"):  # which Pillow would cut off at 255
            upright = image_module.fromarray((np.asarray(upright) >> 8).astype(np.uint8))
        image = upright.convert(_MODES[channels])
    if size is not None and image.size != (size, size):
        image = operations.fit(image, (size, size), method=image_module.Resampling.BILINEAR)
    pixels: npt.NDArray[np.uint8] = np.asarray(image)
    return pixels.reshape(*pixels.shape[:2], channels)


def decoded_chunk(
    chunk: Chunk, *, channels: int, size: int | None, shape: tuple[int, ...] | None
) -> npt.NDArray[np.uint8]:
    """Pixels `[n, H, W, C]` of rows that all have one shape, the given one if there is one; errors name the row."""
    image_module = require("PIL.Image", extra="train", purpose="decoding images")
    unidentified = require("PIL", extra="train", purpose="decoding images").UnidentifiedImageError
    pixels = []
    for file, row, data in zip(chunk.files, chunk.ids, chunk.images, strict=True):
        where = f"{file}, row {row} of the split"
        if data is None:
            raise ValueError(
                f"{where}: there are no image bytes; store the bytes, not the path of a file (of a hub repository of "
                "image files: download it, and give its folder)"
            )
        try:
            image = decoded(data, channels=channels, size=size)
        except unidentified:  # whose words are an address in memory
            raise ValueError(f"{where}: not an image that can be read: its format is not known") from None
        except (OSError, RuntimeError, SyntaxError, ValueError, image_module.DecompressionBombError) as error:
            raise ValueError(f"{where}: not an image that can be read: {error}") from None
        shape = shape or image.shape
        if image.shape != shape:
            raise ValueError(
                f"{where}: the image has {image.shape[0]} x {image.shape[1]} pixels and the first one "
                f"{shape[0]} x {shape[1]}; give a size that all are resized and cropped to"
            )
        pixels.append(image)
    return np.stack(pixels)


def _is_plain_webp(data: bytes) -> bool:
    """A WebP file of one picture, without the extended header that orientation or animation need."""
    return data[:4] == b"RIFF" and data[8:12] == b"WEBP" and data[12:16] in (b"VP8 ", b"VP8L")


def _decoded_webp(data: bytes) -> npt.NDArray[np.uint8]:
    # The same library as Pillow's behind it, in less than half the time, because no animation decoder is set up.
    io = require("torchvision.io", extra="train", purpose="decoding images")
    pixels = io.decode_webp(torch.frombuffer(bytearray(data), dtype=torch.uint8), mode=io.ImageReadMode.RGB)
    array: npt.NDArray[np.uint8] = pixels.permute(1, 2, 0).numpy()
    return array
