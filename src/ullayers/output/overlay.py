"""Draws what was found onto the frames, masks and places or codes, and writes them as a video."""

from __future__ import annotations

import os
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from ullayers.learn.results import SURE, TRACK, Answer
from ullayers.video.writer import VideoWriter

Pixels = NDArray[np.uint8]
Floats = NDArray[np.floating[Any]]
Alpha = NDArray[np.float32]

TRAIL = 40  # frames after which a place has faded
MASK = (0, 232, 204)  # rare in the world, and far from the dot's colour
DOT = (255, 172, 28)
PANEL, GREY, TEXT = (18, 21, 26), (150, 156, 166), (120, 126, 136)
TINT, FAINT = 0.26, 0.2  # how opaque a mask is, and the level below which it is not shown
FLAT = 0.004  # levels a pixel: where a mask changes less than this there is no edge to draw


def draw_track(frames: Pixels, answer: Answer, trail: Floats | None = None) -> Pixels:
    """Frames with the mask as a tint and its outline, the place as a dot, and where it came from.

    Args:
        frames: (time, height, width, 3) uint8.
        answer: with the columns `TRACK`; the dot is as opaque as its confidence.
        trail: (k, 2) places before these frames, oldest first, or (k, 3) with their confidence.

    Returns:
        new frames of the same shape.

    Example:
        >>> frames = np.zeros((1, 48, 64, 3), np.uint8)
        >>> found = np.array([[0.25, 0.5, 1.0]])
        >>> drawn = draw_track(frames, Answer("a", np.arange(1), np.zeros(1), TRACK, found))
        >>> drawn[0, 24, 16].tolist(), drawn[0, 24, 48].tolist()
        ([255, 172, 28], [0, 0, 0])
    """
    _check(frames, answer)
    height, width = frames.shape[1:3]
    drawn, pen = np.empty_like(frames), _pen(height, width)
    before = np.zeros((0, 3)) if trail is None else trail[-TRAIL:]
    places, sure = _pixels_of(answer.values, height, width)
    line = _Line(height, width, 0.8 * pen)
    line.follow(*_pixels_of(before, height, width))
    tint = None if answer.masks is None else _Tint(answer.masks.shape[1:], (height, width), pen)
    for t, picture in enumerate(frames):
        canvas = torch.from_numpy(picture).float()
        if tint is not None and answer.masks is not None:
            tint.paint(canvas, answer.masks[t])
        line.move(places[t], sure[t])
        line.paint(canvas)
        _dot(canvas.numpy(), places[t], _radius(height, width), sure[t])
        drawn[t] = canvas.add_(0.5).byte().numpy()
    return drawn


def draw_code(
    frames: Pixels,
    answer: Answer,
    cloud: Floats,
    trail: Floats | None = None,
    first: int | None = None,
) -> Pixels:
    """Frames with a square panel at their right: all codes in grey, and where this frame's lies.

    The panel shows the first two numbers of the code, or a single one against the frame number.

    Args:
        frames: (time, height, width, 3) uint8.
        answer: the codes of these frames.
        cloud: (n, d) all codes.
        trail: (k, d) codes of the frames before these, oldest first.
        first: row of `cloud` that is the first frame's; its number in its source if not given.

    Returns:
        (time, height, width + height, 3).

    Example:
        >>> frames, turn = np.zeros((1, 48, 64, 3), np.uint8), np.linspace(0, 6.28, 100)
        >>> cloud = np.c_[np.cos(turn), np.sin(turn)]
        >>> answer = Answer("a", np.arange(1), np.zeros(1), ("y0", "y1"), cloud[:1])
        >>> draw_code(frames, answer, cloud).shape
        (1, 48, 112, 3)
    """
    _check(frames, answer)
    if cloud.ndim != 2 or cloud.shape[1] != answer.values.shape[1]:
        columns = answer.values.shape[1]
        raise ValueError(f"expected a cloud of shape (n, {columns}), got {cloud.shape}")
    side, width = frames.shape[1:3]
    drawn, pen = np.empty((len(frames), side, width + side, 3), np.uint8), _pen(side, side)
    drawn[:, :, :width] = frames
    first = first if first is not None else int(answer.index[0]) if len(answer.index) else 0
    axes = _Axes.around(_plane(cloud), side, single=cloud.shape[1] == 1)
    before = cloud[:0] if trail is None else trail[-TRAIL:]
    panel, line = axes.panel(_plane(cloud), pen), _Line(side, side, 0.8 * pen)
    line.follow(axes(_plane(before, first - len(before))), np.ones(len(before)))
    for t, point in enumerate(axes(_plane(answer.values, first))):
        canvas = panel.clone()
        line.move(point, 1.0)
        line.paint(canvas)
        _dot(canvas.numpy(), point, _radius(side, side), 1.0)
        drawn[t, :, width:] = canvas.add_(0.5).byte().numpy()
    return drawn


class Overlay:
    """Writes an mp4 of frames with what was found in them; it appears when it is complete.

    Frames of another size than the first are fitted into it, with black beside them.

    Args:
        path: the file to write.
        fps: frames a second.
        cloud: (n, d) all codes in the order in which they will be added; None for tracks.

    Example:
        >>> import tempfile
        >>> frames, found = torch.zeros(5, 3, 48, 64, dtype=torch.uint8), np.full((5, 3), 0.5)
        >>> answer = Answer("a", np.arange(5), np.arange(5) / 25, TRACK, found)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with Overlay(f"{folder}/overlay.mp4", fps=25) as overlay:
        ...         overlay.add(frames, answer)
        ...     os.listdir(folder)
        ['overlay.mp4']
    """

    def __init__(
        self, path: str | os.PathLike[str], fps: float, cloud: Floats | None = None
    ) -> None:
        self._video, self._cloud = VideoWriter(path, fps), cloud
        self._size: tuple[int, int] | None = None
        self._sequence: str | None = None
        self._trail: Floats | None = None
        self._count = 0

    def __enter__(self) -> Overlay:
        self._video.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._video.__exit__(kind, error, trace)

    def add(self, frames: Tensor, answer: Answer) -> None:
        """Draw and write the next frames of a sequence: (time, 3 or 1, height, width) uint8."""
        if frames.ndim != 4 or frames.shape[1] not in (1, 3) or frames.dtype != torch.uint8:
            raise ValueError(
                "expected uint8 frames (time, 3 or 1, height, width), got "
                f"{frames.dtype} {tuple(frames.shape)}"
            )
        if answer.sequence != self._sequence:
            self._sequence, self._trail = answer.sequence, None
        if self._size is None:
            self._size = (frames.shape[2], frames.shape[3])
        pictures = _fit(frames.cpu(), self._size).expand(-1, 3, -1, -1)
        for frame in self._draw(pictures.permute(0, 2, 3, 1).contiguous().numpy(), answer):
            self._video.write(frame)
        before = answer.values[:0] if self._trail is None else self._trail
        self._trail = np.concatenate([before, answer.values])[-TRAIL:]
        self._count += len(frames)

    def _draw(self, pictures: Pixels, answer: Answer) -> Pixels:
        assert self._size is not None
        if answer.columns == TRACK:  # drawn before the black is added: places are the picture's
            return _pad(draw_track(pictures, answer, self._trail), self._size)
        if self._cloud is None:
            raise ValueError(f"expected cloud= for codes, got none with {answer.columns}")
        framed = _pad(pictures, self._size)
        return draw_code(framed, answer, self._cloud, self._trail, self._count)


def _check(frames: Pixels, answer: Answer) -> None:
    if frames.ndim != 4 or frames.shape[3] != 3 or frames.dtype != np.uint8:
        raise ValueError(
            f"expected uint8 frames (time, height, width, 3), got {frames.dtype} {frames.shape}"
        )
    masks = len(frames) if answer.masks is None else len(answer.masks)
    if not len(frames) == len(answer.values) == masks:
        raise ValueError(f"expected answers to {len(frames)} frames, got {len(answer.values)}")


def _pen(height: int, width: int) -> float:
    """Half the width of a line, in pixels: the same share of pictures of all sizes."""
    return max(1.0, min(height, width) / 180)


def _radius(height: int, width: int) -> float:
    """Of a dot, in pixels."""
    return max(2.25, min(height, width) / 60)


def _pixels_of(values: Floats, height: int, width: int) -> tuple[Floats, Floats]:
    """Places in pixels, whose centres are whole numbers, and how sure they are."""
    places = values[:, :2] * (width, height) - 0.5
    sure = values[:, 2] if values.shape[1] > 2 else np.ones(len(values))
    return places, np.nan_to_num(sure).clip(0, 1)


def _plane(codes: Floats, first: int = 0) -> Floats:
    """Two numbers a code: its first two, or the row it is in and its only one."""
    if codes.shape[1] > 1:
        return codes[:, :2]
    return np.column_stack([first + np.arange(len(codes)), codes[:, 0]])


class _Tint:
    """Paints masks of one size onto pictures of another."""

    def __init__(self, small: tuple[int, ...], large: tuple[int, int], pen: float) -> None:
        self.rows, self.columns = (_enlarger(a, b) for a, b in zip(small, large, strict=True))
        self.colour, self.pen = _sheet(*large, MASK), pen

    def paint(self, canvas: Tensor, mask: Pixels) -> None:
        seen = torch.from_numpy(mask) > 255 * FAINT / 2
        if not seen.any():
            return
        rows, columns = _window(seen.any(1), len(canvas)), _window(seen.any(0), canvas.shape[1])
        level = self.rows[rows] @ (torch.from_numpy(mask).float() / 255) @ self.columns[columns].T
        _blend(canvas[rows, columns], self.colour[rows, columns], self._alpha(level))

    def _alpha(self, level: Tensor) -> Tensor:
        down, right = torch.gradient(level)
        slope = (down.square_() + right.square_()).sqrt_()
        pixels = (level - 0.5).abs_().div_(slope.clamp(min=FLAT))  # from the outline
        outline = (max(0.75, self.pen / 2) + 0.5 - pixels).clamp_(0, 1)
        outline.mul_(slope.div_(FLAT).clamp_(max=1))  # a level of one half all over is no edge
        fill = level.sub_(FAINT).mul_(TINT / 0.4).clamp_(0, TINT)
        return fill + outline.mul_(1 - fill)


def _window(seen: Tensor, large: int) -> slice:
    """The pixels to which the entries seen, and three around them, are enlarged."""
    places, share = seen.nonzero(), large / len(seen)
    low, high = int((int(places[0]) - 3) * share), int((int(places[-1]) + 4) * share) + 1
    return slice(max(0, low), min(large, high))


def _sheet(height: int, width: int, colour: tuple[int, int, int]) -> Tensor:
    return torch.tensor(colour).float().repeat(height, width, 1)


def _blend(canvas: Tensor, sheet: Tensor, alpha: Tensor) -> None:
    """Let `sheet` through by `alpha`; six times as fast copied out as broadcast over colours."""
    canvas.lerp_(sheet, alpha[:, :, None].expand(-1, -1, 3).contiguous())


def _enlarger(small: int, large: int) -> Tensor:
    """(large, small): the matrix that resizes one axis; two products beat resizing each mask."""
    one = torch.eye(small)[None, None]
    return F.interpolate(one, (large, small), mode="bicubic", antialias=True)[0, 0]


class _Line:
    """What a moving point draws; it fades with age, which costs one subtraction a frame."""

    def __init__(self, height: int, width: int, pen: float) -> None:
        self.alpha: Alpha = np.zeros((height, width), np.float32)
        self.pen, self.last, self.colour = pen, np.full(2, np.nan), _sheet(height, width, DOT)

    def follow(self, places: Floats, sure: Floats) -> None:
        for place, opacity in zip(places, sure, strict=True):
            self.move(place, opacity)

    def move(self, place: Floats, opacity: float) -> None:
        """Draw from the last place to this one, unless one of them may be anywhere."""
        if opacity < SURE:
            place = np.full(2, np.nan)
        np.maximum(self.alpha - np.float32(1 / TRAIL), 0, out=self.alpha)
        if np.isfinite([self.last, place]).all():
            window, pixels = _distance(self.alpha.shape, self.last, place, self.pen + 1)
            fresh = opacity * (self.pen + 0.5 - pixels).clip(0, 1)
            np.maximum(self.alpha[window], fresh, out=self.alpha[window])
        self.last = place

    def paint(self, canvas: Tensor) -> None:
        used = torch.from_numpy(self.alpha.any(1)).nonzero()  # most rows are not touched
        if len(used):
            rows = slice(int(used[0]), int(used[-1]) + 1)
            _blend(canvas[rows], self.colour[rows], torch.from_numpy(self.alpha)[rows])


def _distance(
    shape: tuple[int, ...], start: Floats, end: Floats, reach: float
) -> tuple[tuple[slice, slice], Alpha]:
    """A window around the stretch from start to end, and how far from it each pixel is."""
    limit = np.array(shape[1::-1])
    low = np.floor(np.minimum(start, end) - reach).clip(0, limit).astype(int)
    high = np.ceil(np.maximum(start, end) + reach + 1).clip(low, limit).astype(int)
    x = np.arange(low[0], high[0], dtype=np.float32)[None] - np.float32(start[0])
    y = np.arange(low[1], high[1], dtype=np.float32)[:, None] - np.float32(start[1])
    dx, dy = (end - start).astype(np.float32)
    along = ((x * dx + y * dy) / max(dx * dx + dy * dy, np.float32(1e-9))).clip(0, 1)
    pixels = np.sqrt((x - along * dx) ** 2 + (y - along * dy) ** 2)
    return (slice(low[1], high[1]), slice(low[0], high[0])), pixels


def _dot(canvas: Alpha, place: Floats, radius: float, opacity: float) -> None:
    """A dot in a white ring, with a dark edge that keeps the ring visible on white."""
    if not np.isfinite(place).all() or opacity <= 0:
        return
    window, pixels = _distance(canvas.shape, place, place, 2 * radius)
    part, ring = canvas[window], np.abs(pixels - 1.35 * radius)
    for colour, strength, inside in (
        ((0, 0, 0), 0.45, 0.45 * radius - ring),
        ((255, 255, 255), 1.0, 0.2 * radius - ring),
        (DOT, 1.0, 0.75 * radius - pixels),
    ):
        alpha = (opacity * strength * (inside + 0.5).clip(0, 1))[:, :, None]
        part += alpha * (np.array(colour, np.float32) - part)


@dataclass(frozen=True)
class _Axes:
    """From two numbers to pixels of a square panel, the second upwards."""

    middle: Floats
    reach: Floats
    side: int
    names: tuple[str, str]

    @classmethod
    def around(cls, cloud: Floats, side: int, single: bool) -> _Axes:
        """Axes that hold all of the cloud; of equal scale, so that a circle is one."""
        fine = cloud[np.isfinite(cloud).all(1)]
        fine = fine if len(fine) else np.zeros((1, 2))
        low, high = fine.min(0), fine.max(0)
        reach = (high - low) / 2 if single else np.full(2, (high - low).max() / 2)
        names = ("frame", "y0") if single else ("y0", "y1")
        return cls((low + high) / 2, np.where(reach > 0, reach, 1.0), side, names)

    def __call__(self, points: Floats) -> Floats:
        inside = ((points - self.middle) / self.reach).clip(-1.1, 1.1)
        return (self.side - 1) / 2 * (1 + 0.84 * inside * (1, -1))

    def panel(self, cloud: Floats, pen: float) -> Tensor:
        """The panel with all codes in grey, denser where there are many, and the axes' names."""
        picture = Image.new("RGB", (self.side, self.side), PANEL)
        self._label(ImageDraw.Draw(picture))
        points = self(cloud[np.isfinite(cloud).all(1)]).round().astype(int)
        count = np.zeros((self.side, self.side), np.float32)
        np.add.at(count, (points[:, 1], points[:, 0]), 1)
        alpha = _spread(torch.from_numpy(count), pen)
        canvas = torch.from_numpy(np.array(picture)).float()
        _blend(canvas, _sheet(self.side, self.side, GREY), alpha)
        return canvas

    def _label(self, draw: ImageDraw.ImageDraw) -> None:
        edge, font = 0.03 * self.side, ImageFont.load_default(max(9, 0.042 * self.side))
        far = self.side - edge
        draw.text((far, far), self.names[0], TEXT, font, anchor="rd")
        draw.text((edge, edge), self.names[1], TEXT, font, anchor="la")
        draw.line([(edge, 4 * edge), (edge, far), (far - 5 * edge, far)], (52, 57, 66))


def _spread(count: Tensor, pen: float) -> Tensor:
    """How grey each pixel is if every point is a small disc."""
    reach = int(np.ceil(pen))
    row = torch.arange(-reach, reach + 1.0)
    disc = (pen + 0.5 - torch.hypot(row[:, None], row[None])).clamp(0, 1)
    total = F.conv2d(count[None, None], disc[None, None], padding=reach)[0, 0]
    return 0.75 * (1 - torch.exp(-0.8 * total))


def _fit(frames: Tensor, size: tuple[int, int]) -> Tensor:
    """Frames (time, channels, height, width) resized to touch `size` from inside."""
    share = min(size[0] / frames.shape[2], size[1] / frames.shape[3])
    height, width = (
        max(1, min(most, round(share * side)))
        for side, most in zip(frames.shape[2:], size, strict=True)
    )
    if frames.shape[2:] == (height, width):
        return frames
    return F.interpolate(frames, (height, width), mode="bilinear", antialias=True)


def _pad(pictures: Pixels, size: tuple[int, int]) -> Pixels:
    """Pictures (time, height, width, 3) in the middle of black ones of `size`."""
    if pictures.shape[1:3] == size:
        return pictures
    framed = np.zeros((len(pictures), *size, 3), np.uint8)
    top, left = (size[0] - pictures.shape[1]) // 2, (size[1] - pictures.shape[2]) // 2
    framed[:, top : top + pictures.shape[1], left : left + pictures.shape[2]] = pictures
    return framed
