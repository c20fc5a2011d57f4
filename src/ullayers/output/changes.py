"""Differences between a run trained with corrections and the run before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ullayers.output.corrected_rows import CorrectedRows
from ullayers.output.corrected_tracks import corrected_rows
from ullayers.output.corrections import Corrections
from ullayers.output.track_table import Track
from ullayers.output.tracked_video import TrackedVideo, read_videos

FAR = 0.01  # of the frame width: a position that moved by more has changed

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Changes:
    """Changes due to training with corrections.

    Attributes:
        frames: Number of positions compared: of the same object in the same frame.
        moved: Number of positions that moved by more than 1 % of the frame width.
        share: Their share.
        median_px: Median distance between the old and the new position in pixels; None without
            frames.
        corrected_before_px: Mean distance of the old positions from the corrected ones; None if no
            position was corrected.
        corrected_after_px: The same for the new positions.
        sentence: Summary as a sentence.
    """

    frames: int
    moved: int
    share: float
    median_px: float | None
    corrected_before_px: float | None
    corrected_after_px: float | None
    sentence: str


def compare_runs(old: Path, new: Path, corrections: Corrections) -> Changes:
    """Compare the positions found by two runs.

    Args:
        old: Folder of the run that was corrected.
        new: Folder of the run trained with the corrections.
        corrections: The corrections of the old run.

    Raises:
        RunError: A file of a run is missing or damaged.
        UserError: A correction is invalid.
    """
    before = read_videos(old)
    after = {video.name: video for video in read_videos(new)}
    pairs = [(video, after[video.name]) for video in before if video.name in after]
    moves = [np.zeros(0), *(_moves(*pair) for pair in pairs)]
    moved = sum(int((each > FAR).sum()) for each in moves)
    widths = [0, *(video.width for video, _ in pairs)]
    pixels = np.concatenate([each * width for each, width in zip(moves, widths, strict=True)])
    rows = corrected_rows(before, corrections)
    told = [_from_corrected(*pair, rows[pair[0].name]) for pair in pairs if pair[0].name in rows]
    near = np.concatenate([np.zeros((0, 2)), *told])
    share = moved / max(len(pixels), 1)
    median = float(np.median(pixels)) if len(pixels) else None
    first, last = near.mean(0).tolist() if len(near) else (None, None)
    sentence = _sentence(len(pixels), moved, share, median)
    if len(near):
        noun = (
            "the corrected position" if len(near) == 1 else f"the {len(near)} corrected positions"
        )
        sentence += f" Its distance from {noun} was {first:.1f} px and is now {last:.1f} px."
    return Changes(len(pixels), moved, share, median, first, last, sentence)


def _sentence(frames: int, moved: int, share: float, median: float | None) -> str:
    if not moved:
        return f"The position is the same as before in all {frames:,} frames."
    return (
        f"The position has changed in {moved:,} of {frames:,} frames ({share:.1%}); the median "
        f"change is {median:.1f} px."
    )


def _moves(old: TrackedVideo, new: TrackedVideo) -> Floats:
    """Return the distances between old and new positions, relative to the frame width."""
    found = [np.zeros(0)]
    for track in old.tracks:
        for other in _numbered(new.tracks, track.object):
            _, mine, its = np.intersect1d(track.frame, other.frame, return_indices=True)
            offset = _places(track)[mine] - _places(other)[its]
            distance = np.hypot(*offset.T) / old.width
            found.append(distance[np.isfinite(distance)])
    return np.concatenate(found)


def _from_corrected(old: TrackedVideo, new: TrackedVideo, rows: CorrectedRows) -> Floats:
    """Return (positions, 2) distances in pixels of the old and new from the corrected ones."""
    told = np.flatnonzero(rows.placed & (rows.number > 0))
    told = told[np.isfinite(rows.places(told)[:, 0])]
    found = [np.zeros((0, 2))]
    for number in np.unique(rows.number[told]).tolist():
        chosen = told[rows.number[told] == number]
        distances = [
            _distances(video.tracks, number, rows.frame[chosen], rows.places(chosen))
            for video in (old, new)
        ]
        found.append(np.stack(distances, 1))
    every = np.concatenate(found)
    return every[np.isfinite(every).all(1)]


def _distances(
    tracks: Sequence[Track], number: int, frames: NDArray[np.int64], places: Floats
) -> Floats:
    """Return the distances of an object from given positions; NaN where it has no row."""
    distances = np.full(len(frames), np.nan)
    for track in _numbered(tracks, number):
        order = np.argsort(frames)
        _, mine, its = np.intersect1d(frames[order], track.frame, return_indices=True)
        offset = places[order[mine]] - _places(track)[its]
        distances[order[mine]] = np.hypot(*offset.T)
    return distances


def _numbered(tracks: Sequence[Track], number: int) -> list[Track]:
    return [track for track in tracks if track.object == number]


def _places(track: Track) -> Floats:
    return np.stack([track.x_px, track.y_px], 1)
