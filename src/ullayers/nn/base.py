"""Settings, checks and input shapes of both UL layers."""

from __future__ import annotations

from math import inf, isfinite
from typing import Any, Literal

import torch
from torch import Tensor

from ullayers.kernels.packing import Packing
from ullayers.kernels.state import LongTerm, Rates
from ullayers.nn.distributed import Member, process_count
from ullayers.nn.open_calls import OpenCalls
from ullayers.nn.statistics import Statistics


class LayerBase(Statistics):
    """Base of both layers, for any kind of statistics."""

    _diagonal = False

    def __init__(
        self,
        features: int,
        mu: float = 0.5,
        eps: float = 1e-3,
        weight: float = 1.0,
        *,
        reduction: Literal["mean", "sum"] = "mean",
        start: Literal["warm", "paper"] = "warm",
        long_term: Literal["auto", "clip", "stream", "shared"] = "auto",
        ridge: float | None = None,
        statistics: Literal["auto", "fresh", "running"] = "auto",
        synchronize: bool = True,
    ) -> None:
        _check_choice("reduction", reduction, ("mean", "sum"))
        _check_choice("start", start, ("warm", "paper"))
        for name, value in (("mu", mu), ("eps", eps), ("weight", weight)):
            _check_number(name, value)
        super().__init__(features, start, ridge, long_term)
        self.mu = mu
        self.eps = eps
        self.weight = weight
        self.reduction = reduction
        self.statistics = statistics
        self.synchronize = synchronize
        self._member = Member()
        self._open_calls = OpenCalls()
        self._check_settings()
        self._clips: Packing | None = None  # set by sequences() within its block
        self._clips_thread: int | None = None  # the thread that set them

    def extra_repr(self) -> str:
        """Return the settings, for print(net)."""
        return (
            f"{self.features}, mu={self.mu}, eps={self.eps}, weight={self.weight}, "
            f"reduction={self.reduction!r}, start={self.start!r}, long_term={self.long_term!r}, "
            f"statistics={self.statistics!r}, dim 0 is time"
        )

    @property
    def _processes(self) -> int:
        """Number of processes with which the statistics are shared."""
        return process_count() if self.synchronize else 1

    def _to_positions(self, y: Tensor) -> Tensor:
        """Return the input as (time, positions, features) or (sequences, time, ...)."""
        raise NotImplementedError

    def _from_positions(self, frames: Tensor, shape: torch.Size) -> Tensor:
        """Undo `_to_positions`."""
        raise NotImplementedError

    def _check_shape(self, y: Tensor) -> None:
        raise NotImplementedError

    def _carries_on(self, layout: torch.Size) -> bool:
        """Return whether frames of this layout may continue the streams of the last call."""
        same = self._layout is None or self._layout == layout
        return self._clips is None and same

    def _remember(self, layout: torch.Size) -> None:
        """Set the layout before the statistics are written.

        If writing them fails, the streams are reset in the next call.
        """
        if self._layout != layout:
            if self._layout is not None:
                self.continues.fill_(False)
            self._layout = layout

    def _largest(self) -> float:
        """Return the largest value whose square, and sums of it, fit the statistics."""
        return float(torch.finfo(self.short_cov.dtype).max ** 0.5 / 16)

    def _lengths(self, y: Tensor) -> tuple[int, ...]:
        """Return the number of frames of each clip or stream."""
        if y.numel() == 0:
            return ()
        if self._clips is not None and self._clips.lengths is not None:
            return tuple(self._clips.lengths)
        return (y.shape[0],) if y.ndim % 2 == 0 else (y.shape[1],) * y.shape[0]

    def _rates(self, sequences: int) -> Rates:
        as_clips = self._clips is not None and self.start == "warm"
        long_term: LongTerm = "clip" if as_clips else "stream"
        if self.long_term != "auto":
            long_term = self.long_term
        # A clip's own mean moves with the weights, so there is no drift to remove.
        centred = self.start == "warm" and long_term != "clip"
        return Rates(self.mu, self.eps, self.ridge, long_term, sequences, self._diagonal, centred)

    def _check(self, y: Tensor, scatter: Tensor | None) -> None:
        self._check_settings()
        if not isinstance(y, Tensor):
            raise ValueError(f"expected a tensor, got {type(y).__name__}")
        self._check_shape(y)
        if not y.is_floating_point():
            raise ValueError(f"expected a floating point tensor, got {y.dtype}")
        if y.numel() == 0 and self._processes == 1:
            raise ValueError(f"expected at least one frame, got {tuple(y.shape)}")
        if self._clips is not None:
            self._clips.check(tuple(self._to_positions(y).shape[:-2]))
        if scatter is not None:
            self._check_scatter(y, scatter)

    def _check_scatter(self, y: Tensor, scatter: Tensor) -> None:
        expected, got = (*y.shape, self.features), tuple(scatter.shape)
        if got != expected:
            raise ValueError(f"expected scatter {expected}, got {got}")
        if scatter.device != y.device:
            raise ValueError(f"expected scatter on {y.device}, got it on {scatter.device}")

    def _check_settings(self) -> None:
        if not 0 < self.eps <= self.mu < 1:
            raise ValueError(f"expected 0 < eps <= mu < 1, got eps={self.eps} and mu={self.mu}")
        if not -inf < self.weight < inf:
            raise ValueError(f"expected a finite weight, got {self.weight}")
        _check_choice("long_term", self.long_term, ("auto", "clip", "stream", "shared"))
        _check_choice("statistics", self.statistics, ("auto", "fresh", "running"))
        if self.start == "paper" and self.statistics == "fresh":
            raise ValueError(
                'expected statistics="running" or "auto" with start="paper", got statistics="fresh"'
            )


def symmetric(scatter: Tensor) -> Tensor:
    """Return the symmetric part in float64: some kernels read only one triangle of a matrix."""
    wide = scatter.double()
    return (wide + wide.mT) / 2


def layout_of(y: Tensor) -> torch.Size:
    """Return the shape without time; streams continue only while it stays the same."""
    return y.shape[1:] if y.ndim % 2 == 0 else y.shape[:1] + y.shape[2:]


def _check_choice(name: str, got: str, choices: tuple[str, ...]) -> None:
    if got not in choices:
        raise ValueError(f"expected {name} to be one of {choices}, got {got!r}")


def _check_number(name: str, value: Any) -> None:
    try:
        isfinite(value)
    except TypeError:
        raise TypeError(f"expected {name} to be a number, got {value!r}") from None
