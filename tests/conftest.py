from __future__ import annotations

import gc
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

import tests.plain_reports as plain_reports
from tests.command import QUICK, UlCommand
from tests.films import BALL, write_ball
from tests.real_data import DATA
from ullayers.cli.main import main

# A test must give the same verdict every time it runs; example counts are set where they matter.
settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=int(os.environ.get("ULLAYERS_EXAMPLES", "40")),
)
settings.load_profile("repeatable")
torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run long tests first: at the end, one process would wait for another."""
    if not DATA.is_dir():
        for item in items:
            if item.get_closest_marker("data"):
                item.add_marker(pytest.mark.skip(reason="set ULLAYERS_DATA to the data sets"))
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


def pytest_collection_finish() -> None:
    """Keep imported modules and collected tests out of every later garbage collection."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="package", autouse=True)
def plain_reports_unless_asked() -> Iterator[None]:
    """Draw little: charts and overlays take most of the time of a short run."""
    with plain_reports.plain_reports():
        yield


@pytest.fixture(scope="module")
def full_reports() -> Iterator[None]:
    """Draw reports and overlays as users get them; for tests that look at them."""
    with plain_reports.full_reports():
        yield


@pytest.fixture
def here(capsys: pytest.CaptureFixture[str]) -> UlCommand:
    """The command in this process, which saves the seconds that importing torch takes."""

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as end:
            code = int(end.code or 0)
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[[str], bool]]:
    """Mounts a file system with the given options at tmp_path/disk, if we are allowed to."""
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
    """A folder with a video, ball.mp4, and two runs on it: run (locate) and codes (orient).

    Learned once per worker; tests must not change it.
    """
    folder = tmp_path_factory.mktemp("place")
    film = write_ball(folder / "ball.mp4", 40, *BALL)
    with plain_reports.full_reports():
        assert main(["learn", film, "--out", f"{folder}/run", *QUICK]) == 0
    assert main(["learn", film, "--out", f"{folder}/codes", "--task", "orient", *QUICK]) == 0
    return folder
