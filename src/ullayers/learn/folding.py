"""Folded codes of closed loops: codes that are equal for different frames."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

APART = 8  # frames are apart if more than this fraction (1 / APART) of the loop lies between them
DIFFERENT = 1.1  # steps from frame to frame: frames that differ more are different
PICTURE_SIDE = 32  # pixels of the longer side at which frames are compared


def folded_share(code: Tensor, frames: Tensor) -> float:
    """Return the share of frames whose code also belongs to a different frame.

    A code that goes around once differs between frames that are apart in the loop. A code that goes
    around twice, or back and forth, does not. This is correct for an object that looks the same
    from two sides. Otherwise the code is folded: of the frames with the same code, even the most
    similar one differs more than the next frame does.

    Args:
        code: (frames, outputs) of all frames of a closed loop.
        frames: (frames, channels, height, width) uint8.

    Example:
        >>> turn = torch.arange(48) * 2 * torch.pi / 48
        >>> once, twice = (torch.stack([(k * turn).cos(), (k * turn).sin()], 1) for k in (1, 2))
        >>> frames = (127 + 99 * once).byte()[..., None, None]
        >>> folded_share(once, frames), folded_share(twice, frames)
        (0.0, 1.0)
        >>> symmetric = (127 + 99 * twice).byte()[..., None, None]
        >>> folded_share(twice, symmetric)
        0.0
    """
    codes = torch.cdist(code.double(), code.double())
    pictures = _picture_distances(frames)
    length = len(code)
    places = torch.arange(length)
    lag = (places[:, None] - places).abs()
    apart = torch.minimum(lag, length - lag) > length // APART
    after, before = (places + 1) % length, places - 1
    same = apart & (codes <= torch.maximum(codes[places, after], codes[places, before])[:, None])
    step = torch.minimum(pictures[places, after], pictures[places, before])
    most_similar = torch.where(same, pictures, torch.inf).amin(1)
    folded = same.any(1) & (most_similar > DIFFERENT * step)
    return float(folded.double().mean())


def _picture_distances(frames: Tensor) -> Tensor:
    """Return (frames, frames) distances between frames, at a small size that hides noise."""
    factor = max(1.0, max(frames.shape[-2:]) / PICTURE_SIDE)
    size = [max(1, round(side / factor)) for side in frames.shape[-2:]]
    small = F.interpolate(frames.float(), size, mode="area").flatten(1).double()
    return torch.cdist(small, small)
