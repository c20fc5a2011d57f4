"""Tracks with corrections applied; the original results are not changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ullayers.errors import UserError
from ullayers.output.corrected_rows import CorrectedRows
from ullayers.output.corrections import Correction, Corrections, read_corrections
from ullayers.output.crossing_table import Crossing
from ullayers.output.kinematics import half_window, speed
from ullayers.output.track_table import NAMES, Track
from ullayers.output.tracked_video import Numbers, TrackedVideo, read_videos

SHAPE = ("heading", "length", "width", "area")  # columns that belong to the mask


def apply_corrections(
    videos: Sequence[TrackedVideo], corrections: Corrections
) -> list[TrackedVideo]:
    """Return videos with corrected tracks, crossings and object numbers of masks.

    Speeds are recomputed from the corrected positions. Heading and size are measured on the mask,
    so an object that was moved by more than half of its length has none.

    Args:
        videos: From `read_videos`.
        corrections: The corrections; undone ones are ignored.

    Raises:
        UserError: A correction is invalid.
    """
    rows = corrected_rows(videos, corrections)
    return [
        _corrected(video, rows[video.name]) if video.name in rows else video for video in videos
    ]


def corrected_rows(
    videos: Sequence[TrackedVideo], corrections: Corrections
) -> dict[str, CorrectedRows]:
    """Return the corrected rows of each video that has corrections.

    Args:
        videos: From `read_videos`.
        corrections: The corrections.

    Raises:
        UserError: A correction is invalid.
    """
    touched = {correction.sequence for correction in corrections.applied}
    known = {video.name: CorrectedRows(video) for video in videos if video.name in touched}
    for number, correction in enumerate(corrections.applied, 1):
        try:
            _rows_of(known, correction).apply(correction)
        except UserError as error:
            raise UserError(
                f"corrections.json: correction {number} ({correction.op}): {error}"
            ) from error
    return known


def check_correction(
    videos: Sequence[TrackedVideo], corrections: Corrections, new: Correction
) -> Corrections:
    """Add a correction, after checking it against the tracks as corrected so far.

    Raises:
        UserError: The new correction is invalid: there is no such object, or the frame is outside
            the video.
    """
    known = {video.name: CorrectedRows(video) for video in videos if video.name == new.sequence}
    for correction in corrections.applied:
        if correction.sequence == new.sequence:
            _rows_of(known, correction).apply(correction)
    _rows_of(known, new).apply(new)
    return corrections.add(new)


def corrected_numbers(video: TrackedVideo, corrections: Corrections) -> Numbers:
    """Return the corrected numbers of all objects found in a video.

    An object has no number where it was deleted, in frames marked as empty, and where it was moved
    away from its mask.

    Args:
        video: From `read_videos`.
        corrections: The corrections.

    Raises:
        UserError: A correction is invalid.
    """
    rows = CorrectedRows(video)
    for correction in corrections.applied:
        if correction.sequence == video.name:
            rows.apply(correction)
    return _numbers(rows)


def read_corrected(folder: Path) -> tuple[list[TrackedVideo], Corrections]:
    """Read the results of a folder and apply its corrections.

    Raises:
        RunError: A file is missing or damaged.
        UserError: A correction is invalid.
    """
    corrections = read_corrections(folder)
    return apply_corrections(read_videos(folder), corrections), corrections


def _rows_of(known: dict[str, CorrectedRows], correction: Correction) -> CorrectedRows:
    if correction.sequence not in known:
        raise UserError(f"there is no sequence {correction.sequence}")
    return known[correction.sequence]


def _corrected(video: TrackedVideo, rows: CorrectedRows) -> TrackedVideo:
    kept = {
        track.object: track for place, track in enumerate(video.tracks) if rows.is_unchanged(place)
    }
    present = np.flatnonzero(np.bincount(rows.number))
    tracks = [
        kept.get(number) or _track(video, rows, number) for number in present.tolist() if number
    ]
    numbers = _numbers(rows)
    crossings = [_crossing(crossing, numbers) for crossing in video.crossings]
    left = [crossing for crossing in crossings if len(crossing.objects) > 1]
    return replace(video, tracks=tracks, crossings=left, processed=rows.frames, numbers=numbers)


def _track(video: TrackedVideo, rows: CorrectedRows, number: int) -> Track:
    chosen = np.flatnonzero(rows.number == number)
    chosen = chosen[np.argsort(rows.frame[chosen], kind="stable")]  # it is nearly sorted
    found = chosen < rows.count
    columns: dict[str, Any] = rows.columns(NAMES, chosen[found])
    if not found.all():
        for name, values in columns.items():
            columns[name] = np.full(len(chosen), np.nan, values.dtype)
            columns[name][found] = values
        columns["time"][~found] = _times(video, rows.frame[chosen[~found]])
    placed = rows.placed[chosen]
    x_px, y_px = rows.places(chosen[placed]).T
    columns["x_px"][placed], columns["y_px"][placed] = x_px, y_px
    columns["x"][placed] = x_px / video.width
    columns["y"][placed] = y_px / video.height
    columns["confidence"][placed] = np.isfinite(x_px)
    for name in SHAPE:
        columns[name][~rows.masked[chosen]] = np.nan
    _renew_speed(columns, rows, chosen)
    return Track(video.name, number, rows.frame[chosen], **columns)


def _times(video: TrackedVideo, frames: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the times of frames without a row of this object, from the rows of all objects."""
    if not video.tracks:
        return frames / video.fps
    known, first = np.unique(
        np.concatenate([track.frame for track in video.tracks]), return_index=True
    )
    time = np.concatenate([track.time for track in video.tracks])[first]
    outside = frames - frames.clip(known[0], known[-1])
    times: NDArray[np.float64] = np.interp(frames, known, time) + outside / video.fps
    return times


def _renew_speed(
    columns: dict[str, NDArray[Any]], rows: CorrectedRows, chosen: NDArray[np.int64]
) -> None:
    """Recompute the speed near rows that are not consecutive in the original track.

    Other rows keep their speed, which would change slightly because positions in a table are
    rounded.
    """
    half = half_window(columns["time"])
    joints = np.flatnonzero(~rows.follows(chosen))  # joint i is between rows i - 1 and i
    changed = _around(joints, half, len(chosen))
    if not changed.any():
        return
    used = _around(joints, 2 * half, len(chosen))
    renewed = np.full(len(chosen), np.nan)
    renewed[used] = speed(*(columns[name][used] for name in ("x_px", "y_px", "time")))
    columns["speed"][changed] = renewed[changed]


def _around(joints: NDArray[np.int64], reach: int, count: int) -> NDArray[np.bool_]:
    """Return which rows are at most `reach` rows away from a joint.

    >>> _around(np.array([0, 4]), 1, 6).tolist()
    [True, False, False, True, True, False]
    """
    changes = np.zeros(count + 1, np.int64)
    np.add.at(changes, (joints - reach).clip(0, count), 1)
    np.add.at(changes, (joints + reach).clip(0, count), -1)
    return np.cumsum(changes[:-1]) > 0


def _numbers(rows: CorrectedRows) -> Numbers:
    numbers = np.where(rows.masked, rows.number, 0)
    ends = rows.ends.tolist()
    tracks = {
        track.object: (track.frame, numbers[end - len(track.frame) : end])
        for track, end in zip(rows.video.tracks, ends, strict=True)
    }
    return Numbers(tracks)


def _crossing(crossing: Crossing, numbers: Numbers) -> Crossing:
    """Return a crossing with the numbers in its first frame, or in its last one."""
    found = np.array(crossing.objects)
    start, end = (
        numbers(np.full_like(found, frame), found)
        for frame in (crossing.first_frame, crossing.last_frame)
    )
    objects = np.unique(np.where(start > 0, start, end))
    return replace(crossing, objects=tuple(objects[objects > 0].tolist()))
