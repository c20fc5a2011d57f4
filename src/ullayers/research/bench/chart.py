"""Charts of `ul bench growth`: one panel per curve, one page for time and one for memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from ullayers.files import replacing
from ullayers.report.charts import INK, LINES, STYLE
from ullayers.research.bench.curves import CURVES
from ullayers.research.bench.timing import Row

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
