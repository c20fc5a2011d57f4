"""Accuracy of what `ul` learns, on a synthetic scene and on a real mouse."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

import ullayers.cli.demo
from tests.command import (
    UlCommand,
    check_refused,
)
from tests.films import (
    column,
    contents,
)
from tests.real_data import DATA
from ullayers.cli.parser import make_parser
from ullayers.video.demo_films import write_scene


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short version of `ul demo`."""
    folder = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "ullayers.cli.demo.write_scene", lambda out, seed: write_scene(out, seed, 160)
        )
        arguments = make_parser().parse_args(["demo", "--out", str(folder / "out"), "--quiet"])
        arguments.steps = 40  # the demo's own settings would take a minute
        arguments.restarts = 1
        arguments.size = 48
        ullayers.cli.demo.run(arguments)
    return folder / "out"


def test_the_demo_finds_the_beetle(demo: Path) -> None:
    from ullayers.run.plan import load_plan, sources_of
    from ullayers.run.results import _untrained, distances

    run = load_plan(demo / "run")
    there = column(demo / "truth.csv", "x", "y")
    learned = distances(column(demo / "run" / "tracks.csv", "x", "y"), there, 0.75)
    before = distances(_untrained(run, sources_of(run)[0]), there, 0.75)
    assert np.median(learned) < 0.0089  # MOG2
    assert np.quantile(learned, 0.9) < 0.035
    report = (demo / "run" / "report.html").read_text()
    assert f"{np.median(learned):.2%}" in report
    assert f"{np.median(before):.2%}" in report


def test_the_demo_keeps_the_kind_with_the_lowest_objective(demo: Path) -> None:
    result = json.loads((demo / "run" / "config.json").read_text())["result"]
    assert result["scores"][result["trial"]] == min(result["scores"])
    assert not result["camera"]


def test_the_demo_is_careful_with_its_folder(demo: Path, here: UlCommand) -> None:
    before = contents(demo)
    check_refused(here("demo", "--out", demo), "is not empty", "--force")
    assert contents(demo) == before
    code, out, _ = here("demo", "--out", demo, "--resume")
    assert code == 0
    assert "median distance" in out
    assert (demo / "run" / "tracks.csv").read_bytes() == before["run/tracks.csv"]


MOUSE_FRAMES = 160


@pytest.mark.data
@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_mouse_is_found(tmp_path: Path, here: UlCommand) -> None:
    video = DATA / "tracktor" / "videos" / "mouse_video.mp4"
    short = "--max-frames", str(MOUSE_FRAMES), "--steps", "40"
    assert here("learn", video, "--out", tmp_path / "run", "--quiet", *short) == (0, "", "")
    with open(video.parent.parent / "output" / "mouse_video_tracked.csv", newline="") as file:
        rows = [(float(row["pos_x"]), float(row["pos_y"])) for row in csv.DictReader(file)]
    there = np.array(rows)
    assert column(tmp_path / "run" / "tracks.csv", "frame")[:, 0].tolist() == list(
        range(MOUSE_FRAMES)
    )
    found = column(tmp_path / "run" / "tracks.csv", "x", "y") * (640, 480)
    count = min(len(there), len(found))
    away = np.hypot(*(found[:count] - there[:count]).T) / 640
    assert np.nanmedian(away) <= 0.01
    assert np.nanquantile(away, 0.9) <= 0.03
