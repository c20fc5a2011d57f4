"""Inputs and settings that once gave wrong or non-finite results, or failed silently."""

from __future__ import annotations

import ast
import inspect
import pickle
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import ullayers as ul
from tests import running_layers as running
from tests.command import run_code
from tests.nn.test_degenerate import all_finite
from tests.nn.test_layers import gradient_of
from ullayers.kernels.torch.fresh import NAME
from ullayers.nn.statistics import Health


@pytest.mark.parametrize("statistics", ["running", "fresh"])
@pytest.mark.parametrize("huge", [3e18, 1e25, 1e38])
def test_float64_layers_skip_values_whose_squares_overflow_float32(
    statistics: Any, huge: float
) -> None:
    torch.manual_seed(0)
    layer = ul.UL2d(4, statistics=statistics).double()
    maps = torch.randn(40, 4, 40, 40)  # large enough to be computed in float32
    maps[3, 0, 2, 2] = huge
    gradient = gradient_of(layer, maps)
    assert bool(gradient.isfinite().all())
    assert torch.equal(gradient[3, :, 2, 2], torch.zeros(4))
    assert all_finite(layer)
    assert layer.left_out.tolist() == [1, 0]


@pytest.mark.parametrize("statistics", ["running", "fresh"])
def test_many_large_values_do_not_overflow_float32_sums(statistics: Any) -> None:
    torch.manual_seed(0)
    layer = ul.UL2d(4, statistics=statistics)
    gradient = gradient_of(layer, 1e18 * torch.randn(40, 4, 40, 40).clamp(-1, 1))
    assert bool(gradient.isfinite().all())
    assert all_finite(layer)


@pytest.mark.parametrize("d", [4, 220])  # the compiled loop, and PyTorch operations
@pytest.mark.parametrize("small", [1e-41, 1e-20, 1e-5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_frames_of_tiny_scale_do_not_affect_later_gradients(
    d: int, small: float, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    layer, fresh_start = (running.UL1d(d).to(dtype) for _ in range(2))
    assert bool(gradient_of(layer, small * torch.randn(50, d)).isfinite().all())
    assert all_finite(layer)
    for _ in range(3):  # B still contains the tiny frames, and so differs at first
        frames = torch.randn(40, d)
        gradient, expected = gradient_of(layer, frames), gradient_of(fresh_start, frames)
    assert all_finite(layer)
    assert float(gradient.norm()) < 2 * float(expected.norm())
    assert float(layer.pull.norm()) < 10 * float(fresh_start.pull.norm())


def test_a_jump_of_scale_is_handled_alike_in_blocks_and_step_by_step() -> None:
    torch.manual_seed(0)
    scale = torch.cat([torch.full((30,), 1e-5), torch.ones(30), torch.full((30,), 1e4)])
    frames = scale[:, None].double() * torch.randn(90, 220).double()
    whole, single = (running.UL1d(220, reduction="sum").double() for _ in range(2))
    expected = gradient_of(whole, frames)
    got = torch.cat([gradient_of(single, frame[None]) for frame in frames])
    # Relative to the frame: single elements may be close to 0, where rounding depends on the CPU.
    size = expected.abs().amax(dim=1, keepdim=True).clamp(min=1e-9)
    torch.testing.assert_close(got / size, expected / size, rtol=0, atol=1e-6)
    torch.testing.assert_close(single.pull, whole.pull, rtol=1e-6, atol=1e-9)


def test_tiny_maps_get_no_gradient_instead_of_nan() -> None:
    torch.manual_seed(0)
    layer = running.UL2d(4)
    gradient = gradient_of(layer, 1e-22 * torch.randn(50, 4, 40, 40))
    assert bool(gradient.isfinite().all())
    assert all_finite(layer)


def test_numba_without_its_compiler_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import warnings\nwarnings.simplefilter('error')\n"
        "import torch, ullayers as ul\n"
        "for layer, shape in ((ul.UL1d(3), (4, 3)), (ul.UL2d(4), (64, 4, 64, 64))):\n"
        "    y = torch.randn(shape, requires_grad=True)\n"
        "    print(layer.explain(y).splitlines()[1])\n"
        "    ul.backward(layer(y))\n"
        "    assert y.grad.isfinite().all() and y.grad.norm() > 0\n"
    )
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    assert run_code(code, bare=True)[:2] == (0, f"{NAME}\n{NAME}\n")


STATES: dict[str, Callable[[nn.Module], nn.Module]] = {
    "eval": lambda layer: layer.eval(),
    "train": lambda layer: layer.train(),
}


@pytest.mark.parametrize("statistics", ["running", "fresh"])
@pytest.mark.parametrize("state", STATES)
def test_without_gradients_the_output_shares_memory_as_that_of_identity_does(
    statistics: Any, state: str
) -> None:
    for module in (nn.Identity(), STATES[state](ul.UL1d(3, statistics=statistics))):
        array = np.random.default_rng(0).standard_normal((40, 3))
        frames = torch.from_numpy(array)
        with torch.no_grad():
            assert module(frames) is frames


@pytest.mark.parametrize("statistics", ["running", "fresh"])
def test_in_training_the_output_is_a_copy(statistics: Any) -> None:
    array = np.random.default_rng(0).standard_normal((40, 3))
    frames = torch.from_numpy(array).requires_grad_()
    output = ul.UL1d(3, statistics=statistics)(frames)
    expected = output.detach().clone()
    array[:] = 7
    assert torch.equal(output, expected)
    frames = torch.from_numpy(array)
    assert ul.UL1d(3, statistics=statistics)(frames) is frames, "it needs no gradient"


def gradient_after_write(layer: nn.Module, write: Callable[[Tensor], object]) -> Tensor:
    torch.manual_seed(0)
    leaf = torch.randn(40, 4, 40, 40, requires_grad=True)
    maps = leaf * 1
    output = layer(maps)
    with torch.no_grad():
        write(maps)
    ul.backward(output)
    assert leaf.grad is not None
    return leaf.grad


def test_writes_to_the_input_before_the_backward_pass() -> None:
    """Running statistics need the input no more; fresh ones do, and PyTorch sees the write."""
    expected = gradient_after_write(running.UL2d(4), lambda maps: maps)
    assert torch.equal(gradient_after_write(running.UL2d(4), lambda maps: maps.zero_()), expected)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        gradient_after_write(ul.UL2d(4, statistics="fresh"), lambda maps: maps.zero_())
    assert "numpy" in (ul.UL1d.__doc__ or "")


def test_the_last_pass_is_not_pickled() -> None:
    layer = running.UL1d(3)
    small = len(pickle.dumps(layer))
    with torch.no_grad():
        layer(torch.randn(5, 3))
    assert layer._replay is not None
    assert pickle.loads(pickle.dumps(layer))._replay is None
    assert len(pickle.dumps(layer)) < small + 200
    assert layer._replay is not None


def test_dir_shows_public_names_only() -> None:
    assert dir(ul) == sorted([*ul.__all__, "__version__"])
    assert all(hasattr(ul, name) for name in ul.__all__)


def test_type_checkers_see_the_names_of_the_lazy_table() -> None:
    tree = ast.parse(inspect.getsource(ul))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    typed = {a.name: n.module for n in imports for a in n.names if a.name == a.asname}
    assert typed == ul._MODULE_OF


def networks_without_effect() -> list[nn.Module]:
    learns = nn.Sequential(nn.Linear(3, 2), ul.UL1d(2))
    return [learns.eval(), nn.Sequential(nn.Linear(3, 2), nn.Tanh())]


@pytest.mark.parametrize("net", networks_without_effect(), ids=["eval", "no UL layer"])
def test_backward_without_effect_warns(net: nn.Module) -> None:
    with pytest.warns(UserWarning, match=r"no UL layer in train mode .* call net.train\(\)"):
        ul.backward(net(torch.randn(9, 3)))


def test_backward_warns_once_in_a_loop() -> None:
    net = nn.Linear(3, 2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            ul.backward(net(torch.randn(9, 3)))
    assert len(caught) == 1


@pytest.mark.parametrize("reentrant", [False, True])
def test_backward_does_not_warn_about_layers_it_cannot_see(reentrant: bool) -> None:
    net = nn.Sequential(nn.Linear(3, 2), ul.UL1d(2), nn.Linear(2, 2))
    ul.backward(net(torch.randn(9, 3)))  # any warning is an error here
    frames = torch.randn(9, 3, requires_grad=True)
    ul.backward(checkpoint(net, frames, use_reentrant=reentrant))


@pytest.mark.parametrize("lengths", [[1, 1, 1], None])
def test_clips_of_one_frame_warn(lengths: list[int] | None) -> None:
    layer = ul.UL1d(2)
    frames = torch.randn(3, 2) if lengths else torch.randn(3, 1, 2)
    with (
        pytest.warns(UserWarning, match="all clips of this call have a single frame"),
        ul.sequences(layer, lengths),
    ):
        assert float(gradient_of(layer, frames).norm()) == 0


def test_clips_of_one_frame_do_not_warn_if_they_have_an_effect() -> None:
    shared = ul.UL1d(2, long_term="shared", statistics="running")
    for layer in (shared, ul.UL1d(2, start="paper")):
        with ul.sequences(layer, [1, 1, 1]):
            gradient_of(layer, torch.randn(3, 2))
            assert float(gradient_of(layer, torch.randn(3, 2)).norm()) > 0
    with ul.sequences(ul.UL1d(2), [1, 4]) as mixed:
        gradient_of(mixed, torch.randn(5, 2))
    gradient_of(ul.UL1d(2), torch.randn(1, 2))  # a stream, one frame at a time


@pytest.mark.parametrize("layer", [ul.UL1d(8), ul.UL2d(8)])
def test_layers_say_which_dimension_is_time(layer: nn.Module) -> None:
    assert repr(layer).endswith("dim 0 is time)")
    assert "**Dimension 0 is time.**" in (type(layer).__doc__ or "")


@pytest.mark.parametrize("scale", [1e-41, 1e-38, 1e-30, 1e-12])
def test_tiny_frames_give_finite_gradients_with_fresh_statistics(scale: float) -> None:
    frames = (torch.randn(64, 3).cumsum(0) * scale).requires_grad_()
    layer = ul.UL1d(3, statistics="fresh")
    ul.backward(layer(frames))
    assert frames.grad is not None
    assert frames.grad.isfinite().all()
    assert bool((frames.grad != 0).any()) == (scale > 1e-36)


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite(weight: float) -> None:
    with pytest.raises(ValueError, match=f"expected a finite weight, got {weight}"):
        ul.UL1d(3, weight=weight)
    layer = ul.UL2d(3)
    layer.weight = weight
    with pytest.raises(ValueError, match="expected a finite weight"):
        layer(torch.randn(4, 3, 2, 2))


@pytest.mark.parametrize("name", ["mu", "eps", "weight"])
@pytest.mark.parametrize("value", ["a", "0.5", None, 1j])
def test_settings_that_are_not_numbers(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=f"expected {name} to be a number, got {value!r}"):
        ul.UL1d(3, **{name: value})


@pytest.mark.parametrize("lengths", [[None], [float("nan")], [float("inf")], ["a"], [[32], [32]]])
def test_lengths_that_are_not_numbers(lengths: Any) -> None:
    with pytest.raises(ValueError, match="lengths to be integers >= 1, got"):
        with ul.sequences(ul.UL1d(2), lengths):
            pass


def test_functions_of_a_network_refuse_anything_else() -> None:
    with pytest.raises(TypeError, match=r"torch\.nn\.Module, got int"):
        ul.mu_by_depth(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"torch\.nn\.Module, got Tensor"):
        with ul.sequences(torch.ones(2), [2]):  # type: ignore[arg-type]
            pass


def test_sizes_must_be_integers() -> None:
    with pytest.raises(ValueError, match="features to be an integer >= 1, got True"):
        ul.UL1d(True)
    with pytest.raises(TypeError, match=r"frames to be an integer, got 100\.5"):
        ul.ReplayMemory((1, 2, 2), frames=100.5)  # type: ignore[arg-type]


def test_settings_may_be_numpy_numbers() -> None:
    mu: Any = np.float32(0.5)
    layer = ul.UL1d(3, mu, weight=np.float64(2))
    assert bool(gradient_of(layer, torch.randn(40, 3)).isfinite().all())


@pytest.mark.parametrize("output", [3, None, [torch.ones(2, requires_grad=True)]])
def test_backward_refuses_values_that_are_not_tensors(output: Any) -> None:
    with pytest.raises(TypeError, match=f"as tensors.*got {type(output).__name__}"):
        ul.backward(output)


def test_sequences_of_a_network_without_layers_warns() -> None:
    net = nn.Linear(3, 2)
    with (
        pytest.warns(UserWarning, match="no UL layer in this network") as caught,
        ul.sequences(net),
    ):
        net(torch.randn(4, 3))
    assert caught[0].filename == __file__


def test_health_counts_one_in_the_singular() -> None:
    one = Health(-1.0, 1.0, 1, 0, 2, 5, 1, 1)
    assert "only 1 independent direction;" in str(one)
    assert "1 position with NaN, infinite or huge values skipped" in str(one)
    assert "1 step had" in str(one)
    assert "2 positions" in str(replace(one, skipped=2))
