"""The Triton kernels of fresh statistics against autograd of the plain formula in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

import ullayers.kernels.triton.fresh as launch_fresh
from tests.fresh_formula import plain_objective
from ullayers.kernels.moments import LongTerm, Rates, Request, Weights, weigh

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

LARGEST = 1e18
RIDGE = 1e-4


@dataclass(frozen=True, kw_only=True)
class Case:
    """Maps and how they are given."""

    C: int = 16
    P: int = 100
    lengths: tuple[int, ...] = (40,)
    mu: float = 0.5
    eps: float = 1e-2
    long_term: LongTerm = "clip"
    channels_last: bool = False
    dtype: torch.dtype = torch.float32
    offset: float = 0.0
    spoilt: bool = False

    def request(self) -> Request:
        return Request(self.lengths, Rates(self.mu, self.eps, RIDGE, self.long_term), LARGEST)

    def frames(self, device: str) -> Tensor:
        """Slow and fast signals, mixed over the channels."""
        torch.manual_seed(0)
        F, C, P = sum(self.lengths), self.C, self.P
        noise, mix = torch.randn(F, C, P), torch.eye(C) + 0.3 * torch.randn(C, C) / C**0.5
        y = torch.einsum("fcp,cd->fdp", noise.cumsum(0) / 4 + noise, mix) + self.offset
        if self.spoilt:
            y[0, :, :3] = torch.nan  # from the first frame on
            y[2, 1, 5] = torch.inf  # a single value
            y[3] = torch.nan  # a whole frame
            y[:, 0, 7] = torch.nan  # a position that is never there
            y[1:, :, 8] = torch.nan  # one that is there once
            y[-1, 0] = 1e30
        memory = torch.channels_last if self.channels_last else torch.contiguous_format
        maps = y.to(self.dtype)[..., None].to(device).contiguous(memory_format=memory)
        return maps.flatten(2)


def objective_gradient(case: Case, frames: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """dJ/dy, W and B of the plain formula."""
    y = frames.detach().cpu().double()
    y = torch.where(y.abs() <= LARGEST, y, torch.nan).requires_grad_()
    J, W, B = plain_objective(
        y, list(case.lengths), mu=case.mu, eps=case.eps, ridge=RIDGE, long_term=case.long_term
    )
    J.backward()
    assert y.grad is not None
    return y.grad, W.detach(), B.detach()


def check(case: Case, device: str = "cuda", tolerance: float = 1e-5) -> None:
    frames, request = case.frames(device), case.request()
    expected, W, B = objective_gradient(case, frames)
    got = launch_fresh.measure(frames, request, None)
    counts = got.seen.counts.cpu()
    usable = (frames.cpu().double().abs() <= LARGEST).all(1)
    assert int(counts[2]) == int((~usable).sum())
    clips = [clip.sum(0) for clip in usable.split(case.lengths)]
    assert torch.equal(got.seen.steps.cpu()[:, 0], torch.stack(clips))
    for mean, count, covariance in ((got.sums[0], counts[0], W), (got.sums[1], counts[1], B)):
        error = (mean.cpu() / count - covariance).norm() / covariance.norm()
        assert float(error) < tolerance
    weights = weigh(got, request, torch.float64).weights
    above = torch.randn_like(frames)
    for more in (None, above):
        out = launch_fresh.gradient(frames, request, weights, got.saved, more)
        assert out.stride() == frames.stride()
        assert out.dtype == frames.dtype
        goal = expected if more is None else expected + more.cpu().double()
        narrow = max(tolerance, torch.finfo(case.dtype).eps)
        assert float((out.cpu().double() - goal).norm() / goal.norm()) < narrow


SHAPES = [
    Case(C=2, P=35),
    Case(C=3, P=1, lengths=(50,)),
    Case(C=5, P=200, lengths=(2, 2, 2), long_term="shared"),
    Case(C=24, P=70, lengths=(33, 2, 17)),
    Case(C=64, P=130, lengths=(40,)),
    Case(C=77, P=40, lengths=(20, 31)),
    Case(C=128, P=64, lengths=(35,)),
]
LONG_TERMS: tuple[LongTerm, ...] = ("clip", "shared", "stream")


@pytest.mark.parametrize("case", SHAPES, ids=str)
def test_shapes(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("long_term", LONG_TERMS)
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("spoilt", [False, True])
@pytest.mark.parametrize("lengths", [(40,), (3, 37, 20, 1, 16)])
def test_long_terms_and_spoilt_frames(
    long_term: LongTerm, channels_last: bool, spoilt: bool, lengths: tuple[int, ...]
) -> None:
    check(Case(lengths=lengths, long_term=long_term, channels_last=channels_last, spoilt=spoilt))


@pytest.mark.parametrize("long_term", LONG_TERMS)
def test_offsets_cost_no_digits(long_term: LongTerm) -> None:
    """The frames themselves are rounded at 1e3; the formula sees the same rounded frames."""
    check(Case(offset=1e3, long_term=long_term, lengths=(60, 40)))


@pytest.mark.parametrize("long_term", LONG_TERMS)
@pytest.mark.parametrize(("mu", "eps"), [(0.05, 1e-3), (0.9, 0.3)])
def test_rates(long_term: LongTerm, mu: float, eps: float) -> None:
    check(Case(mu=mu, eps=eps, long_term=long_term, lengths=(90,)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("channels_last", [False, True])
def test_narrow_types(dtype: torch.dtype, channels_last: bool) -> None:
    """Statistics have all digits; the gradient is rounded once, to the type of the frames."""
    check(Case(dtype=dtype, channels_last=channels_last, C=32))


@pytest.mark.parametrize("long_term", LONG_TERMS)
def test_chunks_make_no_difference(long_term: LongTerm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_fresh, "WORKSPACE", 1)
    check(Case(long_term=long_term, lengths=(50, 20)))


@pytest.mark.parametrize("long_term", LONG_TERMS)
def test_means_at_the_end(long_term: LongTerm) -> None:
    case = Case(long_term=long_term, lengths=(30, 21))
    frames = case.frames("cuda")
    got = launch_fresh.measure(frames, case.request(), None)
    shorts, longs, begin = [], [], 0
    y = frames.cpu().double()
    for length in case.lengths:
        clip = y[begin : begin + length]
        begin += length
        shorts.append(moving_mean(clip, case.mu))
        longs.append(moving_mean(clip, case.eps) if long_term == "stream" else clip.mean(0))
    if long_term == "shared":
        longs = [y.mean(0)]
    for means, goal in ((got.short_mean, shorts), (got.long_mean, longs)):
        rows = torch.stack(goal).mT.flatten(0, 1)
        torch.testing.assert_close(means.cpu().double(), rows, rtol=1e-5, atol=1e-5)


def moving_mean(frames: Tensor, rate: float) -> Tensor:
    weights = (1 - rate) ** torch.arange(len(frames) - 1, -1, -1, dtype=torch.float64)
    return torch.einsum("f,fcp->cp", weights / weights.sum(), frames)


CODES = [
    Case(C=2, P=1, lengths=(40,), long_term="stream"),
    Case(C=16, P=1, lengths=(33, 2, 17, 90)),
    Case(C=33, P=1, lengths=(60, 60), long_term="shared", offset=1e3),
    Case(C=64, P=1, lengths=(300,), dtype=torch.bfloat16),
    Case(C=200, P=1, lengths=(250, 60), long_term="stream"),
]


@pytest.mark.parametrize("case", CODES, ids=str)
def test_codes(case: Case) -> None:
    check(case)


def test_codes_with_gaps() -> None:
    case = Case(C=5, P=1, lengths=(40, 30), long_term="shared")
    frames = case.frames("cuda")
    frames[[0, 7, 8, 69]] = torch.nan
    expected, _, _ = objective_gradient(case, frames)
    request = case.request()
    got = launch_fresh.measure(frames, request, None)
    weights = launch_fresh.weigh(got, request, torch.float64).weights
    out = launch_fresh.gradient(frames, request, weights, got.saved, None)
    torch.testing.assert_close(out.cpu().double(), expected.nan_to_num(0), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("scale", [1.0, 1e-44, 0.0])
@pytest.mark.parametrize("C", [2, 16, 33, 64])
def test_the_kernel_that_inverts_equals_pytorch(C: int, scale: float) -> None:
    case = Case(C=C, P=50)
    request = case.request()
    moments = launch_fresh.measure(case.frames("cuda"), request, None)
    moments = replace(moments, sums=scale * moments.sums)
    got = launch_fresh.weigh(moments, request, torch.float64)
    expected = weigh(moments, request, torch.float64)
    for name in ("covariances", "traces", "evidence", "left_out"):
        torch.testing.assert_close(getattr(got, name), getattr(expected, name), rtol=1e-6, atol=0)
    matrices, goal = got.weights.matrices, expected.weights.matrices
    if scale == 1e-44:  # float32 cannot hold the inverse
        goal = torch.zeros_like(goal)
    torch.testing.assert_close(matrices, goal, rtol=1e-5, atol=float(1e-6 * goal.abs().max()))


def test_matrices_without_an_inverse_give_no_gradient() -> None:
    case = Case(C=4, P=20)
    frames = case.frames("cuda")
    frames[:, 1] = frames[:, 0]
    request = Request(case.lengths, Rates(0.5, 1e-2, 0.0, "clip"), LARGEST)
    moments = launch_fresh.measure(frames, request, None)
    moments.sums[:, 1, 1] *= 1 - 1e-9  # not positive definite, in spite of rounding
    got = launch_fresh.weigh(moments, request, torch.float64)
    assert got.left_out.tolist() == [0, 2]
    assert not got.weights.matrices.any()


def test_tf32_only_where_allowed() -> None:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        check(Case(C=64), tolerance=2e-3)
        with pytest.raises(AssertionError):
            check(Case(C=64))
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def test_too_many_channels_are_left_to_others() -> None:
    frames = torch.randn(4, 129, 10, device="cuda")
    reason = launch_fresh.why_not(frames, Case(lengths=(4,)).request(), None)
    assert reason is not None
    assert "129 channels" in reason


def test_calls_can_be_recorded() -> None:
    case = Case(lengths=(20, 30), long_term="shared", C=32)
    frames, request = case.frames("cuda"), case.request()
    matrices = torch.eye(32, device="cuda").repeat(2, 1, 1)
    weights = Weights(matrices, False)

    def call() -> Tensor:
        got = launch_fresh.measure(frames, request, None)
        return launch_fresh.gradient(frames, request, weights, got.saved, None)

    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call()
    frames.copy_(torch.randn_like(frames))
    graph.replay()
    torch.testing.assert_close(out, call(), rtol=1e-6, atol=1e-7)
