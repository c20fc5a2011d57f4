"""Time and memory of a step against its size, and the exponents with which they grow.

Peak memory includes what torch, numpy, LAPACK and Python allocate. The steps run in a separate
process. Linux records the peak resident memory of a process and lets the process reset it, so the
peak of a step is the peak during the step minus the memory before it, which includes its input.
malloc is told to return freed memory to the system at once; otherwise a step could reuse memory of
an earlier one and would seem to need none.
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import matplotlib
import numpy as np
import scipy.sparse as sp
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter
from torch import nn

from experiments.bench.timing import (
    BenchOptions,
    Row,
    Step,
    fastest,
    forward_backward,
    pinned_threads,
)
from ullayers.errors import Error
from ullayers.exact.markov import closed_form
from ullayers.exact.slow_features import SlowFeatures
from ullayers.files import replacing
from ullayers.nn.layers import UL1d, UL2d
from ullayers.report.charts import INK, LINES, STYLE


@dataclass(frozen=True)
class Curve:
    """A step that is measured at several sizes.

    Attributes:
        title: What is measured, and the sizes that stay fixed.
        axis: Name of the size that grows.
        sizes: Sizes, ascending.
        make: Prepares the input of a size and returns the step.
    """

    title: str
    axis: str
    sizes: tuple[int, ...]
    make: Callable[[int], Step]

    def chosen(self, quick: bool) -> tuple[int, ...]:
        """Return the sizes to measure."""
        return self.sizes[:2] if quick else self.sizes


def _layer_step(layer: nn.Module, *shape: int) -> Step:
    torch.manual_seed(0)
    return forward_backward(layer, [torch.randn(*shape)])


def _frames_1d(frames: int) -> Step:
    return _layer_step(UL1d(16), frames, 16)


def _frames_2d(frames: int) -> Step:
    return _layer_step(UL2d(16), frames, 16, 32, 32)


def _streams(streams: int) -> Step:
    return _layer_step(UL1d(16), streams, 32, 16)


def _features(features: int) -> Step:
    return _layer_step(UL1d(features), 128, features)


def _positions(positions: int) -> Step:
    side = round(positions**0.5)
    return _layer_step(UL2d(16), 32, 16, side, side)


def _states(states: int) -> Step:
    counts = grid(states)
    return lambda: closed_form(counts, 4)


def _inputs(features: int) -> Step:
    rows = np.random.default_rng(0).standard_normal((10_000, features))
    return lambda: SlowFeatures(3).fit(rows)


def grid(states: int) -> Any:
    """Return pair counts of neighbours on a square grid: one plus a random count, six per state."""
    side = round(states**0.5)
    at = np.arange(side * side).reshape(side, side)
    i = np.concatenate([at[:, 1:].ravel(), at[1:].ravel()])
    j = np.concatenate([at[:, :-1].ravel(), at[:-1].ravel()])
    counts = 1 + np.random.default_rng(0).poisson(2, i.size)
    return sp.coo_array((counts, (i, j)), shape=(at.size, at.size)).tocsr()


def _powers(base: int, first: int, last: int) -> tuple[int, ...]:
    return tuple(base**i for i in range(first, last + 1))


CURVES = {
    "frames-1d": Curve("UL1d, one stream, d = 16", "frames T", _powers(4, 2, 7), _frames_1d),
    "frames-2d": Curve("UL2d, C = 16, 32 x 32", "frames T", _powers(2, 2, 8), _frames_2d),
    "streams": Curve("UL1d, T = 32, d = 16", "streams S", _powers(4, 1, 6), _streams),
    "features": Curve("UL1d, T = 128", "features d", _powers(2, 1, 10), _features),
    "positions": Curve("UL2d, T = 32, C = 16", "positions H x W", _powers(4, 3, 7), _positions),
    "states": Curve(
        "closed form, grid, d = 4",
        "states n",
        (1_024, 4_096, 16_384, 65_536, 262_144, 1_000_000),
        _states,
    ),
    "inputs": Curve(
        "SlowFeatures.fit, 10,000 rows",
        "features",
        (10, 20, 50, 100, 200, 500, 1_000, 2_000),
        _inputs,
    ),
}


STATUS = Path("/proc/self/status")
RESET = Path("/proc/self/clear_refs")
LARGE = 2**16  # allocations of this many bytes are returned to the system when they are freed


class MemoryMeter:
    """Measures steps in a separate process; the answer is None where the system has no counter."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        if RESET.exists():
            command = [sys.executable, "-m", __name__, str(self.threads)]
            malloc = {"MALLOC_MMAP_THRESHOLD_": str(LARGE), "MALLOC_TRIM_THRESHOLD_": str(LARGE)}
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=os.environ | malloc,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        if self.process is not None:
            if kind is not None:
                self.process.kill()
            self.process.communicate()

    def peak(self, curve: str, size: int) -> int | None:
        """Return the peak bytes of one step, without its input and what the last step has left."""
        if self.process is None:
            return None
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            print(curve, size, file=self.process.stdin, flush=True)
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise Error(
                f"could not measure the memory of {curve} at {size}: its process ended; "
                "is there enough memory?"
            )
        return int(answer)


def peak_increase(step: Step) -> int:
    """Return by how many bytes the resident memory of this process rises during a step."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    RESET.write_text("5")
    before = _kilobytes("VmRSS")
    step()
    return 1024 * max(0, _kilobytes("VmHWM") - before)


def _kilobytes(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+)", STATUS.read_text())
    assert found is not None
    return int(found[1])


def serve(threads: int) -> None:
    """Read lines with a curve and a size, write lines with the peak bytes of a step."""
    warmed_up: set[str] = set()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and ends this process
    with pinned_threads(threads):
        for request in sys.stdin:
            name, size = request.split()
            curve = CURVES[name]
            if name not in warmed_up:  # one-time imports and set-up are not part of a step
                curve.make(curve.sizes[0])()
                warmed_up.add(name)
            step = curve.make(int(size))
            step()  # the timed steps are not the first ones either
            print(peak_increase(step), flush=True)


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


ON_WHITE: dict[Any, Any] = {
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "font.size": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "axes.titlesize": 9,
}
COLUMNS = 4  # panels side by side


class Page(NamedTuple):
    """A chart of one quantity.

    Attributes:
        quantity: Key of the fitted exponent, and part of the file name.
        key: Key of the measured value.
        scale: Factor from the measured value to `unit`.
        unit: Label of the y axis.
        title: Title of the chart.
    """

    quantity: str
    key: str
    scale: float
    unit: str
    title: str


PAGES = (
    Page("time", "seconds", 1e3, "milliseconds", "Time of one step, the fastest round"),
    Page(
        "memory",
        "bytes",
        2**-20,
        "MB",
        "Peak resident memory of one step without its input and the last gradient",
    ),
)


def draw(found: dict[str, list[Row]], folder: Path) -> list[Path]:
    """Write growth-time.png and growth-memory.png; a page without values is left out."""
    written = []
    for page in PAGES:
        known = {name: rows for name, rows in found.items() if _known(rows, page.key)}
        if not known:
            continue
        path = folder / f"growth-{page.quantity}.png"
        with matplotlib.rc_context({**STYLE, **ON_WHITE}), replacing(path, "wb") as file:
            _figure(page, known).savefig(file, format="png", dpi=96)
        written.append(path)
    return written


def _figure(page: Page, known: dict[str, list[Row]]) -> Figure:
    lines = -(-len(known) // COLUMNS)
    figure = Figure(figsize=(11, 2.6 * lines + 0.5), layout="constrained")
    figure.suptitle(f"{page.title}; exponents fitted to the upper half of the sizes", size=10)
    panels = list(figure.subplots(lines, COLUMNS, squeeze=False).flat)
    for (name, rows), axes in zip(known.items(), panels, strict=False):
        _panel(axes, page, name, rows)
    for axes in panels[len(known) :]:
        axes.set_visible(False)
    return figure


def _known(rows: list[Row], key: str) -> list[tuple[int, float]]:
    return [(row["size"], row[key]) for row in rows if row["kind"] == "size" and row[key]]


def _panel(axes: Axes, page: Page, name: str, rows: list[Row]) -> None:
    sizes, values = np.array(_known(rows, page.key)).T
    [fit] = [row for row in rows if row["kind"] == "exponents"]
    axes.loglog(sizes, page.scale * values, "o", color=LINES[0], markersize=4)
    slope = fit[page.quantity]
    if slope is not None:
        fitted = sizes >= fit["from"]
        upper = sizes[fitted]
        factor = np.exp(np.mean(np.log(values[fitted]) - slope * np.log(upper)))
        label = f"~ size$^{{{slope:.2f}}}$"
        line = page.scale * factor * upper**slope
        axes.loglog(upper, line, color=LINES[1], linewidth=1.5, label=label)
        axes.legend(loc="upper left", fontsize=9, handlelength=1.2)
    axes.set(title=CURVES[name].title, xlabel=CURVES[name].axis, ylabel=page.unit)
    axes.title.set_color(INK)
    _tick(axes)


def short(value: float) -> str:
    """Return a number as a short tick label.

    >>> [short(value) for value in (0.1, 100, 10_000, 1e6)]
    ['0.1', '100', '10k', '1M']
    """
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def _tick(axes: Axes) -> None:
    """Label powers of ten; show whole decades, so that noise does not fill the panel."""
    low, high = np.log10(axes.get_ylim())
    axes.set_ylim(10 ** np.floor(low), 10 ** np.ceil(high))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
        axis.set_minor_formatter(NullFormatter())


if __name__ == "__main__":
    serve(int(sys.argv[1]))
