"""How a command ends: one line for what the user can fix, a traceback for bugs."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

import ullayers.cli.learn
from tests.command import QUICK, UlCommand, check_refused, ul
from tests.films import files_in
from ullayers.errors import Error, MissingPackageError

FULL = Path("/dev/full")


def fail_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def plan(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(ullayers.cli.learn, "plan", plan)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("expected 3, got 4"),
        KeyError("kind"),
        OSError("no errno"),
        OSError(errno.EINVAL, "Invalid argument"),
        ModuleNotFoundError("No module named 'ullayers.lost'"),
    ],
)
def test_a_bug_shows_its_traceback(
    error: Exception, tmp_path: Path, here: UlCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_with(monkeypatch, error)
    code, out, errors = here("learn", "a.mp4", "--out", tmp_path / "run")
    assert (code, out) == (1, "")
    assert errors.startswith("Traceback (most recent call last):")
    assert f"{type(error).__name__}: {error}" in errors
    assert errors.splitlines()[-1].startswith("ul learn: internal error; please report it")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (Error("expected 3,\ngot 4"), "expected 3, got 4"),
        (MissingPackageError("needs the package av: pip install av"), "pip install av"),
        (PermissionError(errno.EACCES, "Permission denied", "a.csv"), "a.csv: Permission denied"),
        (FileNotFoundError(errno.ENOENT, "No such file", "b.csv"), "b.csv: No such file"),
        (OSError(errno.ENOSPC, "No space left"), "free some space; nothing was finished"),
    ],
)
def test_what_the_user_can_fix_is_one_line(
    error: Exception, words: str, tmp_path: Path, here: UlCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_with(monkeypatch, error)
    check_refused(here("learn", "a.mp4", "--out", tmp_path / "run"), words)


def test_missing_packages_are_both_kinds_of_error() -> None:
    assert issubclass(MissingPackageError, Error)
    assert issubclass(MissingPackageError, ModuleNotFoundError)


def test_an_interrupt_before_anything_is_finished(
    tmp_path: Path, here: UlCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_with(monkeypatch, KeyboardInterrupt())
    code, out, errors = here("learn", "a.mp4", "--out", tmp_path / "run")
    assert (code, out) == (130, "")
    assert errors == "ul learn: stopped; nothing was finished; start again\n"


BAD_VALUES = {
    "--steps": ["0", "-1", "x", "1.5", "1e3", "9" * 30, ""],
    "--restarts": ["0", "x"],
    "--outputs": ["0", "x", "-3"],
    "--mu": ["0", "1", "2", "-1", "nan", "inf", "x"],
    "--eps": ["0", "0.9", "-1", "nan", "x"],
    "--lr": ["0", "-1", "nan", "inf", "1e9", "x"],
    "--momentum": ["1", "-0.1", "nan", "x"],
    "--weight-decay": ["-1", "nan", "inf", "x"],
    "--tolerance": ["-1", "nan", "inf", "x"],
    "--seed": ["-1", "x", "1.5", "9" * 30],
    "--device": ["abacus", "cuda:99", "", "cpu:x", "meta", "hpu", "privateuseone"],
    "--optimizer": ["adam"],
    "--long-mean": ["year"],
    "--task": ["dance"],
    "--size": ["0", "7", "8x", "x8", "8x8x8", "-8", "nan"],
    "--stride": ["0", "-1", "x", "9" * 30],
    "--max-frames": ["0", "x"],
    "--out": [""],
}


@pytest.mark.parametrize("option", BAD_VALUES)
def test_bad_values_are_refused_in_one_line(option: str, place: Path, here: UlCommand) -> None:
    out = place / "never"
    for value in BAD_VALUES[option]:
        check_refused(here("learn", place / "ball.mp4", "--out", out, f"{option}={value}"))
        if option not in ("--steps", "--restarts", "--long-mean"):
            check_refused(here("watch", place / "ball.mp4", "--quiet", f"{option}={value}"))
    assert not out.exists()


@pytest.mark.parametrize(
    ("command", "program"),
    [("reproduce", "python -m experiments;"), ("bench", "python -m experiments.bench;")],
)
def test_a_command_that_has_moved_is_named(command: str, program: str, here: UlCommand) -> None:
    check_refused(here(command, "all", "--quick"), f"in the repository, run {program}")


@pytest.mark.parametrize(
    "command",
    [
        ["demo", "--seed", "-1"],
        ["apply", "run", "a.mp4", "--stride", "0"],
        ["watch", "a.mp4", "--every", "nan"],
    ],
    ids=" ".join,
)
def test_other_commands_refuse_bad_values(
    command: list[str], tmp_path: Path, here: UlCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, errors = here(*command)
    assert (code, errors.count("\n")) == (2, 1), errors
    assert not any(tmp_path.iterdir())


def test_a_real_process_refuses_in_one_line(tmp_path: Path) -> None:
    check_refused(ul("learn", "nowhere.mp4", "--mu", "0.0001", cwd=tmp_path), "eps <= mu < 1")


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
def test_a_full_standard_error_does_not_change_the_exit_code(place: Path, tmp_path: Path) -> None:
    learn = ("learn", place / "ball.mp4", "--out", tmp_path / "run", *QUICK[:-1])
    with FULL.open("w") as full:
        assert ul("learn", tmp_path / "none.mp4", stderr=full)[0] == 2
        assert ul("learn", "--no-such-option", stderr=full)[0] == 2
        assert ul(*learn, stderr=full)[0] == 0
    assert (tmp_path / "run" / "report.html").exists()


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
@pytest.mark.parametrize("unbuffered", [{}, {"PYTHONUNBUFFERED": "1"}])
def test_a_full_standard_output_is_named(
    place: Path, tmp_path: Path, unbuffered: dict[str, str]
) -> None:
    command = ("apply", place / "run", place / "ball.mp4", "--out", tmp_path / "found")
    with FULL.open("w") as full:
        code, _, errors = ul(*command, stdout=full, env=os.environ | unbuffered)
    assert code == 2
    assert errors.splitlines()[-1].startswith("ul apply: standard output cannot be written to (")
    assert errors.endswith("; all files are written\n")
    assert (tmp_path / "found" / "tracks.csv").exists()


@pytest.mark.parametrize("command", [["learn", "a.mp4"], ["watch", "0"]])
def test_several_processes_of_torchrun(
    command: list[str], tmp_path: Path, here: UlCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.chdir(tmp_path)
    check_refused(here(*command), "runs in one process; start it without torchrun")
    assert not files_in(tmp_path)
