"""Frames held out from training, and the correlation of a code on them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

HELD_OUT_PERIOD = 4  # of this many blocks, one is held out
MAX_BLOCK = 16  # frames
MIN_BLOCK = 2
SHORT_BLOCKS = 36  # number of blocks in short footage
MIN_FRAMES = 32  # in shorter footage, nothing is held out


def enough_to_hold_out(lengths: Sequence[int]) -> bool:
    """Return whether there are enough frames to hold some out."""
    return sum(lengths) >= MIN_FRAMES


def held_out_frames(lengths: Sequence[int]) -> list[Tensor]:
    """Choose the frames that are held out: every fourth block.

    Blocks have up to 16 frames, fewer if the footage is short. A short sequence is a single block.

    Args:
        lengths: Number of frames of each sequence.

    Returns:
        For each sequence, (length,) whether a frame is held out.

    Example:
        >>> [frames] = held_out_frames([32])
        >>> torch.nonzero(frames)[:, 0].tolist()
        [2, 3, 10, 11, 18, 19, 26, 27]
        >>> [bool(frames.any()) for frames in held_out_frames([13] * 60)[:6]]
        [False, True, False, False, False, True]
    """
    if not enough_to_hold_out(lengths):
        return [torch.zeros(length, dtype=torch.bool) for length in lengths]
    size = min(MAX_BLOCK, max(MIN_BLOCK, sum(lengths) // SHORT_BLOCKS))
    held_out = []
    first = 0
    for length in lengths:
        count = max(1, round(length / size))
        block = first + torch.arange(length) * count // length
        held_out.append(block % HELD_OUT_PERIOD == 1)
        first += count
    return held_out


def held_out_stretches(lengths: Sequence[int], clip: int) -> list[range]:
    """Choose the held-out frames for training on whole clips.

    In a sequence of four clips or more, the middle clip is held out; of shorter sequences, every
    fourth one.

    Args:
        lengths: Number of frames of each sequence.
        clip: Number of frames of a clip.

    Returns:
        For each sequence, the numbers of the held-out frames.

    Example:
        >>> held_out_stretches([100, 30], 20)
        [range(40, 60), range(0, 0)]
        >>> held_out_stretches([30] * 5, 20)
        [range(0, 0), range(0, 30), range(0, 0), range(0, 0), range(0, 0)]
    """
    stretches = []
    short = 0
    for length in lengths:
        if length >= HELD_OUT_PERIOD * clip:
            start = (length - clip) // 2
            stretches.append(range(start, start + clip))
        else:
            is_held_out = short % HELD_OUT_PERIOD == 1 and len(lengths) >= HELD_OUT_PERIOD
            stretches.append(range(length) if is_held_out else range(0))
            short += 1
    return stretches


def held_out_correlation(codes: Sequence[Tensor], held_out: Sequence[Tensor]) -> list[float]:
    """Return the correlation of held-out frames with their neighbours in time, for each code.

    It is near 1 for a slow code of the content of the frames, and near 0 for a code of their order,
    which does not generalise to frames outside the training set.

    Args:
        codes: (frames, codes) of each sequence.
        held_out: (frames,) of each sequence, from `held_out_frames`.

    Example:
        >>> held_out = held_out_frames([200])
        >>> wave = torch.arange(200.0).div(9).sin()
        >>> noise = torch.randn(200, generator=torch.Generator().manual_seed(0))
        >>> slow, fast = held_out_correlation([torch.stack([wave, noise], 1)], held_out)
        >>> slow > 0.9, abs(fast) < 0.2
        (True, True)
    """
    joined = torch.cat(list(codes)).double()
    apart = torch.cat(list(held_out))
    # Computed separately, because a network varies less between frames it was not trained on.
    standard = torch.empty_like(joined)
    for chosen in (apart, ~apart):
        centred = joined[chosen] - joined[chosen].mean(0)
        standard[chosen] = centred / centred.square().mean(0).sqrt()
    sequence = torch.arange(len(codes)).repeat_interleave(torch.tensor([len(c) for c in codes]))
    is_pair = (sequence[1:] == sequence[:-1]) & (apart[1:] | apart[:-1])
    products = (standard[1:] * standard[:-1])[is_pair]
    return products.mean(0).nan_to_num(0.0).tolist()  # a constant code has no correlation
