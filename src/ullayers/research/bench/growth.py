"""Time and memory against the size of everything, and the exponents with which they grow."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np

from ullayers.research.bench.curves import CURVES, Curve
from ullayers.research.bench.memory import Meter
from ullayers.research.bench.timing import How, Row, Step, fastest

SECONDS = 0.3  # of rounds at each size, one round at least
LONG = 3.0  # seconds beyond which a step is taken twice only, the first time to warm up


def rows(how: How) -> Iterator[Row]:
    """A row for each size of each curve, and one with the exponents after each curve."""
    found: dict[str, list[Row]] = {}
    if how.plots is not None:
        how.plots.mkdir(parents=True, exist_ok=True)
    with Meter(how.threads) as meter:
        for name, curve in CURVES.items():
            found[name] = []
            for row in points(name, curve, how, meter):
                found[name].append(row)
                yield row
    if how.plots is not None:
        from ullayers.research.bench.chart import draw

        yield {"kind": "charts", "note": "drew " + ", ".join(map(str, draw(found, how.plots)))}


def points(name: str, curve: Curve, how: How, meter: Meter) -> Iterator[Row]:
    """All sizes of one curve, then its exponents."""
    sizes, seconds, peaks = curve.chosen(how.quick), [], []
    for size in sizes:
        step = curve.make(size)
        seconds.append(_time(step, how.quick))
        del step  # its input would be in memory twice
        peaks.append(meter.peak(name, size))
        yield {
            "kind": "size", "curve": name, "axis": curve.axis, "size": size,
            "seconds": seconds[-1], "bytes": peaks[-1],
        }  # fmt: skip
    yield {
        "kind": "exponents", "curve": name, "title": curve.title, "axis": curve.axis,
        "from": upper_half(sizes)[0],
        "time": exponent(sizes, seconds), "memory": exponent(sizes, peaks),
    }  # fmt: skip


def _time(step: Step, quick: bool) -> float:
    first = _once(step)
    if first > LONG:
        return min(first, _once(step))
    return fastest({"step": step}, seconds=0 if quick else SECONDS)["step"]


def _once(step: Step) -> float:
    begin = time.perf_counter()
    step()
    return time.perf_counter() - begin


def upper_half(sizes: Sequence[int]) -> list[int]:
    """The sizes from the middle of their range on a logarithmic scale, two at least.

    >>> upper_half([1, 10, 100, 1000, 10000])
    [100, 1000, 10000]
    """
    middle = (sizes[0] * sizes[-1]) ** 0.5
    return [s for i, s in enumerate(sizes) if s >= 0.999 * middle or i >= len(sizes) - 2]


def exponent(sizes: Sequence[int], values: Sequence[float | None]) -> float | None:
    """The slope of log value over log size in the upper half of the sizes, by least squares.

    >>> exponent([1, 10, 100, 1000], [7, 8, 300, 30_000])
    2.0
    """
    upper = set(upper_half(sizes))
    known = [(s, v) for s, v in zip(sizes, values, strict=True) if v and s in upper]
    if len(known) < 2:
        return None
    size, value = np.log(np.array(known)).T
    return round(float(np.polyfit(size, value, 1)[0]), 2)


def line(row: Row) -> str:
    """A row of the table."""
    if row["kind"] == "size":
        peak = "" if row["bytes"] is None else f"{row['bytes'] / 2**20:12.2f} MB"
        return f"{row['axis']:18}{row['size']:9,}{1e3 * row['seconds']:14.3f} ms{peak}"
    shown = [f"{what} {_power(row[what])}" for what in ("time", "memory")]
    return f"{row['title']}: {', '.join(shown)}, fitted from {row['from']:,} up\n"


def _power(value: float | None) -> str:
    return "unknown" if value is None else f"~ size^{value:.2f}"
