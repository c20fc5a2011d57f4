"""The layers on a GPU give what they give on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

import ullayers as ul
from tests.running_layers import UL1d, UL2d

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def run(layer: nn.Module, y: Tensor, device: str) -> tuple[Tensor, dict[str, Tensor]]:
    layer = layer.to(device)
    y = y.detach().to(device, copy=True).requires_grad_()
    out = layer(y)
    torch.testing.assert_close(out.detach(), y.detach(), rtol=0, atol=0, equal_nan=True)
    ul.backward(out)
    assert y.grad is not None
    return y.grad.cpu(), {k: v.cpu() for k, v in layer.state_dict().items()}


CASES: list[tuple[Callable[..., nn.Module], tuple[Any, ...], tuple[int, ...]]] = [
    (UL1d, (3,), (100, 3)),
    (UL1d, (200,), (50, 200)),
    (UL1d, (8,), (5, 40, 8)),
    (UL2d, (6, 0.7), (40, 6, 9, 9)),
    (UL2d, (16, 0.7), (2, 20, 16, 40, 40)),
    (ul.UL1d, (200,), (50, 200)),
    (ul.UL1d, (8,), (5, 40, 8)),
    (ul.UL2d, (16, 0.7), (2, 20, 16, 40, 40)),
]


@pytest.mark.parametrize(("kind", "arguments", "shape"), CASES)
def test_same_as_on_the_cpu(
    kind: Callable[..., nn.Module], arguments: tuple[Any, ...], shape: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    y = torch.randn(shape)
    expected, state = run(kind(*arguments), y, "cpu")
    got, moved = run(kind(*arguments), y, "cuda")
    assert float((got - expected).norm() / expected.norm()) < 1e-4
    for name, value in state.items():
        torch.testing.assert_close(moved[name], value, rtol=1e-4, atol=1e-5)


def assert_follows(fused: nn.Module, wide: nn.Module, calls: Tensor) -> None:
    """Call after call, a layer on the GPU gives what one on the CPU, usually in float64, gives."""
    for i, y in enumerate(calls):
        got, state = run(fused, y, "cuda")
        expected, exact = run(wide, y.to(wide.short_cov.dtype), "cpu")
        error, size = float((got - expected).norm()), float(expected.norm())
        assert error <= 1e-4 * size, i
    for name, value in exact.items():
        if not name.endswith("_rest"):
            torch.testing.assert_close(
                state[name].double(), value.double(), rtol=1e-4, atol=1e-6, msg=name
            )


# Without a ridge the buffers keep too few digits to compare: W's condition grows with every frame.
@pytest.mark.parametrize("d", [1, 2, 5, 16, 33, 64, 100, 256])
@pytest.mark.parametrize("choices", [{}, {"start": "paper", "eps": 0.05, "ridge": 1e-4}])
def test_frames_one_by_one(d: int, choices: dict[str, Any]) -> None:
    torch.manual_seed(0)
    fused, wide = UL1d(d, **choices).cuda(), UL1d(d, **choices).double()
    frames = torch.randn(70, 1, d) + 3
    frames[20, 0, 0] = float("nan")
    assert_follows(fused, wide, frames)


@pytest.mark.parametrize(("d", "steps"), [(2, 150), (3, 2), (17, 32), (40, 70), (100, 20)])
def test_chunks_of_a_single_stream(d: int, steps: int) -> None:
    torch.manual_seed(0)
    fused, wide = UL1d(d).cuda(), UL1d(d).double()
    chunks = torch.randn(5, steps, d) + 3
    chunks[2, steps // 2, 0] = float("nan")
    chunks[3] = float("nan")
    chunks[4, 0] = float("inf")
    assert_follows(fused, wide, chunks)


@pytest.mark.parametrize("d", [1, 5, 64, 100, 256])
@pytest.mark.parametrize("steps", [1, 10])
def test_jumps_of_scale(d: int, steps: int) -> None:
    torch.manual_seed(0)
    fused, wide = UL1d(d).cuda(), UL1d(d).double()
    scale = torch.tensor([1e-9, 1e-4, 1.0]).repeat_interleave(30)
    frames = (scale[:, None] * torch.randn(90, d)).view(-1, steps, d)
    assert_follows(fused, wide, frames)


@pytest.mark.parametrize("d", [1, 5, 64, 100, 256])
@pytest.mark.parametrize("small", [1e-41, 1e-38, 1e-20])
def test_frames_of_tiny_scale_do_not_affect_later_gradients(d: int, small: float) -> None:
    """Gradients of tiny frames do not fit float32, and differ from those of a float64 layer."""
    torch.manual_seed(0)
    fused, same = UL1d(d).cuda(), UL1d(d)
    for frame in small * torch.randn(50, 1, d):
        got, state = run(fused, frame, "cuda")
        run(same, frame, "cpu")
        assert bool(got.isfinite().all())
        assert all(bool(value.isfinite().all()) for value in state.values())
    assert_follows(fused, same, torch.randn(40, 1, d))


def test_state_moves_between_devices() -> None:
    torch.manual_seed(0)
    y = torch.randn(20, 3)
    stay, move = ul.UL1d(3), ul.UL1d(3)
    stay(y[:10])
    move.cuda()(y[:10].cuda())
    got, _ = run(move, y[10:], "cpu")
    expected, _ = run(stay, y[10:], "cpu")
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("narrow", [False, True])
def test_compile_and_autocast(narrow: bool) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3), ul.UL2d(8), nn.Tanh(), nn.Flatten(), nn.Linear(1568, 2), ul.UL1d(2)
    ).cuda()
    compiled = torch.compile(net, fullgraph=True)
    for _ in range(3):
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=narrow):
            out = compiled(torch.randn(16, 1, 16, 16, device="cuda"))
        ul.backward(out)
    assert all(bool(torch.isfinite(p.grad).all()) for p in net.parameters() if p.grad is not None)
    assert all(layer.short_cov.dtype == torch.float32 for layer in ul.ul_layers(net))


def test_online_step_does_not_wait_for_the_device() -> None:
    layer = ul.UL1d(8).cuda()
    frame = torch.randn(1, 8, device="cuda", requires_grad=True)
    ul.backward(layer(frame))
    torch.cuda.set_sync_debug_mode("error")
    try:
        ul.backward(layer(frame))
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("shape", [(1, 5), (1, 100)])
def test_captured_steps(shape: tuple[int, ...]) -> None:
    """A CUDA graph of forward and backward, replayed on frames that change, is as good as calls."""
    torch.manual_seed(0)
    layers = [UL1d(shape[-1]).cuda() for _ in range(2)]
    inputs = torch.randn(8, *shape, device="cuda") + 3
    held, graph = inputs[0].clone().requires_grad_(), torch.cuda.CUDAGraph()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for frames in inputs[:3]:
            held.data.copy_(frames)
            held.grad = None
            ul.backward(layers[1](held))
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph):
        held.grad = None
        ul.backward(layers[1](held))
    for i, frames in enumerate(inputs):
        expected, state = run(layers[0], frames, "cuda")
        if i >= 3:
            held.data.copy_(frames)
            graph.replay()
            got = cast(Tensor, held.grad).cpu()
            assert float((got - expected).norm() / expected.norm()) < 1e-4, i
    for name, value in layers[1].state_dict().items():
        if not name.endswith("_rest"):
            torch.testing.assert_close(value.cpu(), state[name], rtol=1e-4, atol=1e-6, msg=name)
