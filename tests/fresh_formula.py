"""J of one call as a plain differentiable formula: what fresh statistics are tested against."""

from __future__ import annotations

import torch
from torch import Tensor


def plain_objective(
    y: Tensor,
    lengths: list[int] | None = None,
    *,
    mu: float = 0.5,
    eps: float = 1e-3,
    ridge: float = 1e-4,
    long_term: str = "stream",
    diagonal: bool = False,
    scatter: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """J, W and B of frames (frames, features, positions), clips one after the other.

    Every position of every clip is a stream. A stream stands still at a frame that has a NaN or an
    infinite value. The short-term mean follows Eq. 6 and starts with the clip's first frame; W is
    the mean over all streams and frames that have a predecessor, B over the same frames for
    long_term="stream" and else over all frames of references that average at least two.

    Args:
        y: (frames, features, positions).
        lengths: of the clips.
        mu, eps, ridge, long_term, diagonal: as in `UL1d` and `UL2d`.
        scatter: (frames, features, features), added to W, only where there is one position.
    """
    features = y.shape[1]
    within, between, scatters = [], [], []
    usable = y.detach().isfinite().all(1)  # (frames, positions)
    clean = torch.where(usable[:, None], y, 0)
    begin, clips = 0, []
    for length in lengths or [len(y)]:
        clips.append(slice(begin, begin + length))
        begin += length
    for position in range(y.shape[2]):
        everything = clean[usable[:, position], :, position]
        for clip in clips:
            there = usable[clip, position]
            frames = clean[clip, :, position][there]
            if long_term == "shared" and len(everything) > 1:
                reference = [everything.mean(0)] * len(frames)
            elif long_term == "clip" and len(frames) > 1:
                reference = [frames.mean(0)] * len(frames)
            elif long_term == "stream" and len(frames) > 1:
                reference = _average(frames, eps)
            else:
                reference = []
            short = _average(frames, mu)
            within += [y - m for y, m in zip(frames[1:], short[1:], strict=True)]
            first = int(long_term == "stream")  # where a stream's first frame is its own reference
            between += [m - r for m, r in zip(short[first:], reference[first:], strict=False)]
            if scatter is not None:
                scatters += list(scatter[clip][there][1:])
    D, E = torch.stack(within), torch.stack(between)
    W, B = D.T @ D / len(D), E.T @ E / len(E)
    if scatter is not None:
        W = W + torch.stack(scatters).mean(0)
    if diagonal:
        W, B = torch.diag(W.diagonal()), torch.diag(B.diagonal())
    eye = torch.eye(features, dtype=y.dtype)
    log_det_w = torch.logdet(W + ridge * W.trace() / features * eye)
    log_det_b = torch.logdet(B + 1e-4 * ridge * B.trace() / features * eye)
    return (log_det_w - log_det_b) / 2, W, B


def _average(frames: Tensor, rate: float) -> list[Tensor]:
    """The moving average after each frame, with early frames weighted by what was seen."""
    total, weight, averages = torch.zeros_like(frames[:1]).sum(0), 0.0, []
    for frame in frames:
        total = (1 - rate) * total + rate * frame
        weight = (1 - rate) * weight + rate
        averages.append(total / weight)
    return averages
