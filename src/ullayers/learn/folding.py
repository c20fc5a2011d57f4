"""Whether the code of a closed loop of frames is folded: the same for different pictures."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

APART = 8  # frames are apart if more than one in this many of the loop lies between them
DIFFERENT = 1.1  # steps from frame to frame: pictures that differ more are different
PICTURE_SIDE = 32  # pixels of the longer side at which pictures are compared


def folded_share(code: Tensor, frames: Tensor) -> float:
    """Return the share of frames whose code also belongs to a different picture.

    A code that goes round once gives frames that are apart in a loop different codes. One that goes
    round twice, or forth and back, does not. That is right for an object that looks the same from
    two sides, and else a fold: of the frames with the same code, even the most similar one differs
    more than the next frame does.

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
    """Return (frames, frames) distances of pictures, at a small size that hides noise."""
    factor = max(1.0, max(frames.shape[-2:]) / PICTURE_SIDE)
    size = [max(1, round(side / factor)) for side in frames.shape[-2:]]
    small = F.interpolate(frames.float(), size, mode="area").flatten(1).double()
    return torch.cdist(small, small)
