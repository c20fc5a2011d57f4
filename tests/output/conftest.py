"""Runs that the tests of this folder share: each task is learned once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.films import BALL, write_ball
from ullayers.learning.config import Config
from ullayers.run.pipeline import learn_run
from ullayers.run.plan import Plan, plan_run


def learned(folder: Path, task: Any) -> Plan:
    config = Config(task=task, steps=3, trial_steps=2, restarts=1, batch=2, clip=12)
    run, sources = plan_run(
        [write_ball(folder / "ball.mp4", 40, *BALL)], folder / "run", config, size=24
    )
    for _ in learn_run(run, sources):
        pass
    return run


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return learned(tmp_path_factory.mktemp("locate"), "locate")


@pytest.fixture(scope="session")
def codes(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return learned(tmp_path_factory.mktemp("orient"), "orient")


@pytest.fixture(params=["locate", "orient"])
def either(request: pytest.FixtureRequest, run: Plan, codes: Plan) -> Plan:
    return run if request.param == "locate" else codes
