"""Maps of one video on a CPU: their gradient waits until there is one to add it to."""

from __future__ import annotations

import copy
import gc
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import ullayers as ul
from ullayers import base
from ullayers.kernels import gapless
from ullayers.kernels.maps import Postponed, can_postpone, learn
from ullayers.kernels.state import Rates, address
from ullayers.kernels.tiles import Tiles


def gradient(layer: ul.UL2d, maps: Tensor, above: Tensor) -> Tensor:
    y = maps.clone().requires_grad_()
    layer(y).backward(above)
    assert y.grad is not None
    return y.grad


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[Postponed | None]:
    """Of every pass that was tried this way: the gradient that waits, or None."""
    seen: list[Postponed | None] = []

    def noted(*arguments: Any) -> tuple[Postponed, dict[str, Tensor]] | None:
        learned = learn(*arguments)
        seen.append(None if learned is None else learned[0])
        return learned

    monkeypatch.setattr(base, "learn", noted)
    return seen


def at_once(layer: ul.UL2d, maps: Tensor, above: Tensor, *, plainly: bool = False) -> Tensor:
    """The same, with a gradient that does not wait; plainly means in no compiled loop either."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "can_postpone", lambda _y, _rates: False)
        if plainly:
            patch.setattr(gapless, "can_tile", lambda _: False)
        return gradient(layer, maps, above)


def assert_same(got: Tensor, expected: Tensor, tolerance: float) -> None:
    assert float((got - expected).norm()) <= tolerance * float(expected.norm())


def assert_same_statistics(one: ul.UL2d, other: ul.UL2d, tolerance: float = 1e-5) -> None:
    for (name, ours), theirs in zip(one.named_buffers(), other.buffers(), strict=True):
        if not name.endswith("_rest"):
            torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance, msg=name)


@settings(max_examples=25)
@given(
    channels=st.sampled_from([3, 4, 5, 17, 30, 64]),
    size=st.tuples(st.integers(14, 60), st.integers(14, 60)),
    lengths=st.lists(st.integers(2, 80), min_size=1, max_size=3),
    mu=st.sampled_from([0.2, 0.5, 0.9]),
    reduction=st.sampled_from(["mean", "sum"]),
    threads=st.integers(1, 4),
)
def test_it_is_what_products_of_matrices_give(
    channels: int, size: tuple[int, int], lengths: list[int], mu: float, reduction: str,
    threads: int,
) -> None:  # fmt: skip
    torch.manual_seed(channels)
    rate = dict(mu=mu, eps=0.02, weight=-1.5, reduction=reduction)
    layer, before = ul.UL2d(channels, **rate), torch.get_num_threads()  # type: ignore[arg-type]
    other = copy.deepcopy(layer)
    torch.set_num_threads(threads)
    try:
        for n in lengths:
            maps = torch.randn(n, channels, *size).cumsum(0) + 20
            assert can_postpone(maps, layer._rates(1))
            above = torch.randn_like(maps) * 1e-5
            expected = at_once(other, maps, above, plainly=True)
            assert_same(gradient(layer, maps, above), expected, 1e-4)
    finally:
        torch.set_num_threads(before)
    for (name, ours), theirs in zip(layer.named_buffers(), other.buffers(), strict=True):
        if not name.endswith("_rest"):
            assert_same(ours.double(), theirs.double(), 1e-4)


def test_many_groups_of_steps_and_streams_that_begin_anew(waited: list[Postponed | None]) -> None:
    torch.manual_seed(0)
    layer = ul.UL2d(8)
    other = copy.deepcopy(layer)
    for n, side in ((150, 30), (3, 30), (70, 40), (2, 30)):
        maps = torch.randn(n, 8, side, side).cumsum(0)
        above = torch.zeros_like(maps)
        assert_same(gradient(layer, maps, above), at_once(other, maps, above), 1e-5)
        assert_same_statistics(layer, other)
    assert len(waited) == 4
    assert all(waited)


def change_directly(y: Tensor) -> None:
    y.detach().mul_(3)


def change_data(y: Tensor) -> None:
    y.data.copy_(torch.zeros_like(y))


def change_part(y: Tensor) -> None:
    y.detach()[1:, 2].fill_(torch.nan)


def change_as_array(y: Tensor) -> None:
    y.detach().numpy()[:] = 7


@pytest.mark.parametrize("change", [change_directly, change_data, change_part, change_as_array])
def test_the_input_may_change_before_the_backward_pass(
    change: Callable[[Tensor], None], waited: list[Postponed | None]
) -> None:
    torch.manual_seed(0)
    maps, layer = torch.randn(9, 4, 40, 40), ul.UL2d(4)
    expected = gradient(copy.deepcopy(layer), maps, torch.ones_like(maps))
    y = maps.clone().requires_grad_()
    out = layer(y)
    change(y)
    assert torch.equal(out, maps)
    out.backward(torch.ones_like(maps))
    assert y.grad is not None
    assert torch.equal(y.grad, expected)
    assert all(waited)


def test_the_input_may_be_gone_before_the_backward_pass() -> None:
    torch.manual_seed(0)
    maps, layer = torch.randn(9, 4, 40, 40), ul.UL2d(4)
    x = maps.clone().requires_grad_()
    hidden = x * 2
    expected = 2 * gradient(copy.deepcopy(layer), hidden.detach(), torch.zeros_like(maps))
    out = layer(hidden)
    del hidden
    gc.collect()
    others = [torch.full_like(maps, torch.nan) for _ in range(9)]  # where it may have been
    out.relu_()
    torch.autograd.backward(out, torch.zeros_like(maps))
    assert len(others) == 9
    assert x.grad is not None
    assert torch.equal(x.grad, expected)


@pytest.mark.parametrize(
    "above",
    [
        torch.tensor(0.3).expand(9, 4, 40, 40),
        torch.randn(9, 4, 40, 40).mT,
        torch.randn(9, 4, 40, 40).to(memory_format=torch.channels_last),
        torch.randn(18, 4, 40, 40)[::2],
        torch._neg_view(torch.randn(9, 4, 40, 40)),
    ],
    ids=["expanded", "transposed", "channels last", "strided", "negative"],
)
def test_any_gradient_from_above(above: Tensor) -> None:
    torch.manual_seed(0)
    maps, layer = torch.randn(9, 4, 40, 40), ul.UL2d(4)
    kept = above.clone()
    expected = gradient(copy.deepcopy(layer), maps, torch.zeros_like(maps)) + above
    assert_same(gradient(layer, maps, above), expected, 1e-6)
    assert torch.equal(above, kept)


def test_the_gradient_from_above_stays_as_it_was_for_others() -> None:
    torch.manual_seed(0)
    maps, layer = torch.randn(9, 4, 40, 40), ul.UL2d(4)
    x = maps.clone().requires_grad_()
    seen: list[Tensor] = []
    out = layer(x)
    out.register_hook(seen.append)
    (out + x).square().sum().backward()  # x beside the layer has the same gradient from above
    assert x.grad is not None
    own = gradient(ul.UL2d(4), maps, torch.zeros_like(maps))
    assert_same(seen[0], 4 * maps, 1e-6)
    assert_same(x.grad, 8 * maps + own, 1e-6)


def test_a_backward_pass_that_comes_again() -> None:
    torch.manual_seed(0)
    y = torch.randn(9, 4, 40, 40, requires_grad=True)
    out, zeros = ul.UL2d(4)(y), torch.zeros(9, 4, 40, 40)
    first, second = (torch.autograd.grad(out, y, zeros, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)
    many = torch.autograd.grad(
        out, y, torch.stack([zeros, zeros + 1]), retain_graph=True, is_grads_batched=True
    )[0]
    assert_same(many[1] - many[0], zeros + 1, 1e-6)
    assert_same(many[0], first, 1e-6)
    above = torch.randn(9, 4, 40, 40, requires_grad=True)
    (kept,) = torch.autograd.grad(out, y, above, create_graph=True)
    (twice,) = torch.autograd.grad(kept.square().sum(), above)
    assert_same(twice, 2 * kept.detach(), 1e-6)
    (last,) = torch.autograd.grad(out, y, above, create_graph=True, retain_graph=False)
    assert last.requires_grad
    assert torch.equal(last.detach(), kept.detach())
    out = ul.UL2d(4)(y)
    assert_same(torch.autograd.grad(out, y, zeros)[0], first, 1e-6)
    with pytest.raises(RuntimeError, match="a second time"):
        torch.autograd.grad(out, y, zeros)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 1e19, -3e38])
@pytest.mark.parametrize("step", [0, 5, 79])
def test_unusable_values_go_another_way_and_leave_nothing(
    value: float, step: int, waited: list[Postponed | None]
) -> None:
    torch.manual_seed(0)
    layer, maps = ul.UL2d(4), torch.randn(80, 4, 40, 40)
    gradient(layer, maps, torch.zeros_like(maps))
    other = copy.deepcopy(layer)
    maps[step, 2, 7, 9] = value
    got = gradient(layer, maps, torch.zeros_like(maps))
    assert torch.equal(got, at_once(other, maps, torch.zeros_like(maps)))
    assert_same_statistics(layer, other, 0)
    assert [gradient is None for gradient in waited] == [False, True]
    assert layer.health().skipped == 1


def test_float64_where_float32_does_not_do(waited: list[Postponed | None]) -> None:
    torch.manual_seed(0)
    alike = torch.randn(90, 1, 40, 40) + 1e-3 * torch.randn(90, 4, 40, 40)
    few = torch.randn(90, 16, 8, 8)
    for maps, layer in ((alike, ul.UL2d(4)), (few, ul.UL2d(16))):
        other, exact = copy.deepcopy(layer), copy.deepcopy(layer).double()
        for _ in range(2):
            above = torch.zeros_like(maps)
            got, expected = gradient(layer, maps, above), at_once(other, maps, above)
            assert_same(got, expected, 1e-4)
            if layer.features == 16:
                assert_same(got, gradient(exact, maps.double(), above.double()), 1e-6)
        assert_same_statistics(layer, other)
    assert all(waited)
    assert {gradient.parts[0].inverses.dtype for gradient in waited if gradient} == {np.dtype("d")}


def test_statistics_that_someone_has_set(waited: list[Postponed | None]) -> None:
    torch.manual_seed(0)
    maps, layer = torch.randn(9, 4, 40, 40), ul.UL2d(4)
    zeros = torch.zeros_like(maps)

    def learn(layer: ul.UL2d, change: Callable[[ul.UL2d], object]) -> None:
        change(layer)
        other = copy.deepcopy(layer)
        assert_same(gradient(layer, maps, zeros), at_once(other, maps, zeros), 1e-5)
        assert_same_statistics(layer, other)

    learn(layer, lambda _: None)
    learn(layer, lambda layer: layer.short_mean.add_(1))
    learn(layer, lambda layer: layer.get_buffer("long_mean_rest").fill_(9))  # void: it is no rest
    learn(layer, lambda layer: layer.long_cov.mul_(4))
    learn(layer, lambda layer: layer.load_state_dict(copy.deepcopy(layer).state_dict()))
    assert all(waited)
    learn(layer, lambda layer: layer.short_evidence[:7].zero_())  # these begin anew
    learn(layer, lambda layer: layer.double())
    assert waited[5:] == [None, None]


def test_memory_that_is_not_of_torch() -> None:
    values = np.random.default_rng(0).normal(size=(9, 4, 40, 40)).astype("f")
    y, layer = torch.from_numpy(values).requires_grad_(), ul.UL2d(4)
    out, expected = layer(y), gradient(ul.UL2d(4), torch.tensor(values), torch.zeros(y.shape))
    values[:] = 0
    ul.backward(out)
    assert y.grad is not None
    assert torch.equal(y.grad, expected)


def test_what_would_have_to_be_kept_may_be_too_much(waited: list[Postponed | None]) -> None:
    torch.manual_seed(0)
    for steps, channels, side, keeps in ((300, 64, 12, False), (60, 64, 12, True)):
        maps = torch.randn(steps, channels, side, side)
        got = gradient(ul.UL2d(channels), maps, torch.zeros_like(maps))
        assert_same(got, at_once(ul.UL2d(channels), maps, torch.zeros_like(maps)), 1e-5)
        assert (waited[-1] is not None) == keeps


def test_calls_do_not_matter(waited: list[Postponed | None]) -> None:
    """What float32 cannot hold of a mean is kept from call to call."""
    torch.manual_seed(0)
    maps = torch.randn(60, 4, 40, 40) * 1e-2 + 1000
    whole, cut = ul.UL2d(4, reduction="sum"), ul.UL2d(4, reduction="sum")
    expected = gradient(whole, maps, torch.zeros_like(maps))
    parts = [gradient(cut, part, torch.zeros_like(part)) for part in maps.split(7)]
    assert_same(torch.cat(parts), expected, 1e-4)
    for name in ("short_cov", "long_cov"):
        assert_same(getattr(cut, name), getattr(whole, name), 1e-4)
    assert all(waited)


def test_a_scene_at_rest_is_remembered_to_its_last_digits(waited: list[Postponed | None]) -> None:
    """How far the means are behind then is less than any digit of the frames."""
    torch.manual_seed(0)
    still = torch.randn(1, 4, 40, 40) + 50
    calls = [still + torch.randn(9, 4, 40, 40), still.repeat(60, 1, 1, 1), still.repeat(3, 1, 1, 1)]
    layer = ul.UL2d(4, mu=0.9, eps=0.45)
    other = copy.deepcopy(layer)
    for maps in calls:
        above = torch.zeros_like(maps)
        assert_same(gradient(layer, maps, above), at_once(other, maps, above), 1e-5)
    assert bool(gradient(layer, calls[-1], torch.zeros_like(calls[-1])).any())
    assert all(waited)


@pytest.mark.parametrize(("threads", "channels", "side"), [(2, 64, 16), (4, 48, 23), (6, 80, 28)])
def test_threads_in_pairs(threads: int, channels: int, side: int) -> None:
    torch.manual_seed(0)
    maps, layer = torch.randn(20, channels, side, side).cumsum(0), ul.UL2d(channels)
    expected = at_once(copy.deepcopy(layer), maps, torch.zeros_like(maps), plainly=True)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        tiles = Tiles.of(maps.flatten(2).numpy())
        assert tiles.apart
        assert len(tiles.shares) == threads
        assert_same(gradient(layer, maps, torch.zeros_like(maps)), expected, 1e-5)
    finally:
        torch.set_num_threads(before)


def test_zeros_without_memory() -> None:
    zeros = torch._efficientzerotensor((9, 4, 40, 40)).requires_grad_()
    assert not can_postpone(zeros, Rates(0.5, 1e-3, 1e-4))
    ul.backward(ul.UL2d(4)(zeros))
    assert zeros.grad is not None
    assert not bool(zeros.grad.any())


def test_what_does_not_wait() -> None:
    plain = Rates(0.5, 1e-3, 1e-4)
    maps = torch.randn(9, 4, 40, 40)
    assert can_postpone(maps, plain)
    for other in (maps[:1], maps.double(), maps.mT, maps.half(), nn.Parameter(maps), maps[:, 0]):
        assert not can_postpone(other, plain)
    for rates in (Rates(0.5, 0.5, 1e-4), Rates(0.5, 1e-3, 1e-4, "clip")):
        assert not can_postpone(maps, rates)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints(reentrant: bool) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 6, 3), ul.UL2d(6, 0.5, 0.1), nn.ReLU(inplace=True))
    inner, video = copy.deepcopy(net), torch.rand(9, 1, 40, 40, requires_grad=True)
    for _ in range(2):
        ul.backward(net(video))
        ul.backward(checkpoint(inner, video, use_reentrant=reentrant))
    for ours, theirs in zip(net.parameters(), inner.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-5)
    assert_same_statistics(net[1], inner[1])  # type: ignore[arg-type]


def test_as_many_threads_as_there_are_at_the_time() -> None:
    torch.manual_seed(0)
    maps, layer, before = torch.randn(9, 4, 80, 80), ul.UL2d(4), torch.get_num_threads()
    expected = gradient(copy.deepcopy(layer), maps, torch.zeros_like(maps))
    y = maps.clone().requires_grad_()
    try:
        torch.set_num_threads(3)
        out = layer(y)
        torch.set_num_threads(1)
        ul.backward(out)
    finally:
        torch.set_num_threads(before)
    assert y.grad is not None
    assert_same(y.grad, expected, 1e-6)


@pytest.mark.parametrize("scale", [1e-30, 1e-24, 1e-15, 1e15])
def test_values_whose_squares_float32_cannot_hold(scale: float) -> None:
    torch.manual_seed(0)
    maps = torch.randn(9, 4, 40, 40)
    expected = gradient(ul.UL2d(4), maps, torch.zeros_like(maps))
    got = gradient(ul.UL2d(4), maps * scale, torch.zeros_like(maps))
    assert_same(got.double() * scale, expected.double(), 1e-5)


def test_other_defaults_of_torch() -> None:
    torch.manual_seed(0)
    calls = [torch.randn(9, 4, 40, 40) * 1e-2 + 3000 for _ in range(3)]
    plain = ul.UL2d(4)
    layer = copy.deepcopy(plain)
    for maps in calls:
        expected = gradient(plain, maps, torch.zeros_like(maps))
        y, zeros = maps.clone().requires_grad_(), torch.zeros_like(maps)
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("meta")
        try:
            layer(y).backward(zeros)
        finally:
            torch.set_default_dtype(torch.float32)
            torch.set_default_device(None)
        assert y.grad is not None
        assert torch.equal(y.grad, expected)
    assert_same_statistics(layer, plain, 0)


def test_gradients_from_above_that_have_no_memory_of_their_own() -> None:
    torch.manual_seed(0)
    maps, where = torch.randn(9, 4, 40, 40), torch.zeros(9, 4, 40, 5, dtype=torch.long)
    own = gradient(ul.UL2d(4), maps, torch.zeros_like(maps))
    y = maps.clone().requires_grad_()
    torch.gather(ul.UL2d(4)(y), 3, where, sparse_grad=True).sum().backward()
    assert y.grad is not None
    own_and_five = own.clone()
    own_and_five[..., 0] += 5
    assert_same(y.grad, own_and_five, 1e-6)
    y = maps.clone().requires_grad_()
    ul.UL2d(4)(y).backward(torch._efficientzerotensor(maps.shape))
    assert y.grad is not None
    assert torch.equal(y.grad, own)


def test_parts_of_one_tensor_stay_in_its_memory() -> None:
    torch.manual_seed(0)
    whole, layer = torch.randn(40, 4, 40, 40).requires_grad_() * 1, ul.UL2d(4)
    begin = address(whole)
    outputs = [layer(part) for part in whole.split(10)]
    layer(outputs[0])  # one layer after another
    assert address(whole) == begin
    assert [address(out) - begin for out in outputs] == [n * 10 * 4 * 1600 * 4 for n in range(4)]


def test_errors_and_interrupts_of_threads_do_not_hinder_the_next() -> None:
    frames = np.zeros((3, 4, 1024), "f")
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        tiles, done = Tiles.of(frames), list[int]()
        for share, error in ((1, ValueError), (2, KeyError), (0, KeyboardInterrupt)):

            def work(i: int, share: int = share, error: type[BaseException] = error) -> None:
                if i == share:
                    raise error

            with pytest.raises(error):
                tiles.on_all(work)
            tiles.on_all(done.append)
        assert sorted(done) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
        assert Tiles.of(frames).tiles.ctypes.data != tiles.tiles.ctypes.data  # one may write there
    finally:
        torch.set_num_threads(before)


THREADS = """
import threading, torch, ullayers as ul
layer = ul.UL2d(4)

def work(side):
    for _ in range(60):
        y = torch.randn(5, 4, side, side, requires_grad=True)
        ul.backward(layer(y))
        assert y.grad.shape == y.shape

failures = []
threading.excepthook = failures.append
threads = [threading.Thread(target=work, args=(side,)) for side in (24, 40, 50, 64)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert all(isinstance(failure.exc_value, (RuntimeError, ValueError)) for failure in failures)
"""


def test_threads_that_share_a_layer_do_no_harm() -> None:
    """What they learn is mixed up, and some may fail, but none reads or writes elsewhere."""
    subprocess.run([sys.executable, "-c", THREADS], check=True)
