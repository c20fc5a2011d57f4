"""Exports that have begun: making and changing their growing tables."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ullayers.tracks.store import GrowingTable
from ullayers.tracks.table import TRACK, Answer


def begin(path: Path, sequence: str, **choices: Any) -> None:
    """Begin a table, with a finished sequence of two rows, and stop."""
    rows = Answer(sequence, np.arange(2), np.zeros(2), TRACK, np.zeros((2, 3)))
    table = GrowingTable(path, [], resume=False, **choices).__enter__()
    table.append(rows)
    table.end(rows, {})
    table.__exit__(KeyboardInterrupt)


def execute(path: Path, statement: str, *values: object) -> None:
    """Change a growing table with SQL."""
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(statement, values)


def change_rows(path: Path, change: Callable[[NDArray[np.float64]], NDArray[np.float64]]) -> None:
    """Change the stored rows of the first part of the first sequence."""
    with closing(sqlite3.connect(path)) as database:
        [(content, layout)] = database.execute(
            "SELECT columns, layout FROM rows, sequences WHERE rows.sequence = id "
            "ORDER BY id, part LIMIT 1"
        ).fetchall()
    width = sum(json.loads(layout)["widths"].values())
    changed = change(np.frombuffer(content).reshape(-1, width).copy())
    execute(
        path,
        "UPDATE rows SET columns = ? WHERE (sequence, part) = "
        "(SELECT sequence, part FROM rows ORDER BY sequence, part LIMIT 1)",
        changed.tobytes(),
    )


def leave_unfinished(path: Path, sequence: str) -> None:
    """Add rows of a sequence that was not finished, as a killed process leaves them."""
    execute(
        path,
        "INSERT INTO sequences (name, finished, layout, note) SELECT ?, 0, layout, '' "
        "FROM sequences LIMIT 1",
        sequence,
    )
    execute(
        path,
        "INSERT INTO rows SELECT (SELECT max(id) FROM sequences), part, columns FROM rows LIMIT 1",
    )
