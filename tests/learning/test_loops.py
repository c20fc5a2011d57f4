"""Closed loops, and codes that start from their closed form."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.films import as_footage
from ullayers.exact.markov import closed_form, transitions
from ullayers.learning.codes import (
    RING_STEPS,
    CodeClips,
    CodeTrial,
    closes,
    ring_code,
    trained_outputs,
    turns,
)
from ullayers.learning.config import Config, Task
from ullayers.learning.footage import Footage, LongMean


def bar(angles: NDArray[np.float64], *, sides: int = 1, noise: float = 0.0) -> NDArray[np.uint8]:
    """Frames of a bar that looks the same from so many sides, at the given angles."""
    y, x = np.mgrid[-1:1:24j, -1:1:24j]
    around = np.arctan2(y, x)[None] - angles[:, None, None]
    image = 120 + 100 * np.cos(sides * around) * np.exp(-4 * (np.hypot(x, y) - 0.6) ** 2)
    image += noise * np.random.default_rng(0).standard_normal(image.shape)
    return np.repeat(image.clip(0, 255).astype(np.uint8)[..., None], 3, axis=3)


def tensor(frames: NDArray[np.uint8]) -> torch.Tensor:
    return as_footage(frames).pieces[0].clip.frames


@pytest.mark.parametrize("noise", [0.0, 3.0])
@pytest.mark.parametrize(("sides", "around", "expected"), [(1, 1, 1), (2, 1, 2), (1, 3, 3)])
def test_turns_are_counted(noise: float, sides: int, around: int, expected: int) -> None:
    angles = 2 * np.pi * around * np.arange(72) / 72
    frames = tensor(bar(angles, sides=sides, noise=noise))
    assert closes(frames)
    assert turns(frames) == expected


def test_every_third_view_left_out_still_closes() -> None:
    """Steps of 5 and 10 degrees alternate, and the seam is one of 10 degrees."""
    views = np.arange(72)
    frames = tensor(bar(2 * np.pi * views[views % 3 != 2] / 72))
    assert closes(frames)
    assert turns(frames) == 1


def test_part_of_a_turn_does_not_close() -> None:
    assert not closes(tensor(bar(np.linspace(0, 1.6 * np.pi, 60))))


def test_the_ring_is_the_closed_form_of_its_chain() -> None:
    states = np.arange(20 * 36 + 1) % 36
    exact = closed_form(transitions(states), d=2).embedding
    ring = ring_code(torch.arange(36).double(), 36).numpy()
    fitted = ring @ np.linalg.lstsq(ring, exact, rcond=None)[0]
    np.testing.assert_allclose(fitted, exact, atol=1e-6 * np.abs(exact).max())


def test_only_a_single_loop_has_a_closed_form() -> None:
    turn = bar(2 * np.pi * np.arange(48) / 48)
    config = Config(task="orient").resolved(many=True)
    assert CodeClips(as_footage(turn), config).frames_per_turn == 48
    [piece] = as_footage(turn).pieces
    two = Footage(["a", "b"], [piece, replace(piece, source=1)], {}, 96)
    assert CodeClips(two, config).is_loop == [True, True]
    assert CodeClips(two, config).frames_per_turn is None
    assert CodeClips(as_footage(turn[:30]), config).frames_per_turn is None


def test_the_code_of_a_turn_goes_around_once() -> None:
    """From these weights and without the closed form, the code of this turn is folded."""
    angles = 2 * np.pi * np.arange(48) / 48
    lopsided = bar(angles, sides=2) // 2 + bar(angles) // 6  # nearly the same from two sides
    config = Config(task="orient", device="cpu").resolved(many=False)
    trial = CodeTrial(as_footage(lopsided), config, "stream", seed=0)
    assert trial.clips.frames_per_turn == 48
    for _ in range(RING_STEPS):
        trial.step()
    trial.finish()
    folded = trial.folded()
    assert folded is not None
    assert folded < 0.1


@pytest.mark.parametrize(
    ("task", "turn", "kind", "outputs"),
    [
        ("orient", 1.6, "stream", 16),
        ("orient", 2.0, "stream", 2),  # its code is known
        ("orient", 1.6, "clip", 2),  # short clips of many sequences
        ("features", 2.0, "stream", 16),
    ],
)
def test_outputs_that_are_trained(task: Task, turn: float, kind: LongMean, outputs: int) -> None:
    frames = bar(np.linspace(0, turn * np.pi, 60, endpoint=False))
    config = Config(task=task).resolved(many=kind == "clip")
    footage = as_footage(frames)
    assert trained_outputs(config, kind, CodeClips(footage, config)) == outputs
    net = CodeTrial(footage, config, kind, 0).net
    assert len(net.full.bias) == outputs
    assert len(net.readout) == 2
