"""Results of a run on video, one row per frame, and their CSV."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ullayers.errors import RunError
from ullayers.files import open_regular
from ullayers.video.parallel import read_ahead
from ullayers.video.region import Box, Cut

if TYPE_CHECKING:  # loaded where it is used, because importing it takes half a second
    from pandas import DataFrame

TRACK = ("x", "y", "confidence")  # x and y in 0..1, from the top left corner of the frame
PIXELS = ("x_px", "y_px")  # the same position in pixels
SHAPE = ("speed", "heading", "length", "width", "area")  # in pixels, seconds and degrees
CROP = ("left", "top", "right", "bottom")  # of the part of the frame that was used, in 0..1
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
CROSSINGS = "crossings.csv"
CROSSING_NAMES = ("sequence", "first_frame", "last_frame", "start", "end", "objects", "confidence")
WHOLE = ("frame", "object", "first_frame", "last_frame", "entries")  # columns of whole numbers
TEXT = ("sequence", "objects", "zone")  # columns of text
ROWS_PER_PART = 2**18  # rows of a table that is read in parts
END_BYTES = 2**16  # of a table that have its last row
MAX_OBJECT = 2**20  # larger than any number of an object
MAX_FRAMES = 10**8  # protects memory from damaged tables; 46 days at 25 frames per second


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
        joined: dict[str, Any] = {}
        for name in ARRAYS:
            known = [value for part in parts if (value := getattr(part, name)) is not None]
            whole = len(known) == len(parts) and name not in ("masks", "owners")
            joined[name] = np.concatenate(known) if whole else None
        return replace(parts[0], **joined)

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
            shapes=None if self.shapes is None else self.shapes.round(2),
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

    def lines(self) -> str:
        """Return the rows as CSV text; unknown values are empty cells.

        Example:
            >>> found = np.array([[0.5, 0.25, 1.0]])
            >>> print(Answer("a", np.array([7]), np.array([0.28]), TRACK, found).lines(), end="")
            a,7,1,0.280000,0.500000,0.250000,1.000000
            >>> sized = Answer("a", np.array([7]), np.array([0.28]), TRACK, found, size=(640, 480))
            >>> print(sized.lines(), end="")
            a,7,1,0.280000,0.500000,0.250000,1.000000,320.00,120.00
        """
        if self.several is not None:
            return self.several.lines()
        blocks: list[tuple[str, NDArray[Any]]] = [("%d", self.index)]
        if self.columns == TRACK:
            ones = np.ones(len(self.index), np.int64)
            blocks.append(("%d", ones if self.objects is None else self.objects))
        precise = f"%.{DIGITS}f"
        blocks += [(precise, self.seconds)]
        blocks += [(precise, column) for column in self.values.T]
        if self.size is not None:
            blocks += [("%.2f", column) for column in (self.values[:, :2] * self.size).T]
        if self.shapes is not None:
            blocks += [("%.2f", column) for column in self.shapes.T]
        if self.crops is not None:
            blocks += [(precise, column) for column in self.crops.T]
        return csv_lines(self.sequence, blocks)


def csv_lines(sequence: str, blocks: Sequence[tuple[str, NDArray[Any]]]) -> str:
    r"""Return rows of a sequence as CSV text; unknown values are empty cells.

    Args:
        sequence: Name of the sequence.
        blocks: Format and values of each column after it.

    Example:
        >>> csv_lines("a, b", [("%d", np.array([0, 1])), ("%.2f", np.array([1.0, np.nan]))])
        '"a, b",0,1.00\n"a, b",1,\n'
    """
    name = io.StringIO()
    csv.writer(name, lineterminator="").writerow([sequence])
    start = f"{name.getvalue()},"
    rest = ",".join(cell for cell, _ in blocks) + "\n"
    rows = zip(*(column.tolist() for _, column in blocks), strict=True)
    if any(np.isnan(column).any() for _, column in blocks):
        return "".join([start + (rest % row).replace("nan", "") for row in rows])
    return "".join([start + rest % row for row in rows])


def _place_crops(crops: NDArray[np.float64] | None, cut: Cut) -> NDArray[np.float64] | None:
    """Return parts of a region of interest as parts of the whole frame."""
    if crops is None:
        return None
    return np.concatenate([cut.place(crops[:, :2]), cut.place(crops[:, 2:])], 1)


def header(columns: Iterable[str]) -> str:
    """Return the first line of the CSV; tables of positions have a column `object`.

    >>> print(header(TRACK) + header(["y0", "y1"]), end="")
    sequence,frame,object,time,x,y,confidence
    sequence,frame,time,y0,y1
    """
    names = tuple(columns)
    number = ["object"] if names[: len(TRACK)] == TRACK else []
    return ",".join(["sequence", "frame", *number, "time", *names]) + "\n"


def open_table(
    path: Path, wanted: Sequence[str] | None = None, required: Sequence[str] = ()
) -> tuple[list[str], Iterator[DataFrame]]:
    """Open a table of results for reading in parts; columns are found by their names.

    Args:
        path: The table: tracks.csv, codes.csv, behaviour.csv, ...
        wanted: Columns to read besides those of `WHOLE` and `TEXT`; None for all.
        required: Columns that it must have.

    Returns:
        Names of the columns, and parts of the rows. `sequence` is categorical, other numbers are
        float64, NaN if the cell is empty. Reading them raises RunError if the table is damaged.

    Raises:
        RunError: The table is missing or damaged.
    """
    try:
        with open_regular(path) as file:
            present = next(csv.reader([file.readline().decode()], strict=True), [])
            missing = set(required) - set(present)
            if missing:
                raise ValueError(f"no column {sorted(missing)[0]}")
            _check_cells(file, len(present))
    except (FileNotFoundError, NotADirectoryError):
        raise RunError(f"{path}: is missing; {_how_to_write(path)}") from None
    except (OSError, ValueError, csv.Error) as error:
        raise damaged_table(path, error) from error
    kept = {*WHOLE, *TEXT, *(present if wanted is None else wanted)}
    columns = [name for name in present if name in kept]
    return columns, read_ahead(_parts(path, columns))  # pandas reads without holding other threads


def _check_cells(file: BinaryIO, cells: int) -> None:
    """Refuse a first or last row that is not complete; pandas would accept them."""
    first = file.readline()
    file.seek(max(file.tell(), file.seek(0, io.SEEK_END) - END_BYTES))
    for row in (first, *file.readlines()[-1:]):
        is_whole = row.count(b'"') % 2 == 0 and row.strip()  # a name may have line breaks
        if is_whole and len(next(csv.reader([row.decode()], strict=True))) != cells:
            raise ValueError(f"expected {cells} cells in each row")


def _parts(path: Path, columns: list[str]) -> Generator[DataFrame, None, None]:
    import pandas

    kinds = {name: "category" if name in TEXT else "float64" for name in columns}
    numbers = [name for name in columns if name not in TEXT]
    try:
        with (
            open_regular(path) as file,
            pandas.read_csv(
                file,
                usecols=columns,
                dtype=kinds,
                keep_default_na=False,
                na_values={name: ["", "nan"] for name in numbers},
                chunksize=ROWS_PER_PART,
            ) as parts,
        ):
            yield from parts
    except (OSError, ValueError) as error:
        reason = "a row has a cell that is not a number" if "convert" in str(error) else error
        raise damaged_table(path, reason) from error


def damaged_table(path: Path, reason: object) -> RunError:
    """Return the error of a table that cannot be read."""
    return RunError(
        f"{path}: is damaged ({' '.join(str(reason).split())}); write it again with --force"
    )


def _how_to_write(path: Path) -> str:
    """Return how to write a missing table."""
    begun = path.with_name("config.json").exists() or path.with_suffix(".partial.sqlite").exists()
    return f"{'finish' if begun else 'write'} it with ul learn or ul apply{' --resume' * begun}"


def read_frame(path: Path, required: Sequence[str] = ("sequence",)) -> DataFrame:
    """Return a table of results as a pandas DataFrame.

    Args:
        path: The table.
        required: Columns that it must have.

    Raises:
        RunError: The table is missing or damaged.
    """
    import pandas

    columns, parts = open_table(path, required=required)
    read = list(parts)
    frame = pandas.DataFrame(
        {
            name: pandas.api.types.union_categoricals([part[name] for part in read])
            if name in TEXT
            else np.concatenate([part[name] for part in read])
            for name in columns
        },
        copy=False,
    )
    for name in WHOLE:
        if name in columns:
            numbers = frame[name]
            if not ((np.floor(numbers) == numbers) & (np.abs(numbers) < 2**53)).all():  # or NaN
                raise damaged_table(
                    path, f"the column {name} has a cell that is not a whole number"
                )
            frame[name] = numbers.astype(np.int64)
    return frame


def read_answers(path: Path) -> list[Answer]:
    r"""Read a table, one `Answer` for each sequence, without its columns in pixels.

    Raises:
        RunError: The table is missing or damaged.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "codes.csv")
        ...     _ = path.write_text(header(["y0"]) + "a,7,0.280000,0.500000\n")
        ...     [found] = read_answers(path)
        >>> found.sequence, found.index.tolist(), found.columns, found.values.tolist()
        ('a', [7], ('y0',), [[0.5]])
    """
    frame = read_frame(path, ("sequence", "frame", "time"))
    if "object" not in frame:
        frame["object"] = np.ones(len(frame), np.int64)
    known = {"sequence", "frame", "object", "time", *PIXELS, *SHAPE, *CROP}
    columns = tuple(name for name in frame.columns if name not in known)
    return [
        main_object(
            Answer(
                str(name),
                rows["frame"].to_numpy(),
                rows["time"].to_numpy(),
                columns,
                rows[list(columns)].to_numpy(),
                shapes=rows[list(SHAPE)].to_numpy() if SHAPE[0] in rows else None,
                crops=rows[list(CROP)].to_numpy() if CROP[0] in rows else None,
                objects=rows["object"].to_numpy(),
            )
        )
        for name, rows in frame.groupby("sequence", sort=False, observed=True)
    ]


class Table:
    """The tables of a results folder as pandas DataFrames, each read when it is first used.

    Columns are those of the files, in the units of the files. A table that the task does not have,
    such as the codes of `locate`, has no rows.

    Args:
        folder: Folder of `ul learn`, `ul apply` or `ul watch`.

    Raises:
        RunError: The folder has neither tracks.csv nor codes.csv.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if not any((folder / name).exists() for name in ("tracks.csv", "codes.csv")):
            raise RunError(f"{folder}: has no results; {_how_to_write(folder / 'tracks.csv')}")

    @cached_property
    def tracks(self) -> DataFrame:
        """Positions: sequence, frame, object, time, x, y, confidence, x_px, y_px, ..."""
        frame = self._read("tracks.csv", ("sequence", "frame", "time", *TRACK))
        if "object" not in frame:  # of version 0.1, which found one object
            frame.insert(2, "object", np.ones(len(frame), np.int64))
        return frame

    @cached_property
    def codes(self) -> DataFrame:
        """Codes: sequence, frame, time, y0, y1, ..."""
        return self._read("codes.csv", ("sequence", "frame", "time", "y0"))

    @cached_property
    def crossings(self) -> DataFrame:
        """Stretches of frames in which objects touch or hide each other."""
        return self._read(CROSSINGS, CROSSING_NAMES)

    def _read(self, name: str, columns: Sequence[str]) -> DataFrame:
        path = self.folder / name
        if path.exists():
            return read_frame(path, columns)
        import pandas

        return pandas.DataFrame(columns=list(columns))


def read_table(folder: str | os.PathLike[str]) -> Table:
    r"""Return the tables of a results folder.

    Raises:
        RunError: The folder has none.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "tracks.csv")
        ...     _ = path.write_text(header(TRACK) + "a,7,1,0.280000,0.500000,0.250000,\n")
        ...     tracks = read_table(folder).tracks
        >>> tracks[["sequence", "frame", "object", "x", "confidence"]].to_dict("records")
        [{'sequence': 'a', 'frame': 7, 'object': 1, 'x': 0.5, 'confidence': nan}]
    """
    return Table(Path(folder))


def main_object(rows: Answer) -> Answer:
    """Return the object with most rows, with all rows in `several` if there are several."""
    assert rows.objects is not None
    numbers, counts = np.unique(rows.objects, return_counts=True)
    if len(numbers) == 1:
        return replace(rows, objects=None) if numbers[0] == 1 else rows
    main = rows.rows(rows.objects == numbers[counts.argmax()])
    return replace(main, objects=None, several=rows)


def unsure(answers: Sequence[Answer]) -> float:
    """Return the share of frames with a confidence below 0.5; 0 for codes.

    >>> found = np.array([[0.5, 0.5, 0.1], [0.5, 0.5, 0.9]])
    >>> unsure([Answer("a", np.arange(2), np.zeros(2), TRACK, found)])
    0.5
    """
    rows = [answer.values[:, 2] for answer in answers if answer.columns == TRACK]
    return float(np.mean(np.concatenate(rows) < SURE)) if rows else 0.0
