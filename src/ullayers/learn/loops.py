"""Closed loops, such as one turn of an object on a turntable, and their code in closed form."""

from __future__ import annotations

import torch
from torch import Tensor

MIN_LOOP = 8  # least number of frames of a turn
TYPICAL_STEPS = 0.9  # quantile of the steps from frame to frame that larger ones are compared with
MAX_LOOP_STEP = 1.5  # squared distance from the last to the first frame, in typical steps
MAX_LOOP_SHARE = 0.5  # the same, in mean squared distances between two frames
SAME_VIEW = 0.75  # squared distance between frames of the same view, in steps from frame to frame


def closes(frames: Tensor) -> bool:
    """Return whether the last frame is as close to the first one as consecutive frames are.

    Args:
        frames: (time, channels, height, width) uint8.

    Example:
        >>> turn = torch.arange(24) * 2 * torch.pi / 24
        >>> frames = (127 + 99 * torch.stack([turn.cos(), turn.sin()], 1)).byte()[..., None, None]
        >>> closes(frames), closes(frames[:18])
        (True, False)
    """
    if len(frames) < MIN_LOOP:
        return False
    pixels = frames.flatten(1).float()
    seam = float((pixels[-1] - pixels[0]).square().mean())
    distance = 2 * float((pixels - pixels.mean(0)).square().mean())
    return seam <= MAX_LOOP_STEP * _typical_step(pixels) and seam <= MAX_LOOP_SHARE * distance


def turns(frames: Tensor) -> int:
    """Return how often a closed loop repeats itself: its number of turns.

    A frame must be closer to the same view in the next turn than to the next frame. Opposite sides
    of an object that look nearly the same are not that close.

    Args:
        frames: (time, channels, height, width) uint8 of a closed loop.

    Example:
        >>> turn = torch.arange(48) * 2 * torch.pi / 48
        >>> once, twice = (torch.stack([(k * turn).cos(), (k * turn).sin()], 1) for k in (1, 2))
        >>> [turns((127 + 99 * code).byte()[..., None, None]) for code in (once, twice)]
        [1, 2]
    """
    pixels = frames.flatten(1).float()
    distances = torch.cdist(pixels, pixels).square()
    places = torch.arange(len(pixels))

    def distance(lag: int) -> float:
        return float(distances[places, (places + lag) % len(places)].median())

    for count in range(len(pixels) // MIN_LOOP, 1, -1):
        if distance(round(len(pixels) / count)) <= SAME_VIEW * distance(1):
            return count
    return 1


def _typical_step(pixels: Tensor) -> float:
    return float(pixels.diff(dim=0).square().mean(1).quantile(TYPICAL_STEPS))


def ring_code(rows: Tensor, frames_per_turn: float) -> Tensor:
    """Return the slowest code of a closed loop: a circle.

    Frames that are visited one after the other, and the first one after the last, are a Markov
    chain on a ring. Its two slowest eigenfunctions are cosine and sine.

    Args:
        rows: (frames,) frame numbers.
        frames_per_turn: Number of frames of a turn.

    Example:
        >>> ring_code(torch.arange(4), 4).round().abs().tolist()
        [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]]
    """
    angle = 2 * torch.pi * rows / frames_per_turn
    return torch.stack([angle.cos(), angle.sin()], 1)
