"""The commands of the experiments, in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import experiments.__main__
import experiments.bench.__main__
from tests.command import UlCommand


def command(main: Callable[[Sequence[str]], int], capsys: pytest.CaptureFixture[str]) -> UlCommand:
    def run(*arguments: str | Path) -> tuple[int, str, str]:
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as end:
            code = int(end.code or 0)
        return code, *capsys.readouterr()

    return run


@pytest.fixture(name="experiments")
def _experiments(capsys: pytest.CaptureFixture[str]) -> UlCommand:
    return command(experiments.__main__.main, capsys)


@pytest.fixture
def bench(capsys: pytest.CaptureFixture[str]) -> UlCommand:
    return command(experiments.bench.__main__.main, capsys)


def check_refused(result: tuple[int, str, str], *words: str) -> None:
    """Check that a command has failed, and that its last line contains all words."""
    code, out, errors = result
    assert (code, out) == (2, ""), errors
    assert errors.splitlines()[-1].startswith("python -m experiments"), errors
    for word in words:
        assert word in errors.splitlines()[-1]
