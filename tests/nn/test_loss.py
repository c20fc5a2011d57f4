"""`ul.loss`: the gradient of the UL layers as a scalar."""

from __future__ import annotations

import copy
import gc
import pickle
import warnings
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import ullayers as ul

FRAMES = 40
Statistics = Literal["fresh", "running"]


def codes(statistics: Any, **choices: Any) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(5, 4),
        ul.UL1d(4, weight=0.3, statistics=statistics, **choices),
        nn.Tanh(),
        nn.Linear(4, 2),
        ul.UL1d(2, statistics=statistics, **choices),
    ).double()


def maps(statistics: Any, **choices: Any) -> nn.Sequential:
    torch.manual_seed(1)
    layer = ul.UL2d(3, weight=0.7, statistics=statistics, **choices)
    return nn.Sequential(nn.Conv2d(1, 3, 3), layer, nn.ReLU(), nn.Conv2d(3, 2, 3)).double()


def clips_of(net: nn.Module) -> Any:
    return ul.sequences(net, lengths=[10, 25, 5])


CASES: dict[str, tuple[Callable[..., nn.Sequential], dict[str, Any], bool]] = {
    "codes": (codes, {}, False),
    "clips of codes": (codes, {}, True),
    "shared mean": (codes, {"long_term": "shared"}, True),
    "sum": (codes, {"reduction": "sum"}, False),
    "maps": (maps, {}, False),
    "diagonal": (maps, {"diagonal": True}, True),
}


def frames_for(net: nn.Sequential) -> Tensor:
    torch.manual_seed(2)
    shape = (FRAMES, 5) if isinstance(net[0], nn.Linear) else (FRAMES, 1, 7, 8)
    return torch.randn(shape, dtype=torch.float64).cumsum(0)


def gradients(net: nn.Module) -> list[Tensor]:
    found = [p.grad.clone() for p in net.parameters() if p.grad is not None]
    net.zero_grad()
    return found


def total(net: nn.Module) -> Tensor:
    return torch.stack([layer.weight * layer.objective for layer in ul.ul_layers(net)]).sum()


@pytest.mark.parametrize("statistics", ["fresh", "running"])
@pytest.mark.parametrize("case", CASES)
def test_value_and_gradient_are_those_of_the_layers(case: str, statistics: Statistics) -> None:
    make, choices, clips = CASES[case]
    net, other = make(statistics, **choices), make(statistics, **choices)
    x = frames_for(net)
    with clips_of(net) if clips else nullcontext():
        ul.backward(net(x))
    with clips_of(other) if clips else nullcontext():
        y = other(x)
    loss = ul.loss(other)
    torch.testing.assert_close(loss.detach(), total(net))
    (y * 0).sum().add(1024 * loss).backward()
    for got, expected in zip(gradients(other), gradients(net), strict=True):
        torch.testing.assert_close(got, 1024 * expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("statistics", ["fresh", "running"])
def test_it_adds_to_the_gradient_of_another_cost(statistics: Statistics) -> None:
    net, other = codes(statistics), codes(statistics)
    x = frames_for(net)
    net(x).square().mean().backward()
    (other(x).square().mean() + ul.loss(other)).backward()
    for got, expected in zip(gradients(other), gradients(net), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("statistics", ["fresh", "running"])
def test_it_counts_once(statistics: Statistics) -> None:
    """Not in the backward pass of another cost, not after a backward pass, and not twice."""
    net = codes(statistics)
    x = frames_for(net)
    y = net(x)
    ul.loss(net)
    (y * 0).sum().backward()
    assert all(float(gradient.norm()) == 0 for gradient in gradients(net))
    with pytest.warns(UserWarning, match=r"ul\.loss found no call"):
        assert ul.loss(net).item() == 0
    y = net(x)
    ul.backward(y)
    with pytest.warns(UserWarning, match=r"ul\.loss found no call"):
        ul.loss(net)


def test_the_output_need_not_be_in_use() -> None:
    net, other = codes("fresh"), codes("fresh")
    x = frames_for(net)
    ul.backward(net(x))
    other(x)
    ul.loss(other).backward()
    for got, expected in zip(gradients(other), gradients(net), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("statistics", ["fresh", "running"])
def test_several_forward_passes_before_one_backward_pass(statistics: Statistics) -> None:
    """The mean of the losses has the mean of the gradients."""
    net, other = codes(statistics), codes(statistics)
    parts = frames_for(net).split(FRAMES // 2)
    for part in parts:
        ul.backward(net(part))
    losses = []
    for part in parts:
        other(part)
        losses.append(ul.loss(other))
    torch.stack(losses).mean().backward()
    for got, expected in zip(gradients(other), gradients(net), strict=True):
        torch.testing.assert_close(got, expected / 2, rtol=1e-9, atol=1e-12)


class Twice(nn.Module):
    """Calls its UL layer twice."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.linear = nn.Linear(5, 2).double()
        self.layer = ul.UL1d(2, statistics="fresh").double()

    def forward(self, x: Tensor) -> Tensor:
        first = self.layer(self.linear(x))
        second = self.layer(self.linear(x.flip(0) ** 2))
        return torch.cat([first, second])


@pytest.mark.parametrize("keep", [True, False])
def test_a_layer_that_is_called_twice(keep: bool) -> None:
    net, other = Twice(), Twice()
    x = frames_for(codes("fresh"))
    ul.backward(net(x))
    y = other(x) if keep else other(x) is None
    loss = ul.loss(other)
    single = ul.UL1d(2, statistics="fresh").double()
    expected = 0.0
    for part in (x, x.flip(0) ** 2):
        single(net.linear(part).detach())
        expected += float(single.objective)
    assert loss.item() == pytest.approx(expected, rel=1e-9)
    loss.backward()
    for got, wanted in zip(gradients(other), gradients(net), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-12)
    del y


def test_abandoned_forward_passes_do_not_count() -> None:
    net, other = codes("fresh"), codes("fresh")
    x = frames_for(net)
    ul.backward(net(x))
    y = other(x**2)
    y = other(x)  # noqa: F841  (replaces the output of the first pass)
    ul.loss(other).backward()
    for got, expected in zip(gradients(other), gradients(net), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("taken", [True, False])
@pytest.mark.parametrize("statistics", ["fresh", "running"])
def test_the_graph_is_freed_after_the_backward_pass(statistics: Statistics, taken: bool) -> None:
    net = codes(statistics)
    x = frames_for(net).requires_grad_()
    graph = x * 1
    alive = weakref.ref(graph)
    y = net(graph)
    del graph
    ul.loss(net).backward() if taken else ul.backward(y)
    del y
    gc.collect()
    assert alive() is None


def test_layers_can_be_copied_between_forward_and_backward_pass() -> None:
    net = codes("fresh")
    y = net(frames_for(net))
    pickle.loads(pickle.dumps(net))
    twin = copy.deepcopy(net)
    with pytest.warns(UserWarning, match=r"ul\.loss found no call"):
        ul.loss(twin)
    ul.loss(net).backward()
    del y


@pytest.mark.parametrize("statistics", ["fresh", "running"])
def test_checkpointing(statistics: Statistics) -> None:
    net, other = codes(statistics), codes(statistics)
    x = frames_for(net)
    ul.backward(net(x))
    y = checkpoint(other, x, use_reentrant=False)
    (ul.loss(other) + 0 * y.sum()).backward()
    for got, expected in zip(gradients(other), gradients(net), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("statistics", ["fresh", "running"])
def test_reentrant_checkpointing_says_what_to_do(statistics: Statistics) -> None:
    net = codes(statistics)
    x = frames_for(net).requires_grad_()
    y = checkpoint(net, x, use_reentrant=True)
    with pytest.warns(UserWarning, match=r"ul\.loss found no call"):
        loss = ul.loss(net)
    with pytest.raises(RuntimeError, match="use_reentrant=False"):
        (loss + y.sum()).backward()


def test_compiled_graphs_say_what_to_do() -> None:
    net = nn.Sequential(nn.Linear(5, 2), ul.UL1d(2)).double()
    x = frames_for(net)
    compiled: Any = torch.compile(net, fullgraph=True, backend="aot_eager")
    y = compiled(x)
    with pytest.raises(RuntimeError, match=r"torch\.compile"):
        ul.loss(net)
    ul.backward(y)
    net(x)
    ul.loss(net).backward()


@pytest.mark.parametrize("net", [nn.Linear(5, 2).double(), codes("fresh").eval()])
def test_it_warns_where_nothing_is_learned(net: nn.Module) -> None:
    net(torch.randn(FRAMES, 5, dtype=torch.float64))
    with pytest.warns(UserWarning, match=r"net\.train\(\)"):
        assert ul.loss(net).item() == 0


@pytest.mark.parametrize("statistics", ["fresh", "running"])
def test_in_eval_mode_it_is_zero_whatever_was_called_before(statistics: Statistics) -> None:
    net = codes(statistics)
    x = frames_for(net)
    y = net(x)
    net.eval()
    net(x)
    with pytest.warns(UserWarning, match="are in eval mode"):
        assert ul.loss(net).item() == 0
    net.train()
    assert ul.loss(net).item() == pytest.approx(total(net).item())
    ul.backward(y)  # the gradient belongs to the loss, which was not used
    assert not any(bool(p.grad.any()) for p in net.parameters() if p.grad is not None)


@pytest.mark.parametrize("statistics", ["fresh", "running"])
def test_without_gradients_it_is_a_value_only(statistics: Statistics) -> None:
    """Logging the value must not cost the layers their gradient, with or without a later loss."""
    net, other, third = (codes(statistics) for _ in range(3))
    x = frames_for(net)
    net(x).square().mean().backward()
    expected = gradients(net)
    for each in (other, third):
        cost = each(x).square().mean()
        with torch.no_grad():
            value = ul.loss(each)
        assert value.item() == pytest.approx(total(each).item())
        assert not value.requires_grad
        (cost + ul.loss(each) if each is third else cost).backward()
        for got, wanted in zip(gradients(each), expected, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-12)


def test_a_layer_whose_input_needs_no_gradient_is_left_out() -> None:
    net = codes("fresh")
    net[0].requires_grad_(False)
    net(frames_for(net))
    assert ul.loss(net).item() == pytest.approx(float(net[-1].objective))  # type: ignore[arg-type]


def test_layers_in_eval_mode_are_left_out() -> None:
    net = codes("fresh")
    net(frames_for(net))
    first, last = ul.ul_layers(net)
    first.eval()
    assert ul.loss(net).item() == pytest.approx(last.objective.item())


@pytest.mark.parametrize(
    ("value", "found"), [(5, "got int"), (None, "got NoneType"), (torch.zeros(3), "got a tensor")]
)
def test_loss_refuses_values_that_are_not_networks(value: Any, found: str) -> None:
    with pytest.raises(TypeError, match=rf"expected the network, a torch\.nn\.Module, {found}"):
        ul.loss(value)


def test_input_that_does_not_vary_adds_zero() -> None:
    net = nn.Sequential(nn.Linear(5, 2), ul.UL1d(2))
    net(torch.ones(FRAMES, 5))
    assert ul.loss(net).item() == 0


def test_scatter_gets_its_gradient() -> None:
    torch.manual_seed(0)
    found = []
    for take in (False, True):
        layer = ul.UL1d(2, statistics="fresh").double()
        torch.manual_seed(0)
        y = torch.randn(FRAMES, 2, dtype=torch.float64, requires_grad=True)
        spread = torch.eye(2, dtype=torch.float64).repeat(FRAMES, 1, 1).requires_grad_()
        output = layer(y, spread)
        ul.loss(layer).mul(3).backward() if take else ul.backward(output)
        assert y.grad is not None
        assert spread.grad is not None
        found.append((y.grad, spread.grad))
    for plain, taken in zip(*found, strict=True):
        torch.testing.assert_close(taken, 3 * plain)


def test_float16_gradients_survive_the_factor_of_a_scaler() -> None:
    """float16 holds no number above 65504, but the product may fit."""
    y = torch.randn(FRAMES, 3).half().requires_grad_()
    layer = ul.UL1d(3, weight=1e-4)
    layer(y)
    (2.0**17 * ul.loss(layer)).backward()
    assert y.grad is not None
    assert bool(y.grad.isfinite().all())
    assert float(y.grad.float().norm()) > 0


@pytest.fixture
def optimizer() -> tuple[nn.Module, torch.optim.Optimizer]:
    net = codes("fresh").float()
    return net, torch.optim.SGD(net.parameters(), lr=0.0)


def test_scaled_training_equals_plain_training(
    optimizer: tuple[nn.Module, torch.optim.Optimizer],
) -> None:
    net, sgd = optimizer
    x = frames_for(codes("fresh")).float()
    (net(x).square().mean() + ul.loss(net)).backward()
    expected = gradients(net)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(net(x).square().mean() + ul.loss(net)).backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scaler.step(sgd)  # divides by the scale
    for got, wanted in zip(gradients(net), expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("way", ["scaled cost", "ul.backward"])
def test_gradients_that_a_scaler_divides_warn(
    way: str, optimizer: tuple[nn.Module, torch.optim.Optimizer]
) -> None:
    net, sgd = optimizer
    x = frames_for(codes("fresh")).float()
    scaler = torch.amp.GradScaler("cpu")
    scaled = scaler.scale(net(x).square().mean())
    if way == "scaled cost":
        scaled.backward()
    else:
        ul.backward(net(x))
    with pytest.warns(UserWarning, match=r"scaler\.scale\(loss \+ ul\.loss\(net\)\)") as caught:
        scaler.step(sgd)
    assert caught[0].filename == __file__


@pytest.mark.parametrize("way", ["no scaler", "disabled scaler"])
def test_gradients_that_nothing_divides_do_not_warn(
    way: str, optimizer: tuple[nn.Module, torch.optim.Optimizer]
) -> None:
    net, sgd = optimizer
    net(frames_for(codes("fresh")).float()).square().mean().backward()
    if way == "no scaler":
        sgd.step()
    else:
        torch.amp.GradScaler("cpu", enabled=False).step(sgd)


@pytest.mark.parametrize("statistics", ["fresh", "running"])
def test_a_second_derivative_is_refused(statistics: Literal["fresh", "running"]) -> None:
    net = nn.Sequential(nn.Linear(3, 2), ul.UL1d(2, statistics=statistics))
    net(torch.randn(50, 3).cumsum(0))
    weights = list(net.parameters())
    gradients = torch.autograd.grad(ul.loss(net), weights, create_graph=True)
    with pytest.raises(RuntimeError, match="does not require grad"):
        gradients[0].square().sum().backward()
