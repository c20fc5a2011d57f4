"""Tables of a run, with only the part in use in memory.

A short table is read as it is. A long one is copied once, to a file of columns beside it
(tracks.columns, codes.columns) that is mapped into memory and is valid until the table changes. It
also contains the lowest and highest values of blocks of frames.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import struct
import tempfile
import threading
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ullayers.errors import Error, RunError
from ullayers.files import open_regular, partial_path, read_json, read_regular
from ullayers.run.folder import MAX_METRICS_BYTES, read_config
from ullayers.tracks.reading import (
    REQUIRED,
    STEP,
    Floats,
    Key,
    Track,
    extremes,
    frames_of,
    open_objects,
    read_objects,
)
from ullayers.tracks.table import CROP, PIXELS, SHAPE, SURE, damaged_table

LONG = 2**25  # bytes of a table that is copied, because it is read again for each page
TABLES_KEPT = 4
FORMAT = 1
MAX_HEADER = 2**26
ALIGNED = 8  # bytes
END = struct.Struct("<Q8s")  # place of the header, and what kind of file this is
MAGIC = b"ulcolumn"
EXACT = {"frame": "<i8", "time": "<f8"}  # the page gets everything else with single precision
Column = NDArray[Any]
Version = tuple[int, int, int]
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
ROWS_PER_RESPONSE = 4096  # largest number of rows of an object
MOST_POINTS = 20_000  # of all objects of a sample


def version_of(path: Path) -> Version:
    """Return a value that changes with a file; zeros if it does not exist."""
    try:
        stat = path.stat()
    except OSError:
        return 0, 0, 0
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def read_rows(path: Path, wanted: Sequence[str] = (), required: Sequence[str] = ()) -> list[Track]:
    """Return the rows of tracks.csv or codes.csv by sequence and object; none without a table.

    Args:
        path: The table.
        wanted: Columns to read besides frame and time; empty for all.
        required: Columns that it must have.

    Raises:
        Error: The table is damaged.
    """
    version = version_of(path)
    return _read(path, version, tuple(wanted), tuple(required)) if version[2] else []


@lru_cache(maxsize=TABLES_KEPT)
def _read(
    path: Path, version: Version, wanted: tuple[str, ...], required: tuple[str, ...]
) -> list[Track]:
    needed = "sequence", "frame", "time", *required
    if version[2] < LONG:
        return read_objects(path, wanted or None, needed)
    columns, parts = open_objects(path, wanted or None, needed)
    description = {"format": FORMAT, "version": list(version), "columns": columns}
    stored = _open(path.with_suffix(".columns"), description)
    if stored is not None:
        return stored
    return _copy(path, description, parts)


# Reading


def _open(path: Path, description: Mapping[str, Any]) -> list[Track] | None:
    """Map a file of columns into memory; None if it is missing or of another table."""
    try:
        with open_regular(path) as file:
            return _map(file, description)
    except (OSError, ValueError, KeyError, TypeError, OverflowError, struct.error):
        return None


def _map(file: IO[bytes], description: Mapping[str, Any]) -> list[Track] | None:
    content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    start, magic = END.unpack(content[-END.size :])
    if magic != MAGIC or not 0 <= len(content) - start <= MAX_HEADER:
        return None
    header = json.loads(content[start : -END.size])
    if header["description"] != description:
        return None
    return [
        Track(
            str(entry["sequence"]),
            int(entry["object"]),
            {name: _column(content, place) for name, place in entry["columns"].items()},
            {name: _column(content, place) for name, place in entry["extremes"].items()},
        )
        for entry in header["objects"]
    ]


def _column(content: mmap.mmap | bytes, place: tuple[str, int, int]) -> Column:
    kind, offset, count = place
    return np.frombuffer(content, kind, count, offset) if count else np.zeros(0, kind)


# Writing


def _copy(
    path: Path, description: Mapping[str, Any], parts: Iterator[dict[Key, Floats]]
) -> list[Track]:
    """Write a file of columns beside a table, or where it is deleted at the end, and map it."""
    partial = partial_path(path)
    folder = path.parent if os.access(path.parent, os.W_OK) else None
    try:
        with (
            open(partial, "w+b", 0) if folder else tempfile.TemporaryFile(buffering=0) as file,
            tempfile.TemporaryFile(buffering=0, dir=folder) as spool,
        ):
            _write(file, description, _by_object(description["columns"], parts, spool))
            found = _map(file, description)
            assert found is not None
            written = os.dup(file.fileno())
    except ValueError as error:
        partial.unlink(missing_ok=True)
        raise error if isinstance(error, Error) else damaged_table(path, error) from error
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise Error(f"{path}: cannot be copied to {partial.parent}: {error}") from error
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    # The file is renamed in the background, once it is on the disk, which takes long.
    threading.Thread(target=_keep, args=(written, partial, path.with_suffix(".columns"))).start()
    return found


def _keep(file: int, partial: Path, path: Path) -> None:
    try:
        with suppress(OSError):
            os.fsync(file)
            os.replace(partial, path)
    finally:
        os.close(file)
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def _put(file: IO[bytes], column: Column) -> tuple[str, int, int]:
    """Write a column; returns its type, place and length."""
    place = file.tell()
    data = np.ascontiguousarray(column).view(np.uint8)
    while len(data):
        data = data[file.write(data.data) :]
    file.seek(-place - column.nbytes & ALIGNED - 1, os.SEEK_CUR)
    return column.dtype.str, place, len(column)


def _by_object(
    names: Sequence[str], parts: Iterator[dict[Key, Floats]], spool: IO[bytes]
) -> Iterator[Track]:
    """Yield the rows object by object; those of other objects are kept on disk."""
    pieces: dict[Key, list[list[tuple[str, int, int]]]] = defaultdict(list)
    every = ["frame", *names]
    kinds = [EXACT.get(name, "<f4") for name in every]
    for part in parts:
        for key, rows in part.items():
            frames_of(key, rows[:, 0])
            columns = zip(kinds, rows.T, strict=True)
            pieces[key].append([_put(spool, values.astype(kind)) for kind, values in columns])
    content = mmap.mmap(spool.fileno(), 0, access=mmap.ACCESS_READ) if pieces else b""
    for key in sorted(pieces):
        joined = {
            name: np.concatenate([_column(content, piece) for piece in column])
            for name, column in zip(every, zip(*pieces[key], strict=True), strict=True)
        }
        frames_of(key, joined["frame"])
        yield Track(*key, joined)


def _write(file: IO[bytes], description: Mapping[str, Any], objects: Iterator[Track]) -> None:
    entries = []
    for rows in objects:
        groups = {"columns": rows.columns, "extremes": rows.extremes}
        entry: dict[str, Any] = {"sequence": rows.sequence, "object": rows.object}
        for group, columns in groups.items():
            entry[group] = {}
            for name, column in columns.items():
                entry[group][name] = _put(file, column)
        entries.append(entry)
    start = file.tell()
    file.write(json.dumps({"description": description, "objects": entries}).encode())
    file.write(END.pack(start, MAGIC))


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


def overview_of(table: list[Track]) -> dict[str, Any]:
    """Return the overview of a whole table for the page.

    Returns:
        Lowest and highest value of each column that has any; frames and share of sure rows of each
        object; frames per second and the time of frame 0 by the times in the table; and stretches
        of frames in which the confidence of an object is low.
    """
    tracks = [rows for rows in table if "confidence" in rows.columns]
    return {
        "ranges": _ranges(table),
        "objects": [
            {
                "object": rows.object,
                "first": int(rows.frame[0]),
                "last": int(rows.frame[-1]),
                "sure": _share_of_sure(rows),
            }
            for rows in table
        ],
        "unsure": unsure_stretches(tracks).tolist(),
    } | _clock(table)


def _share_of_sure(rows: Track) -> float | None:
    confidence = rows.columns.get("confidence")
    return None if confidence is None else float((confidence >= SURE).mean())


def _ranges(table: list[Track]) -> dict[str, list[float]]:
    found = {}
    for name in table[0].names if table else ():
        low = float(
            np.fmin.reduce([np.fmin.reduce(each.extremes[f"{name}_low"]) for each in table])
        )
        high = float(
            np.fmax.reduce([np.fmax.reduce(each.extremes[f"{name}_high"]) for each in table])
        )
        if np.isfinite(low) and np.isfinite(high):
            found[name] = [low, high]
    return found


def _clock(table: list[Track]) -> dict[str, float | None]:
    """Return frames per second by the longest object, and the time of frame 0."""
    longest = max(table, key=lambda rows: len(rows.frame), default=None)
    if longest is None or len(longest.frame) < 2:
        return {"fps": None, "start": 0.0}
    frame, time = longest.frame, longest.columns["time"]
    seconds = float(time[-1] - time[0])
    if not seconds > 0:
        return {"fps": None, "start": 0.0}
    fps = float(frame[-1] - frame[0]) / seconds
    return {"fps": fps, "start": float(time[0] - frame[0] / fps)}


def unsure_stretches(table: Iterable[Track]) -> NDArray[np.int64]:
    """Return first and last frame (stretches, 2) of where the confidence of any object is low.

    Example:
        >>> columns = {"frame": np.arange(5), "confidence": np.array([1, 0.2, 0.1, 0.9, 0.3])}
        >>> unsure_stretches([Track("a", 1, columns)]).tolist()
        [[1, 2], [4, 4]]
    """
    found = [np.zeros((0, 2), np.int64)]
    for rows in table:
        low = np.concatenate([[False], rows.columns["confidence"] < SURE, [False]])
        edges = np.flatnonzero(np.diff(low))
        found.append(np.stack([rows.frame[edges[::2]], rows.frame[edges[1::2] - 1]], 1))
    stretches = np.concatenate(found)
    stretches = stretches[np.argsort(stretches[:, 0], kind="stable")]
    reach = np.maximum.accumulate(stretches[:, 1])
    begins = np.concatenate([[True], stretches[1:, 0] > reach[:-1] + 1])[: len(stretches)]
    ends = np.concatenate([begins[1:], [True]])[: len(stretches)]
    return np.stack([stretches[begins, 0], reach[ends]], 1)


def pack_rows(table: list[Track], first: int, last: int, wanted: Collection[str] = ()) -> bytes:
    """Return the rows of a range of frames as bytes for the page.

    Args:
        table: The table.
        first: First frame.
        last: Last frame.
        wanted: Columns to send; empty for all.

    Raises:
        Error: These are too many frames.
    """
    if last - first >= ROWS_PER_RESPONSE:
        raise Error(f"expected at most {ROWS_PER_RESPONSE} frames, got {last - first + 1}")
    names = _names(table, wanted)
    parts = [(rows, rows.between(first, last)) for rows in table]
    return pack_table(
        names,
        [(rows.object, [rows.columns[name][part] for name in names]) for rows, part in parts],
    )


def pack_sample(table: list[Track], wanted: Collection[str] = ()) -> bytes:
    """Return every n-th row as bytes for the page, few enough to draw them all."""
    names = _names(table, wanted)
    step = max(1, -(-sum(len(rows.frame) for rows in table) // MOST_POINTS))
    return pack_table(
        names,
        [(rows.object, [rows.columns[name][::step] for name in names]) for rows in table],
    )


def pack_extremes(
    table: list[Track], first: int, last: int, step: int, wanted: Collection[str] = ()
) -> bytes:
    """Return the lowest and highest values of every few frames as bytes for the page.

    Args:
        table: The table.
        first: First frame.
        last: Last frame.
        step: Frames to sum up. The column `frame` has the first of them, a multiple of `step`.
        wanted: Columns to sum up; empty for all. Two are sent for each: NAME_low and NAME_high.

    Raises:
        Error: These are too many values.
    """
    if step < 1 or (last - first) // max(1, step) >= ROWS_PER_RESPONSE:
        raise Error(f"expected at most {ROWS_PER_RESPONSE} values, got more")
    names = [name for name in _names(table, wanted) if name not in EXACT]
    columns = ["frame", *(f"{name}_{end}" for name in names for end in ("low", "high"))]
    objects = []
    for rows in table:
        is_summed = step % STEP == first % STEP == (last + 1) % STEP == 0
        known = rows.extremes if is_summed else rows.columns
        start, end = np.searchsorted(known["frame"], [first, last + 1])
        part = {name: column[start:end] for name, column in known.items()}
        found = extremes(part, names, step)
        objects.append((rows.object, [found[name] for name in columns]))
    return pack_table(columns, objects)


def _names(table: list[Track], wanted: Collection[str]) -> list[str]:
    known = table[0].columns if table else ()
    return [name for name in known if not wanted or name in wanted]
