"""Regions of interest: the part of the frames to use, as a rectangle or as a mask."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ullayers.errors import Error

MIN_SIDE = 8  # pixels
MAX_ASPECT_ERROR = 0.01  # by which the aspect ratio of a mask may differ from that of the frames

Pixels = NDArray[np.uint8]
Box = tuple[float, float, float, float]  # left, top, width and height, as shares of the frame


class RegionError(Error):
    """A region cannot be used, or does not fit the frames."""


@dataclass(frozen=True)
class Rectangle:
    """A region of interest in pixels of the frame.

    Attributes:
        x: Left edge.
        y: Upper edge.
        width: Number of columns.
        height: Number of rows.

    Example:
        >>> Rectangle(16, 8, 32, 24).fit(height=48, width=64).box
        (0.25, 0.16666666666666666, 0.5, 0.5)
    """

    x: int
    y: int
    width: int
    height: int

    def __post_init__(self) -> None:
        if min(self.x, self.y) < 0 or min(self.width, self.height) < MIN_SIDE:
            raise RegionError(
                f"--roi {self}: expected X,Y,W,H with X and Y of at least 0, W and H of at least "
                f"{MIN_SIDE}"
            )

    def __str__(self) -> str:
        return f"{self.x},{self.y},{self.width},{self.height}"

    def fit(self, height: int, width: int) -> Cut:
        """Return the cut out of frames of this size.

        Raises:
            RegionError: The rectangle is not inside the frames.
        """
        if self.x + self.width > width or self.y + self.height > height:
            raise RegionError(
                f"--roi {self} does not fit into its frames of {width} x {height} pixels; give "
                "another --roi X,Y,W,H"
            )
        return Cut((height, width), self.x, self.y, self.width, self.height)


@dataclass(frozen=True)
class MaskRegion:
    """A region of interest of any shape, for frames of any size with the same aspect ratio.

    Attributes:
        height: Height of the mask.
        width: Width of the mask.
        bits: Rows of the mask, as `numpy.packbits` packs them.

    Example:
        >>> inside = np.zeros((24, 32), bool)
        >>> inside[4:20, 8:24] = True
        >>> cut = MaskRegion.from_array(inside).fit(height=48, width=64)
        >>> cut.left, cut.top, cut.width, cut.height
        (16, 8, 32, 32)
    """

    height: int
    width: int
    bits: bytes = field(repr=False)

    @classmethod
    def from_array(cls, inside: NDArray[np.bool_]) -> MaskRegion:
        """Return the region where a (height, width) array is true.

        Raises:
            RegionError: The region is empty or too small.
        """
        _, _, width, height = _bounds(inside)
        if min(width, height) < MIN_SIDE:
            raise RegionError(
                f"expected a mask with a white region of at least {MIN_SIDE} x {MIN_SIDE} pixels, "
                f"got {width} x {height}"
            )
        return cls(inside.shape[0], inside.shape[1], np.packbits(inside, 1).tobytes())

    def __str__(self) -> str:
        return f"a mask of {self.width} x {self.height} pixels"

    @property
    def inside(self) -> NDArray[np.bool_]:
        """(height, width) mask of the region."""
        rows = np.frombuffer(self.bits, np.uint8).reshape(self.height, -1)
        return np.unpackbits(rows, 1, count=self.width).astype(bool)

    def fit(self, height: int, width: int) -> Cut:
        """Return the cut out of frames of this size.

        Raises:
            RegionError: The frames have a different aspect ratio.
        """
        return _fit_mask(self, height, width)


Region = Rectangle | MaskRegion


@dataclass(frozen=True, eq=False)
class Cut:
    """A region in frames of one size: its bounding box and its mask in the box.

    Attributes:
        frame: (height, width) of the frames.
        left: Left edge of the box in pixels.
        top: Upper edge.
        width: Number of columns.
        height: Number of rows.
        inside: (height, width) of the box, 255 inside the region and 0 outside; None for all of it.
    """

    frame: tuple[int, int]
    left: int
    top: int
    width: int
    height: int
    inside: Pixels | None = None

    @property
    def box(self) -> Box:
        """The bounding box as shares of the frame."""
        height, width = self.frame
        return self.left / width, self.top / height, self.width / width, self.height / height

    def crop(self, pixels: Pixels) -> Pixels:
        """Crop a frame (height, width) or (height, width, channels) to the bounding box."""
        return pixels[self.top : self.top + self.height, self.left : self.left + self.width]

    def fill(self, pixels: Pixels) -> Pixels:
        """Set pixels outside the region to black, in a frame cropped to the box."""
        if self.inside is None:
            return pixels
        inside = self.inside if pixels.ndim == 2 else self.inside[:, :, None]
        filled: Pixels = pixels & inside
        return filled

    def resized(self, pixels: Pixels, size: tuple[int, int]) -> Pixels:
        """Crop a frame, fill pixels outside the region, and resize it to (height, width)."""
        return resize(self.fill(self.crop(pixels)), size)

    def inside_at(self, size: tuple[int, ...]) -> Pixels:
        """Return `inside` for boxes that are resized to (height, width)."""
        if self.inside is None:
            return np.full(size, 255, np.uint8)
        return _levels(resize(self.inside, (size[0], size[1])) >= 128)

    def place(self, positions: NDArray[np.float64]) -> NDArray[np.float64]:
        """Convert positions (n, 2) from 0..1 of the box to 0..1 of the frame."""
        left, top, width, height = self.box
        return positions * (width, height) + (left, top)

    def whole(self) -> Pixels:
        """Return (height, width) of the frame, 255 inside the region and 0 outside."""
        picture = np.zeros(self.frame, np.uint8)
        self.crop(picture)[:] = 255 if self.inside is None else self.inside
        return picture


def resize(pixels: Pixels, size: tuple[int, int]) -> Pixels:
    """Resize a picture to (height, width); every pixel is the mean over its area."""
    if pixels.shape[:2] == size:
        return pixels
    picture: Any = Image.fromarray(np.ascontiguousarray(pixels))
    return np.array(picture.resize(size[::-1], Image.Resampling.BOX))


@lru_cache(maxsize=4)
def _fit_mask(region: MaskRegion, height: int, width: int) -> Cut:
    error = abs(region.width * height / (region.height * width) - 1)
    if error > MAX_ASPECT_ERROR:
        raise RegionError(
            f"--roi has {region.width} x {region.height} pixels and its frames {width} x {height}; "
            "give a mask of the same aspect ratio"
        )
    inside = resize(_levels(region.inside), (height, width)) >= 128
    box = _bounds(inside)
    if min(box[2:]) < MIN_SIDE:
        raise RegionError(f"--roi is smaller than {MIN_SIDE} pixels in its frames; make it larger")
    cut = Cut((height, width), *box)
    part = cut.crop(_levels(inside))
    return cut if part.all() else replace(cut, inside=part.copy())


def _levels(inside: NDArray[np.bool_]) -> Pixels:
    return np.where(inside, np.uint8(255), np.uint8(0))


def _bounds(inside: NDArray[np.bool_]) -> tuple[int, int, int, int]:
    """Return left, top, width and height of the part of an array that is true."""
    rows = np.flatnonzero(inside.any(1))
    columns = np.flatnonzero(inside.any(0))
    if not len(rows):
        return 0, 0, 0, 0
    left, top = int(columns[0]), int(rows[0])
    return left, top, int(columns[-1]) + 1 - left, int(rows[-1]) + 1 - top


def to_pixels(box: Box | None, width: int, height: int) -> tuple[int, int, int, int]:
    """Return left, top, width and height of a part of a picture in pixels.

    >>> to_pixels((0.25, 0.5, 0.5, 0.5), 64, 48), to_pixels(None, 64, 48)
    ((16, 24, 32, 24), (0, 0, 64, 48))
    """
    if box is None:
        return 0, 0, width, height
    left = min(round(box[0] * width), width - 1)
    top = min(round(box[1] * height), height - 1)
    right = max(left + 1, round((box[0] + box[2]) * width))
    bottom = max(top + 1, round((box[1] + box[3]) * height))
    return left, top, right - left, bottom - top
