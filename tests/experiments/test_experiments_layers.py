"""Parts of the experiments with few labels and with layer-by-layer training."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import experiments.paper.layerwise as layerwise
import experiments.paper.recognise as recognise
from experiments.paper.recognise import Stages
from ullayers.nn.networks import backward, mu_by_depth

OBJECTS, VIEWS = 5, 72


@pytest.fixture
def frames() -> Tensor:
    """Objects that are noise of their own, and get brighter from view to view."""
    generator = torch.Generator().manual_seed(0)
    looks = torch.rand(OBJECTS, 1, 1, recognise.SIDE, recognise.SIDE, generator=generator)
    return looks + torch.arange(VIEWS)[:, None, None, None] / VIEWS


def gradients(net: Stages, x: Tensor) -> list[Tensor | None]:
    """Of the weights of every layer."""
    net.zero_grad()
    backward(*net(x))
    return [net.get_parameter(f"layers.{i}.weight").grad for i in range(len(net.layers))]


def test_isolated_layers_learn_from_their_own_signal_alone() -> None:
    x = torch.rand(40, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    layers: list[nn.Conv2d | nn.Linear] = [nn.Conv2d(1, 4, 3), nn.Linear(144, 2)]
    below, last = gradients(Stages(layers, {1: 1.0}, isolated=True, statistics="fresh"), x)
    assert below is not None
    assert not below.any()
    assert last is not None
    whole = gradients(Stages(layers, {1: 1.0}, statistics="fresh"), x)
    assert whole[0] is not None
    assert whole[0].any()
    torch.testing.assert_close(whole[1], last)
    own = gradients(Stages(layers, {0: 1.0, 1: 1.0}, isolated=True, statistics="fresh"), x)[0]
    first = Stages(layers[:1], {0: 1.0}, statistics="fresh")
    mu_by_depth(first, farthest=0.9)  # as the nearer of two
    torch.testing.assert_close(own, gradients(first, x)[0])


def test_frozen_layers_stay_and_the_last_one_learns() -> None:
    torch.manual_seed(0)
    net = layerwise.build(
        [nn.Linear(6, 4), nn.Linear(4, 2)], layerwise.METHODS[layerwise.ONLY], "stream"
    )
    outputs = layerwise._trained(net(torch.rand(50, 6)))
    assert len(outputs) == 1
    backward(*outputs)
    below, last = (net.get_parameter(f"layers.{i}.weight").grad for i in (0, 1))
    assert below is None
    assert last is not None
    assert last.norm() > 0


@pytest.mark.parametrize("count", recognise.COUNTS)
def test_views_are_labelled_shown_or_held_out(frames: Tensor, count: int) -> None:
    views = recognise.split(frames, count, seed=3)
    assert views.labelled.shape == (OBJECTS, count)
    assert np.isin(views.labelled, views.video).all()
    assert sorted([*views.video, *views.held_out]) == list(range(VIEWS))
    degrees = np.sort(views.labelled, 1) * 360 / VIEWS
    gaps = np.diff(np.concatenate([degrees, degrees[:, :1] + 360], 1))
    np.testing.assert_allclose(gaps, 360 / count, atol=5)  # evenly, but for held-out views
    other = recognise.split(frames, count, seed=4)
    assert (views.labelled != other.labelled).any()


def test_each_clip_shows_consecutive_views_of_one_object(frames: Tensor) -> None:
    views = recognise.split(frames, 1, seed=0)
    clips = recognise.draw(views, torch.Generator().manual_seed(1))
    clips = clips.unflatten(0, (OBJECTS, recognise.CLIP))
    for clip, turn in zip(clips, views.frames, strict=True):
        shown = torch.cdist(clip.flatten(1), turn.flatten(1)).argmin(1).numpy()
        places = np.searchsorted(views.video, shown)
        assert (views.video[places] == shown).all()  # nothing that is held out
        assert (np.diff(places) % len(views.video) == 1).all()


def test_labels_that_only_read_change_nothing_that_is_learned(frames: Tensor) -> None:
    recipe = recognise.RECIPES[recognise.UNLABELLED]
    one, four = (
        recognise.learn(recognise.split(frames, count, seed=0), recipe, seed=0, steps=2)
        for count in (1, 4)
    )
    for a, b in zip(one.parameters(), four.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_the_metric_of_w_tells_what_is_slow_from_what_is_large(frames: Tensor) -> None:
    views = recognise.split(frames, 1, seed=0)
    generator = torch.Generator().manual_seed(0)
    codes = torch.randn(OBJECTS, VIEWS, 2, generator=generator)
    codes[..., 0] *= 5  # noise
    codes[..., 1] = torch.arange(OBJECTS)[:, None] + 0.01 * codes[..., 1]
    metric = recognise.slow_metric(codes[:, views.video])
    assert min(recognise.nearest(views, codes @ metric)) == 100
    assert max(recognise.nearest(views, codes)) < 50


def test_a_constant_code_recognises_by_chance(frames: Tensor) -> None:
    views = recognise.split(frames, 2, seed=0)
    codes = torch.ones(OBJECTS, VIEWS, 3)
    metric = recognise.slow_metric(codes[:, views.video])
    assert recognise.nearest(views, codes @ metric) == pytest.approx((100 / OBJECTS,) * 2)


def test_coherence_wants_clips_constant_and_apart() -> None:
    generator = torch.Generator().manual_seed(0)
    apart = 50 * torch.arange(20.0).view(20, 1, 1).expand(20, 6, 4)
    same = torch.zeros(20, 6, 4)
    for absolute in (True, False):
        assert recognise.coherence(same, absolute, generator) == recognise.MARGIN
        assert recognise.coherence(apart, absolute, generator) < recognise.MARGIN / 2
    steps = torch.arange(6.0).view(1, 6, 1).expand(20, 6, 4)
    assert recognise.coherence(100 * steps, True, generator) >= 400  # four units, 100 a frame


def test_the_score_of_the_blob_is_that_of_its_place() -> None:
    _, positions = layerwise.blob(0)
    assert (
        layerwise.explained(positions @ np.array([[2.0, 1.0], [0.5, 3.0]]) + 7, positions) > 0.999
    )
    noise = np.random.default_rng(0).standard_normal(positions.shape)
    assert abs(layerwise.explained(noise, positions)) < 0.05
