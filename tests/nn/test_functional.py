"""`functional.objective` is J of the layers, as a plain function."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import ullayers as ul
from tests.fresh_formula import plain_objective

LONG_TERMS = ("clip", "shared", "stream")


def layer_of(y: Tensor, **settings: Any) -> ul.UL1d | ul.UL2d:
    """Return a layer for this input, with fresh statistics in float64."""
    if y.ndim < 4:
        return ul.UL1d(y.shape[-1], statistics="fresh", **settings).double()
    return ul.UL2d(y.shape[-3], statistics="fresh", **settings).double()


def compare(
    y: Tensor, lengths: list[int] | None = None, scatter: Tensor | None = None, **settings: Any
) -> None:
    """Compare value and gradients of the function with those of a layer, to 1e-9."""
    inputs = [y] if scatter is None else [y, scatter]
    ours, theirs = ([x.clone().requires_grad_() for x in inputs] for _ in range(2))
    spread = None if scatter is None else ours[1]
    J = ul.functional.objective(ours[0], lengths, scatter=spread, **settings)
    expected = torch.autograd.grad(J, ours)
    layer = layer_of(y, **settings)
    if lengths is None:
        ul.backward(layer(*theirs))
    else:
        with ul.sequences(layer, lengths):
            ul.backward(layer(*theirs))
    torch.testing.assert_close(J.detach(), layer.objective, rtol=1e-9, atol=1e-9)
    for leaf, gradient in zip(theirs, expected, strict=True):
        assert leaf.grad is not None
        scale = float(gradient.abs().max())
        assert float((leaf.grad - gradient).abs().max()) <= 1e-9 * scale


@given(
    seed=st.integers(0, 1000),
    maps=st.booleans(),
    ragged=st.booleans(),
    bad=st.booleans(),
    diagonal=st.booleans(),
    scattered=st.booleans(),
    long_term=st.sampled_from(LONG_TERMS),
    mu=st.floats(0.1, 0.9),
)
def test_layers_compute_it(
    seed: int,
    maps: bool,
    ragged: bool,
    bad: bool,
    diagonal: bool,
    scattered: bool,
    long_term: str,
    mu: float,
) -> None:
    torch.manual_seed(seed)
    lengths = [9, 20, 12] if ragged else None
    lead = (41,) if ragged else (3, 20)
    y = torch.randn(*lead, 3, *((2, 3) if maps else ())).double().cumsum(0)
    if bad:
        y.view(-1)[:: max(7, y.numel() // 4)] = float("nan")
    settings: dict[str, Any] = {"long_term": long_term, "mu": mu, "eps": 0.02}
    if maps:
        compare(y, lengths, diagonal=diagonal, **settings)
    else:
        root = torch.randn(*y.shape, 3).double()
        compare(y, lengths, root @ root.mT if scattered else None, **settings)


@pytest.mark.parametrize("long_term", LONG_TERMS)
def test_it_is_the_formula(long_term: Any) -> None:
    """Compare with loops over frames, without code of the package."""
    torch.manual_seed(0)
    y = torch.randn(30, 2, 4).double().cumsum(0)
    y[3, 0, 1] = float("nan")
    expected, _, _ = plain_objective(y, [12, 18], mu=0.4, eps=0.1, long_term=long_term)
    J = ul.functional.objective(y.view(30, 2, 2, 2), [12, 18], mu=0.4, eps=0.1, long_term=long_term)
    torch.testing.assert_close(J, expected, rtol=1e-9, atol=1e-9)


def test_it_is_differentiable_twice_and_works_in_torch_func() -> None:
    torch.manual_seed(0)
    y = torch.randn(12, 2).double().cumsum(0)
    assert torch.autograd.gradgradcheck(ul.functional.objective, y.clone().requires_grad_())
    slope = torch.func.grad(ul.functional.objective)(y)
    (expected,) = torch.autograd.grad(
        ul.functional.objective(leaf := y.clone().requires_grad_()), leaf
    )
    torch.testing.assert_close(slope, expected)
    batch = torch.stack([y, y.flip(0)])
    values = torch.func.vmap(ul.functional.objective)(batch)
    torch.testing.assert_close(values, torch.stack([ul.functional.objective(x) for x in batch]))
    hessian = torch.func.jacrev(torch.func.grad(ul.functional.objective))(y).reshape(24, 24)
    torch.testing.assert_close(hessian, hessian.T)


def test_lengths_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="with 7 frames, the sum of lengths"):
        ul.functional.objective(torch.randn(6, 2), [3, 4])
