"""A frame at a time on the CPU, by the short way, is what the plain loop gives."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import ullayers as ul
from tests.test_layers import gradient_of, relative
from ullayers.base import ULBase


def by_the_loop(layer: ULBase) -> ULBase:
    """A layer that takes the plain loop, whatever comes."""
    layer._learn_single = lambda y: None  # type: ignore[method-assign]
    return layer


def assert_same_state(one: ULBase, other: ULBase, tolerance: float) -> None:
    for name, value in other.state_dict().items():
        got = one.state_dict()[name]
        if name.endswith("_rest"):  # the last digits of what stands beside it
            continue
        largest = float(value.double().abs().max())
        torch.testing.assert_close(got, value, rtol=0, atol=tolerance * largest, msg=name)


@given(
    seed=st.integers(0, 1000),
    d=st.integers(1, 20),
    mu=st.floats(0.05, 0.95),
    eps=st.floats(1e-4, 0.5),
    offset=st.floats(-100, 100),
    paper=st.booleans(),
    bad=st.lists(st.integers(0, 29), max_size=3),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_single_frames_equal_the_loop(
    seed: int, d: int, mu: float, eps: float, offset: float, paper: bool, bad: list[int],
    dtype: torch.dtype,
) -> None:  # fmt: skip
    mu = min(mu, 0.3) if paper else mu  # without a ridge W soon has no inverse
    generator = torch.Generator().manual_seed(seed)
    y = torch.randn(30, d, generator=generator).double() + (0 if paper else offset)
    y[bad, 0] = float("nan")
    y = y.to(dtype)
    choices: dict[str, Any] = {"start": "paper" if paper else "warm", "weight": 0.7}
    short, plain = (ul.UL1d(d, mu, eps * mu, **choices).to(dtype) for _ in range(2))
    by_the_loop(plain)
    got = torch.cat([gradient_of(short, frame[None]) for frame in y])
    expected = torch.cat([gradient_of(plain, frame[None]) for frame in y])
    wide = dtype == torch.float64
    # The loop keeps its pull and scalars in the layer's precision from step to step.
    assert relative(got, expected) <= (1e-8 if wide else 1e-4)
    assert_same_state(short, plain, 1e-8 if wide else 1e-4)


@pytest.mark.parametrize("d", [2, 64, 130])
def test_frames_and_chunks_may_take_turns(d: int) -> None:
    torch.manual_seed(0)
    y = torch.randn(60, d)
    mixed, plain = ul.UL1d(d, reduction="sum"), ul.UL1d(d, reduction="sum")
    got = [gradient_of(mixed, piece) for piece in y.split([1] * 10 + [20] + [1] * 10 + [20])]
    assert relative(torch.cat(got), gradient_of(plain, y)) < 1e-4
    assert_same_state(mixed, plain, 1e-4)


def some_frames(layer: ULBase, count: int = 5) -> Tensor:
    return torch.cat([gradient_of(layer, torch.randn(1, 3)) for _ in range(count)])


def test_whoever_sets_a_buffer_is_heard() -> None:
    torch.manual_seed(0)
    short, plain = ul.UL1d(3), by_the_loop(ul.UL1d(3))
    for layer in (short, plain):
        torch.manual_seed(1)
        some_frames(layer)
        layer.short_cov.copy_(torch.diag(torch.tensor([1.0, 2.0, 3.0])))
        layer.long_mean.fill_(0.5)
        layer.mu = 0.3
    torch.manual_seed(2)
    got = some_frames(short)
    torch.manual_seed(2)
    torch.testing.assert_close(got, some_frames(plain), rtol=1e-5, atol=1e-6)
    assert_same_state(short, plain, 1e-5)


def test_copies_and_loaded_layers_go_their_own_way() -> None:
    torch.manual_seed(0)
    layer, loaded = ul.UL1d(3), ul.UL1d(3)
    some_frames(layer)
    some_frames(loaded)
    twin, other = copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))
    loaded.load_state_dict(layer.state_dict())
    kept = copy.deepcopy(layer.state_dict())
    results = []
    for each in (twin, other, loaded):
        torch.manual_seed(1)
        results.append(some_frames(each))
        assert all(torch.equal(value, layer.state_dict()[name]) for name, value in kept.items())
    torch.manual_seed(1)
    expected = some_frames(layer)
    for result in results:
        torch.testing.assert_close(result, expected, rtol=1e-6, atol=1e-7)


def test_shared_memory_and_other_precisions() -> None:
    torch.manual_seed(0)
    layer, plain = ul.UL1d(3), by_the_loop(ul.UL1d(3))
    for each in (layer, plain):
        torch.manual_seed(1)
        some_frames(each)
        each.share_memory()
        some_frames(each)
        each.double()
        some_frames(each)
        each.float()
        some_frames(each)
    assert_same_state(layer, plain, 1e-5)


def test_a_failing_solver_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layer = ul.UL1d(3)
    some_frames(layer)
    before = copy.deepcopy(layer.state_dict())

    def broken() -> Any:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr("ullayers.kernels.single._solver", broken)
        with pytest.raises(MemoryError):
            layer(torch.randn(1, 3, requires_grad=True))
    assert all(torch.equal(value, layer.state_dict()[name]) for name, value in before.items())
    some_frames(layer)
