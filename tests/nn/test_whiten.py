"""Whiten: its output, and learning from ill-conditioned input with plain gradients."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import ullayers as ul
from tests.nn.test_layers import assert_unchanged, statistics
from tests.slow_sources import ill_conditioned, read_out_r2


def covariance(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1]).T.cov(correction=0)


def correlated(n: int, d: int) -> Tensor:
    torch.manual_seed(0)
    return torch.randn(n, d).double() @ torch.randn(d, d).double() + 100


def test_output_is_white() -> None:
    x = correlated(400, 6)
    white = ul.Whiten(6).double()(x.view(4, 100, 6))
    assert white.shape == (4, 100, 6)
    torch.testing.assert_close(covariance(white), torch.eye(6).double())
    torch.testing.assert_close(white.mean((0, 1)), torch.zeros(6).double())


@pytest.mark.parametrize("sizes", [[400], [1] * 20 + [380], [150, 250], [5, 5, 390]])
def test_any_split_gives_the_same(sizes: list[int]) -> None:
    x = correlated(400, 6)
    whole, parts = ul.Whiten(6), ul.Whiten(6)
    whole(x)
    for part in x.split(sizes):
        parts(part)
    torch.testing.assert_close(parts.basis, whole.basis, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(parts.mean, whole.mean)


def test_condition_1e7_comes_out_white() -> None:
    x, _ = ill_conditioned(condition=1.5e7)
    whiten = ul.Whiten(50)
    whiten(x)
    whiten.eval()
    torch.testing.assert_close(covariance(whiten(x)), torch.eye(50).double(), rtol=0, atol=1e-6)


def test_still_directions_come_out_as_zero() -> None:
    torch.manual_seed(0)
    x = torch.randn(50, 2)
    x = torch.cat([x, x[:, :1], torch.ones(50, 1)], 1)  # a copy and a constant
    whiten = ul.Whiten(4)
    white = whiten(x)
    values = torch.linalg.eigvalsh(covariance(white))
    torch.testing.assert_close(values, torch.tensor([0.0, 0.0, 1.0, 1.0]), atol=1e-5, rtol=0)
    assert torch.equal(white[:, 3], torch.zeros(50))
    assert bool(torch.isfinite(ul.Whiten(3)(torch.zeros(1, 3))).all())


def test_eval_and_bad_rows_do_not_change_statistics() -> None:
    x = correlated(50, 3).float()
    one, other = ul.Whiten(3), ul.Whiten(3)
    one(x)
    dirty = torch.cat([torch.full((1, 3), float("nan")), x, torch.full((1, 3), float("inf"))])
    other(dirty)
    torch.testing.assert_close(one.basis, other.basis)
    before = statistics(one)
    one.eval()(torch.randn(9, 3))
    assert_unchanged(one, before)
    assert_unchanged(copy.deepcopy(one), before)


def test_a_constant_feature_stays_zero_beside_bad_rows() -> None:
    torch.manual_seed(0)
    x = torch.randn(70, 3).double()
    x[:, 1] = 0.1
    x[::10] = float("nan")
    x[5] = 1e200
    whiten = ul.Whiten(3)
    for part in x.split(7):
        whiten(part)
    whiten.eval()
    assert float(whiten(torch.tensor([[0.3, 0.1001, 0.2]]).double()).abs().max()) < 10
    assert torch.equal(whiten.basis[1], torch.zeros(3).double())


def test_offset_makes_no_directions() -> None:
    """The third feature is the sum of the others: rounding errors at 1e6 are not variation."""
    torch.manual_seed(0)
    x = torch.randn(300, 2).double() + 1e6
    x = torch.cat([x, x.sum(1, keepdim=True)], 1)
    for size in (300, 60, 7):
        whiten = ul.Whiten(3)
        for part in x.split(size):
            whiten(part)
        values = torch.linalg.eigvalsh(covariance(whiten.eval()(x)))
        torch.testing.assert_close(values, torch.tensor([0.0, 1, 1]).double(), atol=1e-4, rtol=0)


def test_two_passes_before_one_backward() -> None:
    whiten = ul.Whiten(2)
    x = torch.randn(9, 2, requires_grad=True)
    first = whiten(x)
    whiten(torch.randn(9, 2))
    first.sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_learns_once(reentrant: bool) -> None:
    whiten = ul.Whiten(3)
    net = nn.Sequential(nn.Linear(3, 3), whiten, nn.Tanh(), nn.Linear(3, 1))
    x = torch.randn(20, 3, requires_grad=True)
    checkpoint(net, x, use_reentrant=reentrant).sum().backward()
    assert float(whiten.count) == 20


def test_bad_input() -> None:
    whiten = ul.Whiten(3)
    before = statistics(whiten)
    with pytest.raises(ValueError, match=r"expected \(\.\.\., 3\), got \(5, 4\)"):
        whiten(torch.randn(5, 4))
    with pytest.raises(ValueError, match="at least one row"):
        whiten(torch.zeros(0, 3))
    with pytest.raises(ValueError, match="floating point"):
        whiten(torch.ones(5, 3, dtype=torch.int32))
    with pytest.raises(ValueError, match=">= 1"):
        ul.Whiten(0)
    assert_unchanged(whiten, before)


def trained_r2(front: nn.Module, dtype: torch.dtype, chunk: int, epochs: int) -> float:
    """Train a linear network and UL1d with plain gradients on chunks of a stream."""
    x, sources = ill_conditioned(condition=1.5e7)
    x = x.to(dtype)
    torch.manual_seed(0)
    net = nn.Sequential(front, nn.Linear(50, 3), ul.UL1d(3, mu=0.2, statistics="running")).to(dtype)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(epochs):
        for frames in x.split(chunk):
            optimizer.zero_grad()
            ul.backward(net(frames))
            optimizer.step()
    net.eval()
    with torch.no_grad():
        return read_out_r2(net(x).double(), sources)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_online_gradients_solve_the_ill_conditioned_problem(dtype: torch.dtype) -> None:
    assert trained_r2(ul.Whiten(50), dtype, chunk=100, epochs=5) >= 0.999


def test_without_whitening_they_do_not() -> None:
    class Standardise(nn.Module):
        """What peers offer: zero mean and unit variance per feature."""

        def forward(self, x: Tensor) -> Tensor:
            return (x - mean) / std

    full, _ = ill_conditioned(condition=1.5e7)
    mean, std = full.mean(0), full.std(0)
    assert trained_r2(Standardise(), torch.float64, chunk=100, epochs=5) < 0.9


def test_threads_that_share_it_lose_no_rows() -> None:
    whiten, x = ul.Whiten(4), correlated(1200, 4)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(whiten, x.split(10)))
    alone = ul.Whiten(4)
    alone(x)
    assert whiten.count == 1200
    torch.testing.assert_close(whiten.mean, alone.mean)
    torch.testing.assert_close(whiten.basis, alone.basis, rtol=1e-9, atol=1e-12)
