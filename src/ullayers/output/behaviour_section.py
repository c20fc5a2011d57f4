"""The section of the report on the motion of objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ullayers.output.behaviour_charts as behaviour_charts
import ullayers.output.pictures as pictures
from ullayers.learn.zones import Zones
from ullayers.output.behaviour import Scene, behaviour_rows, with_millimetres, zone_rows
from ullayers.output.charts import NARROW, WIDE
from ullayers.output.crossing_table import Crossing
from ullayers.output.identity_colours import identity_hex
from ullayers.output.object_overlay import draw_objects
from ullayers.output.occupancy import CELLS, heat_gradient, heat_map, path_map, time_per_cell

MAX_SCENES = 3  # sequences with their own pictures
MAX_SMALL_MAPS = 20  # objects with their own heat map
SMALL_WIDTH = 240  # of these
MAX_ROWS = 100  # of each table
MAX_DOUBTFUL = 10  # crossings in the table of crossings to check

Pixels = NDArray[np.uint8]
Section = dict[str, Any]


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
