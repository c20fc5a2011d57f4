"""The command `ul`, run as a user would, and what must hold when it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.films import files_in

Call = Callable[..., tuple[int, str, str]]
QUICK = ("--steps", "2", "--restarts", "1", "--size", "16", "--quiet")
WRITTEN = {
    "config.json", "model.safetensors", "metrics.jsonl", "report.html", "overlay.mp4", "tracks.csv",
    "summary.json",
}  # fmt: skip


def start(*arguments: str | Path, **how: Any) -> subprocess.Popen[str]:
    """The command in a process of its own, one thread, which hears Ctrl-C whoever started us."""
    command = [sys.executable, "-m", "ullayers", *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "default"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    hears = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.default_int_handler)}
    return subprocess.Popen(command, **{"env": environment, **pipes, **hears, **how})


def ul(*arguments: str | Path, **how: Any) -> tuple[int, str, str]:
    """Exit code, output and errors of the command in a process of its own."""
    with start(*arguments, **how) as process:
        out, errors = process.communicate(timeout=120)
        return process.returncode, out, errors


def wait_until(process: subprocess.Popen[str], happened: Callable[[], bool]) -> None:
    """Wait for something that a process does; it must still be running then."""
    while not happened():
        assert process.poll() is None, f"ended before: {process.communicate()}"
        time.sleep(0.005)


def lines_of(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def check_refused(result: tuple[int, str, str], *words: str) -> None:
    code, out, errors = result
    assert (code, out) == (2, ""), errors
    assert errors.count("\n") == 1, errors
    assert errors.startswith(("ul ", "ul:")), errors
    for word in words:
        assert word in errors


def check_stopped(process: subprocess.Popen[str], words: str) -> str:
    """It has ended by Ctrl-C, with one line."""
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, ""), errors
    assert errors.count("\n") == 1, errors
    assert words in errors
    return errors


def unfinished(folder: Path) -> set[str]:
    return {name for name in files_in(folder) if name.endswith(".part")}
