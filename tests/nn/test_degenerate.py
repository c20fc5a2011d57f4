"""Empty, constant, too short or invalid input: results are defined and the state stays valid."""

from __future__ import annotations

import copy
import gc
import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from itertools import cycle

import pytest
import torch
from torch import Tensor

import ullayers as ul
from tests import running_layers as running
from tests.nn.test_layers import assert_unchanged, gradient_of, relative, statistics


def all_finite(layer: torch.nn.Module) -> bool:
    return all(bool(torch.isfinite(b).all()) for b in layer.buffers())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("where", [0, 4, 11])
def test_a_bad_frame_is_ignored(bad: float, where: int) -> None:
    torch.manual_seed(0)
    y = torch.randn(12, 3)
    y[where, 1] = bad
    good = torch.cat([y[:where], y[where + 1 :]])
    with_bad, without = (ul.UL1d(3, reduction="sum") for _ in range(2))
    g = gradient_of(with_bad, y)
    assert torch.equal(g[where], torch.zeros(3))
    expected = gradient_of(without, good)
    assert relative(torch.cat([g[:where], g[where + 1 :]]), expected) < 1e-6
    torch.testing.assert_close(with_bad.short_cov, without.short_cov)
    torch.testing.assert_close(with_bad.long_mean, without.long_mean)
    assert with_bad.health().skipped == 1
    assert "1 position with NaN" in str(with_bad.health())


def test_bad_pixels_leave_the_other_positions_alone() -> None:
    torch.manual_seed(0)
    maps = torch.randn(6, 2, 4, 4)
    maps[3, 1, 2, 2] = float("nan")
    layer = ul.UL2d(2)
    g = gradient_of(layer, maps)
    assert bool(torch.isfinite(g).all())
    assert torch.equal(g[3, :, 2, 2], torch.zeros(2))
    assert bool((g[3, :, 0, 0] != 0).all())
    assert all_finite(layer)


def test_only_bad_frames_change_nothing_but_the_count() -> None:
    layer = ul.UL1d(2)
    layer(torch.randn(5, 2))
    before = {k: v for k, v in statistics(layer).items() if k not in ("steps", "left_out")}
    g = gradient_of(layer, torch.full((3, 2), float("nan")))
    assert torch.equal(g, torch.zeros(3, 2))
    after = statistics(layer)
    for name in ("short_mean", "long_mean", "short_cov", "long_cov", "cov_evidence"):
        torch.testing.assert_close(after[name], before[name])
    assert layer.health().skipped == 3


@pytest.mark.parametrize("value", [0.0, 0.1, 1e15, -7.3])
def test_constant_input_gives_no_gradient(value: float) -> None:
    layer = ul.UL1d(3)
    for _ in range(3):
        assert torch.equal(gradient_of(layer, torch.full((40, 3), value)), torch.zeros(40, 3))
    health = layer.health()
    assert (health.rank, health.directions, health.dead_units) == (0, 0, 3)
    assert "does not vary" in str(health)
    assert health.objective != health.objective  # nan: log 0 - log 0
    assert all_finite(layer)


@pytest.mark.parametrize("still", [1, 63, 64, 200])
@pytest.mark.parametrize("d", [2, 80])
def test_motion_after_a_still_start(still: int, d: int) -> None:
    """A camera may see a still scene for any time before something moves."""
    torch.manual_seed(0)
    y = torch.zeros(still + 30, d) + 5
    y[still:] += torch.randn(30, d)
    layer = running.UL1d(d, 0.3)
    g = gradient_of(layer, y)
    assert torch.equal(g[:still], torch.zeros(still, d))
    assert bool(torch.isfinite(g).all())
    assert bool((g[still:].norm(dim=1) > 0).all())
    assert layer.health().singular == 0


def test_dead_unit_gets_no_gradient_and_does_not_hurt_the_others() -> None:
    torch.manual_seed(0)
    y = torch.randn(300, 3)
    y[:, 1] = 2.5
    layer, alone = running.UL1d(3), running.UL1d(2)
    g = gradient_of(layer, y)
    assert torch.equal(g[:, 1], torch.zeros(300))
    # The ridge is relative to the mean variance, which a dead unit lowers.
    assert relative(g[:, [0, 2]], gradient_of(alone, y[:, [0, 2]])) < 0.01
    assert layer.health().dead_units == 1
    assert "1 of 3 features do not vary" in str(layer.health())


@pytest.mark.parametrize("d", [10, 50, 100])
def test_more_features_than_frames(d: int) -> None:
    torch.manual_seed(0)
    layer = ul.UL1d(d)
    g = gradient_of(layer, torch.randn(6, d))
    assert bool(torch.isfinite(g).all())
    assert layer.health().singular == 0
    # The frame's own deviation is part of W and B: its solve is at most 1 / (rate |deviation|).
    assert float(g.abs().max()) < 1e4


@pytest.mark.parametrize("d", [4, 80])
def test_paper_mode_survives_an_input_of_one_direction(d: int) -> None:
    """When the identity has decayed, input with one direction leaves W without an inverse."""
    torch.manual_seed(0)
    layer = ul.UL1d(d, 0.5, 0.1, start="paper").double()
    y = torch.randn(600, 1).double() @ torch.ones(1, d).double()
    assert bool(torch.isfinite(gradient_of(layer, y)).all())
    assert all_finite(layer)


def test_steps_without_an_inverse_are_reported() -> None:
    torch.manual_seed(0)
    layer = running.UL1d(2)
    g = gradient_of(layer, torch.randn(20, 2), -10 * torch.eye(2).expand(20, 2, 2))
    assert bool(torch.isfinite(g).all())
    assert layer.health().singular == 19  # the first frame has no W yet
    assert "19 steps had no gradient" in str(layer.health())


@pytest.mark.parametrize("chunk", [1, 20])
def test_steps_without_an_inverse_are_counted_alike_with_and_without_gradients(chunk: int) -> None:
    """On a CPU small frames use the compiled loop with gradients, and PyTorch without."""
    y = torch.randn(20, 2).double()
    y[15:] = float("nan")
    for learn in (gradient_of, lambda layer, part: layer(part)):
        layer = ul.UL1d(2, start="paper").double()
        layer.short_cov[0, 0] = -1e9
        for part in y.split(chunk):
            learn(layer, part)
        assert layer.health().singular == 20


@pytest.mark.parametrize("still", [50, 100, 300])
@pytest.mark.parametrize("kind", ["UL1d", "UL2d", "paper"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_scene_that_stops_moving(still: int, kind: str, dtype: torch.dtype) -> None:
    """W decays, but not below the rounding errors that would be divided by it."""
    torch.manual_seed(0)
    frames = torch.randn(20, 4, 16, 16) if kind == "UL2d" else torch.randn(20, 3)
    frames = torch.cat([frames, frames[-1:].expand(still, *frames.shape[1:])]).to(dtype)

    def layer() -> torch.nn.Module:
        made: torch.nn.Module = running.UL2d(4) if kind == "UL2d" else running.UL1d(3)
        return made.to(dtype)

    def paper() -> torch.nn.Module:
        return ul.UL1d(3, start="paper").to(dtype)

    make = paper if kind == "paper" else layer
    moving = gradient_of(make(), frames) * len(frames)
    one_by_one = make()
    slowly = torch.cat([gradient_of(one_by_one, frame[None]) for frame in frames])
    assert float(moving[20:].abs().max()) <= 3 * float(moving[:20].abs().max())
    assert float(slowly[20:].abs().max()) <= 3 * float(slowly[:20].abs().max())
    assert relative(moving, slowly) < 1e-3


def test_almost_equal_rates_make_no_gradient_of_rounding_errors() -> None:
    torch.manual_seed(0)
    y = torch.randn(2, 33, 2).double() + 5
    y[torch.rand(2, 33) < 0.6] = float("nan")
    layer = ul.UL1d(2, 0.1, 0.1, reduction="sum", long_term="shared").double()
    assert float(gradient_of(layer, y).abs().max()) < 1e3


@pytest.mark.parametrize("huge", [1e19, 1e25, 1e38])
def test_a_frame_too_large_to_square_is_left_out(huge: float) -> None:
    torch.manual_seed(0)
    y = torch.randn(20, 2)
    y[7] = huge
    layer = ul.UL1d(2)
    assert bool(torch.isfinite(gradient_of(layer, y)).all())
    assert all_finite(layer)
    assert layer.health().skipped == 1


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_bad_scatter_is_left_out_with_its_frame(bad: float) -> None:
    torch.manual_seed(0)
    scatter = torch.eye(2).repeat(20, 1, 1)
    scatter[5] = bad
    layer = ul.UL1d(2)
    assert bool(torch.isfinite(gradient_of(layer, torch.randn(20, 2), scatter)).all())
    assert all_finite(layer)
    assert layer.health().skipped == 1


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (ul.UL2d(512, mu=0.9), (40, 512, 7, 7)),
        (ul.UL1d(192, mu=0.8), (24, 64, 192)),
        (ul.UL1d(64, mu=0.999999), (64, 64)),
        (ul.UL1d(2, mu=0.5, eps=1e-17), (64, 2)),
    ],
)
def test_extreme_rates_and_widths(layer: torch.nn.Module, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    assert bool(torch.isfinite(gradient_of(layer, torch.rand(shape))).all())
    assert all_finite(layer)


def test_single_frames_and_single_frame_clips() -> None:
    layer = ul.UL1d(2)
    assert torch.equal(gradient_of(layer, torch.randn(1, 2)), torch.zeros(1, 2))
    with ul.sequences(layer, lengths=[1, 1, 1]), pytest.warns(UserWarning, match="single frame"):
        assert torch.equal(gradient_of(layer, torch.randn(3, 2)), torch.zeros(3, 2))
    assert all_finite(layer)


@pytest.mark.parametrize("scale", [1e-18, 1e-6, 1e6, 1e15])
def test_objective_and_gradient_have_no_scale(scale: float) -> None:
    """J does not depend on the scale of the output; the gradient is inversely proportional."""
    torch.manual_seed(0)
    y = torch.randn(60, 3).cumsum(0)
    one, other = ul.UL1d(3), ul.UL1d(3)
    g = gradient_of(one, y)
    scaled = gradient_of(other, y * scale) * scale
    torch.testing.assert_close(scaled, g, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(other.objective, one.objective, atol=1e-3, rtol=0)


def test_collapse_meter() -> None:
    torch.manual_seed(0)
    y = torch.randn(500, 4).cumsum(0)
    slow, mixed, fast, poor = (ul.UL1d(4, mu=0.1) for _ in range(4))
    slow(y)
    mixed(y @ torch.randn(4, 4))
    fast(torch.randn(500, 4))
    poor(y[:, [0, 0, 1, 0]])
    assert slow.health().rank > 3  # random walks vary over the long term
    assert mixed.health().rank == pytest.approx(slow.health().rank, abs=0.01)  # in any basis
    assert fast.health().rank < 1
    assert not slow.health().collapsed
    assert poor.health().directions == 2
    assert poor.health().collapsed
    assert "collapsed: only 2" in str(poor.health())
    two = ul.UL1d(2)
    two(y[:, [0, 0]])
    assert two.health().collapsed
    assert str(ul.UL1d(2).health()) == "no frames yet"


def test_failure_in_the_middle_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = ul.UL1d(2)
    layer(torch.randn(4, 2))
    before = statistics(layer)

    def broken(*args: Tensor) -> Tensor:
        raise MemoryError

    monkeypatch.setattr(torch.linalg, "cholesky_ex", broken)
    with pytest.raises(MemoryError):
        layer(torch.randn(4, 2))
    assert_unchanged(layer, before)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a system with timers")
@pytest.mark.parametrize(
    ("make", "shape"),
    [(ul.UL2d, (12, 4, 24, 24)), (partial(ul.UL2d, long_term="shared"), (12, 4, 24, 24))],
)
def test_an_interrupt_leaves_all_or_nothing(
    make: Callable[[int], torch.nn.Module], shape: tuple[int, ...]
) -> None:
    """Real interrupts, spread over the duration of a call."""
    torch.manual_seed(0)
    layer, y, hits = make(4), torch.randn(shape, requires_grad=True), 0
    layer(y)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    gc.disable()  # an exception raised in its callbacks would be lost
    try:
        for moment in cycle(range(1, 61)):
            old, after = copy.deepcopy(layer.state_dict()), copy.deepcopy(layer)
            begin = time.perf_counter()
            after(y)
            duration = time.perf_counter() - begin
            try:
                signal.setitimer(signal.ITIMER_REAL, duration * moment / 60)
                layer(y)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                hits += 1
                torch.set_grad_enabled(
                    True
                )  # an interrupt may skip the exit of PyTorch's context managers
                torch.set_autocast_enabled("cpu", False)
            now, new = layer.state_dict(), after.state_dict()
            assert any(all(torch.equal(now[k], state[k]) for k in now) for state in (old, new))
            if hits == 50:
                break
    finally:
        gc.enable()
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("other", [(12, 4, 30, 30), (12, 4, 16, 36), (3, 4, 5, 5)])
def test_an_interrupt_before_other_streams_are_written(other: tuple[int, ...]) -> None:
    """The old streams are dropped, as they would be anyway; W and B do not change."""
    torch.manual_seed(0)
    layer, plain = ul.UL2d(4), ul.UL2d(4)
    first, second = torch.randn(12, 4, 24, 24), torch.randn(other)
    for each in (layer, plain):
        gradient_of(each, first)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "_foreach_copy_", stop)
        with pytest.raises(KeyboardInterrupt):
            gradient_of(layer, second)
    assert torch.equal(layer.short_cov, plain.short_cov)
    assert torch.equal(layer.steps, plain.steps)
    got, expected = gradient_of(layer, second), gradient_of(plain, second)
    assert torch.equal(got, expected)
    for name, value in plain.state_dict().items():
        assert torch.equal(layer.state_dict()[name], value), name


@pytest.mark.parametrize("shape", [(12, 4, 24, 24), (3, 4, 2, 8)])
@pytest.mark.parametrize("learn", [torch.enable_grad, torch.no_grad])
def test_infinite_values_of_less_precision_than_the_layer(
    shape: tuple[int, ...], learn: Callable[[], AbstractContextManager[None]]
) -> None:
    layer, y = ul.UL2d(4).double(), torch.randn(shape)
    y[1, 0, 0, 0] = float("inf")
    with learn():
        layer(y.requires_grad_())
    assert layer.left_out.tolist() == [1, 0]
    assert all_finite(layer)


def test_a_scatter_elsewhere_is_refused_before_anything_changes() -> None:
    layer = ul.UL1d(3)
    gradient_of(layer, torch.randn(5, 3))
    before = statistics(layer)
    with pytest.raises(ValueError, match="expected scatter on cpu, got it on meta"):
        layer(torch.randn(2, 4, 3, requires_grad=True), torch.zeros(2, 4, 3, 3, device="meta"))
    assert_unchanged(layer, before)
