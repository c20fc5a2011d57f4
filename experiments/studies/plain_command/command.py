"""Runs `ul learn` and `ul apply` in subprocesses and reads what they write."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .scores import Track

MEASURE = Path(__file__).with_name("measure.py")


class Finished(NamedTuple):
    """A finished command: exit code, its output, and what it cost."""

    code: int
    output: str
    seconds: float
    cpu_seconds: float
    peak_mib: float


class CommandError(Exception):
    """The command failed on a set that it should handle."""


def ul(*arguments: str | Path) -> Finished:
    """Run `ul` with some arguments; its output and its costs go to files next to --out."""
    line = ["ullayers", *map(str, arguments), "--force", "--quiet"]
    out = line[line.index("--out") + 1]
    log, costs = Path(f"{out}.log"), Path(f"{out}.costs.json")
    log.parent.mkdir(parents=True, exist_ok=True)
    code = subprocess.call([sys.executable, MEASURE, costs, log, sys.executable, "-m", *line])
    return Finished(code, log.read_text(encoding="utf-8"), **json.loads(costs.read_text()))


def ul_or_fail(*arguments: str | Path) -> Finished:
    """Run `ul`.

    Raises:
        CommandError: Its exit code is not 0.
    """
    finished = ul(*arguments)
    if finished.code != 0:
        last = (finished.output.strip() or "no message").splitlines()[-1]
        raise CommandError(f"exit code {finished.code}: {last}")
    return finished


def read_tracks(run: Path) -> dict[str, Track]:
    """Return the track of each sequence in `tracks.csv`."""
    with open(run / "tracks.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    tracks = {}
    for name, group in groupby(rows, itemgetter("sequence")):
        some = list(group)
        columns = ("frame", "x", "y", "confidence")
        table = np.array([[float(row[column] or "nan") for column in columns] for row in some])
        objects = len({row.get("object") for row in some})
        tracks[name] = Track(table[:, 0].astype(int), table[:, 1:3], table[:, 3], objects)
    return tracks


def read_summary(run: Path) -> dict[str, Any]:
    """Return the content of `summary.json`."""
    summary: dict[str, Any] = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    return summary
