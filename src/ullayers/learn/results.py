"""Results of a run on video, one row per frame, and their CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from ullayers.video.region import Box, Cut

TRACK = ("x", "y", "confidence")  # x and y in 0..1 of the frame, from its top left corner
PIXELS = ("x_px", "y_px")  # the same position in pixels, the last columns of a table
CROP = ("left", "top", "right", "bottom")  # of the part that was used, in 0..1 of the frame
MAX_FRAME = 2**53  # larger frame numbers are not exact in float64
SURE = 0.5  # positions with less confidence are unreliable


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
        index: (time,) number of each frame in its source.
        seconds: (time,) time of each frame.
        columns: Names of the columns of `values`: `TRACK`, or y0, y1, ...
        values: (time, columns) results.
        masks: (time, height, width) uint8, 255 where the object is; None if there are none.
        size: (width, height) of the source's frames; if given, tables also contain pixels.
        box: Part of the frame that the masks cover; None for all of it.
        others: (time,) mass of the strongest other object, relative to this one; None if unknown.
        crops: (time, 4) part of each frame that was used, as in `CROP`; None for whole frames.
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

    @classmethod
    def join(cls, parts: Sequence[Answer]) -> Answer:
        """Concatenate consecutive parts of one sequence, without their masks."""
        index, seconds, values = (
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("index", "seconds", "values")
        )
        known = [part.others for part in parts if part.others is not None]
        others = np.concatenate(known) if len(known) == len(parts) else None
        used = [part.crops for part in parts if part.crops is not None]
        crops = np.concatenate(used) if used else None
        joined = replace(parts[0], index=index, seconds=seconds, values=values)
        return replace(joined, masks=None, others=others, crops=crops)

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
        return replace(self, values=values, masks=masks, box=cut.box)

    @property
    def table_columns(self) -> tuple[str, ...]:
        """Columns of a table after sequence, frame and time."""
        pixels = () if self.size is None else PIXELS
        return self.columns + pixels + (() if self.crops is None else CROP)

    def lines(self) -> str:
        """Return the rows as CSV text.

        >>> found = np.array([[0.5, 0.25, 1.0]])
        >>> print(Answer("a", np.array([7]), np.array([0.28]), TRACK, found).lines(), end="")
        a,7,0.280000,0.500000,0.250000,1.000000
        >>> sized = Answer("a", np.array([7]), np.array([0.28]), TRACK, found, size=(640, 480))
        >>> print(sized.lines(), end="")
        a,7,0.280000,0.500000,0.250000,1.000000,320.00,120.00
        """
        name = io.StringIO()
        csv.writer(name, lineterminator="").writerow([self.sequence])
        columns = [self.index, self.seconds, *self.values.T]
        cells = ["%d", *["%.6f"] * (1 + self.values.shape[1])]
        if self.size is not None:
            columns += [*(self.values[:, :2] * self.size).T]
            cells += ["%.2f"] * 2
        if self.crops is not None:
            columns += [*self.crops.T]
            cells += ["%.6f"] * self.crops.shape[1]
        start, rest = f"{name.getvalue()},", ",".join(cells) + "\n"
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return "".join([start + rest % row for row in rows])


def _place_crops(crops: NDArray[np.float64] | None, cut: Cut) -> NDArray[np.float64] | None:
    """Return parts of a region of interest as parts of the whole frame."""
    if crops is None:
        return None
    return np.concatenate([cut.place(crops[:, :2]), cut.place(crops[:, 2:])], 1)


def header(columns: Iterable[str]) -> str:
    """Return the first line of the CSV.

    >>> print(header(TRACK), end="")
    sequence,frame,time,x,y,confidence
    """
    return ",".join(["sequence", "frame", "time", *columns]) + "\n"


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
    columns = tuple(name for name in names[3:] if name not in PIXELS + CROP)
    has_crops = names[3:][-len(CROP) :] == list(CROP)
    answers = []
    for sequence, some in groupby(_checked(rows, len(names)), itemgetter(0)):
        table = np.array([row[1:] for row in some]).astype(np.float64)
        if not (np.abs(table[:, 0]) < MAX_FRAME).all():  # false for NaN
            raise ValueError("expected frame numbers")
        index = table[:, 0].astype(np.int64)
        values = table[:, 2 : 2 + len(columns)]
        crops = table[:, -len(CROP) :] if has_crops else None
        answers.append(Answer(sequence, index, table[:, 1], columns, values, crops=crops))
    return answers


def _checked(rows: Iterable[list[str]], cells: int) -> Iterator[list[str]]:
    for row in rows:
        if len(row) != cells:
            raise ValueError(f"expected {cells} cells in each row, got {len(row)}")
        yield row


def unsure(answers: Sequence[Answer]) -> float:
    """Return the share of frames with a confidence below 0.5; 0 for codes, which have none.

    >>> found = np.array([[0.5, 0.5, 0.1], [0.5, 0.5, 0.9]])
    >>> unsure([Answer("a", np.arange(2), np.zeros(2), TRACK, found)])
    0.5
    """
    rows = [answer.values[:, 2] for answer in answers if answer.columns == TRACK]
    return float(np.mean(np.concatenate(rows) < SURE)) if rows else 0.0
