"""Time and memory against size, and the exponents with which they grow."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np

from ullayers.research.bench.curves import CURVES, Curve
from ullayers.research.bench.memory import MemoryMeter
from ullayers.research.bench.timing import BenchOptions, Row, Step, fastest

SECONDS = 0.3  # minimum duration of the rounds of each size
LONG = 3.0  # a step that takes more seconds is measured twice only, the first time as a warm-up


def rows(options: BenchOptions) -> Iterator[Row]:
    """Yield a row for each size of each curve, and one with the exponents after each curve."""
    found: dict[str, list[Row]] = {}
    if options.plots is not None:
        options.plots.mkdir(parents=True, exist_ok=True)
    with MemoryMeter(options.threads) as meter:
        for name, curve in CURVES.items():
            found[name] = []
            for row in points(name, curve, options.quick, meter):
                found[name].append(row)
                yield row
    if options.plots is not None:
        from ullayers.research.bench.chart import draw

        files = ", ".join(str(path) for path in draw(found, options.plots))
        yield {"kind": "charts", "note": f"wrote {files}"}


def points(name: str, curve: Curve, quick: bool, meter: MemoryMeter) -> Iterator[Row]:
    """Yield all sizes of one curve, then its exponents."""
    sizes = curve.chosen(quick)
    seconds: list[float] = []
    peaks: list[int | None] = []
    for size in sizes:
        step = curve.make(size)
        seconds.append(_time(step, quick))
        del step  # frees its input, which the meter's process allocates again
        peaks.append(meter.peak(name, size))
        yield {
            "kind": "size",
            "curve": name,
            "axis": curve.axis,
            "size": size,
            "seconds": seconds[-1],
            "bytes": peaks[-1],
        }
    yield {
        "kind": "exponents",
        "curve": name,
        "title": curve.title,
        "axis": curve.axis,
        "from": upper_half(sizes)[0],
        "time": exponent(sizes, seconds),
        "memory": exponent(sizes, peaks),
    }


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
    """Return the sizes above the middle of their range on a log scale, at least two.

    >>> upper_half([1, 10, 100, 1000, 10000])
    [100, 1000, 10000]
    """
    middle = (sizes[0] * sizes[-1]) ** 0.5
    return [s for i, s in enumerate(sizes) if s >= 0.999 * middle or i >= len(sizes) - 2]


def exponent(sizes: Sequence[int], values: Sequence[float | None]) -> float | None:
    """Return the least-squares slope of log value over log size in the upper half of the sizes.

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
    """Format a row of the table."""
    if row["kind"] == "size":
        peak = "" if row["bytes"] is None else f"{row['bytes'] / 2**20:12.2f} MB"
        return f"{row['axis']:18}{row['size']:9,}{1e3 * row['seconds']:14.3f} ms{peak}"
    shown = [f"{what} {_power(row[what])}" for what in ("time", "memory")]
    return f"{row['title']}: {', '.join(shown)}, fitted from {row['from']:,} up\n"


def _power(value: float | None) -> str:
    return "unknown" if value is None else f"~ size^{value:.2f}"
