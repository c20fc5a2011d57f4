"""Corrections of a run: made on the page, stored in its folder, applied to all results shown."""

from __future__ import annotations

import csv
import math
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ullayers.errors import Error
from ullayers.files import check_inside, open_regular, replacing
from ullayers.report.drawing import draw_objects
from ullayers.report.overlay import DISPLAY_SIZE
from ullayers.run.folder import check_outputs
from ullayers.run.plan import load_plan
from ullayers.run.reports import write_corrected, write_corrected_report
from ullayers.studio.tables import COLUMNS, Version, codes_of, tracks_of, version_of
from ullayers.tracks.corrections import (
    CORRECTIONS,
    Corrections,
    apply_corrections,
    check_correction,
    correction_from_json,
    read_corrections,
    write_corrections,
)
from ullayers.tracks.formats.names import EXPORT_FOLDER, FORMATS
from ullayers.tracks.formats.write import plan_files, write_files
from ullayers.tracks.masks import find_outlines, read_outlines
from ullayers.tracks.reading import Crossing, Track
from ullayers.tracks.tracked_video import Numbers, TrackedVideo, read_videos
from ullayers.video.access import FrameAccess
from ullayers.video.files.finding import safe_name
from ullayers.video.files.writing import VideoWriter

FILES = ("tracks.csv", "summary.json", "crossings.csv")
KEPT = 4
MAX_OUTLINED = 1000  # frames of one response
_writing = threading.Lock()  # two pages may correct the same run
_reading: dict[Path, threading.Lock] = {}
OVERLAY = "overlay"
REPORT = "report"
REQUESTED = {"format", "sequence", "first", "last"}
MOST_OVERLAY_FRAMES = 9000  # five minutes at 30 frames per second
FRAMES_IN_MEMORY = 32
MAX_WIDTH = 960  # pixels


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


def table_of(folder: Path, sequence: str, *, found: bool = False) -> list[Track]:
    """Return the tracks or codes of a sequence; empty if there are none.

    Args:
        folder: The run.
        sequence: Name of the sequence.
        found: Whether to leave out the corrections.

    Raises:
        Error: A file is damaged.
    """
    codes = [rows for rows in codes_of(folder) if rows.sequence == sequence]
    return codes or read_edited(folder).rows(sequence, found=found)


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


def export_run(folder: Path, content: Mapping[str, Any]) -> list[Path]:
    """Write the corrected tracks of a run in a format, or its report; returns the files.

    Args:
        folder: The run.
        content: Format, and optionally sequence, first and last frame; the report is always that
            of the whole run.

    Raises:
        Error: The format is unknown, its package is not installed, or there is nothing to
            write.
    """
    if content.get("format") == REPORT:
        path = export_folder(folder) / "report.html"
        write_corrected_report(load_plan(folder, "cpu"), path)
        return [path]
    name, sequence, first, last = _checked(content)
    target = export_folder(folder)
    if name == "csv" and not (folder / "tracks.csv").exists():
        return [_write_codes(folder, target, sequence, first, last)]
    if name == "csv":
        return write_corrected(folder, target, sequence=sequence, first=first, last=last)
    files = plan_files(folder, name, target, sequence=sequence, first=first, last=last)
    write_files(name, files)
    return [path for file in files for path in file.paths]


def _write_codes(
    folder: Path, target: Path, sequence: str | None, first: int | None, last: int | None
) -> Path:
    """Write the codes of a range of frames; returns the file."""
    low, high = first or 0, math.inf if last is None else last
    frames = "" if first is last is None else f"-{low}-{'' if last is None else last}"
    path = target / f"{safe_name(sequence or 'all')}{frames}.codes.csv"
    count = 0
    try:
        with (
            TextIOWrapper(open_regular(folder / "codes.csv"), "utf-8", newline="") as lines,
            replacing(path) as file,
        ):
            rows = csv.reader(lines)
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(next(rows, []))
            for row in rows:
                if sequence in (None, row[0]) and low <= int(row[1]) <= high:
                    writer.writerow(row)
                    count += 1
            if not count:
                raise Error("there are no codes in these frames")
    except Error:
        raise
    except (OSError, ValueError, IndexError, csv.Error) as error:
        raise Error(f"{folder.name}: codes.csv cannot be read: {error}") from error
    return path


def export_folder(folder: Path) -> Path:
    """Return the folder of exported files of a run, which is created if needed."""
    target = folder / EXPORT_FOLDER
    target.mkdir(exist_ok=True)
    check_inside(folder, target)
    check_outputs(target.iterdir(), (), folder)
    return target


def overlay_range(folder: Path, content: Mapping[str, Any]) -> tuple[TrackedVideo, int, int]:
    """Return the corrected tracks of a sequence, and the first and last frame of an overlay.

    Args:
        folder: The run.
        content: Optionally sequence, first and last frame.

    Raises:
        Error: There is no such sequence, or no such frames.
    """
    _, sequence, first, last = _checked({"format": "csv"} | dict(content))
    videos = [video for video in read_edited(folder).videos if sequence in (None, video.name)]
    if not videos or not len(videos[0].frames):
        raise Error("there are no tracks to draw")
    frames = videos[0].frames
    lowest, highest = int(frames[0]), int(frames[-1])
    first = lowest if first is None else max(lowest, first)
    last = highest if last is None else min(highest, last)
    if last < first:
        raise Error(f"the tracks are in frames {lowest} to {highest}")
    return videos[0], first, last


def _checked(content: Mapping[str, Any]) -> tuple[str, str | None, int | None, int | None]:
    unknown = sorted(set(content) - REQUESTED)
    if unknown:
        raise Error(f"unknown entry {unknown[0]!r}")
    name, sequence = content.get("format"), content.get("sequence")
    if name not in FORMATS:
        raise Error(f"expected a format of {', '.join(FORMATS)}")
    if sequence is not None and not isinstance(sequence, str):
        raise Error("sequence: expected a name")
    frames = [content.get("first"), content.get("last")]
    for frame in frames:
        if frame is not None and (not isinstance(frame, int) or not 0 <= frame < 2**53):
            raise Error("expected numbers of frames")
    return name, sequence, frames[0], frames[1]


def exported_file(folder: Path, name: str) -> Path:
    """Return an exported file of a run.

    Raises:
        KeyError: There is no such file.
    """
    path = folder / EXPORT_FOLDER / name
    if os.path.basename(name) != name or not path.is_file() or path.is_symlink():
        raise KeyError(name)
    return path


def write_overlay(
    path: Path, folder: Path, video: TrackedVideo, access: FrameAccess, first: int, last: int
) -> None:
    """Draw outlines, trails and numbers of corrected tracks onto frames.

    Args:
        path: The video to write.
        folder: The run.
        video: Corrected tracks of the sequence.
        access: Its frames.
        first: First frame.
        last: Last frame.

    Raises:
        Error: There are too many frames, or none.
    """
    if not 0 <= last - first < MOST_OVERLAY_FRAMES:
        raise Error(f"an overlay has up to {MOST_OVERLAY_FRAMES:,} frames; select a shorter range")
    own = access.frame(first).shape[:2]
    size = _shown_size(*own)
    with VideoWriter(path, video.fps) as writer:
        for start in range(first, last + 1, FRAMES_IN_MEMORY):
            numbers = np.arange(start, min(start + FRAMES_IN_MEMORY, last + 1))
            frames = np.stack([_shown(access.frame(int(n), size[1]), size) for n in numbers])
            found = outlines_of(folder, video.name, int(numbers[0]), int(numbers[-1]))
            labels = np.stack([_labels(found.get(int(n), []), own, size) for n in numbers])
            drawn = draw_objects(frames, labels, video.tracks, numbers, video.crossings)
            for frame in drawn:
                writer.write(frame)


def _shown_size(height: int, width: int) -> tuple[int, int]:
    """Return an even (height, width); small frames are enlarged as in overlay.mp4.

    >>> _shown_size(120, 160), _shown_size(1080, 1920), _shown_size(481, 641)
    ((360, 480), (540, 960), (480, 640))
    """
    scale = min(max(1, DISPLAY_SIZE // max(height, width)), MAX_WIDTH / width)
    return max(2, round(scale * height) // 2 * 2), max(2, round(scale * width) // 2 * 2)


def _shown(frame: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    resized = cv2.resize(frame, size[::-1], interpolation=cv2.INTER_CUBIC)
    return resized.astype(np.uint8, copy=False)


def _labels(polygons: list[Any], own: tuple[int, ...], size: tuple[int, int]) -> NDArray[np.uint16]:
    """Return the number of the object of each pixel.

    Args:
        polygons: Numbers of objects and their points in pixels of the video.
        own: (height, width) of the video.
        size: (height, width) of the result.
    """
    labels = np.zeros(size, np.uint16)
    scale = np.array([size[1] / own[1], size[0] / own[0]])
    for number, points in polygons:
        corners = np.round(np.reshape(points, (-1, 2)) * scale).astype(np.int32)
        cv2.fillPoly(labels, [corners], number)
    return labels
