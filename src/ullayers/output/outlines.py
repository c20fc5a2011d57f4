"""outlines.sqlite: the outlines of all objects in all frames, as polygons.

It has two tables. `sequences` has a row for each sequence, with `finished` set after its last
frame. `outlines` has a row for each object in each frame, whose `polygons` are read by
`read_outlines`: for each polygon one byte with the size of a number, the number of points (uint32),
the first point (two int32), and the differences between points (int8, int16 or int32), all of them
little-endian.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
import struct
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import IO, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from ullayers.learn.checkpoint import RunError
from ullayers.learn.folders import check_inside
from ullayers.learn.results import Answer
from ullayers.learn.several import Several
from ullayers.output.contours import Contours
from ullayers.output.drawing import to_pixels
from ullayers.video.atomic_files import replacing_path

OUTLINES = "outlines.sqlite"
PARTIAL = "outlines.partial.sqlite"
SCHEMA = (
    "CREATE TABLE sequences (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, "
    "finished INTEGER NOT NULL)",
    "CREATE TABLE outlines (sequence INTEGER NOT NULL, frame INTEGER NOT NULL, "
    "object INTEGER NOT NULL, polygons BLOB NOT NULL, "
    "PRIMARY KEY (sequence, frame, object)) WITHOUT ROWID",
)
POLYGON = struct.Struct("<BIii")  # bytes of a number, points, x and y of the first one
TRACK = struct.Struct("<qHI")  # frame, track, bytes of its polygons
SQLITE_BLOCK = 2**16  # bytes; SQLite writes no more at once
MAX_ROW_BYTES = 2**22
MAX_READ_BYTES = 2**26
STEPS = 10**5  # of SQLite's machine between two checks
MAX_CHECKS = 1000  # a longer query means that the file was not written by us


class ObjectOutline(NamedTuple):
    """One polygon of an object in a frame; an object may have several.

    Attributes:
        object: Number of the object, as in tracks.csv; 1 if there is only one.
        points: (points, 2) x and y in pixels of the video, from its top left corner.
    """

    object: int
    points: NDArray[np.int32]


def find_outlines(folder: Path) -> Path | None:
    """Return the outlines of a run folder, or those of the frames processed so far, if any.

    Until an export ends, they are in outlines.partial.sqlite, which can be read while it is
    written. Objects of an unfinished sequence have no numbers yet, so it has only the outline of
    the main object.
    """
    return next((folder / name for name in (OUTLINES, PARTIAL) if (folder / name).exists()), None)


def read_outlines(
    path: str | os.PathLike[str], sequence: str, first: int, last: int
) -> dict[int, list[ObjectOutline]]:
    """Return the outlines in a range of frames of a sequence.

    Args:
        path: From `find_outlines`.
        sequence: Name of the sequence.
        first: Number of the first frame.
        last: Number of the last frame.

    Returns:
        Outlines by frame number; frames without an outline are left out.

    Raises:
        RunError: The file cannot be read, or the frames have too many outlines.
    """
    found: dict[int, list[ObjectOutline]] = {}
    left = MAX_READ_BYTES
    try:
        with closing(_open_to_read(Path(path))) as database:
            rows = database.execute(
                "SELECT frame, object, polygons FROM outlines WHERE sequence = "
                "(SELECT id FROM sequences WHERE name = ?) AND frame BETWEEN ? AND ? "
                "ORDER BY frame, object",
                (sequence, first, last),
            )
            for frame, number, polygons in rows:
                left -= len(polygons)
                if left < 0:
                    raise RunError(f"{path}: too many outlines at once; read fewer frames")
                found.setdefault(int(frame), []).extend(
                    ObjectOutline(int(number), points) for points in _decoded(polygons)
                )
    except (sqlite3.Error, struct.error, ValueError, TypeError, OverflowError, OSError) as error:
        raise RunError(f"{path}: cannot be read ({error}); apply the run again") from error
    return found


def _open_to_read(path: Path) -> sqlite3.Connection:
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError("is not a regular file")
    database = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    checks = iter(range(MAX_CHECKS))
    database.set_progress_handler(lambda: next(checks, None) is None, STEPS)
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_ROW_BYTES)
    database.execute("PRAGMA trusted_schema = OFF")
    _check_schema(database)
    return database


def _check_schema(database: sqlite3.Connection) -> None:
    """Refuse views, triggers and unexpected tables."""
    found = database.execute("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL").fetchall()
    if sorted(found) != sorted((each,) for each in SCHEMA):
        raise ValueError("it has unexpected tables")


class OutlineWriter:
    """Writes outlines.sqlite while frames are processed.

    Args:
        folder: Folder of the results.
        kept: Names of the sequences whose outlines are kept, if an export is resumed.

    Raises:
        RunError: The partial file of an export to be resumed is damaged.
    """

    def __init__(self, folder: Path, kept: Collection[str] = ()) -> None:
        self._path = folder / OUTLINES
        self._partial = folder / PARTIAL
        check_inside(folder, self._partial)
        self._sequence = 0
        self._size = (0, 0)
        self._contours: Contours | None = None
        is_kept = bool(kept) and self._partial.is_file() and self._partial.stat().st_nlink == 1
        if not is_kept:
            self._remove()
        self._database = sqlite3.connect(self._partial)
        try:
            self._prepare(kept)
        except (sqlite3.Error, ValueError) as error:
            failure = self._failure(error)
            self._database.close()
            if not is_kept:
                self._remove()
            raise failure from error
        self._tracks = TrackFile()

    def _prepare(self, kept: Collection[str]) -> None:
        self._database.execute("PRAGMA journal_mode = WAL")  # so that readers do not wait
        self._database.execute("PRAGMA synchronous = NORMAL")
        if not self._database.execute("SELECT 1 FROM sqlite_schema").fetchall():
            for each in SCHEMA:
                self._database.execute(each)
        _check_schema(self._database)
        for number, name in self._database.execute("SELECT id, name FROM sequences").fetchall():
            if name not in kept:
                self._delete(number)
        self._database.commit()

    def __enter__(self) -> Self:
        return self

    def start(self, sequence: str, width: int, height: int) -> None:
        """Begin a sequence.

        Args:
            sequence: Its name.
            width: Width of its frames.
            height: Their height.
        """
        self._size = width, height
        self._contours = None
        self._tracks.clear()
        with self._changing() as database:
            row = database.execute(
                "INSERT INTO sequences (name, finished) VALUES (?, 0)", (sequence,)
            )
        assert row.lastrowid is not None
        self._sequence = row.lastrowid

    def add(self, part: Answer) -> None:
        """Add frames with their masks."""
        assert part.masks is not None
        if self._contours is None:
            height, width = part.masks.shape[1:]
            self._contours = Contours((width, height), to_pixels(part.box, *self._size))
        frames = part.index.tolist()
        rows = zip(frames, map(encoded, self._contours.of_masks(part.masks)), strict=True)
        with self._changing():
            self._insert((frame, 1, polygons) for frame, polygons in rows if polygons)
        if part.owners is not None:
            for frame, tracks in zip(frames, self._contours.of_tracks(part.owners), strict=True):
                self._tracks.add(frame, {each: encoded(tracks[each]) for each in tracks})

    def finish(self, several: Several | None) -> None:
        """End a sequence.

        Args:
            several: All objects of the sequence, if several were tracked.
        """
        sequence = (self._sequence,)
        with self._changing() as database:
            if several is not None and several.rows is not None:
                database.execute("DELETE FROM outlines WHERE sequence = ?", sequence)
                self._insert(self._tracks.rows(several))
            elif several is not None and several.number != 1:
                number = (several.number, *sequence)
                database.execute("UPDATE outlines SET object = ? WHERE sequence = ?", number)
            database.execute("UPDATE sequences SET finished = 1 WHERE id = ?", sequence)
        self._tracks.clear()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._tracks.close()
        try:
            with self._changing() as database:
                unfinished = database.execute("SELECT id FROM sequences WHERE NOT finished")
                for (number,) in unfinished.fetchall():
                    self._delete(number)
            if kind is None:
                self._complete()
        except (RunError, OSError):
            if kind is None:
                raise
        finally:
            self._database.close()

    def _complete(self) -> None:
        """Copy the file, which a reader may have open, to a self-contained one."""
        with replacing_path(self._path) as copy, self._changing() as database:
            database.execute("VACUUM INTO ?", (str(copy),))

    @contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        """Change the file atomically."""
        try:
            with self._database:
                yield self._database
        except sqlite3.Error as error:
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> Exception:
        """Return the exception to raise for an error of SQLite."""
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return RunError(f"{self._partial}: is damaged; start again with --force")
        number = errno.ENOSPC if code == sqlite3.SQLITE_FULL else _error_of_writing(self._path)
        return OSError(number, os.strerror(number), str(self._partial))

    def _insert(self, rows: Iterator[tuple[int, int, bytes]]) -> None:
        self._database.executemany(f"INSERT INTO outlines VALUES ({self._sequence}, ?, ?, ?)", rows)

    def _delete(self, number: int) -> None:
        self._database.execute("DELETE FROM outlines WHERE sequence = ?", (number,))
        self._database.execute("DELETE FROM sequences WHERE id = ?", (number,))

    def _remove(self) -> None:
        remove_partial_outlines(self._path.parent)


def remove_partial_outlines(folder: Path) -> None:
    """Remove the outlines of an unfinished export."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        (folder / (PARTIAL + suffix)).unlink(missing_ok=True)


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


def remove_if_damaged(path: Path) -> bool:
    """Remove an outlines.sqlite that cannot be read; return whether it was removed."""
    try:
        with closing(_open_to_read(path)) as database:
            database.set_progress_handler(None, 0)  # the whole file is read
            [[found]] = database.execute("PRAGMA quick_check(1)").fetchall()
            if found == "ok":
                return False
    except FileNotFoundError:
        return False
    except (sqlite3.Error, ValueError):
        pass
    path.unlink()
    return True


class TrackFile:
    """Outlines of tracks in a temporary file, until the objects are known."""

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile()

    def add(self, frame: int, tracks: dict[int, bytes]) -> None:
        """Add the polygons of all tracks in a frame."""
        for track, polygons in tracks.items():
            self._file.write(TRACK.pack(frame, track, len(polygons)) + polygons)

    def rows(self, several: Several) -> Iterator[tuple[int, int, bytes]]:
        """Yield frame, object and polygons of the tracks that are objects."""
        for frame, group in groupby(self._read(), itemgetter(0)):
            tracks = [(track, polygons) for _, track, polygons in group]
            numbers = several.object_of_track(frame, max(track for track, _ in tracks))
            objects: dict[int, bytes] = {}
            for track, polygons in tracks:
                number = int(numbers[track])
                objects[number] = objects.get(number, b"") + polygons
            yield from ((frame, each, objects[each]) for each in objects if each)

    def _read(self) -> Iterator[tuple[int, int, bytes]]:
        self._file.seek(0)
        while header := self._file.read(TRACK.size):
            frame, track, size = TRACK.unpack(header)
            yield frame, track, self._file.read(size)

    def clear(self) -> None:
        """Forget all outlines."""
        self._file.seek(0)
        self._file.truncate()

    def close(self) -> None:
        """Remove the file."""
        self._file.close()


def encoded(polygons: Sequence[NDArray[np.int32]]) -> bytes:
    """Return polygons as bytes.

    >>> _decoded(encoded([np.array([[500, 3], [501, 900]], np.int32)]))[0].tolist()
    [[500, 3], [501, 900]]
    """
    content = []
    for points in polygons:
        steps = points[1:] - points[:-1]
        largest = max(int(steps.max(initial=0)), -int(steps.min(initial=0)))
        size = 1 if largest < 2**7 else 2 if largest < 2**15 else 4
        content.append(POLYGON.pack(size, len(points), *points[0].tolist()))
        content.append(steps.astype(f"<i{size}").tobytes())
    return b"".join(content)


def _decoded(content: bytes) -> list[NDArray[np.int32]]:
    """Return polygons from bytes.

    Raises:
        ValueError, struct.error: The bytes are not polygons.
    """
    polygons = []
    start = 0
    while start < len(content):
        size, count, x, y = POLYGON.unpack_from(content, start)
        start += POLYGON.size
        end = start + 2 * size * (count - 1)
        if size not in (1, 2, 4) or count < 1 or end > len(content):
            raise ValueError("its polygons are damaged")
        points = np.empty((count, 2), np.int32)
        points[0] = x, y
        points[1:] = np.frombuffer(content[start:end], f"<i{size}").reshape(-1, 2)
        polygons.append(points.cumsum(0, dtype=np.int32))
        start = end
    return polygons
