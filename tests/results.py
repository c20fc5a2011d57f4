"""Results folders with several objects, as `ul apply` writes them, without running it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ullayers.tracks.reading import NAMES

WIDTH, HEIGHT, FPS = 96, 64, 20.0
COLUMNS = ("sequence", "frame", "object", *NAMES)
Row = dict[str, float]


def ellipse(row: Row) -> NDArray[np.bool_]:
    """The mask of an object: an ellipse with its length, width and heading."""
    y, x = np.mgrid[:HEIGHT, :WIDTH] + 0.5
    angle = np.radians(row["heading"])
    x, y = x - row["x_px"], y - row["y_px"]
    along = x * np.cos(angle) + y * np.sin(angle)
    across = y * np.cos(angle) - x * np.sin(angle)
    inside: NDArray[np.bool_] = np.hypot(2 * along / row["length"], 2 * across / row["width"]) <= 1
    return inside


def walk(number: int, count: int = 12, first: int = 0, step: int = 1) -> list[Row]:
    """Rows of an object that walks along its own line, unsure in its third row."""
    rows = []
    for i in range(count):
        frame = first + i * step
        x = round((0.2 + 0.05 * i) * WIDTH, 2)
        y = round((0.25 * number) * HEIGHT, 2)
        rows.append(
            {
                "frame": frame,
                "object": number,
                "time": round(frame / FPS, 6),
                "x": round(x / WIDTH, 6),
                "y": round(y / HEIGHT, 6),
                "confidence": 0.25 if i == 2 else round(0.9 - 0.01 * i, 6),
                "x_px": x,
                "y_px": y,
                "speed": 96.0 + number,
                "heading": 10.0 * number,
                "length": 12.0 + number,
                "width": 6.0,
                "area": 50.0 + i,
            }
        )
    return rows


def write_results(
    folder: Path,
    videos: dict[str, list[Row]],
    *,
    masks: bool = False,
    columns: tuple[str, ...] = COLUMNS,
) -> Path:
    """Write tracks.csv, summary.json and, if asked for, masks; returns the folder.

    Args:
        folder: Folder to create.
        videos: Rows of each video.
        masks: Whether to write a palette image of each frame.
        columns: Columns of the table.
    """
    folder.mkdir(parents=True)
    lines = [",".join(columns)]
    for name, rows in videos.items():
        ordered = sorted(rows, key=lambda row: (row["frame"], row["object"]))
        cells: list[dict[str, object]] = [{"sequence": name, **row} for row in ordered]
        lines += [",".join(str(row[column]) for column in columns) for row in cells]
        if masks:
            _write_masks(folder / "masks" / name, rows)
    (folder / "tracks.csv").write_text("\n".join(lines) + "\n")
    entries = [
        {
            "name": name,
            "frames": len({row["frame"] for row in rows}),
            "width": WIDTH,
            "height": HEIGHT,
            "fps": FPS,
        }
        for name, rows in videos.items()
    ]
    (folder / "summary.json").write_text(json.dumps({"task": "locate", "sequences": entries}))
    return folder


def _write_masks(folder: Path, rows: list[Row]) -> None:
    folder.mkdir(parents=True)
    for frame in sorted({int(row["frame"]) for row in rows}):
        labels = np.zeros((HEIGHT, WIDTH), np.uint8)
        for row in rows:
            if row["frame"] == frame:
                labels[ellipse(row)] = int(row["object"])
        image = Image.fromarray(labels)
        image.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0, 0, 0, 255])
        image.save(folder / f"{frame:06d}.png")
