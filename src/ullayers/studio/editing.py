"""Corrections of a run: made on the page, kept in its folder, applied to all that is shown."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ullayers.errors import UserError
from ullayers.learn.folders import CORRECTIONS
from ullayers.output.corrected_tracks import (
    apply_corrections,
    check_correction,
    corrected_numbers,
)
from ullayers.output.corrections import (
    Corrections,
    correction_from_json,
    read_corrections,
    write_corrections,
)
from ullayers.output.crossing_table import Crossing
from ullayers.output.outlines import find_outlines, read_outlines
from ullayers.output.track_table import Track
from ullayers.output.tracked_video import Numbers, TrackedVideo, read_videos
from ullayers.studio.run_view import Version, tracks_of, version_of

FILES = ("tracks.csv", "summary.json", "crossings.csv", CORRECTIONS)
KEPT = 4
MAX_OUTLINED = 1000  # frames of one answer

_writing = threading.Lock()  # two pages may correct the same run
_reading: dict[Path, threading.Lock] = {}


@dataclass(frozen=True)
class Edited:
    """Tracks of a run as they were found and as they are after corrections."""

    found: list[TrackedVideo]
    videos: list[TrackedVideo]
    corrections: Corrections

    def tracks(self, sequence: str, *, found: bool = False) -> list[Track]:
        """Return the tracks of a sequence.

        Args:
            sequence: Name of the sequence.
            found: Whether to leave out the corrections.
        """
        videos = self.found if found else self.videos
        return [track for video in videos if video.name == sequence for track in video.tracks]

    def numbers(self, sequence: str) -> Numbers | None:
        """Return the numbers of objects after corrections; None if none has changed."""
        if not any(each.sequence == sequence for each in self.corrections.applied):
            return None
        [video] = [video for video in self.found if video.name == sequence]
        return corrected_numbers(video, self.corrections)

    @property
    def crossings(self) -> list[Crossing]:
        """Crossings of all sequences."""
        return [crossing for video in self.videos for crossing in video.crossings]


def read_edited(folder: Path) -> Edited:
    """Read the tracks of a run, with and without corrections.

    Raises:
        UserError: A file is damaged, or a correction does not fit.
    """
    with _reading.setdefault(folder, threading.Lock()):  # a long table is not read twice at once
        return _read(folder, tuple(version_of(folder / name) for name in FILES))


@lru_cache(maxsize=KEPT)
def _read(folder: Path, versions: tuple[Version, ...]) -> Edited:
    if not (folder / "tracks.csv").exists():
        return Edited([], [], Corrections())
    if not (folder / "summary.json").exists():  # learning goes on, or ul watch has written it
        return _read_watched(folder)
    found = read_videos(folder)
    corrections = read_corrections(folder)
    return Edited(found, apply_corrections(found, corrections), corrections)


def _read_watched(folder: Path) -> Edited:
    names = dict.fromkeys(track.sequence for track in tracks_of(folder))
    videos = [
        TrackedVideo(
            name, 1, 1, 1.0, 0, [each for each in tracks_of(folder) if each.sequence == name]
        )
        for name in names
    ]
    return Edited(videos, videos, Corrections())


def corrections_of(folder: Path) -> dict[str, Any]:
    """Return the corrections of a run for the page.

    Raises:
        UserError: The file is damaged.
    """
    return read_corrections(folder).to_json()


def outlines_of(folder: Path, sequence: str, first: int, last: int) -> dict[int, list[Any]]:
    """Return the outlines in some frames, with the numbers of objects after corrections.

    Args:
        folder: The run.
        sequence: Name of the sequence.
        first: Number of the first frame.
        last: Number of the last frame.

    Returns:
        For each frame with outlines, a list of objects, each with its points x0, y0, x1, y1, ...;
        empty if the run has none.

    Raises:
        UserError: A file is damaged, or too many frames are asked for.
    """
    if last - first >= MAX_OUTLINED:
        raise UserError(f"expected at most {MAX_OUTLINED} frames, got {last - first + 1}")
    path = find_outlines(folder)
    if path is None:
        return {}
    numbers = read_edited(folder).numbers(sequence)
    answer = {}
    for frame, found in read_outlines(path, sequence, first, last).items():
        objects = np.array([outline.object for outline in found])
        if numbers is not None:
            objects = numbers(np.full(len(found), frame), objects)
        pairs = zip(objects.tolist(), found, strict=True)
        answer[frame] = [[object, each.points.ravel().tolist()] for object, each in pairs if object]
    return answer


def correct(folder: Path, content: Any) -> None:
    """Add a correction.

    Raises:
        UserError: It does not fit.
    """
    new = correction_from_json(content)
    _change(folder, lambda videos, known: check_correction(videos, known, new))


def undo(folder: Path) -> None:
    """Take back the last correction.

    Raises:
        UserError: There is none.
    """
    _change(folder, lambda _, known: known.undo())


def redo(folder: Path) -> None:
    """Make the correction again that was taken back last.

    Raises:
        UserError: There is none.
    """
    _change(folder, lambda _, known: known.redo())


def _change(folder: Path, change: Callable[[list[TrackedVideo], Corrections], Corrections]) -> None:
    with _writing:
        if not (folder / "summary.json").exists():
            raise UserError("this run has no results yet that can be corrected")
        edited = read_edited(folder)
        write_corrections(folder, change(edited.found, read_corrections(folder)))
