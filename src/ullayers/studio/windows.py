"""Parts of the tables of a run, so that the page never loads a whole table.

A page requests an overview, a sample of the points, the rows of the frames it shows, and the lowest
and highest values of blocks of frames, from which it draws time lines.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ullayers.errors import Error
from ullayers.studio.editing import read_edited
from ullayers.studio.run_view import codes_of, pack_table
from ullayers.studio.table_file import EXACT
from ullayers.tracks.reading import STEP, Track, extremes
from ullayers.tracks.table import SURE

ROWS_PER_RESPONSE = 4096  # largest number of rows of an object
MOST_POINTS = 20_000  # of all objects of a sample


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
