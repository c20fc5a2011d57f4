"""Recognition of animals in two videos: `python -m experiments.studies.recognition`.

The same animals walk in both videos, which are two parts of one synthetic scene with a gap between
them. IDF1 is that of both videos together: an animal has one identity in both.
"""

from __future__ import annotations

import tempfile
from itertools import product
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

import ullayers as ul
from ullayers.locate.tracking.identity import KnownObjects
from ullayers.run.plan import Plan, load_plan
from ullayers.run.write import ExportOptions, export
from ullayers.tracks.reading import read_tracks
from ullayers.tracks.table import SURE
from ullayers.video.demo_films import AnimalPaths, render_animals, walk
from ullayers.video.files.writing import VideoWriter
from ullayers.video.sources import find_sources

SIDE, FRAMES = 256, 300
STARTS = {"a": 0, "b": 2 * FRAMES}  # frame of the scene with which each video begins
WITHIN = 0.03 * SIDE  # half an animal
SEEDS = range(4)


def main() -> None:
    torch.set_num_threads(1)
    print("animals  variety  with  without")
    with tempfile.TemporaryDirectory() as place:
        for animals, variety in product((2, 4, 8), (0.06, 0.2)):
            scores = [compare(Path(place), animals, variety, seed) for seed in SEEDS]
            print(f"{animals:7}  {variety:7}  {np.mean(scores, 0).round(3).tolist()}", flush=True)


def compare(place: Path, animals: int, variety: float, seed: int) -> tuple[float, float]:
    """Return IDF1 with and without recognition."""
    folder = place / f"{animals}-{variety}-{seed}"
    folder.mkdir()
    paths = walk(animals, crossings=10**6, most=3 * FRAMES, seed=seed)
    frames = list(render_animals(paths, SIDE, seed=seed, variety=variety))
    for name, start in STARTS.items():
        with VideoWriter(folder / f"{name}.mp4", fps=25) as video:
            for frame in frames[start : start + FRAMES]:
                video.write(frame)
    run = any_run(place / "run", folder / "a.mp4")
    found = idf1(run, folder, "with", paths)
    with mock.patch.object(KnownObjects, "meet", lambda _, some, name: (number(some), [])):
        return found, idf1(run, folder, "without", paths)


def number(portraits: list[object]) -> list[int]:
    return list(range(1, len(portraits) + 1))


def any_run(folder: Path, film: Path) -> Plan:
    """Return a run: before a still camera, a hardly trained network is enough."""
    if not folder.exists():
        for _ in ul.watch(str(film), size=16, max_frames=5, folder=folder):
            pass
    return load_plan(folder)


def idf1(run: Plan, folder: Path, name: str, paths: AnimalPaths) -> float:
    sources = find_sources([f"{folder}/{video}.mp4" for video in STARTS])
    export(run, sources, folder / name, ExportOptions(objects=None))
    tracks = read_tracks(folder / name / "tracks.csv")
    animals = paths.x.shape[1]
    hits = np.zeros((max(track.object for track in tracks) + 1, animals))
    found = 0
    for track in tracks:
        frame = STARTS[track.sequence] + track.frame
        across = paths.x[frame] * SIDE - track.x_px[:, None]
        down = paths.y[frame] * SIDE - track.y_px[:, None]
        sure = track.confidence >= SURE
        found += int(sure.sum())
        hits[track.object] += ((np.hypot(across, down) < WITHIN) & sure[:, None]).sum(0)
    own = hits[linear_sum_assignment(-hits)].sum()
    return float(2 * own / (len(STARTS) * FRAMES * animals + found))


if __name__ == "__main__":
    main()
