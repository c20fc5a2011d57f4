"""A square cut out of every frame, around what moves in it."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from ullayers.nn.spatial import blurred
from ullayers.video.camera_motion import backdrop, find_path, foreground
from ullayers.video.frames import Clip

SIDE = 48  # pixels of a square that a network sees
BLUR = 5  # pixels over which energy is averaged
SMALL = 64  # pixels of the longer side, enough to see whether the camera moves
FINER = 2  # samples per pixel of the cut-out, each way, against aliasing


def follow(clip: Clip, side: int = SIDE) -> Clip:
    """Cut a square of `side` pixels around what moves out of every frame.

    It is centred on the frame's own foreground and as large as the foreground of the whole clip
    reaches, so that a thing keeps its size while it turns.

    Args:
        clip: consecutive frames.
        side: of the squares.

    Example:
        >>> frames = torch.zeros(9, 1, 60, 80, dtype=torch.uint8)
        >>> for t in range(9):
        ...     frames[t, :, 20:30, 5 * t : 5 * t + 10] = 200
        >>> small = follow(Clip(frames, torch.arange(9.0), torch.arange(9)), 16)
        >>> small.frames.shape, bool((small.frames[:, 0, 8, 8] > 150).all())
        (torch.Size([9, 1, 16, 16]), True)
    """
    frames = clip.frames.float() / 255
    path = _path(frames)
    moved = foreground(frames, backdrop(frames, path), path).square().sum(1, keepdim=True)
    energy = blurred(moved, BLUR)[:, 0]
    centre, _ = _moments(energy)
    _, variance = _moments(energy.mean(0, keepdim=True))
    radius = variance.sum().sqrt().clamp(min=side / 8)  # of one that hardly moves there is no size
    return replace(clip, frames=cut_squares(clip.frames, centre, radius.expand(len(frames)), side))


def cut_squares(frames: Tensor, centre: Tensor, radius: Tensor, side: int) -> Tensor:
    """Squares of uint8 frames; beyond its edge a picture goes on as it ends there.

    Args:
        frames: (time, channels, height, width) uint8.
        centre: (time, 2) x and y of the squares, in pixels.
        radius: (time,) half their sides, in pixels.
        side: of what is returned, in pixels of its own.
    """
    height, width = frames.shape[-2:]
    fine = side * FINER
    steps = ((torch.arange(fine) + 0.5) / fine - 0.5) * 2 * radius[:, None]
    x = (centre[:, :1] + steps) * 2 / width - 1
    y = (centre[:, 1:] + steps) * 2 / height - 1
    shape = (len(frames), fine, fine)
    grid = torch.stack([x[:, None].expand(shape), y[:, :, None].expand(shape)], -1)
    squares = F.grid_sample(frames.float(), grid, padding_mode="border", align_corners=False)
    return F.avg_pool2d(squares, FINER).round().clamp(0, 255).byte()


def _path(frames: Tensor) -> Tensor | None:
    """The camera's path, found in small copies of the frames."""
    factor = max(1.0, max(frames.shape[-2:]) / SMALL)
    small = F.interpolate(frames, scale_factor=1 / factor, mode="area")
    path = find_path(small)
    return None if path is None else path * factor


def _moments(energy: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance (time, 2) of x and y, in pixels; the middle where there is no energy."""
    height, width = energy.shape[-2:]
    x, y = torch.arange(width) + 0.5, torch.arange(height) + 0.5
    share = energy + 1e-12
    share = share / share.sum((1, 2), keepdim=True)
    columns, rows = share.sum(1), share.sum(2)
    mean = torch.stack([columns @ x, rows @ y], 1)
    away_x, away_y = (x - mean[:, :1]).square(), (y - mean[:, 1:]).square()
    return mean, torch.stack([(columns * away_x).sum(1), (rows * away_y).sum(1)], 1)
