"""Parts of the experiments on walking people and the thrown pillow."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import experiments.paper.pillow as pillow
import experiments.paper.runs as tracked
import experiments.paper.walk as walk
from experiments.datasets import Sequence
from ullayers.cli.main import main
from ullayers.learning.config import Config
from ullayers.tracks.table import TRACK


def test_codes_are_read_by_the_labels_of_the_first_frames_only() -> None:
    codes = [np.arange(6.0)[:, None], np.arange(4.0)[:, None] + 10]
    found = tracked.read_linearly(codes, [2 * codes[0][:3] + 1, np.zeros((0, 1))])
    np.testing.assert_allclose(np.concatenate(found), 2 * np.concatenate(codes) + 1)


def test_energy_is_where_something_moves() -> None:
    foreground = torch.zeros(2, 3, 20, 20)
    foreground[:, :, 6, 8] = 1.0
    [energy] = tracked.energies([foreground])
    assert energy.shape == (2, 1, 10, 10)
    torch.testing.assert_close(energy.mean((1, 2, 3)), torch.ones(2))
    assert energy[0, 0, 3, 4] > 5
    assert energy[0, 0, 8, 8] == 0


def test_second_halves_are_scored_whatever_was_shown() -> None:
    scene = Sequence("a", (Path("x"),) * 7, {"x": np.arange(7.0)})
    for places in (np.arange(7.0), np.arange(3.0, 7.0)):  # the whole, or the second half alone
        shown = tracked.Tracked([places[:, None]])
        found, true = walk.Walks([scene], {}).series(shown, "second")
        assert found[0].tolist() == true[0].tolist() == [3, 4, 5, 6]


def test_a_mirrored_track_is_turned() -> None:
    truth = np.linspace(0, 1, 5)[:, None]
    [found] = walk._unmirrored([1 - np.linspace(0, 1, 9)[:, None]], [truth])
    assert found[0, 0] < found[-1, 0]


def test_distances_count_where_the_truth_is_known() -> None:
    throw = Sequence("a", (Path("x"),) * 3, {"x": np.array([0.1, np.nan, 0.5]), "y": np.zeros(3)})
    found = np.array([[0.1, 0.3], [0.9, 0.9], [0.5, 0.1]])
    assert pillow.median_distance([throw], [found]) == pytest.approx(0.2)
    unknown = Sequence("b", (Path("x"),), {"x": np.array([np.nan]), "y": np.array([np.nan])})
    assert np.isnan(pillow.median_distance([unknown], [found[:1]]))


@pytest.fixture(scope="module")
def ball(tmp_path_factory: pytest.TempPathFactory) -> Sequence:
    """A ball that moves to the right in twelve pictures."""
    folder = tmp_path_factory.mktemp("ball")
    wall = np.random.default_rng(0).integers(60, 90, (48, 64, 3), np.uint8)
    for time in range(12):
        frame = wall.copy()
        frame[20:30, 4 + 4 * time : 14 + 4 * time] = 230
        Image.fromarray(frame).save(folder / f"{time:02d}.png")
    x = (9 + 4 * np.arange(12)) / 64
    return Sequence("ball", tuple(sorted(folder.iterdir())), {"x": x})


def test_ours_is_the_command_without_options(ball: Sequence, tmp_path: Path) -> None:
    options = ("--seed", "4", "--steps", "2", "--restarts", "1", "--quiet")
    with tracked.folder_of([ball]) as inputs:
        learn = ["learn", inputs, "--out", f"{tmp_path}/run", *options]
        assert main(learn) == 0
        assert main(["apply", learn[3], inputs, "--out", f"{tmp_path}/new", "--quiet"]) == 0
    said = np.genfromtxt(tmp_path / "new" / "tracks.csv", delimiter=",", names=True)
    run = tracked.learn([ball], Config(seed=4, steps=2, restarts=1))
    [found] = tracked.apply(run, [ball]).answers
    for name, values in zip(TRACK, found.values.T, strict=True):
        np.testing.assert_allclose(values, said[name], atol=2e-6)


def test_rows_without_training_find_what_moves(ball: Sequence) -> None:
    for found in (
        tracked.apply(tracked.untrained([ball], seed=0), [ball]),
        tracked.apply_without_network([ball]),
    ):
        assert np.abs(found.positions[0][:, 0] - ball.truth["x"]).max() < 0.05
        assert found.answers[0].masks is not None
        assert len(found.answers[0].masks) == len(ball)


def test_free_flight_of_noise_is_far_from_it() -> None:
    noise = np.random.default_rng(0).normal(size=(9, 2))
    assert np.square(noise - pillow.free_flight(noise)).mean() > 0.2
