"""UL layers inside the rest of PyTorch: precision, checkpointing, compilation, export."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import ullayers as ul
from tests.nn.test_layers import assert_unchanged, gradient_of, relative, statistics


def small_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), ul.UL2d(4, 0.8), nn.Tanh(), nn.Flatten(), nn.Linear(144, 3), ul.UL1d(3)
    )


def gradients(net: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in net.parameters() if p.grad is not None]


def assert_same_training(a: nn.Module, b: nn.Module, **tolerance: Any) -> None:
    assert len(gradients(a)) == len(gradients(b)) > 0
    for x, y in zip(gradients(a), gradients(b), strict=True):
        torch.testing.assert_close(x, y, **tolerance)
    for name, value in statistics(a).items():
        torch.testing.assert_close(b.state_dict()[name], value, **tolerance)


def test_double_and_back() -> None:
    layer = ul.UL1d(3)
    layer(torch.randn(9, 3))
    cov = layer.short_cov.clone()
    layer.double()
    assert layer.short_cov.dtype == torch.float64
    layer(torch.randn(9, 3).double())
    layer.float()
    assert layer.short_cov.dtype == torch.float32
    assert layer.short_cov.shape == cov.shape


@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16])
def test_statistics_are_never_narrow(narrow: torch.dtype) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 3), ul.UL1d(3), ul.Whiten(3)).to(narrow)
    assert net[0].weight.dtype == narrow
    out = net(torch.randn(20, 6).to(narrow))
    assert out.dtype == narrow
    for name, buffer in net.named_buffers():
        if buffer.is_floating_point():
            assert torch.finfo(buffer.dtype).bits >= 32, name
    ul.backward(out)
    gradient = net.get_parameter("0.weight").grad
    assert gradient is not None
    assert gradient.dtype == narrow


def test_autocast_keeps_float32_statistics() -> None:
    """Under bf16 autocast the layer computes with the bf16 values in float32."""
    torch.manual_seed(0)
    linear, layer, twin = nn.Linear(6, 3), ul.UL1d(3), ul.UL1d(3)
    x = torch.randn(40, 6) + 10
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = linear(x)
        out = layer(hidden)
        assert out.dtype == torch.bfloat16
    ul.backward(out)
    assert linear.weight.grad is not None
    assert linear.weight.grad.dtype == torch.float32
    gradient_of(twin, hidden.float())
    for name, value in statistics(twin).items():
        torch.testing.assert_close(layer.state_dict()[name], value, rtol=1e-6, atol=1e-7)
    assert layer.short_cov.dtype == torch.float32


def test_autocast_large_maps() -> None:
    torch.manual_seed(0)
    maps = torch.randn(6, 4, 40, 40).bfloat16()
    inside, outside = ul.UL2d(4), ul.UL2d(4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside(maps)
    outside(maps.float())
    torch.testing.assert_close(inside.short_cov, outside.short_cov, rtol=1e-5, atol=1e-6)


def test_gradient_accumulation() -> None:
    """Two micro-batches give the sum of their gradients and the statistics of both."""
    torch.manual_seed(0)
    video = torch.randn(20, 1, 8, 8)
    together, apart = small_net(), small_net()
    for layer in (*ul.ul_layers(together), *ul.ul_layers(apart)):
        layer.reduction = "sum"
    ul.backward(together(video))
    for part in video.split(10):
        ul.backward(apart(part))
    assert_same_training(together, apart, rtol=1e-4, atol=1e-6)


class Checkpointed(nn.Module):
    def __init__(self, net: nn.Sequential, reentrant: bool) -> None:
        super().__init__()
        self.net, self.reentrant = net, reentrant

    def forward(self, x: Tensor) -> Any:
        return checkpoint(self.net, x, use_reentrant=self.reentrant)


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_learns_once(reentrant: bool) -> None:
    torch.manual_seed(1)
    plain, inner = small_net(), small_net()
    wrapped = Checkpointed(inner, reentrant)
    for _ in range(3):
        video = torch.randn(12, 1, 8, 8, requires_grad=True)
        ul.backward(plain(video))
        ul.backward(wrapped(video))
    assert ul.ul_layers(inner)[0].steps == 36
    assert_same_training(plain, inner)


def test_reentrant_checkpointing_of_two_calls_says_what_to_do() -> None:
    wrapped = Checkpointed(nn.Sequential(nn.Linear(3, 2), ul.UL1d(2)), True)
    x = torch.randn(2, 5, 3, requires_grad=True)
    first, _ = wrapped(x[0]), wrapped(x[1])
    with pytest.raises(RuntimeError, match="use_reentrant=False"):
        ul.backward(first)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_inside_sequences(reentrant: bool) -> None:
    """The backward pass may run after the block that marked the clips."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2), ul.UL1d(2))
    inner = copy.deepcopy(plain)
    x = torch.randn(20, 3, requires_grad=True)
    with ul.sequences(plain, [8, 12]):
        y = plain(x)
    ul.backward(y)
    with ul.sequences(inner, [8, 12]):
        y = checkpoint(inner, x, use_reentrant=reentrant)
    ul.backward(y)
    assert_same_training(plain, inner)


def test_checkpointing_with_another_pass_in_between() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(3, 2), ul.UL1d(2), nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1))
    inner = copy.deepcopy(plain)
    x, other = torch.randn(20, 3, requires_grad=True), torch.randn(5, 3)
    y = plain(x)
    with torch.no_grad():
        plain(other)
    y.sum().backward()
    y = checkpoint(inner, x, use_reentrant=False)
    with torch.no_grad():
        inner(other)
    y.sum().backward()
    assert_same_training(plain, inner)


def test_later_layers_may_change_their_input_in_place() -> None:
    layer, x = ul.UL1d(3), torch.randn(5, 3, requires_grad=True)
    hidden = x * 2
    out = layer(hidden)
    values = hidden.detach().clone()
    assert bool((out.relu_() >= 0).all())
    assert torch.equal(hidden, values)


def test_only_what_passes_through_a_layer_gets_its_gradient() -> None:
    torch.manual_seed(0)
    layer, linear, x = ul.UL1d(3), nn.Linear(4, 3), torch.randn(9, 4)
    hidden = linear(x)
    out = layer(hidden)
    (beside,) = torch.autograd.grad((hidden * 0).sum(), hidden, retain_graph=True)
    assert not bool(beside.any())
    (through,) = torch.autograd.grad(out, hidden, torch.zeros_like(out))
    assert bool(through.any())
    again = layer(hidden)  # another pass over the same frames, with its own gradient
    assert bool(torch.autograd.grad(again, hidden, torch.zeros_like(again))[0].any())


def test_memory_that_torch_does_not_own() -> None:
    y = torch.from_numpy(np.random.default_rng(0).normal(size=(6, 3))).requires_grad_()
    ul.backward(ul.UL1d(3)(y))
    assert y.grad is not None


def test_both_kinds_of_checkpointing_learn_the_same_from_maps() -> None:
    results = []
    for reentrant in (None, False, True):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(1, 8, 3), ul.UL2d(8, 0.5, 0.1))
        for _ in range(3):  # later calls continue a stream
            video = torch.rand(40, 1, 14, 14, requires_grad=True)
            maps = (
                net(video) if reentrant is None else checkpoint(net, video, use_reentrant=reentrant)
            )
            ul.backward(maps)
        results.append(net[0].weight.grad)
    torch.testing.assert_close(results[1], results[0])
    torch.testing.assert_close(results[2], results[0])


def test_in_place_layers_may_follow() -> None:
    torch.manual_seed(0)
    video = torch.rand(5, 1, 8, 8)

    def hidden_gradient(in_place: bool) -> Tensor:
        torch.manual_seed(1)
        net = nn.Sequential(nn.Conv2d(1, 4, 3), ul.UL2d(4), nn.ReLU(inplace=in_place))
        net(video).sum().backward()
        gradient = net.get_parameter("0.weight").grad
        assert gradient is not None
        return gradient

    torch.testing.assert_close(hidden_gradient(in_place=True), hidden_gradient(in_place=False))


def test_inference_mode_leaves_a_usable_layer() -> None:
    torch.manual_seed(0)
    y = torch.randn(3, 10, 2)
    layer, twin = ul.UL1d(2), ul.UL1d(2)
    with torch.inference_mode():
        layer(y[:, :5])
    with torch.no_grad():
        twin(y[:, :5])
    torch.testing.assert_close(gradient_of(layer, y[:, 5:]), gradient_of(twin, y[:, 5:]))
    layer.reset()


def test_a_layer_made_or_loaded_in_inference_mode_learns_later() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 10, 2)
    twin = ul.UL1d(2)
    twin(x)
    with torch.inference_mode():
        layer, front = ul.UL1d(2), ul.Whiten(2)
        layer.load_state_dict(twin.state_dict())
    assert not any(buffer.is_inference() for buffer in (*layer.buffers(), *front.buffers()))
    torch.testing.assert_close(gradient_of(layer, x), gradient_of(twin, x))
    front(x)
    layer.reset()


def test_two_checkpointed_calls_before_one_backward() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(3, 2), ul.UL1d(2))
    inner = copy.deepcopy(plain)
    wrapped = Checkpointed(inner, False)
    x = torch.randn(2, 5, 3)
    ul.backward(plain(x[0]), plain(x[1]))
    ul.backward(wrapped(x[0]), wrapped(x[1]))
    assert_same_training(plain, inner)


@pytest.mark.parametrize("clips", [False, True])
def test_compile_without_graph_break(clips: bool) -> None:
    torch.manual_seed(2)
    eager, inner = (small_net()[: 6 if clips else 2] for _ in range(2))
    torch._dynamo.reset()
    # Each graph takes AOTAutograd ten seconds, so only that of later calls with clips is given to
    # it: the first call has a graph of its own. `test_compile_wide_layer` has the last layer
    # without clips.
    compiled = torch.compile(inner, fullgraph=True, backend="aot_eager" if clips else "eager")
    for first in (True, False, False):
        video = torch.randn(9, 1, 8, 8)
        for net, call in ((eager, eager), (inner, inner if clips and first else compiled)):
            if clips:
                with ul.sequences(net, lengths=[4, 5]):
                    ul.backward(call(video))
            else:
                ul.backward(call(video))
    assert ul.ul_layers(inner)[0].steps == (15 if clips else 27)
    assert_same_training(eager, inner, rtol=1e-4, atol=1e-6)


def test_compile_wide_layer() -> None:
    """The compiled graph uses PyTorch operations where eager mode uses the compiled loop."""
    torch.manual_seed(0)
    y = torch.randn(30, 70).double()
    eager, inner = ul.UL1d(70).double(), ul.UL1d(70).double()
    torch._dynamo.reset()
    compiled: Any = torch.compile(inner, fullgraph=True, backend="aot_eager")
    for _ in range(2):  # the second call continues from the statistics of the first
        assert relative(gradient_of(compiled, y), gradient_of(eager, y)) < 1e-9
    for name, value in statistics(eager).items():
        torch.testing.assert_close(inner.state_dict()[name], value)


@pytest.mark.parametrize(
    "transform",
    [
        lambda net, x: torch.func.grad(lambda t: net(t).sum())(x),
        lambda net, x: torch.func.vmap(net)(x[None]),
        lambda net, x: torch.func.jacrev(net)(x),
    ],
)
def test_function_transforms_raise_a_helpful_error(transform: Any) -> None:
    net, x = nn.Sequential(nn.Linear(3, 2), ul.UL1d(2)), torch.randn(5, 3)
    before = statistics(net)
    with pytest.raises(RuntimeError, match=r"torch\.func.*use ul\.backward or torch\.autograd"):
        transform(net, x)
    assert_unchanged(net, before)
    transform(net.eval(), x)


def test_export_in_eval_mode() -> None:
    net = small_net().eval()
    video = torch.randn(5, 1, 8, 8)
    frames = torch.export.Dim("frames", min=2, max=1000)
    program = torch.export.export(net, (video,), dynamic_shapes=({0: frames},))
    longer = torch.randn(17, 1, 8, 8)
    torch.testing.assert_close(program.module()(longer), net(longer))
    names = {node.name for node in program.graph.nodes}
    assert not any("cholesky" in name for name in names)


def test_layer_has_no_parameters_and_shows_its_settings() -> None:
    layer = ul.UL1d(3)
    assert list(layer.parameters()) == []
    assert "mu=0.5" in repr(layer)


def test_function_transforms_over_other_inputs_raise_too() -> None:
    layer, y = ul.UL1d(3), torch.randn(4, 3, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"cannot run inside torch\.func"):
        torch.func.vmap(lambda x: x + layer(y).sum())(torch.zeros(2))
    assert int(layer.steps) == 0


def test_reentrant_checkpoints_with_another_pass_in_between() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 2), ul.UL1d(2))
    plain, x = copy.deepcopy(net), torch.randn(20, 3, requires_grad=True)
    ul.backward(plain(x))
    y = checkpoint(net, x, use_reentrant=True)
    net.eval()
    net(torch.randn(5, 3))  # changes nothing, since it learns nothing
    net.train()
    ul.backward(y)
    assert_same_training(plain, net)
    y = checkpoint(net, x, use_reentrant=True)
    net(torch.randn(5, 3))
    with pytest.raises(RuntimeError, match="use_reentrant=False"):
        ul.backward(y)
