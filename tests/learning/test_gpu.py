"""Learning, applying and watching on a GPU, which is the default where there is one."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.films import column, write_ball
from ullayers.cli.main import main
from ullayers.learning.config import Config, Task
from ullayers.run.watch import watch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
QUICK = ("--steps", "5", "--restarts", "1", "--size", "32", "--quiet")


@pytest.mark.parametrize("task", ["locate", "orient", "features"])
def test_a_run_moves_between_devices(
    tmp_path: Path, task: Task, capfd: pytest.CaptureFixture[str]
) -> None:
    film = write_ball(tmp_path / "ball.mp4", 60)
    run = tmp_path / "run"
    assert main(["learn", film, "--task", task, "--out", str(run), *QUICK]) == 0
    assert json.loads((run / "config.json").read_text())["learn"]["device"] == "cuda"
    table = "tracks.csv" if task == "locate" else "codes.csv"
    columns = ("x", "y") if task == "locate" else ("y0", "y1")
    found = []
    for device in ("auto", "cuda", "cpu"):
        out = tmp_path / device
        given = ["--out", str(out), "--device", device, "--quiet"]
        assert main(["apply", str(run), film, *given]) == 0
        found.append(column(out / table, *columns))
    np.testing.assert_allclose(found[0], found[1], atol=1e-4)
    np.testing.assert_allclose(found[0], found[2], atol=1e-2)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("task", ["locate", "orient"])
def test_watching_resumes(tmp_path: Path, task: Task) -> None:
    film = write_ball(tmp_path / "ball.mp4", 120)
    options = {"config": Config(task=task), "size": 32, "folder": tmp_path / "run"}
    with_pause = list(islice(watch(film, **options), 80))  # type: ignore[arg-type]
    with_pause += list(watch(film, resume=True, **options))  # type: ignore[arg-type]
    assert [found.frame for found in with_pause][-1] == 119
    content = json.loads((tmp_path / "run" / "config.json").read_text())
    assert content["learn"]["device"] == "cuda"
