"""The recurrence on a CPU for streams that are all there at every step, as maps of a video are.

All streams then weigh their frames alike, so that W and B of a group of steps are known from the
Gram matrices of what enters them. Compiled loops find these (`tiles`), and then the gradients.

Where those cannot be used, a group is a handful of matrix products: one for both moving averages,
one for the Gram matrices of each covariance, one for the covariances after every step, one for each
term of the gradient. It is as long then as its frames stay in the cache from one to the next.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from ullayers.kernels.covariance import (
    RIDGE_HIGH,
    RIDGE_LOW,
    inverses,
    noise_share,
    ridge_period,
)
from ullayers.kernels.state import Covariance, Rates, Result, State, is_full, on_host, room_like
from ullayers.kernels.tiles import SMALLEST_FRAME, Array, Part, Tiles, can_tile

GROUP_VALUES, LONGEST_GROUP = 2**19, 16  # of a group's frames, and steps
SMALLEST_PRODUCT = 2**11  # values of a frame; below, a call costs more than its work
MOST_INFLATED = 256.0  # times what float32 rounds in a Gram matrix, stays below 1e-4
RANGE = 1e24  # of sums of squares, within which their products and inverses fit float32
TINY = 1e-300
Weights = tuple[float, ...]


def can_group(y: Tensor, state: State, rates: Rates, active: Tensor) -> bool:
    """Whether `advance_groups` takes these frames."""
    if not (rates.plain and len(y) > 1 and on_host(y) and is_full(active)):
        return False
    if y[0].numel() < (SMALLEST_FRAME if can_tile(y.mT) else SMALLEST_PRODUCT):
        return False
    short, long = state.short_evidence, state.long_evidence
    alike = is_full(short == short[0]) and is_full(long == long[0])
    return alike and (rates.long_term == "clip" or bool((short[0] > 0) == (long[0] > 0)))


def advance_groups(y: Tensor, state: State, rates: Rates, scale: float = 1.0) -> Result:
    """What `core.advance` does; the anchors of `state` are the first frame."""
    work, channels_first = state.short.dtype, y.mT.is_contiguous()  # leave it as it is stored
    if not (channels_first and can_tile(y.mT)):
        y = y.to(work)
    gradient = room_like(y)
    frames, out = (y.mT, gradient.mT) if channels_first else (y, gradient)
    walk = Walk.of(frames, state, rates, scale, channels_first=channels_first)
    if channels_first and can_tile(frames):
        walk.by_tiles(Tiles.of(frames.numpy()), work, out.numpy())
    else:
        walk.by_products(frames, out)
    return Result(gradient, None, walk.end(y, state), state.steps.new_tensor(walk.singular))


@lru_cache(maxsize=64)
def _recurrence(keeps: Weights, brings: Weights) -> Tensor:
    """(T, 1 + T): v_t = keep_t v_(t-1) + bring_t x_t for all t at once, from v_0 and all x."""
    rows, row = [], [1.0] + [0.0] * len(keeps)
    for t, (keep, bring) in enumerate(zip(keeps, brings, strict=True)):
        row = [keep * value for value in row]
        row[1 + t] = bring
        rows.append(row)
    return torch.tensor(rows, dtype=torch.float64, device="cpu")


@lru_cache(maxsize=64)
def _mixing(short: Weights, long: Weights) -> Tensor:
    """(2 T, 2 + T): from the lags before and all steps to what enters W and B at each step.

    A mean that keeps the share k of its lag has lag_t = k_t (lag_(t-1) + step_t).
    """
    lags = [_recurrence(keeps, keeps) for keeps in (short, long)]
    none = torch.zeros(len(short), 1, dtype=torch.float64, device="cpu")
    within = torch.cat([lags[0][:, :1], none, lags[0][:, 1:]], dim=1)
    beyond = torch.cat([none, lags[1][:, :1], lags[1][:, 1:]], dim=1)
    return torch.stack([within, beyond - within], dim=1).flatten(0, 1)


@dataclass
class Path:
    """W or B from group to group, in units of value * evidence."""

    total: Tensor  # (d, d)
    trace: float
    evidence: float
    ridge: float
    rate: float
    period: int

    @classmethod
    def of(cls, cov: Covariance, rate: float) -> Path:
        """From where the state has it."""
        total = cov.value * cov.evidence
        seen, ridge = float(cov.evidence), float(cov.ridge)
        return cls(total, float(total.trace()), seen, ridge, rate, ridge_period(rate))

    def weights(self, counted: list[bool]) -> tuple[Weights, Weights]:
        """What each step leaves of it, and brings to it."""
        keeps = tuple(1 - self.rate if counts else 1.0 for counts in counted)
        return keeps, tuple(self.rate if counts else 0.0 for counts in counted)

    def move(self, grams: Tensor, streams: int, counted: list[bool]) -> Tensor:
        """(T, d, d): what it is after each step of a group."""
        keeps, brings = self.weights(counted)
        recurrence = _recurrence(keeps, tuple(bring / streams for bring in brings))
        known = torch.cat([self.total[None], grams.double()])
        totals = (recurrence @ known.flatten(1)).view(grams.shape)
        self.total = totals[-1].clone()
        return totals

    def levels(self, traces: list[float], counted: list[bool], step: int, ridge: float) -> _Steps:
        """What goes along with it, given the traces after each step."""
        keeps, brings = self.weights(counted)
        evidences, levels = [], []
        high, low = (factor * ridge / len(self.total) for factor in (RIDGE_HIGH, RIDGE_LOW))
        for t, trace in enumerate(traces):
            if (step + t) % self.period == 0:
                self.ridge = high * self.trace
            self.ridge *= keeps[t]
            self.evidence = keeps[t] * self.evidence + brings[t]
            self.trace = trace
            evidences.append(self.evidence)
            levels.append(max(self.ridge, low * trace))
        return _Steps(traces, evidences, levels)

    def done(self) -> Covariance:
        """As the state keeps it."""
        evidence, ridge = (self.total.new_tensor(value) for value in (self.evidence, self.ridge))
        return Covariance(self.total / max(self.evidence, TINY), evidence, ridge)


@dataclass
class _Steps:
    """What is known of a covariance after each step of a group, beside its value."""

    traces: list[float]  # of value * evidence
    evidences: list[float]
    levels: list[float]  # what the ridge asks for

    def protect(self, other: _Steps, noise: float) -> None:
        """Raise the levels above the rounding errors of the other."""
        for t, trace in enumerate(self.traces):
            least = noise * other.traces[t] / max(other.evidences[t], TINY) * self.evidences[t]
            # Without any scatter there is nothing to solve; the 1 only keeps the factor defined.
            self.levels[t] = max(self.levels[t], least) if trace > 0 else 1.0

    def scales(self, counted: list[bool], streams: int) -> list[float]:
        """What makes the inverse of a total that of a stream's share in the covariance."""
        each = zip(self.traces, self.evidences, counted, strict=True)
        return [seen / streams * (trace > 0 and counts) for trace, seen, counts in each]


@dataclass(frozen=True)
class _Group:
    """What is known of a group's steps beforehand."""

    had_past: list[bool]
    counted: list[bool]  # and so takes part
    keeps: tuple[Weights, Weights]  # which share of its lag each mean keeps
    seen: list[float]  # evidence of the means after it

    @classmethod
    def of(cls, walk: Walk, n: int) -> _Group:
        own, seen, keeps = walk.own_mean is not None, list(walk.seen), []
        had_past = [seen[0] > 0] + [True] * (n - 1)
        for mean, rate in enumerate((walk.rates.mu, walk.rates.eps)):
            shares = [1.0] * n
            for t in range(0 if mean == 0 or not own else n, n):
                before, seen[mean] = seen[mean], (1 - rate) * seen[mean] + rate
                shares[t] = (1 - rate) * before / seen[mean]
            keeps.append(tuple(shares))
        return cls(had_past, [True] * n if own else had_past, (keeps[0], keeps[1]), seen)


@dataclass
class Walk:
    """A pass over the frames, group by group. Frames are (d, S) or (S, d), as they are stored."""

    rates: Rates
    scale: float  # of the gradient
    channels_first: bool
    streams: int
    lags: Tensor  # (2, *frame): the latest frame minus the short-term and the long-term mean
    own_mean: Tensor | None  # of whole clips, relative to their first frame
    seen: list[float]  # evidence of the two means
    W: Path
    B: Path
    pull: Tensor  # (1, d)
    step: int
    noise: float  # what share of a covariance may be rounding errors of the other
    singular: int = 0

    @classmethod
    def of(
        cls, frames: Tensor, state: State, rates: Rates, scale: float, *, channels_first: bool
    ) -> Walk:
        """From a state whose anchors are the first frame."""
        short, long = state.short, state.long
        seen = [float(state.short_evidence[0]), float(state.long_evidence[0])]
        if channels_first:
            short, long = short.mT, long.mT
        own_mean = None
        if rates.long_term == "clip":
            parts = frames.split(_group_length(frames))
            sums = [(part.to(short.dtype) - frames[0]).sum(0) for part in parts]
            own_mean = torch.stack(sums).sum(0)
            own_mean = long = own_mean / len(frames)
            seen[1] = 1.0
        W, B = Path.of(state.W, rates.mu), Path.of(state.B, rates.eps)
        lags = torch.stack([short, long]).neg_()
        streams = len(state.short)
        return cls(
            rates, scale, channels_first, streams, lags, own_mean, seen, W, B, state.pull,
            int(state.steps), noise_share(short.dtype) / len(W.total),
        )  # fmt: skip

    def by_tiles(self, wide: Tiles, work: torch.dtype, gradient: Array) -> None:
        """Every group of steps, in compiled loops; `gradient` is written to."""
        tiles = wide.in_float32() if work == torch.float32 else wide
        for begin in range(0, len(tiles.frames), tiles.steps):
            part = self.cover(tiles, begin, tiles.matrices)
            if part is None:  # what comes next will be no different
                tiles, self.lags = wide, self.lags.double()
                tiles.tiles[:] = 0
                part = self.cover(tiles, begin, tiles.matrices)
            assert part is not None
            tiles.write(part, self.scale, None, gradient)

    def cover(self, tiles: Tiles, begin: int, room: Array) -> Part | None:
        """W and B of a group of steps, and all that its gradient takes.

        None if they are in doubt in this precision; nothing has changed then.
        """
        n = min(tiles.steps, len(tiles.frames) - begin)
        group, W, B, matrices = _Group.of(self, n), copy(self.W), copy(self.B), room[:n]
        paths = ((W, group.had_past), (B, group.counted))
        weights = [path.weights(counted) for path, counted in paths]
        totals = np.stack([W.total.numpy(), B.total.numpy()])
        keeps, cov_keeps, brings = (
            np.array(rows) for rows in (group.keeps, *zip(*weights, strict=True))
        )
        keeps, lags = keeps.astype(tiles.tiles.dtype), self.lags.numpy()
        diagonals, after = tiles.covariances(
            begin, keeps, lags, cov_keeps, brings / self.streams, totals, matrices
        )
        W.total, B.total = map(torch.from_numpy, totals)
        traces = diagonals.sum(2)
        both, scales = self._weigh(W, B, group, traces.T.tolist())
        levels = np.stack(both, axis=1)
        grown = tiles.invert(matrices, levels, np.stack(scales, axis=1))
        largest = (diagonals + levels[:, :, None]).max(2)
        fits = (largest > 1 / RANGE) & (largest < RANGE)
        certain = fits & (grown >= 0) & (grown <= MOST_INFLATED)
        vanished = (traces == 0) & np.array([group.had_past, group.counted]).T
        # Squares too small for float32, or nothing has moved before: then it is only slower.
        doubtful = not certain.all() or (vanished.any() and after.any())
        if tiles.precision == torch.float32 and doubtful:
            return None
        self.singular += int((grown < 0).sum())
        taking, pull = np.array(group.counted), self.pull.numpy()[0].astype(np.float64)
        pulls = tiles.pulls(pull, taking & self.rates.centred, self.rates.eps, self.streams)
        self.W, self.B, self.lags = W, B, torch.from_numpy(after)
        self.pull = torch.from_numpy(pull[None]).to(self.pull.dtype)
        self._finish(group)
        return Part(begin, keeps, lags, matrices, pulls)

    def by_products(self, frames: Tensor, gradient: Tensor) -> None:
        """Every group of steps, in products of matrices; `gradient` is written to."""
        length = _group_length(frames)
        steps = frames.new_empty(2 + length, *frames.shape[1:])
        room = frames.new_empty(length, 2, *frames.shape[1:])
        for begin in range(0, len(frames), length):
            end = min(begin + length, len(frames))
            n = end - begin
            group = _Group.of(self, n)
            deviations = self._follow(frames, begin, end, group, steps[: 2 + n], room[:n])
            inverse = self._solve(self._grams(deviations), group, frames.dtype)
            if inverse is None:
                grams = self._grams(deviations.double())
                inverse = self._solve(grams, group, torch.float64)
            assert inverse is not None
            self._write(deviations, inverse, group.counted, gradient[begin:end])
            gradient[begin:end].mul_(self.scale)
            self._finish(group)

    def _finish(self, group: _Group) -> None:
        """A group is done."""
        self.step += len(group.counted)
        self.seen = group.seen

    def _follow(
        self, frames: Tensor, begin: int, end: int, group: _Group, steps: Tensor, out: Tensor
    ) -> Tensor:
        """(T, 2, *frame): what enters W and B at each step."""
        steps[:2] = self.lags
        torch.sub(frames[begin], frames[max(0, begin - 1)], out=steps[2])
        torch.sub(frames[begin + 1 : end], frames[begin : end - 1], out=steps[3:])
        mixing = _mixing(*group.keeps).to(steps.dtype)
        torch.mm(mixing, steps.flatten(1), out=out.view(len(mixing), -1))
        within, between = out[-1]
        self.lags[0] = within
        if self.own_mean is None:
            torch.add(within, between, out=self.lags[1])
        else:  # without what the steps have lost
            torch.sub(frames[end - 1], frames[0], out=self.lags[1]).sub_(self.own_mean)
        return out

    def _solve(self, grams: Tensor, group: _Group, precision: torch.dtype) -> Tensor | None:
        """(2, T, d, d): what the deviations are multiplied with, for W and B.

        None if it is in doubt in this precision. W and B have moved on then only if it is not.
        """
        n, W, B = len(group.counted), copy(self.W), copy(self.B)
        paths = ((W, grams[0], group.had_past), (B, grams[1], group.counted))
        totals = torch.cat([path.move(gram, self.streams, on) for path, gram, on in paths])
        traces = _diagonals(totals).sum(1).view(2, n).tolist()
        levels, scales = self._weigh(W, B, group, traces)
        _diagonals(totals).add_(totals.new_tensor(levels).view(-1, 1))
        inverse, singular = inverses(totals.to(precision))
        if precision != torch.float64 and _is_in_doubt(totals, inverse, singular):
            return None
        self.W, self.B = W, B
        self.singular += int(singular.sum())
        weights = torch.where(singular, 0.0, totals.new_tensor(scales).view(-1)).to(precision)
        inverse.mul_(weights[:, None, None])
        return inverse.view(2, n, *inverse.shape[1:])

    def _weigh(
        self, W: Path, B: Path, group: _Group, traces: list[list[float]]
    ) -> tuple[list[list[float]], list[list[float]]]:
        """What the diagonals of W and B are raised by, and their inverses multiplied with."""
        steps, ridge = self.step, self.rates.ridge
        w = W.levels(traces[0], group.had_past, steps, ridge)
        b = B.levels(traces[1], group.counted, steps, ridge)
        w.protect(b, self.noise)
        b.protect(w, self.noise)
        scales = [w.scales(group.had_past, self.streams), b.scales(group.counted, self.streams)]
        return [w.levels, b.levels], scales

    def _grams(self, deviations: Tensor) -> Tensor:
        """(2, T, d, d): the sums of squares of what enters W and B at each step."""
        return torch.stack([self._gram(deviation) for deviation in deviations.unbind(1)])

    def _gram(self, deviation: Tensor) -> Tensor:
        return (
            torch.bmm(deviation, deviation.mT)
            if self.channels_first
            else torch.bmm(deviation.mT, deviation)
        )

    def _write(self, deviations: Tensor, inverse: Tensor, taking: list[bool], out: Tensor) -> None:
        """Eq. 11, and its own long-term mean taken off."""
        if inverse.dtype != out.dtype:  # it is ill-conditioned, and what it is applied to cancels
            wide = torch.empty_like(out, dtype=inverse.dtype)
            self._write(deviations.to(wide.dtype), inverse, taking, wide)
            out.copy_(wide)
            return
        within, between = deviations.unbind(1)
        w, b = inverse
        if self.channels_first:
            torch.bmm(w, within, out=out)
            torch.baddbmm(out, b, between, alpha=-1, out=out)
        else:
            torch.bmm(within, w, out=out)
            torch.baddbmm(out, between, b, alpha=-1, out=out)
        if self.rates.centred:
            sums = deviations.sum(-1 if self.channels_first else -2)
            pulls = self._pulls(inverse, sums, taking)
            out.sub_(pulls.unsqueeze(-1 if self.channels_first else -2))

    def _pulls(self, inverse: Tensor, sums: Tensor, taking: list[bool]) -> Tensor:
        """(T, d): what is taken off each stream's gradient."""
        (w, b), eps = inverse, self.rates.eps
        push = w @ sums[:, 0, :, None] - b @ sums[:, 1, :, None]
        keeps = tuple(1 - eps if takes else 1.0 for takes in taking)
        brings = tuple(eps if takes else 0.0 for takes in taking)
        known = torch.cat([self.pull.to(push.dtype), push[..., 0]])
        pulls = _recurrence(keeps, brings).to(known.dtype) @ known
        self.pull = pulls[-1:].to(self.pull.dtype, copy=True)
        return pulls / self.streams * pulls.new_tensor(taking)[:, None]

    def end(self, y: Tensor, state: State) -> State:
        """The state after the last frame, relative to the same anchors."""
        lags, latest = self.lags.mT if self.channels_first else self.lags, y[-1] - state.anchor
        short, long = ((latest - lag).to(state.short) for lag in lags)
        short_seen, long_seen = (state.short_evidence.new_full((len(short),), n) for n in self.seen)
        W, B, steps = self.W.done(), self.B.done(), torch.full_like(state.steps, self.step)
        return State(state.anchor, short, long, short_seen, long_seen, self.pull, W, B, steps)


def _is_in_doubt(totals: Tensor, inverse: Tensor, singular: Tensor) -> bool:
    """Whether a Gram matrix in float32 may not do.

    Squares may lie beyond its range. Or a channel is nearly a mix of the others: the product of
    both diagonals is how much larger it is than what is its own, and by as much rounding errors
    grow.
    """
    squares = _diagonals(totals)
    inflation, largest = (squares * _diagonals(inverse)).amax(1), squares.amax(1)
    fits = (largest == 0) | ((largest > 1 / RANGE) & (largest < RANGE))
    return bool((singular | ~fits | ~(inflation <= MOST_INFLATED)).any())  # NaN compares as false


def _diagonals(matrices: Tensor) -> Tensor:
    return matrices.diagonal(dim1=1, dim2=2)


def _group_length(frames: Tensor) -> int:
    return max(1, min(GROUP_VALUES // frames[0].numel(), LONGEST_GROUP))
