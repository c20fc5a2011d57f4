"""Properties of UL layers with fresh and with running statistics; each test runs with both."""

from __future__ import annotations

import copy
import pickle
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import ullayers as ul
from tests.nn.test_layers import assert_unchanged, gradient_of, relative
from tests.nn.test_layers import statistics as buffers_of

pytestmark = pytest.mark.parametrize("kind", ["fresh", "running"])


def frames(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def all_finite(layer: nn.Module) -> bool:
    return all(bool(torch.isfinite(b).all()) for b in layer.buffers())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
@pytest.mark.parametrize("where", [0, 17, 39])
def test_a_bad_frame_is_ignored(kind: Any, bad: float, where: int) -> None:
    y = frames(40, 3)
    y[where, 1] = bad
    with_bad, without = (ul.UL1d(3, reduction="sum", statistics=kind) for _ in range(2))
    g = gradient_of(with_bad, y)
    assert torch.equal(g[where], torch.zeros(3))
    others = torch.arange(40) != where
    expected = gradient_of(without, y[others])
    # With "sum", a fresh gradient is the gradient of J times the number of frames.
    share = 40 / 39 if kind == "fresh" else 1.0
    assert relative(g[others], expected * share) < 1e-5
    torch.testing.assert_close(with_bad.short_cov, without.short_cov)
    torch.testing.assert_close(with_bad.long_mean, without.long_mean)
    assert with_bad.health().skipped == 1


def test_bad_pixels_leave_the_other_positions_alone(kind: Any) -> None:
    maps = frames(36, 2, 4, 4)
    maps[3, 1, 2, 2] = float("nan")
    layer = ul.UL2d(2, statistics=kind)
    g = gradient_of(layer, maps)
    assert bool(torch.isfinite(g).all())
    assert torch.equal(g[3, :, 2, 2], torch.zeros(2))
    assert bool((g[3, :, 0, 0] != 0).all())
    assert all_finite(layer)


def test_a_bad_scatter_is_left_out_with_its_frame(kind: Any) -> None:
    scatter = torch.eye(2).repeat(40, 1, 1)
    scatter[5] = float("nan")
    layer = ul.UL1d(2, statistics=kind)
    assert bool(torch.isfinite(gradient_of(layer, frames(40, 2), scatter)).all())
    assert all_finite(layer)
    assert layer.health().skipped == 1


@pytest.mark.parametrize("value", [0.0, 0.1, 1e15])
def test_constant_input_gets_no_gradient(kind: Any, value: float) -> None:
    layer = ul.UL1d(3, statistics=kind)
    for _ in range(2):
        assert torch.equal(gradient_of(layer, torch.full((40, 3), value)), torch.zeros(40, 3))
    assert layer.health().dead_units == 3
    assert all_finite(layer)


def test_a_dead_unit_gets_no_gradient(kind: Any) -> None:
    y = frames(300, 3)
    y[:, 1] = 2.5
    layer = ul.UL1d(3, statistics=kind)
    g = gradient_of(layer, y)
    assert torch.equal(g[:, 1], torch.zeros(300))
    assert bool((g[1:, [0, 2]] != 0).all())
    assert layer.health().dead_units == 1


@pytest.mark.parametrize("d", [10, 50, 200])
def test_more_features_than_frames(kind: Any, d: int) -> None:
    layer = ul.UL1d(d, statistics=kind)
    assert bool(torch.isfinite(gradient_of(layer, frames(6, d))).all())
    assert layer.health().singular == 0


@pytest.mark.parametrize("scale", [1e-12, 1e-6, 1e6, 1e12])
def test_the_gradient_scales_inversely(kind: Any, scale: float) -> None:
    y = frames(60, 3).cumsum(0)
    one, other = ul.UL1d(3, statistics=kind), ul.UL1d(3, statistics=kind)
    assert relative(gradient_of(other, y * scale) * scale, gradient_of(one, y)) < 1e-3
    torch.testing.assert_close(other.objective, one.objective, atol=1e-3, rtol=0)


@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16])
def test_statistics_are_never_narrow(kind: Any, narrow: torch.dtype) -> None:
    net = nn.Sequential(nn.Linear(6, 3), ul.UL1d(3, statistics=kind)).to(narrow)
    out = net(frames(40, 6).to(narrow))
    ul.backward(out)
    assert out.dtype == narrow
    assert net.get_parameter("0.weight").grad.dtype == narrow  # type: ignore[union-attr]
    assert net[1].short_cov.dtype == torch.float32


def test_autocast_computes_from_narrow_values_in_full_precision(kind: Any) -> None:
    linear, layer, twin = nn.Linear(6, 3), *(ul.UL1d(3, statistics=kind) for _ in range(2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = linear(frames(40, 6) + 10)
        ul.backward(layer(hidden))
    gradient_of(twin, hidden.float())
    for name, value in buffers_of(twin).items():
        torch.testing.assert_close(layer.state_dict()[name], value, rtol=1e-6, atol=1e-7)


def test_float64_layers_keep_their_digits(kind: Any) -> None:
    y = frames(40, 3).double()
    wide, narrow = ul.UL1d(3, statistics=kind).double(), ul.UL1d(3, statistics=kind)
    g = gradient_of(wide, y)
    assert g.dtype == wide.short_cov.dtype == torch.float64
    assert relative(gradient_of(narrow, y.float()).double(), g) < 1e-5


def test_in_place_layers_may_follow(kind: Any) -> None:
    def weight_gradient(in_place: bool) -> Tensor:
        torch.manual_seed(1)
        net = nn.Sequential(
            nn.Conv2d(1, 4, 3), ul.UL2d(4, statistics=kind), nn.ReLU(inplace=in_place)
        )
        net(frames(40, 1, 8, 8)).sum().backward()
        gradient = net.get_parameter("0.weight").grad
        assert gradient is not None
        return gradient

    torch.testing.assert_close(weight_gradient(True), weight_gradient(False))


def test_inference_mode_leaves_a_usable_layer(kind: Any) -> None:
    y = frames(2, 40, 3)
    layer, twin = ul.UL1d(3, statistics=kind), ul.UL1d(3, statistics=kind)
    with torch.inference_mode():
        layer(y[0])
    with torch.no_grad():
        twin(y[0])
    assert int(layer.steps) == 40
    assert torch.equal(gradient_of(layer, y[1]), gradient_of(twin, y[1]))


def test_copies_and_loaded_layers_are_independent(kind: Any) -> None:
    y = frames(2, 40, 3)
    layer, loaded = ul.UL1d(3, statistics=kind), ul.UL1d(3, statistics=kind)
    gradient_of(layer, y[0])
    twin, other = copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))
    loaded.load_state_dict(layer.state_dict())
    before = buffers_of(layer)
    results = [gradient_of(each, y[1]) for each in (twin, other, loaded)]
    assert_unchanged(layer, before)
    expected = gradient_of(layer, y[1])
    for result in results:
        torch.testing.assert_close(result, expected)


@pytest.mark.parametrize(
    "transform",
    [
        lambda net, x: torch.func.grad(lambda t: net(t).sum())(x),
        lambda net, x: torch.func.vmap(net)(x[None]),
        lambda net, x: torch.func.jacrev(net)(x),
    ],
)
def test_function_transforms_raise_a_helpful_error(kind: Any, transform: Any) -> None:
    net = nn.Sequential(nn.Linear(3, 2), ul.UL1d(2, statistics=kind))
    before = buffers_of(net)
    with pytest.raises(RuntimeError, match=r"torch\.func.*use ul\.backward or torch\.autograd"):
        transform(net, frames(40, 3))
    assert_unchanged(net, before)
    transform(net.eval(), frames(40, 3))


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("lengths", [None, [18, 22], [20, 20]])
def test_checkpointing_inside_sequences(
    kind: Any, reentrant: bool, lengths: list[int] | None
) -> None:
    """The backward pass may run after the block that marked the clips."""
    torch.manual_seed(0)
    plain = nn.Sequential(
        nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2), ul.UL1d(2, statistics=kind), nn.Linear(2, 2)
    )
    inner, x = copy.deepcopy(plain), frames(40, 3).requires_grad_()
    with ul.sequences(plain, lengths):
        y = plain(x)
    ul.backward(y)
    with ul.sequences(inner, lengths):
        y = checkpoint(inner, x, use_reentrant=reentrant)
    ul.backward(y)
    for ours, theirs in zip(inner.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
    for name, value in buffers_of(plain).items():
        torch.testing.assert_close(inner.state_dict()[name], value)


def test_retained_differentiated_and_batched_graphs(kind: Any) -> None:
    layer, y = ul.UL1d(3, statistics=kind), frames(40, 3).requires_grad_()
    out, zeros = layer(y), torch.zeros(40, 3)
    (once,) = torch.autograd.grad(out, y, zeros, retain_graph=True)
    expected = once.clone()
    once.zero_()  # changing a returned gradient must not affect the next
    (again,) = torch.autograd.grad(out, y, zeros, retain_graph=True)
    assert torch.equal(again, expected)
    above = torch.stack([zeros, zeros + 1])
    (batched,) = torch.autograd.grad(out, y, above, retain_graph=True, is_grads_batched=True)
    torch.testing.assert_close(batched, expected + above)
    weight = torch.ones(3, requires_grad=True)
    (first,) = torch.autograd.grad((layer(y) * weight).sum(), y, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), weight)
    torch.testing.assert_close(second, torch.full((3,), 40.0))


def test_a_failing_pass_changes_nothing(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = ul.UL1d(2, statistics=kind)
    with torch.no_grad():
        layer(frames(40, 2))
    before = buffers_of(layer)

    def broken(*_: Tensor) -> Tensor:
        raise MemoryError

    monkeypatch.setattr(torch.linalg, "cholesky_ex", broken)
    with pytest.raises(MemoryError), torch.no_grad():
        layer(frames(40, 2))
    assert_unchanged(layer, before)


def test_threads_that_share_a_layer_do_no_harm(kind: Any) -> None:
    """The order of frames is undefined, but all gradients and statistics are finite."""
    layer, bad = ul.UL1d(6, statistics=kind), []

    def work(streams: int) -> None:
        for _ in range(30):
            y = torch.randn(streams, 40, 6, requires_grad=True)
            try:
                ul.backward(layer(y))
            except RuntimeError as error:  # buffers changed their size under another thread
                bad.append(str(error))

    threads = [threading.Thread(target=work, args=(n,)) for n in (1, 1, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not bad
    assert all_finite(layer)


def test_explain_names_the_kernel_and_learns_nothing(kind: Any) -> None:
    layer, y = ul.UL1d(3, statistics=kind), frames(40, 3).requires_grad_()
    said = layer.explain(y)
    assert said.startswith(f'{kind} statistics: statistics="{kind}"\n')
    assert ("not Triton kernels: " if kind == "fresh" else "not NumPy and LAPACK") in said
    assert "fewer than 32" in ul.UL1d(3).explain(y[:31])
    assert "at least 32" in ul.UL1d(3).explain(y)
    assert 'start="paper"' in ul.UL1d(3, start="paper").explain(y)
    assert int(layer.steps) == 0
    assert layer.eval().explain(y).startswith("eval mode")
    with pytest.raises(ValueError, match="expected"):
        layer.explain(torch.randn(4, 4))
