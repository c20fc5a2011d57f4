"""How objects moved: heat maps, paths and charts, and their section of the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import cv2
import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.font_manager import findfont
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

import ullayers.report.behaviour as behaviour_charts
import ullayers.report.pictures as pictures
from ullayers.report.charts import INK, LINES, NARROW, WIDE, Chart, new_figure, rendered
from ullayers.report.drawing import draw_objects
from ullayers.tracks.behaviour import (
    Scene,
    Zones,
    behaviour_rows,
    moving_speed,
    with_millimetres,
    zone_rows,
)
from ullayers.tracks.masks import identity_colour, identity_hex, identity_marker
from ullayers.tracks.reading import Crossing

Pixels = NDArray[np.uint8]
Floats = NDArray[np.float64]
CELLS = 64  # of a heat map along the longer side of the frame
BLUR = 1.2  # cells
BACKDROP_LIGHT = 115  # brightness of the bright parts of the frame behind a map, out of 255
MAX_GAIN = 2.0  # largest gain for a dark frame
EMPTY_COLOUR = 38  # grey behind a map if there is no frame
MAX_HEIGHT = 4000  # pixels of a picture; JPEG has a limit too
MAX_OPACITY = 0.9
SHIFT = 4  # bits after the binary point of coordinates
LEVELS = 300  # time bins of a chart
MAX_LINES = 6  # objects with their own line; for more, quantiles are drawn
MAX_CROSSINGS = 400  # drawn in a chart, least certain first
DOUBTFUL = 0.8  # confidence below which a crossing is marked
DOUBT_COLOUR = "#d9534f"
ROW_HEIGHT = 17  # of an object, in pixels of the page
MAX_SCENES = 3  # sequences with their own pictures
MAX_SMALL_MAPS = 20  # objects with their own heat map
SMALL_WIDTH = 240  # of these
MAX_ROWS = 100  # of each table
MAX_DOUBTFUL = 10  # crossings in the table of crossings to check
Section = dict[str, Any]


def time_per_cell(scene: Scene, numbers: Sequence[int]) -> Floats:
    """Return the seconds that objects spent in each cell of the frame, slightly blurred.

    Args:
        scene: The objects of one sequence.
        numbers: Indices of its tracks, from 0.

    Returns:
        (rows, columns) with about square cells, `CELLS` along the longer side.
    """
    longer = max(scene.width, scene.height)
    rows = max(1, round(CELLS * scene.height / longer))
    columns = max(1, round(CELLS * scene.width / longer))
    total = np.zeros((rows, columns))
    for number in numbers:
        track, sure = scene.tracks[number], scene.sure[number]
        x = (track.x[sure] * columns).astype(int).clip(0, columns - 1)
        y = (track.y[sure] * rows).astype(int).clip(0, rows - 1)
        np.add.at(total, (y, x), scene.durations[number][sure])
    blurred = cv2.GaussianBlur(total, (0, 0), BLUR, borderType=cv2.BORDER_REFLECT)
    return np.asarray(blurred, np.float64)


def heat_map(
    scene: Scene,
    numbers: Sequence[int],
    frame: Pixels | None,
    zones: Mapping[str, Floats],
    width: int = 640,
) -> Pixels:
    """Draw where objects spent their time, over a darkened frame.

    Args:
        scene: The objects of one sequence.
        numbers: Indices of its tracks, from 0.
        frame: (height, width, 3) uint8 of any size; None for a plain background.
        zones: Corners in pixels of the video by name.
        width: Width of the picture; it is narrower if it would be too tall.
    """
    picture = _backdrop(scene, frame, width)
    height, width = picture.shape[:2]
    seconds = time_per_cell(scene, numbers)
    level = np.sqrt(seconds / (seconds.max() or 1))  # a linear scale would show only resting places
    large = cv2.resize(level, (width, height), interpolation=cv2.INTER_CUBIC).clip(0, 1)
    colours = _heat_colours()[(255 * large).astype(int)]
    opacity = (MAX_OPACITY * np.minimum(1, 3 * large))[..., None]
    mixed = picture + opacity * (colours - picture)
    return _with_zones(mixed.astype(np.uint8), scene, zones)


def path_map(
    scene: Scene, frame: Pixels | None, zones: Mapping[str, Floats], width: int = 640
) -> Pixels:
    """Draw the path of each object in its colour, over a darkened frame.

    Args:
        scene: The objects of one sequence.
        frame: (height, width, 3) uint8 of any size; None for a plain background.
        zones: Corners in pixels of the video by name.
        width: Width of the picture; it is narrower if it would be too tall.
    """
    picture = _backdrop(scene, frame, width)
    scale = np.array([picture.shape[1], len(picture)])
    for track, motion in zip(scene.tracks, scene.motions, strict=True):
        places = np.stack([track.x, track.y], 1) * scale
        steps = (places[motion.rows].clip(-1e4, 1e4) * 2**SHIFT).round().astype(np.int32)
        colour = identity_colour(track.object)
        cv2.polylines(picture, list(steps), False, colour, 1, cv2.LINE_AA, SHIFT)
    return _with_zones(picture, scene, zones)


def _backdrop(scene: Scene, frame: Pixels | None, width: int) -> Pixels:
    width = max(1, min(width, round(MAX_HEIGHT * scene.width / scene.height)))
    height = max(1, round(width * scene.height / scene.width))
    if frame is None:
        return np.full((height, width, 3), EMPTY_COLOUR, np.uint8)
    grey = frame if frame.ndim == 2 else frame.mean(2)
    resized = cv2.resize(grey.astype(np.float32), (width, height), interpolation=cv2.INTER_AREA)
    gain = min(MAX_GAIN, BACKDROP_LIGHT / max(1.0, float(np.percentile(resized, 99))))
    return np.repeat((gain * resized).clip(0, 255).astype(np.uint8)[..., None], 3, 2)


def _with_zones(picture: Pixels, scene: Scene, zones: Mapping[str, Floats]) -> Pixels:
    """Outline the zones in white and write their names into them."""
    if not zones:
        return picture
    scale = picture.shape[1] / scene.width, picture.shape[0] / scene.height
    outlines = {name: corners * scale for name, corners in zones.items()}
    for corners in outlines.values():
        fixed = [(corners * 2**SHIFT).round().astype(np.int32)]
        for colour, thickness in (((0, 0, 0), 4), ((255, 255, 255), 2)):
            cv2.polylines(picture, fixed, True, colour, thickness, cv2.LINE_AA, SHIFT)
    image = Image.fromarray(picture)
    draw = ImageDraw.Draw(image)
    font = ImageFont.truetype(findfont("DejaVu Sans"), max(10, picture.shape[1] / 42))
    for name, corners in outlines.items():
        middle = tuple((corners.min(0) + corners.max(0)) / 2)
        draw.text(middle, name, (255, 255, 255), font, "mm", stroke_width=2, stroke_fill=(0, 0, 0))
    return np.array(image)


@cache
def _heat_colours() -> Floats:
    """Return 256 colours from low to high, 0 to 255."""
    colours: Floats = 255 * np.asarray(matplotlib.colormaps["inferno"](np.linspace(0.2, 1, 256)))
    return colours[:, :3]


def heat_gradient() -> list[str]:
    """Return CSS colours of a heat map, from low to high.

    >>> len(heat_gradient())
    5
    """
    return ["rgb({:.0f},{:.0f},{:.0f})".format(*_heat_colours()[i]) for i in (0, 64, 128, 192, 255)]


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


def behaviour_section(
    scenes: Sequence[Scene],
    crossings: Sequence[Crossing],
    zones: Zones | None,
    mm_per_pixel: float | None,
    frames: Mapping[str, Pixels],
) -> Section | None:
    """Prepare the section; None without objects.

    Args:
        scenes: From `measure_scenes`.
        crossings: Crossings of all sequences.
        zones: Zones to draw and to list; None for none.
        mm_per_pixel: Size of a pixel; None for lengths in pixels.
        frames: A frame of each sequence, of any size; a missing frame leaves the background plain.
    """
    if not scenes:
        return None
    shown = [
        _scene(
            scene,
            [each for each in crossings if each.sequence == scene.sequence],
            zones,
            mm_per_pixel,
            frames.get(scene.sequence),
        )
        for scene in scenes[:MAX_SCENES]
    ]
    return {
        "scenes": shown,
        "has_several": any(len(scene.tracks) > 1 for scene in scenes),
        "has_crossings": bool(crossings),
        "cells": CELLS,
        "gradient": heat_gradient(),
        "left_out": len(scenes) - len(shown),
        "doubtful": behaviour_charts.DOUBTFUL,
        "max_lines": behaviour_charts.MAX_LINES,
        "tables": _tables(scenes, crossings, zones, mm_per_pixel),
    }


def draw_scene(
    picture: Pixels, seconds: float, scene: Scene, crossings: Sequence[Crossing]
) -> Pixels:
    """Draw all objects onto one frame, as in the overlay but without masks.

    Args:
        picture: (height, width, 3) uint8, of any size.
        seconds: Time of the frame.
        scene: The objects of its sequence.
        crossings: Crossings of all sequences.
    """
    times = np.concatenate([track.time for track in scene.tracks])
    frames = np.concatenate([track.frame for track in scene.tracks])
    number = frames[np.abs(times - seconds).argmin()]
    own = [crossing for crossing in crossings if crossing.sequence == scene.sequence]
    return draw_objects(picture[None], None, scene.tracks, np.array([number]), own).squeeze(0)


def _scene(
    scene: Scene,
    crossings: Sequence[Crossing],
    zones: Zones | None,
    mm_per_pixel: float | None,
    frame: Pixels | None,
) -> Section:
    polygons = {} if zones is None else zones.polygons(scene.width, scene.height)
    count = len(scene.tracks)
    everyone = range(count)
    several = count > 1
    return {
        "sequence": scene.sequence,
        "heat": pictures.photograph(heat_map(scene, everyone, frame, polygons)),
        "most_seconds": f"{time_per_cell(scene, everyone).max():.2g}",
        "paths": pictures.photograph(path_map(scene, frame, polygons)) if several else None,
        "small": [_small_map(scene, n, frame) for n in everyone[:MAX_SMALL_MAPS] if several],
        "small_left_out": max(0, count - MAX_SMALL_MAPS) if several else 0,
        "presence": [
            behaviour_charts.presence_chart(scene, crossings, width) for width in (WIDE, NARROW)
        ]
        if several
        else None,
        "speeds": behaviour_charts.speed_distribution(scene, mm_per_pixel),
        "nearest": behaviour_charts.nearest_chart(scene, mm_per_pixel) if several else None,
    }


def _small_map(scene: Scene, number: int, frame: Pixels | None) -> Section:
    name = scene.tracks[number].object
    picture = heat_map(scene, [number], frame, {}, SMALL_WIDTH)
    return {"name": name, "colour": identity_hex(name), "picture": pictures.photograph(picture)}


def _tables(
    scenes: Sequence[Scene],
    crossings: Sequence[Crossing],
    zones: Zones | None,
    mm_per_pixel: float | None,
) -> list[Section]:
    unit = "px" if mm_per_pixel is None else "mm"
    rows = with_millimetres(behaviour_rows(scenes), mm_per_pixel)
    columns = {
        "seconds": "found (s)",
        f"distance_{unit}": f"distance ({unit})",
        f"mean_speed_{unit}_per_s": f"mean speed ({unit}/s)",
        f"median_speed_{unit}_per_s": f"median ({unit}/s)",
        f"p95_speed_{unit}_per_s": f"95th percentile ({unit}/s)",
        "moving_share": "moving",
        f"nearest_{unit}": f"nearest neighbour ({unit})",
    }
    if not any(row["nearest_px"] is not None for row in rows):
        del columns[f"nearest_{unit}"]
    tables = [_table("Objects", rows, columns, "behaviour.csv")]
    if zones is not None:
        columns = {
            "zone": "zone",
            "time_in_zone": "time (s)",
            "share": "share",
            "entries": "entries",
            "first_entry": "first entry (s)",
            f"distance_{unit}": f"distance ({unit})",
        }
        rows = with_millimetres(zone_rows(scenes, zones), mm_per_pixel)
        tables.append(_table("Zones", rows, columns, "zones.csv"))
    if crossings:
        tables.append(_crossing_table(crossings))
    return tables


def _table(title: str, rows: Sequence[Section], columns: Mapping[str, str], file: str) -> Section:
    """Prepare a table with a row for each object; sequences are named if there are several."""
    name_sequences = len({row["sequence"] for row in rows}) > 1
    return {
        "title": title,
        "names": ["sequence"] * name_sequences + ["object", *columns.values()],
        "rows": [
            {
                "lead": [row["sequence"]] * name_sequences,
                "objects": [(row["object"], identity_hex(row["object"]))],
                "cells": [_format(name, row[name]) for name in columns],
            }
            for row in rows[:MAX_ROWS]
        ],
        "left_out": max(0, len(rows) - MAX_ROWS),
        "file": file,
    }


def _crossing_table(crossings: Sequence[Crossing]) -> Section:
    least = sorted(crossings, key=lambda crossing: crossing.confidence)[:MAX_DOUBTFUL]
    name_sequences = len({crossing.sequence for crossing in crossings}) > 1
    return {
        "title": "Crossings, least certain first",
        "names": ["sequence"] * name_sequences + ["objects", "frames", "time (s)", "confidence"],
        "rows": [
            {
                "lead": [crossing.sequence] * name_sequences,
                "objects": [(number, identity_hex(number)) for number in crossing.objects],
                "cells": [
                    f"{crossing.first_frame} to {crossing.last_frame}",
                    f"{crossing.start:.2f} to {crossing.end:.2f}",
                    f"{crossing.confidence:.2f}",
                ],
            }
            for crossing in least
        ],
        "left_out": len(crossings) - len(least),
        "file": "crossings.csv",
    }


def _format(name: str, value: Any) -> str:
    if value is None:
        return "unknown"
    if name in ("share", "moving_share"):
        return f"{value:.1%}"
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
    return str(value)
