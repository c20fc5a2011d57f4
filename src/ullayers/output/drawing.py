"""Drawing primitives of the overlay: masks, dots, fading trails and a panel of codes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from ullayers.learn.results import SURE
from ullayers.video.region import Box, Cut, resize

Pixels = NDArray[np.uint8]
Floats = NDArray[np.floating[Any]]
Alpha = NDArray[np.float32]
Colour = tuple[int, int, int]
Window = tuple[slice, slice]  # rows and columns of a picture

NOWHERE: Window = (slice(0, 0), slice(0, 0))

TRAIL_FRAMES = 40  # frames after which a position has faded
MASK_COLOUR = (0, 232, 204)  # rare in videos, and far from the colour of the dot
DOT_COLOUR = (255, 172, 28)
PANEL_COLOUR, AXIS_COLOUR = (18, 21, 26), (52, 57, 66)
CODE_COLOUR, TEXT_COLOUR = (150, 156, 166), (120, 126, 136)
MASK_OPACITY = 0.26
MASK_THRESHOLD = 0.2  # level below which a mask is invisible
FLAT_SLOPE = 0.004  # change of the level per pixel below which no outline is drawn


def line_radius(height: int, width: int) -> float:
    """Return half the width of a line in pixels, in proportion to the picture."""
    return max(1.0, min(height, width) / 180)


def dot_radius(height: int, width: int) -> float:
    """Return the radius of a dot in pixels, in proportion to the picture."""
    return max(2.25, min(height, width) / 60)


class MaskPainter:
    """Paints masks of one size onto pictures of another.

    Args:
        mask_size: (height, width) of the masks.
        size: (height, width) of the pictures.
        box: Part of the pictures that the masks cover; None for all of it.
    """

    def __init__(
        self, mask_size: tuple[int, ...], size: tuple[int, int], box: Box | None = None
    ) -> None:
        left, top, width, height = to_pixels(box, size[1], size[0])
        self.part = slice(top, top + height), slice(left, left + width)
        self.radius = max(0.75, line_radius(*size) / 2)
        size = height, width
        self.rows = _resize_matrix(mask_size[0], size[0])
        self.columns = _resize_matrix(mask_size[1], size[1])
        self.colour = _filled(*size, MASK_COLOUR)

    def paint(self, canvas: Tensor, mask: Pixels) -> None:
        """Tint the inside of the mask and draw its outline, in place.

        Args:
            canvas: (height, width, 3) float.
            mask: uint8, 255 where the object is.
        """
        found = self._visible(mask)
        if found is None:
            return
        box, (rows, columns) = found
        canvas = canvas[self.part]
        levels = torch.from_numpy(mask[box]).float() / 255
        level = self.rows[rows, box[0]] @ levels @ self.columns[columns, box[1]].T
        _blend(canvas[rows, columns], self.colour[rows, columns], self._alpha(level))

    def reach(self, mask: Pixels) -> Window:
        """Return the window of the picture that `paint` changes."""
        found = self._visible(mask)
        if found is None:
            return NOWHERE
        down, across = (
            slice(part.start + own.start, part.start + own.stop)
            for part, own in zip(self.part, found[1], strict=True)
        )
        return down, across

    def _visible(self, mask: Pixels) -> tuple[Window, Window] | None:
        """Return the box of a mask, and the part of the canvas on which it is visible."""
        left, top, width, height = cv2.boundingRect(mask)
        box = slice(top, top + height), slice(left, left + width)
        clear = mask[box] > 255 * MASK_THRESHOLD / 2
        column, row, wide, high = cv2.boundingRect(clear.view(np.uint8))
        if not wide:
            return None
        rows = _window(top + row, top + row + high - 1, len(mask), self.colour.shape[0])
        across = left + column
        columns = _window(across, across + wide - 1, mask.shape[1], self.colour.shape[1])
        return box, (rows, columns)

    def _alpha(self, level: Tensor) -> Tensor:
        down, right = torch.gradient(level)
        slope = (down.square_() + right.square_()).sqrt_()
        distance = (level - 0.5).abs_().div_(slope.clamp(min=FLAT_SLOPE))  # to the outline
        outline = (self.radius + 0.5 - distance).clamp_(0, 1)
        outline.mul_(slope.div_(FLAT_SLOPE).clamp_(max=1))  # a constant level has no edge
        fill = level.sub_(MASK_THRESHOLD).mul_(MASK_OPACITY / 0.4).clamp_(0, MASK_OPACITY)
        return fill + outline.mul_(1 - fill)


class Outline:
    """The outline of a region of interest: a thin white line with a dark outer edge.

    Args:
        cut: The region in the frames of a video.
        size: (height, width) of the pictures to paint on.

    Example:
        >>> from ullayers.video.region import Rectangle
        >>> frames = torch.full((1, 3, 24, 32), 100, dtype=torch.uint8)
        >>> Outline(Rectangle(16, 8, 32, 24).fit(height=48, width=64), (24, 32)).paint(frames)
        >>> frames[0, 0, 4, 6:12].tolist()
        [100, 50, 255, 255, 255, 255]
    """

    def __init__(self, cut: Cut, size: tuple[int, int]) -> None:
        inside = torch.from_numpy(resize(cut.whole(), size) >= 128).float()
        # The area beyond the edges of the picture is outside, so that the line is closed.
        outside = F.pad(1 - inside, (1, 1, 1, 1), value=1.0)[None]
        line = inside * F.max_pool2d(outside, 3, 1)[0]
        edges = F.max_pool2d(line[None], 3, 1, 1)[0] * (1 - inside)
        self.line, self.edges = line.bool(), edges.bool()

    def paint(self, frames: Tensor) -> None:
        """Paint the outline onto uint8 frames (time, 3, height, width), in place."""
        frames[:, :, self.edges] //= 2
        frames[:, :, self.line] = 255


class Trail:
    """The fading trail of a moving point.

    Args:
        height: Height of the pictures.
        width: Width of the pictures.
    """

    def __init__(self, height: int, width: int) -> None:
        self.alpha: Alpha = np.zeros((height, width), np.float32)
        self.radius = 0.8 * line_radius(height, width)
        self.last = np.full(2, np.nan)
        self.colour = _filled(height, width, DOT_COLOUR)
        self._recent: deque[Window] = deque(maxlen=TRAIL_FRAMES + 2)  # no older one is visible

    def follow(self, positions: Floats, opacities: Floats) -> None:
        """Move along several positions."""
        for position, opacity in zip(positions, opacities, strict=True):
            self.move(position, opacity)

    def move(self, position: Floats, opacity: float) -> None:
        """Move to a position in pixels; positions with low confidence interrupt the line."""
        if opacity < SURE:
            position = np.full(2, np.nan)
        part = self.reach()
        fading = self.alpha[part]
        fading -= np.float32(1 / TRAIL_FRAMES)
        np.maximum(fading, 0, out=fading)
        self._recent.append(NOWHERE)
        if np.isfinite([self.last, position]).all():
            reach = self.radius + 1
            window, distance = _distance(self.alpha.shape, self.last, position, reach)
            fresh = opacity * (self.radius + 0.5 - distance).clip(0, 1)
            np.maximum(self.alpha[window], fresh, out=self.alpha[window])
            self._recent[-1] = window
        self.last = position

    def reach(self) -> Window:
        """Return the window of the picture that the line is in."""
        return around(self._recent)

    def paint(self, canvas: Tensor) -> None:
        """Paint the line onto a (height, width, 3) float picture, in place."""
        part = self.reach()
        _blend(canvas[part], self.colour[part], torch.from_numpy(self.alpha)[part])


def paint_dot(canvas: Tensor, position: Floats, opacity: float) -> None:
    """Paint a dot in a white ring; a dark edge keeps the ring visible on white."""
    if dot_reach(canvas.shape, position, opacity) == NOWHERE:
        return
    pixels = canvas.numpy()
    radius = dot_radius(*pixels.shape[:2])
    window, distance = _distance(pixels.shape, position, position, 2 * radius)
    part = pixels[window]
    from_ring = np.abs(distance - 1.35 * radius)
    for colour, strength, inside in (
        ((0, 0, 0), 0.45, 0.45 * radius - from_ring),
        ((255, 255, 255), 1.0, 0.2 * radius - from_ring),
        (DOT_COLOUR, 1.0, 0.75 * radius - distance),
    ):
        alpha = (opacity * strength * (inside + 0.5).clip(0, 1))[:, :, None]
        part += alpha * (np.array(colour, np.float32) - part)


def dot_reach(shape: Sequence[int], position: Floats, opacity: float) -> Window:
    """Return the window of a picture that `paint_dot` changes."""
    if not np.isfinite(position).all() or opacity <= 0:
        return NOWHERE
    return _near(shape, position, position, 2 * dot_radius(*shape[:2]))


def paint_box(canvas: Tensor, box: Floats) -> None:
    """Outline a box; a dark edge keeps the line visible on any background.

    Args:
        canvas: (height, width, 3) float picture, changed in place.
        box: Left, top, right and bottom in 0..1; it may extend beyond the picture.
    """
    if not np.isfinite(box).all():
        return
    height, width = canvas.shape[:2]
    radius = line_radius(height, width)
    low, high = (box.reshape(2, 2) * (width, height) - 0.5).clip(-1e6, 1e6)
    x = torch.arange(width)
    y = torch.arange(height)[:, None]
    # The largest distance to a side is the distance to the outline, negative inside.
    outside = torch.maximum(
        torch.maximum(low[0] - x, x - high[0]), torch.maximum(low[1] - y, y - high[1])
    )
    distance = outside.abs().float()
    for colour, strength, reach in (((0, 0, 0), 0.45, 2 * radius), (MASK_COLOUR, 1.0, radius)):
        alpha = strength * (reach + 0.5 - distance).clamp(0, 1)
        _blend(canvas, _filled(height, width, colour), alpha)


@dataclass(frozen=True)
class CodeAxes:
    """Maps two values of a code to pixels of a square panel, the second value upwards.

    Attributes:
        centre: Values in the middle of the panel.
        reach: Values between the middle and the edge.
        side: Height and width of the panel in pixels.
        names: Names of the axes.
    """

    centre: Floats
    reach: Floats
    side: int
    names: tuple[str, str]

    @classmethod
    def around(cls, cloud: Floats, side: int, single: bool) -> CodeAxes:
        """Return axes that contain the cloud, with equal scales unless the code is single."""
        finite = cloud[np.isfinite(cloud).all(1)]
        if not len(finite):
            finite = np.zeros((1, 2))
        low, high = finite.min(0), finite.max(0)
        reach = (high - low) / 2 if single else np.full(2, (high - low).max() / 2)
        names = ("frame", "y0") if single else ("y0", "y1")
        return cls((low + high) / 2, np.where(reach > 0, reach, 1.0), side, names)

    def __call__(self, points: Floats) -> Floats:
        """Return the pixels of points (n, 2)."""
        inside = ((points - self.centre) / self.reach).clip(-1.1, 1.1)
        return (self.side - 1) / 2 * (1 + 0.84 * inside * (1, -1))

    def panel(self, cloud: Floats) -> Tensor:
        """Draw the axes and all codes in grey, denser where there are many."""
        picture = Image.new("RGB", (self.side, self.side), PANEL_COLOUR)
        self._draw_axes(ImageDraw.Draw(picture))
        points = self(cloud[np.isfinite(cloud).all(1)]).round().astype(int)
        count = np.zeros((self.side, self.side), np.float32)
        np.add.at(count, (points[:, 1], points[:, 0]), 1)
        alpha = _density(torch.from_numpy(count), line_radius(self.side, self.side))
        canvas = torch.from_numpy(np.array(picture)).float()
        _blend(canvas, _filled(self.side, self.side, CODE_COLOUR), alpha)
        return canvas

    def _draw_axes(self, draw: ImageDraw.ImageDraw) -> None:
        near = 0.03 * self.side
        far = self.side - near
        font = ImageFont.load_default(max(9, 0.042 * self.side))
        draw.text((far, far), self.names[0], TEXT_COLOUR, font, anchor="rd")
        draw.text((near, near), self.names[1], TEXT_COLOUR, font, anchor="la")
        draw.line([(near, 4 * near), (near, far), (far - 5 * near, far)], AXIS_COLOUR)


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


def around(windows: Iterable[Window]) -> Window:
    """Return the smallest window around windows, some of which may be empty.

    >>> around([NOWHERE, (slice(1, 3), slice(2, 9)), (slice(0, 2), slice(4, 5))])
    (slice(0, 3, None), slice(2, 9, None))
    """
    some = [window for window in windows if window != NOWHERE]
    if not some:
        return NOWHERE
    down, across = (
        slice(min(each.start for each in sides), max(each.stop for each in sides))
        for sides in zip(*some, strict=True)
    )
    return down, across


def _window(first: int, last: int, count: int, size: int) -> slice:
    """Return the pixels that visible entries, and three around them, are resized to."""
    scale = size / count
    low = int((first - 3) * scale)
    high = int((last + 4) * scale) + 1
    return slice(max(0, low), min(size, high))


def _filled(height: int, width: int, colour: Colour) -> Tensor:
    return torch.tensor(colour).float().repeat(height, width, 1)


def _blend(canvas: Tensor, colour: Tensor, alpha: Tensor) -> None:
    """Blend `colour` into `canvas`, in place."""
    # A contiguous copy of alpha for all channels is six times as fast as broadcasting it.
    canvas.lerp_(colour, alpha[:, :, None].expand(-1, -1, 3).contiguous())


def _resize_matrix(small: int, large: int) -> Tensor:
    """Return the (large, small) matrix that resizes one axis.

    Two matrix products are faster than resizing every mask.
    """
    identity = torch.eye(small)[None, None]
    return F.interpolate(identity, (large, small), mode="bicubic", antialias=True)[0, 0]


def _distance(
    shape: tuple[int, ...], start: Floats, end: Floats, reach: float
) -> tuple[tuple[slice, slice], Alpha]:
    """Return a window around the line from start to end, and its pixels' distance to the line."""
    rows, columns = _near(shape, start, end, reach)
    x = np.arange(columns.start, columns.stop, dtype=np.float32)[None] - np.float32(start[0])
    y = np.arange(rows.start, rows.stop, dtype=np.float32)[:, None] - np.float32(start[1])
    dx, dy = (end - start).astype(np.float32)
    along = ((x * dx + y * dy) / max(dx * dx + dy * dy, np.float32(1e-9))).clip(0, 1)
    distance = np.sqrt((x - along * dx) ** 2 + (y - along * dy) ** 2)
    return (rows, columns), distance


def _near(shape: Sequence[int], start: Floats, end: Floats, reach: float) -> Window:
    """Return a window around the line from start to end."""
    limit = np.array(shape[1::-1])
    low = np.floor(np.minimum(start, end) - reach).clip(0, limit).astype(int).tolist()
    high = np.ceil(np.maximum(start, end) + reach + 1).clip(low, limit).astype(int).tolist()
    return slice(low[1], high[1]), slice(low[0], high[0])


def _density(count: Tensor, radius: float) -> Tensor:
    """Return the opacity of each pixel if every point is a small disc."""
    reach = int(np.ceil(radius))
    row = torch.arange(-reach, reach + 1.0)
    disc = (radius + 0.5 - torch.hypot(row[:, None], row[None])).clamp(0, 1)
    total = F.conv2d(count[None, None], disc[None, None], padding=reach)[0, 0]
    return 0.75 * (1 - torch.exp(-0.8 * total))
