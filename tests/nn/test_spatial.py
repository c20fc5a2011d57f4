"""Moments of a mask, and learning with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ullayers as ul


def test_moments_of_a_box() -> None:
    mask = torch.zeros(2, 20, 40)
    mask[0, 5:10, 10:30] = 3.0
    mask[1, 0, 0] = 1e-3
    centroid, spread = ul.mask_moments(mask)
    torch.testing.assert_close(centroid[0], torch.tensor([0.5, 0.375]))
    expected = torch.diag(torch.tensor([(20**2 - 1) / 12 / 40**2, (5**2 - 1) / 12 / 20**2]))
    torch.testing.assert_close(spread[0], expected)
    torch.testing.assert_close(centroid[1], torch.tensor([0.0125, 0.025]))
    torch.testing.assert_close(spread[1], torch.zeros(2, 2))


def test_tilted_mask_has_covariance() -> None:
    _, spread = ul.mask_moments(torch.eye(16))
    assert spread[0, 1] > 0
    torch.testing.assert_close(spread[0, 1], spread[0, 0])
    _, flipped = ul.mask_moments(torch.eye(16).flip(0))
    torch.testing.assert_close(flipped[0, 1], -spread[0, 0])


def test_empty_mask_counts_as_uniform() -> None:
    centroid, spread = ul.mask_moments(torch.zeros(4, 4, requires_grad=True))
    torch.testing.assert_close(centroid, torch.tensor([0.5, 0.5]))
    (centroid.sum() + spread.sum()).backward()


def test_gradients_are_right_and_half_precision_is_widened() -> None:
    torch.manual_seed(0)
    mask = torch.rand(2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(ul.mask_moments, mask)
    assert ul.mask_moments(torch.rand(3, 4).bfloat16())[0].dtype == torch.float32


def test_bad_masks() -> None:
    with pytest.raises(ValueError, match=r"got torch.float32 \(5,\)"):
        ul.mask_moments(torch.rand(5))
    with pytest.raises(ValueError, match=r"\(0, 4\)"):
        ul.mask_moments(torch.rand(0, 4))
    with pytest.raises(ValueError, match=r"got torch\.int64"):
        ul.mask_moments(torch.ones(5, 5, dtype=torch.int64))


def spot_video(steps: int) -> tuple[Tensor, Tensor]:
    """Return a bright spot that moves over a noisy background, and its path from 0 to 1."""
    torch.manual_seed(0)
    t = torch.arange(steps)
    path = torch.stack([0.5 + 0.3 * (t / 17).sin(), 0.5 + 0.3 * (t / 23).cos()], 1)
    x = (torch.arange(24) + 0.5) / 24
    spot = torch.exp(-((x - path[:, :1]) ** 2)[:, None, :] / 0.005) * torch.exp(
        -((x - path[:, 1:]) ** 2)[:, :, None] / 0.005
    )
    return (spot + 0.1 * torch.randn(steps, 24, 24))[:, None], path


class MaskNet(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.logits = nn.Sequential(nn.Conv2d(1, 4, 5, padding=2), nn.Tanh(), nn.Conv2d(4, 1, 1))
        self.cost = ul.UL1d(2, mu=0.3)

    def forward(self, video: Tensor, *, spatial: bool) -> tuple[Tensor, Tensor]:
        mask = self.logits(video).flatten(1).softmax(1).view(-1, 24, 24)
        centroid, spread = ul.mask_moments(mask)
        return self.cost(centroid, spread if spatial else None), spread


def learn(seed: int, *, spatial: bool) -> tuple[float, float, float]:
    """Return J, median distance to the path and mean radius of the mask after learning."""
    video, path = spot_video(400)
    net = MaskNet(seed)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    for _ in range(10):
        for frames in video.split(40):
            optimizer.zero_grad()
            ul.backward(net(frames, spatial=spatial)[0])
            optimizer.step()
    with torch.no_grad():
        centroid, spread = net.eval()(video, spatial=spatial)
    distance = float((centroid - path).norm(dim=1).median())
    radius = float(spread.diagonal(dim1=1, dim2=2).sum(1).sqrt().mean())
    return float(net.cost.objective), distance, radius


def test_mask_finds_the_object_and_j_tells_the_good_run() -> None:
    """Some initialisations find everything but the object; their J is higher."""
    runs = sorted(learn(seed, spatial=True) for seed in range(4))
    assert runs[0][1] < 1 / 24  # within a pixel
    assert runs[-1][1] > 0.2
    assert runs[-1][0] > runs[0][0] + 1
    assert all(distance < 1 / 24 for j, distance, _ in runs if j < runs[0][0] + 1)


def radius_of_free_masks(*, spatial: bool) -> float:
    """Return masks that are parameters themselves, initially wide around a moving point."""
    _, path = spot_video(40)
    x = (torch.arange(24) + 0.5) / 24
    across, down = (x - path[:, :1]) ** 2, (x - path[:, 1:]) ** 2
    logits = (-(across[:, None, :] + down[:, :, None]) / 0.1).requires_grad_()
    cost = ul.UL1d(2, mu=0.3)
    optimizer = torch.optim.Adam([logits], lr=0.1)
    for _ in range(150):
        centroid, spread = ul.mask_moments(logits.flatten(1).softmax(1).view(-1, 24, 24))
        optimizer.zero_grad()
        with ul.sequences(cost):
            ul.backward(cost(centroid, spread if spatial else None))
        optimizer.step()
    return float(spread.detach().diagonal(dim1=1, dim2=2).sum(1).sqrt().mean())


def test_spatial_scatter_makes_masks_compact() -> None:
    assert radius_of_free_masks(spatial=True) < radius_of_free_masks(spatial=False) / 2


def test_scatter_works_with_sequences_and_lengths() -> None:
    torch.manual_seed(0)
    centroid = torch.rand(9, 2, requires_grad=True)
    root = torch.randn(9, 2, 2)
    spread = (root @ root.mT).requires_grad_()
    layer = ul.UL1d(2)
    with ul.sequences(layer, lengths=[4, 5]):
        ul.backward(layer(centroid, spread))
    assert spread.grad is not None
    gradient = spread.grad
    assert torch.equal(gradient[[0, 4]], torch.zeros(2, 2, 2))  # no past, no W yet
    assert bool((torch.linalg.eigvalsh(gradient[[1, 2, 3, 5, 6, 7, 8]]) > 0).all())


@pytest.mark.parametrize("kind", ["running", "fresh"])
def test_only_the_symmetric_part_of_a_scatter_counts(kind: Any) -> None:
    """W is symmetric, so every kernel must treat both triangles of a scatter alike."""
    torch.manual_seed(0)
    y, root = torch.randn(9, 3), torch.randn(9, 3, 3)
    symmetric, lopsided = root @ root.mT, torch.triu(torch.randn(9, 3, 3), 1)
    found = []
    for scatter in (symmetric, symmetric + lopsided - lopsided.mT):
        layer = ul.UL1d(3, statistics=kind)
        code, spread = y.clone().requires_grad_(), scatter.requires_grad_()
        ul.backward(layer(code, spread))
        assert torch.equal(layer.short_cov, layer.short_cov.T)
        found.append((code.grad, spread.grad, layer.short_cov))
    torch.testing.assert_close(found[1], found[0])


def test_huge_entries_do_not_overflow() -> None:
    torch.manual_seed(0)
    mask = torch.rand(4, 6)
    huge = (mask * 1e38).requires_grad_()
    found = ul.mask_moments(huge)
    torch.testing.assert_close(found, ul.mask_moments(mask))
    (found[0].sum() + found[1].sum()).backward()
    assert huge.grad is not None
    assert bool(huge.grad.isfinite().all())


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_bad_pixel_gives_nan_for_its_mask_alone(bad: float) -> None:
    masks = torch.ones(2, 4, 6)
    masks[1, 2, 3] = bad
    centroid, spread = ul.mask_moments(masks)
    assert bool(centroid[0].isfinite().all() and spread[0].isfinite().all())
    assert bool(centroid[1].isnan().all() and spread[1].isnan().all())


def test_masks_must_be_tensors() -> None:
    mask: Any = np.ones((4, 6))
    with pytest.raises(TypeError, match=r"expected a tensor .* got ndarray"):
        ul.mask_moments(mask)
