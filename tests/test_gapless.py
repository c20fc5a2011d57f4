"""Groups of whole frames on the CPU give what the plain loop gives."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import ullayers as ul
from tests.test_core import TOLERANCE, Case, assert_same, cases, difference, flat, fresh_state
from ullayers.kernels import gapless
from ullayers.kernels.covariance import inverses
from ullayers.kernels.gapless import advance_groups, can_group
from ullayers.kernels.reference import reference
from ullayers.kernels.state import LongTerm, Rates, Result, State, room_like, with_anchor
from ullayers.kernels.tiles import Array, Part, Tiles, can_tile

HOST = torch.device("cpu")


def in_groups(y: Tensor, state: State, rates: Rates) -> Result:
    active = torch.ones(y.shape[:2], dtype=torch.bool)
    return advance_groups(y, with_anchor(y, state, active), rates)


@given(cases())
def test_groups_equal_the_loop(case: Case) -> None:
    rates = replace(case.rates, diagonal=False)
    rates = replace(rates, long_term="stream") if rates.long_term == "shared" else rates
    active = torch.ones_like(case.active)
    if len(case.y) == 1 or rates.eps == rates.mu:
        return  # not taken
    for y in (case.y, case.y.mT.contiguous().mT):  # both layouts
        got, expected = in_groups(y, case.start(), rates), reference(y, case.start(), rates, active)
        assert_same(got, expected, TOLERANCE[torch.float64])


@pytest.fixture(params=["tiles", "products"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How groups of float32 maps are worked on: with numba, and without it."""
    if request.param == "products":
        monkeypatch.setattr(gapless, "can_tile", lambda _: False)
    return str(request.param)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("long_term", ["stream", "clip"])
@pytest.mark.parametrize(("streams", "d"), [(1000, 5), (400, 40), (600, 130)])
def test_float32_maps_equal_the_loop(streams: int, d: int, long_term: str) -> None:
    torch.manual_seed(0)
    y = torch.randn(40, d, streams).cumsum(0).mT + 30
    state = fresh_state(streams, d, paper=False, dtype=torch.float32, device=HOST)
    rates = Rates(0.4, 0.02, 1e-4, long_term)  # type: ignore[arg-type]
    active = torch.ones(40, streams, dtype=torch.bool)
    assert can_group(y, state, rates, active)
    expected = reference(y, state, rates, active)
    assert_same(in_groups(y, state, rates), expected, TOLERANCE[torch.float32])


@given(
    seed=st.integers(0, 1000),
    d=st.integers(1, 70),
    more=st.integers(16, 600),
    steps=st.integers(2, 70),
    threads=st.integers(1, 3),
    mu=st.floats(0.05, 0.9),
    eps=st.floats(0.001, 0.5),
    mixed=st.booleans(),
    offset=st.sampled_from([0.0, 30.0, -1000.0]),
    long_term=st.sampled_from(["stream", "clip"]),
)
def test_tiles_equal_the_loop(
    seed: int, d: int, more: int, steps: int, threads: int, mu: float, eps: float,
    mixed: bool, offset: float, long_term: LongTerm,
) -> None:  # fmt: skip
    """Any number of channels, positions and threads; one frame after another, cut in two."""
    generator, positions = torch.Generator().manual_seed(seed), 2 * d + more
    y = torch.randn(steps + 3, d, positions, generator=generator).cumsum(0)
    # Nearly the same in all channels: float32 will not do, of sums or of an offset.
    y = y[:, :1] + 0.03 * y if mixed else y + offset
    y, rates = y.mT, Rates(mu, eps * mu, 1e-3, long_term)
    fresh = fresh_state(positions, d, paper=False, dtype=torch.float32, device=HOST)
    active, before = torch.ones(steps + 3, positions, dtype=torch.bool), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        got = in_groups(y[3:], in_groups(y[:3], fresh, rates).state, rates)
    finally:
        torch.set_num_threads(before)
    begun = reference(y[:3], fresh, rates, active[:3]).state
    assert_same(got, reference(y[3:], begun, rates, active[3:]), 1e-3 if mixed else 1e-4)


@pytest.mark.parametrize("own", [1.0, 1e-2, 1e-4])
@pytest.mark.parametrize("long_term", ["stream", "clip"])
def test_float32_maps_are_worked_on_in_the_precision_of_the_state(
    own: float, long_term: LongTerm, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    y = torch.randn(70, 8, 144).cumsum(0)
    y = (y[:, :1] + own * y).mT
    rates, active = Rates(0.5, 0.05, 1e-4, long_term), torch.ones(70, 144, dtype=torch.bool)
    fresh = fresh_state(144, 8, paper=False, dtype=torch.float64, device=HOST)
    start = reference(y.double(), fresh, rates, active).state
    before, used = copy.deepcopy(start), list[torch.dtype]()
    cover = gapless.Walk.cover

    def noted(walk: gapless.Walk, tiles: Tiles, begin: int, room: Array) -> Part | None:
        used.append(tiles.precision)
        return cover(walk, tiles, begin, room)

    monkeypatch.setattr(gapless.Walk, "cover", noted)
    got = in_groups(y, start, rates)
    assert used == [torch.float64] * 2
    assert_same(got, reference(y.double(), start, rates, active), 1e-6)
    for name, value in flat(before).items():
        assert torch.equal(value, flat(start)[name]), name


def test_matrices_without_an_inverse_teach_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    maps, ends = torch.randn(12, 4, 40, 40), []
    for tiled in (True, False):
        monkeypatch.setattr(gapless, "can_tile", can_tile if tiled else lambda _: False)
        layer, y = ul.UL2d(4), maps.clone().requires_grad_()
        layer(maps.clone().requires_grad_())
        layer.short_cov[0, 1] = layer.short_cov[1, 0] = 30.0
        ul.backward(layer(y))
        assert y.grad is not None
        ends.append((y.grad, layer.pull, layer.left_out))
    assert int(ends[0][2][1]) > 0
    for one, other in zip(*ends, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-6)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(("own", "tolerance"), [(0.1, 1e-4), (0.01, 1e-4), (0.001, 1e-3)])
def test_channels_that_are_nearly_mixes_of_a_few(own: float, tolerance: float) -> None:
    """What is left of a channel has few digits in float32, but loses none of them here."""
    torch.manual_seed(0)
    causes, mixing = torch.randn(20, 4, 256).cumsum(0), torch.randn(64, 4)
    y = (mixing @ causes + own * torch.randn(20, 64, 256)).mT
    rates, active = Rates(0.5, 0.05, 1e-4), torch.ones(20, 256, dtype=torch.bool)
    narrow, wide = (
        fresh_state(256, 64, paper=False, dtype=dtype, device=HOST)
        for dtype in (torch.float32, torch.float64)
    )
    got, exact = in_groups(y, narrow, rates), reference(y.double(), wide, rates, active)
    assert difference(got.gradient.double(), exact.gradient) <= tolerance


@pytest.mark.usefixtures("way")
def test_a_scene_at_rest_fades_with_all_its_digits() -> None:
    torch.manual_seed(0)
    y = torch.cat([torch.randn(20, 3000, 4), torch.randn(1, 3000, 4).expand(60, -1, -1)]) + 100
    y = y.mT.contiguous().mT
    state = fresh_state(3000, 4, paper=False, dtype=torch.float32, device=HOST)
    rates = Rates(0.5, 0.01, 1e-4)
    expected = reference(y, state, rates, torch.ones(80, 3000, dtype=torch.bool))
    assert_same(in_groups(y, state, rates), expected, 1e-4)


def test_what_has_gaps_is_not_taken() -> None:
    state = fresh_state(2048, 4, paper=False, dtype=torch.float32, device=HOST)
    active, y, rates = (
        torch.ones(5, 2048, dtype=torch.bool),
        torch.randn(5, 2048, 4),
        Rates(0.5, 0.1, 0),
    )
    assert can_group(y, state, rates, active)
    gap = active.clone()
    gap[2, 7] = False
    assert not can_group(y, state, rates, gap)
    uneven = replace(state, short_evidence=torch.rand(2048))
    assert not can_group(y, uneven, rates, active)
    assert not can_group(y, state, replace(rates, long_term="shared"), active)
    assert not can_group(y, state, replace(rates, eps=rates.mu), active)


@pytest.mark.parametrize("d", [3, 32, 33, 64, 127])
def test_inverses_and_what_has_none(d: int) -> None:
    torch.manual_seed(0)
    root = torch.randn(5, d, 2 * d, dtype=torch.float64)
    matrices = root @ root.mT / d
    matrices[3, -1, -1] = -1.0
    inverse, bad = inverses(matrices)
    assert bad.tolist() == [False, False, False, True, False]
    eye = torch.eye(d, dtype=torch.float64).expand(4, d, d)
    torch.testing.assert_close(inverse[~bad] @ matrices[~bad], eye, rtol=0, atol=1e-11)


@pytest.mark.parametrize("shape", [(3, 4), (1100, 1000)])
def test_room_has_the_layout_of_what_it_is_for(shape: tuple[int, int]) -> None:
    for like in (torch.zeros(shape), torch.zeros(shape).mT, torch.zeros(shape).double()[:, ::2]):
        room = room_like(like)
        assert (room.shape, room.dtype) == (like.shape, like.dtype)
        assert room.stride() == torch.empty_like(like).stride()
        assert torch.equal(room.copy_(like), like)


def test_a_second_backward_pass_needs_the_graph() -> None:
    layer, y = ul.UL1d(3), torch.randn(5, 3, requires_grad=True)
    above = torch.randn(5, 3)
    out = layer(y)
    out.backward(above, retain_graph=True)
    assert y.grad is not None
    first, y.grad = y.grad.clone(), None
    out.backward(above)
    torch.testing.assert_close(y.grad, first, rtol=0, atol=0)
    with pytest.raises(RuntimeError, match="retain_graph=True"):
        out.backward(above)


@pytest.mark.parametrize("scale", [1e-20, 3e-18, 1e17, 1e18])
def test_maps_of_any_size_leave_a_layer_that_learns(scale: float) -> None:
    torch.manual_seed(0)
    layer, maps = ul.UL2d(4), torch.rand(6, 4, 64, 64) * 2 - 1
    exact = ul.UL2d(4).double()
    for y in (maps * scale, maps):
        got, wide = (y.clone().to(kind).requires_grad_() for kind in (y.dtype, torch.float64))
        ul.backward(layer(got), exact(wide))
        assert got.grad is not None
        assert wide.grad is not None
        assert difference(got.grad.double(), wide.grad) < 1e-3
    assert bool(layer.short_cov.isfinite().all() & layer.pull.isfinite().all())


def test_a_stream_that_once_had_a_bad_value_goes_on() -> None:
    torch.manual_seed(0)
    y = torch.randn(6, 24, 32, 33)
    y[0, 0, 0, 0] = float("nan")
    whole, cut = ul.UL2d(24).double(), ul.UL2d(24)
    ul.backward(whole(y.double().requires_grad_()))
    for part in y.split(3):
        ul.backward(cut(part.clone().requires_grad_()))
    torch.testing.assert_close(cut.short_cov.double(), whole.short_cov, rtol=1e-5, atol=1e-6)
