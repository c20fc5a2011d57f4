"""Rows of a long video in a temporary file, until its last frame.

In memory, the rows would be small but fragment the heap: each part would lie between the large
blocks used for frames, and prevent the memory around it from being reused.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from types import TracebackType
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ullayers.learn.results import Answer

NAMES = ("index", "seconds", "values", "others", "crops", "moments")  # as in `Answer.join`
ROWS_AT_ONCE = 2**14


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
