"""The measures of `ul reproduce parts`, on units whose speed and invariance are known."""

from __future__ import annotations

import numpy as np
import torch

import experiments.paper.parts as parts
from experiments.paper.heads import Heads, videos
from ullayers.learning.networks import Encoder
from ullayers.nn.layers import UL2d


def test_units_that_go_on_firing_are_invariant() -> None:
    count = 40
    units = 0.1 * torch.rand(count, 13, 2, generator=torch.Generator().manual_seed(0))
    units[3, 4:9, 0] = 1.0  # fires for five pans in a row
    units[[1, 7, 13, 19, 25], 6, 1] = 1.0  # as often, but never twice in a row
    lasting, single = (parts._invariance(units[:, :, i : i + 1]) for i in (0, 1))
    assert lasting > 2 * single


def test_every_layer_is_scored() -> None:
    frames = torch.randint(0, 255, (2, 5, 13, 1, 48, 48), dtype=torch.uint8)
    heads = Heads(frames, np.linspace(-90, 90, 13), np.array([1, 2]))
    scores = parts.layer_scores(Encoder((48, 48)).eval(), heads, np.array([0, 1]))
    assert scores.shape == (4, 2)
    assert np.isfinite(scores).all()
    assert np.allclose(scores[:, 0], 2, atol=0.3)  # noise: a step is two variances


def test_local_layers_are_on_at_the_depths_asked_for() -> None:
    frames = torch.randint(0, 255, (1, 5, 13, 1, 48, 48), dtype=torch.uint8)
    heads = Heads(frames, np.linspace(-90, 90, 13), np.array([1]))
    footage = videos(heads, {1}, 0)
    trial = parts._trial(footage, "orient", {"local": (1,), "equal": True}, 0)
    layers = [layer for layer in trial.net.modules() if isinstance(layer, UL2d)]
    assert [layer.weight for layer in layers] == [0.0, parts.LOCAL, 0.0]
    assert {layer.mu for layer in layers} == {trial.config.mu}
