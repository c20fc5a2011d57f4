"""A moving camera, found and taken out: where the background went, and what moved before it.

A shift between two frames is believed only where it explains the picture clearly better than
standing still, so that a static camera is left alone however much moves in front of it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

CANDIDATES = 4  # peaks of the phase correlation that are tried
BELIEVED = 0.9  # a shift must lower the median residual at least to this share
FARTHEST = 0.25  # of the picture's sides, between two frames
REFINEMENTS = (0.5, 0.25, 0.1)  # pixels


def camera_path(frames: Tensor) -> Tensor:
    """How far the background has moved since the first frame.

    Args:
        frames: (time, channels, height, width), floating point, consecutive.

    Returns:
        (time, 2): down and right, in pixels; zeros for a static camera.

    Example:
        >>> import torch
        >>> _ = torch.manual_seed(0)
        >>> scene = torch.rand(1, 3, 40, 60)
        >>> frames = torch.cat([scene[..., 5:45], scene[..., 3:43]])  # it comes in from the left
        >>> camera_path(frames).round().tolist()
        [[0.0, 0.0], [0.0, 2.0]]
    """
    if frames.ndim != 4 or not frames.is_floating_point():
        raise ValueError(
            "expected floating point frames (time, channels, height, width), got "
            f"{frames.dtype} {tuple(frames.shape)}"
        )
    if len(frames) < 2:
        return frames.new_zeros(len(frames), 2)
    before, after = frames[:-1], frames[1:]
    still = _residual(before, after, frames.new_zeros(len(before), 2))
    best, score = frames.new_zeros(len(before), 2), still
    for shift in _correlation_peaks(before.mean(1), after.mean(1)).unbind(1):
        best, score = _better(before, after, shift, best, score)
    for step in REFINEMENTS:
        centre = best
        for down in (-step, 0.0, step):
            for right in (-step, 0.0, step):
                moved = centre + centre.new_tensor([down, right])
                best, score = _better(before, after, moved, best, score)
    shift = torch.where((score < BELIEVED * still)[:, None], best, 0)
    return torch.cat([shift.new_zeros(1, 2), shift]).cumsum(0)


def foreground(frames: Tensor, path: Tensor | None = None) -> Tensor:
    """What differs from the background: frames minus their median along the camera's path.

    Args:
        frames: (time, channels, height, width), floating point.
        path: from `camera_path`; None for a static camera.

    Returns:
        the same shape; zero where the background was never seen without the object.

    Example:
        >>> import torch
        >>> frames = torch.zeros(5, 1, 4, 4)
        >>> frames[2, 0, 1, 1] = 1.0
        >>> foreground(frames).sum((1, 2, 3)).tolist()
        [0.0, 0.0, 1.0, 0.0, 0.0]
    """
    if path is None or not bool((path != 0).any()):
        return frames - frames.median(0).values
    reach = (path.amax(0) - path.amin(0)).ceil().int().tolist()
    down, right = reach
    canvas = F.pad(frames, (right, right, down, down), value=torch.nan)
    background = _moved(canvas, -path).nanmedian(0).values
    seen = _moved(background.expand_as(canvas), path)
    height, width = frames.shape[-2:]
    behind = seen[..., down : down + height, right : right + width]
    return torch.nan_to_num(frames - behind)


def _better(
    before: Tensor, after: Tensor, shift: Tensor, best: Tensor, score: Tensor
) -> tuple[Tensor, Tensor]:
    """For each pair keep the shift with the smaller residual."""
    residual = _residual(before, after, shift)
    wins = residual < score
    return torch.where(wins[:, None], shift, best), torch.where(wins, residual, score)


def _residual(before: Tensor, after: Tensor, shift: Tensor) -> Tensor:
    """Median difference where both pictures are; the median does not see a small object."""
    difference = (_moved(before, shift) - after).abs().mean(1)
    return difference.flatten(1).nanmedian(1).values


def _correlation_peaks(before: Tensor, after: Tensor) -> Tensor:
    """(pairs, CANDIDATES, 2): whole-pixel shifts at which the two pictures agree best."""
    height, width = before.shape[-2:]
    window = torch.outer(
        torch.hann_window(height, periodic=False, device=before.device, dtype=before.dtype),
        torch.hann_window(width, periodic=False, device=before.device, dtype=before.dtype),
    )
    a, b = (torch.fft.rfft2((x - x.mean((1, 2), keepdim=True)) * window) for x in (before, after))
    cross = b * a.conj()
    correlation = torch.fft.irfft2(cross / cross.abs().clamp(min=1e-9), s=(height, width))
    place = correlation.flatten(1).topk(min(CANDIDATES, height * width), 1).indices
    down, right = place // width, place % width
    down = torch.where(down > height // 2, down - height, down)
    right = torch.where(right > width // 2, right - width, right)
    shift = torch.stack([down, right], -1).to(before.dtype)
    near = shift.abs() <= FARTHEST * shift.new_tensor([height, width])
    return torch.where(near.all(-1, keepdim=True), shift, 0)


def _moved(frames: Tensor, shift: Tensor) -> Tensor:
    """Pictures moved down and right by fractions of a pixel; NaN where nothing moves in."""
    height, width = frames.shape[-2:]
    row = torch.arange(height, device=frames.device) - shift[:, :1]  # (N, height)
    column = torch.arange(width, device=frames.device) - shift[:, 1:]
    y = ((2 * row + 1) / height - 1)[:, :, None].expand(-1, -1, width)
    x = ((2 * column + 1) / width - 1)[:, None, :].expand(-1, height, -1)
    grid = torch.stack([x, y], -1).to(frames.dtype)
    hole = torch.isnan(frames)
    filled = torch.where(hole, 0, frames)
    sampled = F.grid_sample(filled, grid, align_corners=False, padding_mode="border")
    inside = (row >= 0)[:, :, None] & (row <= height - 1)[:, :, None]
    inside = inside & ((column >= 0) & (column <= width - 1))[:, None, :]
    outside = ~inside[:, None]
    if bool(hole.any()):
        weight = F.grid_sample(hole.to(frames.dtype), grid, align_corners=False)
        outside = outside | (weight > 0.01)
    return torch.where(outside, torch.nan, sampled)
