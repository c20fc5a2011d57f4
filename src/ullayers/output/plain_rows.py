"""Reading rows of plain CSV as numbers, ten times as fast as NumPy.

Plain rows have no quotes, and their numbers are decimals without an exponent, or nan. Result tables
are written in this way, unless a name needs quotes.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ullayers.kernels.numba.compiling import compile_loop

NAME = -2  # place of the column with the name of the sequence
SKIPPED = -1  # place of a column that is not read
NOT_PLAIN = -1  # instead of a place in the rows
MAX_DIGITS = 15  # numbers with this many digits, and their power of ten, are exact in float64
COMMA, LINE_FEED, RETURN, QUOTE, POINT, MINUS, ZERO = b',\n\r".-0'
NAN = 110, 97, 110
POWERS = np.array([10.0**n for n in range(MAX_DIGITS + 1)])

Floats = NDArray[np.float64]


def plain_rows(block: bytes, places: NDArray[np.int64]) -> tuple[Floats, list[tuple[int, str]]]:
    r"""Return the numbers of complete rows.

    Args:
        block: Rows, each with a line break at its end.
        places: For each column its place in the result, `NAME` or `SKIPPED`.

    Returns:
        Numbers (rows, places), equal to those that `float` reads, and names: the first row of each,
        and the name.

    Raises:
        ValueError: The rows are not plain.

    Example:
        >>> rows, names = plain_rows(b"a,7,0.28\nb,8,nan\n", np.array([NAME, 0, 1]))
        >>> rows.tolist(), names
        ([[7.0, 0.28], [8.0, nan]], [(0, 'a'), (1, 'b')])
    """
    data = np.frombuffer(block, np.uint8)
    count = int(np.count_nonzero(data == LINE_FEED))
    values = np.empty((count, int(places.max()) + 1))
    names = np.empty((count, 3), np.int64)
    changes = _compiled()(data, places, values, names, POWERS)
    if changes < 0:
        raise ValueError("the rows are not plain")
    return values, [
        (row, block[start:end].decode()) for row, start, end in names[:changes].tolist()
    ]


@cache
def _compiled() -> Any:
    """Compile the loop on first use, because importing numba is slow."""
    parts = (_end_of_text, _add_name, _is_same, _number, _decimal, _after_separator)
    return compile_loop(_scan, *parts)


def _scan(data: Any, places: Any, values: Any, names: Any, powers: Any) -> int:
    """Fill `values` and `names`; return the number of names, or -1 if a row is not plain."""
    at = 0
    changes = 0
    last = len(places) - 1
    for row in range(len(values)):
        for cell in range(last + 1):
            place = places[cell]
            if place < 0:
                start = at
                at = _end_of_text(data, start)
                if place == NAME and at >= 0:
                    changes = _add_name(data, row, start, at, names, changes)
            else:
                values[row, place], at = _number(data, at, powers)
            at = _after_separator(data, at, cell == last)
            if at < 0:
                return -1
    return changes if at == len(data) else -1


def _end_of_text(data: Any, at: int) -> int:
    """Return the end of a cell of text."""
    while at < len(data) and data[at] != COMMA and data[at] != LINE_FEED:
        if data[at] == QUOTE or data[at] == RETURN:
            return NOT_PLAIN
        at += 1
    return at


def _add_name(data: Any, row: int, start: int, end: int, names: Any, changes: int) -> int:
    """Add a name unless it is that of the row before; return the number of names."""
    if changes and _is_same(data, start, end, names[changes - 1, 1], names[changes - 1, 2]):
        return changes
    names[changes, 0] = row
    names[changes, 1] = start
    names[changes, 2] = end
    return changes + 1


def _is_same(data: Any, start: int, end: int, other_start: int, other_end: int) -> bool:
    """Return whether two texts are the same."""
    if end - start != other_end - other_start:
        return False
    for byte in range(end - start):
        if data[start + byte] != data[other_start + byte]:
            return False
    return True


def _number(data: Any, at: int, powers: Any) -> tuple[float, int]:
    """Return a number or nan, and its end."""
    if at + 2 < len(data) and data[at] == NAN[0]:
        is_nan = data[at + 1] == NAN[1] and data[at + 2] == NAN[2]
        return np.nan, at + 3 if is_nan else NOT_PLAIN
    if at < len(data) and data[at] == MINUS:
        size, at = _decimal(data, at + 1, powers)
        return -size, at
    return _decimal(data, at, powers)


def _decimal(data: Any, at: int, powers: Any) -> tuple[float, int]:
    """Return a decimal number without a sign, and its end."""
    digits = 0
    decimals = -1  # before the point
    number = 0
    while at < len(data):
        byte = int(data[at])
        if ZERO <= byte < ZERO + 10:
            number = 10 * number + byte - ZERO
            digits += 1
            decimals += decimals >= 0
        elif byte == POINT and decimals < 0:
            decimals = 0
        else:
            break
        at += 1
    if not 0 < digits <= MAX_DIGITS:
        return np.nan, NOT_PLAIN
    return number / powers[max(decimals, 0)], at


def _after_separator(data: Any, at: int, is_last: bool) -> int:
    """Return the start of the next cell.

    Args:
        data: The rows.
        at: End of a cell, or `NOT_PLAIN`.
        is_last: Whether the cell is the last of its row.
    """
    if at < 0:
        return NOT_PLAIN
    if is_last and at < len(data) and data[at] == RETURN:
        at += 1
    if at < len(data) and data[at] == (LINE_FEED if is_last else COMMA):
        return at + 1
    return NOT_PLAIN
