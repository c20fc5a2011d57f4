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

from ullayers.tracks.masks import Colour, Marker, identity_colour, identity_marker, text_colour
from ullayers.tracks.reading import Crossing, Track
from ullayers.tracks.table import SURE
from ullayers.video.parallel import in_parallel
from ullayers.video.region import Box, Cut, resize, to_pixels

Pixels = NDArray[np.uint8]
AnyFloats = NDArray[np.floating[Any]]
Alpha = NDArray[np.float32]
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
Floats = NDArray[np.float64]
Labels = NDArray[np.uint8] | NDArray[np.uint16]
BLACK, WHITE = (0, 0, 0), (255, 255, 255)
FILL_OPACITY = 0.26
TRAIL_OPACITIES = (0.15, 0.3, 0.5, 0.7, 0.9)  # from the oldest fifth of a trail to the newest
FONT = cv2.FONT_HERSHEY_SIMPLEX
UP_RIGHT = np.array([1.0, -1.0])
MIN_RADIUS = 3.0  # of a dot, in pixels
DOT_SHARE = 0.14  # radius of a dot, of the length of the object, so that it does not hide it
SHIFT = 4  # bits after the binary point of coordinates


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

    def follow(self, positions: AnyFloats, opacities: AnyFloats) -> None:
        """Move along several positions."""
        for position, opacity in zip(positions, opacities, strict=True):
            self.move(position, opacity)

    def move(self, position: AnyFloats, opacity: float) -> None:
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


def paint_dot(canvas: Tensor, position: AnyFloats, opacity: float) -> None:
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


def dot_reach(shape: Sequence[int], position: AnyFloats, opacity: float) -> Window:
    """Return the window of a picture that `paint_dot` changes."""
    if not np.isfinite(position).all() or opacity <= 0:
        return NOWHERE
    return _near(shape, position, position, 2 * dot_radius(*shape[:2]))


def paint_box(canvas: Tensor, box: AnyFloats) -> None:
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

    centre: AnyFloats
    reach: AnyFloats
    side: int
    names: tuple[str, str]

    @classmethod
    def around(cls, cloud: AnyFloats, side: int, single: bool) -> CodeAxes:
        """Return axes that contain the cloud, with equal scales unless the code is single."""
        finite = cloud[np.isfinite(cloud).all(1)]
        if not len(finite):
            finite = np.zeros((1, 2))
        low, high = finite.min(0), finite.max(0)
        reach = (high - low) / 2 if single else np.full(2, (high - low).max() / 2)
        names = ("frame", "y0") if single else ("y0", "y1")
        return cls((low + high) / 2, np.where(reach > 0, reach, 1.0), side, names)

    def __call__(self, points: AnyFloats) -> AnyFloats:
        """Return the pixels of points (n, 2)."""
        inside = ((points - self.centre) / self.reach).clip(-1.1, 1.1)
        return (self.side - 1) / 2 * (1 + 0.84 * inside * (1, -1))

    def panel(self, cloud: AnyFloats) -> Tensor:
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
    shape: tuple[int, ...], start: AnyFloats, end: AnyFloats, reach: float
) -> tuple[tuple[slice, slice], Alpha]:
    """Return a window around the line from start to end, and its pixels' distance to the line."""
    rows, columns = _near(shape, start, end, reach)
    x = np.arange(columns.start, columns.stop, dtype=np.float32)[None] - np.float32(start[0])
    y = np.arange(rows.start, rows.stop, dtype=np.float32)[:, None] - np.float32(start[1])
    dx, dy = (end - start).astype(np.float32)
    along = ((x * dx + y * dy) / max(dx * dx + dy * dy, np.float32(1e-9))).clip(0, 1)
    distance = np.sqrt((x - along * dx) ** 2 + (y - along * dy) ** 2)
    return (rows, columns), distance


def _near(shape: Sequence[int], start: AnyFloats, end: AnyFloats, reach: float) -> Window:
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


def draw_objects(
    frames: Pixels,
    labels: Labels | None,
    tracks: Sequence[Track],
    frame_numbers: NDArray[np.int64],
    crossings: Sequence[Crossing] = (),
) -> Pixels:
    """Draw outline, trail, position and number of several objects.

    A position with low confidence is a hollow circle without a number. During a crossing, each
    object has a white ring.

    Args:
        frames: (n, height, width, 3) uint8.
        labels: (n, any height, any width) label images of whole frames with the numbers of the
            objects; None draws no outlines.
        tracks: Tracks of one sequence. Trails begin before the first of `frames`.
        frame_numbers: (n,) numbers of the frames in the source.
        crossings: Crossings of the sequence.

    Returns:
        New frames of the same shape.

    Example:
        >>> frames, t, no = np.zeros((1, 48, 64, 3), np.uint8), np.arange(1), np.full(1, np.nan)
        >>> place = (np.full(1, 0.25), np.full(1, 0.5), np.ones(1))
        >>> track = Track("a", 1, t, t / 25, *place, *[no] * 7)
        >>> drawn = draw_objects(frames, None, [track], t)
        >>> drawn[0, 24, 16].tolist(), drawn[0, 24, 48].tolist()
        ([255, 120, 14], [0, 0, 0])
    """
    _check(frames, labels, tracks, frame_numbers)
    objects = [_Path.of(track, frame_numbers, frames.shape[1:3]) for track in tracks]
    drawn = frames.copy()

    def draw(n: int) -> None:
        if labels is not None:
            _paint_masks(drawn[n], labels[n], objects)
        _paint_trails(drawn[n], objects, n)
        crossed = _crossed(crossings, int(frame_numbers[n]))
        for path in objects:
            path.paint(drawn[n], n, path.number in crossed)

    in_parallel(draw, range(len(drawn)))
    return drawn


def _crossed(crossings: Sequence[Crossing], frame: int) -> set[int]:
    """Return the numbers of the objects that cross in a frame."""
    return {
        each
        for crossing in crossings
        if crossing.first_frame <= frame <= crossing.last_frame
        for each in crossing.objects
    }


@dataclass(frozen=True)
class _Path:
    """Positions of an object in pixels, including the trail before the first frame."""

    number: int
    colour: Colour
    marker: Marker
    places: Floats  # (TRAIL_FRAMES + n, 2), whose whole numbers are centres of pixels
    sure: NDArray[np.bool_]
    radius: float  # of the dot
    reach: float  # radius of a ring around the object

    @classmethod
    def of(cls, track: Track, numbers: NDArray[np.int64], size: tuple[int, ...]) -> _Path:
        height, width = size
        step = int(np.median(np.diff(numbers))) if len(numbers) > 1 else 1
        before = numbers[:1] - step * np.arange(TRAIL_FRAMES, 0, -1)
        wanted = np.concatenate([before, numbers])
        row = np.searchsorted(track.frame, wanted).clip(0, max(0, len(track.frame) - 1))
        there = track.frame[row] == wanted
        places = np.stack([track.x[row] * width, track.y[row] * height], 1) - 0.5
        places[~there] = np.nan
        sure = there & (track.confidence[row] >= SURE) & np.isfinite(places).all(1)
        length = track.length[np.isfinite(track.length)]
        inside = track.x_px > 1  # at the border, the ratio is not known
        ratios = track.x[inside] * width / track.x_px[inside]
        scale = np.median(ratios) if len(length) and len(ratios) else np.nan
        body = float(np.median(length) * scale) if np.isfinite(scale) else 0.0
        usual = dot_radius(height, width)
        radius = min(usual, max(MIN_RADIUS, DOT_SHARE * body)) if body else usual
        reach = max(2.2 * radius, 0.65 * body)
        number = track.object
        look = identity_colour(number), identity_marker(number)
        return cls(number, *look, places, sure, radius, reach)

    def trail(self, n: int, part: int) -> list[Floats]:
        """Return the unbroken lines of one part of the trail of a frame, oldest part first."""
        share = TRAIL_FRAMES // len(TRAIL_OPACITIES)
        rows = np.arange(n + part * share, n + (part + 1) * share + 1)
        breaks = np.flatnonzero(~self.sure[rows])
        pieces = np.split(rows, np.unique([*breaks, *(breaks + 1)]))
        return [self.places[piece] for piece in pieces if len(piece) > 1]

    def paint(self, picture: Pixels, n: int, crossed: bool) -> None:
        """Paint position, ring and number."""
        row = n + TRAIL_FRAMES
        place = self.places[row]
        if not np.isfinite(place).all():
            return
        if crossed:
            thickness = max(1, round(line_radius(*picture.shape[:2]) / 2))
            _circle(picture, place, self.reach, BLACK, thickness + 2)
            _circle(picture, place, self.reach, WHITE, thickness)
        if self.sure[row]:
            _paint_marker(picture, place, 0.85 * self.radius, self.colour, self.marker)
            _paint_number(picture, place + 0.75 * self.reach * UP_RIGHT, self.number, self.colour)
        else:
            _circle(picture, place, 0.85 * self.radius, BLACK, 3)
            _circle(picture, place, 0.85 * self.radius, self.colour, 1)


def _paint_masks(picture: Pixels, labels: Labels, objects: Sequence[_Path]) -> None:
    height, width = picture.shape[:2]
    scale = np.array([width / labels.shape[1], height / labels.shape[0]])
    outlines = [(path.colour, _outlines(labels, path.number, scale)) for path in objects]
    part, corner = _around([each for _, contours in outlines for each in contours], picture, 1)
    if not part.size:
        return
    tinted = part.copy()
    for colour, contours in outlines:
        cv2.fillPoly(tinted, [each - corner for each in contours], colour, cv2.LINE_8, SHIFT)
    cv2.addWeighted(tinted, FILL_OPACITY, part, 1 - FILL_OPACITY, 0, dst=part)
    thickness = max(1, round(line_radius(height, width)))
    for colour, contours in outlines:
        for line, shade in ((thickness + 2, BLACK), (thickness, colour)):
            cv2.polylines(picture, contours, True, shade, line, cv2.LINE_AA, SHIFT)


def _outlines(labels: Labels, number: int, scale: Floats) -> list[NDArray[np.int32]]:
    """Return the outlines of a mask in a picture `scale` times as large, as fixed points."""
    mask = cv2.inRange(labels, number, number)
    left, top, width, height = cv2.boundingRect(mask)
    if not width:
        return []
    # Pad by one pixel and resize before tracing: an outline runs through the centres of pixels,
    # which are large in a small mask.
    part = cv2.copyMakeBorder(
        mask[top : top + height, left : left + width], 1, 1, 1, 1, cv2.BORDER_CONSTANT, value=0
    )
    size = np.ceil((width + 2, height + 2) * scale).astype(int)
    if (scale != 1).any():
        part = cv2.resize(part, (int(size[0]), int(size[1])), interpolation=cv2.INTER_LINEAR)
        part = cv2.threshold(part, 127, 255, cv2.THRESH_BINARY)[1]
    contours, _ = cv2.findContours(part, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    corner = np.array([left - 1, top - 1]) * scale
    return [_fixed(contour[:, 0] + corner) for contour in contours]


def _paint_trails(picture: Pixels, objects: Sequence[_Path], n: int) -> None:
    thickness = max(1, round(1.6 * line_radius(*picture.shape[:2])))
    trails = [
        (255 * share, path.colour, [_fixed(piece) for piece in path.trail(n, part)])
        for part, share in enumerate(TRAIL_OPACITIES)
        for path in objects
    ]
    everything = [line for *_, lines in trails for line in lines]
    under, corner = _around(everything, picture, thickness + 2)
    if not under.size:
        return
    colours = under.copy()
    opacity = np.zeros(under.shape[:2], np.uint8)
    for strength, colour, lines in trails:
        moved = [line - corner for line in lines]
        # The colour extends beyond the opacity, so that soft edges have this colour only.
        cv2.polylines(colours, moved, False, colour, thickness + 2, cv2.LINE_8, SHIFT)
        cv2.polylines(opacity, moved, False, strength, thickness, cv2.LINE_AA, SHIFT)
    weights = opacity.astype(np.float32) / 255
    cv2.blendLinear(colours, under, weights, 1 - weights, dst=under)


def _around(
    lines: Sequence[NDArray[np.int32]], picture: Pixels, margin: int
) -> tuple[Pixels, NDArray[np.int32]]:
    """Return the part of a picture around lines, as a view, and its corner.

    Args:
        lines: (points, 2) fixed points.
        picture: (height, width, 3).
        margin: Pixels on each side of the lines.

    Returns:
        The part, which is empty if no line is in the picture, and its top left corner as a fixed
        point.
    """
    points = np.concatenate([np.zeros((0, 2), np.int32), *lines]) >> SHIFT
    if not len(points):
        return picture[:0, :0], np.zeros(2, np.int32)
    left, top = np.maximum(points.min(0) - margin, 0).tolist()
    right, bottom = np.maximum(points.max(0) + margin + 2, 0).tolist()
    return picture[top:bottom, left:right], np.array([left, top], np.int32) << SHIFT


def _paint_marker(
    picture: Pixels, place: Floats, radius: float, colour: Colour, marker: Marker
) -> None:
    """Paint a filled marker with a white and a dark edge, visible on any background."""
    corners = {"s": (45, 4), "^": (-90, 3), "D": (0, 4)}
    for size, shade in ((radius + 2.5, BLACK), (radius + 1.5, WHITE), (radius, colour)):
        if marker == "o":
            _circle(picture, place, size, shade, -1)
            continue
        start, count = corners[marker]
        angles = np.radians(start + 360 / count * np.arange(count))
        shape = place + 1.25 * size * np.stack([np.cos(angles), np.sin(angles)], 1)
        cv2.fillPoly(picture, [_fixed(shape)], shade, cv2.LINE_AA, SHIFT)


def _paint_number(picture: Pixels, place: Floats, number: int, colour: Colour) -> None:
    """Paint the number of an object on a small plate of its colour, inside the picture."""
    height, width = picture.shape[:2]
    scale = max(0.32, dot_radius(height, width) / 17)
    thickness = max(1, round(1.6 * scale))
    (right, up), _ = cv2.getTextSize(str(number), FONT, scale, thickness)
    pad = max(2, round(0.3 * up))
    x = int(np.clip(place[0], pad, max(pad, width - right - pad - 1)))
    y = int(np.clip(place[1], up + pad, max(up + pad, height - pad - 1)))
    low = (x - pad, y - up - pad)
    high = (x + right + pad - 1, y + pad)
    cv2.rectangle(picture, (low[0] - 1, low[1] - 1), (high[0] + 1, high[1] + 1), BLACK, 1)
    cv2.rectangle(picture, low, high, colour, -1)
    text = text_colour(colour)
    cv2.putText(picture, str(number), (x, y), FONT, scale, text, thickness, cv2.LINE_AA)


def _circle(picture: Pixels, place: Floats, radius: float, colour: Colour, thickness: int) -> None:
    x, y = _fixed(place).tolist()
    cv2.circle(picture, (x, y), round(radius * 2**SHIFT), colour, thickness, cv2.LINE_AA, SHIFT)


def _fixed(points: Floats) -> NDArray[np.int32]:
    """Return points with `SHIFT` bits after the binary point; far ones are moved nearer."""
    fixed: NDArray[np.int32] = (points.clip(-1e4, 1e4) * 2**SHIFT).round().astype(np.int32)
    return fixed


def _check(
    frames: Pixels, labels: Labels | None, tracks: Sequence[Track], numbers: NDArray[np.int64]
) -> None:
    if frames.ndim != 4 or frames.shape[3] != 3 or frames.dtype != np.uint8:
        raise ValueError(
            f"expected uint8 frames (time, height, width, 3), got {frames.dtype} {frames.shape}"
        )
    if len(numbers) != len(frames):
        raise ValueError(f"expected {len(frames)} frame numbers, got {len(numbers)}")
    if labels is not None and (len(labels) != len(frames) or labels.ndim != 3):
        raise ValueError(
            f"expected label images ({len(frames)}, height, width), got {labels.shape}"
        )
    if len({track.sequence for track in tracks}) > 1:
        raise ValueError("expected tracks of one sequence; draw other sequences by themselves")
