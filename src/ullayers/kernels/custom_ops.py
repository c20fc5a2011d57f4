"""Fresh statistics as operators that `torch.compile` calls without a look inside.

To trace through their hundreds of small operations would take minutes and save nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ullayers.kernels.dispatch import choose_fresh, evaluate_fresh
from ullayers.kernels.moments import Evaluation, Request, Weights, is_by_rows
from ullayers.kernels.state import Rates
from ullayers.kernels.torch.fresh import scatter_gradient as _plain_scatter_gradient
from ullayers.kernels.torch.fresh import working_precision


def evaluate(frames: Tensor, request: Request, scatter: Tensor | None) -> Evaluation:
    """The statistics of a call and the derivatives of J."""
    covariances, singular, counts, short_mean, long_mean, steps, matrices = _evaluate(
        frames, scatter, *_numbers(request)
    )
    return Evaluation(
        covariances, singular, counts, short_mean, long_mean, steps,
        Weights(matrices, is_by_rows(frames.shape, request, scatter)),
        () if scatter is None else (scatter,),
    )  # fmt: skip


def gradient(
    frames: Tensor,
    request: Request,
    weights: Weights,
    saved: tuple[Tensor, ...],
    above: Tensor | None,
) -> Tensor:
    """As `fresh.gradient`."""
    scatter = saved[0] if saved else None
    found: Tensor = _gradient(frames, scatter, weights.matrices, *_numbers(request))
    return found if above is None else above + found


def scatter_gradient(
    frames: Tensor, request: Request, weights: Weights, saved: tuple[Tensor, ...]
) -> Tensor:
    """As `fresh.scatter_gradient`."""
    found: Tensor = _scatter_gradient(frames, saved[0], weights.matrices, *_numbers(request))
    return found


def _numbers(request: Request) -> tuple[list[int], float, float, float, str, bool, float]:
    rates = request.rates
    return (
        list(request.lengths), rates.mu, rates.eps, rates.ridge, rates.long_term, rates.diagonal,
        request.largest,
    )  # fmt: skip


def _request(
    lengths: list[int], mu: float, eps: float, ridge: float, long_term: str, diagonal: bool,
    largest: float,
) -> Request:  # fmt: skip
    rates = Rates(mu, eps, ridge, long_term, len(lengths), diagonal)  # type: ignore[arg-type]
    return Request(tuple(lengths), rates, largest)


@torch.library.custom_op("ullayers::fresh_evaluate", mutates_args=())
def _evaluate(
    frames: Tensor, scatter: Tensor | None, lengths: list[int], mu: float, eps: float,
    ridge: float, long_term: str, diagonal: bool, largest: float,
) -> list[Tensor]:  # fmt: skip
    request = _request(lengths, mu, eps, ridge, long_term, diagonal, largest)
    _, made = evaluate_fresh(frames, request, scatter)
    work = working_precision(frames)
    found = (
        made.covariances, made.singular, made.counts, made.short_mean.to(work),
        made.long_mean.to(work), made.steps, made.weights.matrices,
    )  # fmt: skip
    # Memory of its own for each, laid out as the fake below says.
    return [tensor.clone(memory_format=torch.contiguous_format) for tensor in found]


@_evaluate.register_fake
def _(frames, scatter, lengths, mu, eps, ridge, long_term, diagonal, largest):  # type: ignore[no-untyped-def]
    request = _request(lengths, mu, eps, ridge, long_term, diagonal, largest)
    _, d, positions = frames.shape
    clips, by_rows = len(lengths), is_by_rows(frames.shape, request, scatter)
    size = max(lengths) * clips if by_rows else d
    wide, whole = torch.float64, torch.int64
    work = working_precision(frames)
    return [
        frames.new_empty((2, d, d), dtype=wide),
        frames.new_empty((), dtype=whole),
        frames.new_empty((3,), dtype=whole),
        frames.new_empty((clips, d, positions), dtype=work),
        frames.new_empty((1 if long_term == "shared" else clips, d, positions), dtype=work),
        frames.new_empty((clips, 1, positions), dtype=whole),
        frames.new_empty((2, size, size), dtype=wide),
    ]


@torch.library.custom_op("ullayers::fresh_gradient", mutates_args=())
def _gradient(
    frames: Tensor, scatter: Tensor | None, matrices: Tensor, lengths: list[int], mu: float,
    eps: float, ridge: float, long_term: str, diagonal: bool, largest: float,
) -> Tensor:  # fmt: skip
    request = _request(lengths, mu, eps, ridge, long_term, diagonal, largest)
    kernel, _ = choose_fresh(frames, request, scatter)
    saved = kernel.measure(frames, request, scatter).saved
    weights = Weights(matrices, is_by_rows(frames.shape, request, scatter))
    return kernel.gradient(frames, request, weights, saved, None)


@torch.library.custom_op("ullayers::fresh_scatter_gradient", mutates_args=())
def _scatter_gradient(
    frames: Tensor, scatter: Tensor, matrices: Tensor, lengths: list[int], mu: float,
    eps: float, ridge: float, long_term: str, diagonal: bool, largest: float,
) -> Tensor:  # fmt: skip
    request = _request(lengths, mu, eps, ridge, long_term, diagonal, largest)
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
