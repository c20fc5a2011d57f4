"""One mouse, 10,000 frames: how near, how fast and in how much memory `ul` finds it.

Needs the folder of real data in ULLAYERS_DATA. Every command runs in a process of its own.
"""

from __future__ import annotations

import csv
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from ullayers.demo import distances
from ullayers.footage import gather
from ullayers.video import Reading, find_sources


def run(*arguments: str) -> tuple[float, float]:
    """Seconds, and peak memory in MB of the largest process so far."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "ullayers.cli", *arguments, "--quiet"], check=True)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return time.perf_counter() - began, peak


def read(path: Path, columns: tuple[str, str], size: tuple[float, float]) -> np.ndarray:
    with open(path, encoding="utf-8") as file:
        rows = [[float(row[name]) for name in columns] for row in csv.DictReader(file)]
    return np.array(rows) / size


def line(what: str, seconds: float, peak: float, apart: np.ndarray) -> None:
    near = f"{np.nanmedian(apart):8.2%} {np.nanquantile(apart, 0.9):8.2%}"
    print(f"{what:34} {seconds:7.1f} s {peak:7.0f} MB {near} {len(apart) / seconds:9.0f}")


def main() -> None:
    data = os.environ.get("ULLAYERS_DATA")
    if not data:
        sys.exit("benchmarks/mouse.py: set ULLAYERS_DATA to the folder of real data")
    video = str(Path(data, "tracktor/videos/mouse_video.mp4"))
    track = Path(data, "tracktor/output/mouse_video_tracked.csv")
    truth = read(track, ("pos_x", "pos_y"), (640.0, 480.0))
    print(f"{'':34} {'time':>9} {'memory':>10} {'median':>8} {'90 %':>8} {'frames/s':>9}")
    with tempfile.TemporaryDirectory() as place:
        for seed in ("0", "10", "20"):
            out = Path(place, f"run{seed}")
            seconds, peak = run("learn", video, "--out", str(out), "--seed", seed)
            found = read(out / "tracks.csv", ("x", "y"), (1.0, 1.0))
            apart = distances(found, truth[: len(found)], 0.75)
            line(f"ul learn, seed {seed} (learn and apply)", seconds, peak, apart)
        seconds, peak = run("apply", str(Path(place, "run0")), video, "--out", f"{place}/applied")
        found = read(Path(place, "applied/tracks.csv"), ("x", "y"), (1.0, 1.0))
        line("ul apply", seconds, peak, distances(found, truth[: len(found)], 0.75))
        seconds, peak = run("watch", video, "--out", f"{place}/watched", "--max-frames", "3000")
        found = read(Path(place, "watched/tracks.csv"), ("x", "y"), (1.0, 1.0))
        line("ul watch, 3,000 frames", seconds, peak, distances(found, truth[: len(found)], 0.75))
    began = time.perf_counter()
    footage = gather(find_sources([video]), Reading(longest=64, stride=5))
    print(f"reading for `ul learn` (2,000 of {len(truth):,} frames): "
          f"{time.perf_counter() - began:.1f} s, {len(footage.pieces)} pieces")  # fmt: skip


if __name__ == "__main__":
    main()
