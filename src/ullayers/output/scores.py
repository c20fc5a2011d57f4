"""How well a track fits the truth, beside what needs no learning."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ullayers.learn.apply import answers
from ullayers.learn.results import Answer
from ullayers.learn.runs import Run, fresh_net
from ullayers.video.reader import Source

Floats = NDArray[np.floating[Any]]


def score(run: Run, source: Source, found: Answer, truth: Path) -> list[tuple[str, str]]:
    """Distances between a track and the truth, and those of the mask before any learning.

    Args:
        run: the run that made the track.
        source: the video.
        found: the track.
        truth: a CSV with x and y of every frame.
    """
    with open(truth, encoding="utf-8", newline="") as file:
        there = np.array([[float(row["x"]), float(row["y"])] for row in csv.DictReader(file)])
    info = source.probe()
    aspect = info.height / info.width
    learned = distances(found.values, there[found.index], aspect)
    before = distances(_unlearned(run, source), there[found.index], aspect)
    return [
        ("median distance, of the width", f"{np.median(learned):.2%}"),
        ("90 % of frames within", f"{np.quantile(learned, 0.9):.2%}"),
        ("correlation of x", f"{np.corrcoef(found.values[:, 0], there[found.index, 0])[0, 1]:.4f}"),
        ("correlation of y", f"{np.corrcoef(found.values[:, 1], there[found.index, 1])[0, 1]:.4f}"),
        ("median before learning (background subtraction)", f"{np.median(before):.2%}"),
        ("90 % before learning", f"{np.quantile(before, 0.9):.2%}"),
    ]


def distances(found: Floats, there: Floats, aspect: float) -> Floats:
    """From each place to the true one, in widths of the frame.

    >>> distances(np.array([[0.5, 0.5]]), np.array([[0.1, 0.1]]), aspect=0.75).tolist()
    [0.5]
    """
    apart: Floats = np.hypot(found[:, 0] - there[:, 0], (found[:, 1] - there[:, 1]) * aspect)
    return apart


def _unlearned(run: Run, source: Source) -> Floats:
    parts = answers(replace(run, net=fresh_net(run)), source)
    return np.concatenate([part.values for part in parts])
