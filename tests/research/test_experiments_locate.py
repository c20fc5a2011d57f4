"""Parts of the experiments on walking people and the thrown pillow."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

import ullayers.research.experiments.pillow as pillow
import ullayers.research.experiments.tracked as tracked
import ullayers.research.experiments.walk as walk
from ullayers.research.datasets import Sequence


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


def test_free_flight_of_noise_is_far_from_it() -> None:
    noise = np.random.default_rng(0).normal(size=(9, 2))
    assert np.square(noise - pillow.free_flight(noise)).mean() > 0.2
