"""The figures of a report as pieces of HTML: charts as SVG, pictures as PNG or JPEG inside it."""

from __future__ import annotations

import base64
import io
import math
import re
from collections.abc import Sequence
from html import escape
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from ullayers.learn.results import SURE, TRACK, Answer

Pixels = NDArray[np.uint8]
Floats = NDArray[np.floating[Any]]

INK = "#010203"  # becomes currentColor: charts are drawn in the page's ink, light or dark
LINES = ["#2f86c9", "#e0762f", "#2a9d74", "#c2549b", "#8d72d6", "#b58a1b", "#d9534f", "#5f8a99"]
KEPT = "#12a594"
OVER_TIME = LinearSegmentedColormap.from_list(  # neither end is lost on white or on black
    "over_time", ["#3a6fd8", "#8a55d0", "#d84a86", "#f0913c"]
)
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans", "font.size": 11, "text.color": INK, "axes.labelcolor": INK,
    "axes.edgecolor": INK, "axes.linewidth": 0.5, "axes.spines.top": False,
    "axes.spines.right": False, "axes.facecolor": "none", "figure.facecolor": "none",
    "savefig.facecolor": "none", "xtick.color": INK, "ytick.color": INK, "xtick.labelsize": 10,
    "ytick.labelsize": 10, "axes.grid": True, "grid.color": INK, "grid.alpha": 0.12,
    "grid.linewidth": 0.6, "legend.frameon": False, "legend.fontsize": 10, "svg.fonttype": "none",
    "axes.formatter.useoffset": False, "text.usetex": False, "xtick.major.width": 0.5,
    "ytick.major.width": 0.5,
}  # fmt: skip
WIDE, NARROW = 1040, 440  # of charts, in CSS pixels
NUMBERS, CHANNELS, POINTS = 8, 16, 4000  # drawn at most: of a code, of a layer, of a scatter
PICTURE = 64_000  # bytes of one picture at most, so that a report stays under 3 MB


def by_sequence(answers: list[Answer]) -> list[Answer]:
    """One answer for each sequence that has frames, in order.

    >>> a = Answer("a", np.arange(2), np.arange(2.0), ("y0",), np.zeros((2, 1)))
    >>> [len(answer.index) for answer in by_sequence([a, a])]
    [4]
    """
    parts: dict[str, list[Answer]] = {}
    for answer in answers:
        if len(answer.values):
            parts.setdefault(answer.sequence, []).append(answer)
    return [Answer.join(some) for some in parts.values()]


def course(answer: Answer, width: int, extra: str = "") -> str:
    """The track or the code of one sequence over time.

    >>> found = Answer("a", np.arange(9), np.arange(9.0), ("y0",), np.ones((9, 1)))
    >>> course(found, NARROW)[:4]
    '<svg'
    """
    tracks = answer.columns == TRACK
    figure = _blank(width, 260 if tracks else 220)
    panels = figure.subplots(1 + tracks, 1, sharex=True, squeeze=False)[:, 0]
    for column in range(2 if tracks else min(len(answer.columns), NUMBERS)):
        _curve(panels[column if tracks else 0], answer, column, width)
    for axes, name in zip(panels, TRACK, strict=False):
        axes.margins(x=0.01)
        if tracks:
            _upright(axes, name)
            _widen(axes, 0.2)
    if tracks:
        panels[1].invert_yaxis()  # as in the picture
    else:
        _legend(panels[0])
    panels[-1].set_xlabel("time (s)")
    return _svg(figure, "over time", f"{answer.sequence} {width}", extra)


def _curve(axes: Axes, answer: Answer, column: int, width: int) -> None:
    values, colour = answer.values[:, column], LINES[column % len(LINES)]
    rows = thinned(values, 2 * width // max(2, len(answer.columns)))
    when, values = answer.seconds[rows], values[rows]
    mark = "o" if len(rows) == 1 else ""
    if answer.columns == TRACK:
        axes.plot(when, values, color=colour, alpha=0.35, linewidth=1, marker=mark)
        values = np.where(answer.values[rows, 2] >= SURE, values, np.nan)
    axes.plot(when, values, color=colour, linewidth=1.3, marker=mark, label=answer.columns[column])


def thinned(values: Floats, most: int) -> NDArray[np.int64]:
    """Rows to draw: the lowest and the highest of each stretch, so that no peak is lost.

    >>> thinned(np.array([0.0, 0, 9, 0, 0, 0, -5, 0]), 2).tolist()
    [0, 2, 4, 6]
    """
    rows = np.arange(len(values))
    if len(values) <= 2 * most:
        return rows
    filled = np.nan_to_num(values)
    parts = np.array_split(rows, most)
    return np.unique([part[f(filled[part])] for part in parts for f in (np.argmin, np.argmax)])


def scatter(answers: Sequence[Answer], aspect: float = 1.0) -> str:
    """All places in a picture of that height by width, or all codes; a single number's counts.

    >>> found = Answer("a", np.arange(9), np.arange(9.0), TRACK, np.full((9, 3), 0.5))
    >>> scatter([found])[:4]
    '<svg'
    """
    values = np.concatenate([answer.values for answer in answers])
    when = np.concatenate([answer.seconds for answer in answers])
    fine = np.flatnonzero(np.isfinite(values).all(1))
    rows = fine[np.linspace(0, len(fine) - 1, min(len(fine), POINTS)).astype(int)]
    if not len(rows):
        return ""
    values, when = values[rows], when[rows]
    if values.shape[1] == 1:
        return _histogram(values[:, 0], answers[0].columns[0])
    tracks = answers[0].columns == TRACK
    share = min(max(aspect, 0.3), 1.2) if tracks else 0.9
    figure = _blank(NARROW, (NARROW - 110) * share + 45)
    axes = figure.subplots()
    faint: Any = np.where(values[:, 2] >= SURE, 0.75, 0.25) if tracks else 0.75
    area = float(np.clip(9000 / len(values), 8, 60))
    look: dict[str, Any] = {"cmap": OVER_TIME, "alpha": faint, "linewidths": 0, "rasterized": True}
    dots = axes.scatter(values[:, 0], values[:, 1], area, when, **look)
    if when.min() < when.max():
        bar = figure.colorbar(dots, ax=axes, label="time (s)", shrink=0.7, aspect=30)
        bar.outline.set_visible(False)
        bar.ax.yaxis.labelpad = 8
    _as_picture(axes, aspect) if tracks else axes.set_aspect("equal", "datalim")
    axes.set_xlabel(answers[0].columns[0])
    _upright(axes, answers[0].columns[1])
    return _svg(figure, "all frames")


def _as_picture(axes: Axes, aspect: float) -> None:
    axes.set(xlim=(0, 1), ylim=(1, 0), aspect=aspect)
    axes.spines[["top", "right"]].set_visible(True)


def _histogram(values: Floats, name: str) -> str:
    figure = _blank(NARROW, 300)
    axes = figure.subplots()
    axes.hist(values, bins=min(60, max(5, len(values) // 20)), color=LINES[0], alpha=0.8)
    axes.set(xlabel=name, ylabel="frames")
    return _svg(figure, "all frames")


def training(records: Sequence[dict[str, Any]], winner: int, key: str, label: str) -> str:
    """One number of each trial over training, the winner's bold; empty if none is finite.

    >>> training([{"trial": 0, "step": 1, "objective": -2.0}], 0, "objective", "J")[:4]
    '<svg'
    >>> training([{"trial": 0, "step": 1, "objective": None}], 0, "objective", "J")
    ''
    """
    series = _series(records, key)
    if not series:
        return ""
    figure = _blank(NARROW, 250)
    axes, kinds = figure.subplots(), sorted({kind for _, kind in series})
    for (trial, kind), table in sorted(series.items(), key=lambda item: item[0][0] == winner):
        name = f"kept: trial {trial}" if trial == winner else "other trials"
        axes.plot(
            *table[thinned(table[:, 1], max(20, 3000 // len(series)))].T,
            label=f"{name}, {kind}" if len(kinds) > 1 else name,
            linestyle=("-", "--", ":")[kinds.index(kind) % 3],
            marker="o" if len(table) == 1 else "",
            **({"color": KEPT, "linewidth": 2.4} if trial == winner else OTHER),
        )
    axes.set_xlabel("training step")
    _upright(axes, label)
    if key == "rank":
        _ceiling(axes, max(int(record.get("features") or 0) for record in records))
    _legend(axes)
    return _svg(figure, label)


OTHER: dict[str, Any] = {"color": INK, "linewidth": 0.9, "alpha": 0.4}


def _series(records: Sequence[dict[str, Any]], key: str) -> dict[tuple[int, str], Floats]:
    """(steps, 2) step and value of each trial and kind, where it is finite."""
    rows: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for record in records:
        value = record.get(key)
        if value is not None and math.isfinite(value):
            place = record["trial"], str(record.get("kind", ""))
            rows.setdefault(place, []).append((float(record["step"]), float(value)))
    return {place: np.array(sorted(some)) for place, some in rows.items()}


def _upright(axes: Axes, label: str) -> None:
    """Name the y axis; a letter or two need not lie on their side."""
    look: dict[str, Any] = {"rotation": 0, "labelpad": 9, "va": "center"} if len(label) < 3 else {}
    axes.set_ylabel(label, **look)


def _ceiling(axes: Axes, features: int) -> None:
    """How high the effective rank can be."""
    axes.axhline(features, color=INK, linewidth=1, linestyle=(0, (4, 3)), alpha=0.7)
    axes.annotate(
        f"features: {features}", (1, features), (-2, 4), ("axes fraction", "data"),
        "offset points", ha="right", fontsize=10,
    )  # fmt: skip
    axes.set_ylim(0, max(1.15 * features, axes.get_ylim()[1]))


def _legend(axes: Axes) -> None:
    """Names above the chart, each once, if there is more than one."""
    handles, names = axes.get_legend_handles_labels()
    named = dict(zip(names, handles, strict=True))
    named = dict(sorted(named.items(), key=lambda entry: not entry[0].startswith("kept")))
    if len(named) > 1:
        axes.legend(
            named.values(), named.keys(), loc="lower left", bbox_to_anchor=(0, 1),
            ncols=max(1, 64 // (6 + max(map(len, named)))), borderaxespad=0.2, borderpad=0,
            handlelength=1.2, columnspacing=1.2,
        )  # fmt: skip


def _widen(axes: Axes, least: float) -> None:
    """So that a tremble does not look like a journey."""
    low, high = axes.get_ylim()
    if high - low < least:
        axes.set_ylim((low + high - least) / 2, (low + high + least) / 2)


def kernel_sheet(kernels: Floats) -> str:
    """Kernels (out, in, height, width) with their colour scale; the longer of the two across.

    >>> kernel_sheet(np.eye(3)[None, None])[:4]
    '<img'
    """
    tiles = np.nan_to_num(kernels[:CHANNELS, :CHANNELS])
    limit = float(np.abs(tiles).max(initial=0)) or 1.0
    tiles = ((tiles / limit + 1) / 2).repeat(4, 2).repeat(4, 3)  # a gap is half a weight then
    if 1 in tiles.shape[:2]:
        tiles = _wrapped(tiles.reshape(-1, *tiles.shape[2:]), 8)
    elif len(tiles) > tiles.shape[1]:
        tiles = tiles.swapaxes(0, 1)
    sheet = _indexed(_mosaic(tiles, 2), DIVERGING, 56 * tiles.shape[1])
    stops = (np.asarray(DIVERGING(np.linspace(0, 1, 5)))[:, :3] * 255).round().astype(int)
    colours = ",".join(f"rgb({r},{g},{b})" for r, g, b in stops)
    bar = f"<i style='background:linear-gradient(90deg,{colours})'></i>"
    return f"{sheet}<p class='scale'>&minus;{limit:.2g}{bar}+{limit:.2g}</p>"


def _wrapped(tiles: Floats, columns: int) -> Floats:
    """(n, height, width) in rows, the last filled up with nothing."""
    columns = min(columns, len(tiles))
    tiles = np.pad(tiles, [(0, -len(tiles) % columns), (0, 0), (0, 0)], constant_values=np.nan)
    return tiles.reshape(-1, columns, *tiles.shape[1:])


def map_sheet(maps: Floats) -> str:
    """Maps (channels, height, width), each stretched to its own range.

    >>> map_sheet(np.ones((5, 4, 4)))[:4]
    '<img'
    """
    columns = min(4, len(maps))
    tiles = _wrapped(np.stack([_level(one, 400 // columns) for one in maps[:CHANNELS]]), columns)
    return _indexed(_mosaic(tiles, max(1, tiles.shape[3] // 24)), RESPONSE, 160 * columns)


RESPONSE = matplotlib.colormaps["magma"]
DIVERGING = LinearSegmentedColormap.from_list(  # zero is grey, to be seen on a white page
    "diverging", ["#17518f", "#5f9fd0", "#e3e3e5", "#e8876d", "#a51f2d"]
)


def _level(response: Floats, width: int) -> Floats:
    """A map in 0..1, no wider than `width`."""
    image = Image.fromarray(np.nan_to_num(response).astype(np.float32))
    if image.width > width:
        height = max(1, round(width * image.height / image.width))
        image = image.resize((width, height), Image.Resampling.BOX)
    values: Floats = np.asarray(image)
    down, right = values.shape[0] // 10, values.shape[1] // 10  # a border may be far off the rest
    inner = values[down : len(values) - down, right : values.shape[1] - right]
    low, high = np.percentile(inner, [0.5, 99.5])
    stretched: Floats = np.clip((values - low) / (high - low or 1), 0, 1)
    return stretched


def _mosaic(tiles: Floats, gap: int) -> Floats:
    """(rows, columns, height, width) as one sheet, NaN between."""
    spaced = np.pad(tiles, [(0, 0), (0, 0), (0, gap), (0, gap)], constant_values=np.nan)
    rows, _, height, _ = spaced.shape
    return spaced.transpose(0, 2, 1, 3).reshape(rows * height, -1)[:-gap, :-gap]


def _indexed(levels: Floats, colours: Colormap, width: int) -> str:
    """Numbers in 0..1 as a picture with one byte a pixel, clear where they are NaN."""
    index = np.where(np.isnan(levels), 255, np.nan_to_num(254 * levels).round()).astype(np.uint8)
    image = Image.fromarray(index)
    palette = np.asarray(colours(np.linspace(0, 1, 255)))[:, :3]
    image.putpalette((255 * palette).round().astype(np.uint8).tobytes() + b"\0\0\0")
    file = io.BytesIO()
    image.save(file, "png", optimize=True, transparency=255)
    return _img("png", file.getvalue(), f' class="pixels" style="max-width:{width}px"')


def sized(picture: Pixels, width: int = 480) -> Pixels:
    """The picture in colour, about `width` wide; a small one keeps its pixels as squares.

    >>> sized(np.zeros((36, 64), np.uint8)).shape
    (252, 448, 3)
    """
    grey = picture.ndim == 2 or picture.shape[2] == 1
    colour = np.repeat(picture.reshape(*picture.shape[:2], 1), 3, 2) if grey else picture
    image = Image.fromarray(np.ascontiguousarray(colour))
    if image.width > width:
        return np.array(image.resize((width, max(1, round(width * image.height / image.width)))))
    times = width // image.width
    return np.array(image.resize((times * image.width, times * image.height), 0))


def picture(pixels: Pixels) -> str:
    """As PNG or JPEG, whichever is smaller, and of fewer pixels where that is still too much.

    >>> picture(np.zeros((48, 64, 3), np.uint8))[:32]
    '<img alt="" src="data:image/png;'
    """
    image = Image.fromarray(pixels)
    for share in (1.0, 0.75, 0.5, 0.3):
        part = image.resize(
            (max(1, round(share * image.width)), max(1, round(share * image.height)))
        )
        kind, data = min(
            (_encoded(part, kind) for kind in ("png", "jpeg")), key=lambda e: len(e[1])
        )
        if len(data) <= PICTURE:
            break
    return _img(kind, data)


def _encoded(image: Image.Image, kind: str) -> tuple[str, bytes]:
    file = io.BytesIO()
    options: dict[str, Any] = {"quality": 85, "subsampling": 0} if kind == "jpeg" else {}
    image.save(file, kind, **options)
    return kind, file.getvalue()


def _img(kind: str, data: bytes, extra: str = "") -> str:
    return f'<img alt="" src="data:image/{kind};base64,{base64.b64encode(data).decode()}"{extra}>'


def _blank(width: float, height: float) -> Figure:
    return Figure(figsize=(width / 72, height / 72), layout="constrained")


def _svg(figure: Figure, label: str, salt: str = "", extra: str = "") -> str:
    """The figure as an element of the page; its text is text, and its ink that of the page."""
    file = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": label + salt}):  # no two figures share an id
        figure.savefig(file, format="svg", dpi=144)
    drawn = file.getvalue()
    box = re.findall(r'viewBox="([^"]*)"', drawn)[0]
    drawn = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", drawn, flags=re.DOTALL)
    drawn = drawn[drawn.index(">", drawn.index("<svg")) + 1 :].replace(INK, "currentColor")
    drawn = re.sub(r' id="[\w.]+_\d+"', "", drawn).replace("xlink:href", "href")
    drawn = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), drawn)
    return f'<svg viewBox="{box}" role="img" aria-label="{escape(label)}"{extra}>{drawn}'
