"""The compiled loop for small frames on a CPU agrees with PyTorch operations."""

from __future__ import annotations

import copy
import importlib.util
import pickle
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import ullayers.kernels.numba.stream as small
from hypothesis import given
from hypothesis import strategies as st
from numba.core.caching import NullCache
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from ullayers.nn.running import _Chosen

import ullayers as ul
import ullayers.kernels.numba.compiling as compiling
from tests.command import run_code
from tests.nn.test_layers import gradient_of, relative
from tests.running_layers import UL1d, UL2d
from ullayers.kernels.dispatch import NUMBA, PYTORCH
from ullayers.nn.layers import ULBase


def with_pytorch(layer: ULBase) -> ULBase:
    """Make a layer use PyTorch operations for every call."""
    layer._choose = lambda y, scatter: _Chosen(None, PYTORCH)  # type: ignore[method-assign]
    return layer


def is_compiled(layer: ULBase) -> bool:
    """Return whether the last call used the compiled loop."""
    return layer._chosen is not None and layer._chosen.kernel == NUMBA


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
    assert is_compiled(short)
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
    assert is_compiled(short)
    assert got.dtype == dtype
    torch.testing.assert_close(got, expected, rtol=4 * torch.finfo(dtype).eps + 1e-6, atol=1e-6)
    assert_same_state(short, plain, 1e-5)


@st.composite
def calls(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a layer and its input: chunks or clips, some of unequal length, some with a scatter."""
    maps, d = draw(st.booleans()), draw(st.integers(1, 9))
    sequences, steps = draw(st.integers(1, 3)), draw(st.integers(1, 20))
    long_term = draw(st.sampled_from(["auto", "clip", "stream", "shared"]))
    lengths = draw(st.none() | st.lists(st.integers(1, 9), min_size=1, max_size=4))
    lead = (sum(lengths),) if lengths else (sequences, steps)
    choices: dict[str, Any] = {"long_term": long_term, "start": "warm"}
    if maps:
        choices["diagonal"] = draw(st.booleans())
    return {
        "layer": UL2d if maps else UL1d,
        "d": d,
        "choices": choices,
        "shape": (*lead, d, 2, 3) if maps else (*lead, d),
        "lengths": lengths,
        "as_clips": lengths is not None or draw(st.booleans()),
        "scatter": not maps and draw(st.booleans()),
        "seed": draw(st.integers(0, 1000)),
        "bad": draw(st.booleans()),
    }


def passes(layer: ULBase, call: dict[str, Any]) -> list[Tensor]:
    """Return the gradients of two consecutive calls."""
    torch.manual_seed(call["seed"])
    results = []
    for _ in range(2):
        y = torch.randn(call["shape"]).double().cumsum(0) + 5
        if call["bad"]:
            y[y > 8] = float("inf")
        y.requires_grad_()
        inputs = [y]
        if call["scatter"]:
            root = torch.randn(*y.shape, y.shape[-1]).double()
            inputs.append((root @ root.mT).requires_grad_())
        if call["as_clips"]:
            with ul.sequences(layer, call["lengths"]):
                out = layer(*inputs)
        else:
            out = layer(*inputs)
        out.backward(torch.zeros_like(out))
        results += [value.grad for value in inputs if value.grad is not None]
    return results


@pytest.mark.filterwarnings("ignore:all clips of this call have a single frame")
@given(calls())
def test_chunks_and_clips_agree_with_pytorch(call: dict[str, Any]) -> None:
    layers = [call["layer"](call["d"], 0.4, 0.05, **call["choices"]).double() for _ in range(2)]
    with_pytorch(layers[1])
    for got, expected in zip(*(passes(layer, call) for layer in layers), strict=True):
        assert relative(got, expected) <= 1e-8 or float((got - expected).abs().max()) < 1e-12
    taken = call["choices"]["long_term"] in ("auto", "stream") and not call["as_clips"]
    assert is_compiled(layers[0]) == (taken and not call["choices"].get("diagonal"))
    assert_same_state(layers[0], layers[1], 1e-8)


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


def test_a_failing_pass_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layer = UL1d(3)
    some_frames(layer)
    before = copy.deepcopy(layer.state_dict())

    def broken(*_: Any) -> Any:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr("ullayers.kernels.numba.stream.Loop.run", broken)
        with pytest.raises(MemoryError):
            layer(torch.randn(1, 3, requires_grad=True))
    assert all(torch.equal(value, layer.state_dict()[name]) for name, value in before.items())
    some_frames(layer)


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


def test_without_a_cache_folder_loops_are_still_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def njit(cache: bool = False, **_: Any) -> Any:
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        made.append(cache)
        return lambda function: function

    monkeypatch.setattr("numba.njit", njit)
    assert compiling.compiled(len) is len
    assert made == [False]


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


LOOP = """
from ullayers.kernels.numba.compiling import compiled

@compiled
def twice(x):
    return 2 * x
"""


def test_a_damaged_cache_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile and cache a loop, then truncate the files of the cache."""
    name = "elsewhere.test_loops"
    monkeypatch.setattr(compiling, "__package__", "elsewhere")  # leave other loops alone
    (tmp_path / "loop.py").write_text(LOOP)
    for turn in range(2):
        spec = importlib.util.spec_from_file_location(name, tmp_path / "loop.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        assert compiling.run(module.twice, 21) == 42
        kept = list((tmp_path / "__pycache__").glob("*.nbi"))
        assert kept
        for path in kept:
            path.write_bytes(path.read_bytes()[: 20 * turn])
    assert isinstance(module.twice._cache, NullCache)


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


def test_all_files_of_loops_invalidate_the_cache() -> None:
    """Loops call functions of other files: a change of any file must invalidate the cache."""
    stamp = compiling._stamps()
    assert {"stream_loops.py", "state_loops.py"} <= {name for name, *_ in stamp}
    assert small._loop()[0]._cache._cache_file._source_stamp == stamp


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
def test_replaced_buffers_use_pytorch(name: str, value: Tensor) -> None:
    """The loop knows only addresses, so replaced buffers must use PyTorch operations."""
    torch.manual_seed(0)
    layer, plain = UL1d(3), with_pytorch(UL1d(3))
    for each in (layer, plain):
        torch.manual_seed(1)
        some_frames(each)
        setattr(each, name, value.clone())
        some_frames(each)
    assert not is_compiled(layer)
    assert_same_state(layer, plain, 1e-5)


def test_frames_without_memory() -> None:
    layer, plain = UL1d(3), UL1d(3)
    for each, zeros in ((layer, torch._efficientzerotensor(5, 3)), (plain, torch.zeros(5, 3))):
        each(zeros.requires_grad_())
    assert_same_state(layer, plain, 0.0)


def test_explain_names_the_kernel_that_runs() -> None:
    """The kernel that it names is the one that the next call uses."""
    cases: list[tuple[ULBase, tuple[int, ...], str]] = [
        (UL1d(3), (40, 3), NUMBA),
        (UL1d(300), (1, 300), NUMBA),
        (UL1d(300), (2, 300), PYTORCH),
        (UL1d(3, long_term="shared"), (40, 3), PYTORCH),
        (UL2d(3, diagonal=True), (4, 3, 2, 2), PYTORCH),
        (UL1d(3), (800, 4, 3), PYTORCH),
    ]
    for layer, shape, name in cases:
        y = torch.randn(shape, requires_grad=True)
        assert layer.explain(y).splitlines()[1] == name
        ul.backward(layer(y))
        assert is_compiled(layer) == (name == NUMBA)


def test_compilation_is_announced_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a new process with an empty cache. Two small loops: a layer's take ten seconds."""
    code = (
        "import numpy as np\n"
        "from ullayers.kernels.numba.stream_loops import count, trace\n"
        "assert trace(np.eye(2)) == count(np.ones(2, bool)) == 2"
    )
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    status, out, said = run_code(code, bare=True)
    assert (status, out) == (0, "")
    assert said.startswith("compiling CPU kernels, once on this machine")
    assert said.count("\n") == 1
    assert run_code(code, bare=True) == (0, "", "")
