"""Progress goes to stderr and counts what will really be done."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.command import UlCommand
from tests.films import ball, write_ball, write_pictures, write_raw
from tests.tracks.growing import begin
from ullayers.learning.footage import count_frames
from ullayers.run.progress import Progress
from ullayers.run.write import unfinished_sources
from ullayers.video.sources import Reading, find_sources


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Videos of 40 and 10 frames."""
    folder = tmp_path_factory.mktemp("films")
    write_ball(folder / "long.mp4", 40)
    write_pictures(folder / "short", ball(10)[0])
    return folder


@pytest.fixture
def every_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Print a line each time something is counted."""
    defaults = Progress.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "period", 0.0)


@pytest.mark.parametrize(
    ("reading", "total"),
    [
        (Reading(), 50),
        (Reading(stride=3), 18),
        (Reading(stride=3, max_frames=4), 8),
        (Reading(max_frames=99), 50),
        (Reading(start=0.2, end=0.4), 10),
    ],
)
def test_frames_that_will_be_read(films: Path, reading: Reading, total: int) -> None:
    sources = find_sources([str(films)])
    assert count_frames(sources, reading) == total
    assert sum(len(clip.index) for each in sources for clip in each.clips(9, reading)) == total


def test_no_total_if_a_header_has_none(films: Path, tmp_path: Path) -> None:
    raw = write_raw(tmp_path / "a.h264", ball(9)[0])
    assert count_frames(find_sources([raw, str(films)]), Reading()) is None


def test_finished_sequences_are_not_counted(films: Path, tmp_path: Path) -> None:
    sources = find_sources([str(films)])
    assert unfinished_sources(sources, tmp_path, masks=False) == sources
    begin(tmp_path / "tracks.csv", sources[0].name)
    assert unfinished_sources(sources, tmp_path, masks=False) == sources[1:]
    assert unfinished_sources(sources, tmp_path, masks=True) == sources, "their masks are missing"
    partial = tmp_path / "tracks.partial.sqlite"
    whole = partial.read_bytes()
    for damage in (b"", b"[", whole[:100], whole[:5000]):
        partial.write_bytes(damage)
        assert unfinished_sources(sources, tmp_path, masks=False) == sources
    partial.unlink()
    os.mkfifo(partial)
    assert unfinished_sources(sources, tmp_path, masks=False) == sources


def counts(errors: str, title: str) -> list[tuple[str, str]]:
    """What each line of progress says: count and total."""
    lines = [line.split() for line in errors.splitlines() if line.startswith(f"{title}: ")]
    return [(line[1], line[3]) for line in lines]


@pytest.mark.usefixtures("every_line")
def test_learn_counts_what_it_does(films: Path, tmp_path: Path, here: UlCommand) -> None:
    few = ("--stride", "2", "--max-frames", "30", "--size", "16", "--steps", "3", "--restarts", "1")
    bad = tmp_path / "bad.mp4"
    bad.touch()
    inputs = (films / "long.mp4", films / "short", bad)
    run = tmp_path / "run"
    code, out, errors = here("learn", *inputs, *few, "--skip-bad", "--out", run)
    assert code == 0
    assert counts(errors, "reading")[-1] == ("20", "20")
    assert counts(errors, "training")[-1] == ("6", "6")
    assert counts(errors, "applying")[-1] == ("40", "40")
    steps = [line for line in errors.splitlines() if line.startswith("training: ")]
    assert "trial 1 of 2: J " in steps[0]
    assert "trial 2 of 2: J " in steps[3]
    assert "applying" not in out, "progress is not for stdout"
    assert "40 frames, object found in" in out


@pytest.mark.usefixtures("every_line")
def test_apply_counts_what_it_does_and_sums_up_like_learn(
    films: Path, place: Path, tmp_path: Path, here: UlCommand
) -> None:
    few = ("--stride", "3", "--max-frames", "11", "--out", tmp_path / "out")
    code, out, errors = here("apply", place / "run", films / "long.mp4", films / "short", *few)
    assert code == 0
    assert counts(errors, "applying")[-1] == ("8", "8")
    summary, wrote = out.splitlines()
    assert summary.startswith("8 frames, object found in ")
    assert "trained on 40 frames, evaluation J -" in summary
    names = ("tracks.csv", "outlines.sqlite", "summary.json", "behaviour.csv")
    files = (tmp_path / "out" / name for name in names)
    assert wrote == f"wrote {', '.join(map(str, files))}"


@pytest.mark.usefixtures("every_line")
def test_quiet_shows_nothing(films: Path, place: Path, tmp_path: Path, here: UlCommand) -> None:
    film = films / "long.mp4"
    assert here("apply", place / "run", film, "--out", tmp_path, "--quiet") == (0, "", "")


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a pseudo terminal")
def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave = os.openpty()
    monkeypatch.setenv("COLUMNS", "80")
    with os.fdopen(slave, "w") as terminal:
        with Progress("reading", "frames", 4, stream=terminal) as progress:
            progress.one()
            progress.bar.refresh()
        shown = os.read(master, 4096).decode()
        while "1/4" not in shown:
            shown += os.read(master, 4096).decode()
    os.close(master)
    assert "reading" in shown
