"""Runs of a few steps on a small film: whole, stopped, resumed."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

from ullayers.learn.config import Config
from ullayers.run.pipeline import learn_run
from ullayers.run.plan import Run, load_run, plan_run, sources_of

SHORT = Config(steps=5, trial_steps=3, restarts=1, batch=2, clip=12)
CODES = Config(task="orient", steps=5, trial_steps=3, restarts=1, batch=2, clip=12)


def learn(film: str, folder: Path, config: Config = SHORT, **how: Any) -> Run:
    run, sources = plan_run([film], folder, config, size=16, **how)
    for _ in learn_run(run, sources):
        pass
    return run


def stopped(film: str, folder: Path, steps: int, config: Config = SHORT) -> None:
    """A run that was stopped after some steps."""
    run, sources = plan_run([film], folder, config, size=16)
    going = learn_run(run, sources)
    list(islice(going, steps))
    going.close()


def resume(folder: Path) -> Run:
    run = load_run(folder)
    for _ in learn_run(run, sources_of(run)):
        pass
    return run
