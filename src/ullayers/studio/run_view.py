"""Results of a run folder, as needed by the page."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ullayers.errors import Error, RunError
from ullayers.files import read_json, read_regular
from ullayers.run.folder import MAX_METRICS_BYTES, read_config
from ullayers.studio.table_file import read_rows
from ullayers.tracks.reading import REQUIRED, Track
from ullayers.tracks.table import CROP, PIXELS, SHAPE

# Files of a run that the page may download; nothing else leaves the folder.
FILES = (
    "report.html",
    "overlay.mp4",
    "tracks.csv",
    "codes.csv",
    "crossings.csv",
    "behaviour.csv",
    "zones.csv",
    "summary.json",
    "config.json",
    "corrections.json",
    "metrics.jsonl",
    "README.md",
)
COLUMNS = ("frame", "time", "x_px", "y_px", "confidence", "speed")  # that the page shows
USED = (*COLUMNS[1:], "x", "y", "length")  # and that corrections and overlays need
MAX_RECORDS = 20_000  # of one response


def tracks_of(folder: Path) -> list[Track]:
    """Return the original tracks of a run; empty if there is no table yet."""
    return read_rows(folder / "tracks.csv", USED, REQUIRED)


def codes_of(folder: Path) -> list[Track]:
    """Return the codes of a run; empty if there is no table yet."""
    other = {*PIXELS, *SHAPE, *CROP}
    return [
        replace(
            rows,
            object=0,
            columns={name: value for name, value in rows.columns.items() if name not in other},
        )
        for rows in read_rows(folder / "codes.csv")
    ]


def pack_table(
    columns: Sequence[str], objects: Iterable[tuple[int, Sequence[NDArray[Any]]]]
) -> bytes:
    """Return columns of numbers as bytes: a JSON header, then float32, object by object.

    Args:
        columns: Names of the columns.
        objects: Number of each object, and its columns.

    Example:
        >>> data = pack_table(["frame"], [(1, [np.array([0, 1])])])
        >>> int.from_bytes(data[:4], "little"), len(data) % 4
        (61, 0)
    """
    parts = list(objects)
    entries = [
        {"object": number, "rows": len(values[0]) if values else 0} for number, values in parts
    ]
    header = json.dumps({"columns": list(columns), "objects": entries}).encode()
    padding = b"\0" * (-(4 + len(header)) % 8)
    body = [np.asarray(value, "<f4").tobytes() for _, values in parts for value in values]
    return b"".join([struct.pack("<I", len(header)), header, padding, *body])


def records_after(folder: Path, after: int) -> tuple[list[dict[str, Any]], int]:
    """Return the training records of a run from a number on, and the number of the next one."""
    try:
        text = read_regular(folder / "metrics.jsonl", MAX_METRICS_BYTES).decode()
    except (OSError, ValueError):
        return [], 0
    lines = text.splitlines()
    if text and not text.endswith("\n"):
        lines.pop()  # it is being written
    if after > len(lines):  # another run has started here
        after = 0
    lines = lines[after : after + MAX_RECORDS]
    try:
        return [json.loads(line) for line in lines], after + len(lines)
    except ValueError:
        return [], after


def summary_of(folder: Path) -> dict[str, Any]:
    """Return summary.json; empty if there is none yet."""
    try:
        content = read_json(folder / "summary.json")
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def trust_of(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data of a summary for the list of runs."""
    found = summary.get("found")
    reasons = summary.get("reasons")
    return {
        "trusted": summary["trusted"] if isinstance(summary.get("trusted"), bool) else None,
        "reasons": [str(reason) for reason in reasons] if isinstance(reasons, list) else [],
        "found": found if isinstance(found, int | float) and math.isfinite(found) else None,
    }


def sequences_of(
    folder: Path, found: Iterable[Track], corrected: Iterable[Track], ids: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return the sequences of a run with their objects, first and last frame.

    Args:
        folder: The run.
        found: All original tracks.
        corrected: All corrected tracks.
        ids: Ids of the videos by the name of their sequence.
    """
    known = {
        str(entry.get("name")): entry
        for entry in summary_of(folder).get("sequences", [])
        if isinstance(entry, dict)
    }
    entries: dict[str, dict[str, Any]] = {}
    table: list[Track] = [*found, *codes_of(folder)]
    for rows in table:
        entry = entries.setdefault(rows.sequence, _sequence(rows.sequence, known, ids))
        _extend(entry, rows.frame)
    for track in corrected:
        entries[track.sequence]["objects"].append(track.object)
    for entry in entries.values():
        frames = entry["frames"]
        # The table has no rows of frames without objects.
        if isinstance(frames, int) and entry["last"] is not None and entry["last"] < frames:
            entry |= {"first": 0, "last": frames - 1}
    return list(entries.values())


def _sequence(name: str, known: Mapping[str, Any], ids: Mapping[str, str]) -> dict[str, Any]:
    entry = known.get(name, {})
    more = {key: entry.get(key) for key in ("frames", "width", "height", "fps")}
    return {
        "name": name,
        "source": ids.get(name),
        "objects": [],
        "first": None,
        "last": None,
    } | more


def _extend(entry: dict[str, Any], frames: NDArray[np.int64]) -> None:
    if len(frames):
        first, last = int(frames[0]), int(frames[-1])
        entry["first"] = first if entry["first"] is None else min(first, entry["first"])
        entry["last"] = last if entry["last"] is None else max(last, entry["last"])


def files_of(folder: Path) -> list[dict[str, Any]]:
    """Return the files of a run that the page may download."""
    paths = [folder / name for name in FILES]
    return [
        {"name": path.name, "bytes": path.stat().st_size}
        for path in paths
        if path.is_file() and not path.is_symlink()
    ]


def inputs_of(folder: Path) -> list[str]:
    """Return the inputs of a run; empty if its config.json is not there yet or damaged."""
    try:
        return read_config(folder).inputs
    except (RunError, Error):
        return []


def config_of(folder: Path) -> dict[str, Any]:
    """Return config.json unchanged; empty if it cannot be read."""
    try:
        content = read_json(folder / "config.json")
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
