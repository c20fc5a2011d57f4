"""One frame of one stream on a CPU: the step of `kernels.reference`, in numpy and LAPACK.

A camera calls a layer once for every frame, and then what costs is not arithmetic but the number
of calls into PyTorch. The buffers of the layer are seen as arrays. They are read and written at
every step, so that a layer which was saved and loaded in between goes on to the last digit alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from operator import is_
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ullayers.kernels.covariance import RIDGE_HIGH, RIDGE_LOW, noise_share, ridge_period
from ullayers.kernels.state import Rates

Array = NDArray[Any]
PRECISIONS = (torch.float32, torch.float64)
NAMES = ("short", "long")  # first what belongs to W, then what belongs to B
MEANS, COVS = [f"{name}_mean" for name in NAMES], [f"{name}_cov" for name in NAMES]
TINY, NOISE = 1e-300, noise_share(torch.float64)
_period = cache(ridge_period)


def can_step(y: Tensor, rates: Rates, buffers: Mapping[str, Tensor]) -> bool:
    """Whether a `Stream` takes these frames: a single one, of a single stream that goes on."""
    mean = buffers["short_mean"]
    single = type(y) is Tensor and y.dtype in PRECISIONS and len(mean) == 1
    here = y.device.type == "cpu" and mean.device.type == "cpu" and mean.dtype in PRECISIONS
    plain = rates.long_term == "stream" and not rates.diagonal
    return single and here and plain and bool(buffers["continues"])


class Stream:
    """The statistics of a layer in float64, and where its buffers are."""

    def __init__(self, buffers: Mapping[str, Tensor]) -> None:
        self._buffers = list(buffers.values())
        self._place = buffers["short_cov"].data_ptr()
        self._at = {name: buffer.numpy() for name, buffer in buffers.items()}

    def is_of(self, buffers: Mapping[str, Tensor]) -> bool:
        """Whether these are the buffers, in their old place."""
        same = all(map(is_, self._buffers, buffers.values()))
        return same and buffers["short_cov"].data_ptr() == self._place

    def _load(self) -> None:
        at = self._at
        self._latest = at["short_mean"][0].astype(np.float64)
        # As lags behind a frame: a scene that comes to rest must fade without rounding errors.
        self._lags = [(self._latest - v[0]) - r[0] for v, r in map(self._pair, MEANS)]
        self._seen = [float(at[f"{name}_evidence"][0]) for name in NAMES]
        self._covs = [self._read_covariance(i, name) for i, name in enumerate(COVS)]
        self._pull = at["pull"][0].astype(np.float64)
        self._steps = int(at["steps"])

    def step(self, y: Array, rates: Rates, largest: float) -> Array:
        """Move on by one frame `y` (d,) and return its gradient (d,), in float64.

        All is computed before anything is written.
        """
        self._load()
        x, rates_of = y.astype(np.float64), (rates.mu, rates.eps)
        if not np.abs(x).max() <= largest:  # a NaN compares as false
            self._at["left_out"][0] += 1
            return np.zeros(len(x))
        shift, had_past = x - self._latest, self._seen[0] > 0
        lags, seen = [], []
        for rate, lag, old in zip(rates_of, self._lags, self._seen, strict=True):
            grown = (1 - rate) * old + rate
            lags.append((lag + shift) * ((1 - rate) * old / grown))
            seen.append(grown)
        covs = [
            cov.renewed(rates.ridge) if self._steps % _period(rate) == 0 else cov
            for rate, cov in zip(rates_of, self._covs, strict=True)
        ]
        gradient, pull, singular = np.zeros(len(x)), self._pull, 0
        if had_past:
            within, between = lags[0], lags[1] - lags[0]
            W, B = covs[0].moved(within, rates.mu), covs[1].moved(between, rates.eps)
            w_solved, w_bad = W.solve(within, rates.ridge, B.trace)
            b_solved, b_bad = B.solve(between, rates.ridge, W.trace)
            covs, gradient, singular = [W, B], w_solved - b_solved, w_bad + b_bad
            if rates.centred:
                pull = (1 - rates.eps) * pull + rates.eps * gradient
                gradient = gradient - pull
        self._latest, self._lags, self._seen = x, lags, seen
        self._covs, self._pull = covs, pull
        self._steps += 1
        self._write(singular)
        return gradient

    def _write(self, singular: int) -> None:
        at = self._at
        for name, lag, seen, cov in zip(NAMES, self._lags, self._seen, self._covs, strict=True):
            mean = at[f"{name}_mean"][0]
            mean[...] = self._latest - lag
            at[f"{name}_mean_rest"][0] = (self._latest - mean) - lag
            _write_pair(cov.value, at[f"{name}_cov"], at[f"{name}_cov_rest"])
            at[f"{name}_evidence"][0] = seen
        at["cov_evidence"][:] = [cov.evidence for cov in self._covs]
        at["ridge_level"][:] = [cov.ridge for cov in self._covs]
        at["pull"][0], at["steps"][()] = self._pull, self._steps
        if singular:
            at["left_out"][1] += singular

    def _read_covariance(self, index: int, name: str) -> _Cov:
        evidence, ridge = (float(self._at[k][index]) for k in ("cov_evidence", "ridge_level"))
        value, rest = self._pair(name)
        exact: Array = value.astype(np.float64) + rest
        return _Cov(exact, evidence, ridge, float(exact.trace()))

    def _pair(self, name: str) -> tuple[Array, Array]:
        """Value and rest; the rest is void once someone has set the value."""
        value, rest = self._at[name], self._at[f"{name}_rest"]
        return value, np.where(value + rest == value, rest, 0)


def _write_pair(exact: Array, value: Array, rest: Array) -> None:
    value[...] = exact
    np.subtract(exact, value, out=rest, casting="same_kind")


class _Cov(NamedTuple):
    """W or B."""

    value: Array
    evidence: float
    ridge: float  # in units of value * evidence
    trace: float

    def renewed(self, ridge: float) -> _Cov:
        level = RIDGE_HIGH * ridge / len(self.value) * self.evidence * self.trace
        return self._replace(ridge=level)

    def moved(self, deviation: Array, rate: float) -> _Cov:
        """One step of Eq. 8 or 9."""
        evidence = (1 - rate) * self.evidence + rate
        value: Array = self.value * ((1 - rate) * self.evidence / evidence)
        value += np.multiply.outer(deviation * (rate / evidence), deviation)
        return _Cov(value, evidence, (1 - rate) * self.ridge, float(value.trace()))

    def solve(self, deviation: Array, ridge: float, other_trace: float) -> tuple[Array, int]:
        """A term of Eq. 11, and 1 if there is no inverse."""
        d = len(deviation)
        if self.trace <= 0:
            return np.zeros(d), 0
        low, noise = RIDGE_LOW * ridge * self.trace / d, NOISE * other_trace / d
        matrix = self.value.copy()
        matrix.reshape(-1)[:: d + 1] += max(self.ridge / max(self.evidence, TINY), low, noise)
        _, solved, info = _solver()(matrix.T, deviation, lower=1, overwrite_a=1)
        return (np.zeros(d), 1) if info else (solved, 0)


@cache
def _solver() -> Any:
    from scipy.linalg.lapack import dposv  # here, because to load scipy takes its time

    return dposv
