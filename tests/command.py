"""The `ul` command in a process of its own, and checks of how it ends."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.films import files_in
from tests.forked import ENVIRONMENT, Forked, hear_ctrl_c

Process = subprocess.Popen[str] | Forked
UlCommand = Callable[..., tuple[int, str, str]]  # arguments to exit code, stdout and stderr
QUICK = ("--steps", "2", "--restarts", "1", "--size", "16", "--quiet")
WRITTEN = {
    "config.json",
    "model.safetensors",
    "metrics.jsonl",
    "report.html",
    "README.md",
    "overlay.mp4",
    "tracks.csv",
    "behaviour.csv",
    "outlines.sqlite",
    "summary.json",
}
STOPPED = "stopped; finished work is kept; continue with --resume"


def start(*arguments: str | Path, stdout: int | None = None) -> Process:
    """Start the command in a process of its own, forked from one that has imported everything.

    Args:
        *arguments: The command line.
        stdout: Descriptor of the file that it prints to, instead of a pipe.
    """
    if platform.system() == "Linux":
        return Forked(*map(str, arguments), stdout=stdout)
    options: dict[str, Any] = {} if stdout is None else {"stdout": stdout}
    return start_python(*arguments, **options)  # forking is not safe everywhere


def start_code(code: str, *arguments: str, bare: bool = False) -> Process:
    """Start code in a process of its own, like `start`.

    Args:
        code: The code.
        *arguments: Its command line.
        bare: Start with torch imported, and nothing of the package.
    """
    if platform.system() == "Linux":
        return Forked(*arguments, code=code, bare=bare)
    return start_python(*arguments, program=("-c", code))


def run_code(code: str, *arguments: str, bare: bool = False) -> tuple[int, str, str]:
    """Run code like `start_code`; returns exit code, stdout and stderr."""
    return ended(start_code(code, *arguments, bare=bare))


def start_python(
    *arguments: str | Path, program: tuple[str, str] = ("-m", "ullayers"), **options: Any
) -> subprocess.Popen[str]:
    """Start the command in an interpreter of its own, for tests of how it starts.

    Args:
        *arguments: The command line.
        program: What the interpreter runs.
        **options: Further options of `subprocess.Popen`.
    """
    command = [sys.executable, *program, *map(str, arguments)]
    settings: dict[str, Any] = {
        "env": os.environ | ENVIRONMENT,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
        "preexec_fn": hear_ctrl_c,
    }
    return subprocess.Popen(command, **settings | options)


def ended(process: Process) -> tuple[int, str, str]:
    """Wait until a process ends; returns exit code, stdout and stderr."""
    with process:
        out, errors = process.communicate(timeout=120)
        assert process.returncode is not None
        return process.returncode, out, errors


def ul(*arguments: str | Path, **options: Any) -> tuple[int, str, str]:
    """Run the command in an interpreter of its own; returns exit code, stdout and stderr."""
    return ended(start_python(*arguments, **options))


def wait_until(process: Process, happened: Callable[[], bool]) -> None:
    """Wait for something that a process does, which must not end before."""
    while not happened():
        assert process.poll() is None, f"ended before: {process.communicate()}"
        time.sleep(0.005)


def lines_of(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def check_refused(result: tuple[int, str, str], *words: str) -> None:
    """Check that a command has failed with one line that contains all words."""
    code, out, errors = result
    assert (code, out) == (2, ""), errors
    assert errors.count("\n") == 1, errors
    assert errors.startswith(("ul ", "ul:")), errors
    for word in words:
        assert word in errors


def check_stopped(process: Process, words: str = STOPPED) -> str:
    """Check that a process has been stopped by a signal and has printed one line; returns it."""
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, ""), errors
    assert errors.count("\n") == 1, errors
    assert words in errors
    return errors


def unfinished(folder: Path) -> set[str]:
    return {name for name in files_in(folder) if name.endswith(".part")}
