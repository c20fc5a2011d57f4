"""Run folders made by version 0.1.0 still load.

They were made from `ball(24, 16, 16)` as pictures, in a folder /videos/frames, with

    ul learn frames --size 16 --steps 4 --restarts 1 --out locate
    ul learn frames --task orient --grey --size 8 --steps 4 --restarts 1 --out orient
    ul watch frames --size 16 --max-frames 16 --out watched

`stopped` is a run of `learn_run` that was closed after two steps.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import ullayers as ul
from tests.films import ball, contents, write_pictures
from tests.learning.short_runs import records_of
from ullayers.errors import RunError
from ullayers.run.apply import answers
from ullayers.run.plan import csv_name, load_plan, sources_of
from ullayers.tracks.table import Answer, read_answers
from ullayers.video.sources import find_sources

SAVED = Path(__file__).parent / "version_0_1"


@pytest.fixture(scope="module")
def frames(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_pictures(tmp_path_factory.mktemp("film") / "frames", ball(24, 16, 16)[0])


def copied(name: str, folder: Path, frames: str) -> Path:
    """A copy of a saved run that knows where its frames are now."""
    shutil.copytree(SAVED / name, folder)
    config = json.loads((folder / "config.json").read_text())
    assert config["inputs"] == ["/videos/frames"]
    (folder / "config.json").write_text(json.dumps({**config, "inputs": [frames]}))
    return folder


@pytest.mark.parametrize("name", ["locate", "orient"])
def test_a_learned_run_can_be_applied(name: str, frames: str, tmp_path: Path) -> None:
    run = load_plan(copied(name, tmp_path / "run", frames))
    [source] = sources_of(run)
    found = Answer.join(list(answers(run, source)))
    [saved] = read_answers(run.folder / csv_name(run))
    assert found.columns == saved.columns
    assert np.array_equal(found.index, saved.index)
    if name == "orient":
        assert np.allclose(found.values, saved.values, atol=1e-4)
    else:  # positions are found in another way since, and the ball is where it was
        assert np.median(np.abs(found.values[:, :2] - saved.values[:, :2])) < 0.03
    assert run.outcome.sources == ["frames"]
    assert run.outcome.torch == "2.13.0+cpu"
    assert {record["trial"] for record in run.records()} >= {run.outcome.trial}


def test_a_watched_run_can_be_applied(frames: str, tmp_path: Path) -> None:
    run = load_plan(copied("watched", tmp_path / "run", frames))
    result = run.outcome
    assert (result.kind, result.frames, result.objective) == ("stream", 16, 1.3281362056732178)
    assert (result.start, result.scores, result.torch) == (None, None, None), "it did not say"
    [source] = find_sources([frames])
    found = Answer.join(list(answers(run, source)))
    truth = ball(24, 16, 16)[1]
    assert np.median(np.abs(found.values[:, :2] - truth)) < 0.05


def test_a_watched_run_cannot_be_resumed_and_says_why(frames: str, tmp_path: Path) -> None:
    folder = copied("watched", tmp_path / "run", frames)
    before = contents(folder)
    with pytest.raises(RunError, match=r"version 0\.1, which kept no memory .* --force") as error:
        list(ul.watch(frames, folder=folder, resume=True))
    assert "\n" not in str(error.value)
    assert contents(folder) == before


def test_a_stopped_run_is_resumed(frames: str, tmp_path: Path) -> None:
    run = load_plan(copied("stopped", tmp_path / "run", frames))
    assert run.net is None
    steps = [(record.kind, record.step) for record in records_of(run, sources_of(run))]
    assert steps[:4] == [("clip", 3), ("stream", 1), ("stream", 2), ("stream", 3)]
    assert run.outcome.steps == 4
    assert load_plan(run.folder).net is not None
    assert [record["step"] for record in run.records()] == [1, 2, 3, 1, 2, 3, 4]
