"""Fresh statistics as custom operators, which `torch.compile` does not trace.

Tracing their many small operations takes minutes and makes nothing faster.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ullayers.kernels.dispatch import choose_fresh, evaluate_fresh
from ullayers.kernels.moments import (
    Evaluation,
    FrameCounts,
    Rates,
    Request,
    Weights,
    is_by_rows,
    working_precision,
)
from ullayers.kernels.torch.fresh import scatter_gradient as _plain_scatter_gradient

# Arguments of all operators, in the order of `_numbers`.
SETTINGS = (
    "int[] lengths, float mu, float eps, float ridge, str long_term, bool diagonal, "
    "float largest, float scale"
)


def evaluate(frames: Tensor, request: Request, scatter: Tensor | None) -> Evaluation:
    """Compute the statistics of a call and the derivatives of J."""
    (
        covariances,
        traces,
        evidence,
        left_out,
        steps,
        counts,
        short_evidence,
        long_evidence,
        short_mean,
        long_mean,
        matrices,
    ) = _evaluate(frames, scatter, *_numbers(request))
    return Evaluation(
        covariances,
        traces,
        evidence,
        left_out,
        FrameCounts(steps, counts, short_evidence, long_evidence),
        short_mean,
        long_mean,
        Weights(matrices, is_by_rows(frames, request, scatter)),
        () if scatter is None else (scatter,),
    )


def gradient(
    frames: Tensor,
    request: Request,
    weights: Weights,
    saved: tuple[Tensor, ...],
    above: Tensor | None,
) -> Tensor:
    """Same as `kernels.torch.fresh.gradient`."""
    scatter = saved[0] if saved else None
    found: Tensor = _gradient(frames, scatter, weights.matrices, *_numbers(request))
    return found if above is None else above + found


def scatter_gradient(
    frames: Tensor, request: Request, weights: Weights, saved: tuple[Tensor, ...]
) -> Tensor:
    """Same as `kernels.torch.fresh.scatter_gradient`."""
    found: Tensor = _scatter_gradient(frames, saved[0], weights.matrices, *_numbers(request))
    return found


def _numbers(request: Request) -> tuple[list[int], float, float, float, str, bool, float, float]:
    rates = request.rates
    return (
        list(request.lengths),
        rates.mu,
        rates.eps,
        rates.ridge,
        rates.long_term,
        rates.diagonal,
        request.largest,
        request.scale,
    )


def _request(
    lengths: list[int],
    mu: float,
    eps: float,
    ridge: float,
    long_term: str,
    diagonal: bool,
    largest: float,
    scale: float,
) -> Request:
    rates = Rates(mu, eps, ridge, long_term, len(lengths), diagonal)  # type: ignore[arg-type]
    return Request(tuple(lengths), rates, largest, scale)


@torch.library.custom_op(
    "ullayers::fresh_evaluate",
    mutates_args=(),
    schema=f"(Tensor frames, Tensor? scatter, {SETTINGS}) -> Tensor[]",
)
def _evaluate(
    frames: Tensor,
    scatter: Tensor | None,
    *settings: Any,
) -> list[Tensor]:
    request = _request(*settings)
    _, made = evaluate_fresh(frames, request, scatter)
    work = working_precision(frames)
    seen = made.seen
    found = (
        made.covariances,
        made.traces,
        made.evidence,
        made.left_out,
        seen.steps,
        seen.counts,
        seen.short_evidence.to(work),
        seen.long_evidence.to(work),
        made.short_mean.to(work),
        made.long_mean.to(work),
        made.weights.matrices,
    )
    # Outputs may not share memory, and need the layout of the fake implementation below.
    return [tensor.clone(memory_format=torch.contiguous_format) for tensor in found]


@_evaluate.register_fake
def _(frames, scatter, *settings):  # type: ignore[no-untyped-def]
    request = _request(*settings)
    _, d, positions = frames.shape
    lengths, long_term = request.lengths, request.rates.long_term
    clips = len(lengths)
    by_rows = is_by_rows(frames, request, scatter)
    size = max(lengths) * clips if by_rows else d
    wide, whole = torch.float64, torch.int64
    work = working_precision(frames)
    averages = 1 if long_term == "shared" else clips
    return [
        frames.new_empty((2, d, d), dtype=wide),
        frames.new_empty((2,), dtype=wide),
        frames.new_empty((2,), dtype=wide),
        frames.new_empty((2,), dtype=whole),
        frames.new_empty((clips, 1, positions), dtype=whole),
        frames.new_empty((3,), dtype=whole),
        frames.new_empty((clips * positions,), dtype=work),
        frames.new_empty((averages * positions,), dtype=work),
        frames.new_empty((clips * positions, d), dtype=work),
        frames.new_empty((averages * positions, d), dtype=work),
        frames.new_empty((2, size, size), dtype=wide),
    ]


@torch.library.custom_op(
    "ullayers::fresh_gradient",
    mutates_args=(),
    schema=f"(Tensor frames, Tensor? scatter, Tensor matrices, {SETTINGS}) -> Tensor",
)
def _gradient(
    frames: Tensor,
    scatter: Tensor | None,
    matrices: Tensor,
    *settings: Any,
) -> Tensor:
    request = _request(*settings)
    kernel, _ = choose_fresh(frames, request, scatter)
    saved = kernel.measure(frames, request, scatter).saved
    weights = Weights(matrices, is_by_rows(frames, request, scatter))
    return kernel.gradient(frames, request, weights, saved, None)


@torch.library.custom_op(
    "ullayers::fresh_scatter_gradient",
    mutates_args=(),
    schema=f"(Tensor frames, Tensor scatter, Tensor matrices, {SETTINGS}) -> Tensor",
)
def _scatter_gradient(
    frames: Tensor,
    scatter: Tensor,
    matrices: Tensor,
    *settings: Any,
) -> Tensor:
    request = _request(*settings)
    kernel, _ = choose_fresh(frames, request, scatter)
    saved = kernel.measure(frames, request, scatter).saved
    found = _plain_scatter_gradient(frames, request, Weights(matrices, False), saved)
    return found.to(scatter.dtype)


@_gradient.register_fake
def _(frames, scatter, *rest):  # type: ignore[no-untyped-def]
    return torch.empty_like(frames)


@_scatter_gradient.register_fake
def _(frames, scatter, *rest):  # type: ignore[no-untyped-def]
    return torch.empty_like(scatter)
