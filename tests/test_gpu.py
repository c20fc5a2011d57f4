"""The layers on a GPU give what they give on the CPU."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

import ullayers as ul
from ullayers.calls import ULBase
from ullayers.kernels import frame, launch
from ullayers.kernels.replay import Recordings

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def run(layer: nn.Module, y: Tensor, device: str) -> tuple[Tensor, dict[str, Tensor]]:
    layer = layer.to(device)
    y = y.detach().to(device, copy=True).requires_grad_()
    out = layer(y)
    torch.testing.assert_close(out.detach(), y.detach(), rtol=0, atol=0, equal_nan=True)
    ul.backward(out)
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


FUSED: list[tuple[type[nn.Module], dict[str, Any], tuple[int, ...]]] = [
    (ul.UL2d, {}, (20, 3, 40, 40)),
    (ul.UL2d, {"mu": 0.9}, (2, 21, 24, 20, 20)),
    (ul.UL2d, {"start": "paper", "eps": 0.01}, (20, 16, 24, 24)),
    (ul.UL2d, {"eps": 1e-5}, (130, 64, 16, 16)),
    (ul.UL2d, {}, (10, 128, 16, 16)),
    (ul.UL2d, {}, (7, 77, 16, 16)),
    (ul.UL1d, {}, (600, 12, 8)),
]


@pytest.mark.parametrize(("kind", "choices", "shape"), FUSED)
@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize("spoilt", [False, True])
def test_fused_kernels_follow_float64(
    kind: type[nn.Module],
    choices: dict[str, Any],
    shape: tuple[int, ...],
    clips: bool,
    spoilt: bool,
) -> None:
    """Three calls: the second begins where the first has left off, the third is replayed."""
    torch.manual_seed(0)
    features = shape[-1] if kind is ul.UL1d else shape[-3]
    fused, wide = kind(features, **choices).cuda(), kind(features, **choices).cuda().double()
    assert isinstance(fused, ULBase)
    assert isinstance(wide, ULBase)
    launched: list[object] = []
    of_layer = ULBase._learn_fused

    def noted(layer: ULBase, y: Tensor, scatter: Tensor | None) -> Any:
        launched.append(of_layer(layer, y, scatter))
        return launched[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ULBase, "_learn_fused", noted)
        for weight in (1.0, 1.0, 0.5):
            fused.weight = wide.weight = weight
            y = torch.randn(shape, device="cuda") + 3
            if spoilt:
                y.view(-1)[:: y.numel() // 7] = float("nan")
            with ul.sequences(fused) if clips else nullcontext():
                got, state = run(fused, y, "cuda")
            with ul.sequences(wide) if clips else nullcontext():
                expected, exact = run(wide, y.double(), "cuda")
            assert float((got - expected).norm() / expected.norm()) < 1e-4
    assert launched[0] is not None
    assert launched[1] is None
    for name, value in exact.items():
        if not name.endswith("_rest"):
            largest = float(value.double().abs().max())
            close = float((state[name].double() - value.double()).abs().max())
            assert close <= 1e-4 * largest, name


@pytest.mark.parametrize("shape", [(70, 16, 24, 24), (1, 70, 16, 24, 24), (2, 70, 16, 24, 24)])
def test_long_maps_go_part_by_part(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    batches = [torch.randn(shape, device="cuda") + 3 for _ in range(3)]  # the last are replayed
    results = []
    for values in (2**40, 1):
        layer = ul.UL2d(16).cuda()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(launch, "PART_VALUES", values)
            patch.setattr(launch, "_recordings", Recordings())
            results.append([run(layer, y, "cuda") for y in batches])
            assert len(launch._recordings.kept) == 1
    for (whole, state), (parts, end) in zip(*results, strict=True):
        assert float((whole - parts).norm() / whole.norm()) < 1e-5
        for name, value in state.items():
            if not name.endswith("_rest"):
                torch.testing.assert_close(end[name], value, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize(
    ("kind", "shape"),
    [(ul.UL2d, (8, 16, 24, 24)), (ul.UL1d, (1, 16)), (ul.UL1d, (20, 16)), (ul.UL1d, (20, 70))],
)
def test_the_same_call_over_and_over(kind: type[nn.Module], shape: tuple[int, ...]) -> None:
    """Its launches become a graph, which gives what they gave."""
    torch.manual_seed(0)
    features = shape[-1] if kind is ul.UL1d else shape[-3]
    fused, plain = kind(features).cuda(), kind(features).cuda()
    assert isinstance(plain, ULBase)
    room, recordings = torch.empty(shape, device="cuda"), Recordings()
    module = launch if kind is ul.UL2d else frame
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_recordings", recordings)
        for step in range(12):
            values = torch.randn(shape, device="cuda") + 3
            gradients = []
            for layer in (fused, plain):
                patch.setattr(module, "_recordings", recordings if layer is fused else Recordings())
                y = room.copy_(values).detach().requires_grad_()  # in the same place each time
                ul.backward(layer(y))
                assert y.grad is not None
                gradients.append(y.grad.clone())
            torch.testing.assert_close(gradients[0], gradients[1], msg=str(step))
    assert recordings.graphs
    for name, value in fused.state_dict().items():
        torch.testing.assert_close(value, plain.state_dict()[name], msg=name)


def test_a_failed_pass_changes_nothing() -> None:
    layer = ul.UL2d(16).cuda()
    layer(torch.randn(8, 16, 24, 24, device="cuda", requires_grad=True))
    before = {name: value.clone() for name, value in layer.state_dict().items()}

    def fail(*_: Any) -> None:
        raise RuntimeError("no memory")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ullayers.kernels.launch._Run.write_gradient", fail)
        with pytest.raises(RuntimeError, match="no memory"):
            layer(torch.randn(9, 16, 24, 24, device="cuda", requires_grad=True))
    for name, value in layer.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_maps_with_gaps_between_them() -> None:
    torch.manual_seed(0)
    maps = torch.randn(8, 32, 24, 24, device="cuda")
    layers = [ul.UL2d(16).cuda() for _ in range(2)]
    gradients = []
    for layer, gaps in zip(layers, (False, True), strict=True):
        y = maps[:, ::2].detach().clone().requires_grad_()
        seen = y if not gaps else torch.stack([y, y], 2).flatten(1, 2)[:, ::2]
        assert seen.is_contiguous() != gaps
        ul.backward(layer(seen))
        gradients.append(y.grad)
    torch.testing.assert_close(gradients[1], gradients[0])


@pytest.mark.parametrize("kind", ["crop, channels last", "transposed", "channels last", "repeated"])
def test_maps_that_lie_otherwise(kind: str) -> None:
    torch.manual_seed(0)
    last = torch.randn(8, 26, 24, 16, device="cuda").movedim(-1, 1)
    seen = {
        "crop, channels last": last[:, :, 1:-1],
        "transposed": torch.randn(8, 16, 24, 24, device="cuda").mT,
        "channels last": last,
        "repeated": torch.randn(8, 16, 1, 24, device="cuda").expand(-1, -1, 24, -1),
    }[kind]
    assert not seen.is_contiguous()
    results = []
    for y in (seen, seen.contiguous()):
        layer = ul.UL2d(16).cuda()
        leaf = y.detach().requires_grad_()
        out = layer(leaf)
        assert torch.equal(out, y)
        ul.backward(out)
        assert leaf.grad is not None
        results.append((leaf.grad, layer.state_dict()))
    (got, state), (expected, same) = results
    assert float((got - expected).norm() / expected.norm()) < 1e-5
    for name, value in same.items():
        torch.testing.assert_close(state[name], value, rtol=1e-4, atol=1e-5, msg=name)


def test_ill_conditioned_maps() -> None:
    torch.manual_seed(0)
    for channels in (64, 128):
        basis = torch.linalg.qr(torch.randn(channels, channels))[0]
        mix = (basis * torch.logspace(0, -2, channels)) @ basis.T
        y = torch.einsum("dc,tchw->tdhw", mix, torch.randn(20, channels, 32, 32))
        got, _ = run(ul.UL2d(channels), y, "cuda")
        expected, _ = run(ul.UL2d(channels).double(), y.double(), "cuda")
        assert float((got - expected).norm() / expected.norm()) < 2e-4


def assert_follows(fused: nn.Module, wide: nn.Module, calls: Tensor) -> None:
    """Call after call, a layer on the GPU gives what one in float64 gives on the CPU."""
    for i, y in enumerate(calls):
        got, state = run(fused, y, "cuda")
        expected, exact = run(wide, y.double(), "cpu")
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
    fused, wide = ul.UL1d(d, **choices).cuda(), ul.UL1d(d, **choices).double()
    frames = torch.randn(70, 1, d) + 3
    frames[20, 0, 0] = float("nan")
    assert_follows(fused, wide, frames)


@pytest.mark.parametrize(("d", "steps"), [(2, 150), (3, 1), (17, 64), (40, 70), (100, 20)])
def test_chunks_of_a_single_stream(d: int, steps: int) -> None:
    """Four calls: the second begins where the first has left off, the others are replayed."""
    torch.manual_seed(0)
    fused, wide = ul.UL1d(d).cuda(), ul.UL1d(d).double()
    chunks = torch.randn(5, steps, d) + 3
    chunks[2, steps // 2, 0] = float("nan")
    chunks[3] = float("nan")
    chunks[4, 0] = float("inf")
    assert_follows(fused, wide, chunks)


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


CAPTURED: list[tuple[type[nn.Module], tuple[int, ...]]] = [
    (ul.UL1d, (1, 5)),
    (ul.UL1d, (1, 100)),
    (ul.UL2d, (8, 16, 24, 24)),
]


@pytest.mark.parametrize(("kind", "shape"), CAPTURED)
def test_captured_steps(kind: type[nn.Module], shape: tuple[int, ...]) -> None:
    """A CUDA graph of forward and backward, replayed on frames that change, is as good as calls."""
    torch.manual_seed(0)
    features = shape[-1] if kind is ul.UL1d else shape[-3]
    layers = [kind(features).cuda() for _ in range(2)]
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
