"""The statistics of a UL layer as module buffers: reading, writing, loading and moving them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from threading import RLock
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from ullayers.kernels.schema import STATISTICS
from ullayers.kernels.state import Covariance, State, fitting, is_full
from ullayers.nn.health import Health, effective_rank, log_det_ratio


class LayerLock:
    """The lock of a layer; copies and pickles of the layer get their own locks."""

    def __init__(self) -> None:
        self._lock = RLock()

    def __reduce__(self) -> tuple[type[LayerLock], tuple[()]]:
        return LayerLock, ()

    def held(self) -> AbstractContextManager[Any]:
        """Return a context that one thread enters at a time; a compiled graph has no locks."""
        return nullcontext() if torch.compiler.is_compiling() else self._lock


class Statistics(nn.Module):
    """Short- and long-term means and covariances, as buffers of a module.

    Each statistic is stored in the layer's precision, and its rounding error in a second buffer,
    `..._rest`, so that splitting a stream into calls costs no digits.
    """

    _version = 1
    short_mean: Tensor  # (S, d)
    long_mean: Tensor  # (S, d), or (positions, d) if shared
    short_cov: Tensor  # (d, d), W
    long_cov: Tensor  # (d, d), B
    short_evidence: Tensor  # (S,)
    long_evidence: Tensor
    cov_evidence: Tensor  # (2,) of W and B
    ridge_level: Tensor  # (2,)
    pull: Tensor  # (1, d), moving average of the gradient
    steps: Tensor  # ()
    left_out: Tensor  # (2,) skipped positions, steps without an inverse
    continues: Tensor  # () bool, whether the next call may continue the streams

    def __init__(
        self,
        features: int,
        start: Literal["warm", "paper"],
        ridge: float | None,
        long_term: Literal["auto", "clip", "stream", "shared"],
    ) -> None:
        super().__init__()
        if not isinstance(features, int) or isinstance(features, bool) or features < 1:
            raise ValueError(f"expected features to be an integer >= 1, got {features!r}")
        self.features = features
        self.start = start
        self.long_term = long_term
        self.ridge = ridge if ridge is not None else (0.0 if start == "paper" else 1e-4)
        if not 0 <= self.ridge < 1:
            raise ValueError(f"expected 0 <= ridge < 1, got {self.ridge}")
        self._layout: torch.Size | None = None  # shape of the last input without time
        self._lock = LayerLock()
        with normal_tensors():
            self._register_buffers()
        self.reset()

    def _register_buffers(self) -> None:
        sizes = {"d": self.features, "streams": 1, "long": 1}
        for each in STATISTICS:
            self.register_buffer(each.name, torch.zeros(each.sized(sizes), dtype=each.dtype))

    @torch.no_grad()
    def reset(self) -> None:
        """Reset all statistics, streams and counters."""
        for each in STATISTICS:
            each.fill(getattr(self, each.name), self._known)
        self._layout = None

    @property
    def objective(self) -> Tensor:
        """J = (log det W - log det B) / 2 after the last forward pass; lower is better."""
        return log_det_ratio(self.short_cov, self.long_cov, self.ridge).to(self.short_cov.dtype)

    def health(self) -> Health:
        """Return measures of collapse and skipped input, for logging; see `Health`."""
        skipped, singular = (int(n) for n in self.left_out)
        W = self._read_covariance("short_cov", 0).value
        B = self._read_covariance("long_cov", 1).value
        # With running statistics, the rest holds the digits beyond the precision of the buffers.
        rests = (self.get_buffer(f"{name}_cov_rest") for name in ("short", "long"))
        dtype = W.dtype if any(bool(rest.any()) for rest in rests) else self.short_cov.dtype
        rank, directions = effective_rank(B.to(dtype), W.to(dtype))
        return Health(
            objective=float(self.objective),
            rank=rank,
            directions=directions,
            dead_units=int(((W + B).diagonal() == 0).sum()),
            features=self.features,
            steps=int(self.steps),
            skipped=skipped,
            singular=singular,
        )

    @property
    def _known(self) -> float:
        """Evidence of means before the first frame: the paper treats their zeros as known."""
        return float(self.start == "paper")

    @property
    def _shared(self) -> bool:
        """Whether the long-term mean is shared; computed, as `long_term` may change any time."""
        return self.long_term == "shared"

    def _read(self, sequences: int, positions: int, carry_on: bool, work: torch.dtype) -> State:
        """Return the buffers as a State; streams that are not continued start afresh."""
        streams = sequences * positions
        anchor, short, short_evidence = self._read_mean("short", streams, carry_on, work)
        if self._shared:  # one mean per position, for all sequences and after their end
            value, rest, seen = self._read_mean("long", positions, True, work)
            value = value.repeat(sequences, 1)
            rest = rest.repeat(sequences, 1)
            long_evidence = seen.repeat(sequences)
        else:
            value, rest, long_evidence = self._read_mean("long", streams, carry_on, work)
        return State(
            anchor=anchor,
            short=short,
            long=(value - anchor).add_(rest),
            short_evidence=short_evidence,
            long_evidence=long_evidence,
            pull=self.pull.to(work, copy=True),
            W=self._read_covariance("short_cov", 0),
            B=self._read_covariance("long_cov", 1),
            steps=self.steps.clone(),
        )

    def _read_mean(
        self, term: str, streams: int, carry_on: bool, work: torch.dtype
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return value, rest and evidence of the short- or long-term mean."""
        continues = None
        if carry_on and len(getattr(self, f"{term}_mean")) == streams:
            value, rest = self._read_pair(f"{term}_mean", work)
            evidence = getattr(self, f"{term}_evidence").to(work, copy=True)
            continues = self.continues | (self._shared and term == "long")
            if is_full(continues):
                return value, rest, evidence
        nothing = self.short_mean.new_zeros(streams, self.features, dtype=work)
        unknown = nothing[:, 0] + self._known
        if continues is None:
            return nothing, nothing, unknown
        return (
            torch.where(continues, value, nothing),
            torch.where(continues, rest, nothing),
            torch.where(continues, evidence, unknown),
        )

    def _read_covariance(self, name: str, index: int) -> Covariance:
        value, rest = self._read_pair(name, torch.float64)
        numbers = self.cov_evidence[index], self.ridge_level[index]
        evidence, ridge = (number.to(torch.float64, copy=True) for number in numbers)
        return Covariance(value + rest, evidence, ridge)

    def _read_pair(self, name: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return a statistic and its rounding error, which is ignored if the user set the value."""
        value: Tensor = getattr(self, name)
        rest: Tensor = getattr(self, f"{name}_rest")
        rest = torch.where(value + rest == value, rest, 0)
        return value.to(dtype, copy=True), rest.to(dtype)

    def _write(self, state: State, left_out: Tensor, positions: int, continues: bool) -> None:
        rows = positions if self._shared else len(state.long)
        zeros = torch.zeros_like(state.W.value)
        new = {
            **self._pair("short_mean", state.anchor, state.short),
            **self._pair("long_mean", state.anchor[:rows], state.long[:rows]),
            **self._pair("short_cov", state.W.value, zeros),
            **self._pair("long_cov", state.B.value, zeros),
            "short_evidence": state.short_evidence,
            "long_evidence": state.long_evidence[:rows],
            "cov_evidence": torch.stack([state.W.evidence, state.B.evidence]),
            "ridge_level": torch.stack([state.W.ridge, state.B.ridge]),
            "pull": fitting(state.pull, self.pull.dtype),
            "steps": state.steps,
            "left_out": self.left_out + left_out,
        }
        self._store(new, continues)

    def _store(self, new: dict[str, Tensor], continues: bool) -> None:
        """Write all buffers in one call, when everything is computed.

        An error before this call changes nothing, and an interrupt takes effect before or after it,
        so statistics are never partially written. At worst, a new number of streams starts empty.
        """
        new["continues"] = torch.full_like(self.continues, continues)
        self._make_room(len(new["short_mean"]), len(new["long_mean"]))
        torch._foreach_copy_([getattr(self, name) for name in new], list(new.values()))

    def _pair(self, name: str, base: Tensor, delta: Tensor) -> dict[str, Tensor]:
        value = (base + delta).to(self.short_cov.dtype)
        return {name: value, f"{name}_rest": (base - value).add_(delta)}

    def _make_room(self, streams: int, long: int) -> None:
        """Resize the buffers for another number of streams, which start empty."""
        sizes = {"d": self.features, "streams": streams, "long": long}
        new = {}
        for each in STATISTICS:
            old = cast(Tensor, self._buffers[each.name])
            if each.per_stream and len(old) != each.sized(sizes)[0]:
                with normal_tensors():
                    new[each.name] = old.new_empty(each.sized(sizes))
                    each.fill(new[each.name], self._known)
        self._buffers.update(new)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Statistics:
        """Move and convert the statistics with the network, but never below float32."""

        def widen(t: Tensor) -> Tensor:
            moved = fn(t)
            narrow = moved.is_floating_point() and torch.finfo(moved.dtype).bits < 32
            return t.to(moved.device) if narrow else moved

        applied: Statistics = super()._apply(widen, recurse)  # type: ignore[no-untyped-call]
        return applied

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        cov = state_dict.get(prefix + "short_cov")
        if cov is not None and cov.shape != self.short_cov.shape:
            expected, got = tuple(self.short_cov.shape), tuple(cov.shape)
            error_messages = args[-1]
            error_messages.append(
                f"size mismatch for {prefix}short_cov: expected {expected}, got {got}"
            )
            return  # torch would load only the buffers that fit
        # The number of streams is part of the state, so the buffers take its shape.
        for each in STATISTICS:
            saved = state_dict.get(prefix + each.name)
            ours = getattr(self, each.name)
            if each.per_stream and saved is not None and saved.shape[1:] == ours.shape[1:]:
                with normal_tensors():
                    setattr(self, each.name, ours.new_zeros(saved.shape))
        self._layout = None
        super()._load_from_state_dict(state_dict, prefix, *args)


def is_recomputing() -> bool:
    """Return whether this forward pass runs inside a backward pass (activation checkpointing).

    PyTorch has no public function for this.
    """
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() >= 0


def normal_tensors() -> AbstractContextManager[Any]:
    """Return a context for creating buffers: those made in inference_mode are read-only."""
    if torch.compiler.is_compiling() or not torch.is_inference_mode_enabled():
        return nullcontext()
    return torch.inference_mode(False)
