"""Comparison of a track with true positions that are known for every frame, for `ul demo`."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ullayers.run.apply import answers
from ullayers.run.plan import Plan, fresh_net
from ullayers.tracks.table import Answer
from ullayers.video.sources import Source

Floats = NDArray[np.floating[Any]]
Scores = list[tuple[str, str]]  # names and values


def score(run: Plan, source: Source, found: Answer, truth: Path) -> Scores:
    """Compare a track with the ground truth.

    Args:
        run: The run of the track.
        source: The video.
        found: The track.
        truth: A CSV with the columns x and y for every frame.

    Returns:
        Names and values of the scores, also for the network before training.
    """
    with open(truth, encoding="utf-8", newline="") as file:
        rows = [(float(row["x"]), float(row["y"])) for row in csv.DictReader(file)]
    expected = np.array(rows)[found.index]
    info = source.probe()
    aspect = info.height / info.width
    learned = distances(found.values, expected, aspect)
    untrained = distances(_untrained(run, source), expected, aspect)
    correlation = [np.corrcoef(found.values[:, i], expected[:, i])[0, 1] for i in range(2)]
    return [
        ("median distance, of the frame width", f"{np.median(learned):.2%}"),
        ("90 % of the frames are within", f"{np.quantile(learned, 0.9):.2%}"),
        ("correlation of x", f"{correlation[0]:.4f}"),
        ("correlation of y", f"{correlation[1]:.4f}"),
        ("median with an untrained network", f"{np.median(untrained):.2%}"),
        ("90 % with an untrained network", f"{np.quantile(untrained, 0.9):.2%}"),
    ]


def distances(found: Floats, expected: Floats, aspect: float) -> Floats:
    """Return the distance of each position from the true one, in frame widths.

    Args:
        found: (time, 2 or more) x and y in 0..1.
        expected: (time, 2) x and y in 0..1.
        aspect: Height divided by width of the frames.

    Example:
        >>> distances(np.array([[0.5, 0.5]]), np.array([[0.1, 0.1]]), aspect=0.75).tolist()
        [0.5]
    """
    dx = found[:, 0] - expected[:, 0]
    dy = (found[:, 1] - expected[:, 1]) * aspect
    distance: Floats = np.hypot(dx, dy)
    return distance


def _untrained(run: Plan, source: Source) -> Floats:
    parts = answers(replace(run, net=fresh_net(run)), source)
    return np.concatenate([part.values for part in parts])
