"""Rows while they come: a SQLite file that others may read, and a killed process leaves whole."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ullayers.errors import RunError
from ullayers.files import check_inside, parse_json, replacing
from ullayers.tracks.table import MAX_FRAMES, Answer, header, main_object

GROWING = "tracks.partial.sqlite", "codes.partial.sqlite"
SQLITE_BLOCK = 2**16  # bytes; SQLite writes no more at once
SCHEMA = (
    "CREATE TABLE about (request TEXT NOT NULL, masks INTEGER NOT NULL)",
    "CREATE TABLE sequences (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, "
    "finished INTEGER NOT NULL, layout TEXT NOT NULL, note TEXT NOT NULL)",
    "CREATE TABLE rows (sequence INTEGER NOT NULL, part INTEGER NOT NULL, columns BLOB NOT NULL, "
    "PRIMARY KEY (sequence, part))",
)
ARRAYS = ("index", "objects", "seconds", "values", "shapes", "crops", "others", "moments")


class Database:
    """A SQLite file that one process writes, and others may read meanwhile.

    Args:
        path: The file.
        schema: Statements that create its tables.
        keep: Whether to keep its content. A file with several names is replaced.

    Raises:
        RunError: The file to keep is damaged.
    """

    def __init__(self, path: Path, schema: Sequence[str], *, keep: bool) -> None:
        self.path = path
        check_inside(path.parent, path)
        is_kept = keep and path.is_file() and path.stat().st_nlink == 1
        if not is_kept:
            remove_database(path)
        self._connection = sqlite3.connect(path)
        try:
            self._connection.execute("PRAGMA journal_mode = WAL")  # so that readers do not wait
            self._connection.execute("PRAGMA synchronous = NORMAL")
            if not self._connection.execute("SELECT 1 FROM sqlite_schema").fetchall():
                for each in schema:
                    self._connection.execute(each)
            check_schema(self._connection, schema)
            self._connection.commit()
        except (sqlite3.Error, ValueError) as error:
            failure = self._failure(error)
            self._connection.close()
            if not is_kept:
                remove_database(path)
            raise failure from error

    @contextmanager
    def changing(self) -> Iterator[sqlite3.Connection]:
        """Change the file atomically.

        Raises:
            RunError: The file is damaged.
            OSError: It cannot be written.
        """
        try:
            with self._connection:
                yield self._connection
        except sqlite3.Error as error:
            raise self._failure(error) from error

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _failure(self, error: Exception) -> Exception:
        """Return the exception to raise for an error of SQLite."""
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return RunError(f"{self.path}: is damaged; start again with --force")
        number = errno.ENOSPC if code == sqlite3.SQLITE_FULL else _error_of_writing(self.path)
        return OSError(number, os.strerror(number), str(self.path))


def check_schema(database: sqlite3.Connection, schema: Sequence[str]) -> None:
    """Refuse views, triggers and unexpected tables.

    Raises:
        ValueError: There are some.
    """
    found = database.execute("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL").fetchall()
    if sorted(found) != sorted((each,) for each in schema):
        raise ValueError("it has unexpected tables")


def remove_database(path: Path) -> None:
    """Remove a SQLite file and what SQLite keeps beside it."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _error_of_writing(path: Path) -> int:
    """Return the error number of a test write beside a file.

    SQLite reports "disk I/O error" even if the disk is full.
    """
    try:
        with tempfile.TemporaryFile(dir=path.parent) as file:
            file.write(bytes(SQLITE_BLOCK))
    except OSError as error:
        return error.errno or errno.EIO
    return errno.EIO


class GrowingTable:
    """The rows of an export, until its table is complete; a context manager.

    Rows are stored as they come. A sequence is finished once `end` has stored its rows and what is
    known about it. If the process is killed, `resume` keeps the finished sequences, and the others
    are processed again. The file stays until `remove_partial_tables`, so that an export can be
    resumed until its last file is written.

    Args:
        path: The complete table.
        request: What was asked for, as JSON; a table is resumed only with an equal request.
        resume: Whether to keep the finished sequences.
        masks: Whether masks are written too; a sequence without its masks is not finished.

    Raises:
        RunError: The table to resume is damaged or of another request.

    Example:
        >>> part = Answer("a", np.arange(2), np.arange(2) / 25, ("y0",), np.ones((2, 1)))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with GrowingTable(Path(folder, "codes.csv"), [], resume=False) as table:
        ...         table.append(part)
        ...         table.append(replace(part, index=part.index + 2))
        ...         rows = table.rows("a")
        ...         table.end(rows, {})
        ...     text = Path(folder, "codes.csv").read_text()
        >>> rows.index.tolist(), text.splitlines()[-1]
        ([0, 1, 2, 3], 'a,3,0.040000,1.000000')
    """

    def __init__(self, path: Path, request: Any, *, resume: bool, masks: bool = False) -> None:
        self.path = path
        self.partial = path.with_suffix(".partial.sqlite")
        self.request = json.dumps(request)
        check_inside(path.parent, self.partial)
        if resume and self.partial.exists() and not self.partial.is_file():
            raise self._damaged()
        self._database = Database(self.partial, SCHEMA, keep=resume)
        self.masks = masks
        try:
            self._check()
        except BaseException:
            self.close()
            raise

    def _check(self) -> None:
        """Refuse a table that cannot be continued, before it is changed."""
        with self._database.changing() as database:
            known = database.execute("SELECT request, masks FROM about").fetchall()
        self._is_kept = not self.masks or known == [(self.request, True)]
        if known and known[0][0] != self.request:
            raise RunError(
                f"{self.partial}: was started with another run, --stride, --max-frames, --start, "
                "--end, --roi or --objects; use the same ones, or start again with --force"
            )
        for name in self.finished:
            if not any([len(part.index) for part in self._parts(name)]):
                raise self._damaged()

    def __enter__(self) -> GrowingTable:
        """Remove the sequences that are not finished."""
        with self._database.changing() as database:
            removed = "NOT finished" if self._is_kept else "1"  # they have no masks
            rows = database.execute(f"SELECT id FROM sequences WHERE {removed}").fetchall()
            for number in rows:
                database.execute("DELETE FROM rows WHERE sequence = ?", number)
                database.execute("DELETE FROM sequences WHERE id = ?", number)
            database.execute("DELETE FROM about")
            database.execute("INSERT INTO about VALUES (?, ?)", (self.request, self.masks))
        self._is_kept = True
        return self

    def close(self) -> None:
        """Close the file, which can be resumed."""
        self._database.close()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._publish()
        finally:
            is_empty = kind is not None and not self.finished
            self.close()
            if is_empty:
                remove_database(self.partial)

    @property
    def finished(self) -> dict[str, Any]:
        """Notes of the finished sequences by name, in the order in which they were finished."""
        with self._database.changing() as database:
            rows = database.execute(
                "SELECT name, note FROM sequences WHERE finished AND ? ORDER BY finished",
                (self._is_kept,),
            ).fetchall()
        try:
            return {str(name): parse_json(note) for name, note in rows}
        except (ValueError, TypeError) as error:
            raise self._damaged() from error

    def append(self, part: Answer) -> None:
        """Add consecutive rows of a sequence; all parts must have the same arrays."""
        with self._database.changing() as database:
            known = database.execute("SELECT id FROM sequences WHERE name = ?", (part.sequence,))
            row = known.fetchone()
            if row is None:
                new = part.sequence, 0, json.dumps(_layout(part)), ""
                added = database.execute(
                    "INSERT INTO sequences (name, finished, layout, note) VALUES (?, ?, ?, ?)", new
                )
                row = (added.lastrowid,)
            self._insert(database, row[0], part)

    def rows(self, sequence: str) -> Answer:
        """Return all rows of a sequence so far; there must be at least one.

        Those of a finished sequence are of the main object; the rows of all are in `several`.
        """
        [rows] = self._parts(sequence, whole=True)
        return rows if rows.objects is None else main_object(rows)

    def end(self, answer: Answer, note: Any) -> None:
        """Finish a sequence: replace its rows by the final ones.

        Args:
            answer: All of its rows.
            note: What is known about it besides its rows, as JSON.
        """
        rows = replace(answer.several or answer, moments=None)
        with self._database.changing() as database:
            [[number]] = database.execute(
                "SELECT id FROM sequences WHERE name = ?", (answer.sequence,)
            ).fetchall()
            [[count]] = database.execute("SELECT max(finished) FROM sequences").fetchall()
            database.execute("DELETE FROM rows WHERE sequence = ?", (number,))
            for part in rows.in_parts():
                self._insert(database, number, part)
            database.execute(
                "UPDATE sequences SET finished = ?, layout = ?, note = ? WHERE id = ?",
                (count + 1, json.dumps(_layout(rows)), json.dumps(note), number),
            )

    def _insert(self, database: sqlite3.Connection, number: int, part: Answer) -> None:
        arrays = [array for name in ARRAYS if (array := getattr(part, name)) is not None]
        content = np.column_stack(arrays).astype(np.float64).tobytes()  # frame numbers are exact
        [[last]] = database.execute(
            "SELECT coalesce(max(part), 0) FROM rows WHERE sequence = ?", (number,)
        ).fetchall()
        database.execute("INSERT INTO rows VALUES (?, ?, ?)", (number, last + 1, content))

    def _parts(self, sequence: str, *, whole: bool = False) -> Iterator[Answer]:
        """Yield the rows of a sequence in parts, or all at once."""
        with self._database.changing() as database:
            [[number, layout]] = database.execute(
                "SELECT id, layout FROM sequences WHERE name = ?", (sequence,)
            ).fetchall()
            rows = database.execute(
                "SELECT columns FROM rows WHERE sequence = ? ORDER BY part", (number,)
            )
            try:
                like, widths = _from_layout(sequence, layout)
                blocks = (np.frombuffer(b).reshape(-1, sum(widths.values())) for (b,) in rows)
                for table in [np.concatenate(list(blocks))] if whole else blocks:
                    yield _with_arrays(like, widths, table)
            except (ValueError, TypeError, KeyError, OverflowError) as error:
                raise self._damaged() from error

    def _publish(self) -> None:
        """Write the complete table; memory does not grow with the number of rows."""
        with replacing(self.path) as file:
            for name in self.finished:
                for part in self._parts(name):
                    if not file.tell():
                        file.write(header(part.table_columns))
                    file.write(part.lines())

    def _damaged(self) -> RunError:
        return RunError(f"{self.partial}: is damaged; start again with --force")


def _layout(rows: Answer) -> dict[str, Any]:
    """Return what is needed to read rows: their columns, and the width of each array."""
    widths = {
        name: int(np.prod(array.shape[1:]))
        for name in ARRAYS
        if (array := getattr(rows, name)) is not None
    }
    return {"columns": rows.columns, "size": rows.size, "box": rows.box, "widths": widths}


def _from_layout(sequence: str, text: str) -> tuple[Answer, dict[str, int]]:
    """Return an answer without rows, and the width of each of its arrays.

    Raises:
        ValueError, TypeError, KeyError: The layout is damaged.
    """
    layout = parse_json(text)
    widths = {str(name): int(width) for name, width in layout["widths"].items()}
    columns = tuple(map(str, layout["columns"]))
    size, box = (None if layout[name] is None else tuple(layout[name]) for name in ("size", "box"))
    expected = {"index": 1, "seconds": 1, "values": len(columns)}
    if not (expected.items() <= widths.items() and set(widths) <= set(ARRAYS)):
        raise ValueError("expected other columns")
    nothing = np.zeros(0)
    return Answer(
        sequence, nothing.astype(np.int64), nothing, columns, nothing, size=size, box=box
    ), widths


def _with_arrays(like: Answer, widths: dict[str, int], table: np.ndarray) -> Answer:
    """Return an answer with the rows of a table.

    Raises:
        ValueError: Its frame numbers are not frame numbers.
    """
    ends = np.cumsum(list(widths.values()))
    parts = dict(zip(widths, np.split(table, ends[:-1], axis=1), strict=True))
    arrays: dict[str, Any] = {
        name: part[:, 0] if name in ("index", "objects", "seconds", "others") else part
        for name, part in parts.items()
    }
    for name in ("index", "objects"):
        if name in arrays:
            if not ((arrays[name] >= 0) & (arrays[name] < MAX_FRAMES)).all():  # or NaN
                raise ValueError("expected numbers of frames and objects")
            arrays[name] = arrays[name].astype(np.int64)
    return replace(like, **arrays)


def has_partial_tables(folder: Path) -> bool:
    """Return whether a folder has an export that can be resumed, even one without rows."""
    return any((folder / name).exists() for name in GROWING)


def remove_partial_tables(folder: Path) -> None:
    """Remove the rows of an export that is complete, and those that version 0.1 has left."""
    for pattern in ("tracks.partial.*", "codes.partial.*"):
        for path in folder.glob(pattern):
            if not path.is_dir():  # such as the parts of a fleet
                path.unlink()


def finished_sequences(folder: Path, *, masks: bool = False) -> set[str]:
    """Return the sequences of a growing table that resuming it would keep.

    Args:
        folder: Folder of the table. A table that cannot be read has none; resuming it raises the
            error.
        masks: Whether their masks are needed too.
    """
    found: set[str] = set()
    for path in (folder / name for name in GROWING):
        if not path.is_file():
            continue
        with suppress(sqlite3.Error, ValueError):
            with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as file:
                check_schema(file, SCHEMA)
                names = file.execute(
                    "SELECT name FROM sequences, about WHERE finished AND (masks OR NOT ?)",
                    (masks,),
                )
                found |= {str(name) for (name,) in names}
    return found
