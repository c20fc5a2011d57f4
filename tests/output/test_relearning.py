"""Learning again from corrections, in a video where the larger moving object is the wrong one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.command import UlCommand, check_refused
from tests.learning.short_runs import records_of
from tests.results import walk, write_results
from ullayers.errors import Error
from ullayers.learning.config import Config
from ullayers.run.pipeline import work
from ullayers.run.plan import Plan, load_plan, plan_relearning, plan_run, read_teaching
from ullayers.tracks.corrections import (
    Corrections,
    Delete,
    MarkEmpty,
    Merge,
    Move,
    Split,
    Swap,
    compare_runs,
    write_corrections,
)
from ullayers.tracks.reading import read_tracks
from ullayers.video.files.writing import VideoWriter
from ullayers.video.sources import Source

FRAMES, HEIGHT, WIDTH = 160, 72, 96
CORRECTED = (20, 80, 140)
KILLED_AT = 25  # of 35 steps, in the middle of what the winner learns


def places() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Centres of the small object and of the large one, in pixels."""
    t = np.arange(FRAMES)
    small = np.stack([12 + 0.45 * t, 20 + 8 * np.sin(t / 9)], 1)
    large = np.stack([84 - 0.45 * t, 54 + 6 * np.sin(t / 13)], 1)
    return small, large


def learn(run: Plan, sources: list[Source]) -> None:
    for _ in work(run, sources):
        pass


@pytest.fixture(scope="module", name="run")
def fixture_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    random = np.random.default_rng(0)
    wall = random.integers(90, 150, (HEIGHT // 4, WIDTH // 4, 3)).repeat(4, 0).repeat(4, 1)
    rows, columns = np.mgrid[:HEIGHT, :WIDTH] + 0.5
    with VideoWriter(folder / "two.mp4", fps=25) as video:
        for small, large in zip(*places(), strict=True):
            frame = wall.copy()
            for (x, y), radius, colour in ((large, 8, (40, 60, 230)), (small, 5, (230, 60, 40))):
                frame[np.hypot(columns - x, rows - y) < radius] = colour
            noisy = frame + random.normal(0, 4, frame.shape)
            video.write(noisy.clip(0, 255).astype(np.uint8))
    config = Config(objects=1, steps=25, trial_steps=5, restarts=1)
    run, sources = plan_run([str(folder / "two.mp4")], folder / "run", config, size=48)
    learn(run, sources)
    return folder / "run"


def right(folder: Path) -> float:
    """Share of all frames in which the small object was found."""
    [track] = read_tracks(folder / "tracks.csv")
    small, _ = places()
    return float((np.hypot(track.x_px - small[:, 0], track.y_px - small[:, 1]) < 5).mean())


def test_three_corrections_lead_to_the_object_that_is_meant(
    here: UlCommand, run: Path, tmp_path: Path
) -> None:
    small, _ = places()
    moves = [Move("two", 1, n, *small[n].tolist()) for n in CORRECTED]
    corrections = Corrections((*moves, MarkEmpty("two", 158, 159)))
    write_corrections(run, corrections)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    code, out, _ = here("learn", "--corrections", run, "--out", tmp_path / "new")
    assert code == 0
    assert f"semi-supervised: 4 corrections of {run}" in out
    new = load_plan(tmp_path / "new")
    assert new.finished

    assert right(run) < 0.1
    assert right(new.folder) > 0.9
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    [track] = read_tracks(new.folder / "tracks.csv")
    assert (track.confidence[158:] == 0).all()

    told = f"4 corrections of {run}"
    assert json.loads((new.folder / "summary.json").read_text())["semi_supervised"] == told
    config = json.loads((new.folder / "config.json").read_text())
    assert config["semi_supervised"]["places"]["two"][-1] == [159, None, None]
    assert config["learn"] == json.loads((run / "config.json").read_text())["learn"]
    assert "4 user corrections" in (new.folder / "README.md").read_text()
    changes = compare_runs(run, new.folder, corrections)
    assert changes.frames == FRAMES
    assert changes.share > 0.9
    assert changes.corrected_before_px is not None
    assert changes.corrected_after_px is not None
    assert changes.corrected_after_px < 3 < changes.corrected_before_px
    assert "corrected positions" in changes.sentence
    same = compare_runs(run, run, corrections)
    assert (same.moved, same.median_px) == (0, 0)


def test_learning_from_corrections_resumes_after_a_kill(run: Path, tmp_path: Path) -> None:
    """The files in the middle of training are those that a killed process leaves behind."""
    small, _ = places()
    write_corrections(run, Corrections((Move("two", 1, 20, *small[20].tolist()),)))
    new, sources = plan_relearning(run, tmp_path / "new")
    for step, _ in enumerate(records_of(new, sources)):
        if step == KILLED_AT:
            shutil.copytree(new.folder, tmp_path / "killed")
    killed = load_plan(tmp_path / "killed")
    assert killed.net is None
    assert killed.teaching == new.teaching
    assert len(list(records_of(killed, sources))) < step  # it does not start again
    # Results follow from the network, the settings and the corrections.
    assert killed.config == new.config
    models = [folder / "model.safetensors" for folder in (killed.folder, new.folder)]
    assert models[0].read_bytes() == models[1].read_bytes()


def test_what_cannot_be_learned_from(here: UlCommand, run: Path, tmp_path: Path) -> None:
    for more in (["two.mp4"], ["--steps", "5"], ["--masks"], ["--resume"]):
        command = ("learn", "--corrections", run, "--out", tmp_path / "new", *more)
        check_refused(here(*command), "leave")
    write_corrections(run, Corrections((Split("two", 1, 10), Merge("two", (1, 2)))))
    with pytest.raises(Error, match="no corrections to learn from"):
        plan_relearning(run, tmp_path / "new")
    write_corrections(run, Corrections((Move("two", 1, 5, 10, 10),)))
    with pytest.raises(Error, match="is the run that was corrected"):
        plan_relearning(run, run, force=True)
    write_corrections(run, Corrections((Move("two", 3, 5, 10, 10),)))
    with pytest.raises(Error, match="correction 1"):
        plan_relearning(run, tmp_path / "new")


def test_places_of_the_object_that_is_left(tmp_path: Path) -> None:
    rows = [*walk(1), *walk(2)]
    folder = write_results(tmp_path / "run", {"a": rows, "b": walk(1)})
    moves = [Move("a", 1, 3, 48, 32), Move("a", 2, 5, 24, 16), Move("a", 2, 8, 12, 16)]
    corrections = Corrections((*moves, Swap("a", (1, 2), 4), MarkEmpty("a", 10, 10)))
    write_corrections(folder, corrections)
    with pytest.raises(Error, match="a has several objects"):
        read_teaching(folder)
    write_corrections(folder, corrections.add(Delete("a", 2)))
    teaching = read_teaching(folder)
    assert teaching.corrections == 6
    # After the swap, all three places are of object 1.
    assert teaching.places == {
        "a": [(3, 0.5, 0.5), (5, 0.25, 0.25), (8, 0.125, 0.25), (10, None, None)]
    }
