from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

import ullayers.cli.main as cli
from tests.command import QUICK, Call, ul
from tests.films import write_ball

# A test must give the same verdict every time it runs; example counts are set where they matter.
settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=int(os.environ.get("ULLAYERS_EXAMPLES", "60")),
)
settings.load_profile("repeatable")
torch.set_num_threads(1)


@pytest.fixture
def here(capsys: pytest.CaptureFixture[str]) -> Call:
    """The command in this process, which saves the seconds that it takes to load torch."""

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        try:
            code = cli.main([str(argument) for argument in arguments])
        except SystemExit as end:
            code = int(end.code or 0)
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[[str], bool]]:
    """Makes tmp_path/disk a disk of its own, with options, if we are allowed to."""
    disk = tmp_path / "disk"
    disk.mkdir()

    def make(options: str) -> bool:
        what = [] if "remount" in options else ["-t", "tmpfs", "tmpfs"]
        command = ["mount", "-o", options, *what, str(disk)]
        return bool(shutil.which("mount")) and subprocess.run(command, check=False).returncode == 0

    try:
        yield make
    finally:
        if os.path.ismount(disk):
            subprocess.run(["umount", str(disk)], check=True)


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a film, ball.mp4, and runs on it: run (locate) and codes (orient)."""
    folder = tmp_path_factory.mktemp("place")
    film = write_ball(folder / "ball.mp4")
    assert ul("learn", film, "--out", folder / "run", *QUICK)[0] == 0
    assert cli.main(["learn", film, "--out", f"{folder}/codes", "--task", "orient", *QUICK]) == 0
    return folder
