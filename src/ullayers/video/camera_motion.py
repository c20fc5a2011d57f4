"""A moving camera, found and taken out: where the background went, and what moved before it.

A shift between two frames is believed only where it explains the picture clearly better than
standing still, so that a static camera is left alone however much moves in front of it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

CANDIDATES = 4  # peaks of the phase correlation that are tried
BELIEVED = 0.9  # a shift must lower the median residual at least to this share
FARTHEST = 0.25  # of the picture's sides, between two frames
REFINEMENTS = (0.5, 0.25, 0.1)  # pixels
LOOK = 16  # frames between those that are looked at first, to see whether the camera moves at all
BLOCK = 64  # pairs that are compared at once
FOLLOW = 4  # frames after which a live camera that stands still is looked at again
ENOUGH = 128  # frames for a median


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
    if len(frames) < 2 or _stands_still(frames):
        return frames.new_zeros(len(frames), 2)
    shift = torch.cat(
        [_shifts(frames[i : i + BLOCK], frames[i + 1 : i + BLOCK + 1])
         for i in range(0, len(frames) - 1, BLOCK)]
    )  # fmt: skip
    return torch.cat([shift.new_zeros(1, 2), shift]).cumsum(0)


def find_path(frames: Tensor) -> Tensor | None:
    """The camera's path, if following it explains all frames clearly better than standing still.

    Single pairs of frames may deceive (a flash, a twitch that the next pair does not undo), and
    their errors add up along the path; one backdrop for all frames does not forgive that.

    Args:
        frames: (time, channels, height, width), floating point, consecutive.

    Returns:
        (time, 2) as `camera_path` has it, or None for a static camera.

    Example:
        >>> import torch
        >>> find_path(torch.rand(1, 3, 40, 60).repeat(8, 1, 1, 1)) is None
        True
    """
    path = camera_path(frames)
    if not bool((path != 0).any()):
        return None
    some = slice(None, None, -(-len(frames) // ENOUGH))
    still, moved = (
        foreground(frames[some], backdrop(frames, p), None if p is None else p[some])
        for p in (None, path)
    )
    left = [x.abs().mean(1).flatten(1).median(1).values.mean() for x in (still, moved)]
    return path if bool(left[1] < BELIEVED * left[0]) else None


def backdrop(frames: Tensor, path: Tensor | None = None) -> Tensor:
    """What is behind whatever moves: the median of the frames along the camera's path.

    Args:
        frames: (time, channels, height, width), floating point.
        path: from `camera_path`; None for a static camera.

    Returns:
        (channels, height, width), wider on all sides by as much as the camera moves; NaN where
        it never looked.

    Example:
        >>> import torch
        >>> frames = torch.zeros(5, 1, 4, 4)
        >>> frames[2, 0, 1, 1] = 1.0  # seen once only
        >>> float(backdrop(frames).max())
        0.0
    """
    every = -(-len(frames) // ENOUGH)
    frames = frames[::every]
    if path is None or not bool((path != 0).any()):
        return frames.median(0).values
    down, right = (path.amax(0) - path.amin(0)).ceil().int().tolist()
    canvas = F.pad(frames, (right, right, down, down), value=torch.nan)
    return _moved(canvas, -path[::every]).nanmedian(0).values


def foreground(frames: Tensor, behind: Tensor, path: Tensor | None = None) -> Tensor:
    """What differs from the backdrop.

    Args:
        frames: (time, channels, height, width), floating point.
        behind: from `backdrop`.
        path: where the camera was for each of these frames; None for a static camera.

    Returns:
        the same shape as the frames; zero where the backdrop was never seen.

    Example:
        >>> import torch
        >>> frames = torch.zeros(5, 1, 4, 4)
        >>> frames[2, 0, 1, 1] = 1.0
        >>> foreground(frames, backdrop(frames)).sum((1, 2, 3)).tolist()
        [0.0, 0.0, 1.0, 0.0, 0.0]
    """
    if behind.shape == frames.shape[1:]:
        return torch.nan_to_num(frames - behind)
    if path is None:
        raise ValueError("expected the camera's path beside a backdrop wider than the frames")
    height, width = frames.shape[-2:]
    down, right = (behind.shape[-2] - height) // 2, (behind.shape[-1] - width) // 2
    seen = _moved(behind.expand(len(frames), -1, -1, -1), path)
    return torch.nan_to_num(frames - seen[..., down : down + height, right : right + width])


class LiveBackdrop:
    """A backdrop for frames that come one at a time, for as long as they come.

    Each pixel follows the frames by at most a small step at a time, as a running median does: what
    passes leaves no trace, and what stays becomes backdrop. A camera that moves takes it along.

    Example:
        >>> import torch
        >>> live = LiveBackdrop()
        >>> frame = torch.full((1, 8, 8), 0.5)
        >>> _ = live.foreground(frame)
        >>> frame[0, 2, 2] = 1.0
        >>> live.foreground(frame)[0, 2].tolist()
        [0.0, 0.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0]
    """

    def __init__(self) -> None:
        self.behind: Tensor | None = None
        self.last: Tensor | None = None
        self.count, self.unsteady = 0, 0  # frames seen; frames to look at after the last motion

    def foreground(self, frame: Tensor) -> Tensor:
        """What differs, in a frame (channels, height, width) of 0..1, from the backdrop so far."""
        if self.behind is None or self.last is None:
            self.behind = self.last = frame
        if self.unsteady or self.count % FOLLOW == 0:
            shift = camera_path(torch.stack([self.last, frame]))[1:]
            self.unsteady = max(0, self.unsteady - 1)
            if bool((shift != 0).any()):
                self.unsteady = 2 * FOLLOW
                moved = _moved(self.behind[None], shift)[0]
                self.behind = torch.where(torch.isnan(moved), frame, moved)
            self.last = frame
        self.count += 1
        difference = frame - self.behind
        step = max(0.5, 64 / self.count) / 255  # the first frames are no better than a guess
        self.behind = self.behind + difference.clamp(-step, step)
        return difference


def _stands_still(frames: Tensor) -> bool:
    """A look at some pairs: far apart for a slow pan, next to each other for an unsteady hand."""
    some = frames[::LOOK]
    near = frames[LOOK // 2 :: LOOK], frames[LOOK // 2 + 1 :: LOOK]
    pairs = [(some[:-1], some[1:]), (near[0][: len(near[1])], near[1])]
    return len(some) > 2 and not any(bool((_shifts(*pair) != 0).any()) for pair in pairs)


def _shifts(before: Tensor, after: Tensor) -> Tensor:
    """(pairs, 2): how far each picture moved, where that is believed; zero elsewhere."""
    before = before[: len(after)]
    still = _residual(before, after, before.new_zeros(len(before), 2))
    best, score = before.new_zeros(len(before), 2), still
    for shift in _correlation_peaks(before.mean(1), after.mean(1)).unbind(1):
        best, score = _better(before, after, shift, best, score)
    for step in REFINEMENTS:
        centre = best
        for down in (-step, 0.0, step):
            for right in (-step, 0.0, step):
                if down or right:  # the centre itself has its score
                    moved = centre + centre.new_tensor([down, right])
                    best, score = _better(before, after, moved, best, score)
    return torch.where((score < BELIEVED * still)[:, None], best, 0)


def _better(
    before: Tensor, after: Tensor, shift: Tensor, best: Tensor, score: Tensor
) -> tuple[Tensor, Tensor]:
    """For each pair keep the shift with the smaller residual."""
    difference = _difference(before, after, shift)
    # A median is below the score if half of the values are. Counting them is faster than finding
    # it, which is left to the few that win.
    lower, there = (difference < score[:, None]).sum(1), (~difference.isnan()).sum(1)
    wins = (lower >= (there + 1) // 2) & (there > 0)
    if not bool(wins.any()):
        return best, score
    score = score.clone()
    score[wins] = difference[wins].nanmedian(1).values
    return torch.where(wins[:, None], shift, best), score


def _residual(before: Tensor, after: Tensor, shift: Tensor) -> Tensor:
    """Median difference where both pictures are; the median does not see a small object."""
    return _difference(before, after, shift).nanmedian(1).values


def _difference(before: Tensor, after: Tensor, shift: Tensor) -> Tensor:
    """(pairs, pixels) of the one picture moved from the other; NaN where it is not."""
    grid = _grid(before, shift)
    difference = (_sampled(before, grid) - after).abs().mean(1)
    return difference.masked_fill(grid.outside, torch.nan).flatten(1)


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
    grid, hole = _grid(frames, shift), torch.isnan(frames)
    sampled, gone = _sampled(torch.where(hole, 0, frames), grid), grid.outside[:, None]
    if bool(hole.any()):
        weight = F.grid_sample(hole.to(frames.dtype), grid.places, align_corners=False)
        gone = gone | (weight > 0.01)
    return torch.where(gone, torch.nan, sampled)


class _Grid(NamedTuple):
    """Where the pixels of a moved picture come from, and which come from outside of it."""

    places: Tensor  # (N, height, width, 2)
    outside: Tensor  # (N, height, width)


def _grid(frames: Tensor, shift: Tensor) -> _Grid:
    height, width = frames.shape[-2:]
    row = torch.arange(height, device=frames.device) - shift[:, :1]  # (N, height)
    column = torch.arange(width, device=frames.device) - shift[:, 1:]
    y = ((2 * row + 1) / height - 1)[:, :, None].expand(-1, -1, width)
    x = ((2 * column + 1) / width - 1)[:, None, :].expand(-1, height, -1)
    above, left = (row < 0) | (row > height - 1), (column < 0) | (column > width - 1)
    return _Grid(torch.stack([x, y], -1).to(frames.dtype), above[:, :, None] | left[:, None, :])


def _sampled(frames: Tensor, grid: _Grid) -> Tensor:
    """Pictures without holes, moved; what comes from outside is what is nearest to it."""
    return F.grid_sample(frames, grid.places, align_corners=False, padding_mode="border")
