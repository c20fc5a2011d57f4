"""Masks of objects: label images, outlines as polygons, and the colours of object numbers."""

from __future__ import annotations

import os
import sqlite3
import stat
import struct
import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Literal, NamedTuple, Self

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from ullayers.errors import RunError
from ullayers.files import (
    check_inside,
    replacing,
    replacing_path,
)
from ullayers.tracks.store import Database, check_schema, remove_database
from ullayers.tracks.table import Answer
from ullayers.video.parallel import in_parallel
from ullayers.video.region import to_pixels
from ullayers.video.sources import Source

if TYPE_CHECKING:
    from ullayers.locate.tracking.settle import Several

OUTLINE = 128  # grey value at the outline of a single object
MAX_PALETTE_OBJECTS = 255  # of a palette image
Labels = NDArray[np.uint8]
Colour = tuple[int, int, int]
Marker = Literal["o", "s", "^", "D"]  # as in matplotlib: circle, square, triangle, diamond
# Any two differ by at least 0.13 in OKLab, with normal vision and with simulated protanopia,
# deuteranopia and tritanopia, and all are visible on white and on black.
PALETTE: tuple[Colour, ...] = (
    (255, 120, 14),  # orange
    (100, 217, 255),  # sky blue
    (148, 18, 152),  # purple
    (218, 218, 96),  # yellow
    (17, 60, 231),  # blue
    (6, 151, 158),  # teal
    (193, 10, 0),  # red
    (205, 112, 255),  # violet
)
MARKERS: tuple[Marker, ...] = ("o", "s", "^", "D")
SHADES = (0.0, 0.45, -0.4, 0.2)  # of each pass through the palette: towards white, or black if < 0
TOLERANCE = 0.75  # pixels of the video by which a polygon may differ from the outline ...
MASK_TOLERANCE = 0.5  # ... or pixels of the mask, where these are larger
MAX_PARTS = 256  # in a frame
FEW_POINTS = 8  # of an outline that is not simplified
ENLARGED = 2.0  # largest magnification before an outline is traced
CORNERS = np.ones((2, 2), np.uint8)
Points = NDArray[np.int32]  # (points, 2) x and y
Mask = NDArray[np.uint8]
Corners = tuple[int, int, int, int]  # left, top, right and bottom
PNG = [cv2.IMWRITE_PNG_COMPRESSION, 1]  # higher levels take longer and save little
EDGE = 128  # value of a soft mask at the outline of the object
# Lookup table from soft to binary masks.
BINARY = [0] * EDGE + [255] * (256 - EDGE)
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
MAX_ROW_BYTES = 2**22
MAX_READ_BYTES = 2**26
STEPS = 10**5  # of SQLite's machine between two checks
MAX_CHECKS = 1000  # a longer query means that the file was not written by us


def read_labels(path: Path, single: int = 1) -> Labels:
    """Read a mask and return the object number of each pixel, 0 for the background.

    The values of a palette image are object numbers, as in DAVIS. In any other image, pixels
    brighter than grey belong to a single object.

    Args:
        path: The image.
        single: Number of a single object.

    Raises:
        RunError: The file is not an image.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Image.fromarray(np.array([[0, 255]], np.uint8)).save(f"{folder}/000000.png")
        ...     read_labels(Path(folder, "000000.png")).tolist()
        [[0, 1]]
    """
    try:
        with Image.open(path) as image:
            if image.mode == "P":
                return np.asarray(image)
            return np.where(np.asarray(image.convert("L")) >= OUTLINE, single, 0).astype(np.uint8)
    except (OSError, ValueError, SyntaxError, UnidentifiedImageError) as error:
        raise RunError(f"{path}: is not an image; write the masks again with --force") from error


def label_box(mask: NDArray[np.bool_]) -> tuple[int, int, int, int]:
    """Return left, top, width and height of a mask that is not empty, in pixels.

    >>> label_box(np.array([[False, False, False], [False, True, True]]))
    (1, 1, 2, 1)
    """
    rows = np.flatnonzero(mask.any(1))
    columns = np.flatnonzero(mask.any(0))
    left, top = int(columns[0]), int(rows[0])
    return left, top, int(columns[-1]) + 1 - left, int(rows[-1]) + 1 - top


def identity_colour(number: int) -> Colour:
    """Return the colour of an object as red, green and blue from 0 to 255.

    Args:
        number: Number of the object, from 1. After eight objects, the colours repeat in another
            shade and with another marker.

    Example:
        >>> identity_colour(1), identity_colour(9)
        ((255, 120, 14), (255, 181, 122))
    """
    turn, place = divmod(number - 1, len(PALETTE))
    shade = SHADES[turn % len(SHADES)]
    target = 255 if shade > 0 else 0
    red, green, blue = (round(v + abs(shade) * (target - v)) for v in PALETTE[place])
    return red, green, blue


def identity_hex(number: int) -> str:
    """Return the colour of an object for HTML and matplotlib.

    >>> identity_hex(1)
    '#ff780e'
    """
    return "#{:02x}{:02x}{:02x}".format(*identity_colour(number))


def identity_marker(number: int) -> Marker:
    """Return the marker of an object, which changes with each pass through the palette.

    >>> [identity_marker(number) for number in (1, 8, 9, 17)]
    ['o', 'o', 's', '^']
    """
    return MARKERS[(number - 1) // len(PALETTE) % len(MARKERS)]


def text_colour(background: Colour) -> Colour:
    """Return black or white, whichever is more legible on a colour.

    >>> text_colour((218, 218, 96)), text_colour((17, 60, 231))
    ((0, 0, 0), (255, 255, 255))
    """
    shares = np.array(background) / 255
    linear = np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)
    luminance = float(linear @ (0.2126, 0.7152, 0.0722))
    return (0, 0, 0) if luminance > 0.179 else (255, 255, 255)


class Contours:
    """Finds the outlines of masks.

    Args:
        size: (width, height) of the masks.
        place: Left, top, width and height of the region they cover, in pixels of the video.

    Example:
        >>> mask = np.zeros((1, 24, 32), np.uint8)
        >>> mask[0, 6:12, 8:16] = 255
        >>> [[polygon]] = Contours((32, 24), (100, 0, 32, 24)).of_masks(mask)
        >>> polygon.tolist()
        [[108, 6], [108, 12], [116, 12], [116, 6]]
    """

    def __init__(self, size: tuple[int, int], place: tuple[int, int, int, int]) -> None:
        self.place = place
        self.scale = place[2] / size[0], place[3] / size[1]
        self.enlarged = [min(max(each, 1.0), ENLARGED) for each in self.scale]
        self.tolerance = max(TOLERANCE, MASK_TOLERANCE * max(self.scale))

    def of_masks(self, masks: NDArray[np.uint8]) -> list[list[Points]]:
        """Return the polygons of each soft mask (time, height, width)."""
        return in_parallel(self._of_mask, masks)

    def of_tracks(self, owners: NDArray[np.uint16]) -> list[dict[int, list[Points]]]:
        """Return the polygons of each track in each image of track numbers."""
        return in_parallel(self._of_labels, owners)

    def _of_mask(self, mask: Mask) -> list[Points]:
        found: list[Points] = []
        around = [
            (max(left - 1, 0), max(top - 1, 0), right + 1, bottom + 1)
            for left, top, right, bottom in _blobs(mask >= EDGE)
        ]
        for left, top, right, bottom in _apart(around):
            found += self._polygons(mask[top:bottom, left:right], left, top)
        return found

    def _of_labels(self, labels: NDArray[np.uint16]) -> dict[int, list[Points]]:
        boxes: dict[int, Corners] = {}
        for blob in _blobs(labels > 0):
            left, top, right, bottom = blob
            for label in np.unique(labels[top:bottom, left:right]).tolist():
                boxes[label] = _union(boxes.get(label, blob), blob)
        boxes.pop(0, None)
        found = {}
        for label, (left, top, right, bottom) in boxes.items():
            part = (labels[top:bottom, left:right] == label).astype(np.uint8) * np.uint8(255)
            found[label] = self._polygons(part, left, top)
        return found

    def _polygons(self, part: Mask, left: int, top: int) -> list[Points]:
        """Return the polygons of a part of a mask, given its position in the mask."""
        picture = cv2.copyMakeBorder(part, 1, 1, 1, 1, cv2.BORDER_CONSTANT, value=0)
        height, width = picture.shape
        size = round(width * self.enlarged[0]), round(height * self.enlarged[1])
        if size != (width, height):
            picture = cv2.resize(picture, size, interpolation=cv2.INTER_LINEAR)
        inside = np.asarray(picture >= EDGE).view(np.uint8)
        # Trace the corners of the pixels inside, so that the polygon encloses whole pixels.
        corners = cv2.dilate(inside, CORNERS, anchor=(1, 1))
        outlines, _ = cv2.findContours(corners, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
        factor = width * self.scale[0] / size[0], height * self.scale[1] / size[1]
        corner = [
            start + (each - 1) * scale
            for start, each, scale in zip(self.place, (left, top), self.scale, strict=False)
        ]
        simple = [_simplified(each, self.tolerance / max(factor)) for each in outlines]
        return [np.rint(points[:, 0] * factor + corner).astype(np.int32) for points in simple]


def _simplified(outline: Any, tolerance: float) -> Any:
    """Simplify an outline, unless it is too small or thin."""
    if len(outline) <= FEW_POINTS:
        return outline
    simple = cv2.approxPolyDP(outline, tolerance, True)
    return outline if len(simple) < 3 else simple


def _blobs(inside: NDArray[np.bool_]) -> list[Corners]:
    """Return the boxes of the largest connected parts of a mask."""
    pixels = inside.view(np.uint8)
    outlines, _ = cv2.findContours(pixels, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
    boxes = [cv2.boundingRect(outline) for outline in outlines]
    if len(boxes) > MAX_PARTS:
        boxes = sorted(boxes, key=lambda box: box[2] * box[3], reverse=True)[:MAX_PARTS]
    return [(left, top, left + width, top + height) for left, top, width, height in boxes]


def _apart(boxes: list[Corners]) -> list[Corners]:
    """Join boxes that overlap, so that no pixel is in two of them.

    >>> _apart([(0, 0, 2, 2), (5, 5, 6, 6), (1, 1, 3, 3)])
    [(5, 5, 6, 6), (0, 0, 3, 3)]
    """
    joined: list[Corners] = []
    for box in boxes:
        while overlapping := next((each for each in joined if _overlap(each, box)), None):
            joined.remove(overlapping)
            box = _union(overlapping, box)
        joined.append(box)
    return joined


def _overlap(a: Corners, b: Corners) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _union(a: Corners, b: Corners) -> Corners:
    return min(a[0], b[0]), min(a[1], b[1]), max(a[2], b[2]), max(a[3], b[3])


class Spool:
    """Keeps the masks of consecutive frames in a temporary file, compressed."""

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile()

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def add(self, answer: Answer) -> None:
        """Add the masks and owners of the next rows of a sequence."""
        np.save(self._file, len(answer.index))
        self._write(answer.masks)
        self._write(answer.owners)

    def read(self, answer: Answer) -> Iterator[Answer]:
        """Yield the rows that were added, with their masks and owners.

        Args:
            answer: All rows of the sequence.
        """
        end, start = self._file.tell(), 0
        self._file.seek(0)
        while self._file.tell() < end:
            rows = answer.rows(slice(start, start + int(np.load(self._file))))
            start += len(rows.index)
            yield replace(rows, masks=self._read(), owners=self._read())

    def _write(self, images: NDArray[Any] | None) -> None:
        encoded = [] if images is None else in_parallel(_encode, images)
        places = [(len(content), left, top) for content, left, top in encoded]
        np.save(self._file, np.array(places, np.int64))
        if images is not None and encoded:
            np.save(self._file, images[:0])  # their size and kind
            self._file.writelines(content for content, _, _ in encoded)

    def _read(self) -> NDArray[Any] | None:
        places = np.load(self._file)
        if not len(places):
            return None
        like = np.load(self._file)
        images = np.zeros((len(places), *like.shape[1:]), like.dtype)
        contents = [self._file.read(size) for size, _, _ in places.tolist()]
        in_parallel(_decode, contents, places.tolist(), images)
        return images


def _encode(image: NDArray[Any]) -> tuple[bytes, int, int]:
    """Encode an image without its black margin; return its left and top, too."""
    left, top, width, height = cv2.boundingRect((image > 0).view(np.uint8))
    if not width:
        return b"", 0, 0
    part = np.ascontiguousarray(image[top : top + height, left : left + width])
    return cv2.imencode(".png", part, PNG)[1].tobytes(), left, top


def _decode(content: bytes, place: list[int], image: NDArray[Any]) -> None:
    """Decode an image into a black one."""
    if content:
        part = np.asarray(cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_UNCHANGED))
        _, left, top = place
        image[top : top + part.shape[0], left : left + part.shape[1]] = part


class MaskWriter:
    """Writes the masks of a source to masks/SEQUENCE/FRAME.png.

    The mask of a single object is black and white, or grey at its edges. Masks of several objects
    are palette images whose pixel values are object numbers; 0 is the background.

    Args:
        place: Folder of the export.
        source: Source of the masks.
        soft: Write masks of a single object in grey.
    """

    def __init__(self, place: Path, source: Source, soft: bool) -> None:
        info = source.probe()
        self.size = info.width, info.height
        self.soft = soft
        self.folder = place / "masks" / source.name
        check_inside(place, self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def write(self, answer: Answer, labels: NDArray[np.uint8] | None = None) -> None:
        """Write one image for each frame.

        Args:
            answer: Rows with masks.
            labels: (time, height, width) object number of each pixel, if there are several objects.
        """
        assert answer.masks is not None
        left, top, width, height = to_pixels(answer.box, *self.size)
        for row, number in enumerate(answer.index):
            if labels is None:
                image = Image.new("L", self.size)
                resample = Image.Resampling.BILINEAR
                part = Image.fromarray(answer.masks[row]).resize((width, height), resample)
                part = part if self.soft else part.point(BINARY)
            else:
                image = Image.new("P", self.size)
                image.putpalette(OBJECT_PALETTE)
                resample = Image.Resampling.NEAREST
                part = Image.fromarray(labels[row]).resize((width, height), resample)
            image.paste(part, (left, top))
            with replacing(self.folder / f"{number:06d}.png", "wb") as file:
                image.save(file, "png")


def renumber_masks(source: Path, target: Path, numbers: Sequence[int]) -> None:
    """Rewrite the masks of a sequence with new object numbers.

    Args:
        source: Folder of the masks.
        target: Folder to write to; created if needed.
        numbers: New numbers of the objects 1, 2, ... in the masks.
    """
    target.mkdir(parents=True, exist_ok=True)
    lookup = np.arange(256, dtype=np.uint8)
    lookup[1 : len(numbers) + 1] = numbers
    for path in sorted(source.glob(MASK_FILES)):
        with replacing(target / path.name, "wb") as file, Image.open(path) as image:
            if image.mode == "P":
                renumbered = Image.fromarray(lookup[np.asarray(image)]).convert("P")
                renumbered.putpalette(OBJECT_PALETTE)
                renumbered.save(file, "png")
            else:  # of a single object
                file.write(path.read_bytes())


OBJECT_PALETTE = [0, 0, 0] + [
    level for number in range(1, 256) for level in identity_colour(number)
]


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
    check_schema(database, SCHEMA)
    return database


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
        self._sequence = 0
        self._size = (0, 0)
        self._contours: Contours | None = None
        self._database = Database(folder / PARTIAL, SCHEMA, keep=bool(kept))
        with self._database.changing() as database:
            known = database.execute("SELECT id, name FROM sequences").fetchall()
            for number in (number for number, name in known if name not in kept):
                self._delete(database, number)
        self._tracks = TrackFile()

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
        with self._database.changing() as database:
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
        found = ((frame, 1, polygons) for frame, polygons in rows if polygons)
        with self._database.changing() as database:
            self._insert(database, found)
        if part.owners is not None:
            for frame, tracks in zip(frames, self._contours.of_tracks(part.owners), strict=True):
                self._tracks.add(frame, {each: encoded(tracks[each]) for each in tracks})

    def finish(self, several: Several | None) -> None:
        """End a sequence.

        Args:
            several: All objects of the sequence, if several were tracked.
        """
        sequence = (self._sequence,)
        with self._database.changing() as database:
            if several is not None and several.rows is not None:
                database.execute("DELETE FROM outlines WHERE sequence = ?", sequence)
                self._insert(database, self._tracks.rows(several))
            elif several is not None and several.number != 1:
                number = (several.number, *sequence)
                database.execute("UPDATE outlines SET object = ? WHERE sequence = ?", number)
            database.execute("UPDATE sequences SET finished = 1 WHERE id = ?", sequence)
        self._tracks.clear()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._tracks.close()
        try:
            with self._database.changing() as database:
                unfinished = database.execute("SELECT id FROM sequences WHERE NOT finished")
                for (number,) in unfinished.fetchall():
                    self._delete(database, number)
            if kind is None:
                self._complete()
        except (RunError, OSError):
            if kind is None:
                raise
        finally:
            self._database.close()

    def _complete(self) -> None:
        """Copy the file, which a reader may have open, to a self-contained one."""
        with replacing_path(self._path) as copy, self._database.changing() as database:
            database.execute("VACUUM INTO ?", (str(copy),))

    def _insert(self, database: sqlite3.Connection, rows: Iterable[tuple[int, int, bytes]]) -> None:
        database.executemany(f"INSERT INTO outlines VALUES ({self._sequence}, ?, ?, ?)", rows)

    def _delete(self, database: sqlite3.Connection, number: int) -> None:
        database.execute("DELETE FROM outlines WHERE sequence = ?", (number,))
        database.execute("DELETE FROM sequences WHERE id = ?", (number,))


def join_outlines(path: Path, parts: Sequence[tuple[Path, Sequence[int]]]) -> None:
    """Join outlines of single sequences into one file, which is replaced.

    Args:
        path: The file to write.
        parts: Files of the sequences, and the new numbers of the objects 1, 2, ... in each.
    """
    with (
        replacing_path(path) as partial,
        closing(sqlite3.connect(partial, isolation_level=None)) as database,
    ):
        database.execute("PRAGMA synchronous = OFF")  # `replacing_path` writes it to the disk
        for each in SCHEMA:
            database.execute(each)
        database.execute("CREATE TEMP TABLE numbers (old INTEGER PRIMARY KEY, new INTEGER)")
        for number, (file, numbers) in enumerate(parts, 1):
            database.execute("ATTACH ? AS part", (str(file),))
            database.execute("BEGIN")
            database.execute("DELETE FROM numbers")
            pairs = enumerate(numbers or [1], 1)
            database.executemany("INSERT INTO numbers VALUES (?, ?)", pairs)
            database.execute(
                "INSERT INTO sequences SELECT ?, name, finished FROM part.sequences", (number,)
            )
            database.execute(
                "INSERT INTO outlines SELECT ?, frame, new, polygons FROM part.outlines "
                "JOIN numbers ON old = object",
                (number,),
            )
            database.execute("COMMIT")
            database.execute("DETACH part")


def remove_partial_outlines(folder: Path) -> None:
    """Remove the outlines of an unfinished export."""
    remove_database(folder / PARTIAL)


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


MASK_FILES = "[0-9][0-9][0-9][0-9][0-9][0-9]*.png"
