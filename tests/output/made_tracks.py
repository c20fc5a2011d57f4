"""Tracks of several objects whose motion is known, and their tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ullayers.tracks.reading import Crossing, Track
from ullayers.tracks.table import CROSSING_NAMES as CROSSING_NAMES

FPS = 25
WIDTH, HEIGHT = 640, 480

Floats = NDArray[np.float64]


def track_of(
    x_px: Floats,
    y_px: Floats,
    *,
    number: int = 1,
    sequence: str = "a",
    confidence: Floats | float = 0.9,
    frame: NDArray[np.int64] | None = None,
    length: float = np.nan,
) -> Track:
    """A track in frames of `WIDTH` x `HEIGHT`; speed, heading, width and area are unknown."""
    count = len(x_px)
    frame = np.arange(count) if frame is None else frame
    columns = {
        "frame": frame,
        "time": frame / FPS,
        "x": x_px / WIDTH,
        "y": y_px / HEIGHT,
        "confidence": np.broadcast_to(np.asarray(confidence, np.float64), count),
        "x_px": x_px,
        "y_px": y_px,
        "length": np.full(count, length),
    }
    return Track(sequence, number, columns)


def wanderers(
    objects: int, frames: int = 1500, sequence: str = "a", seed: int = 0
) -> tuple[list[Track], list[Crossing]]:
    """Objects that wander and rest, sometimes lost, and made-up crossings of some of them."""
    random = np.random.default_rng(seed)
    time = np.arange(frames) / FPS
    tracks = []
    for number in range(1, objects + 1):
        phase = np.cumsum(np.where(np.sin(time / 3 + number) > -0.3, 1 / FPS, 0))
        a, b, c, d = random.uniform(0.2, 1.1, 4)
        x = WIDTH * (0.5 + 0.42 * np.sin(a * phase + number) * np.cos(b * phase / 3))
        y = HEIGHT * (0.5 + 0.42 * np.sin(c * phase + 2 * number) * np.cos(d * phase / 3))
        sure = np.sin(time / 5 + 3 * number) < 0.93
        first = 150 * (number % 4 == 3)  # some enter later
        tracks.append(
            track_of(
                x[first:],
                y[first:],
                number=number,
                sequence=sequence,
                confidence=np.where(sure, 0.9, 0.2)[first:],
                frame=np.arange(first, frames),
                length=24,
            )
        )
    return tracks, _crossings(random, objects, frames, sequence)


def _crossings(
    random: np.random.Generator, objects: int, frames: int, sequence: str
) -> list[Crossing]:
    if objects < 2:
        return []
    found = []
    for start in np.sort(random.integers(0, frames - 20, min(100, 5 * objects))).tolist():
        pair = sorted(random.choice(np.arange(1, objects + 1), 2, replace=False).tolist())
        end = start + int(random.integers(3, 20))
        confidence = float(1 - 0.6 * random.random() ** 3)
        crossing = Crossing(sequence, start, end, start / FPS, end / FPS, tuple(pair), confidence)
        found.append(crossing)
    return found


def write_tables(folder: Path, tracks: Sequence[Track], crossings: Sequence[Crossing]) -> None:
    """Write tracks.csv and crossings.csv."""
    names = ("time", "x", "y", "confidence", "x_px", "y_px", "speed", "heading", "length")
    lines = [",".join(["sequence", "frame", "object", *names])]
    for track in tracks:
        for row, frame in enumerate(track.frame):
            cells = [f"{getattr(track, name)[row]:.6f}" for name in names]
            lines.append(",".join([track.sequence, str(frame), str(track.object), *cells]))
    (folder / "tracks.csv").write_text("\n".join(lines) + "\n")
    lines = [",".join(CROSSING_NAMES)]
    for c in crossings:
        numbers = " ".join(map(str, c.objects))
        frames = f"{c.first_frame},{c.last_frame},{c.start},{c.end}"
        lines.append(f"{c.sequence},{frames},{numbers},{c.confidence}")
    (folder / "crossings.csv").write_text("\n".join(lines) + "\n")
