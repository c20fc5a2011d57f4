"""Several objects drawn onto frames: outline, trail and number, each in its own colour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from ullayers.learn.results import SURE
from ullayers.locate.parallel import in_parallel
from ullayers.output.crossing_table import Crossing
from ullayers.output.drawing import TRAIL_FRAMES, dot_radius, line_radius
from ullayers.output.identity_colours import (
    Colour,
    Marker,
    identity_colour,
    identity_marker,
    text_colour,
)
from ullayers.output.track_table import Track

Pixels = NDArray[np.uint8]
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
