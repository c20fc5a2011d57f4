"""Parts of the experiments that decode an angle: rotating points, a head and objects."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import experiments.paper.inplane as turn_codes
import experiments.paper.synthetic as synthetic
from tests.real_data import DATA


def test_points_turn_in_their_plane_with_the_noise_asked_for() -> None:
    clean = synthetic.turning_points(0.0, seed=3)
    inside = clean.frames @ clean.plane @ clean.plane.T
    np.testing.assert_allclose(inside, clean.frames, atol=1e-12)
    np.testing.assert_allclose(clean.frames[0], clean.frames[synthetic.FRAMES_PER_TURN], atol=1e-12)
    halfway = synthetic.turning_points(0.5, seed=3)
    noise = halfway.frames - clean.frames / 2
    assert noise.std() == pytest.approx(clean.frames.std() / 2, rel=0.02)


def test_no_noise_proves_nothing_but_the_overlap_does() -> None:
    train, test = synthetic.turning_points(0.0, seed=0).halves()
    guess = np.random.default_rng(0).standard_normal((2, 2 * synthetic.POINTS))
    assert synthetic._error(synthetic._projection(guess), train, test) < 1e-9
    assert synthetic._overlap(guess, train.plane) < 0.2
    *_, learned = synthetic.learn_as_paper(torch.from_numpy(train.frames).float(), epochs=1)
    assert synthetic._overlap(learned, train.plane) > 0.95


@pytest.mark.data
def test_every_third_frame_is_held_out_and_never_learned_from() -> None:
    turn = turn_codes.read_turn(str(DATA), turn_codes.HEAD)
    assert turn.degrees[~turn.known].tolist() == list(range(10, 360, 15))
    assert len(turn.training) == 48
    for frame in turn.frames[torch.from_numpy(~turn.known)]:
        assert not (turn.training == frame).flatten(1).all(1).any()
