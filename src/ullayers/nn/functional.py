"""J of one call as a plain function, to read, to differentiate twice, or to use in `torch.func`.

The layers compute the same faster, in less memory, and also where J is not defined.

>>> import torch, ullayers as ul
>>> torch.func.grad(ul.functional.objective)(torch.randn(20, 3)).shape
torch.Size([20, 3])
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ullayers.kernels.frames import packing_of
from ullayers.kernels.moments import NOISE, LongTerm, ridges


def objective(
    y: Tensor,
    lengths: Sequence[int] | None = None,
    *,
    mu: float = 0.5,
    eps: float = 1e-3,
    long_term: LongTerm = "clip",
    ridge: float = 1e-4,
    scatter: Tensor | None = None,
    diagonal: bool = False,
) -> Tensor:
    """Return J = (log det W - log det B) / 2 of a layer's input, with fresh statistics.

    With D = y - short-term mean and E = short-term mean - long-term mean of every frame, W is the
    mean of D D^T and B that of E E^T. It is computed in float64. Memory grows with the square of
    the number of frames in a clip: train with the layers.

    Args:
        y: Codes (time, features) or (clips, time, features), or maps (time, channels, height,
            width) or (clips, time, channels, height, width). Every position of every clip is a
            stream. Frames with a NaN, an infinite or a huge value are left out where they have it.
        lengths: Number of frames of each clip, for concatenated clips.
        mu: Short-term rate.
        eps: Long-term rate, for `long_term="stream"`.
        long_term: The long-term mean: the mean of each "clip", one "shared" by all clips, or the
            moving average of each "stream" within the call.
        ridge: Added to the diagonal of W, relative to its mean diagonal; B gets 1e-4 times as much.
        scatter: Covariance of each frame (*y.shape, features), added to W; for codes.
        diagonal: Whether to use one variance per feature instead of full covariances.

    Returns:
        J, a scalar; NaN or infinite if nothing varies.

    Example:
        >>> import torch, ullayers as ul
        >>> _ = torch.manual_seed(0)
        >>> y = torch.randn(40, 3).cumsum(0).requires_grad_()
        >>> J = ul.functional.objective(y, lengths=[25, 15])
        >>> (gradient,) = torch.autograd.grad(J, y)
        >>> layer, same = ul.UL1d(3, statistics="fresh"), y.detach().requires_grad_()
        >>> with ul.sequences(layer, lengths=[25, 15]):
        ...     ul.backward(layer(same))
        >>> torch.allclose(layer.objective, J), torch.allclose(same.grad, gradient, atol=1e-6)
        (True, True)
    """
    codes = y.ndim < 4
    frames = y.reshape(-1, y.shape[-1], 1) if codes else y.reshape(-1, *y.shape[-3:]).flatten(2)
    if lengths is None:
        lengths = [len(y)] if y.ndim % 2 == 0 else [y.shape[1]] * len(y)
    packing_of(tuple(lengths)).check((len(frames),))
    usable = _usable(frames, len(frames) * frames[0].numel())
    if scatter is not None:
        scatter = scatter.reshape(-1, y.shape[-1], y.shape[-1]).double()
        usable = usable & _usable(scatter.flatten(1)[..., None], 1)
        scatter = torch.where(usable, (scatter + scatter.mT) / 2, 0)
    x = torch.where(usable, frames, 0).double()
    clips = list(zip(x.split(list(lengths)), usable.split(list(lengths)), strict=True))
    short = torch.cat([_average(clip, there, mu) for clip, there in clips])
    past = torch.cat([there & (there.cumsum(0) > 1) for _, there in clips])
    if long_term == "stream":
        long = torch.cat([_average(clip, there, eps) for clip, there in clips])
        counted = past
    else:
        groups = [(x, usable)] if long_term == "shared" else clips
        number = torch.cat([there.sum(0).expand_as(there) for _, there in groups])
        total = torch.cat([clip.sum(0).expand_as(clip) for clip, _ in groups])
        long = total / number.clamp(min=1)
        counted = usable & (number > 1)
    W, B = _mean_square(x - short, past), _mean_square(short - long, counted)
    if scatter is not None:
        W = W + (past * scatter).sum(0) / past.sum()
    if diagonal:
        W, B = torch.diag(W.diagonal()), torch.diag(B.diagonal())
    of_w, of_b = ridges(ridge, torch.float64)
    J = (_log_det(W, of_w, B) - _log_det(B, of_b, W)) / 2
    return J.to(torch.promote_types(y.dtype, torch.float32))


def _usable(values: Tensor, number: int) -> Tensor:
    """Return (frames, 1, positions) bool: where a sum of so many squares does not overflow."""
    most = torch.finfo(torch.promote_types(values.dtype, torch.float32)).max
    largest = (most / max(256, 16 * number)) ** 0.5
    return values.detach().abs().amax(1, keepdim=True).le(largest)


def _average(x: Tensor, there: Tensor, rate: float) -> Tensor:
    """Return the moving average (Eq. 6) after each step, without frames before the first one."""
    seen = there.cumsum(0)[:, 0]
    age = seen[:, None] - seen  # in frames that are there: (time, time, positions)
    weights = torch.where((age >= 0) & there[:, 0], (1 - rate) ** age.double(), 0)
    weights = weights / weights.sum(1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)
    return torch.einsum("tsp,sdp->tdp", weights, x)


def _mean_square(x: Tensor, counted: Tensor) -> Tensor:
    """Return the mean of x x^T over the streams and steps that count."""
    x = torch.where(counted, x, 0)
    return torch.einsum("tdp,tep->de", x, x) / counted.sum()


def _log_det(cov: Tensor, ridge: float, other: Tensor) -> Tensor:
    """Return log det of a covariance with its ridge, at least rounding errors of the other one."""
    d = len(cov)
    noise = (NOISE * torch.finfo(cov.dtype).eps) ** 2 * other.detach().trace()
    level = torch.maximum(ridge * cov.trace(), noise) / d
    return torch.logdet(cov + level * torch.eye(d, dtype=cov.dtype, device=cov.device))
