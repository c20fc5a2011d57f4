"""Runs of a few steps on a small film: whole, stopped, resumed."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

from ullayers.learning.config import Config
from ullayers.learning.training import Record
from ullayers.run.pipeline import learn_run
from ullayers.run.plan import Plan, load_plan, plan_run, sources_of
from ullayers.video.sources import Source

SHORT = Config(steps=5, trial_steps=3, restarts=1, batch=2, clip=12)
CODES = Config(task="orient", steps=5, trial_steps=3, restarts=1, batch=2, clip=12)


def learn(film: str, folder: Path, config: Config = SHORT, **how: Any) -> Plan:
    run, sources = plan_run([film], folder, config, size=16, **how)
    for _ in learn_run(run, sources):
        pass
    return run


def stopped(film: str, folder: Path, steps: int, config: Config = SHORT) -> None:
    """A run that was stopped after some steps."""
    run, sources = plan_run([film], folder, config, size=16)
    with closing(records_of(run, sources)) as going:
        list(islice(going, steps))


def records_of(run: Plan, sources: Sequence[Source]) -> Generator[Record, None, None]:
    """Learn, and yield the record of each step."""
    with closing(learn_run(run, sources)) as events:
        for event in events:
            if event.record is not None:
                yield event.record


def resume(folder: Path) -> Plan:
    run = load_plan(folder)
    for _ in learn_run(run, sources_of(run)):
        pass
    return run
