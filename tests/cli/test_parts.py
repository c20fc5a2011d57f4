"""`ul apply --part`: parts of the videos in calls of their own, of which the last one joins."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from tests.command import UlCommand, check_refused, check_stopped, ended, start, wait_until
from tests.films import contents, files_in, write_ball, write_truncated
from ullayers.cli.fleet import _Rate
from ullayers.run.folder import has_parts


@pytest.fixture
def films(tmp_path: Path) -> Path:
    """A folder with five videos, of which one is damaged."""
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(4):
        write_ball(folder / f"film{number}.mp4", 12, seed=number)
    write_truncated(folder / "film4.mp4")
    return folder


def test_parts_are_joined_by_the_last(
    place: Path, films: Path, tmp_path: Path, here: UlCommand
) -> None:
    zones = tmp_path / "zones.json"
    zones.write_text('{"zones": {"a": [[0, 0], [20, 0], [20, 20]]}}')
    command = ("apply", place / "run", films, "--skip-bad", "--masks", "--zones", zones)
    out, plain = tmp_path / "out", tmp_path / "plain"
    part = (*command, "--out", out, "--overlay", "--part")
    assert here(*part, "3/3")[1] == "1 of 5 videos are finished; the last part joins them\n"
    both = [start(*part, f"{number}/3") for number in (1, 2)]  # at the same time
    results = [ended(process) for process in both]
    assert [code for code, *_ in results] == [0, 0], results
    code, said, errors = here(*command, "--out", plain, "--quiet")
    assert (code, said) == (0, "")
    assert any(errors in result[2] for result in results), "film4 is used in part"
    names = files_in(plain) - {"outlines.sqlite"}
    assert {name: (out / name).read_bytes() for name in names} == {
        name: (plain / name).read_bytes() for name in names
    }
    overlays = {f"overlays/film{number}.mp4" for number in range(5)}
    assert files_in(out) == files_in(plain) | overlays
    before = contents(out)
    assert "is already finished; give another --out" in here(*part, "1/3")[2]
    assert contents(out) == before
    check_refused(here(*part, "1/3", "--force"), "give another --out, not --force")
    assert here(*command, "--out", out, "--force", "--quiet")[0] == 0
    assert files_in(out) == files_in(plain), "no file of the parts stays"


def test_a_part_that_is_stopped_is_started_again(
    place: Path, tmp_path: Path, here: UlCommand
) -> None:
    folder, out, plain = tmp_path / "in", tmp_path / "out", tmp_path / "plain"
    folder.mkdir()
    film = write_ball(folder / "film0.mp4", 60)
    for number in range(1, 12):
        shutil.copy(film, folder / f"film{number}.mp4")
    command = ("apply", place / "codes", folder, "--quiet", "--out")
    assert here(*command, out, "--part", "2/2") == (0, "", "")
    process = start(*command, out, "--part", "1/2")
    wait_until(process, lambda: len(list(out.glob("parts/*/part.json"))) > 6)
    process.send_signal(signal.SIGINT)
    check_stopped(process)
    assert has_parts(out)
    check_refused(here(*command, out, "--resume"), "was started with --ray or --part")
    assert here(*command, out, "--part", "1/2") == (0, "", "")
    assert here(*command, plain) == (0, "", "")
    assert contents(out) == contents(plain)


def test_a_damaged_video_ends_its_part(
    place: Path, films: Path, tmp_path: Path, here: UlCommand
) -> None:
    command = ("apply", place / "codes", films, "--out", tmp_path / "out", "--quiet", "--part")
    assert here(*command, "1/2")[0] == 2, "film4"
    assert here(*command, "2/2")[0] == 0
    check_refused(here(*command, "1/2"), "film4.mp4: broken after", "--skip-bad")
    code, _, errors = here(*command, "1/2", "--skip-bad")
    assert code == 0
    assert "used in part" in errors
    assert "film4.mp4: broken after" in errors
    assert (tmp_path / "out" / "codes.csv").exists()


@pytest.mark.parametrize("part", ["0/3", "4/3", "3", "1/0", "a/b", "-1/3", "1/2/3"])
def test_parts_that_do_not_exist(part: str, tmp_path: Path, here: UlCommand) -> None:
    found = here("apply", tmp_path, "a.mp4", "--part", part)
    assert found[0] == 2
    assert found[2].count("\n") == 1


def test_folders_with_other_files(place: Path, tmp_path: Path, here: UlCommand) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").touch()
    command = ("apply", place / "codes", place / "ball.mp4", "--out", tmp_path / "out")
    check_refused(here(*command, "--part", "1/1"), "is not empty")
    assert files_in(tmp_path / "out") == {"mine.txt"}


def test_progress_tells_speed_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    rate = _Rate(total=12)
    now += 30.0
    assert rate.note(3, 3000) == "100 frames/s, 0:04:30 left", "two were finished before"
    now += 30.0
    assert rate.note(6, 12_000) == "200 frames/s, 0:01:30 left"
