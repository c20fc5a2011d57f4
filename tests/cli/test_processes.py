"""`ul learn` in several processes, started by torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from tests.command import UlCommand, check_refused
from tests.films import column, write_ball

LEARN = "--size", "16", "--restarts", "1", "--steps", "40", "--quiet"


def torchrun(*arguments: str | Path) -> subprocess.Popen[str]:
    """Start two processes on this machine."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return subprocess.Popen(
        [*launcher, "--nproc-per-node", "2", "-m", "ullayers", *arguments],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )


def objectives(run: Path) -> list[float]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["objective"] for line in lines]


def test_two_processes_learn_what_one_does(tmp_path: Path, here: UlCommand) -> None:
    inputs = [write_ball(tmp_path / f"ball{i}.mp4", 60 + 10 * i) for i in range(3)]
    alone, both = tmp_path / "alone", tmp_path / "both"
    assert here("learn", *inputs, "--out", alone, *LEARN) == (0, "", "")
    with torchrun("learn", *inputs, "--out", both, *LEARN) as process:
        _, errors = process.communicate()
    assert process.returncode == 0, errors
    np.testing.assert_allclose(objectives(both), objectives(alone), atol=1e-4)
    weights = [load_file(run / "model.safetensors") for run in (alone, both)]
    for name, value in weights[0].items():
        np.testing.assert_allclose(value, weights[1][name], atol=1e-3)
    tracks = [column(run / "tracks.csv", "x", "y", "confidence") for run in (alone, both)]
    np.testing.assert_allclose(tracks[1], tracks[0], atol=1e-4)


def test_other_commands_run_in_one_process(
    tmp_path: Path, here: UlCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    check_refused(here("watch", tmp_path / "a.mp4"), "one process", "without torchrun")
