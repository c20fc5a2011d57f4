"""Baselines must work where they should; otherwise comparisons with them mean nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import experiments.baselines as baselines
from experiments.baselines import moving_centroids
from experiments.common import correlation
from ullayers.learning.config import Config


def moving_square(frames: int = 30, side: int = 32, start: int = 0) -> np.ndarray:
    """(frames, side, side) with a bright square of 4 pixels that moves a pixel a frame."""
    video = np.zeros((frames, side, side), np.uint8)
    for t in range(frames):
        left = (start + t) % (side - 4)
        video[t, 10:14, left : left + 4] = 255
    return video


@pytest.mark.parametrize("degree", [1, 2])
def test_slow_features_find_a_slow_signal_among_fast_ones(degree: int) -> None:
    random = np.random.default_rng(0)
    time = np.arange(1200)
    slow, fast = np.sin(time / 60), random.choice([-1.0, 1.0], 1200)
    # For degree 2 the slow signal is seen only in a product of two fast ones.
    seen = [slow, fast] if degree == 1 else [slow * fast, fast]
    pixels = np.stack(seen, 1) @ random.normal(size=(2, 40)) + 1e-3 * random.normal(size=(1200, 40))
    code = baselines.slow_codes([pixels[:600], pixels[600:900]], 1, degree=degree, components=4)
    assert abs(correlation(code(pixels[900:])[:, 0], slow[900:])) > 0.97


def test_slow_features_see_no_step_between_sequences() -> None:
    random = np.random.default_rng(1)
    slow = np.repeat([0.0, 5.0], 100)  # constant within each sequence: as slow as can be
    pixels = np.stack([slow, random.normal(size=200)], 1)
    code = baselines.slow_codes([pixels[:100], pixels[100:]], 1)(pixels)
    assert abs(correlation(code[:, 0], slow)) > 0.999


def test_closed_form_follows_the_pictures_and_not_the_clock() -> None:
    place = 0.5 + 0.45 * np.sin(np.arange(300) / 11)  # back and forth, nine times over
    pixels = np.exp(-((place[:, None] - np.linspace(0, 1, 30)) ** 2) / 0.01)
    code = baselines.similarity_codes([pixels[:120], pixels[120:200]], 1)
    assert abs(correlation(code(pixels[200:])[:, 0], place[200:])) > 0.95
    assert abs(correlation(code(pixels[:200])[:, 0], np.arange(200.0))) < 0.3


def test_closed_form_links_parts_that_fall_apart() -> None:
    random = np.random.default_rng(0)
    parts = [random.normal(size=(30, 5)) + 100 * i for i in range(3)]
    assert np.isfinite(baselines.similarity_codes(parts, 2, neighbours=3)(parts[1])).all()


def test_a_frame_unlike_all_others_still_has_a_code() -> None:
    pixels = np.random.default_rng(0).normal(size=(50, 8))
    code = baselines.similarity_codes([pixels], 2)(1e3 * np.ones((1, 8)))
    assert np.isfinite(code).all()


@pytest.mark.parametrize("curvature", [0.0, 0.3])
def test_physics_error_is_zero_for_what_physics_allows(curvature: float) -> None:
    time = torch.arange(5.0)
    allowed = torch.stack([a + b * time + curvature * time**2 / 2 for a, b in ((3, -1), (0.5, 2))])
    assert float(baselines.physics_error(allowed, curvature)) < 1e-5
    noise = torch.randn(64, 5, generator=torch.Generator().manual_seed(0))
    assert float(baselines.physics_error(noise, curvature)) > 0.3


def test_a_constant_does_not_fall() -> None:
    still = torch.full((4, 5), 2.0)
    assert float(baselines.physics_error(still)) < 1e-5
    assert float(baselines.physics_error(still, 0.5)) > 0.1


def test_physics_finds_what_moves_at_constant_velocity() -> None:
    video = np.concatenate([moving_square(28, start=0)] * 2)[:, None] / np.float32(255)
    clips = [torch.from_numpy(video[:28]), torch.from_numpy(video[5:25])]
    net = baselines.learn_physics(clips, window=15, steps=100, batch=4, seed=0)
    with torch.no_grad():
        found = net(clips[0])[:, 0].numpy()
    assert abs(correlation(found, np.arange(28.0))) > 0.95
    assert np.ptp(found) > 0.2


def test_physics_is_the_same_again() -> None:
    clip = torch.from_numpy(moving_square(10)[:, None] / np.float32(255))
    once, again = (baselines.learn_physics([clip], (0.0, 0.05), steps=3, seed=7) for _ in range(2))
    for a, b in zip(once.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)


def test_background_subtraction_finds_a_moving_square() -> None:
    frames = np.repeat(moving_square(28)[..., None], 3, -1)
    x, y = moving_centroids(frames).T
    assert np.abs(x - (np.arange(28) + 2) / 32).max() < 0.03
    assert np.abs(y - 12 / 32).max() < 0.03


def test_background_subtraction_where_nothing_moves() -> None:
    assert (moving_centroids(np.full((5, 16, 16, 3), 90, np.uint8)) == 0.5).all()


def test_supervision_learns_where_labels_are_known() -> None:
    video = torch.from_numpy(moving_square(28)[:, None] / np.float32(255))
    truth = ((np.arange(28.0) + 2) / 32)[:, None]
    partly = truth.copy()
    partly[::3] = np.nan
    torch.manual_seed(0)
    net = baselines.PositionNet((32, 32), 1, 1)
    baselines.learn_supervised(net, net, [video[:10], video[10:]], [partly[:10], partly[10:]])
    assert not net.training
    with torch.no_grad():
        assert float(np.abs(net(video).numpy() - truth).mean()) < 0.05


def test_position_net_takes_any_size() -> None:
    assert baselines.PositionNet((45, 70), 1, 3)(torch.rand(2, 1, 45, 70)).shape == (2, 3)


@pytest.mark.parametrize("task", ["locate", "orient"])
def test_random_weights_depend_on_the_seed_alone(task: str) -> None:
    config = Config(task=task)  # type: ignore[arg-type]

    def state(seed: int) -> list[torch.Tensor]:
        net: nn.Module = baselines.random_weights(config, "clip", 1, (48, 48), seed)
        return list(net.state_dict().values())

    before = torch.get_rng_state()
    same, other = zip(state(0), state(0), strict=True), zip(state(0), state(1), strict=True)
    assert all(torch.equal(a, b) for a, b in same)
    assert not all(torch.equal(a, b) for a, b in other)
    assert torch.equal(before, torch.get_rng_state())
