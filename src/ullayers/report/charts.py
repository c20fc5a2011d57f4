"""Charts of the report, as SVG: tracks, codes and training over time."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ullayers.tracks.measures import Motion, is_ring, ring_angles
from ullayers.tracks.table import SURE, TRACK, Answer

Floats = NDArray[np.floating[Any]]
INK = "#010203"  # replaced by currentColor: charts take the text colour of the page
LINES = ["#2f86c9", "#e0762f", "#2a9d74", "#c2549b", "#8d72d6", "#b58a1b", "#d9534f", "#5f8a99"]
KEPT = "#12a594"  # the trial that was kept
EARLY_TO_LATE = LinearSegmentedColormap.from_list(  # both ends are visible on white and on black
    "early_to_late", ["#3a6fd8", "#8a55d0", "#d84a86", "#f0913c"]
)
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 11,
    "text.color": INK,
    "text.usetex": False,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.linewidth": 0.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.formatter.useoffset": False,
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 10,
    "ytick.labelsize": 10,
    "xtick.major.width": 0.5,
    "ytick.major.width": 0.5,
    "grid.color": INK,
    "grid.alpha": 0.12,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 10,
    "svg.fonttype": "none",
}
WIDE, NARROW = 1040, 440  # widths of charts, in CSS pixels
MAX_CURVES = 8  # values of a code drawn over time
MAX_POINTS = 4000  # of a scatter chart
SPEED_SECONDS = 0.5  # over which a chart averages speeds,
MIN_LEVELS = 40  # unless the video is short
KEPT_LINE: dict[str, Any] = {"color": KEPT, "linewidth": 2.4}
OTHER_LINE: dict[str, Any] = {"color": INK, "linewidth": 0.9, "alpha": 0.4}
NUMBERS = ("objective", "rank", "features", "seconds", "training", "held_out")


@dataclass(frozen=True)
class Chart:
    """A drawn chart.

    Attributes:
        view_box: The viewBox of its <svg> element.
        label: Description of the chart, for screen readers.
        body: The SVG markup inside the element.
    """

    view_box: str
    label: str
    body: str


def by_sequence(answers: Sequence[Answer]) -> list[Answer]:
    """Join the results of each sequence; sequences without frames are dropped.

    >>> a = Answer("a", np.arange(2), np.arange(2.0), ("y0",), np.zeros((2, 1)))
    >>> [len(answer.index) for answer in by_sequence([a, a])]
    [4]
    """
    parts: dict[str, list[Answer]] = {}
    for answer in answers:
        if len(answer.values):
            parts.setdefault(answer.sequence, []).append(answer)
    return [Answer.join(some) for some in parts.values()]


def time_chart(answer: Answer, width: int) -> Chart:
    """Draw the track or the code of one sequence over time.

    >>> found = Answer("a", np.arange(9), np.arange(9.0), ("y0",), np.ones((9, 1)))
    >>> time_chart(found, NARROW).label
    'over time'
    """
    is_track = answer.columns == TRACK
    angles = ring_angles(answer.values) if is_ring([answer]) else None
    is_double = is_track or angles is not None
    figure = new_figure(width, 260 if is_double else 220)
    panels = figure.subplots(2 if is_double else 1, 1, sharex=True, squeeze=False)[:, 0]
    if is_track:
        _draw_track(list(panels), answer, width)
    else:
        _draw_code(panels[0], answer, width)
    if angles is not None:
        _draw_angles(panels[1], answer.seconds, angles)
    for axes in panels:
        axes.margins(x=0.01)
    panels[-1].set_xlabel("time (s)")
    return rendered(figure, "over time", f"{answer.sequence} {width}")


def _draw_track(panels: Sequence[Axes], answer: Answer, width: int) -> None:
    for column, axes in enumerate(panels):
        _draw_curve(axes, answer, column, width)
        label_y(axes, TRACK[column])
        _widen(axes, 0.2)
    panels[1].invert_yaxis()  # y points down, as in the frame


def _draw_code(axes: Axes, answer: Answer, width: int) -> None:
    for column in range(min(len(answer.columns), MAX_CURVES)):
        _draw_curve(axes, answer, column, width)
    add_legend(axes)


def _draw_angles(axes: Axes, seconds: Floats, angles: Floats) -> None:
    """Draw angles in degrees as dots, since a line would jump at every full turn."""
    rows = np.linspace(0, len(angles) - 1, min(len(angles), MAX_POINTS)).astype(int)
    axes.plot(seconds[rows], angles[rows], ".", color=LINES[2], markersize=3)
    axes.set(ylim=(0, 360), yticks=[0, 90, 180, 270, 360])
    label_y(axes, "angle (degrees)")


def _draw_curve(axes: Axes, answer: Answer, column: int, width: int) -> None:
    values = answer.values[:, column]
    colour = LINES[column % len(LINES)]
    rows = thinned(values, 2 * width // max(2, len(answer.columns)))
    seconds, values = answer.seconds[rows], values[rows]
    marker = "o" if len(rows) == 1 else ""
    if answer.columns == TRACK:
        axes.plot(seconds, values, color=colour, alpha=0.35, linewidth=1, marker=marker)
        values = np.where(answer.values[rows, 2] >= SURE, values, np.nan)
    name = answer.columns[column]
    axes.plot(seconds, values, color=colour, linewidth=1.3, marker=marker, label=name)


def speed_chart(motion: Motion, name: str, width: int) -> Chart:
    """Draw the speed of one sequence over time, with gaps where it is unknown.

    Args:
        motion: At least one step.
        name: Name of the sequence.
        width: Width of the chart.

    Example:
        >>> motion = Motion(np.arange(9.0), np.ones(9), np.ones(9))
        >>> speed_chart(motion, "a", NARROW).label
        'speed over time'
    """
    figure = new_figure(width, 200)
    axes = figure.subplots()
    duration = motion.seconds[-1] - motion.seconds[0]
    levels = int(np.clip(duration / SPEED_SECONDS, MIN_LEVELS, width // 2))
    axes.plot(*speed_curve(motion, levels), color=LINES[0], linewidth=1.3)
    axes.set_ylim(bottom=0)
    axes.margins(x=0.01)
    axes.set(xlabel="time (s)", ylabel="pixels per second")
    return rendered(figure, "speed over time", f"{name} {width}")


def speed_curve(motion: Motion, most: int) -> tuple[Floats, Floats]:
    """Return times and speeds to draw: one level per step, and NaN where the speed is unknown.

    Args:
        motion: At least one step.
        most: Number of levels. If there are more steps, each level is the mean over a stretch.

    Example:
        >>> seconds = np.array([0.5, 1.5, 4.5])
        >>> speed_curve(Motion(seconds, np.ones(3), np.arange(3.0)), 9)[1].tolist()
        [0.0, 0.0, 1.0, 1.0, nan, 2.0, 2.0]
        >>> speed_curve(Motion(seconds, np.ones(3), np.arange(3.0)), 2)[1].tolist()
        [0.5, 0.5, 2.0, 2.0]
    """
    starts = motion.seconds - motion.durations / 2
    ends = motion.seconds + motion.durations / 2
    speeds = motion.speeds
    if len(speeds) > most:
        edges = np.linspace(starts[0], ends[-1], most + 1)
        place = np.searchsorted(edges, motion.seconds).clip(1, most) - 1
        durations = np.bincount(place, motion.durations, most)
        known = durations > 0
        speeds = np.bincount(place, motion.lengths, most)[known] / durations[known]
        starts, ends = edges[:-1][known], edges[1:][known]
    times = np.stack([starts, ends], 1).ravel()
    levels = np.repeat(speeds, 2)
    gaps = 2 * (np.flatnonzero(starts[1:] - ends[:-1] > 1e-6) + 1)
    return np.insert(times, gaps, np.nan), np.insert(levels, gaps, np.nan)


def thinned(values: Floats, stretches: int) -> NDArray[np.int64]:
    """Choose rows to draw: the minimum and maximum of each time bin, so that no peak is lost.

    >>> thinned(np.array([0.0, 0, 9, 0, 0, 0, -5, 0]), 2).tolist()
    [0, 2, 4, 6]
    """
    rows = np.arange(len(values))
    if len(values) <= 2 * stretches:
        return rows
    filled = np.nan_to_num(values)
    parts = np.array_split(rows, stretches)
    return np.unique([part[f(filled[part])] for part in parts for f in (np.argmin, np.argmax)])


def scatter_chart(answers: Sequence[Answer], aspect: float = 1.0) -> Chart | None:
    """Draw all positions or codes; for a code of one value, its histogram.

    Args:
        answers: Results of all sequences.
        aspect: Height divided by width of the frames.

    Returns:
        The chart, or None if no value is finite.

    Example:
        >>> found = Answer("a", np.arange(9), np.arange(9.0), TRACK, np.full((9, 3), 0.5))
        >>> scatter_chart([found]).label
        'all frames'
    """
    values = np.concatenate([answer.values for answer in answers])
    seconds = np.concatenate([answer.seconds for answer in answers])
    finite = np.flatnonzero(np.isfinite(values).all(1))
    if not len(finite):
        return None
    rows = finite[np.linspace(0, len(finite) - 1, min(len(finite), MAX_POINTS)).astype(int)]
    columns = answers[0].columns
    if len(columns) == 1:
        return _histogram(values[rows, 0], columns[0])
    return _scatter(values[rows], seconds[rows], columns, aspect)


def _scatter(values: Floats, seconds: Floats, columns: tuple[str, ...], aspect: float) -> Chart:
    is_track = columns == TRACK
    relative_height = min(max(aspect, 0.3), 1.2) if is_track else 0.9
    figure = new_figure(NARROW, (NARROW - 110) * relative_height + 45)
    axes = figure.subplots()
    alpha: Any = np.where(values[:, 2] >= SURE, 0.75, 0.25) if is_track else 0.75
    area = float(np.clip(9000 / len(values), 8, 60))
    look: dict[str, Any] = {"cmap": EARLY_TO_LATE, "alpha": alpha}
    look |= {"linewidths": 0, "rasterized": True}
    dots = axes.scatter(values[:, 0], values[:, 1], area, seconds, **look)
    if seconds.min() < seconds.max():
        bar = figure.colorbar(dots, ax=axes, label="time (s)", shrink=0.7, aspect=30)
        bar.outline.set_visible(False)
        bar.ax.yaxis.labelpad = 8
    if is_track:
        axes.set(xlim=(0, 1), ylim=(1, 0), aspect=aspect)
        axes.spines[["top", "right"]].set_visible(True)
    else:
        axes.set_aspect("equal", "datalim")
    axes.set_xlabel(columns[0])
    label_y(axes, columns[1])
    return rendered(figure, "all frames")


def _histogram(values: Floats, name: str) -> Chart:
    figure = new_figure(NARROW, 300)
    axes = figure.subplots()
    axes.hist(values, bins=min(60, max(5, len(values) // 20)), color=LINES[0], alpha=0.8)
    axes.set(xlabel=name, ylabel="frames")
    return rendered(figure, "all frames")


def label_y(axes: Axes, label: str) -> None:
    """Label the y axis; one or two letters are written upright."""
    upright: dict[str, Any] = {"rotation": 0, "labelpad": 9, "va": "center"}
    axes.set_ylabel(label, **(upright if len(label) < 3 else {}))


def add_legend(axes: Axes) -> None:
    """Put a legend above the chart if there is more than one name."""
    handles, names = axes.get_legend_handles_labels()
    named = dict(zip(names, handles, strict=True))
    named = dict(sorted(named.items(), key=lambda entry: not entry[0].startswith("kept")))
    if len(named) < 2:
        return
    axes.legend(
        named.values(),
        named.keys(),
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=max(1, 64 // (6 + max(map(len, named)))),
        borderaxespad=0.2,
        borderpad=0,
        handlelength=1.8,
        columnspacing=1.2,
    )


def _widen(axes: Axes, least: float) -> None:
    """Show a range of at least `least`, so that jitter does not look like motion."""
    low, high = axes.get_ylim()
    if high - low < least:
        axes.set_ylim((low + high - least) / 2, (low + high + least) / 2)


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of a size in pixels of the page."""
    return Figure(figsize=(width / 72, height / 72), dpi=144, layout="constrained")


def rendered(figure: Figure, label: str, salt: str = "") -> Chart:
    """Render a figure as SVG with text elements, in the text colour of the page."""
    file = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": label + salt}):  # no two figures share an id
        # `savefig` would draw the figure twice.
        FigureCanvasSVG(figure).print_svg(file)  # type: ignore[no-untyped-call]
    svg = file.getvalue()
    view_box = re.findall(r'viewBox="([^"]*)"', svg)[0]
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = svg[svg.index(">", svg.index("<svg")) + 1 : svg.rindex("</svg>")]
    svg = svg.replace(INK, "currentColor").replace("xlink:href", "href")
    svg = re.sub(r' id="[\w.]+_\d+"', "", svg)
    two_decimals = re.compile(r"(\.\d\d)\d+")
    svg = re.sub(r' d="[^"]*"', lambda path: two_decimals.sub(r"\1", path[0]), svg)
    return Chart(view_box, label, svg)


def training_chart(
    records: Sequence[dict[str, Any]], winner: int, key: str, label: str
) -> Chart | None:
    """Draw one value of each trial over training, with the winner in bold.

    Args:
        records: Training records with `trial`, `step` and `kind`.
        winner: The trial that was kept.
        key: Name of the value to draw.
        label: Name of the y axis.

    Returns:
        The chart, or None if no value is finite.

    Example:
        >>> training_chart([{"trial": 0, "step": 1, "objective": -2.0}], 0, "objective", "J").label
        'J'
        >>> training_chart([{"trial": 0, "step": 1, "objective": None}], 0, "objective", "J")
    """
    series = _series(records, key)
    if not series:
        return None
    figure = new_figure(NARROW, 250)
    axes = figure.subplots()
    kinds = sorted({kind for _, kind in series})
    max_stretches = max(20, 3000 // len(series))
    # The winner is drawn last, on top of the others.
    for (trial, kind), table in sorted(series.items(), key=lambda entry: entry[0][0] == winner):
        name = f"kept: trial {trial}" if trial == winner else "other trials"
        axes.plot(
            *table[thinned(table[:, 1], max_stretches)].T,
            label=f"{name}, {kind}" if len(kinds) > 1 else name,
            linestyle=("-", "--", ":")[kinds.index(kind) % 3],
            marker="o" if len(table) == 1 else "",
            **(KEPT_LINE if trial == winner else OTHER_LINE),
        )
    axes.set_xlabel("training step")
    label_y(axes, label)
    if key == "rank":
        _mark_full_rank(axes, max(int(record.get("features") or 0) for record in records))
    add_legend(axes)
    return rendered(figure, label)


def held_out_chart(records: Sequence[dict[str, Any]], winner: int) -> Chart | None:
    """Draw J of the kept trial, on training and on held-out frames.

    Args:
        records: Training records with `trial`, `step`, `training` and `held_out`.
        winner: The trial that was kept.

    Returns:
        The chart, or None if nothing was held out.

    Example:
        >>> record = {"trial": 0, "step": 25, "training": -2.1, "held_out": -2.0}
        >>> held_out_chart([record], 0).label, held_out_chart([{"trial": 0, "step": 1}], 0)
        ('J on held-out frames', None)
    """
    kept = [record for record in records if record["trial"] == winner]
    lines = {key: list(_series(kept, key).values()) for key in ("held_out", "training")}
    if not lines["held_out"] or not lines["training"]:
        return None
    figure = new_figure(NARROW, 250)
    axes = figure.subplots()
    for name, key, look in (
        ("training frames", "training", OTHER_LINE),
        ("held-out frames", "held_out", KEPT_LINE),
    ):
        axes.plot(*lines[key][0].T, marker="o", markersize=3, label=name, **look)
    axes.set_xlabel("training step")
    label_y(axes, "J")
    add_legend(axes)
    return rendered(figure, "J on held-out frames")


def _series(records: Sequence[dict[str, Any]], key: str) -> dict[tuple[int, str], Floats]:
    """Collect the finite values of each trial and kind as (steps, 2): step and value."""
    rows: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for record in records:
        value = record.get(key)
        if value is not None and math.isfinite(value):
            place = record["trial"], str(record.get("kind", ""))
            rows.setdefault(place, []).append((float(record["step"]), float(value)))
    return {place: np.array(sorted(some)) for place, some in rows.items()}


def _mark_full_rank(axes: Axes, features: int) -> None:
    axes.axhline(features, color=INK, linewidth=1, linestyle=(0, (4, 3)), alpha=0.7)
    axes.annotate(
        f"features: {features}",
        xy=(1, features),
        xycoords=("axes fraction", "data"),
        xytext=(-2, 4),
        textcoords="offset points",
        ha="right",
        fontsize=10,
    )
    axes.set_ylim(0, max(1.15 * features, axes.get_ylim()[1]))


def valid_records(records: Sequence[Any]) -> list[dict[str, Any]]:
    """Keep the training records that can be drawn.

    A record needs an integer `trial` and `step`. Other values that should be numbers but are not
    become None.

    >>> good = {"trial": 0, "step": 1, "rank": 2.0}
    >>> valid_records([good, {"step": 1}, {"trial": 0, "step": 2, "rank": "x"}, "no record"])
    [{'trial': 0, 'step': 1, 'rank': 2.0}, {'trial': 0, 'step': 2, 'rank': None}]
    """
    valid = []
    for record in records:
        if isinstance(record, dict) and all(_is_int(record.get(key)) for key in ("trial", "step")):
            values = {key: record[key] for key in NUMBERS if key in record}
            cleaned = {key: value if _is_number(value) else None for key, value in values.items()}
            valid.append(record | cleaned)
    return valid


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return _is_int(value) or (isinstance(value, float) and math.isfinite(value))
