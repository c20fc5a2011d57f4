"""Locks: one process at a time in a folder, wherever TMPDIR is, and nothing is left behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.command import Process, start_code
from tests.films import files_in
from ullayers.errors import RunError
from ullayers.run.folder import check_free, locked

HOLD = """
import signal, sys
from ullayers.run.folder import locked
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
with locked(sys.argv[1]):
    print("held", flush=True)
    signal.sigwait([signal.SIGUSR1])
"""


def hold(folder: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> Process:
    """A process with a TMPDIR of its own that holds the lock of a folder until it is told."""
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    process = start_code(HOLD, str(folder), bare=True)
    monkeypatch.undo()
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_processes_with_different_tmpdirs_exclude_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    with hold(folder, tmp_path / "tmp", monkeypatch) as other:
        with pytest.raises(RunError, match="another process is writing here; wait for it"):
            locked(folder).__enter__()
        assert folder.is_dir()
        other.send_signal(signal.SIGUSR1)
        other.communicate()
    assert not folder.exists(), "nobody has written into it"
    with locked(folder):
        pass


def test_a_killed_process_leaves_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    with hold(folder, tmp_path / "tmp", monkeypatch) as other:
        other.send_signal(signal.SIGKILL)
    assert files_in(folder) == {".lock"}
    check_free(folder, force=False)
    with locked(folder):
        check_free(folder, force=False)
    assert files_in(folder) == set(), "its file is cleared away by the next process"


def test_only_empty_folders_are_removed(tmp_path: Path) -> None:
    with locked(tmp_path / "a" / "b"):
        (tmp_path / "a" / "mine.txt").touch()
    assert files_in(tmp_path) == {"a/mine.txt"}
    assert not (tmp_path / "a" / "b").exists()
    with pytest.raises(ZeroDivisionError), locked(tmp_path / "c" / "d"):
        raise ZeroDivisionError
    assert sorted(os.listdir(tmp_path)) == ["a"]
    (tmp_path / "empty").mkdir()
    with locked(tmp_path / "empty"):
        pass
    assert (tmp_path / "empty").is_dir(), "it was there before"


def test_a_link_is_not_a_lock(tmp_path: Path) -> None:
    (tmp_path / "outside.txt").write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "outside.txt")
    with pytest.raises(RunError, match=r"\.lock: is a link; remove it"):
        locked(tmp_path / "run").__enter__()
    assert (tmp_path / "outside.txt").read_text() == "mine"


def test_places_that_cannot_be_written_to(tmp_path: Path, mount: Callable[[str], bool]) -> None:
    file = tmp_path / "file"
    file.touch()
    for place in (file, file / "below"):
        with pytest.raises(RunError, match="file: is a file; give a folder"):
            locked(place).__enter__()
    closed = tmp_path / "disk"
    closed.chmod(0o555)
    if os.access(closed, os.W_OK) and not mount("ro"):
        pytest.skip("no place is read-only for this user")
    for place in (closed, closed / "run"):
        with pytest.raises(RunError, match="cannot be written to; give another folder"):
            locked(place).__enter__()
