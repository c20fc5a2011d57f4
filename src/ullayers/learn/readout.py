"""The last layer of a code, solved in closed form."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from ullayers.exact.slow_moments import RankError, slowest_components
from ullayers.learn.footage import Footage
from ullayers.learn.models import Encoder
from ullayers.video.reader import VideoError

FRAMES_PER_CALL = 64  # frames per forward pass outside training


@torch.no_grad()
def outputs_of(net: Encoder, frames: Tensor, device: str) -> Tensor:
    """Return (time, outputs) of uint8 frames (time, channels, height, width), on the CPU."""
    was_training = net.training
    net.eval()  # UL layers after hidden layers must not count these frames
    parts = frames.split(FRAMES_PER_CALL)
    outputs = torch.cat([net.embed((part.float() / 255).to(device)).cpu() for part in parts])
    net.train(was_training)
    return outputs


def slow_directions(parts: Sequence[Tensor], codes: int) -> Tensor:
    """Return (codes, outputs): the slowest directions, slowest first.

    Args:
        parts: (time, outputs) of consecutive frames, from `consecutive_parts`.
        codes: Number of directions.

    Raises:
        VideoError: Too few outputs vary.
    """
    try:
        components = slowest_components([part.double().numpy() for part in parts], codes)
    except RankError as error:
        raise VideoError(
            f"fewer than {codes} features vary in this footage: ask for fewer"
        ) from error
    return torch.from_numpy(components)


def consecutive_parts(
    outputs: Iterable[Tensor], rows: Iterable[Tensor], *, by_clip: bool
) -> list[Tensor]:
    """Split outputs where frames are left out; parts of a single frame are dropped.

    Args:
        outputs: (time, outputs) of each sequence.
        rows: (time,) number of each frame in its sequence.
        by_clip: Subtract the mean of each sequence; otherwise the slowest direction would identify
            the sequence.

    Example:
        >>> rows = torch.tensor([0, 1, 2, 5, 7, 8])
        >>> parts = consecutive_parts([rows[:, None].float()], [rows], by_clip=False)
        >>> [part.flatten().tolist() for part in parts]
        [[0.0, 1.0, 2.0], [7.0, 8.0]]
    """
    parts: list[Tensor] = []
    for y, numbers in zip(outputs, rows, strict=True):
        centred = y - y.mean(0) if by_clip else y
        parts += centred.tensor_split(torch.nonzero(numbers.diff() != 1)[:, 0] + 1)
    return [part for part in parts if len(part) > 1]


def solve_readout(net: Encoder, footage: Footage, device: str) -> None:
    """Solve the last layer: slowest first, uncorrelated, unit variance.

    Raises:
        VideoError: Fewer features vary than the code has numbers.
    """
    outputs = [outputs_of(net, piece.clip.frames, device) for piece in footage.pieces]
    rows = [torch.arange(len(y)) for y in outputs]
    parts = consecutive_parts(outputs, rows, by_clip=net.by_clip)
    directions = slow_directions(parts, len(net.readout))
    joined = torch.cat(outputs).double()
    middle = joined.mean(0)
    scale = ((joined - middle) @ directions.T).square().mean(0).sqrt()
    net.mean.copy_(middle)
    net.readout.copy_(directions / scale[:, None])
