"""Behaviour of each object: distance, speed, nearest neighbour and zones.

Only frames with a confidence of at least `SURE` count.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ullayers.learn.results import SURE
from ullayers.learn.zones import Zones, contains
from ullayers.output.motion import Motion, motion_between
from ullayers.output.track_table import Track, read_sequences, read_tracks
from ullayers.video.atomic_files import replacing

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

Floats = NDArray[np.float64]
Row = dict[str, Any]


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
        >>> t, no = np.arange(50), np.full(50, np.nan)
        >>> rest = (np.ones(50), 10.0 * t, 0 * t + 50.0, no, no, no, no, no)
        >>> track = Track("a", 1, t, t / 25, t / 64, 0 * t + 0.5, *rest)
        >>> [scene] = measure_scenes([track], {"a": (640, 100)})
        >>> round(scene.motions[0].distance), scene.durations[0].sum().round(3)
        (490, np.float64(2.0))
    """
    groups = groupby(tracks, lambda track: track.sequence)
    return [_measure(name, list(group), *sizes[name]) for name, group in groups]


def measure_folder(folder: Path, sequences: Sequence[Mapping[str, Any]]) -> list[Scene]:
    """Measure the objects in tracks.csv of a folder.

    Args:
        folder: Results folder of `ul learn` or `ul apply`.
        sequences: Name, width and height of each sequence, as in summary.json.

    Raises:
        RunError: The table is missing or damaged.
    """
    sizes = {entry["name"]: (entry["width"], entry["height"]) for entry in sequences}
    tracks = read_tracks(folder / "tracks.csv")
    # The size of a video is unknown if it can no longer be read.
    return measure_scenes([track for track in tracks if track.sequence in sizes], sizes)


def _measure(sequence: str, tracks: list[Track], width: int, height: int) -> Scene:
    every = np.unique(np.concatenate([track.frame for track in tracks]))
    sure = [
        (track.confidence >= SURE) & np.isfinite(track.x) & np.isfinite(track.y) for track in tracks
    ]
    places = [np.stack([track.x * width, track.y * height], 1) for track in tracks]
    # With a stride, the numbers of consecutive frames are not consecutive.
    rows = [np.searchsorted(every, track.frame) for track in tracks]
    motions = [
        motion_between(place, track.time, row, known)
        for place, track, row, known in zip(places, tracks, rows, sure, strict=True)
    ]
    nearest = _nearest(len(every), rows, places, sure)
    durations = [_durations(track.time, row) for track, row in zip(tracks, rows, strict=True)]
    return Scene(sequence, width, height, tracks, sure, durations, motions, nearest)


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
    scenes: Sequence[Scene],
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
    written = [folder / "behaviour.csv"]
    _write(written[0], BEHAVIOUR_COLUMNS, behaviour_rows(scenes), mm_per_pixel)
    if zones is not None:
        written.append(folder / "zones.csv")
        _write(written[1], ZONE_COLUMNS, zone_rows(scenes, zones), mm_per_pixel)
    return written


def write_fleet_behaviour(folder: Path, sequences: Sequence[Mapping[str, Any]]) -> Path:
    """Write behaviour.csv as `write_behaviour` does, with one sequence at a time in memory.

    Args:
        folder: Results folder with a tracks.csv.
        sequences: Name, width and height of each sequence, as in summary.json.

    Returns:
        The file written.

    Raises:
        RunError: The table is missing or damaged.
    """
    sizes = {entry["name"]: (entry["width"], entry["height"]) for entry in sequences}
    table = folder / "tracks.csv"
    found = read_sequences(table) if table.stat().st_size else ()  # no object in any video
    rows = [row for tracks in found for row in behaviour_rows(measure_scenes(tracks, sizes))]
    path = folder / "behaviour.csv"
    _write(path, BEHAVIOUR_COLUMNS, sorted(rows, key=lambda row: str(row["sequence"])))
    return path


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
