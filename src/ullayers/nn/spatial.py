"""Temporal consistency extended to space: where a mask is, and how far it spreads."""

from __future__ import annotations

import torch
from torch import Tensor


def mask_moments(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Centroid of a mask and its spatial covariance around it.

    Give both to a `UL1d(2)`: the covariance is then added to W, so that the mask is pushed to be
    compact in space as its centroid is pushed to be slow in time. From some starts a mask settles
    on everything but the object all the same; its J is then clearly higher, so of several runs keep
    the one with the lowest `objective`.

    Args:
        mask: (..., height, width), of any total; a softmax over the picture or a sigmoid, say.
            Negative entries count as zero, an empty mask as uniform.

    Returns:
        centroid (..., 2) as x, y in 0..1 of the picture from its top left corner, and the
        covariance (..., 2, 2) in the same units.

    Example:
        >>> import torch, ullayers as ul
        >>> head = ul.UL1d(2, mu=0.3)
        >>> logits = torch.randn(8, 20, 30, requires_grad=True)  # from a network, for 8 frames
        >>> centroid, spread = ul.mask_moments(logits.flatten(1).softmax(1).view(8, 20, 30))
        >>> ul.backward(head(centroid, spread))
        >>> logits.grad.shape
        torch.Size([8, 20, 30])
    """
    if mask.ndim < 2 or 0 in mask.shape[-2:] or not mask.is_floating_point():
        raise ValueError(
            f"expected a floating point mask (..., height, width), got {mask.dtype} "
            f"{tuple(mask.shape)}"
        )
    height, width = mask.shape[-2:]
    # Half precision cannot hold pixel positions, let alone their squares.
    mask = mask.to(torch.promote_types(mask.dtype, torch.float32)).clamp(min=0)
    tiny = torch.finfo(mask.dtype).tiny * height * width
    total = mask.sum((-2, -1), keepdim=True)
    share = torch.where(total > tiny, mask / total.clamp(min=tiny), 1 / (height * width))
    x = (torch.arange(width, dtype=mask.dtype, device=mask.device) + 0.5) / width
    y = (torch.arange(height, dtype=mask.dtype, device=mask.device) + 0.5) / height
    columns, rows = share.sum(-2), share.sum(-1)
    centroid = torch.stack([columns @ x, rows @ y], -1)
    from_x = x - centroid[..., :1]  # (..., width)
    from_y = y - centroid[..., 1:]  # (..., height)
    xx = (columns * from_x.square()).sum(-1)
    yy = (rows * from_y.square()).sum(-1)
    xy = torch.einsum("...hw,...h,...w->...", share, from_y, from_x)
    covariance = torch.stack([torch.stack([xx, xy], -1), torch.stack([xy, yy], -1)], -2)
    return centroid, covariance


def blurred(maps: Tensor, side: int) -> Tensor:
    """The mean over a square around each pixel, as far as it lies in the picture.

    As two matrix products, which are many times faster than pooling.

    >>> [round(value, 2) for value in blurred(torch.eye(3)[None, None], 3)[0, 0, 1].tolist()]
    [0.33, 0.33, 0.33]
    """
    rows, columns = (_band(length, side).to(maps) for length in maps.shape[-2:])
    return rows @ maps @ columns.T


def _band(length: int, side: int) -> Tensor:
    """(length, length): every row takes the mean over `side` places around its own."""
    near = torch.ones(length, length).tril(side // 2).triu(-(side // 2))
    return near / near.sum(1, keepdim=True)
