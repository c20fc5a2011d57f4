"""Images of a report, encoded as data URIs: photographs, kernels and responses."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.colors import Colormap, LinearSegmentedColormap
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.uint8]
Floats = NDArray[np.floating[Any]]
MAX_CHANNELS = 16  # channels of a layer shown
MAX_ASPECT = 4  # height of a photograph, divided by its largest width
MAX_BYTES = 64_000  # of one image, which keeps a report below 3 MB
KERNEL_COLUMNS, MAP_COLUMNS = 8, 4  # tiles in a row
RESPONSES = matplotlib.colormaps["magma"]
DIVERGING = LinearSegmentedColormap.from_list(  # zero is grey, visible on a white page
    "diverging", ["#17518f", "#5f9fd0", "#e3e3e5", "#e8876d", "#a51f2d"]
)


@dataclass(frozen=True)
class Picture:
    """An image that a page can embed.

    Attributes:
        uri: The image as a data URI.
        max_width: Largest width on the page, in CSS pixels; None for the width of its column.
    """

    uri: str
    max_width: int | None = None


@dataclass(frozen=True)
class KernelSheet:
    """The kernels of a layer.

    Attributes:
        picture: All kernels in one image.
        limit: Largest absolute weight, the end of the colour scale.
        colours: CSS colours from -limit to limit.
    """

    picture: Picture
    limit: float
    colours: tuple[str, ...]


def photograph(pixels: Pixels) -> Picture:
    """Encode an image as PNG or JPEG, whichever is smaller, and shrink it if it is too large.

    Args:
        pixels: (height, width, 3) uint8.

    Example:
        >>> photograph(np.zeros((48, 64, 3), np.uint8)).uri[:22]
        'data:image/png;base64,'
    """
    image = Image.fromarray(pixels)
    for scale in (1.0, 0.75, 0.5, 0.3):
        size = max(1, round(scale * image.width)), max(1, round(scale * image.height))
        resized = image.resize(size)
        encoded = [(kind, _encode(resized, kind)) for kind in ("png", "jpeg")]
        kind, data = min(encoded, key=lambda entry: len(entry[1]))
        if len(data) <= MAX_BYTES:
            break
    return Picture(_data_uri(kind, data))


def fit_width(picture: Pixels, width: int = 480) -> Pixels:
    """Convert a picture to RGB, about `width` pixels wide and at most four times as high.

    Small pictures are enlarged by an integer factor, so that their pixels remain square.

    >>> fit_width(np.zeros((36, 64), np.uint8)).shape
    (252, 448, 3)
    """
    grey = picture.ndim == 2 or picture.shape[2] == 1
    colour = np.repeat(picture.reshape(*picture.shape[:2], 1), 3, 2) if grey else picture
    image = Image.fromarray(np.ascontiguousarray(colour))
    scale = min(width / image.width, MAX_ASPECT * width / image.height)
    if scale < 1:
        size = max(1, round(scale * image.width)), max(1, round(scale * image.height))
        return np.array(image.resize(size))
    factor = int(scale)
    size = factor * image.width, factor * image.height
    return np.array(image.resize(size, Image.Resampling.NEAREST))


def kernel_sheet(kernels: Floats) -> KernelSheet:
    """Draw the kernels of a layer on one colour scale, the longer channel axis across.

    Args:
        kernels: (outputs, inputs, height, width).

    Example:
        >>> kernel_sheet(np.eye(3)[None, None]).limit
        1.0
    """
    tiles = np.nan_to_num(kernels[:MAX_CHANNELS, :MAX_CHANNELS])
    limit = float(np.abs(tiles).max(initial=0)) or 1.0
    tiles = ((tiles / limit + 1) / 2).repeat(4, 2).repeat(4, 3)  # a gap is half a weight wide
    if 1 in tiles.shape[:2]:
        tiles = _in_rows(tiles.reshape(-1, *tiles.shape[2:]), KERNEL_COLUMNS)
    elif len(tiles) > tiles.shape[1]:
        tiles = tiles.swapaxes(0, 1)
    picture = _colour_mapped(_mosaic(tiles, 2), DIVERGING, 56 * tiles.shape[1])
    stops = (np.asarray(DIVERGING(np.linspace(0, 1, 5)))[:, :3] * 255).round().astype(int)
    return KernelSheet(picture, limit, tuple(f"rgb({r},{g},{b})" for r, g, b in stops))


def map_sheet(maps: Floats) -> Picture:
    """Draw the responses of a layer, each stretched to its own range.

    Args:
        maps: (channels, height, width).

    Example:
        >>> map_sheet(np.ones((5, 4, 4))).max_width
        640
    """
    columns = min(MAP_COLUMNS, len(maps))
    levels = [_stretch(response, 400 // columns) for response in maps[:MAX_CHANNELS]]
    tiles = _in_rows(np.stack(levels), columns)
    gap = max(1, tiles.shape[3] // 24)
    return _colour_mapped(_mosaic(tiles, gap), RESPONSES, 160 * columns)


def _in_rows(tiles: Floats, columns: int) -> Floats:
    """Arrange tiles (n, height, width) in rows; the last row is filled up with NaN."""
    columns = min(columns, len(tiles))
    tiles = np.pad(tiles, [(0, -len(tiles) % columns), (0, 0), (0, 0)], constant_values=np.nan)
    return tiles.reshape(-1, columns, *tiles.shape[1:])


def _stretch(response: Floats, max_width: int) -> Floats:
    """Return a response in 0..1, no wider than `max_width`."""
    image = Image.fromarray(np.nan_to_num(response).astype(np.float32))
    if image.width > max_width:
        height = max(1, round(max_width * image.height / image.width))
        image = image.resize((max_width, height), Image.Resampling.BOX)
    values: Floats = np.asarray(image)
    rows, columns = values.shape[0] // 10, values.shape[1] // 10  # borders are often outliers
    inner = values[rows : len(values) - rows, columns : values.shape[1] - columns]
    low, high = np.percentile(inner, [0.5, 99.5])
    stretched: Floats = np.clip((values - low) / (high - low or 1), 0, 1)
    return stretched


def _mosaic(tiles: Floats, gap: int) -> Floats:
    """Join tiles (rows, columns, height, width) to one sheet with NaN between them."""
    spaced = np.pad(tiles, [(0, 0), (0, 0), (0, gap), (0, gap)], constant_values=np.nan)
    rows, _, height, _ = spaced.shape
    return spaced.transpose(0, 2, 1, 3).reshape(rows * height, -1)[:-gap, :-gap]


def _colour_mapped(levels: Floats, colours: Colormap, max_width: int) -> Picture:
    """Encode levels in 0..1 as a PNG with a palette; NaN is transparent."""
    index = np.where(np.isnan(levels), 255, np.nan_to_num(254 * levels).round()).astype(np.uint8)
    image = Image.fromarray(index)
    palette = np.asarray(colours(np.linspace(0, 1, 255)))[:, :3]
    image.putpalette((255 * palette).round().astype(np.uint8).tobytes() + b"\0\0\0")
    file = io.BytesIO()
    image.save(file, "png", optimize=True, transparency=255)
    return Picture(_data_uri("png", file.getvalue()), max_width)


def _encode(image: Image.Image, kind: str) -> bytes:
    file = io.BytesIO()
    # Level 4 takes a third of the time of the default level, for files about 5 % larger.
    png: dict[str, Any] = {"compress_level": 4}
    options = {"quality": 85, "subsampling": 0} if kind == "jpeg" else png
    image.save(file, kind, **options)
    return file.getvalue()


def _data_uri(kind: str, data: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
