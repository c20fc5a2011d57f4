"""Behaviour of objects: distance, speed, time moving, and time in zones."""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ullayers.errors import Error
from ullayers.files import from_json, read_regular, replacing
from ullayers.tracks.measures import Motion, motion_between, speed
from ullayers.tracks.reading import Track, read_sequences
from ullayers.tracks.table import SURE, read_frame
from ullayers.video.sources import Info, Source

if TYPE_CHECKING:
    from pandas import DataFrame

MAX_BYTES = 2**20
MAX_ZONES, MAX_CORNERS = 200, 500
MIN_AREA = 1e-9  # of the square of a polygon's longest side; smaller polygons are lines
Floats = NDArray[np.float64]
Corners = list[tuple[float, float]]
MOVING_LENGTHS = 0.25  # body lengths per second from which an object counts as moving,
MOVING_SHARE = 0.02  # or shares of the longer side of the frame, if its length is unknown
VISIT_SECONDS = 0.2  # a shorter absence from a zone does not end a visit
BEHAVIOUR_COLUMNS = (
    "sequence",
    "object",
    "seconds",
    "distance_px",
    "mean_speed_px_per_s",
    "median_speed_px_per_s",
    "p95_speed_px_per_s",
    "moving_share",
    "moving_from_px_per_s",
    "nearest_px",
)
ZONE_COLUMNS = (
    "sequence",
    "object",
    "zone",
    "time_in_zone",
    "share",
    "entries",
    "first_entry",
    "distance_px",
)
Row = dict[str, Any]


class ZoneError(Error):
    """A file of zones cannot be used, or a zone does not fit into the frames."""


@dataclass(frozen=True)
class Zones:
    """Named polygons.

    Attributes:
        zones: Corners (x, y) of each polygon by its name, from the top left corner of the frame.
        units: Whether corners are in pixels of the video or in 0..1.

    Example:
        >>> zones = Zones({"left": [(0, 0), (0.5, 0), (0.5, 1), (0, 1)]}, "frame")
        >>> zones.polygons(width=640, height=480)["left"].tolist()
        [[0.0, 0.0], [320.0, 0.0], [320.0, 480.0], [0.0, 480.0]]
        >>> Zones({"bow": [(0, 0), (9, 9), (9, 0), (0, 9)]})
        Traceback (most recent call last):
        ullayers.tracks.behaviour.ZoneError: zone 'bow': its sides cross each other; give the
        corners in order around it
    """

    zones: dict[str, Corners] = field(default_factory=dict)
    units: Literal["pixels", "frame"] = "pixels"

    def __post_init__(self) -> None:
        if len(self.zones) > MAX_ZONES:
            raise ZoneError(f"expected at most {MAX_ZONES} zones, got {len(self.zones)}")
        for name, corners in self.zones.items():
            _check_name(name)
            _check_polygon(name, corners)

    def polygons(self, width: int, height: int) -> dict[str, Floats]:
        """Return the corners of each zone in pixels of frames of this size, (corners, 2).

        Raises:
            ZoneError: A zone extends beyond the frames.
        """
        size = np.array([width, height], np.float64)
        scale = 1.0 if self.units == "pixels" else size
        found = {
            name: np.array(corners, np.float64) * scale for name, corners in self.zones.items()
        }
        for name, corners in found.items():
            if (corners < 0).any() or (corners > size).any():
                unit = "pixels" if self.units == "pixels" else "0 to 1"
                raise ZoneError(
                    f"zone {name!r} reaches beyond the frames of {width} x {height} pixels; give "
                    f"corners inside them, in {unit}"
                )
        return found


def read_zones(path: str | os.PathLike[str]) -> Zones:
    """Read a JSON file of zones, such as {"zones": {"nest": [[10, 10], [90, 10], [50, 80]]}}.

    With an entry "units": "frame", corners are in 0..1 instead of pixels.

    Raises:
        ZoneError: The file cannot be read, or a zone is not a polygon.
    """
    try:
        text = read_regular(path, MAX_BYTES).decode()
        content = json.loads(text, object_pairs_hook=_without_duplicates)
        zones = from_json(Zones, content)
    except FileNotFoundError:
        raise ZoneError(f"--zones {path}: does not exist") from None
    except OSError as error:
        raise ZoneError(f"--zones {path}: cannot be read ({error.strerror})") from error
    except ZoneError as error:
        raise ZoneError(f"--zones {path}: {error}") from None
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise ZoneError(
            f'--zones {path}: expected JSON such as {{"zones": {{"nest": [[10, 10], [90, 10], '
            f"[50, 80]]}}}} ({reason})"
        ) from error
    if not zones.zones:
        raise ZoneError(f"--zones {path}: has no zone; add one or leave --zones out")
    return zones


def check_measures(
    task: str,
    zones: Zones | None,
    mm_per_pixel: float | None,
    sources: Sequence[Source],
    infos: Sequence[Info],
) -> None:
    """Refuse measures that a task does not support, and zones that do not fit into the frames.

    Args:
        task: The task.
        zones: Zones to measure; None for none.
        mm_per_pixel: Size of a pixel; None for none.
        sources: Sources to read.
        infos: Their headers.

    Raises:
        ZoneError: The task finds no positions, or a zone extends beyond the frames of a source.
    """
    for option, value in {"--zones": zones, "--mm-per-pixel": mm_per_pixel}.items():
        if value is not None and task != "locate":
            raise ZoneError(f"--task {task} has no positions to measure; leave out {option}")
    if zones is None:
        return
    for source, info in zip(sources, infos, strict=True):
        try:
            zones.polygons(info.width, info.height)
        except ZoneError as error:
            raise ZoneError(f"--zones: {source.name}: {error}") from None


def contains(corners: Floats, x: Floats, y: Floats) -> NDArray[np.bool_]:
    """Return which points lie inside a polygon; False for NaN.

    A point on a side shared by two polygons is inside one of them.

    Args:
        corners: (corners, 2) of a polygon whose sides do not cross.
        x: (points,) horizontal positions.
        y: (points,) vertical positions.

    Example:
        >>> square = np.array([[0.0, 0], [2, 0], [2, 2], [0, 2]])
        >>> contains(square, np.array([1.0, 3.0, np.nan]), np.array([1.0, 1.0, 1.0])).tolist()
        [True, False, False]
    """
    inside = np.zeros(len(x), bool)
    for (x0, y0), (x1, y1) in zip(corners, np.roll(corners, -1, 0), strict=True):
        if y0 != y1:
            crosses = (y0 <= y) != (y1 <= y)
            inside ^= crosses & (x < x0 + (y - y0) * (x1 - x0) / (y1 - y0))
    return inside & np.isfinite(x) & np.isfinite(y)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a JSON object, and refuse duplicate names, which would hide a value."""
    names = [name for name, _ in pairs]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ZoneError(f"two zones are named {twice[0]!r}; rename one of them")
    return dict(pairs)


def _check_name(name: str) -> None:
    if not name.strip() or not name.isprintable() or len(name) > 60:
        raise ZoneError(f"expected names of 1 to 60 printable characters, got {name[:60]!r}")


def _check_polygon(name: str, corners: Corners) -> None:
    if not 3 <= len(corners) <= MAX_CORNERS:
        raise ZoneError(
            f"zone {name!r}: expected 3 to {MAX_CORNERS} corners [x, y], got {len(corners)}"
        )
    if not all(math.isfinite(value) and abs(value) < 1e6 for point in corners for value in point):
        raise ZoneError(f"zone {name!r}: expected finite numbers below 1e6 as corners")
    points = np.array(corners, np.float64)
    sides = np.roll(points, -1, 0) - points
    if (sides == 0).all(1).any():
        raise ZoneError(f"zone {name!r}: two corners in a row are the same; remove one of them")
    area = 0.5 * abs(float(_cross(points, np.roll(points, -1, 0)).sum()))
    if _crosses_itself(points):
        raise ZoneError(
            f"zone {name!r}: its sides cross each other; give the corners in order around it"
        )
    if area <= MIN_AREA * float((sides**2).sum(1).max()):
        raise ZoneError(f"zone {name!r}: has no area; give corners that are not on a line")


def _cross(first: Floats, second: Floats) -> Floats:
    product: Floats = first[..., 0] * second[..., 1] - first[..., 1] * second[..., 0]
    return product


def _crosses_itself(points: Floats) -> bool:
    """Return whether sides that are not neighbours share a point, or neighbours overlap."""
    ends = np.roll(points, -1, 0)
    count = len(points)

    def side_of(point: Floats) -> Floats:
        """Return on which side of line i the point j lies, (i, j)."""
        return np.sign(_cross((ends - points)[:, None], point[None] - points[:, None]))

    low, high = np.minimum(points, ends), np.maximum(points, ends)
    meet = ((low[:, None] <= high[None]) & (low[None] <= high[:, None])).all(2)
    starts, stops = side_of(points), side_of(ends)
    crossing = meet & (starts * stops <= 0) & (starts * stops <= 0).T
    apart = (np.arange(count)[:, None] - np.arange(count)) % count
    crossing[(apart <= 1) | (apart == count - 1)] = False
    # A side that turns back onto the one before it.
    sides = ends - points
    following = np.roll(sides, -1, 0)
    back = (_cross(sides, following) == 0) & ((sides * following).sum(1) < 0)
    return bool(crossing.any() or back.any())


@dataclass(frozen=True)
class Scene:
    """The objects of one sequence and their measures; lists have one entry for each object.

    Attributes:
        sequence: Name of the source.
        width: Width of the frames in pixels.
        height: Height of the frames.
        tracks: The tracks.
        sure: Frames of each track with sufficient confidence.
        durations: Seconds represented by each frame of a track.
        motions: Steps between consecutive such frames.
        nearest: Pixels to the nearest other object in each frame of a track; NaN if there is none.
    """

    sequence: str
    width: int
    height: int
    tracks: list[Track]
    sure: list[NDArray[np.bool_]]
    durations: list[Floats]
    motions: list[Motion]
    nearest: list[Floats]


def measure_scenes(tracks: Sequence[Track], sizes: Mapping[str, tuple[int, int]]) -> list[Scene]:
    """Measure all objects of all sequences.

    Args:
        tracks: From `read_tracks`.
        sizes: (width, height) of the frames of each sequence.

    Example:
        >>> t = np.arange(50)
        >>> places = {"x": t / 64, "y": 0 * t + 0.5, "confidence": np.ones(50)}
        >>> track = Track("a", 1, {"frame": t, "time": t / 25, **places})
        >>> [scene] = measure_scenes([track], {"a": (640, 100)})
        >>> round(scene.motions[0].distance), scene.durations[0].sum().round(3)
        (490, np.float64(2.0))
    """
    groups = groupby(tracks, lambda track: track.sequence)
    return [_measure(name, list(group), *sizes[name]) for name, group in groups]


def measure_folder(folder: Path, sequences: Sequence[Mapping[str, Any]]) -> Iterator[Scene]:
    """Measure the objects in tracks.csv of a folder, with one sequence at a time in memory.

    Args:
        folder: Results folder of `ul learn` or `ul apply`.
        sequences: Name, width and height of each sequence, as in summary.json.

    Raises:
        RunError: The table is missing or damaged.
    """
    sizes = {entry["name"]: (entry["width"], entry["height"]) for entry in sequences}
    for tracks in read_sequences(folder / "tracks.csv"):
        if tracks[0].sequence in sizes:  # unknown if a video can no longer be read
            yield from measure_scenes(tracks, sizes)


def _measure(sequence: str, tracks: list[Track], width: int, height: int) -> Scene:
    every = np.unique(np.concatenate([track.frame for track in tracks]))
    sure = [
        (track.confidence >= SURE) & np.isfinite(track.x) & np.isfinite(track.y) for track in tracks
    ]
    places = [np.stack([track.x * width, track.y * height], 1) for track in tracks]
    # With a stride, the numbers of consecutive frames are not consecutive.
    rows = [np.searchsorted(every, track.frame) for track in tracks]
    motions = [
        motion_between(_speeds(place, track, known), track.time, row, known)
        for place, track, row, known in zip(places, tracks, rows, sure, strict=True)
    ]
    nearest = _nearest(len(every), rows, places, sure)
    durations = [_durations(track.time, row) for track, row in zip(tracks, rows, strict=True)]
    return Scene(sequence, width, height, tracks, sure, durations, motions, nearest)


def _speeds(place: Floats, track: Track, sure: NDArray[np.bool_]) -> Floats:
    """Return the speeds in the table, or those of the positions in a table without speeds."""
    if np.isfinite(track.speed).any():
        return track.speed
    x, y = place.T
    return speed(np.where(sure, x, np.nan), y, track.time)


def _durations(time: Floats, rows: NDArray[np.int64]) -> Floats:
    """Return the time from each frame to the next; the usual interval if the next is missing."""
    steps = np.diff(time)
    follows = (np.diff(rows) == 1) & (steps > 0)
    usual = float(np.median(steps[follows])) if follows.any() else 0.0
    return np.append(np.where(follows, steps, usual), usual)


def _nearest(
    frames: int,
    rows: list[NDArray[np.int64]],
    places: list[Floats],
    sure: list[NDArray[np.bool_]],
) -> list[Floats]:
    all_places = np.full((len(rows), frames, 2), np.nan)
    for number, (row, place, known) in enumerate(zip(rows, places, sure, strict=True)):
        all_places[number, row] = np.where(known[:, None], place, np.nan)
    found = []
    for number, row in enumerate(rows):
        shift = np.delete(all_places, number, 0)[:, row] - all_places[number, row]
        distance = np.nan_to_num(np.hypot(shift[..., 0], shift[..., 1]), nan=np.inf)
        closest = distance.min(0, initial=np.inf)
        found.append(np.where(np.isinf(closest), np.nan, closest))
    return found


def behaviour_rows(scenes: Sequence[Scene]) -> list[Row]:
    """Return a row of behaviour.csv for each object; unknown values are None."""
    return [
        _behaviour_row(scene, number) for scene in scenes for number in range(len(scene.tracks))
    ]


def _behaviour_row(scene: Scene, number: int) -> Row:
    track, motion = scene.tracks[number], scene.motions[number]
    moving = moving_speed(scene, number)
    steps = motion.durations.sum()
    values = (
        float(scene.durations[number][scene.sure[number]].sum()),
        motion.distance,
        motion.mean_speed,
        motion.speed_quantile(0.5),
        motion.speed_quantile(0.95),
        float(motion.durations[motion.speeds >= moving].sum() / steps) if steps else None,
        moving,
        _mean(scene.nearest[number]),
    )
    return dict(zip(BEHAVIOUR_COLUMNS, (scene.sequence, track.object, *values), strict=True))


def moving_speed(scene: Scene, number: int) -> float:
    """Return the speed in pixels per second from which an object counts as moving."""
    length = scene.tracks[number].length
    if np.isfinite(length).any():
        return MOVING_LENGTHS * float(np.nanmedian(length))
    return MOVING_SHARE * max(scene.width, scene.height)


def zone_rows(scenes: Sequence[Scene], zones: Zones) -> list[Row]:
    """Return a row of zones.csv for each object and zone; unknown values are None.

    Raises:
        ZoneError: A zone extends beyond the frames of a sequence.
    """
    return [
        _zone_row(scene, number, name, corners)
        for scene in scenes
        for number in range(len(scene.tracks))
        for name, corners in zones.polygons(scene.width, scene.height).items()
    ]


def _zone_row(scene: Scene, number: int, name: str, corners: Floats) -> Row:
    track = scene.tracks[number]
    motion = scene.motions[number]
    sure = scene.sure[number]
    inside = sure & contains(corners, track.x * scene.width, track.y * scene.height)
    durations = scene.durations[number]
    total = durations[sure].sum()
    visits = _visits(inside[sure], track.time[sure])
    # A step that enters or leaves counts half.
    distance = float((motion.lengths * inside[motion.rows].mean(1)).sum())
    values = (
        float(durations[inside].sum()),
        float(durations[inside].sum() / total) if total else None,
        len(visits),
        float(visits[0]) if len(visits) else None,
        distance if len(motion.lengths) else None,
    )
    return dict(zip(ZONE_COLUMNS, (scene.sequence, track.object, name, *values), strict=True))


def _visits(inside: NDArray[np.bool_], time: Floats) -> Floats:
    """Return the start of each visit, including one that begins with the track.

    >>> _visits(np.array([1, 0, 1, 0, 0, 0, 1], bool), np.arange(7) / 10).tolist()
    [0.0, 0.6]
    """
    changes = np.diff(inside.astype(np.int8), prepend=0, append=0)
    starts = time[np.flatnonzero(changes[:-1] > 0)]
    ends = np.flatnonzero(changes < 0) - 1
    pause = np.append(np.inf, starts[1:] - time[ends[:-1]])
    return starts[pause[: len(starts)] > VISIT_SECONDS]


def _mean(values: Floats) -> float | None:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else None


def with_millimetres(rows: Sequence[Row], mm_per_pixel: float | None) -> list[Row]:
    """Append a column in millimetres for each column in pixels.

    >>> with_millimetres([{"object": 1, "distance_px": 10.0}], 0.5)
    [{'object': 1, 'distance_px': 10.0, 'distance_mm': 5.0}]
    """
    if mm_per_pixel is None:
        return list(rows)

    def convert(row: Row) -> Row:
        return {
            name.replace("_px", "_mm"): None if value is None else mm_per_pixel * value
            for name, value in row.items()
            if "_px" in name
        }

    return [row | convert(row) for row in rows]


def write_behaviour(
    folder: Path,
    scenes: Iterable[Scene],
    zones: Zones | None = None,
    mm_per_pixel: float | None = None,
) -> list[Path]:
    """Write behaviour.csv and, with zones, zones.csv; an unknown value is an empty cell.

    Args:
        folder: Output folder.
        scenes: From `measure_scenes`; empty if no object was found.
        zones: Zones to measure; None for none.
        mm_per_pixel: Size of a pixel, for columns in millimetres; None for none.

    Returns:
        The files written.
    """
    rows: list[Row] = []
    inside: list[Row] = []
    for scene in scenes:
        rows += behaviour_rows([scene])
        inside += [] if zones is None else zone_rows([scene], zones)
    for some in (rows, inside):
        some.sort(key=lambda row: str(row["sequence"]))
    written = [folder / "behaviour.csv"]
    _write(written[0], BEHAVIOUR_COLUMNS, rows, mm_per_pixel)
    if zones is not None:
        written.append(folder / "zones.csv")
        _write(written[1], ZONE_COLUMNS, inside, mm_per_pixel)
    return written


def read_behaviour(folder: str | os.PathLike[str]) -> DataFrame:
    """Return behaviour.csv of a results folder as a pandas DataFrame, a row for each object.

    Raises:
        RunError: The table is missing or damaged.
    """
    return read_frame(Path(folder, "behaviour.csv"), BEHAVIOUR_COLUMNS)


def read_zone_times(folder: str | os.PathLike[str]) -> DataFrame:
    """Return zones.csv of a results folder, a row for each object and zone.

    Raises:
        RunError: The table is missing, because no zones were given, or damaged.
    """
    return read_frame(Path(folder, "zones.csv"), ZONE_COLUMNS)


def _write(
    path: Path, columns: Sequence[str], rows: Sequence[Row], mm_per_pixel: float | None = None
) -> None:
    header, *lines = with_millimetres([dict.fromkeys(columns), *rows], mm_per_pixel)
    with replacing(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows([_cell(value) for value in line.values()] for line in lines)


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)
