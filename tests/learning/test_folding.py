"""Codes of a closed loop that give different pictures the same code."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.films import as_footage
from ullayers.learning.codes import CodeTrial, folded_share
from ullayers.learning.config import Config, Task

TURN = torch.arange(72) * 2 * torch.pi / 72


def ring(times: int = 1) -> Tensor:
    return torch.stack([(times * TURN).cos(), (times * TURN).sin()], 1)


def pictures(sides: int, noise: float = 0.0) -> Tensor:
    """A bar with a bright spot at one end, or at both, that turns once."""
    y, x = torch.meshgrid(*[torch.arange(32) - 15.5] * 2, indexing="ij")
    cosine, sine = TURN.cos()[:, None, None], TURN.sin()[:, None, None]
    along, across = x * cosine + y * sine, y * cosine - x * sine
    bar = (14 - along.abs()).clamp(0, 1) * (5 - across.abs()).clamp(0, 1)
    spots = (along > 4) | ((along < -4) & (sides == 2))
    generator = torch.Generator().manual_seed(0)
    clean = 40 + 100 * bar + 80 * bar * spots
    return (
        (clean + noise * torch.randn(clean.shape, generator=generator))
        .clamp(0, 255)
        .byte()[:, None]
    )


@pytest.mark.parametrize("noise", [0.0, 8.0])
def test_a_code_that_goes_round_twice_is_folded_unless_the_object_is_symmetric(
    noise: float,
) -> None:
    assert folded_share(ring(1), pictures(1, noise)) == 0
    assert folded_share(ring(2), pictures(1, noise)) > 0.9
    assert folded_share(ring(2), pictures(2, noise)) < 0.1


def test_a_code_that_goes_forth_and_back_is_folded() -> None:
    flat = ring() * torch.tensor([1.0, 0.02])
    assert folded_share(flat, pictures(1)) > 0.5


def test_noise_in_a_code_is_not_a_fold() -> None:
    noise = 0.1 * torch.randn(72, 2, generator=torch.Generator().manual_seed(0))
    assert folded_share(ring() + noise, pictures(1)) < 0.1


@pytest.mark.parametrize(("task", "known"), [("orient", True), ("features", False)])
def test_only_codes_of_the_orientation_are_checked(task: Task, known: bool) -> None:
    frames = pictures(1)[:, 0, :, :, None].expand(-1, -1, -1, 3).numpy()
    config = Config(task=task, batch=2, clip=12).resolved(many=False)
    trial = CodeTrial(as_footage(np.ascontiguousarray(frames)), config, "stream", 0)
    trial.finish()
    assert (trial.folded() is not None) == known
