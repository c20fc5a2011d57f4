"""Charts of the behaviour of objects: presence and crossings, speeds, nearest neighbours."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from ullayers.output.behaviour import Scene, moving_speed
from ullayers.output.charts import INK, LINES, NARROW, Chart, new_figure, rendered
from ullayers.output.crossing_table import Crossing
from ullayers.output.identity_colours import identity_hex, identity_marker

LEVELS = 300  # time bins of a chart
MAX_LINES = 6  # objects with their own line; for more, quantiles are drawn
MAX_CROSSINGS = 400  # drawn in a chart, least certain first
DOUBTFUL = 0.8  # confidence below which a crossing is marked
DOUBT_COLOUR = "#d9534f"
ROW_HEIGHT = 17  # of an object, in pixels of the page

Floats = NDArray[np.float64]


def presence_chart(scene: Scene, crossings: Sequence[Crossing], width: int) -> Chart:
    """Draw when each object was found, and which objects crossed when.

    Args:
        scene: The objects of one sequence.
        crossings: Its crossings.
        width: Width of the chart.
    """
    count = len(scene.tracks)
    figure = new_figure(width, max(120, 62 + ROW_HEIGHT * count))
    axes = figure.subplots()
    edges = _edges(scene)
    for row, (track, sure) in enumerate(zip(scene.tracks, scene.sure, strict=True)):
        colour = identity_hex(track.object)
        times = _middles(scene, row)
        for known, alpha in ((np.ones_like(sure), 0.25), (sure, 1.0)):
            spans = _spans(times[known], edges)
            axes.broken_barh(spans, (row - 0.34, 0.68), color=colour, alpha=alpha, linewidth=0)
    _draw_crossings(axes, scene, crossings)
    axes.set(xlim=(edges[0], edges[-1]), ylim=(count - 0.4, -0.6), xlabel="time (s)")
    _label_objects(axes, scene)
    axes.grid(axis="y", visible=False)
    return rendered(figure, "presence and crossings", f"{scene.sequence} {width}")


def _draw_crossings(axes: Axes, scene: Scene, crossings: Sequence[Crossing]) -> None:
    rows = {track.object: row for row, track in enumerate(scene.tracks)}
    chosen = sorted(crossings, key=lambda crossing: crossing.confidence)[:MAX_CROSSINGS]
    for crossing in chosen:
        involved = [rows[number] for number in crossing.objects if number in rows]
        if not involved:
            continue
        doubtful = crossing.confidence < DOUBTFUL
        colour = DOUBT_COLOUR if doubtful else INK
        middle = (crossing.start + crossing.end) / 2
        line = [middle] * len(involved), sorted(involved)
        axes.plot(
            *line,
            color=colour,
            linewidth=1.4 if doubtful else 0.7,
            marker="o",
            markersize=4.5 if doubtful else 2.5,
            zorder=4 if doubtful else 3,
        )


def speed_distribution(scene: Scene, mm_per_pixel: float | None) -> Chart | None:
    """Draw the speeds of objects: a histogram for one object, or quantiles for several.

    Args:
        scene: The objects of one sequence.
        mm_per_pixel: Size of a pixel; None for speeds in pixels.

    Returns:
        The chart, or None if no object has a speed.
    """
    if not any(len(motion.lengths) for motion in scene.motions):
        return None
    scale = 1.0 if mm_per_pixel is None else mm_per_pixel
    unit = "pixels per second" if mm_per_pixel is None else "millimetres per second"
    several = len(scene.tracks) > 1
    figure = new_figure(NARROW, max(190, 62 + ROW_HEIGHT * len(scene.tracks)) if several else 250)
    axes = figure.subplots()
    if several:
        _draw_quantiles(axes, scene, scale)
    else:
        _draw_histogram(axes, scene, scale)
    axes.set_xlabel(f"speed ({unit})")
    axes.set_xlim(left=0)
    return rendered(figure, "speed distribution", scene.sequence)


def _draw_histogram(axes: Axes, scene: Scene, scale: float) -> None:
    motion = scene.motions[0]
    speeds = scale * motion.speeds
    bins = np.linspace(0, float(np.quantile(speeds, 0.995)) or 1.0, 41)
    share = 100 * motion.durations / motion.durations.sum()
    axes.hist(speeds.clip(max=bins[-1]), bins.tolist(), weights=share, color=LINES[0], alpha=0.8)
    for value, name in (
        (float(np.median(speeds)), "median"),
        (scale * moving_speed(scene, 0), "moving from here"),
    ):
        style = "-" if name == "median" else ":"
        axes.axvline(value, color=INK, linewidth=1.2, linestyle=style, label=name)
    axes.set_ylabel("share of the time (%)")
    axes.legend(loc="upper right")


def _draw_quantiles(axes: Axes, scene: Scene, scale: float) -> None:
    """Draw a row for each object: 5 to 95 % thin, 25 to 75 % thick, and the median."""
    for row, (track, motion) in enumerate(zip(scene.tracks, scene.motions, strict=True)):
        if not len(motion.lengths):
            continue
        low, quarter, median, most, high = np.quantile(
            scale * motion.speeds, [0.05, 0.25, 0.5, 0.75, 0.95]
        )
        colour = identity_hex(track.object)
        axes.plot([low, high], [row, row], color=colour, linewidth=1.5, solid_capstyle="butt")
        axes.plot([quarter, most], [row, row], color=colour, linewidth=7, solid_capstyle="butt")
        axes.plot([median], [row], color=INK, marker=identity_marker(track.object), markersize=5)
    axes.set_ylim(len(scene.tracks) - 0.4, -0.6)
    _label_objects(axes, scene)
    axes.grid(axis="y", visible=False)


def nearest_chart(scene: Scene, mm_per_pixel: float | None) -> Chart | None:
    """Draw the distance to the nearest other object over time.

    Args:
        scene: The objects of one sequence.
        mm_per_pixel: Size of a pixel; None for distances in pixels.

    Returns:
        The chart, or None if no two objects are found in one frame.
    """
    edges = _edges(scene)
    scale = 1.0 if mm_per_pixel is None else mm_per_pixel
    curves = np.array(
        [
            scale * _binned(_middles(scene, row), values, edges)
            for row, values in enumerate(scene.nearest)
        ]
    )
    if not np.isfinite(curves).any():
        return None
    times = (edges[1:] + edges[:-1]) / 2
    figure = new_figure(NARROW, max(190, 62 + ROW_HEIGHT * len(scene.tracks)))
    axes = figure.subplots()
    if len(curves) == 2:  # both have the same distance
        axes.plot(times, curves[0], color=LINES[0], linewidth=1.2)
    elif len(curves) <= MAX_LINES:
        for track, curve in zip(scene.tracks, curves, strict=True):
            axes.plot(times, curve, color=identity_hex(track.object), linewidth=1.2)
    else:
        _draw_band(axes, times, curves)
    axes.set_ylim(bottom=0)
    axes.margins(x=0.01)
    unit = "pixels" if mm_per_pixel is None else "mm"
    axes.set(xlabel="time (s)", ylabel=f"nearest neighbour ({unit})")
    return rendered(figure, "nearest neighbour over time", scene.sequence)


def _draw_band(axes: Axes, times: Floats, curves: Floats) -> None:
    known = np.isfinite(curves).any(0)
    low, middle, high = np.full((3, len(times)), np.nan)
    low[known], middle[known], high[known] = np.nanquantile(curves[:, known], [0.1, 0.5, 0.9], 0)
    axes.fill_between(times, low, high, color=LINES[0], alpha=0.25, linewidth=0, label="10 to 90 %")
    axes.plot(times, middle, color=LINES[0], linewidth=1.3, label="median object")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0.2, borderpad=0)


def _label_objects(axes: Axes, scene: Scene) -> None:
    axes.set_yticks(range(len(scene.tracks)), [str(track.object) for track in scene.tracks])
    axes.tick_params(axis="y", length=0)
    axes.set_ylabel("object")


def _edges(scene: Scene) -> Floats:
    """Return the edges of the time bins of a chart."""
    start = min(float(track.time[0]) for track in scene.tracks)
    end = max(
        float(track.time[-1] + durations[-1])
        for track, durations in zip(scene.tracks, scene.durations, strict=True)
    )
    frames = max(len(track.frame) for track in scene.tracks)
    return np.linspace(start, end if end > start else start + 1, min(LEVELS, frames) + 1)


def _middles(scene: Scene, row: int) -> Floats:
    """Return the times in the middle of the frames of a track, which lie within time bins."""
    middles: Floats = scene.tracks[row].time + scene.durations[row] / 2
    return middles


def _spans(times: Floats, edges: Floats) -> list[tuple[float, float]]:
    """Return start and duration of the runs of time bins that contain one of these times.

    >>> _spans(np.array([0.1, 1.2, 3.5]), np.arange(5.0))
    [(0.0, 2.0), (3.0, 1.0)]
    """
    filled = np.histogram(times, edges)[0] > 0
    changes = np.diff(filled.astype(np.int8), prepend=0, append=0)
    starts, ends = edges[changes > 0], edges[changes < 0]
    return [(float(start), float(end - start)) for start, end in zip(starts, ends, strict=True)]


def _binned(times: Floats, values: Floats, edges: Floats) -> Floats:
    """Return the mean of the known values in each time bin; NaN if there are none."""
    known = np.isfinite(values)
    total, _ = np.histogram(times[known], edges, weights=values[known])
    count, _ = np.histogram(times[known], edges)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)
