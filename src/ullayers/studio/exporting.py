"""Files for other programs, written on demand: tracks in any format, and overlays of a range."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ullayers.errors import UserError
from ullayers.learn.folders import check_inside
from ullayers.output.corrected_tables import write_corrected
from ullayers.output.formats.names import FORMATS
from ullayers.output.formats.write import FOLDER, plan_files, write_files

REQUESTED = {"format", "sequence", "first", "last"}


def export_run(folder: Path, content: Mapping[str, Any]) -> list[Path]:
    """Write the corrected tracks of a run in a format; returns the files.

    Args:
        folder: The run.
        content: Format, and optionally sequence, first and last frame.

    Raises:
        UserError: The format is unknown, its package is not installed, or nothing is there.
    """
    name, sequence, first, last = _checked(content)
    target = folder / FOLDER
    target.mkdir(exist_ok=True)
    check_inside(folder, target)
    if name == "csv":
        return write_corrected(folder, target, sequence=sequence, first=first, last=last)
    files = plan_files(folder, name, target, sequence=sequence, first=first, last=last)
    write_files(name, files)
    return [path for file in files for path in file.paths]


def _checked(content: Mapping[str, Any]) -> tuple[str, str | None, int | None, int | None]:
    unknown = sorted(set(content) - REQUESTED)
    if unknown:
        raise UserError(f"unknown entry {unknown[0]!r}")
    name, sequence = content.get("format"), content.get("sequence")
    if name not in FORMATS:
        raise UserError(f"expected a format of {', '.join(FORMATS)}")
    if sequence is not None and not isinstance(sequence, str):
        raise UserError("sequence: expected a name")
    frames = [content.get("first"), content.get("last")]
    for frame in frames:
        if frame is not None and (not isinstance(frame, int) or not 0 <= frame < 2**53):
            raise UserError("expected numbers of frames")
    return name, sequence, frames[0], frames[1]


def exported_file(folder: Path, name: str) -> Path:
    """Return an exported file of a run.

    Raises:
        KeyError: There is no such file.
    """
    path = folder / FOLDER / name
    if os.path.basename(name) != name or not path.is_file() or path.is_symlink():
        raise KeyError(name)
    return path
