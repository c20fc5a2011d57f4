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
MOST_DIGITS = 15  # numbers with this many digits, and their power of ten, are exact in float64
COMMA, LINE_FEED, RETURN, QUOTE, POINT, MINUS, ZERO = b',\n\r".-0'
NAN = 110, 97, 110
POWERS = np.array([10.0**n for n in range(MOST_DIGITS + 1)])

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
    return compile_loop(_scan)


def _scan(data: Any, places: Any, values: Any, names: Any, powers: Any) -> int:
    """Fill `values` and `names`; return the number of names, or -1 if a row is not plain."""
    at, end, changes, cells = 0, len(data), 0, len(places)
    for row in range(len(values)):
        for cell in range(cells):
            start = at
            place = places[cell]
            if place < 0:
                while at < end and data[at] != COMMA and data[at] != LINE_FEED:
                    if data[at] == QUOTE or data[at] == RETURN:
                        return -1
                    at += 1
                if place == NAME:
                    is_new = (
                        changes == 0 or at - start != names[changes - 1, 2] - names[changes - 1, 1]
                    )
                    for byte in range(0 if is_new else at - start):
                        if data[start + byte] != data[names[changes - 1, 1] + byte]:
                            is_new = True
                            break
                    if is_new:
                        names[changes, 0], names[changes, 1], names[changes, 2] = row, start, at
                        changes += 1
            elif at + 2 < end and data[at] == NAN[0]:
                if data[at + 1] != NAN[1] or data[at + 2] != NAN[2]:
                    return -1
                values[row, place] = np.nan
                at += 3
            else:
                sign = 1.0
                if at < end and data[at] == MINUS:
                    sign = -1.0
                    at += 1
                digits, decimals, number = 0, -1, 0
                while at < end:
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
                if digits == 0 or digits > MOST_DIGITS:
                    return -1
                values[row, place] = sign * number / powers[max(decimals, 0)]
            if cell == cells - 1 and at < end and data[at] == RETURN:
                at += 1
            if at >= end or data[at] != (LINE_FEED if cell == cells - 1 else COMMA):
                return -1
            at += 1
    return changes if at == end else -1
