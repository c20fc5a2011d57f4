"""Results drawn onto frames: masks, positions, trails, numbers, and a panel of codes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ullayers.locate.tracking.settle import in_whole_frame
from ullayers.tracks.masks import (
    EDGE,
    Colour,
    Marker,
    identity_colour,
    identity_marker,
    text_colour,
)
from ullayers.tracks.reading import Crossing, Track
from ullayers.tracks.table import SURE, Answer
from ullayers.video.parallel import in_parallel
from ullayers.video.region import Cut, resize

Pixels = NDArray[np.uint8]
AnyFloats = NDArray[np.floating[Any]]
Floats = NDArray[np.float64]
Labels = NDArray[np.uint8] | NDArray[np.uint16]
TRAIL_FRAMES = 40  # frames after which a position has faded
TRAIL_OPACITIES = (0.15, 0.3, 0.5, 0.7, 0.9)  # from the oldest fifth of a trail to the newest
MASK_COLOUR = (0, 232, 204)  # rare in videos, and far from the colour of the dot
DOT_COLOUR = (255, 172, 28)
PANEL_COLOUR, AXIS_COLOUR = (18, 21, 26), (52, 57, 66)
CODE_COLOUR, TEXT_COLOUR = (150, 156, 166), (120, 126, 136)
BLACK, WHITE = (0, 0, 0), (255, 255, 255)
FILL_OPACITY = 0.26
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


def draw_track(frames: Pixels, answer: Answer, trail: AnyFloats | None = None) -> Pixels:
    """Draw masks, positions and the trail of recent positions.

    Args:
        frames: (time, height, width, 3) uint8.
        answer: Results with the columns `TRACK`; a position with low
            confidence is a hollow circle.
        trail: (k, 2) positions before these frames, oldest first, or (k, 3) with confidence.

    Returns:
        New frames of the same shape.

    Example:
        >>> frames = np.zeros((1, 48, 64, 3), np.uint8)
        >>> names, found = ("x", "y", "confidence"), np.array([[0.25, 0.5, 1.0]])
        >>> drawn = draw_track(frames, Answer("a", np.arange(1), np.zeros(1), names, found))
        >>> drawn[0, 24, 16].tolist(), drawn[0, 24, 48].tolist()
        ([255, 172, 28], [0, 0, 0])
    """
    _check_answer(frames, answer)
    height, width = frames.shape[1:3]
    before = np.zeros((0, 3)) if trail is None else trail[-TRAIL_FRAMES:]
    if before.shape[1] == 2:
        before = np.column_stack([before, np.ones(len(before))])
    values = np.concatenate([before, answer.values])
    places = values[:, :2] * (width, height) - 0.5
    path = _Path.single(places, values[:, 2], len(before), (height, width))
    masks = answer.masks
    if masks is not None:
        masks = in_whole_frame(masks, answer.box)
    drawn = frames.copy()

    def draw(n: int) -> None:
        if masks is not None:
            _paint_masks(drawn[n], [(MASK_COLOUR, masks[n])])
        _paint_trails(drawn[n], [path], n)
        path.paint(drawn[n], n)

    in_parallel(draw, range(len(drawn)))
    return drawn


def draw_crops(frames: Pixels, crops: AnyFloats) -> Pixels:
    """Outline the used part of each frame.

    Args:
        frames: (time, height, width, 3) uint8.
        crops: (time, 4) left, top, right and bottom in 0..1 of the frame.

    Returns:
        New frames of the same shape.

    Example:
        >>> frames = np.zeros((1, 48, 64, 3), np.uint8)
        >>> drawn = draw_crops(frames, np.array([[0.25, 0.25, 0.75, 0.75]]))
        >>> drawn[0, 24, 16].any(), drawn[0, 24, 32].any()
        (np.True_, np.False_)
    """
    drawn = frames.copy()
    height, width = frames.shape[1:3]
    thickness = max(1, round(2 * line_radius(height, width)))
    for picture, crop in zip(drawn, crops, strict=True):
        if np.isfinite(crop).all():
            low, high = _fixed(crop.reshape(2, 2) * (width, height) - 0.5).tolist()
            for line, colour in ((thickness + 2, BLACK), (thickness, MASK_COLOUR)):
                cv2.rectangle(picture, low, high, colour, line, cv2.LINE_AA, SHIFT)
    return drawn


def draw_code(
    frames: Pixels,
    answer: Answer,
    cloud: AnyFloats,
    trail: AnyFloats | None = None,
    first: int | None = None,
) -> Pixels:
    """Add a square panel at the right with all codes in grey and the current one as a dot.

    The panel shows the first two values of the code, or a single one against the frame number.

    Args:
        frames: (time, height, width, 3) uint8.
        answer: Codes of these frames.
        cloud: (n, d) all codes.
        trail: (k, d) codes of the frames before these, oldest first.
        first: Row of `cloud` of the first frame; None for its frame number.

    Returns:
        New frames (time, height, width + height, 3).

    Example:
        >>> frames, turn = np.zeros((1, 48, 64, 3), np.uint8), np.linspace(0, 6.28, 100)
        >>> cloud = np.c_[np.cos(turn), np.sin(turn)]
        >>> answer = Answer("a", np.arange(1), np.zeros(1), ("y0", "y1"), cloud[:1])
        >>> draw_code(frames, answer, cloud).shape
        (1, 48, 112, 3)
    """
    _check_answer(frames, answer)
    if cloud.ndim != 2 or cloud.shape[1] != answer.values.shape[1]:
        columns = answer.values.shape[1]
        raise ValueError(f"expected a cloud of shape (n, {columns}), got {cloud.shape}")
    if first is None:
        first = int(answer.index[0]) if len(answer.index) else 0
    before = cloud[:0] if trail is None else trail[-TRAIL_FRAMES:]
    side, width = frames.shape[1:3]
    axes = CodeAxes.around(_to_plane(cloud), side, single=cloud.shape[1] == 1)
    panel = axes.panel(_to_plane(cloud))
    places = axes(_to_plane(np.concatenate([before, answer.values]), first - len(before)))
    path = _Path.single(places, np.ones(len(places)), len(before), (side, side))
    drawn = np.empty((len(frames), side, width + side, 3), np.uint8)
    drawn[:, :, :width] = frames
    for n in range(len(frames)):
        canvas = panel.copy()
        _paint_trails(canvas, [path], n)
        path.paint(canvas, n)
        drawn[n, :, width:] = canvas
    return drawn


def _to_plane(codes: AnyFloats, first: int = 0) -> AnyFloats:
    """Return the first two values of each code, or the row number and the only value."""
    if codes.shape[1] > 1:
        return codes[:, :2]
    return np.column_stack([first + np.arange(len(codes)), codes[:, 0]])


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

    def panel(self, cloud: AnyFloats) -> Pixels:
        """Draw the axes and all codes in grey, denser where there are many."""
        picture = np.full((self.side, self.side, 3), PANEL_COLOUR, np.uint8)
        self._draw_axes(picture)
        points = self(cloud[np.isfinite(cloud).all(1)]).round().astype(int)
        count = np.zeros((self.side, self.side), np.float32)
        np.add.at(count, (points[:, 1], points[:, 0]), 1)
        radius = line_radius(self.side, self.side)
        reach = np.arange(-np.ceil(radius), np.ceil(radius) + 1)
        disc = (radius + 0.5 - np.hypot(reach[:, None], reach)).clip(0, 1)
        density = cv2.filter2D(count, -1, disc, borderType=cv2.BORDER_CONSTANT)
        alpha = (0.75 * (1 - np.exp(-0.8 * density)))[:, :, None]
        mixed: AnyFloats = picture + alpha * (np.array(CODE_COLOUR) - picture)
        return mixed.round().astype(np.uint8)

    def _draw_axes(self, picture: Pixels) -> None:
        near = round(0.03 * self.side)
        far = self.side - near
        scale = max(0.3, self.side / 800)
        (wide, high), _ = cv2.getTextSize(self.names[0], FONT, scale, 1)
        below, above = (far - wide, far), (near, near + high)
        for name, place in zip(self.names, (below, above), strict=True):
            cv2.putText(picture, name, place, FONT, scale, TEXT_COLOUR, 1, cv2.LINE_AA)
        corner = [(near, near + 2 * high), (near, far), (far - wide - 2 * near, far)]
        cv2.polylines(picture, [np.array(corner)], False, AXIS_COLOUR, 1)


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
        >>> frames, t = np.zeros((1, 48, 64, 3), np.uint8), np.arange(1)
        >>> place = {"x": np.full(1, 0.25), "y": np.full(1, 0.5), "confidence": np.ones(1)}
        >>> track = Track("a", 1, {"frame": t, "time": t / 25, **place})
        >>> drawn = draw_objects(frames, None, [track], t)
        >>> drawn[0, 24, 16].tolist(), drawn[0, 24, 48].tolist()
        ([255, 120, 14], [0, 0, 0])
    """
    _check(frames, labels, tracks, frame_numbers)
    objects = [_Path.of(track, frame_numbers, frames.shape[1:3]) for track in tracks]
    drawn = frames.copy()

    def draw(n: int) -> None:
        if labels is not None:
            numbers = [(path.colour, path.number) for path in objects]
            masks = [(colour, cv2.inRange(labels[n], each, each)) for colour, each in numbers]
            _paint_masks(drawn[n], masks)
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
    places: AnyFloats  # (TRAIL_FRAMES + n, 2), whose whole numbers are centres of pixels
    sure: NDArray[np.bool_]
    radius: float  # of the dot
    reach: float  # radius of a ring around the object
    has_number: bool = True

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

    @classmethod
    def single(
        cls, places: AnyFloats, confidence: AnyFloats, before: int, size: tuple[int, int]
    ) -> _Path:
        """Return the path of the only object, or of a code.

        Args:
            places: (before + n, 2) in pixels.
            confidence: (before + n,) of each; 0 where nothing was found.
            before: Number of places before the first frame, at most `TRAIL_FRAMES`.
            size: (height, width) of the frames.
        """
        padding = np.full((TRAIL_FRAMES - before, 2), np.nan)
        confidence = np.concatenate([np.zeros(len(padding)), np.nan_to_num(confidence)])
        places = np.concatenate([padding, places])
        places[confidence <= 0] = np.nan
        sure = np.isfinite(places).all(1) & (confidence >= SURE)
        radius = dot_radius(*size)
        return cls(1, DOT_COLOUR, "o", places, sure, radius, 2.2 * radius, has_number=False)

    def trail(self, n: int, part: int) -> list[AnyFloats]:
        """Return the unbroken lines of one part of the trail of a frame, oldest part first."""
        share = TRAIL_FRAMES // len(TRAIL_OPACITIES)
        rows = np.arange(n + part * share, n + (part + 1) * share + 1)
        breaks = np.flatnonzero(~self.sure[rows])
        pieces = np.split(rows, np.unique([*breaks, *(breaks + 1)]))
        return [self.places[piece] for piece in pieces if len(piece) > 1]

    def paint(self, picture: Pixels, n: int, crossed: bool = False) -> None:
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
            if self.has_number:
                corner = place + 0.75 * self.reach * UP_RIGHT
                _paint_number(picture, corner, self.number, self.colour)
        else:
            _circle(picture, place, 0.85 * self.radius, BLACK, 3)
            _circle(picture, place, 0.85 * self.radius, self.colour, 1)


def _paint_masks(picture: Pixels, masks: Sequence[tuple[Colour, cv2.typing.MatLike]]) -> None:
    """Tint masks, 255 inside, and draw their outlines in their colours."""
    outlines = [(colour, _outlines(mask, picture.shape)) for colour, mask in masks]
    part, corner = _around([each for _, contours in outlines for each in contours], picture, 1)
    if not part.size:
        return
    tinted = part.copy()
    for colour, contours in outlines:
        cv2.fillPoly(tinted, [each - corner for each in contours], colour, cv2.LINE_8, SHIFT)
    cv2.addWeighted(tinted, FILL_OPACITY, part, 1 - FILL_OPACITY, 0, dst=part)
    thickness = max(1, round(line_radius(*picture.shape[:2])))
    for colour, contours in outlines:
        for line, shade in ((thickness + 2, BLACK), (thickness, colour)):
            cv2.polylines(picture, contours, True, shade, line, cv2.LINE_AA, SHIFT)


def _outlines(mask: cv2.typing.MatLike, shape: Sequence[int]) -> list[NDArray[np.int32]]:
    """Return the outlines of a mask in a picture of another size, as fixed points."""
    scale = np.array([shape[1] / mask.shape[1], shape[0] / mask.shape[0]])
    left, top, width, height = cv2.boundingRect(mask)
    if not width:
        return []
    # Pad by one pixel and resize before tracing: an outline runs through the centres of pixels,
    # which are large in a small mask.
    part = cv2.copyMakeBorder(
        mask[top : top + height, left : left + width], 1, 1, 1, 1, cv2.BORDER_CONSTANT, value=0
    )
    if (scale != 1).any():
        across, down = np.ceil((width + 2, height + 2) * scale).astype(int).tolist()
        part = cv2.resize(part, (across, down), interpolation=cv2.INTER_LINEAR)
    inside = cv2.threshold(part, EDGE - 1, 255, cv2.THRESH_BINARY)[1]
    contours, _ = cv2.findContours(inside, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
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
    picture: Pixels, place: AnyFloats, radius: float, colour: Colour, marker: Marker
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


def _paint_number(picture: Pixels, place: AnyFloats, number: int, colour: Colour) -> None:
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


def _circle(
    picture: Pixels, place: AnyFloats, radius: float, colour: Colour, thickness: int
) -> None:
    x, y = _fixed(place).tolist()
    cv2.circle(picture, (x, y), round(radius * 2**SHIFT), colour, thickness, cv2.LINE_AA, SHIFT)


def _fixed(points: AnyFloats) -> NDArray[np.int32]:
    """Return points with `SHIFT` bits after the binary point; far ones are moved nearer."""
    fixed: NDArray[np.int32] = (points.clip(-1e4, 1e4) * 2**SHIFT).round().astype(np.int32)
    return fixed


def _check(
    frames: Pixels, labels: Labels | None, tracks: Sequence[Track], numbers: NDArray[np.int64]
) -> None:
    _check_frames(frames)
    if len(numbers) != len(frames):
        raise ValueError(f"expected {len(frames)} frame numbers, got {len(numbers)}")
    if labels is not None and (len(labels) != len(frames) or labels.ndim != 3):
        raise ValueError(
            f"expected label images ({len(frames)}, height, width), got {labels.shape}"
        )
    if len({track.sequence for track in tracks}) > 1:
        raise ValueError("expected tracks of one sequence; draw other sequences by themselves")


def _check_answer(frames: Pixels, answer: Answer) -> None:
    _check_frames(frames)
    masks = len(frames) if answer.masks is None else len(answer.masks)
    if not len(frames) == len(answer.values) == masks:
        raise ValueError(f"expected answers to {len(frames)} frames, got {len(answer.values)}")


def _check_frames(frames: Pixels) -> None:
    if frames.ndim != 4 or frames.shape[3] != 3 or frames.dtype != np.uint8:
        raise ValueError(
            f"expected uint8 frames (time, height, width, 3), got {frames.dtype} {frames.shape}"
        )
