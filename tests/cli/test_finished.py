"""`--resume` on finished runs: makes what is missing, and nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import ullayers.cli.learn
from tests.command import QUICK, UlCommand, check_refused
from tests.films import contents, files_in, read_table, write_ball
from ullayers.tracks.masks import read_outlines


@pytest.fixture
def run(place: Path, tmp_path: Path) -> Path:
    """A copy of a finished run."""
    return Path(shutil.copytree(place / "run", tmp_path / "run"))


def test_a_finished_run_is_left_alone(
    run: Path, here: UlCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*arguments: object, **options: object) -> None:
        raise AssertionError("nothing is to be done")

    for name in ("sources_of", "work"):
        monkeypatch.setattr(ullayers.cli.learn, name, never)
    before = contents(run)
    times = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    code, out, errors = here("learn", "--resume", "--out", run)
    assert (code, errors) == (0, "")
    assert out == f"{run}: already finished; open {run / 'report.html'}\n"
    assert here("learn", "--resume", "--out", run, "--quiet") == (0, "", "")
    assert contents(run) == before
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == times


@pytest.mark.parametrize(
    "missing",
    [
        ["overlay.mp4"],
        ["report.html"],
        ["README.md"],
        ["summary.json"],
        ["tracks.csv", "outlines.sqlite", "summary.json"],  # which are always written together
        ["overlay.mp4", "report.html"],
        ["outlines.sqlite"],
    ],
    ids="+".join,
)
def test_only_missing_files_are_made(run: Path, here: UlCommand, missing: list[str]) -> None:
    before = contents(run)
    for name in missing:
        (run / name).unlink()
    times = {name: (run / name).stat().st_mtime_ns for name in files_in(run)}
    assert here("learn", "--resume", "--out", run, "--quiet") == (0, "", "")
    assert files_in(run) == set(before)
    assert {name: (run / name).stat().st_mtime_ns for name in times} == times
    for name in missing:
        if name in ("tracks.csv", "summary.json", "README.md"):
            assert (run / name).read_bytes() == before[name]
        else:
            assert (run / name).stat().st_size > 1000


@pytest.mark.parametrize("damage", ["cut", "overwritten", "not a database"])
def test_damaged_outlines_are_written_again(run: Path, here: UlCommand, damage: str) -> None:
    path = run / "outlines.sqlite"
    before = contents(run)
    whole = read_outlines(path, "ball", 0, 39)
    content = bytearray(before["outlines.sqlite"])
    if damage == "cut":
        del content[len(content) // 2 :]
    elif damage == "overwritten":
        content[len(content) // 2 : len(content) // 2 + 4096] = bytes(4096)
    else:
        content[:] = b"something else"
    path.write_bytes(content)
    code, out, errors = here("learn", "--resume", "--out", run, "--quiet")
    assert (code, out) == (0, "")
    assert errors == f"ul learn: {path}: was damaged, and is written again\n"
    assert {**contents(run), "outlines.sqlite": b""} == {**before, "outlines.sqlite": b""}
    again = read_outlines(path, "ball", 0, 39)
    assert {frame: [each.points.tolist() for each in again[frame]] for frame in again} == {
        frame: [each.points.tolist() for each in whole[frame]] for frame in whole
    }


def test_masks_can_be_added(run: Path, here: UlCommand) -> None:
    before = contents(run)
    code, out, errors = here("learn", "--resume", "--out", run, "--masks")
    assert (code, errors) == (0, "")
    assert "40 frames, object found in" in out
    assert len(list((run / "masks" / "ball").iterdir())) == 40
    shutil.rmtree(run / "masks")
    assert contents(run) == before


def test_watch_continues_with_the_options_of_its_run(
    place: Path, tmp_path: Path, here: UlCommand
) -> None:
    out = tmp_path / "watched"
    watch = ("watch", place / "ball.mp4", "--out", out, "--objects", "1", "--quiet")
    assert here(*watch, "--size", "16", "--max-frames", "5") == (0, "", "")
    assert here(*watch, "--resume", "--size", "16", "--max-frames", "5") == (0, "", "")
    check_refused(here(*watch, "--resume", "--size", "24"), "this run has --size 12x16")
    check_refused(here(*watch, "--resume", "--grey"), "this run has no --grey")
    assert len(read_table(out / "tracks.csv")) == 10


@pytest.mark.parametrize("force", [False, True])
def test_what_a_killed_process_has_left_is_removed(run: Path, here: UlCommand, force: bool) -> None:
    """While it made what was missing, in a folder of its own."""
    (run / ".missing-a1b2c3_d" / "masks").mkdir(parents=True)
    (run / ".missing-a1b2c3_d" / "tracks.csv").touch()
    (run / ".missing-mine").touch()
    film = run.parent / "ball.mp4"
    again = ("--force", *QUICK, write_ball(film, 12)) if force else ("--resume", "--quiet")
    assert here("learn", *again, "--out", run) == (0, "", "")
    assert not (run / ".missing-a1b2c3_d").exists()
    assert (run / ".missing-mine").exists(), "a file of the user"
