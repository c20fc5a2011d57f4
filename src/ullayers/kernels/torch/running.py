"""Running statistics: the recurrence of both layers (Eq. 6-11), without a loop over steps.

Frames are (T, d, S): T consecutive steps, d features, S streams that share W and B. Two averages
with their rates, mu and eps, are computed side by side: tensors that begin with a dimension of size
two hold the short-term mean, D or W first, and the long-term mean, E or B second.

Two conventions preserve precision:

* A mean is kept as a value and what rounding the value leaves out, and enters only as its lag
  behind the latest frame. In a scene that comes to rest the lag decays to zero with full relative
  precision, and an offset of the data costs no digits.
* Every average has an evidence e, the total weight of the frames in it, from 0 (no frame yet) to 1
  (full memory), and is updated as (a e average + m new) / (a e + m) with a = 1 - m. Starting at
  e = 0 weights early frames correctly; starting at e = 1 is the moving average of the paper.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ullayers.kernels.frames import on_host
from ullayers.kernels.moments import Rates, on_device

# The ridge is set to RIDGE_HIGH, decays together with the covariance, and never falls below
# RIDGE_LOW; both are multiples of `ridge * trace / d`. It is renewed at fixed step counts, so it
# does not depend on how a stream is split into calls.
RIDGE_HIGH, RIDGE_LOW = 4.0, 0.25
# In a still scene W decays to zero and only rounding errors would be divided by it. W is kept
# above this many units in the last place of B, and B above as many of W.
NOISE_UNITS = 16
# A frame this many times larger than B (in squares) means that the outputs changed their scale.
JUMP = 100.0
NEVER = -1e4  # logarithm of a share of zero: exp gives 0, and differences of it stay finite
TINY = 1e-30  # instead of an evidence of zero
MAX_BLOCK, MAX_SMALL_BLOCK = 32, 128  # steps
ONE_FRAME = "NumPy and LAPACK for one frame"
SMALL_STEP = 512  # values in a frame and in a covariance: below, calls cost more than arithmetic
FOR_ONE_FRAME = (  # the buffers that `advance_frame` reads
    "short_mean short_mean_rest long_mean long_mean_rest short_cov short_cov_rest long_cov "
    "long_cov_rest short_evidence long_evidence cov_evidence ridge_level pull steps"
).split()


@dataclass(frozen=True)
class State:
    """State of the recurrence between two steps.

    Attributes:
        means: (2, d, S) short- and long-term means.
        rests: (2, d, S) what rounding the means leaves out.
        seen: (2, S) float64, evidence of the means.
        covariances: (2, d, d) float64, W and B.
        evidence: (2,) float64, of W and B.
        ridge: (2,) float64, added to the diagonals of W and B times their evidence.
        pull: (d,) float64, moving average of the gradient, summed over streams.
        steps: () int64, number of steps with a frame.
    """

    means: Tensor
    rests: Tensor
    seen: Tensor
    covariances: Tensor
    evidence: Tensor
    ridge: Tensor
    pull: Tensor
    steps: Tensor

    def mean(self, i: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the short- (0) or long-term (1) mean, its rest and its evidence."""
        return self.means[i], self.rests[i], self.seen[i]


@dataclass(frozen=True)
class Result:
    """Gradients of the pooled J and the end state.

    Attributes:
        gradient: (T, d, S) dJ/dy.
        scatter_gradient: (T, S, d, d) dJ/dscatter, if there is a scatter.
        state: State after the last step.
        singular: () int64, number of times that W or B had no inverse.
    """

    gradient: Tensor
    scatter_gradient: Tensor | None
    state: State
    singular: Tensor


class _Clip(NamedTuple):
    """For long_term="clip": the mean of each stream over all of its frames."""

    mean: Tensor  # (d, S)
    rest: Tensor  # (d, S)
    counts: Tensor  # (S,) bool, streams with two frames or more


class _Means(NamedTuple):
    """Short- and long-term means at the end of a block, as in `State`."""

    means: Tensor
    rests: Tensor
    seen: Tensor


def advance(
    y: Tensor,
    state: State,
    rates: Rates,
    active: Tensor | None = None,
    scatter: Tensor | None = None,
    scale: float = 1.0,
) -> Result:
    """Return the gradients of all frames, and the state after them.

    Args:
        y: (T, d, S) in the working precision, float32 or float64.
        state: State before the first step, its means in the working precision; not changed.
        rates: Settings of the layer.
        active: (T, S) bool, where a stream has a frame; elsewhere it does not change. None: all.
        scatter: (T, S, d, d) added to the scatter of each frame's deviation in W.
        scale: Factor of the gradients.
    """
    if active is not None:
        y = _filled(y, active, state.means[0])
    clip = _clip_mean(y, active) if rates.long_term == "clip" else None
    results = []
    block = _block_length(y, rates)
    for begin in range(0, len(y), block):
        part = slice(begin, begin + block)
        there = None if active is None else active[part]
        extra = None if scatter is None else scatter[part]
        results.append(_advance_block(y[part], state, rates, there, extra, clip, scale))
        state = results[-1].state
    if len(results) == 1:
        return results[0]
    spreads = [each.scatter_gradient for each in results if each.scatter_gradient is not None]
    return Result(
        torch.cat([each.gradient for each in results]),
        torch.cat(spreads) if spreads else None,
        state,
        torch.stack([each.singular for each in results]).sum(),
    )


def why_no_frame(y: Tensor, buffers: Mapping[str, Tensor], rates: Rates) -> str | None:
    """Return why `advance_frame` does not accept a call of (..., d), or None if it does."""
    frames = y.numel() // y.shape[-1]
    if not on_host(y):
        return f"the frames are on {y.device.type}, not on a CPU"
    if y.ndim > 3:
        return "these are maps"
    if frames != 1:
        return f"{frames} frames"
    if rates.long_term != "stream":
        return f'long_term is "{rates.long_term}", not "stream"'
    if len(buffers["short_mean"]) != 1 or len(buffers["long_mean"]) != 1:
        return "the last call had several streams"
    goes_on = buffers["continues"].item() and buffers["short_evidence"].item() > 0
    return None if goes_on else "no frames came before"


def advance_frame(
    y: Tensor, buffers: Mapping[str, Tensor], rates: Rates, scale: float, largest: float
) -> tuple[Tensor, dict[str, Tensor]] | None:
    """Do what `advance` does for one frame of a single stream on a CPU.

    In NumPy and LAPACK: for so few values, operations of PyTorch take several times as long.

    Args:
        y: The frame, d values.
        buffers: Statistics of the layer, by their names; not changed.
        rates: Settings of the layer.
        scale: Factor of the gradient.
        largest: A frame with a larger value, or a NaN, is not accepted.

    Returns:
        Gradient (1, d) in float64 and the new buffers, or None if the frame was not accepted or a
        covariance has no inverse.
    """
    from scipy.linalg.blas import dger
    from scipy.linalg.lapack import dposv

    old = {name: buffers[name].numpy() for name in FOR_ONE_FRAME}
    frame = y.detach().double().numpy(force=True).reshape(1, -1)
    if not np.abs(frame).max() <= largest:  # false for NaN
        return None
    d, number = frame.shape[1], int(old["steps"])
    noise = NOISE_UNITS * float(np.finfo(frame.dtype).eps)
    evidence, ridge = old["cov_evidence"].tolist(), old["ridge_level"].tolist()
    new: dict[str, Any] = {"steps": np.asarray(number + 1)}
    both, covariances, before = np.empty((2, d)), np.empty((2, d, d)), [0.0, 0.0]
    for i, (term, rate) in enumerate((("short", rates.mu), ("long", rates.eps))):
        value, rest = old[f"{term}_mean"], old[f"{term}_mean_rest"]
        if (value + rest != value).any():  # set by the user
            rest = np.zeros_like(rest)
        seen = (1 - rate) * float(old[f"{term}_evidence"][0])
        new[f"{term}_evidence"] = np.array([seen + rate])
        lag = (frame - value - rest) * (seen / (seen + rate))
        mean = (frame - lag).astype(value.dtype)
        new[f"{term}_mean"], new[f"{term}_mean_rest"] = mean, (frame - mean) - lag
        both[i] = lag[0]
        value, rest = old[f"{term}_cov"], old[f"{term}_cov_rest"]
        covariances[i] = value
        if (value.diagonal() + rest.diagonal() == value.diagonal()).all():
            covariances[i] += rest
        before[i] = float(covariances[i].trace())
        if number % ridge_period(rate) == 0:
            ridge[i] = RIDGE_HIGH * rates.ridge / d * evidence[i] * before[i]
        ridge[i] *= 1 - rate
    both[1] -= both[0]
    for i, rate in enumerate((rates.mu, rates.eps)):
        kept = (1 - rate) * evidence[i]
        evidence[i] = kept + rate
        covariances[i] *= kept / evidence[i]
        part = both[i] * math.sqrt(rate / evidence[i])
        dger(1.0, part, part, a=covariances[i].T, overwrite_a=True)
    diagonals = covariances.reshape(2, -1)[:, :: d + 1]
    without, trace, solved = diagonals.copy(), diagonals.sum(1).tolist(), []
    for i in range(2):
        low = max(RIDGE_LOW * rates.ridge * trace[i], noise * trace[1 - i]) / d
        diagonals[i] += max(ridge[i] / evidence[i], low) if trace[i] > 0 else 1.0
        _, found, info = dposv(covariances[i].T, both[i], lower=True)
        if info:
            return None
        solved.append(found)
    diagonals[:] = without
    gradient = (solved[0] - solved[1])[None]
    if rates.centred:
        jumps = trace[1] > (1 + JUMP * rates.eps / evidence[1]) * before[1]
        share = math.sqrt(before[1] / trace[1]) if jumps else 1.0
        pull = old["pull"] * ((1 - rates.eps) * share) + rates.eps * gradient
        fits = np.abs(pull).max() <= np.finfo(old["pull"].dtype).max
        new["pull"], gradient = pull if fits else np.zeros_like(pull), gradient - pull
    values = covariances.astype(old["short_cov"].dtype)
    new["short_cov"], new["long_cov"] = values
    covariances -= values
    new["short_cov_rest"], new["long_cov_rest"] = covariances
    new["cov_evidence"], new["ridge_level"] = np.array(evidence), np.array(ridge)
    return torch.from_numpy(gradient * scale), {n: torch.from_numpy(v) for n, v in new.items()}


def ridge_period(rate: float) -> int:
    """Return the steps between two renewals of the ridge: at most 64, or a decay by 16."""
    return max(1, min(64, int(4 / _forgotten_bits(rate))))


def _forgotten_bits(rate: float) -> float:
    """Return by how many powers of two a weight decays in one step."""
    return -math.log1p(-rate) / math.log(2)


def _block_length(y: Tensor, rates: Rates) -> int:
    """Return the steps of a block: (block, d, d) must be small and weights must not underflow."""
    _, d, streams = y.shape
    range_bits = 900 if y.dtype == torch.float64 else 100
    longest = min(MAX_BLOCK, 2**22 // d**2)
    if max(streams, d) * d <= SMALL_STEP:
        longest = MAX_SMALL_BLOCK
    return max(1, min(longest, int(range_bits / _forgotten_bits(rates.mu))))


def _advance_block(
    y: Tensor,
    state: State,
    rates: Rates,
    active: Tensor | None,
    scatter: Tensor | None,
    clip: _Clip | None,
    scale: float,
) -> Result:
    """Run one block of steps."""
    _, d, streams = y.shape
    both, counted, means = _follow_means(y, state, rates, active, clip)
    count = counted.sum(-1, dtype=torch.float64)
    if counted.shape[2] < streams:
        count = count * streams
    live, count = count > 0, count.clamp(min=1)
    added = live * _on(y, rates.mu, rates.eps)[:, None]  # a step without a stream adds nothing
    keep = 1 - added
    evidence = _fading(keep, state.evidence, added)
    before = _before(state.evidence, evidence)
    divisor = evidence.clamp(min=TINY)
    grams = _grams(both, counted, added / (divisor * count), scatter, rates.diagonal)
    kept = (keep * before / divisor)[..., None, None]
    covariances = _fading(kept, state.covariances, grams)
    trace = covariances.diagonal(dim1=2, dim2=3).sum(2)
    traces = _before(state.covariances.diagonal(dim1=1, dim2=2).sum(1), trace)
    live_steps = None if active is None else active.any(1)
    ridge = _follow_ridge(keep, before * traces, state, rates, live_steps)
    level = torch.maximum(ridge / divisor, trace * (RIDGE_LOW * rates.ridge / d))
    noise = trace.flip(0) * (NOISE_UNITS * torch.finfo(y.dtype).eps / d)
    # Without any scatter there is nothing to solve; the 1 only makes the factor exist.
    level = torch.maximum(level, noise) + (trace == 0)
    share = (live & (trace > 0)) / count
    gradient, inverse, singular = _solve(both, covariances, level, share, scatter is not None)
    pull = state.pull
    if rates.centred:
        jump = trace[1] > (1 + JUMP * (added[1] / divisor[1])) * traces[1]
        fades = torch.where(jump, (traces[1] / trace[1]).sqrt(), jump.new_ones((), dtype=y.dtype))
        sums = gradient.sum(2, dtype=torch.float64) * added[1][:, None]
        pulls = _fading((keep[1] * fades)[None, :, None], pull[None], sums[None])[0]
        pull = pulls[-1]
        each = (pulls / count[1][:, None]).to(y.dtype)
        gradient -= each[..., None] * counted[1][:, None]
    spread = None
    if inverse is not None and scatter is not None:
        there = counted[0].expand(-1, streams)
        spread = there[..., None, None] * (inverse[0] * (scale / 2))[:, None]
    steps = state.steps + (len(y) if live_steps is None else live_steps.sum())
    end = State(*means, covariances[:, -1], evidence[:, -1], ridge[:, -1], pull, steps)
    return Result(gradient.mul_(scale), spread, end, singular)


def _follow_means(
    y: Tensor, state: State, rates: Rates, active: Tensor | None, clip: _Clip | None
) -> tuple[tuple[Tensor, Tensor], Tensor, _Means]:
    """Eq. 6 and 7 over a block.

    Returns:
        D and E (T, d, S), zero where they do not count; where they count, (2, T, S) or, if all
        streams are alike, (2, T, 1); and the means at the end.
    """
    steps = y.diff(dim=0)
    short_lag, had_past, seen = _follow(y, steps, *state.mean(0), rates.mu, active)
    counts = had_past
    if clip is not None:
        long_lag, counts, ever = y - clip.mean - clip.rest, clip.counts, torch.ones_like(seen)
    elif rates.long_term == "shared":
        long_lag, counts, ever = _follow_shared(y, state, rates, active)
    else:
        long_lag, _, ever = _follow(y, steps, *state.mean(1), rates.eps, active)
    counted = torch.stack(torch.broadcast_tensors(had_past, counts))
    if active is not None:
        counted = counted & active
    end = torch.stack([short_lag[-1], long_lag[-1]])
    means = y[-1] - end
    between = long_lag.sub_(short_lag)
    seen = torch.stack(torch.broadcast_tensors(seen, ever)).expand(2, y.shape[2])
    within = short_lag.mul_(counted[0][:, None])
    return (
        (within, between.mul_(counted[1][:, None])),
        counted,
        _Means(means, y[-1] - means - end, seen),
    )


def _follow(
    y: Tensor,
    steps: Tensor,
    mean: Tensor,
    rest: Tensor,
    seen: Tensor,
    rate: float,
    active: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Follow a moving average as its lag behind the frames.

    The lag decays, and grows by every change of the frames: with evidence e and a = 1 - rate,
    e_t lag_t = a e_(t-1) (lag_(t-1) + y_t - y_(t-1)).

    Args:
        y: (T, d, S), without gaps.
        steps: (T - 1, d, S), changes of the frames.
        mean: (d, S) average before the block.
        rest: (d, S) what rounding it leaves out.
        seen: (S,) its evidence.
        rate: Rate of forgetting.
        active: (T, S) bool, where there is a frame; None: everywhere.

    Returns:
        Lags (T, d, S), whether there were frames before each step (T, S), and the evidence at the
        end (S,). If all streams are alike, S is one in the last two.
    """
    change = torch.cat([(y[0] - mean - rest)[None], steps])
    if active is None:
        earlier = torch.arange(len(y), device=y.device)[:, None]
        clock = earlier + 1
        if y.shape[2] > 1 and on_host(seen) and bool((seen == seen[0]).all()):
            seen = seen[:1]
    else:
        clock = active.cumsum(0)
        earlier = clock - active.long()
    logs = clock.double() * math.log1p(-rate)
    decay = logs.exp()
    evidence = decay * seen - logs.expm1()
    before = _before(seen[None], evidence[None])[0]
    weight = (before / (earlier.double() * math.log1p(-rate)).exp()).to(y.dtype)
    gain = (decay / evidence.clamp(min=TINY)).to(y.dtype)
    if seen.shape[0] == 1 and gain.shape[1] == 1:  # a running sum of all streams is one product
        lags = ((gain * weight.T).tril() @ change.flatten(1)).view_as(y)
    else:
        lags = gain[:, None] * (weight[:, None] * change).cumsum(0)
    return lags, before > 0, evidence[-1]


def _follow_shared(
    y: Tensor, state: State, rates: Rates, active: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Follow the long-term mean that all sequences share (one per position in a conv layer).

    Returns:
        Lags of the frames (T, d, S), whether there were frames before each step (T, S), and the
        evidence at the end (S,).
    """
    n = rates.sequences
    frames = y.unflatten(2, (n, -1))
    positions = frames.shape[3]
    there = None
    mean, rest, seen = (each[..., :positions] for each in state.mean(1))
    if active is None:
        pooled = frames.mean(2)
    else:
        on = active.unflatten(1, (n, -1))
        number = on.sum(1)
        there = number > 0
        pooled = (frames * on[:, None]).sum(2) / number.clamp(min=1)[:, None]
        pooled = _filled(pooled, there, mean)
    steps = pooled.diff(dim=0)
    lags, had, seen = _follow(pooled, steps, mean, rest, seen, rates.eps, there)
    own = (frames - pooled[:, :, None] + lags[:, :, None]).flatten(2)
    return own, had.expand(-1, positions).repeat(1, n), seen.expand(positions).repeat(n)


def _clip_mean(y: Tensor, active: Tensor | None) -> _Clip:
    first = y[0]
    lags = y - first
    if active is None:
        number = torch.full_like(first[0], len(y))
    else:
        lags = lags * active[:, None]
        number = active.sum(0).to(y.dtype)
    return _Clip(first, lags.sum(0) / number.clamp(min=1), number > 1)


def _filled(y: Tensor, active: Tensor, mean: Tensor) -> Tensor:
    """Return frames whose gaps repeat the frame before, or the first one.

    Nothing changes between equal frames, so the lags of the means are right without a mask. A
    stream without any frame rests at its mean.
    """
    index = torch.arange(len(y), device=y.device)[:, None]
    index = torch.where(active, index, -1).cummax(0).values
    index = torch.where(index < 0, active.to(torch.uint8).argmax(0), index)
    filled = y.gather(0, index[:, None].expand_as(y))
    return torch.where(active.any(0), filled, mean)


def _grams(
    both: tuple[Tensor, Tensor],
    counted: Tensor,
    share: Tensor,
    scatter: Tensor | None,
    diagonal: bool,
) -> Tensor:
    """Return what each step adds to W and B (2, T, d, d): their weights times sums over streams."""
    if diagonal:
        grams = torch.stack([torch.diag_embed(x.square().sum(2)) for x in both]).double()
    else:
        grams = torch.stack([x @ x.mT for x in both]).double()
    if scatter is not None:
        extra = torch.where(counted[0][..., None, None], scatter, 0).sum(1)
        extra = torch.diag_embed(extra.diagonal(dim1=1, dim2=2)) if diagonal else extra
        grams[0] += extra
    return grams * share[..., None, None]


def _follow_ridge(
    keep: Tensor, totals: Tensor, state: State, rates: Rates, live: Tensor | None
) -> Tensor:
    """Return the ridge (2, T) at each step: renewed from time to time, it fades like W and B.

    Args:
        keep: (2, T) share of W and B that each step keeps.
        totals: (2, T) traces of W and B times their evidence, before each step.
        state: State before the block.
        rates: Settings of the layer.
        live: (T,) bool, steps with a frame, which are counted; None: all.
    """
    _, steps = keep.shape
    number = state.steps
    if live is not None:
        number = number + live.cumsum(0) - live.long()
    elif steps > 1:
        number = number + torch.arange(steps, device=keep.device)
    goes_on: Tensor = number % _periods(rates.mu, rates.eps, keep.device) != 0
    if live is not None:
        goes_on = goes_on | ~live
    added = (keep * totals) * ~goes_on * (RIDGE_HIGH * rates.ridge / state.means.shape[1])
    return _fading(keep * goes_on, state.ridge, added)


def _solve(
    both: tuple[Tensor, Tensor],
    covariances: Tensor,
    level: Tensor,
    share: Tensor,
    keeps_inverse: bool,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Solve W and B plus their levels for D and E, times a share of each step (Eq. 11).

    Two triangular solves are more accurate than a product with the inverse, but faster only for
    few streams, which are in float64.

    Returns:
        Their difference (T, d, S), the inverses (2, T, d, d) if they were computed or are to be
        kept, and the number of matrices that have no inverse, whose results are zero.
    """
    diagonal = covariances.diagonal(dim1=2, dim2=3)
    without = diagonal.clone()
    diagonal += level[..., None]
    factor, info = torch.linalg.cholesky_ex(covariances)
    diagonal.copy_(without)
    failed = info != 0
    share = (share * ~failed)[..., None, None]
    usable, zero = share > 0, share.new_zeros(())
    inverse, dtype = None, both[0].dtype
    if keeps_inverse or dtype != torch.float64:
        eye = torch.eye(factor.shape[3], dtype=factor.dtype, device=factor.device)
        inverse = torch.where(usable, _divided(eye.expand_as(factor), factor) * share, zero)
    if dtype == torch.float64:
        solved = torch.where(usable, _divided(torch.stack(both), factor) * share, zero)
        return solved[0] - solved[1], inverse, failed.sum()
    assert inverse is not None
    narrow = inverse.to(dtype)
    # Outputs of about 1e-21 have an inverse that does not fit: no gradient then.
    fits = narrow.isfinite().flatten(2).all(2)[..., None, None]
    of_w, of_b = torch.where(fits, narrow, zero.to(dtype))
    return (of_w @ both[0]).baddbmm_(of_b, both[1], alpha=-1), inverse, failed.sum()


def _divided(right: Tensor, factor: Tensor) -> Tensor:
    # Not torch.cholesky_solve, which CUDA graphs cannot record.
    half = torch.linalg.solve_triangular(factor, right, upper=False)
    found: Tensor = torch.linalg.solve_triangular(factor.mT, half, upper=True)
    return found


def _fading(keep: Tensor, start: Tensor, added: Tensor) -> Tensor:
    """Return x_t = keep_t x_(t-1) + added_t after each step.

    Args:
        keep: (n, T), or (n, T, 1, ...) with a one for each further dimension of x.
        start: (n, ...), x before the first step.
        added: (n, T, ...).
    """
    if added.shape[1] == 1:
        return torch.addcmul(added, keep, start[:, None])
    logs = keep.flatten(1).double().log().clamp(min=NEVER).cumsum(1)
    share = (logs[:, :, None] - logs[:, None]).exp().tril().to(added.dtype)
    values = share @ added.reshape(*logs.shape, -1)
    values.baddbmm_(logs.exp()[..., None].to(added.dtype), start.reshape(len(start), 1, -1))
    return values.view(added.shape)


def _before(first: Tensor, values: Tensor) -> Tensor:
    """Return (n, T, ...) values before each step, from those before the first and after each."""
    if values.shape[1] == 1:
        return first[:, None]
    # cat([first, values[:, :-1]]) would make torch.compile write `values` misaligned on a GPU.
    is_first = torch.arange(values.shape[1], device=values.device) == 0
    is_first = is_first.view(-1, *[1] * (values.ndim - 2))
    return torch.where(is_first, first[:, None], values.roll(1, 1))


def _on(like: Tensor, *numbers: float) -> Tensor:
    """Return float64 numbers on the device of a tensor, () or (n,)."""
    found = on_device(numbers, like.device)
    return found if len(numbers) > 1 else found[0]


def _periods(mu: float, eps: float, device: torch.device) -> Tensor:
    """Return (2, 1) steps between two renewals of the ridge."""
    return on_device((ridge_period(mu), ridge_period(eps)), device)[:, None]
