"""Folders that are written to: links never lead writing or deleting to the outside."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import ullayers as ul
from tests.films import contents, write_ball
from tests.learning.short_runs import stopped
from ullayers.errors import RunError
from ullayers.files import check_inside
from ullayers.learning.config import Config
from ullayers.run.folder import check_free, check_links, clear_masks, clear_run
from ullayers.run.pipeline import learn_run
from ullayers.run.plan import load_plan, plan_run, sources_of

SHORT = Config(steps=2, trial_steps=1, restarts=1, batch=2, clip=12)


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_ball(tmp_path_factory.mktemp("film") / "ball.mp4")


@pytest.fixture(scope="module")
def learned(film: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped after a step, so that it has a checkpoint, with a mask."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    stopped(film, folder, 1)
    (folder / "masks" / "ball").mkdir(parents=True)
    (folder / "masks" / "ball" / "000001.png").touch()
    return folder


@pytest.fixture
def run(learned: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(learned, tmp_path / "run"))


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Files of somebody else that are named like those of a run."""
    folder = tmp_path / "outside"
    names = ("000001.png", "a.safetensors", "state.json", "tracks.partial.sqlite", "metrics.jsonl")
    for name in (*names, "tracks.csv", "events.out.tfevents.1", "ball/000001.png"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("mine")
    return folder


def link(path: Path, target: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.symlink_to(target)


LINKS: dict[str, Callable[[Path, Path], None]] = {
    "masks": lambda run, outside: link(run / "masks", outside),
    "masks of a sequence": lambda run, outside: link(run / "masks" / "ball", outside),
    "checkpoint": lambda run, outside: link(run / "checkpoint", outside),
    "tensorboard": lambda run, outside: link(run / "tensorboard", outside),
    "metrics": lambda run, outside: link(run / "metrics.jsonl", outside / "metrics.jsonl"),
    "new metrics": lambda run, outside: link(run / "metrics.jsonl", outside / "new.jsonl"),
    "table": lambda run, outside: link(run / "tracks.csv", outside / "tracks.csv"),
    "partial table": lambda run, outside: link(
        run / "tracks.partial.sqlite", outside / "tracks.partial.sqlite"
    ),
}


@pytest.mark.parametrize("name", LINKS)
def test_links_to_the_outside_are_not_followed(
    name: str, run: Path, outside: Path, film: str
) -> None:
    LINKS[name](run, outside)
    before = contents(outside)
    attempts: list[Callable[[], object]] = [
        lambda: check_links(run),
        lambda: check_free(run, force=True),
        lambda: clear_run(run),
        lambda: sources_of(load_plan(run)),
        lambda: list(learn_run(load_plan(run), sources_of(load_plan(run)))),
        lambda: plan_run([film], run, SHORT, size=16, force=True),
        lambda: list(ul.watch(film, size=16, max_frames=2, folder=run, force=True)),
    ]
    for attempt in attempts:
        with pytest.raises(RunError, match=r"is a link that leads out of .*; remove the link"):
            attempt()
        assert contents(outside) == before


@pytest.mark.parametrize("name", ["masks", "masks of a sequence"])
def test_masks_behind_a_link_are_not_cleared(name: str, run: Path, outside: Path) -> None:
    LINKS[name](run, outside)
    before = contents(outside)
    with pytest.raises(RunError, match="leads out"):
        clear_masks(run)
    assert contents(outside) == before


@pytest.mark.parametrize("name", ["checkpoint", "table"])
def test_watching_on_does_not_follow_links(
    name: str, film: str, tmp_path: Path, outside: Path
) -> None:
    folder = tmp_path / "watched"
    list(ul.watch(film, size=16, max_frames=2, folder=folder))
    shutil.copytree(folder / "checkpoint", outside, dirs_exist_ok=True)
    LINKS[name](folder, outside)
    before = contents(outside)
    with pytest.raises(RunError, match="leads out"):
        list(ul.watch(film, folder=folder, resume=True))
    assert contents(outside) == before


def test_links_that_stay_inside_or_lead_to_the_folder_are_fine(run: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(run)
    check_links(tmp_path / "link")
    (run / "tracks.csv").symlink_to(run / "other.csv")
    check_inside(run, run / "tracks.csv", run / "not" / "there")
    with pytest.raises(RunError, match="leads out"):
        check_inside(run, run / ".." / "other")
    link(run / "report.html", tmp_path / "file")  # replaced, not written through
    (tmp_path / "file").write_text("mine")
    clear_run(run)
    assert not (run / "report.html").is_symlink()
    assert (tmp_path / "file").read_text() == "mine"
    assert not (run / "masks").exists()
