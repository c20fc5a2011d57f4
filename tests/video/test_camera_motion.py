"""The camera's path: found where it moves, nothing where it stands."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ullayers.video.camera.motion import backdrop, camera_path, foreground


def scene(height: int, width: int) -> Tensor:
    """A random texture with structure at several scales."""
    torch.manual_seed(0)
    sizes = ((height // 8, width // 8), (height // 3, width // 3))
    layers = [F.interpolate(torch.rand(1, 3, *s), (height, width), mode="bicubic") for s in sizes]
    return torch.stack(layers).mean(0).clamp(0, 1)


def filmed(path: Tensor, *, noise: float = 0.02, ball: bool = True) -> Tensor:
    """A 48 x 64 window on the scene that follows `path`, with a bright ball crossing it."""
    wide = F.interpolate(scene(80, 120), scale_factor=4, mode="bicubic")
    frames = []
    for t, (down, right) in enumerate(path.tolist()):
        top, left = round((16 - down) * 4), round((28 - right) * 4)
        frame = F.avg_pool2d(wide[..., top : top + 192, left : left + 256], 4)[0]
        if ball:
            x, y = torch.arange(64), torch.arange(48)[:, None]
            hit = (x - (4 + 2 * t)) ** 2 + (y - 24) ** 2 < 36
            frame = torch.where(hit, torch.tensor([1.0, 0.2, 0.1])[:, None, None], frame)
        frames.append(frame + noise * torch.randn_like(frame))
    return torch.stack(frames)


def test_static_camera_is_left_alone() -> None:
    path = camera_path(filmed(torch.zeros(25, 2)))
    assert torch.equal(path, torch.zeros(25, 2))


@pytest.mark.parametrize(("down", "right"), [(0.0, 0.75), (0.0, -0.75), (0.5, 0.25), (-0.25, 1.0)])
def test_pan_is_found(down: float, right: float) -> None:
    truth = torch.arange(16)[:, None] * torch.tensor([down, right])
    path = camera_path(filmed(truth))
    assert float((path - truth).abs().max()) < 1  # errors add up over 15 pairs


def test_still_pictures_and_single_frames() -> None:
    assert torch.equal(camera_path(torch.rand(1, 3, 8, 8)), torch.zeros(1, 2))
    assert torch.equal(camera_path(torch.full((4, 1, 16, 16), 0.3)), torch.zeros(4, 2))
    with pytest.raises(ValueError, match="uint8"):
        camera_path(torch.zeros(3, 1, 8, 8, dtype=torch.uint8))


@pytest.mark.parametrize("right", [0.0, 0.75])
def test_foreground_is_the_ball(right: float) -> None:
    truth = torch.arange(24)[:, None] * torch.tensor([0.0, right])
    frames = filmed(truth)
    path = camera_path(frames)
    energy = foreground(frames, backdrop(frames, path), path).square().sum(1)
    x = torch.arange(64.0)
    centre = ((energy**2).sum(1) @ x) / (energy**2).sum((1, 2))
    expected = 4.0 + 2 * torch.arange(24)
    assert float((centre - expected)[2:].abs().median()) < 1.5


def test_without_its_path_a_pan_drowns_the_ball() -> None:
    frames = filmed(torch.arange(24)[:, None] * torch.tensor([0.0, 0.75]))
    path = camera_path(frames)
    still, moved = (foreground(frames, backdrop(frames, p), p) for p in (None, path))
    corner = (..., slice(0, 12), slice(20, 60))  # the ball never gets here
    assert float(moved[corner].square().mean()) < 0.25 * float(still[corner].square().mean())


def test_a_part_of_the_frames_has_the_same_foreground() -> None:
    frames = filmed(torch.arange(24)[:, None] * torch.tensor([0.25, 0.75]))
    path = camera_path(frames)
    behind = backdrop(frames, path)
    whole = foreground(frames, behind, path)
    assert torch.equal(foreground(frames[5:9], behind, path[5:9]), whole[5:9])
    with pytest.raises(ValueError, match="path with a background larger"):
        foreground(frames, behind)


@pytest.mark.parametrize("pan", [(0, 60), (24, 30)])
def test_a_pan_in_a_long_recording_is_not_overlooked(pan: tuple[int, int]) -> None:
    """Long recordings are looked at in samples first; a slow and a short pan must both show."""
    moving = ((torch.arange(64) >= pan[0]) & (torch.arange(64) < pan[1])).float()
    truth = torch.outer(moving.cumsum(0), torch.tensor([0.0, 0.25]))
    path = camera_path(filmed(truth, ball=False))
    assert float((path[-1] - truth[-1]).abs().max()) < 1
    assert float(path.abs().max()) > 0.5
