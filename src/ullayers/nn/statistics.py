"""The statistics of a UL layer as module buffers: reading, writing, loading, moving and judging."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from threading import RLock
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from ullayers.kernels.frames import fitting, on_host
from ullayers.kernels.moments import ridges
from ullayers.kernels.torch.running import State

RELATIVE_CUT = 1e-10  # directions below this share of the largest are rounding errors


class Statistic(NamedTuple):
    """One buffer of a layer.

    Attributes:
        name: Name of the buffer.
        shape: Sizes, as numbers or names: "d" is the number of features, "streams" that of the
            streams, "long" that of the rows of the long-term mean (streams, or positions if the
            mean is shared).
        dtype: None for the dtype of the layer, float32 or float64.
        start: Initial value. "known" is 1 for layers with `start="paper"` and 0 otherwise;
            "identity" is the identity matrix times that.
    """

    name: str
    shape: tuple[int | str, ...]
    dtype: torch.dtype | None = None
    start: Literal["zero", "known", "identity", "true"] = "zero"

    @property
    def per_stream(self) -> bool:
        """Whether the buffer has one row per stream."""
        return bool(self.shape) and self.shape[0] in ("streams", "long")

    def sized(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Return the shape in numbers."""
        return tuple(n if isinstance(n, int) else sizes[n] for n in self.shape)

    def fill(self, buffer: Tensor, known: float) -> None:
        """Set a buffer to its initial value."""
        if self.start == "identity":
            buffer.zero_().diagonal().fill_(known)
        else:
            buffer.fill_({"zero": 0.0, "known": known, "true": 1.0}[self.start])


def _with_rest(
    name: str, shape: tuple[int | str, ...], start: Literal["zero", "identity"] = "zero"
) -> tuple[Statistic, Statistic]:
    """Return a statistic and a second buffer for its rounding error."""
    return Statistic(name, shape, start=start), Statistic(f"{name}_rest", shape)


STATISTICS = (
    *_with_rest("short_mean", ("streams", "d")),
    *_with_rest("long_mean", ("long", "d")),
    *_with_rest("short_cov", ("d", "d"), "identity"),  # W
    *_with_rest("long_cov", ("d", "d"), "identity"),  # B
    Statistic("short_evidence", ("streams",), start="known"),
    Statistic("long_evidence", ("long",), start="known"),
    Statistic("cov_evidence", (2,), start="known"),  # of W and B
    Statistic("ridge_level", (2,)),
    Statistic("pull", (1, "d")),  # moving average of the gradient
    Statistic("steps", (), torch.int64),
    Statistic("left_out", (2,), torch.int64),  # skipped positions, steps without an inverse
    Statistic(
        "continues", (), torch.bool, "true"
    ),  # whether the next call may continue the streams
)
WITH_REST = ("short_mean", "long_mean", "short_cov", "long_cov")


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
        values, rests = self._with_rests(["short_cov", "long_cov"])
        W, B = values.double() + rests
        # With running statistics, the rest holds the digits beyond the precision of the buffers.
        dtype = W.dtype if bool(rests.any()) else self.short_cov.dtype
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

    def _read(self, streams: int, positions: int, carry_on: bool, work: torch.dtype) -> State:
        """Return copies of the buffers; streams that are not continued start afresh."""
        terms = [
            self._read_mean("short", streams, carry_on),
            self._read_mean("long", positions if self._shared else streams, carry_on),
        ]
        if self._shared:  # one mean per position, for all sequences and after their end
            value, rest, seen = terms[1]
            n = streams // positions
            terms[1] = value.repeat(n, 1), rest.repeat(n, 1), seen.repeat(n)
        values, rests, seen = map(torch.stack, zip(*terms, strict=True))
        covariances, more = self._with_rests(["short_cov", "long_cov"])
        return State(
            means=values.mT.to(work).contiguous(),
            rests=(rests * (values + rests == values)).mT.to(work).contiguous(),
            seen=seen.double(),
            covariances=covariances.double().add_(more),
            evidence=self.cov_evidence.to(torch.float64, copy=True),
            ridge=self.ridge_level.to(torch.float64, copy=True),
            pull=self.pull[0].to(torch.float64, copy=True),
            steps=self.steps.clone(),
        )

    def _read_mean(self, term: str, rows: int, carry_on: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Return value, rest and evidence of the short- or long-term mean."""
        names = f"{term}_mean", f"{term}_mean_rest", f"{term}_evidence"
        value, rest, seen = (cast(Tensor, self._buffers[name]) for name in names)
        kept = self._shared and term == "long"  # whether or not the streams go on
        there = len(value) == rows and (carry_on or kept)
        if there and (kept or (on_host(self.continues) and bool(self.continues))):
            return value, rest, seen
        nothing = value.new_zeros(rows, self.features)
        unknown = seen.new_full((rows,), self._known)
        if not there or on_host(self.continues):
            return nothing, nothing, unknown
        goes_on = self.continues
        found = torch.where(goes_on, value, nothing), torch.where(goes_on, rest, nothing)
        return *found, torch.where(goes_on, seen, unknown)

    def _with_rests(self, names: list[str]) -> tuple[Tensor, Tensor]:
        """Return statistics and their rounding errors, which are zero if the user set the value."""
        values = torch.stack([cast(Tensor, self._buffers[name]) for name in names])
        rests = torch.stack([cast(Tensor, self._buffers[f"{name}_rest"]) for name in names])
        return values, rests * (values + rests == values)

    def _write(self, state: State, left_out: Tensor, positions: int, continues: bool) -> None:
        means, covariances = state.means.mT, state.covariances
        rows = positions if self._shared else means.shape[1]
        dtype = self.short_cov.dtype
        values, cov_values = means.to(dtype), covariances.to(dtype)
        rests = means - values + state.rests.mT
        cov_rests = covariances - cov_values  # in float64, rounded when they are stored
        new = {
            "short_mean": values[0],
            "short_mean_rest": rests[0],
            "long_mean": values[1, :rows],
            "long_mean_rest": rests[1, :rows],
            "short_cov": cov_values[0],
            "short_cov_rest": cov_rests[0],
            "long_cov": cov_values[1],
            "long_cov_rest": cov_rests[1],
            "short_evidence": state.seen[0],
            "long_evidence": state.seen[1, :rows],
            "cov_evidence": state.evidence,
            "ridge_level": state.ridge,
            "pull": fitting(state.pull[None], dtype),
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
        buffers = cast("dict[str, Tensor]", self._buffers)
        torch._foreach_copy_([buffers[name] for name in new], list(new.values()))

    def _make_room(self, streams: int, long: int) -> None:
        """Resize the buffers for another number of streams, which start empty."""
        if len(self.short_mean) == streams and len(self.long_mean) == long:
            return
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


@dataclass(frozen=True)
class Health:
    """State of a UL layer; `str()` describes problems in words.

    Attributes:
        objective: J = (log det W - log det B) / 2; lower is better, NaN if nothing varies.
        rank: Effective rank of B relative to W, from 0 to `features`: the number of independent
            directions in which the output varies more over the long term than within moments.
            With running statistics B depends on past weights; to evaluate a trained network, feed
            its output to a new layer.
        directions: Number of linearly independent directions in which the output varies. If it is
            below the number of features that vary, the output has collapsed.
        dead_units: Number of features that do not vary.
        features: Number of features.
        steps: Number of steps learned from.
        skipped: Number of positions skipped because of values that are NaN, infinite, or too large
            for their squares to fit the statistics (1e18 in float32).
        singular: Number of steps without a gradient because W or B had no inverse.
    """

    objective: float
    rank: float
    directions: int
    dead_units: int
    features: int
    steps: int
    skipped: int
    singular: int

    @property
    def collapsed(self) -> bool:
        """Whether features that vary are linearly dependent."""
        return self.directions < self.features - self.dead_units

    def __str__(self) -> str:
        parts = [f"J {self.objective:.3f}, effective rank {self.rank:.2f} of {self.features}"]
        if self.steps == 0:
            parts = ["no frames yet"]
        elif self.dead_units == self.features:
            parts.append("the input does not vary, so nothing can be learned from it")
        elif self.dead_units:
            parts.append(f"{self.dead_units} of {self.features} features do not vary")
        if self.collapsed:
            directions = _counted(self.directions, "independent direction")
            parts.append(f"collapsed: only {directions}")
        if self.skipped:
            skipped = _counted(self.skipped, "position")
            parts.append(f"{skipped} with NaN, infinite or huge values skipped")
        if self.singular:
            parts.append(
                f"{_counted(self.singular, 'step')} had no gradient because a covariance had no "
                "inverse; use ridge > 0, fewer features or a smaller mu"
            )
        return "; ".join(parts)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def effective_rank(long_cov: Tensor, short_cov: Tensor) -> tuple[float, int]:
    """Return the effective rank of B relative to W, and the number of independent directions.

    Each independent direction counts by its share b / (w + b) of long-term variance. Like J, both
    numbers are invariant to scaling and to a change of basis of the output.

    Args:
        long_cov: (d, d) long-term covariance B.
        short_cov: (d, d) short-term covariance W.

    >>> B, W = torch.eye(3), torch.diag(torch.tensor([1e-6, 1e-6, 1.0]))
    >>> rank, directions = effective_rank(B, W)
    >>> round(rank, 3), directions
    (2.5, 3)
    >>> effective_rank(torch.ones(2, 2), torch.zeros(2, 2))  # two equal outputs
    (1.0, 1)
    """
    # As in numpy.linalg.matrix_rank; the entries are rounded to the precision of the statistics.
    cut = max(RELATIVE_CUT, len(long_cov) * torch.finfo(long_cov.dtype).eps)
    long_cov, short_cov = long_cov.double(), short_cov.double()
    total = long_cov + short_cov
    alive = total.diagonal() > 0
    if not bool(alive.any()):
        return 0.0, 0
    scale = total.diagonal()[alive].rsqrt()
    values, vectors = torch.linalg.eigh(total[alive][:, alive] * scale[:, None] * scale)
    kept = values > cut * values[-1]
    white = vectors[:, kept] * values[kept].rsqrt()
    long_part = white.T @ (long_cov[alive][:, alive] * scale[:, None] * scale) @ white
    return round(float(long_part.trace()), 12), int(kept.sum())


def log_det_ratio(short_cov: Tensor, long_cov: Tensor, ridge: float) -> Tensor:
    """Return J = (log det W - log det B) / 2, with ridges; NaN if W or B is zero."""

    def log_det(cov: Tensor, relative: float) -> Tensor:
        cov = cov.double()
        level = relative * cov.trace() / len(cov)
        return torch.logdet(cov + level * torch.eye(len(cov), dtype=cov.dtype, device=cov.device))

    of_w, of_b = ridges(ridge, torch.float64)
    return (log_det(short_cov, of_w) - log_det(long_cov, of_b)) / 2
