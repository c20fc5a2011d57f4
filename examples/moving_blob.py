"""A noisy video of a moving blob, a small network, and the score that the training loops print."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import ullayers as ul

FRAMES = 2000
SIDE = 24
CLIP = 64  # frames
CLIPS_PER_STEP = 2


def moving_blob() -> tuple[Tensor, Tensor]:
    """Return frames (time, 1, side, side), and the place (time, 2) of the blob in each."""
    time = torch.arange(FRAMES)
    place = torch.stack([torch.sin(time / 9), torch.sin(time / 14)], 1)
    grid = torch.linspace(-1.5, 1.5, SIDE)
    across, down = (grid - place[:, None, 0:1]) ** 2, (grid[:, None] - place[:, None, 1:]) ** 2
    blob = torch.exp(-4 * (across + down))
    return (blob + 0.3 * torch.randn(blob.shape))[:, None], place


def clips_of(frames: Tensor) -> Tensor:
    """Cut the first half of a video into overlapping clips (clips, CLIP, 1, side, side)."""
    return frames[: FRAMES // 2].unfold(0, CLIP, 8).movedim(-1, 1)


def make_network() -> nn.Sequential:
    """Return a network with two outputs, of which the UL layer takes all clips of a call as one."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(800, 32),
        nn.ReLU(),
        nn.Linear(32, 2),
        ul.UL1d(2, long_term="shared"),
    )


@torch.no_grad()
def score(net: nn.Module, frames: Tensor, place: Tensor) -> float:
    """Return R2 of the place on frames that no clip contains; the read-out is linear."""
    code = net.eval()(frames[FRAMES // 2 :])
    code = torch.cat([code, torch.ones(len(code), 1)], 1)
    place = place[FRAMES // 2 :]
    half = len(code) // 2
    read_out = torch.linalg.lstsq(code[:half], place[:half]).solution
    error = (place - code @ read_out)[half:].var(0)
    return float((1 - error / place[half:].var(0)).min())
