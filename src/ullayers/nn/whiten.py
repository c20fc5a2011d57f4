"""A running whitening front, so that plain gradients do not feel the conditioning of the input."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ullayers.nn.statistics import is_recomputing, normal_tensors

# Directions that vary by less than this share of the largest are rounding noise, not input.
RELATIVE_CUT = 1e-13
LARGEST = 1e150  # rows with larger values are left out: their squares would overflow


class Whiten(nn.Module):
    """Shifts and mixes its input so that its features are uncorrelated with variance one.

    The mean and covariance are those of everything seen while training, exactly, however it was
    cut into calls; in `eval()` they stand still. The symmetric square root is used, since it moves
    as little as possible while the statistics settle, so that layers above can follow it. The
    covariance is kept as a triangular root, never as itself, which would square the condition
    number of the input. Directions in which the input has not moved come out as zero. Statistics
    are kept in float64 whatever the network's precision. Before anything was seen, all is zero.

    Args:
        features: width of the input.

    Shape:
        (..., features), and the same out. Rows with a NaN, an infinite or a huge value are not
        learned from.

    Example:
        >>> import torch, ullayers as ul
        >>> _ = torch.manual_seed(0)
        >>> x = torch.randn(500, 3) * torch.tensor([1e-3, 1.0, 1e3]) + 50
        >>> white = ul.Whiten(3)(x)
        >>> torch.allclose(white.T.cov(correction=0), torch.eye(3), atol=1e-4)
        True
    """

    count: Tensor
    mean: Tensor
    root: Tensor  # upper triangular R with R^T R = the scatter of all rows
    basis: Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        if not isinstance(features, int) or features < 1:
            raise ValueError(f"expected a whole number of features of at least 1, got {features}")
        self.features = features
        wide = torch.float64
        with normal_tensors():
            self.register_buffer("count", torch.zeros((), dtype=wide))
            self.register_buffer("mean", torch.zeros(features, dtype=wide))
            self.register_buffer("root", torch.zeros(features, features, dtype=wide))
            self.register_buffer("basis", torch.zeros(features, features, dtype=wide))

    def extra_repr(self) -> str:
        """Shown by print(net)."""
        return str(self.features)

    def forward(self, x: Tensor) -> Tensor:
        """Whiten `x`; learn from it first if training."""
        if x.ndim < 1 or x.shape[-1] != self.features:
            raise ValueError(f"expected (..., {self.features}), got {tuple(x.shape)}")
        if not x.is_floating_point():
            raise ValueError(f"expected a floating point tensor, got {x.dtype}")
        if x.numel() == 0:
            raise ValueError(f"expected at least one row, got {tuple(x.shape)}")
        with torch.autocast(x.device.type, enabled=False):
            wide = x.double()
            if self.training and not is_recomputing():
                self._learn(wide.detach().reshape(-1, self.features))
            # A copy, since the next call may change the basis before this one's backward pass.
            return ((wide - self.mean) @ self.basis.clone()).to(x.dtype)

    @torch.no_grad()
    def _learn(self, rows: Tensor) -> None:
        """Merge the moments of `rows` into those of all rows before."""
        usable = rows.abs().amax(-1, keepdim=True) <= LARGEST  # a NaN compares as false
        n = usable.sum().double()
        first = usable.to(torch.uint8).argmax(0)
        centre = rows[first].nan_to_num(0.0, 0.0, 0.0)  # near the mean: an offset costs no digits
        rows = torch.where(usable, rows - centre, 0)
        mean = rows.sum(0) / n.clamp(min=1)
        rows = torch.where(usable, rows - mean, 0)
        total = self.count + n
        share = n / total.clamp(min=1)
        shift = torch.where(n > 0, centre[0] + mean - self.mean, 0)
        between = (self.count * share).sqrt() * shift  # what the two means' distance adds
        root = torch.linalg.qr(torch.cat([self.root, rows, between[None]]), mode="r").R
        mean = self.mean + share * shift
        self.basis.copy_(_inverse_root(root, total, mean))
        self.root.copy_(root)
        self.mean.copy_(mean)
        self.count.copy_(total)

    def _apply(self, fn: Any, recurse: bool = True) -> Whiten:
        """Statistics follow the network to its device, not to its precision."""

        def move(t: Tensor) -> Tensor:
            return t.to(fn(t).device)

        applied: Whiten = super()._apply(move, recurse)  # type: ignore[no-untyped-call]
        return applied


def _inverse_root(root: Tensor, count: Tensor, mean: Tensor) -> Tensor:
    """(R^T R / count)^(-1/2), symmetric in units of each feature, where the features vary."""
    scale = root.norm(dim=0)
    # Rounding of a large offset looks like a small motion.
    noise = 8 * torch.finfo(root.dtype).eps * mean.abs() * count.sqrt()
    scale = torch.where(scale > noise, scale, 0)
    inverse_scale = torch.where(scale > 0, 1 / scale, 0)
    _, values, vectors = torch.linalg.svd(root * inverse_scale)
    kept = values > RELATIVE_CUT * values[0] + (vectors * (noise * inverse_scale)).norm(dim=1)
    gains = torch.where(kept, count.sqrt() / values.clamp(min=1e-300), 0)
    symmetric: Tensor = (vectors.mT * gains) @ vectors
    return inverse_scale[:, None] * symmetric
