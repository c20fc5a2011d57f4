"""Corrections of a run: made on the page, stored in its folder, applied to all results shown."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ullayers.errors import Error
from ullayers.studio.run_view import COLUMNS, tracks_of
from ullayers.studio.table_file import Version, version_of
from ullayers.tracks.corrections import (
    CORRECTIONS,
    Corrections,
    apply_corrections,
    check_correction,
    correction_from_json,
    read_corrections,
    write_corrections,
)
from ullayers.tracks.masks import find_outlines, read_outlines
from ullayers.tracks.reading import Crossing, Track
from ullayers.tracks.tracked_video import Numbers, TrackedVideo, read_videos

FILES = ("tracks.csv", "summary.json", "crossings.csv")
KEPT = 4
MAX_OUTLINED = 1000  # frames of one response

_writing = threading.Lock()  # two pages may correct the same run
_reading: dict[Path, threading.Lock] = {}
_latest: dict[Path, tuple[Any, Edited]] = {}  # versions of the files of a run, and their content


@dataclass(frozen=True)
class Edited:
    """Tracks of a run, original and corrected.

    Attributes:
        found: Original tracks.
        videos: Corrected tracks; tracks without corrections are unchanged.
        corrections: The corrections.
    """

    found: list[TrackedVideo]
    videos: list[TrackedVideo]
    corrections: Corrections
    _rows: dict[tuple[str, bool], list[Track]] = field(default_factory=dict)

    def rows(self, sequence: str, *, found: bool = False) -> list[Track]:
        """Return the tracks of a sequence.

        Args:
            sequence: Name of the sequence.
            found: Whether to leave out the corrections.
        """
        key = sequence, found
        if key not in self._rows:
            videos = self.found if found else self.videos
            tracks = [track for video in videos if video.name == sequence for track in video.tracks]
            self._rows[key] = [track.only(COLUMNS) for track in tracks if len(track.frame)]
        return self._rows[key]

    def numbers(self, sequence: str) -> Numbers | None:
        """Return the corrected object numbers; None if none has changed."""
        return next((video.numbers for video in self.videos if video.name == sequence), None)

    @property
    def crossings(self) -> list[Crossing]:
        """Crossings of all sequences."""
        return [crossing for video in self.videos for crossing in video.crossings]


def read_edited(folder: Path) -> Edited:
    """Read the tracks of a run, with and without corrections.

    Raises:
        Error: A file is damaged, or a correction is invalid.
    """
    with _reading.setdefault(folder, threading.Lock()):  # a long table is not read twice at once
        versions = tuple(version_of(folder / name) for name in FILES)
        state = versions, version_of(folder / CORRECTIONS)
        known = _latest.pop(folder, None)
        if known is None or known[0] != state:
            known = None  # old and new tables together may not fit into memory
            while len(_latest) >= KEPT:
                _latest.pop(next(iter(_latest)), None)
            known = state, _read(folder, versions)
        _latest[folder] = known
        return known[1]


def _read(folder: Path, versions: tuple[Version, ...]) -> Edited:
    found = _found(folder, versions)
    is_finished = (folder / "summary.json").exists()
    corrections = read_corrections(folder) if is_finished else Corrections()
    return Edited(found, apply_corrections(found, corrections), corrections)


@lru_cache(maxsize=KEPT)
def _found(folder: Path, versions: tuple[Version, ...]) -> list[TrackedVideo]:
    if not (folder / "tracks.csv").exists():
        return []
    tracks = tracks_of(folder)
    if (folder / "summary.json").exists():
        return read_videos(folder, lambda _: tracks)
    # Training continues, or the run was written by ul watch.
    names = dict.fromkeys(track.sequence for track in tracks)
    return [
        TrackedVideo(name, 1, 1, 1.0, 0, [each for each in tracks if each.sequence == name])
        for name in names
    ]


def corrections_of(folder: Path) -> dict[str, Any]:
    """Return the corrections of a run for the page.

    Raises:
        Error: The file is damaged.
    """
    return read_corrections(folder).to_json()


def outlines_of(folder: Path, sequence: str, first: int, last: int) -> dict[int, list[Any]]:
    """Return the outlines in a range of frames, with corrected object numbers.

    Args:
        folder: The run.
        sequence: Name of the sequence.
        first: Number of the first frame.
        last: Number of the last frame.

    Returns:
        For each frame with outlines, a list of objects, each with its points x0, y0, x1, y1, ...;
        empty if the run has none.

    Raises:
        Error: A file is damaged, or too many frames are requested.
    """
    if last - first >= MAX_OUTLINED:
        raise Error(f"expected at most {MAX_OUTLINED} frames, got {last - first + 1}")
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
        Error: It is invalid.
    """
    new = correction_from_json(content)
    _change(folder, lambda videos, known: check_correction(videos, known, new))


def undo(folder: Path) -> None:
    """Undo the last correction.

    Raises:
        Error: There is none.
    """
    _change(folder, lambda _, known: known.undo())


def redo(folder: Path) -> None:
    """Redo the last undone correction.

    Raises:
        Error: There is none.
    """
    _change(folder, lambda _, known: known.redo())


def _change(folder: Path, change: Callable[[list[TrackedVideo], Corrections], Corrections]) -> None:
    with _writing:
        if not (folder / "summary.json").exists():
            raise Error("this run has no results yet that can be corrected")
        edited = read_edited(folder)
        write_corrections(folder, change(edited.found, read_corrections(folder)))
