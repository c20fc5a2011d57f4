"""Spatial moments of masks, for temporal consistency extended to space."""

from __future__ import annotations

import torch
from torch import Tensor


def mask_moments(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the centroid of a mask and its spatial covariance.

    Pass both to a `UL1d(2)`: the covariance is added to W, so that the mask becomes compact in
    space while its centroid becomes slow in time. Some initialisations converge to a mask of
    everything but the object. Its J is clearly higher, so run several times and keep the run with
    the lowest `objective`.

    Args:
        mask: (..., height, width) with any sum, such as a softmax over the picture or a sigmoid.
            Negative entries count as zero, an empty mask as uniform. A mask with a NaN or infinite
            entry gives NaN, which UL layers skip.

    Returns:
        Centroid (..., 2) as x, y from 0 to 1, measured from the top left corner of the picture,
        and the covariance (..., 2, 2) in the same units.

    Raises:
        TypeError: If the mask is not a tensor.
        ValueError: If its shape or its data type is not as above.

    Example:
        >>> import torch, ullayers as ul
        >>> head = ul.UL1d(2, mu=0.3)
        >>> logits = torch.randn(8, 20, 30, requires_grad=True)  # from a network, for 8 frames
        >>> centroid, spread = ul.mask_moments(logits.flatten(1).softmax(1).view(8, 20, 30))
        >>> ul.backward(head(centroid, spread))
        >>> logits.grad.shape
        torch.Size([8, 20, 30])
    """
    if not isinstance(mask, Tensor):
        raise TypeError(f"expected a tensor (..., height, width), got {type(mask).__name__}")
    if mask.ndim < 2 or 0 in mask.shape[-2:] or not mask.is_floating_point():
        raise ValueError(
            f"expected a floating point mask (..., height, width), got {mask.dtype} "
            f"{tuple(mask.shape)}"
        )
    height, width = mask.shape[-2:]
    # Half precision is too coarse for pixel positions and their squares.
    mask = mask.to(torch.promote_types(mask.dtype, torch.float32)).clamp(min=0)
    # The sum of huge entries would overflow. A constant factor does not change the gradient.
    mask = mask / mask.detach().amax((-2, -1), keepdim=True).clamp(min=1)
    tiny = torch.finfo(mask.dtype).tiny * height * width
    total = mask.sum((-2, -1), keepdim=True)
    share = torch.where(total <= tiny, 1 / (height * width), mask / total.clamp(min=tiny))
    x = (torch.arange(width, dtype=mask.dtype, device=mask.device) + 0.5) / width
    y = (torch.arange(height, dtype=mask.dtype, device=mask.device) + 0.5) / height
    columns, rows = share.sum(-2), share.sum(-1)
    centroid = torch.stack([columns @ x, rows @ y], -1)
    from_x = x - centroid[..., :1]  # (..., width)
    from_y = y - centroid[..., 1:]  # (..., height)
    xx = (columns * from_x.square()).sum(-1)
    yy = (rows * from_y.square()).sum(-1)
    # Not an einsum of three, whose best order opt_einsum finds only for a fixed batch.
    xy = ((share @ from_x[..., None])[..., 0] * from_y).sum(-1)
    covariance = torch.stack([torch.stack([xx, xy], -1), torch.stack([xy, yy], -1)], -2)
    return centroid, covariance


def blurred(maps: Tensor, side: int) -> Tensor:
    """Return the mean over a square around each pixel, clipped at the border of the picture.

    Uses two matrix products, which are many times faster than pooling.

    >>> [round(value, 2) for value in blurred(torch.eye(3)[None, None], 3)[0, 0, 1].tolist()]
    [0.33, 0.33, 0.33]
    """
    rows, columns = (_band(length, side).to(maps) for length in maps.shape[-2:])
    return rows @ maps @ columns.T


def _band(length: int, side: int) -> Tensor:
    """Return a (length, length) matrix that averages over `side` entries around each one."""
    near = torch.ones(length, length).tril(side // 2).triu(-(side // 2))
    return near / near.sum(1, keepdim=True)
