"""A small film, and a finished run that has learned from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.films import write_ball
from tests.learning.short_runs import learn


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_ball(tmp_path_factory.mktemp("film") / "ball.mp4")


@pytest.fixture(scope="module")
def finished(film: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learn(film, tmp_path_factory.mktemp("runs") / "run").folder
