"""Single frames on a CPU give what PyTorch operations give, and what all calls must keep."""

from __future__ import annotations

import copy
import pickle
import signal
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import ullayers as ul
from tests.command import run_code
from tests.nn.test_layers import gradient_of, relative
from tests.running_layers import UL1d, UL2d
from ullayers.kernels.torch.fresh import NAME
from ullayers.kernels.torch.running import ONE_FRAME, advance_frame
from ullayers.nn.layers import ULBase


def with_pytorch(layer: ULBase) -> ULBase:
    """Make a layer use PyTorch operations for every call."""
    layer._learn_frame = lambda y, scatter: None  # type: ignore[method-assign]
    return layer


def assert_same_state(one: ULBase, other: ULBase, tolerance: float) -> None:
    for name, value in other.state_dict().items():
        got = one.state_dict()[name]
        if name.endswith("_rest"):  # rounding errors of the statistic before
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
    bad=st.lists(st.integers(0, 15), max_size=3),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_single_frames_agree_with_pytorch(
    seed: int,
    d: int,
    mu: float,
    eps: float,
    offset: float,
    paper: bool,
    bad: list[int],
    dtype: torch.dtype,
) -> None:
    mu = min(mu, 0.3) if paper else mu  # without a ridge W would have no inverse
    generator = torch.Generator().manual_seed(seed)
    y = torch.randn(16, d, generator=generator).double() + (0 if paper else offset)
    y[bad, 0] = float("nan")
    y = y.to(dtype)
    choices: dict[str, Any] = {"start": "paper" if paper else "warm", "weight": 0.7}
    short, plain = (UL1d(d, mu, eps * mu, **choices).to(dtype) for _ in range(2))
    with_pytorch(plain)
    got = torch.cat([gradient_of(short, frame[None]) for frame in y])
    expected = torch.cat([gradient_of(plain, frame[None]) for frame in y])
    wide = dtype == torch.float64
    # Between calls, the pull and scalars are rounded to the layer's precision.
    assert relative(got, expected) <= (1e-8 if wide else 1e-4)
    assert_same_state(short, plain, 1e-8 if wide else 1e-4)


@pytest.mark.parametrize("d", [4, 7, 9, 64, 67, 130])
def test_wide_frames_agree_with_pytorch(d: int) -> None:
    torch.manual_seed(0)
    y = torch.randn(20, d).double().cumsum(0)
    short, plain = (UL1d(d, 0.3).double() for _ in range(2))
    with_pytorch(plain)
    got, expected = (
        torch.cat([gradient_of(layer, frame[None]) for frame in y]) for layer in (short, plain)
    )
    assert relative(got, expected) <= 1e-8
    assert_same_state(short, plain, 1e-8)
    for name, value in short.state_dict().items():
        assert "cov" not in name or value.ndim < 2 or torch.equal(value, value.T)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_frames_of_another_precision_than_the_layer(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    y = torch.randn(20, 5).to(dtype)
    short, plain = UL1d(5), with_pytorch(UL1d(5))
    got, expected = (
        torch.cat([gradient_of(layer, frame[None]) for frame in y]) for layer in (short, plain)
    )
    assert got.dtype == dtype
    torch.testing.assert_close(got, expected, rtol=4 * torch.finfo(dtype).eps + 1e-6, atol=1e-6)
    assert_same_state(short, plain, 1e-5)


@pytest.mark.parametrize("d", [2, 64, 130])
def test_frames_and_chunks_may_take_turns(d: int) -> None:
    torch.manual_seed(0)
    y = torch.randn(60, d)
    mixed, plain = UL1d(d, reduction="sum"), UL1d(d, reduction="sum")
    got = [gradient_of(mixed, piece) for piece in y.split([1] * 10 + [20] + [1] * 10 + [20])]
    assert relative(torch.cat(got), gradient_of(plain, y)) < 1e-4
    assert_same_state(mixed, plain, 1e-4)


def some_frames(layer: ULBase, count: int = 5) -> Tensor:
    return torch.cat([gradient_of(layer, torch.randn(1, 3)) for _ in range(count)])


def test_buffers_set_by_the_user_are_used() -> None:
    torch.manual_seed(0)
    short, plain = UL1d(3), with_pytorch(UL1d(3))
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


def test_copies_and_loaded_layers_are_independent() -> None:
    torch.manual_seed(0)
    layer, loaded = UL1d(3), UL1d(3)
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
    layer, plain = UL1d(3), with_pytorch(UL1d(3))
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


def test_results_are_the_same_without_numba() -> None:
    code = (
        "import torch, ullayers as ul\n"
        "torch.manual_seed(0); net = torch.nn.Sequential(torch.nn.Linear(4, 3), ul.UL1d(3))\n"
        "for frames in torch.randn(40, 4).split([1, 1, 20, 18]): ul.backward(net(frames))\n"
        "found = [net[0].weight.grad.norm().item(), *net[1].short_cov.flatten().tolist()]\n"
    )
    with_numba: dict[str, Any] = {}
    exec(code, with_numba)
    code = f"import sys; sys.modules['numba'] = None\n{code}print(*found)"
    status, out, errors = run_code(code, bare=True)
    assert status == 0, errors
    without = [float(number) for number in out.split()]
    assert without == pytest.approx(with_numba["found"], rel=1e-5)


def test_buffers_whose_data_is_replaced_are_found() -> None:
    torch.manual_seed(0)
    layer, plain = UL1d(3), with_pytorch(UL1d(3))
    for each in (layer, plain):
        torch.manual_seed(1)
        some_frames(each)
        each.long_mean.data = torch.full((1, 3), 0.5)
        some_frames(each)
    assert not bool((layer.long_mean == 0.5).any())
    assert_same_state(layer, plain, 1e-5)


def test_a_clip_of_unusable_frames_keeps_its_means() -> None:
    layer, plain = (UL1d(3, long_term="clip") for _ in range(2))
    with_pytorch(plain)
    for each in (layer, plain):
        torch.manual_seed(0)
        gradient_of(each, torch.randn(4, 3))
        gradient_of(each, torch.full((4, 3), float("nan")))
    assert_same_state(layer, plain, 1e-6)


def test_batched_gradients() -> None:
    layer, y, above = UL1d(3), torch.randn(5, 3, requires_grad=True), torch.randn(4, 5, 3)
    (many,) = torch.autograd.grad(layer(y), y, above, is_grads_batched=True)
    gradient = many - above
    torch.testing.assert_close(gradient, gradient[:1].expand_as(gradient))


def test_checkpoints_of_float64_layers() -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(3, 2), UL1d(2)).double(), torch.randn(6, 3).double()
    plain = copy.deepcopy(net)
    checkpoint(net, x.requires_grad_(), use_reentrant=True).sum().backward()
    plain(x).sum().backward()
    for ours, theirs in zip(net.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a system with timers")
def test_a_signal_is_not_taken_for_damage() -> None:
    """The handler's error comes after the loop; running it again would learn the frames twice."""

    def too_late(*_: object) -> None:
        raise TimeoutError

    layer, y = UL1d(8), torch.randn(100_000, 8, requires_grad=True)
    layer(y[:5])
    before = signal.signal(signal.SIGALRM, too_late)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        with pytest.raises(TimeoutError):
            layer(y)
    finally:
        signal.signal(signal.SIGALRM, before)
        torch.set_grad_enabled(True)
    assert int(layer.steps) in (5, 100_005)


THREADS = """
import torch, ullayers as ul
from concurrent.futures import ThreadPoolExecutor
def check(statistics):
    layer = ul.UL1d(6, statistics=statistics)
    def work(n):
        for _ in range(50):
            ul.backward(layer(torch.randn(n, 50, 6, requires_grad=True)))
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, (1, 2, 3, 4)))  # raises what they raised
    assert all(torch.isfinite(buffer).all() for buffer in layer.buffers())
    assert int(layer.steps) == 200 * 50
check("running")
check("fresh")
"""


def test_threads_that_share_a_layer_do_no_harm() -> None:
    """The order of frames is undefined, but nothing else is overwritten."""
    code, _, errors = run_code(THREADS)
    assert code == 0, errors


def test_losses_of_old_statistics_raise() -> None:
    layer, weight = UL1d(3), torch.ones(3, 3, requires_grad=True)
    some_frames(layer)
    loss = (weight * layer.short_cov).sum()
    some_frames(layer)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_gradients_of_a_scatter_can_be_computed_again() -> None:
    layer = UL1d(3)
    y, scatter = torch.randn(9, 3, requires_grad=True), torch.rand(9, 3, 3, requires_grad=True)
    out = layer(y, scatter)
    above = torch.zeros_like(out)
    first = torch.autograd.grad(out, scatter, above, retain_graph=True)[0]
    expected = first.clone()
    first.zero_()
    assert torch.equal(torch.autograd.grad(out, scatter, above)[0], expected)
    assert bool(expected.any())


def test_long_term_set_later_in_paper_mode() -> None:
    """New rows of the long-term mean start as known, as all do in paper mode."""
    layer = UL1d(3, 0.3, 0.05, start="paper", ridge=1e-3, long_term="shared").double()
    plain = with_pytorch(copy.deepcopy(layer))
    torch.manual_seed(0)
    frames = torch.randn(3, 2, 6, 3).double()
    for turn, y in enumerate(frames):
        layer.long_term = plain.long_term = "stream" if turn else "shared"
        gradients = []
        for each in (layer, plain):
            leaf = y.clone().requires_grad_()
            ul.backward(each(leaf))
            gradients.append(leaf.grad)
        torch.testing.assert_close(*gradients)
    assert_same_state(layer, plain, 1e-9)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("long_cov", torch.eye(3, dtype=torch.float64)),
        ("short_cov", torch.eye(3, dtype=torch.float64)),
        ("cov_evidence", torch.ones(2, dtype=torch.float64)),
        ("short_mean_rest", torch.zeros(1, 3, dtype=torch.float64)),
        ("steps", torch.tensor(0, dtype=torch.int32)),
    ],
)
def test_replaced_buffers_of_another_precision_are_used(name: str, value: Tensor) -> None:
    torch.manual_seed(0)
    layer, plain = UL1d(3), with_pytorch(UL1d(3))
    for each in (layer, plain):
        torch.manual_seed(1)
        some_frames(each)
        setattr(each, name, value.clone())
        some_frames(each)
    assert_same_state(layer, plain, 1e-5)


def test_frames_without_memory() -> None:
    layer, plain = UL1d(3), UL1d(3)
    for each, zeros in ((layer, torch._efficientzerotensor(5, 3)), (plain, torch.zeros(5, 3))):
        each(zeros.requires_grad_())
    assert_same_state(layer, plain, 0.0)


def test_explain_names_the_kernel_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel that it names is the one that the next call uses."""
    ran = []

    def noted(*arguments: Any) -> Any:
        ran.append(ONE_FRAME)
        return advance_frame(*arguments)

    monkeypatch.setattr("ullayers.nn.layers.advance_frame", noted)
    layer = UL1d(3)
    for steps, name, reason in (
        (1, NAME, "no frames came before"),
        (1, ONE_FRAME, ""),
        (4, NAME, "4 frames"),
        (1, ONE_FRAME, ""),
    ):
        y = torch.randn(steps, 3, requires_grad=True)
        said = layer.explain(y)
        assert said.splitlines()[1] == name
        assert reason in said
        ran.clear()
        ul.backward(layer(y))
        assert ran == ([ONE_FRAME] if name == ONE_FRAME else [])
    maps = UL2d(3, diagonal=True)
    assert maps.explain(torch.randn(1, 3, 2, 2)).splitlines()[1] == NAME
