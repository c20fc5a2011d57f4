"""Files written on demand: tracks in any format, overlays of a range, the corrected report."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Mapping
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from ullayers.errors import Error
from ullayers.files import check_inside, open_regular, replacing
from ullayers.run.folder import check_outputs
from ullayers.run.plan import load_plan
from ullayers.run.reports import write_corrected, write_corrected_report
from ullayers.studio.editing import read_edited
from ullayers.tracks.formats.names import EXPORT_FOLDER, FORMATS
from ullayers.tracks.formats.write import plan_files, write_files
from ullayers.tracks.tracked_video import TrackedVideo
from ullayers.video.files.finding import safe_name

OVERLAY = "overlay"
REPORT = "report"
REQUESTED = {"format", "sequence", "first", "last"}


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
