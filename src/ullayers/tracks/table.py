"""Results of a run on video, one row per frame, and their CSV."""

from __future__ import annotations

import csv
import io
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from operator import itemgetter
from types import TracebackType
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ullayers.video.region import Box, Cut

TRACK = ("x", "y", "confidence")  # x and y in 0..1, from the top left corner of the frame
PIXELS = ("x_px", "y_px")  # the same position in pixels
SHAPE = ("speed", "heading", "length", "width", "area")  # in pixels, seconds and degrees
CROP = ("left", "top", "right", "bottom")  # of the part of the frame that was used, in 0..1
MAX_FRAME = 2**53  # larger frame numbers are not exact in float64
ARRAYS = (  # attributes of an `Answer` with one entry for each row
    "index",
    "seconds",
    "values",
    "masks",
    "others",
    "crops",
    "moments",
    "owners",
    "shapes",
    "objects",
)
ROWS_AT_ONCE = 2**14  # rows of a table in memory as text
DIGITS = 6  # of times, positions and codes in a table, after the decimal point
SURE = 0.5  # positions with less confidence are unreliable
NAMES = ("index", "seconds", "values", "others", "crops", "moments")  # as in `Answer.join`


def code_columns(d: int) -> tuple[str, ...]:
    """Return the names of the columns of a code.

    Args:
        d: Numbers in the code.

    >>> code_columns(2)
    ('y0', 'y1')
    """
    return tuple(f"y{i}" for i in range(d))


@dataclass(frozen=True)
class Answer:
    """Results for consecutive frames of one sequence.

    Attributes:
        sequence: Name of the source.
        index: (time,) number of each frame in the source.
        seconds: (time,) time of each frame.
        columns: Names of the columns of `values`: `TRACK`, or y0, y1, ...
        values: (time, columns) results.
        masks: (time, height, width) uint8, 255 where the object is; None if there are none.
        size: (width, height) of the source's frames; if given, tables also contain pixels.
        box: Part of the frame that the masks cover; None for all of it.
        others: (time,) mass of the strongest other object, relative to this one; None if unknown.
        crops: (time, 4) part of each frame that was used, as in `CROP`; None for whole frames.
        moments: (time, 7) variances xx, xy and yy of the mask, its area, and the variances of its
            core, which determine its axis; in source pixels.
        owners: (time, height, width) number of the track of each pixel, if all objects are tracked.
        shapes: (time, 5) as in `SHAPE`; if given, tables also contain them.
        objects: (time,) object number of each row, if there are several objects or the number is
            not 1. Rows are sorted by frame, then by object.
        several: Rows of all objects; None if there is only one. The attributes above are then those
            of the main object.
    """

    sequence: str
    index: NDArray[np.int64]
    seconds: NDArray[np.float64]
    columns: tuple[str, ...]
    values: NDArray[np.float64]
    masks: NDArray[np.uint8] | None = None
    size: tuple[int, int] | None = None
    box: Box | None = None
    others: NDArray[np.float64] | None = None
    crops: NDArray[np.float64] | None = None
    moments: NDArray[np.float64] | None = None
    owners: NDArray[np.uint16] | None = None
    shapes: NDArray[np.float64] | None = None
    objects: NDArray[np.int64] | None = None
    several: Answer | None = None

    @classmethod
    def join(cls, parts: Sequence[Answer]) -> Answer:
        """Concatenate consecutive parts of one sequence, without their masks."""
        index, seconds, values = (
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("index", "seconds", "values")
        )
        others, crops, moments = (_joined(parts, name) for name in ("others", "crops", "moments"))
        joined = replace(parts[0], index=index, seconds=seconds, values=values, masks=None)
        return replace(joined, owners=None, others=others, crops=crops, moments=moments)

    def rows(self, rows: slice | NDArray[np.bool_] | NDArray[np.int64]) -> Answer:
        """Return the selected rows."""
        chosen: dict[str, Any] = {
            name: None if (value := getattr(self, name)) is None else value[rows] for name in ARRAYS
        }
        return replace(self, **chosen)

    def as_written(self) -> Answer:
        """Return the rows with the precision of a table, from which they may have been resumed."""
        return replace(
            self,
            seconds=self.seconds.round(DIGITS),
            values=self.values.round(DIGITS),
            several=None if self.several is None else self.several.as_written(),
        )

    def in_parts(self) -> Iterator[Answer]:
        """Yield the rows of all objects, in parts."""
        every = self.several or self
        for start in range(0, len(every.index), ROWS_AT_ONCE):
            yield every.rows(slice(start, start + ROWS_AT_ONCE))

    def of_objects(self) -> list[Answer]:
        """Return the rows of each object, by its number."""
        if self.several is None or self.several.objects is None:
            return [self]
        rows, numbers = self.several, self.several.objects
        return [rows.rows(numbers == number) for number in np.unique(numbers)]

    def placed(self, cut: Cut) -> Answer:
        """Return results in a region of interest as results in the whole frame.

        Args:
            cut: The region in the frames of the source.

        Example:
            >>> from ullayers.video.region import Rectangle
            >>> found = Answer("a", np.arange(1), np.zeros(1), TRACK, np.array([[0.5, 0.5, 1.0]]))
            >>> found.placed(Rectangle(0, 0, 32, 24).fit(height=48, width=64)).values.tolist()
            [[0.25, 0.25, 1.0]]
        """
        if self.columns != TRACK:
            return replace(self, crops=_place_crops(self.crops, cut))
        values = np.concatenate([cut.place(self.values[:, :2]), self.values[:, 2:]], 1)
        masks = self.masks
        if masks is not None:
            masks = masks & cut.inside_at(masks.shape[1:])
        owners = self.owners
        if owners is not None:
            owners = owners * (cut.inside_at(owners.shape[1:]) > 0)
        several = None if self.several is None else self.several.placed(cut)
        placed = replace(self, values=values, masks=masks, owners=owners, box=cut.box)
        return replace(placed, several=several)

    @property
    def table_columns(self) -> tuple[str, ...]:
        """Columns of a table after sequence, frame, object and time."""
        more = ((self.size, PIXELS), (self.shapes, SHAPE), (self.crops, CROP))
        present = [names for value, names in more if value is not None]
        return sum(present, self.columns)

    def with_columns(self, names: Sequence[str]) -> Answer:
        """Return the same rows with only the columns of an older table."""
        size = self.size if PIXELS[0] in names else None
        shapes = self.shapes if SHAPE[0] in names else None
        crops = self.crops if CROP[0] in names else None
        several = None if self.several is None else self.several.with_columns(names)
        return replace(self, size=size, shapes=shapes, crops=crops, several=several)

    def lines(self, *, numbered: bool = False) -> str:
        """Return the rows as CSV text.

        Args:
            numbered: Whether there is a column `object` after `frame`.

        Example:
            >>> found = np.array([[0.5, 0.25, 1.0]])
            >>> print(Answer("a", np.array([7]), np.array([0.28]), TRACK, found).lines(), end="")
            a,7,0.280000,0.500000,0.250000,1.000000
            >>> sized = Answer("a", np.array([7]), np.array([0.28]), TRACK, found, size=(640, 480))
            >>> print(sized.lines(numbered=True), end="")
            a,7,1,0.280000,0.500000,0.250000,1.000000,320.00,120.00
        """
        if self.several is not None:
            return self.several.lines(numbered=numbered)
        name = io.StringIO()
        csv.writer(name, lineterminator="").writerow([self.sequence])
        precise = f"%.{DIGITS}f"
        blocks = [("%d", self.index), *self._number_column(numbered), (precise, self.seconds)]
        blocks += [(precise, column) for column in self.values.T]
        if self.size is not None:
            blocks += [("%.2f", column) for column in (self.values[:, :2] * self.size).T]
        if self.shapes is not None:
            blocks += [("%.2f", column) for column in self.shapes.T]
        if self.crops is not None:
            blocks += [(precise, column) for column in self.crops.T]
        start = f"{name.getvalue()},"
        rest = ",".join(cell for cell, _ in blocks) + "\n"
        rows = zip(*(column.tolist() for _, column in blocks), strict=True)
        return "".join([start + rest % row for row in rows])

    def _number_column(self, numbered: bool) -> list[tuple[str, NDArray[np.int64]]]:
        if not numbered:
            return []
        ones = np.ones(len(self.index), np.int64)
        return [("%d", ones if self.objects is None else self.objects)]


def _joined(parts: Sequence[Answer], name: str) -> NDArray[np.float64] | None:
    """Concatenate an array; None if some answers do not have it."""
    known = [value for part in parts if (value := getattr(part, name)) is not None]
    return np.concatenate(known) if len(known) == len(parts) else None


def _place_crops(crops: NDArray[np.float64] | None, cut: Cut) -> NDArray[np.float64] | None:
    """Return parts of a region of interest as parts of the whole frame."""
    if crops is None:
        return None
    return np.concatenate([cut.place(crops[:, :2]), cut.place(crops[:, 2:])], 1)


def header(columns: Iterable[str], *, numbered: bool = False) -> str:
    """Return the first line of the CSV.

    >>> print(header(TRACK), end="")
    sequence,frame,time,x,y,confidence
    >>> print(header(TRACK, numbered=True), end="")
    sequence,frame,object,time,x,y,confidence
    """
    number = ["object"] if numbered else []
    return ",".join(["sequence", "frame", *number, "time", *columns]) + "\n"


def read_answers(lines: Iterable[str]) -> list[Answer]:
    """Read a table, one `Answer` per sequence, without its columns in pixels.

    Raises:
        ValueError: A row has more or fewer cells than the header, or a cell is not a number.
        csv.Error: The table is not CSV.

    Example:
        >>> [found] = read_answers([header(["y0"]), "a,7,0.280000,0.500000"])
        >>> found.sequence, found.index.tolist(), found.columns, found.values.tolist()
        ('a', [7], ('y0',), [[0.5]])
    """
    rows = csv.reader(lines)
    names = next(rows, [])
    numbered = names[2:3] == ["object"]
    results = names[4:] if numbered else names[3:]
    columns = tuple(name for name in results if name not in PIXELS + SHAPE + CROP)
    answers = []
    for sequence, some in groupby(_checked(rows, len(names)), itemgetter(0)):
        table = _to_numbers(row[1:] for row in some)
        numbers = table[:, 1] if numbered else np.ones(len(table))
        if not (np.abs(table[:, 0]) < MAX_FRAME).all() or not (numbers >= 1).all():  # or NaN
            raise ValueError("expected frame numbers")
        cells = dict(zip(results, table.T[-len(results) :], strict=True))
        answer = Answer(
            sequence,
            table[:, 0].astype(np.int64),
            table[:, 2 if numbered else 1],
            columns,
            np.stack([cells[name] for name in columns], 1),
            shapes=_columns(cells, SHAPE),
            crops=_columns(cells, CROP),
            objects=numbers.astype(np.int64),
        )
        answers.append(main_object(answer))
    return answers


def _to_numbers(rows: Iterable[list[str]]) -> NDArray[np.float64]:
    """Convert rows in parts, because text takes twenty times as much memory."""
    remaining = iter(rows)
    parts = []
    while some := list(islice(remaining, ROWS_AT_ONCE)):
        parts.append(np.array(some).astype(np.float64))
    return np.concatenate(parts)


def _columns(cells: dict[str, NDArray[np.float64]], names: Sequence[str]) -> Any:
    """Return these columns of a table; None if it does not have them."""
    return np.stack([cells[name] for name in names], 1) if names[0] in cells else None


def main_object(rows: Answer) -> Answer:
    """Return the object with most rows, with all rows in `several` if there are several."""
    assert rows.objects is not None
    numbers, counts = np.unique(rows.objects, return_counts=True)
    if len(numbers) == 1:
        return replace(rows, objects=None) if numbers[0] == 1 else rows
    main = rows.rows(rows.objects == numbers[counts.argmax()])
    return replace(main, objects=None, several=rows)


def _checked(rows: Iterable[list[str]], cells: int) -> Iterator[list[str]]:
    for row in rows:
        if len(row) != cells:
            raise ValueError(f"expected {cells} cells in each row, got {len(row)}")
        yield row


def unsure(answers: Sequence[Answer]) -> float:
    """Return the share of frames with a confidence below 0.5; 0 for codes.

    >>> found = np.array([[0.5, 0.5, 0.1], [0.5, 0.5, 0.9]])
    >>> unsure([Answer("a", np.arange(2), np.zeros(2), TRACK, found)])
    0.5
    """
    rows = [answer.values[:, 2] for answer in answers if answer.columns == TRACK]
    return float(np.mean(np.concatenate(rows) < SURE)) if rows else 0.0


class RowFile:
    """Collects the rows of one sequence, without masks.

    Example:
        >>> part = Answer("a", np.arange(2), np.arange(2) / 25, ("y0",), np.ones((2, 1)))
        >>> with RowFile() as rows:
        ...     rows.add(part)
        ...     rows.add(replace(part, index=part.index + 2))
        ...     rows.read().index.tolist()
        [0, 1, 2, 3]
    """

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile()
        self._first: Answer | None = None
        self.count = 0

    def __enter__(self) -> RowFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def add(self, answer: Answer) -> None:
        """Add consecutive rows; all parts must have the same arrays."""
        if self._first is None:
            self._first = replace(answer.rows(slice(0)), masks=None, owners=None)
        columns = [getattr(answer, name) for name in NAMES if getattr(answer, name) is not None]
        self._file.write(np.column_stack(columns).tobytes())  # frame numbers are exact as float64
        self.count += len(answer.index)

    def read(self) -> Answer:
        """Return all rows; there must be at least one."""
        assert self._first is not None, "expected rows"
        kinds = {name: array for name in NAMES if (array := getattr(self._first, name)) is not None}
        arrays: dict[str, Any] = {
            name: np.empty((self.count, *kind.shape[1:]), kind.dtype)
            for name, kind in kinds.items()
        }
        widths = [a[0].size for a in arrays.values()]
        for start, table in self._tables(sum(widths)):
            parts = np.split(table, np.cumsum(widths)[:-1], axis=1)
            for array, part in zip(arrays.values(), parts, strict=True):
                array[start : start + len(table)] = part.reshape(-1, *array.shape[1:])
        return replace(self._first, **arrays)

    def _tables(self, width: int) -> Iterator[tuple[int, NDArray[np.float64]]]:
        """Yield the rows in parts, with the number of the first row of each."""
        self._file.seek(0)
        for start in range(0, self.count, ROWS_AT_ONCE):
            rows = min(ROWS_AT_ONCE, self.count - start)
            content = self._file.read(8 * width * rows)
            yield start, np.frombuffer(content).reshape(rows, width)
