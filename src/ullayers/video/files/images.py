"""Folders of images, read with Pillow as the frames of one sequence."""

from __future__ import annotations

import ctypes
import glob
import logging
import math
import os
import re
import threading
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import TypeVar

import numpy as np
import torch
from PIL import Image, ImageOps, _imaging
from torch import Tensor

from ullayers.video.clips import (
    DEFAULT_FPS,
    IMAGE_SUFFIXES,
    Info,
    Reading,
    TimedFrame,
    VideoError,
    check_pixels,
    check_regular,
    list_folder,
    natural_key,
    suffix_of,
    too_large,
)
from ullayers.video.region import MaskRegion, RegionError

# A suffix says little about the content, and Pillow would run Ghostscript for EPS.
FORMATS = ("BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
ORIENTATION = 0x0112  # EXIF tag; values of 5 and above swap width and height
T = TypeVar("T")


def list_images(place: str) -> list[str]:
    """Return the image files of a folder or pattern in natural order."""
    if os.path.isdir(place):
        files = list_folder(place)
    else:
        files = sorted(glob.glob(place), key=natural_key)
    files = [file for file in files if suffix_of(file) in IMAGE_SUFFIXES]
    if not files:
        raise VideoError(f"{place}: contains no images")
    return files


def probe_images(place: str) -> Info:
    """Read the header of the first image that can be read."""
    files = list_images(place)
    errors = []
    for file in files:
        try:
            with _open_image(file) as image:
                width, height = _upright_size(file, image)
                return Info(width, height, DEFAULT_FPS, len(files))
        except VideoError as error:
            errors.append(error)
    raise errors[0]


def read_images(
    place: str, reading: Reading, stop: threading.Event
) -> Generator[TimedFrame, None, None]:
    """Yield the images of a folder or pattern as frames at `DEFAULT_FPS`.

    Images that cannot be read are left out.

    Raises:
        VideoError: If an image differs in size from the first, or, at the end, if some images
            could not be read.
    """
    files = list_images(place)
    first: tuple[str, tuple[int, int]] | None = None
    errors: list[VideoError] = []
    for index in _in_range(place, files, reading)[:: reading.stride][: reading.max_frames]:
        if stop.is_set():
            return
        file = files[index]
        try:
            with _open_image(file) as image:
                size = _upright_size(file, image)
                first = first or (file, size)
                may_differ = reading.size is not None and reading.mixed and reading.roi is None
                is_readable_size = size == first[1] or may_differ
                frame = _read_image(file, image, reading, size) if is_readable_size else None
        except VideoError as error:
            errors.append(error)
            continue
        if frame is None:
            raise _size_error(file, size, *first, has_roi=reading.roi is not None)
        if reading.tap is not None:
            reading.tap(partial(render_image, file))
        yield frame, index / DEFAULT_FPS, index
    if errors:
        more = f" ({len(errors)} of {len(files)} images are bad)" if len(errors) > 1 else ""
        raise VideoError(f"{errors[0]}{more}")


def read_mask(file: str) -> MaskRegion:
    """Read a mask image, white inside the region of interest and black outside.

    Raises:
        VideoError: The file is not an image, or has no white region.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Image.new("L", (32, 24), "white").save(f"{folder}/arena.png")
        ...     read_mask(f"{folder}/arena.png")
        MaskRegion(height=24, width=32)
    """
    if not os.path.isfile(file):
        raise VideoError(f"--roi {file}: is neither X,Y,W,H, such as 100,50,640,480, nor a file")
    with _open_image(file) as image:
        size = _upright_size(file, image)
        pixels = _read_image(file, image, Reading(grey=True), size)
    try:
        return MaskRegion.from_array(pixels[0].numpy() >= 128)
    except RegionError as error:
        raise VideoError(f"{file}: {error}") from error


def _in_range(place: str, files: list[str], reading: Reading) -> list[int]:
    """Return the numbers of the images in the time range of a reading."""
    end = math.inf if reading.end is None else reading.end
    numbers = [i for i in range(len(files)) if reading.start <= i / DEFAULT_FPS < end]
    if not numbers:
        raise reading.no_frames(place, (len(files) - 1) / DEFAULT_FPS)
    return [number for number in numbers if number >= reading.first]


def render_image(file: str, size: tuple[int, int]) -> Tensor:
    """Read an image again at another size, as JPEG decodes directly to a size."""
    with _open_image(file) as image:
        return _read_image(file, image, Reading(size=size), _upright_size(file, image))


def _size_error(
    file: str, size: tuple[int, int], first: str, first_size: tuple[int, int], *, has_roi: bool
) -> VideoError:
    other = "leave out --roi" if has_roi else "give a size as height x width, such as --size 48x64"
    return VideoError(
        f"{file}: {size[0]} x {size[1]} pixels, but {first} has {first_size[0]} x {first_size[1]}; "
        f"make them the same size, or {other}"
    )


@contextmanager
def _open_image(file: str) -> Iterator[Image.Image]:
    """Open an image and check, from its header alone, that it can be used."""
    _silence_pillow()
    check_regular(file)
    with _call_pillow(file, lambda: Image.open(file, formats=FORMATS)) as image:
        check_pixels(file, *image.size)
        if image.format in ("TIFF", "WEBP"):
            pages = _call_pillow(file, lambda: getattr(image, "n_frames", 1))
            if pages > 1:
                raise VideoError(f"{file}: has several pages; save each page as a separate image")
        if image.mode == "F":
            raise VideoError(f"{file}: has floating point pixels; save it with 8 or 16 bits")
        yield image


def _call_pillow(file: str, call: Callable[[], T]) -> T:
    """Call Pillow; damaged files make it raise exceptions of many types."""
    try:
        return call()
    except Image.DecompressionBombError as error:  # far above our limit
        pixels = re.search(r"\d+ pixels", str(error))
        raise too_large(file, pixels[0] if pixels else "too many pixels") from error
    except Exception as error:
        raise VideoError(f"{file}: cannot be read as an image; replace or remove it") from error


@cache
def _silence_pillow() -> None:
    """Suppress warnings of Pillow and libtiff about files that we report ourselves."""
    # At the end of the list of filters and without a level: settings of the user still apply.
    warnings.filterwarnings("ignore", module=r"PIL\.", append=True)
    logging.getLogger("PIL").addHandler(logging.NullHandler())
    # libtiff prints to stderr itself. Pillow has no setting for this, and on some systems its
    # libtiff cannot be reached.
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(_imaging.__file__)
        library.TIFFSetErrorHandler(None)
        library.TIFFSetWarningHandler(None)


def _upright_size(file: str, image: Image.Image) -> tuple[int, int]:
    """Return (width, height) after undoing the orientation of the camera."""
    orientation = _call_pillow(file, lambda: image.getexif().get(ORIENTATION, 1))
    if isinstance(orientation, int) and orientation >= 5:
        return image.height, image.width
    return image.size


def _read_image(file: str, image: Image.Image, reading: Reading, size: tuple[int, int]) -> Tensor:
    cut = reading.cut(file, size[1], size[0])
    height, width = reading.target(size[1], size[0])
    if size == image.size and cut is None:
        # JPEG decodes at a reduced size.
        _call_pillow(file, lambda: image.draft(None, (width, height)))
    upright = _call_pillow(file, lambda: ImageOps.exif_transpose(image))
    converted = _call_pillow(file, lambda: _to_eight_bits(upright, "L" if reading.grey else "RGB"))
    if cut is not None:
        pixels = torch.from_numpy(cut.resized(np.array(converted), (height, width)))
    else:
        if converted.size != (width, height):
            converted = converted.resize((width, height), Image.Resampling.BOX)
        pixels = torch.from_numpy(np.array(converted))
    return pixels[None] if reading.grey else pixels.permute(2, 0, 1)


def _to_eight_bits(image: Image.Image, mode: str) -> Image.Image:
    if image.mode.startswith("I"):
        pixels = np.asarray(image).astype(np.float32) / 257
        return Image.fromarray(pixels.round().clip(0, 255).astype(np.uint8)).convert(mode)
    if image.has_transparency_data:
        opaque = Image.new("RGB", image.size)
        transparent = image.convert("RGBA")
        opaque.paste(transparent, mask=transparent.getchannel("A"))
        image = opaque
    return image.convert(mode)
