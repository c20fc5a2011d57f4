"""Running whitening of the input, so that its conditioning does not affect gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ullayers.nn.distributed import Member, Pool, Share, process_count
from ullayers.nn.statistics import LayerLock, is_recomputing, normal_tensors

# Directions that vary less than this, relative to the largest, are rounding errors.
RELATIVE_CUT = 1e-13
LARGEST = 1e150  # rows with larger values are skipped: their squares would overflow


class Whiten(nn.Module):
    """Whiten the input: outputs have mean zero, variance one and no correlations.

    Mean and covariance are those of all rows seen in training, independent of how these are split
    into calls; in `eval()` they do not change. The symmetric square root is used because it changes
    least while the statistics converge, so that later layers can follow. The covariance is stored
    as a triangular root, since the covariance itself would square the condition number.
    Directions in which the input does not vary are zero in the output. Statistics are stored in
    float64 in networks of any precision. Before the first training call, all outputs are zero.

    Args:
        features: Number of input features.
        synchronize: Whether processes of `torch.distributed` share the statistics.

    Shape:
        Input and output: (..., features). Rows with a NaN, an infinite or a huge value do not
        change the statistics.

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

    def __init__(self, features: int, *, synchronize: bool = True) -> None:
        super().__init__()
        if not isinstance(features, int) or features < 1:
            raise ValueError(f"expected features to be an integer >= 1, got {features}")
        self.features = features
        self.synchronize = synchronize
        self._member = Member()
        self._lock = LayerLock()
        wide = torch.float64
        with normal_tensors():
            self.register_buffer("count", torch.zeros((), dtype=wide))
            self.register_buffer("mean", torch.zeros(features, dtype=wide))
            self.register_buffer("root", torch.zeros(features, features, dtype=wide))
            self.register_buffer("basis", torch.zeros(features, features, dtype=wide))

    def extra_repr(self) -> str:
        """Return the settings, for print(net)."""
        return str(self.features)

    def forward(self, x: Tensor) -> Tensor:
        """Whiten `x`; in training, update the statistics with it first."""
        if not isinstance(x, Tensor):
            raise ValueError(f"expected a tensor, got {type(x).__name__}")
        if x.ndim < 1 or x.shape[-1] != self.features:
            raise ValueError(f"expected (..., {self.features}), got {tuple(x.shape)}")
        if not x.is_floating_point():
            raise ValueError(f"expected a floating point tensor, got {x.dtype}")
        processes = process_count() if self.synchronize else 1
        if x.numel() == 0 and processes == 1:
            raise ValueError(f"expected at least one row, got {tuple(x.shape)}")
        with torch.autocast(x.device.type, enabled=False):
            wide = x.double()
            with self._lock.held():
                if self.training and not is_recomputing():
                    self._learn(wide.detach().reshape(-1, self.features), processes)
                # Copies: the next call may change the statistics before this one's backward pass.
                mean, basis = self.mean.clone(), self.basis.clone()
            return ((wide - mean) @ basis).to(x.dtype)

    @torch.no_grad()
    def _learn(self, rows: Tensor, processes: int) -> None:
        """Merge the moments of `rows` into the statistics."""
        moments = _moments(rows)
        if processes > 1:
            moments = self._gathered(moments)
        counts, means, roots = moments
        total = self.count + counts.sum()
        shifts = torch.where(counts > 0, means.mT - self.mean[:, None], 0).mT
        mean = self.mean + counts @ shifts / total.clamp(min=1)
        # Contribution of the distances of all means from the new one.
        before = self.count.sqrt() * (self.mean - mean)[None]
        added = counts.sqrt()[:, None] * (self.mean + shifts - mean)
        between = torch.cat([before, added])
        root = torch.linalg.qr(torch.cat([self.root, roots, between]), mode="r").R
        self.basis.copy_(_inverse_root(root, total, mean))
        self.root.copy_(root)
        self.mean.copy_(mean)
        self.count.copy_(total)

    def _gathered(self, moments: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Return the moments of all processes."""
        count, mean, rows = moments
        d = self.features
        pool = Pool(self._member, f"Whiten on rows of {d} ({rows.device.type})", Share())
        square = torch.linalg.qr(torch.cat([rows, rows.new_zeros(d, d)]), mode="r").R
        parts = [part.new_zeros(pool.processes, *part.shape) for part in (count, mean, square)]
        for part, own in zip(parts, (count, mean, square), strict=True):
            part[pool.rank] = own
        counts, means, roots = pool.add_up(*parts)
        return counts[:, 0], means[:, 0], roots.flatten(0, 1)

    def _apply(self, fn: Any, recurse: bool = True) -> Whiten:
        """Move the statistics to the network's device, but keep them in float64."""

        def move(t: Tensor) -> Tensor:
            return t.to(fn(t).device)

        applied: Whiten = super()._apply(move, recurse)  # type: ignore[no-untyped-call]
        return applied


def _moments(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return number (1,) and mean (1, d) of the usable rows, and rows relative to it, or zero."""
    usable = rows.abs().amax(-1, keepdim=True) <= LARGEST  # false for NaN
    n = usable.sum()[None].double()
    # Relative to a row near the mean, so that an offset costs no digits.
    first = usable.to(torch.uint8).argmax(0) if len(rows) else slice(0, 0)
    centre = rows[first].sum(0, keepdim=True).nan_to_num(0.0, 0.0, 0.0)
    rows = torch.where(usable, rows - centre, 0)
    mean = rows.sum(0, keepdim=True) / n.clamp(min=1)
    return n, centre + mean, torch.where(usable, rows - mean, 0)


def _inverse_root(root: Tensor, count: Tensor, mean: Tensor) -> Tensor:
    """Return (R^T R / count)^(-1/2), symmetric after scaling, zero where nothing varies."""
    scale = root.norm(dim=0)
    # Rounding errors of a large offset look like small variations.
    noise = 8 * torch.finfo(root.dtype).eps * mean.abs() * count.sqrt()
    scale = torch.where(scale > noise, scale, 0)
    inverse_scale = torch.where(scale > 0, 1 / scale, 0)
    _, values, vectors = torch.linalg.svd(root * inverse_scale)
    kept = values > RELATIVE_CUT * values[0] + (vectors * (noise * inverse_scale)).norm(dim=1)
    gains = torch.where(kept, count.sqrt() / values.clamp(min=1e-300), 0)
    symmetric: Tensor = (vectors.mT * gains) @ vectors
    return inverse_scale[:, None] * symmetric
