"""Growth as charts: a panel for each curve, one page for time and one for memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from ullayers.output.charts import INK, LINES, STYLE
from ullayers.research.bench.curves import CURVES
from ullayers.research.bench.timing import Row
from ullayers.video.atomic_files import replacing

PAPER: dict[Any, Any] = {
    "figure.facecolor": "white", "savefig.facecolor": "white", "font.size": 9,
    "xtick.labelsize": 8, "ytick.labelsize": 8, "axes.titlesize": 9,
}  # fmt: skip
PAGES = {
    "time": ("seconds", 1e3, "milliseconds", "Time of one step, the fastest round"),
    "memory": ("bytes", 2**-20, "MB", "Peak memory of one step beside its input and the last "
               "gradient: resident memory, of a process of its own"),
}  # fmt: skip
ACROSS = 4


def draw(found: dict[str, list[Row]], folder: Path) -> list[Path]:
    """Write growth-time.png and growth-memory.png; a page with nothing known is left out."""
    written = []
    for page, (key, unit, label, title) in PAGES.items():
        known = {name: rows for name, rows in found.items() if _known(rows, key)}
        if not known:
            continue
        with matplotlib.rc_context({**STYLE, **PAPER}):
            down = -(-len(known) // ACROSS)
            figure = Figure(figsize=(11, 2.6 * down + 0.5), layout="constrained")
            figure.suptitle(f"{title}; exponents fitted to the upper half of the sizes", size=10)
            panels = figure.subplots(down, ACROSS, squeeze=False).flat
            for (name, rows), axes in zip(known.items(), panels, strict=False):
                _panel(axes, name, rows, key, unit, page)
                axes.set_ylabel(label)
            for axes in panels:  # those that are left
                axes.set_visible(False)
            with replacing(folder / f"growth-{page}.png", "wb") as file:
                figure.savefig(file, format="png", dpi=96)
        written.append(folder / f"growth-{page}.png")
    return written


def _known(rows: list[Row], key: str) -> list[tuple[int, float]]:
    return [(row["size"], row[key]) for row in rows if row["kind"] == "size" and row[key]]


def _panel(axes: Axes, name: str, rows: list[Row], key: str, unit: float, page: str) -> None:
    sizes, values = np.array(_known(rows, key)).T
    [fit] = [row for row in rows if row["kind"] == "exponents"]
    axes.loglog(sizes, unit * values, "o", color=LINES[0], markersize=4)
    slope = fit[page]
    if slope is not None:
        upper = sizes[sizes >= fit["from"]]
        through = np.exp(np.mean(np.log(values[sizes >= fit["from"]]) - slope * np.log(upper)))
        axes.loglog(upper, unit * through * upper**slope, color=LINES[1], linewidth=1.5,
                    label=f"~ size$^{{{slope:.2f}}}$")  # fmt: skip
        axes.legend(loc="upper left", fontsize=9, handlelength=1.2)
    axes.set(title=CURVES[name].title, xlabel=CURVES[name].axis)
    axes.title.set_color(INK)
    _tick(axes)


def short(value: float) -> str:
    """A number that fits beside its tick.

    >>> [short(value) for value in (0.1, 100, 10_000, 1e6)]
    ['0.1', '100', '10k', '1M']
    """
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def _tick(axes: Axes) -> None:
    """Short numbers at powers of ten; whole decades, so that noise looks small."""
    low, high = np.log10(axes.get_ylim())
    axes.set_ylim(10 ** np.floor(low), 10 ** np.ceil(high))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
        axis.set_minor_formatter(NullFormatter())
