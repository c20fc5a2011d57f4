"""Sources to export, whole and broken, and variants of a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.films import BALL, write_ball, write_truncated
from ullayers.learning.footage import LongMean
from ullayers.run.plan import Plan
from ullayers.video.sources import Source, find_sources


def of_kind(run: Plan, kind: LongMean) -> Plan:
    return replace(run, result=replace(run.outcome, kind=kind))


def sources_in(folder: Path, *counts: int) -> list[Source]:
    folder.mkdir(exist_ok=True)
    for number, count in enumerate(counts):
        write_ball(folder / f"film{number}.mp4", count, *BALL, seed=number)
    return find_sources([str(folder)])


def broken_middle(folder: Path) -> list[Source]:
    sources_in(folder, 12, 12, 12)
    write_truncated(folder / "film1.mp4")
    return find_sources([str(folder)])


def with_metrics(run: Plan, folder: Path) -> Path:
    (folder / "metrics.jsonl").write_bytes((run.folder / "metrics.jsonl").read_bytes())
    return folder
