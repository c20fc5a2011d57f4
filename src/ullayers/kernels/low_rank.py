"""The solves of Eq. 11 for a block of steps, and where frames are fewer than dimensions.

Between two renewals of its ridge a covariance differs from what it was by the frames alone, so all
solves of such a segment come from one factor of the frames' own Gram matrix (docs/maths.md). What
it was before has to be inverted once for each segment; but a covariance that remembers a few dozen
frames only is made of these, and then that is a small matrix too.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ullayers.kernels.covariance import (
    RIDGE_HIGH,
    RIDGE_LOW,
    Fading,
    diagonal_path,
    forgotten_bits,
    solve_batched,
)
from ullayers.kernels.state import Covariance, Rates, on_host

MAX_RANGE_BITS = 40.0  # how far weights inside one segment may lie apart
LOW_RANK_FROM = 64  # below this width plain batched factors are faster
FORGOTTEN, NEGLIGIBLE = 1e-12, 1e-8  # of the ridge: what is left out of a covariance, at most
ROUNDED, DIGITS = 8 * torch.finfo(torch.float64).eps, 49  # binary ones, down to what is rounded
MOST_REMEMBERED = 0.25  # of the dimensions, for the frames that a covariance is made of
MOST_ROWS = 0.5  # of them, with those of the block


def solve(
    deviation: Tensor,
    counted: Tensor,
    cov: Covariance,
    rate: float,
    rates: Rates,
    renewals: Tensor,
    noise: Tensor,
    scatter: Tensor | None,
) -> tuple[Tensor, Tensor | None, Covariance, Tensor]:
    """Move `cov` on by a block of steps and solve it for every step's deviations.

    Args:
        deviation: (T, S, d), zero where not counted.
        counted: (T, S) bool, the streams that take part in each step.
        cov: the covariance before the block.
        rate: how fast it forgets.
        rates: the choices of the layer.
        renewals: (T,) bool, as from `ridge_renewals`.
        noise: (T,), what the diagonal may not fall below.
        scatter: (T, d, d), more scatter for each step to bring.

    Returns:
        the solved deviations (T, S, d), each divided by the step's number of counted streams; the
        inverses (T, d, d) likewise, where they were formed; the end covariance; and how many
        steps could not be solved (their result is zero).
    """
    count = counted.sum(1)
    if may_use_low_rank(deviation) and scatter is None and not rates.diagonal:
        solved, cov, singular = _solve_low_rank(deviation, count, cov, rate, rates, renewals, noise)
        return solved, None, cov, singular
    return solve_batched(deviation, count, cov, rate, rates, renewals, noise, scatter)


def may_use_low_rank(deviation: Tensor) -> bool:
    """Few streams and many features: frames are fewer than dimensions.

    The low-rank path looks at step counts on the host, which a compiled graph must not do.
    """
    _, streams, d = deviation.shape
    return d >= LOW_RANK_FROM and 8 * streams <= d and not torch.compiler.is_compiling()


def _solve_low_rank(
    deviation: Tensor,
    count: Tensor,
    cov: Covariance,
    rate: float,
    rates: Rates,
    renewals: Tensor,
    noise: Tensor,
) -> tuple[Tensor, Covariance, Tensor]:
    """As `solve_batched`, segment by segment with one factor of the start and no (T, d, d)."""
    solved = torch.empty_like(deviation)
    singular = torch.zeros((), dtype=torch.int64, device=deviation.device)
    if on_host(deviation):
        done = _solve_remembered(deviation, count, cov, rate, rates, renewals, noise)
        if done is not None:
            return done
    for part, renew in _segments(deviation, rate, renewals & (rates.ridge > 0)):
        outcome = _solve_segment(deviation[part], count[part], cov, rate, rates, renew, noise[part])
        if outcome is None:  # the ridge had to be raised inside: take the general path
            solved[part], _, cov, bad = solve_batched(
                deviation[part], count[part], cov, rate, rates, renewals[part], noise[part], None
            )
            singular = singular + bad
        else:
            solved[part], cov = outcome
    return solved, cov, singular


def _segments(deviation: Tensor, rate: float, renewals: Tensor) -> list[tuple[slice, bool]]:
    """Steps between renewals of the ridge, and whether it is renewed before the first of them."""
    T, streams, d = deviation.shape
    longest = max(1, min(int(MAX_RANGE_BITS / forgotten_bits(rate)), d // streams))
    renewed, segments, begin = renewals.tolist(), [], 0
    while begin < T:
        end = begin + 1
        while end < T and not renewed[end] and end - begin < longest:
            end += 1
        segments.append((slice(begin, end), renewed[begin]))
        begin = end
    return segments


def _solve_segment(
    deviation: Tensor,
    count: Tensor,
    cov: Covariance,
    rate: float,
    rates: Rates,
    renew: bool,
    noise: Tensor,
) -> tuple[Tensor, Covariance] | None:
    """All solves of a segment from one Cholesky factor of its rows' Gram matrix in W_0^-1."""
    T, S, d = deviation.shape
    start = cov.value * cov.evidence
    relative = rates.ridge / d
    ridge = RIDGE_HIGH * relative * start.trace() if renew else cov.ridge
    fading = Fading.of(count, cov, rate)
    decay, evidence = fading.decay, fading.evidence
    rows = deviation.double().reshape(T * S, d)
    counts = count.clamp(min=1).double()
    share = fading.weights[-1] / counts  # of each row's square in the end state
    squares = rows.square().sum(1).view(T, S).sum(1) / counts
    traces = decay * start.trace() + fading.weights @ squares
    lowest = torch.maximum(RIDGE_LOW * relative * traces, noise * evidence)
    eye = torch.eye(d, dtype=start.dtype, device=start.device)
    base, bad_base = torch.linalg.cholesky_ex(start + ridge * eye)
    projected = torch.cholesky_solve(rows.T, base).T  # D P
    per_row = (decay * counts / rate).repeat_interleave(S)
    small, bad_small = torch.linalg.cholesky_ex(rows @ projected.T + torch.diag(per_row))
    too_low = (ridge * decay < lowest).any()
    if bool(too_low | (bad_base != 0) | (bad_small != 0)):
        return None
    half = torch.linalg.solve_triangular(small, projected, upper=False).view(T, S, d)
    diagonal = small.view(T, S, T, S).diagonal(dim1=0, dim2=2).permute(2, 0, 1)  # (T, S, S)
    solved = torch.linalg.solve_triangular(diagonal.mT, half, upper=True)
    scale = evidence / rate * (count > 0)
    total = decay[-1] * start + (rows * share.repeat_interleave(S)[:, None]).T @ rows
    end = Covariance(total / evidence[-1].clamp(min=1e-300), evidence[-1], ridge * decay[-1])
    return (solved * scale[:, None, None]).to(deviation.dtype), end


def _solve_remembered(
    deviation: Tensor,
    count: Tensor,
    cov: Covariance,
    rate: float,
    rates: Rates,
    renewals: Tensor,
    noise: Tensor,
) -> tuple[Tensor, Covariance, Tensor] | None:
    """As `solve_batched`, if the covariance is made of few frames; None if it is not.

    With these frames and those of the block as rows of V, each times the root of its weight at a
    step, the covariance is V^T V, and (V^T V + level)^-1 V^T = V^T (V V^T + level)^-1: a matrix as
    large as the frames are many.
    """
    T, S, d = deviation.shape
    if T * S > MOST_ROWS * d or _remembered(float(cov.evidence), rate) * S > MOST_REMEMBERED * d:
        return None
    start, fading = cov.value * cov.evidence, Fading.of(count, cov, rate)
    roots = _roots(start, float(cov.ridge))
    if roots is None or len(roots) + T * S > MOST_ROWS * d:
        return None
    known, rows = len(roots), torch.cat([roots, deviation.double().reshape(T * S, d)])
    gram, counts = rows @ rows.T, count.clamp(min=1).double()
    brought = (fading.weights / counts).repeat_interleave(S, 1)
    weights = torch.cat([fading.decay[:, None].expand(T, known), brought], dim=1)
    trace = weights @ gram.diagonal()
    level, ridge = diagonal_path(trace, start.trace(), cov.ridge, fading, rates, renewals, noise)
    root, own = weights.sqrt(), torch.arange(T * S, device=rows.device).view(T, S)
    inner = root[:, :, None] * gram * root[:, None, :]
    inner.diagonal(dim1=1, dim2=2).add_(level[:, None])
    factor, info = torch.linalg.cholesky_ex(inner)
    if bool(info.any()):
        return None
    chosen = rows.new_zeros(T, len(rows), S)
    chosen.scatter_(1, (known + own)[:, None], 1.0)
    mixed = root[:, :, None] * torch.cholesky_solve(chosen, factor)
    usable = (trace > 0) & (count > 0)  # without it a row has no weight
    share = torch.where(usable, root.gather(1, known + own)[:, 0] * counts, 1.0)
    mixed = mixed * (fading.evidence * usable / share)[:, None, None]
    solved = (mixed.mT.reshape(T * S, -1) @ rows).view(T, S, d)
    total, evidence = (rows * weights[-1][:, None]).T @ rows, fading.evidence[-1]
    end = Covariance(total / evidence.clamp(min=1e-300), evidence, ridge[-1])
    return solved.to(deviation.dtype), end, info.sum()


def _remembered(evidence: float, rate: float) -> float:
    """How many steps weigh more than a rounding error, of those that the evidence speaks of."""
    seen = math.log1p(-evidence) / math.log1p(-rate) if evidence < 1 else math.inf
    return min(seen, DIGITS / forgotten_bits(rate))


def _roots(total: Tensor, ridge: float) -> Tensor | None:
    """Few rows (k, d) whose squares add up to the total; None if they are many.

    What is left out is nothing beside the ridge, or no more than the rounding errors in the total.
    """
    from scipy.linalg.lapack import dpstrf  # here, because to load scipy takes its time

    largest = float(total.diagonal().max())
    if largest == 0:
        return total[:0]
    least = max(FORGOTTEN * ridge, ROUNDED * largest)
    if not least < NEGLIGIBLE * ridge:
        return None
    factor, order, rank, _ = dpstrf(total.numpy(), tol=least, lower=1)
    if rank > MOST_REMEMBERED * len(total):
        return None
    rows = total.new_zeros(rank, len(total))
    rows[:, torch.from_numpy(order).long() - 1] = torch.from_numpy(factor).tril()[:, :rank].T
    return rows
