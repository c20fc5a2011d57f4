"""Fresh statistics: W, B and the gradient of J of one call, against the plain formula."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import ullayers as ul
import ullayers.kernels.numba.fresh as fresh_maps
import ullayers.kernels.torch.fresh as fresh
from tests.fresh_formula import plain_objective
from ullayers.kernels.moments import Moments, Rates, Request, weigh

MODES = ["stream", "clip", "shared"]
LAYOUTS = [
    (3, 1, [40]),
    (3, 1, [100]),  # longer than one block of the filter
    (4, 1, [10, 20, 7]),
    (3, 2, [6] * 5),
    (4, 3, [10, 20, 7]),
    (2, 5, [70]),
    (30, 1, [12]),  # fewer frames than features
    (30, 1, [5, 6]),
]


def walk(frames: int, features: int, positions: int, dtype: torch.dtype = torch.float64) -> Tensor:
    torch.manual_seed(0)
    return torch.randn(frames, features, positions, dtype=dtype).cumsum(0) + 100


def with_gaps(y: Tensor, gaps: str) -> Tensor:
    if gaps == "frames":
        y[[0, 3, 5, 6]] = torch.nan
    if gaps == "positions":
        y[(torch.rand(len(y), 1, y.shape[2]) < 0.2).expand_as(y)] = torch.inf
    return y


def request_of(lengths: list[int], mode: str, diagonal: bool = False) -> Request:
    rates = Rates(0.4, 0.05, 1e-3, mode, len(lengths), diagonal)  # type: ignore[arg-type]
    return Request(tuple(lengths), rates, 1e18)


def relative(got: Tensor, expected: Tensor) -> float:
    return float(((got - expected).abs().max() / expected.abs().max()).detach())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("gaps", ["none", "frames", "positions"])
@pytest.mark.parametrize("diagonal", [False, True])
@pytest.mark.parametrize(("features", "positions", "lengths"), LAYOUTS)
def test_gradient_is_autograd_of_the_plain_formula(
    features: int, positions: int, lengths: list[int], diagonal: bool, gaps: str, mode: str
) -> None:
    y = with_gaps(walk(sum(lengths), features, positions), gaps).requires_grad_()
    options: dict[str, Any] = {"mu": 0.4, "eps": 0.05, "ridge": 1e-3, "long_term": mode}
    J, W, B = plain_objective(y, lengths, diagonal=diagonal, **options)
    J.backward()
    assert y.grad is not None
    request = request_of(lengths, mode, diagonal)
    with torch.no_grad():
        moments = fresh.measure(y.detach(), request, None)
        made = weigh(moments, request, torch.float64)
        got = fresh.gradient(y.detach(), request, made.weights, moments.saved, None)
    assert relative(made.covariances, torch.stack([W, B])) < 1e-9
    # With fewer frames than features B has a condition of 1e8, and the formula loses as much.
    tolerance = 1e-9 if sum(lengths) > features else 1e-6
    assert relative(got, y.grad.nan_to_num(0)) < tolerance
    assert int(moments.seen.counts[2]) == int((~y.detach().isfinite().all(1)).sum())


@pytest.mark.parametrize("mode", MODES)
def test_gradient_agrees_with_finite_differences(mode: str) -> None:
    y, direction = walk(30, 3, 1), torch.randn(30, 3, 1, dtype=torch.float64)
    layer = ul.UL1d(3, mu=0.4, statistics="fresh", long_term=mode).double()  # type: ignore[arg-type]

    def objective(step: float) -> float:
        with torch.no_grad():
            layer((y + step * direction).squeeze(2))
        return float(layer.objective)

    inputs = y.squeeze(2).clone().requires_grad_()
    ul.backward(layer(inputs))
    assert inputs.grad is not None
    step = 1e-5
    slope = (objective(step) - objective(-step)) / (2 * step)
    assert float((inputs.grad * direction.squeeze(2)).sum()) == pytest.approx(slope, rel=1e-6)


def test_scatter_is_part_of_w_and_gets_its_gradient() -> None:
    y = walk(37, 3, 1)[:, :, 0]
    root = torch.randn(37, 3, 3, dtype=torch.float64)
    scatter = root @ root.mT
    y[4] = torch.nan
    scatter[9] = torch.nan  # a frame whose scatter is not usable is left out as well
    inputs = [t.clone().requires_grad_() for t in (y, scatter)]
    expected = [t.clone().requires_grad_() for t in (y, scatter)]
    gone = torch.zeros(37, dtype=torch.bool)
    gone[[4, 9]] = True
    frames = torch.where(gone[:, None], torch.nan, expected[0])
    J, _, _ = plain_objective(frames[..., None], [10, 20, 7], scatter=expected[1], long_term="clip")
    J.backward()
    layer = ul.UL1d(3, statistics="fresh").double()
    with ul.sequences(layer, lengths=[10, 20, 7]):
        ul.backward(layer(*inputs))
    for got, wanted in zip(inputs, expected, strict=True):
        assert got.grad is not None
        assert wanted.grad is not None
        torch.testing.assert_close(got.grad, wanted.grad.nan_to_num(0), rtol=1e-9, atol=1e-12)
    assert layer.health().skipped == 2


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("channels", "positions", "lengths", "gaps"),
    [
        (5, 81, [60], "none"),
        (16, 64, [64], "none"),
        (6, 49, [10, 30, 25], "none"),
        (6, 169, [20] * 3, "frames"),
        (7, 100, [50], "positions"),
        (3, 2100, [9], "none"),  # many tiles, and fewer frames than a block
    ],
)
def test_compiled_maps_equal_the_general_path(
    channels: int, positions: int, lengths: list[int], gaps: str, mode: str
) -> None:
    y = with_gaps(walk(sum(lengths), channels, positions, torch.float32), gaps)
    request, above = request_of(lengths, mode), torch.randn_like(y)
    assert fresh_maps.why_not(y, request, None) is None
    found = fresh_maps.measure(y, request, None)
    wanted = fresh.measure(y.double(), request, None)
    for name in ("sums", "short_mean", "long_mean"):
        assert relative(getattr(found, name), getattr(wanted, name)) < 1e-5, name
    assert torch.equal(found.seen.counts, wanted.seen.counts)
    weights = weigh(wanted, request, torch.float32).weights
    expected = fresh.gradient(y.double(), request, weights, wanted.saved, None)
    got = fresh_maps.gradient(y, request, weights, found.saved, None)
    assert relative(got.double(), expected) < 1e-5
    both = fresh_maps.gradient(y, request, weights, found.saved, above)
    torch.testing.assert_close(both, got + above)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
def test_maps_of_any_precision_and_layout(kind: torch.dtype, memory: torch.memory_format) -> None:
    torch.manual_seed(0)
    y = torch.randn(40, 6, 12, 12).cumsum(0).to(kind).to(memory_format=memory)
    wide = y.double().requires_grad_()
    y.requires_grad_()
    for layer, inputs in ((ul.UL2d(6), y), (ul.UL2d(6).double(), wide)):
        ul.backward(layer(inputs))
    assert y.grad is not None
    assert wide.grad is not None
    assert y.grad.dtype == kind
    assert y.grad.is_contiguous(memory_format=memory)
    assert relative(y.grad.double(), wide.grad) < 4 * torch.finfo(kind).eps + 1e-5


@pytest.mark.parametrize(("features", "enough"), [(2, 32), (31, 32), (32, 8), (300, 8)])
def test_auto_takes_fresh_statistics_where_frames_are_enough(features: int, enough: int) -> None:
    layer, frames = ul.UL1d(features), torch.randn(64, features).cumsum(0)
    fresh_layer = ul.UL1d(features, statistics="fresh")
    for count, is_same in ((enough, True), (enough - 1, False)):
        layer.reset()
        gradients = []
        for each in (layer, fresh_layer):
            y = frames[:count].clone().requires_grad_()
            ul.backward(each(y))
            gradients.append(y.grad)
        assert torch.equal(*gradients) == is_same  # type: ignore[arg-type]


def test_calls_do_not_depend_on_earlier_ones() -> None:
    layer, frames = ul.UL1d(3, statistics="fresh"), torch.randn(2, 50, 3).cumsum(1)
    gradients = []
    for y in (frames[0], frames[1], frames[0]):
        y = y.clone().requires_grad_()
        ul.backward(layer(y))
        gradients.append(y.grad)
    assert torch.equal(gradients[0], gradients[2])  # type: ignore[arg-type]
    assert int(layer.steps) == 150


def test_buffers_hold_the_statistics_of_the_last_call() -> None:
    y = walk(60, 3, 1)[:, :, 0]
    layer = ul.UL1d(3, mu=0.4, eps=0.05, ridge=1e-3, statistics="fresh").double()
    layer(y)
    J, W, B = plain_objective(y[..., None], mu=0.4, eps=0.05, ridge=1e-3)
    torch.testing.assert_close(layer.short_cov, W)
    torch.testing.assert_close(layer.long_cov, B)
    torch.testing.assert_close(layer.objective, J)
    short, long = torch.zeros(3).double(), torch.zeros(3).double()
    for frame in y:
        short, long = 0.6 * short + 0.4 * frame, 0.95 * long + 0.05 * frame
    torch.testing.assert_close(layer.short_mean[0], short / (1 - 0.6**60))
    torch.testing.assert_close(layer.long_mean[0], long / (1 - 0.95**60))
    other = ul.UL1d(3, mu=0.4, eps=0.05, ridge=1e-3).double()
    other.load_state_dict(layer.state_dict())
    assert other.health() == layer.health()


@pytest.mark.parametrize("shape", [(40, 3), (40, 3, 8, 8)])
def test_what_does_not_move_gets_no_gradient(shape: tuple[int, ...]) -> None:
    y = torch.full(shape, 7.0, requires_grad=True)
    layer = (ul.UL1d if len(shape) == 2 else ul.UL2d)(3)
    ul.backward(layer(y))
    assert y.grad is not None
    assert not y.grad.any()
    assert layer.health().dead_units == 3


def test_one_frame_is_refused_where_fresh_statistics_are_asked_for() -> None:
    layer = ul.UL1d(2, statistics="fresh")
    with pytest.raises(ValueError, match="at least two frames"):
        layer(torch.randn(1, 2))
    assert int(layer.steps) == 0
    with pytest.raises(ValueError, match="paper"):
        ul.UL1d(2, start="paper", statistics="fresh")
    with pytest.raises(ValueError, match="statistics"):
        ul.UL1d(2, statistics="stale")  # type: ignore[arg-type]


def gradients_of(net: torch.nn.Module, frames: Tensor, run: Callable[..., Tensor]) -> list[Tensor]:
    net.zero_grad()
    ul.backward(run(frames))
    return [p.grad.clone() for p in net.parameters() if p.grad is not None]


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_changes_nothing(reentrant: bool) -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3),
        ul.UL2d(4),
        torch.nn.ReLU(inplace=True),
        torch.nn.Flatten(),
        torch.nn.Linear(4 * 64, 2),
        ul.UL1d(2),
    )
    frames = torch.randn(40, 1, 10, 10).cumsum(0).requires_grad_()
    expected = gradients_of(net, frames, net)
    steps = int(net[1].steps)  # type: ignore[arg-type]
    got = gradients_of(net, frames, lambda x: checkpoint(net, x, use_reentrant=reentrant))
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b)
    assert int(net[1].steps) == 2 * steps  # type: ignore[arg-type]


def test_graphs_that_are_kept_differentiated_and_batched() -> None:
    layer, y = ul.UL1d(2), torch.randn(40, 2).cumsum(0).requires_grad_()
    out = layer(y)
    zeros = torch.zeros_like(y)
    (once,) = torch.autograd.grad(out, y, zeros, retain_graph=True)
    (again,) = torch.autograd.grad(out, y, zeros, retain_graph=True)
    assert torch.equal(once, again)
    above = torch.randn(3, 40, 2)
    (batched,) = torch.autograd.grad(out, y, above, retain_graph=True, is_grads_batched=True)
    torch.testing.assert_close(batched, above + once)
    weight = torch.ones(40, 2, requires_grad=True)
    (first,) = torch.autograd.grad((layer(y) * weight).sum(), y, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), weight)
    assert torch.equal(second, torch.ones(40, 2))


def test_values_whose_sums_would_overflow_are_left_out() -> None:
    signs = torch.randn(40, 4, 64, 64).sign()
    for layer, maps in (
        (ul.UL2d(4), signs * 4e17),
        (ul.UL2d(4).double(), torch.where(torch.arange(40).view(-1, 1, 1, 1) == 3, 1e30, signs)),
    ):
        layer(maps)
        assert all(buffer.isfinite().all() for buffer in layer.buffers())
        assert layer.health().skipped > 0


def test_tiny_values_give_no_nan() -> None:
    for scale in (1e-18, 1e-21, 1e-30):
        maps = (torch.randn(40, 4, 16, 16) * scale).requires_grad_()
        ul.backward(ul.UL2d(4)(maps))
        assert maps.grad is not None
        assert maps.grad.isfinite().all()


def test_evidence_of_a_small_rate_keeps_its_digits() -> None:
    layer = ul.UL2d(4, eps=1e-8)
    layer(torch.randn(40, 4, 16, 16))
    assert layer.long_evidence[0] == pytest.approx(4e-7, rel=1e-5)


def test_moments_of_tiles_with_and_without_gaps_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    y = walk(20, 3, 12)
    y[4, :, 0] = torch.nan
    request = request_of([20], "clip")
    whole: Moments = fresh.measure(y, request, None)
    monkeypatch.setattr(fresh, "TILE_VALUES", 20 * 3 * 5)
    parts = fresh.measure(y, request, None)
    for name in ("sums", "short_mean", "long_mean"):
        torch.testing.assert_close(getattr(parts, name), getattr(whole, name))
    for name in ("counts", "steps", "short_evidence", "long_evidence"):
        torch.testing.assert_close(getattr(parts.seen, name), getattr(whole.seen, name))


@pytest.mark.parametrize("scattered", [False, True])
def test_compiled_graphs_learn_the_same(scattered: bool) -> None:
    torch.manual_seed(0)
    below, layer = torch.nn.Linear(6, 3), ul.UL1d(3)
    frames, root = torch.randn(48, 6).cumsum(0), torch.randn(48, 3, 3)
    scatter = root @ root.mT

    def run(frames: Tensor, scatter: Tensor | None) -> Tensor:
        y: Tensor = layer(below(frames), scatter)
        return y

    found = []
    for call in (run, torch.compile(run, fullgraph=True, backend="aot_eager")):
        extra = scatter.clone().requires_grad_() if scattered else None
        below.zero_grad()
        ul.backward(call(frames, extra))
        spread = None if extra is None else extra.grad
        found.append([below.weight.grad, layer.short_cov.clone(), spread])
    for got, wanted in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(got, wanted)
    assert int(layer.steps) == 96


def test_compiled_graphs_of_maps_leave_the_same_means() -> None:
    maps = torch.randn(40, 4, 16, 16) + 2
    eager, inner = ul.UL2d(4), ul.UL2d(4)
    compiled = torch.compile(inner, fullgraph=True, backend="aot_eager")
    for call in (eager, compiled):
        ul.backward(call(maps.clone().requires_grad_()))
    for name in ("short_mean", "long_mean", "short_cov", "long_cov"):
        torch.testing.assert_close(getattr(inner, name), getattr(eager, name))
