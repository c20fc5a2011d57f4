"""Objects in frames: detections of a run, or ground truth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ullayers.output.boxes import boxed_objects, has_sizes
from ullayers.output.mask_images import Labels
from ullayers.output.track_table import Floats
from ullayers.output.tracked_video import Frames, TrackedVideo, sure

NOWHERE = (np.nan,) * 4


class Observation(NamedTuple):
    """An object in one frame.

    Attributes:
        frame: Number of the frame.
        identity: Identity of the object; None if unknown.
        x: Horizontal position in pixels.
        y: Vertical position in pixels.
        heading: Degrees, clockwise from the right; NaN if unknown.
        box: Left, top, width and height in pixels; NaN if unknown.
    """

    frame: int
    identity: str | int | None
    x: float
    y: float
    heading: float = np.nan
    box: tuple[float, ...] = NOWHERE


@dataclass(frozen=True)
class Observations:
    """Objects in frames, sorted by frame; one row per object and frame.

    Attributes:
        frame: (rows,) number of the frame.
        identity: (rows,) number of the object.
        place: (rows, 2) x and y in pixels.
        heading: (rows,) degrees, clockwise from the right; NaN if unknown.
        box: (rows, 4) left, top, width and height in pixels; NaN if unknown.
        frames: Annotated or processed frames, with and without objects, sorted.
        identified: Whether identities are known.
        labels: Returns the object of each pixel of a frame; None if there are no masks.
    """

    frame: Frames
    identity: NDArray[np.int64]
    place: Floats
    heading: Floats
    box: Floats
    frames: Frames
    identified: bool = True
    labels: Callable[[int], Labels | None] | None = None

    @property
    def has_boxes(self) -> bool:
        """Whether any box is known."""
        return bool(np.isfinite(self.box).any())

    def at(self, frame: int) -> slice:
        """Return the rows of a frame."""
        start, end = np.searchsorted(self.frame, [frame, frame + 1])
        return slice(int(start), int(end))


def collect(
    rows: Iterable[Observation],
    frames: Iterable[int],
    labels: Callable[[int], Labels | None] | None = None,
) -> Observations:
    """Put rows into arrays.

    If all identities are unknown and no frame has several objects, there is one object.

    Args:
        rows: Objects in any order; those without a position are left out.
        frames: Annotated or processed frames, in any order; those of `rows` are added.
        labels: As in `Observations`.

    Raises:
        ValueError: An object appears twice in one frame.

    Example:
        >>> rows = [Observation(3, "b", 1.0, 2.0), Observation(3, "a", 5.0, 6.0)]
        >>> seen = collect(rows, frames=[2, 3])
        >>> seen.identity.tolist(), seen.place.tolist(), seen.frames.tolist()
        ([1, 0], [[1.0, 2.0], [5.0, 6.0]], [2, 3])
    """
    rows = sorted(rows, key=lambda row: row.frame)
    looked = np.unique([*frames, *(row.frame for row in rows)]).astype(np.int64)
    rows = [row for row in rows if np.isfinite(row.x + row.y)]
    identities, identified = _numbers(rows)
    return Observations(
        frame=np.array([row.frame for row in rows], np.int64),
        identity=np.array(identities, np.int64),
        place=np.array([(row.x, row.y) for row in rows]).reshape(-1, 2),
        heading=np.array([row.heading for row in rows], np.float64),
        box=np.array([row.box for row in rows]).reshape(-1, 4),
        frames=looked,
        identified=identified,
        labels=labels,
    )


def _numbers(rows: Sequence[Observation]) -> tuple[list[int], bool]:
    """Return a number for the identity of each row, and whether identities are known."""
    if any(row.identity is None for row in rows):
        counts: Counter[int] = Counter()
        numbers = []
        for row in rows:
            numbers.append(counts[row.frame])
            counts[row.frame] += 1
        return numbers, max(counts.values()) == 1
    for (frame, name), count in Counter((row.frame, row.identity) for row in rows).items():
        if count > 1:
            raise ValueError(f"object {name} has {count} rows in frame {frame}")
    if all(isinstance(row.identity, int) for row in rows):
        return [int(row.identity or 0) for row in rows], True
    ordered = sorted({str(row.identity) for row in rows})
    names = {name: number for number, name in enumerate(ordered)}
    return [names[str(row.identity)] for row in rows], True


def observe(video: TrackedVideo, boxes: bool) -> Observations:
    """Return the detections of a run with a confidence of at least 0.5.

    Args:
        video: Results of the run.
        boxes: Whether to add boxes, if the results have masks or sizes.
    """
    known: dict[tuple[int, int], tuple[float, ...]] = {}
    if boxes and (video.masks is not None or has_sizes(video)):
        known = {
            (item.frame, item.object): tuple(item.box.tolist()) for item in boxed_objects(video)
        }
    rows = []
    for track in video.tracks:
        kept = sure(track)
        columns = track.frame[kept], track.x_px[kept], track.y_px[kept], track.heading[kept]
        for frame, x, y, heading in zip(*(column.tolist() for column in columns), strict=True):
            box = known.get((frame, track.object), NOWHERE)
            rows.append(Observation(frame, track.object, x, y, heading, box))
    labels = None if video.masks is None else video.labels
    return collect(rows, video.frames.tolist(), labels)
