"""The layers on a GPU give what they give on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ullayers as ul

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def run(layer: nn.Module, y: Tensor, device: str) -> tuple[Tensor, dict[str, Tensor]]:
    layer = layer.to(device)
    y = y.detach().to(device, copy=True).requires_grad_()
    ul.backward(layer(y))
    assert y.grad is not None
    return y.grad.cpu(), {k: v.cpu() for k, v in layer.state_dict().items()}


CASES: list[tuple[type[nn.Module], tuple[Any, ...], tuple[int, ...]]] = [
    (ul.UL1d, (3,), (100, 3)),
    (ul.UL1d, (200,), (50, 200)),
    (ul.UL1d, (8,), (5, 40, 8)),
    (ul.UL2d, (6, 0.7), (40, 6, 9, 9)),
    (ul.UL2d, (16, 0.7), (2, 20, 16, 40, 40)),
]


@pytest.mark.parametrize(("kind", "arguments", "shape"), CASES)
def test_same_as_on_the_cpu(
    kind: type[nn.Module], arguments: tuple[Any, ...], shape: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    y = torch.randn(shape)
    expected, state = run(kind(*arguments), y, "cpu")
    got, moved = run(kind(*arguments), y, "cuda")
    assert float((got - expected).norm() / expected.norm()) < 1e-4
    for name, value in state.items():
        torch.testing.assert_close(moved[name], value, rtol=1e-4, atol=1e-5)


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
