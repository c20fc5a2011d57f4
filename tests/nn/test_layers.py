"""UL1d and UL2d from the user's point of view: roles, sequences, streams and buffers."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import ullayers as ul
from tests import running_layers as running
from tests.kernels.test_running import paper_loop
from ullayers.nn.layers import ULBase


def gradient_of(layer: nn.Module, y: Tensor, *more: Tensor) -> Tensor:
    """Return the gradient that the layer adds to its input."""
    y = y.detach().clone().requires_grad_()
    ul.backward(layer(y, *more))
    assert y.grad is not None
    return y.grad


def relative(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).norm() / b.double().norm())


def statistics(layer: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in layer.state_dict().items()}


def assert_unchanged(layer: nn.Module, before: dict[str, Tensor]) -> None:
    after = layer.state_dict()
    assert before.keys() == after.keys()
    for name, value in before.items():
        assert torch.equal(value, after[name]), name


# Paper mode


@pytest.mark.parametrize(("mu", "eps"), [(0.5, 0.001), (0.2, 0.05)])
def test_paper_mode_equals_the_equations(mu: float, eps: float) -> None:
    torch.manual_seed(0)
    y = torch.randn(30, 4).double()
    layer = ul.UL1d(4, mu, eps, reduction="sum", start="paper").double()
    expected, short, long, W, B = paper_loop(y, mu, eps)
    torch.testing.assert_close(gradient_of(layer, y), expected)
    torch.testing.assert_close(layer.short_mean, short[None])
    torch.testing.assert_close(layer.long_mean, long[None])
    torch.testing.assert_close(layer.short_cov, W)
    torch.testing.assert_close(layer.long_cov, B)
    torch.testing.assert_close(layer.objective, (torch.logdet(W) - torch.logdet(B)) / 2)
    assert not layer.objective.requires_grad


def test_paper_mode_frame_by_frame_is_equation_11() -> None:
    torch.manual_seed(0)
    y = torch.randn(10, 3).double()
    layer = ul.UL1d(3, 0.5, 0.01, start="paper").double()  # T = 1: "mean" and "sum" agree
    expected = paper_loop(y, 0.5, 0.01)[0]
    got = torch.cat([gradient_of(layer, frame[None]) for frame in y])
    torch.testing.assert_close(got, expected)


def test_buffers_may_be_overwritten_before_the_first_frame() -> None:
    torch.manual_seed(0)
    y = torch.randn(1, 2).double()
    layer = ul.UL1d(2, 0.5, 0.1, reduction="sum", start="paper").double()
    W, B = torch.diag(torch.tensor([4.0, 1.0])).double(), torch.eye(2).double() * 9
    mean = torch.tensor([[1.0, -1.0]]).double()
    layer.short_cov.copy_(W)
    layer.long_cov.copy_(B)
    layer.short_mean.copy_(mean)
    short, long = 0.5 * mean + 0.5 * y, 0.1 * y
    W = 0.5 * W + 0.5 * (y - short).T @ (y - short)
    B = 0.9 * B + 0.1 * (short - long).T @ (short - long)
    expected = (y - short) @ W.inverse() - (short - long) @ B.inverse()
    torch.testing.assert_close(gradient_of(layer, y), expected)


def test_paper_mode_conv_pools_positions() -> None:
    """A UL2d on 1 x 1 pictures is a UL1d; on larger ones its W is the mean over positions."""
    torch.manual_seed(0)
    maps = torch.randn(6, 3, 4, 5).double()
    layer = ul.UL2d(3, 0.4, 0.1, reduction="sum", start="paper").double()
    got = gradient_of(layer, maps)
    W = torch.eye(3).double()
    B = torch.eye(3).double()
    short = long = torch.zeros(20, 3).double()
    for t in range(6):
        frame = maps[t].flatten(1).T
        short, long = 0.6 * short + 0.4 * frame, 0.9 * long + 0.1 * frame
        W = 0.6 * W + 0.4 * (frame - short).T @ (frame - short) / 20
        B = 0.9 * B + 0.1 * (short - long).T @ (short - long) / 20
        expected = ((frame - short) @ W.inverse() - (short - long) @ B.inverse()) / 20
        torch.testing.assert_close(got[t].flatten(1).T, expected)
    torch.testing.assert_close(layer.short_cov, W)
    torch.testing.assert_close(layer.long_cov, B)
    torch.testing.assert_close(layer.short_mean, short)


def test_paper_mode_starts_every_sequence_from_zero() -> None:
    torch.manual_seed(0)
    y = torch.randn(2, 5, 3).double()
    layer = ul.UL1d(3, 0.5, 0.1, reduction="sum", start="paper").double()
    with ul.sequences(layer, lengths=[5]):
        first = gradient_of(layer, y[0])
    W, B = layer.short_cov.clone(), layer.long_cov.clone()
    with ul.sequences(layer, lengths=[5]):
        second = gradient_of(layer, y[1])
    torch.testing.assert_close(first, paper_loop(y[0], 0.5, 0.1)[0])
    fresh = ul.UL1d(3, 0.5, 0.1, reduction="sum", start="paper").double()
    fresh.short_cov.copy_(W)
    fresh.long_cov.copy_(B)
    torch.testing.assert_close(second, gradient_of(fresh, y[1]))


# Splitting a stream into calls


@given(
    seed=st.integers(0, 1000),
    cuts=st.lists(st.integers(1, 39), max_size=6),
    d=st.integers(1, 12),
    offset=st.floats(-1e3, 1e3),
    scale=st.floats(-6, 6),
    many=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_result_does_not_depend_on_calls(
    seed: int, cuts: list[int], d: int, offset: float, scale: float, many: bool, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(seed)
    shape = (3, 40, d) if many else (40, d)
    y = (torch.randn(shape, generator=generator).double() + offset) * 10**scale
    y = y.to(dtype)
    whole, parts = (running.UL1d(d, reduction="sum").to(dtype) for _ in range(2))
    expected = gradient_of(whole, y)
    sizes = torch.tensor([0, *sorted(cuts), 40]).diff().tolist()
    got = torch.cat(
        [gradient_of(parts, piece) for piece in y.split(sizes, dim=-2) if piece.shape[-2]], dim=-2
    )
    tolerance = 1e-10 if dtype == torch.float64 else 1e-4
    assert relative(got, expected) <= tolerance
    for name in ("short_mean", "long_mean", "short_cov", "long_cov"):
        assert relative(getattr(parts, name), getattr(whole, name)) <= tolerance, name


@pytest.mark.parametrize(("streams", "d"), [(25, 200), (37, 300), (49, 128)])
def test_wide_result_does_not_depend_on_calls_in_float32(streams: int, d: int) -> None:
    torch.manual_seed(0)
    y = torch.randn(streams, 24, d)
    whole, parts = (running.UL1d(d, reduction="sum") for _ in range(2))
    expected = gradient_of(whole, y)
    got = torch.cat([gradient_of(parts, piece) for piece in y.split([1, 10, 13], 1)], 1)
    assert relative(got, expected) <= 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_conv_result_does_not_depend_on_calls(dtype: torch.dtype) -> None:
    """Large pictures, so that the float32 layer works in float32."""
    torch.manual_seed(0)
    maps = (torch.randn(2, 50, 6, 32, 32).cumsum(1) + 100).to(dtype)
    whole, parts = (running.UL2d(6, 0.7, reduction="sum").to(dtype) for _ in range(2))
    expected = gradient_of(whole, maps)
    got = torch.cat([gradient_of(parts, piece) for piece in maps.split([1, 20, 29], 1)], 1)
    assert relative(got, expected) <= (1e-10 if dtype == torch.float64 else 1e-4)
    wide = running.UL2d(6, 0.7, reduction="sum").double()
    assert relative(got, gradient_of(wide, maps.double())) <= 1e-4


# Sequences


@pytest.mark.filterwarnings("ignore:all clips of this call have a single frame")
def test_clips_do_not_leak() -> None:
    """The means of a clip do not depend on the other clips."""
    torch.manual_seed(0)
    layer = running.UL1d(3)
    layer(torch.randn(200, 3))  # so that W and B are not empty
    clips = [torch.randn(n, 3) for n in (7, 1, 12)]
    before = copy.deepcopy(layer)
    with ul.sequences(layer, lengths=[7, 1, 12]):
        gradient_of(layer, torch.cat(clips))
    for i, clip in enumerate(clips):
        alone = copy.deepcopy(before)
        with ul.sequences(alone):
            gradient_of(alone, clip)
        torch.testing.assert_close(layer.short_mean[i], alone.short_mean[0])
        torch.testing.assert_close(layer.long_mean[i], alone.long_mean[0])
        torch.testing.assert_close(layer.long_mean[i], clip.mean(0))


def test_clip_order_does_not_matter() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(9, 2), torch.randn(5, 2) + 3
    one, two = ul.UL1d(2), ul.UL1d(2)
    with ul.sequences(one, lengths=[9, 5]):
        g1 = gradient_of(one, torch.cat([a, b]))
    with ul.sequences(two, lengths=[5, 9]):
        g2 = gradient_of(two, torch.cat([b, a]))
    torch.testing.assert_close(torch.cat([g2[5:], g2[:5]]), g1)
    torch.testing.assert_close(one.short_cov, two.short_cov)


def test_packed_equals_side_by_side() -> None:
    torch.manual_seed(0)
    maps = torch.randn(3, 8, 2, 4, 4)
    one, two = ul.UL2d(2), ul.UL2d(2)
    with ul.sequences(one):
        side_by_side = gradient_of(one, maps)
    with ul.sequences(two, lengths=[8, 8, 8]):
        packed = gradient_of(two, maps.flatten(0, 1))
    torch.testing.assert_close(packed.view_as(maps), side_by_side)


def test_two_threads_cannot_mark_clips_of_one_network_at_once() -> None:
    layer, y = ul.UL1d(2), torch.randn(40, 2)

    def learn_from_clips() -> None:
        with ul.sequences(layer, lengths=[30, 10]):
            layer(y)

    with ThreadPoolExecutor(1) as thread:
        with ul.sequences(layer, lengths=[20, 20]):
            with pytest.raises(RuntimeError, match="another thread is inside"):
                thread.submit(learn_from_clips).result()
            with ul.sequences(layer, lengths=[25, 15]):  # the same thread may
                layer(y)
            layer(y)
            assert layer.short_mean.shape == (2, 2)
        thread.submit(learn_from_clips).result()
    layer(torch.randn(33, 2))  # one stream again
    assert layer.short_mean.shape == (1, 2)


@pytest.mark.parametrize("lengths", [64, 64.0, "64"])
def test_lengths_must_be_a_list(lengths: Any) -> None:
    with pytest.raises(TypeError, match="expected lengths of clips, such as"):
        with ul.sequences(ul.UL1d(2), lengths):
            pass


def test_sequences_reaches_every_layer_and_ends() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), ul.UL2d(2), nn.Flatten(), nn.Linear(72, 2), ul.UL1d(2))
    with ul.sequences(net, lengths=[4, 3]):
        net(torch.randn(7, 1, 8, 8))
    assert net[1].short_mean.shape == (72, 2)
    assert net[4].short_mean.shape == (2, 2)
    net(torch.randn(7, 1, 8, 8))  # one stream again
    assert net[4].short_mean.shape == (1, 2)
    with pytest.raises(RuntimeError, match="boom"), ul.sequences(net, lengths=[2]):
        raise RuntimeError("boom")
    net(torch.randn(5, 1, 8, 8))


def test_a_clip_does_not_leak_into_the_stream_after_it() -> None:
    torch.manual_seed(0)
    stream = torch.randn(60, 2)
    for start in ("warm", "paper"):
        layer = ul.UL1d(2, start=start)
        with ul.sequences(layer):
            layer(torch.randn(30, 2) + 100)
        fresh = ul.UL1d(2, start=start)
        layer(stream)
        fresh(stream)
        torch.testing.assert_close(layer.long_mean, fresh.long_mean)
        twin = ul.UL1d(2, start=start)
        with ul.sequences(twin):
            twin(stream)
        loaded = ul.UL1d(2, start=start)
        loaded.load_state_dict(twin.state_dict())
        torch.testing.assert_close(gradient_of(loaded, stream), gradient_of(twin, stream))


def test_maps_of_another_shape_are_other_streams() -> None:
    layer = ul.UL2d(2)
    for shape in ((5, 2, 4, 6), (5, 2, 6, 4), (2, 5, 2, 3, 4), (5, 2, 4, 6)):
        maps = torch.rand(shape)
        layer(maps)
        own = ul.UL2d(2)
        own(maps)
        torch.testing.assert_close(layer.long_mean, own.long_mean)


def test_failed_load_leaves_the_layer_as_it_was() -> None:
    layer, other = ul.UL1d(2), ul.UL1d(3)
    layer(torch.randn(5, 2))
    other(torch.randn(3, 5, 3))
    before = statistics(layer)
    with pytest.raises(RuntimeError, match="size mismatch"):
        layer.load_state_dict(other.state_dict())
    assert_unchanged(layer, before)
    layer(torch.randn(5, 2))


def test_mu_by_depth_is_all_or_nothing() -> None:
    net = nn.Sequential(ul.UL1d(2), ul.UL1d(2))
    with pytest.raises(ValueError, match="mu >= eps"):
        ul.mu_by_depth(net, 0.9, 1e-4)
    assert [layer.mu for layer in ul.ul_layers(net)] == [0.5, 0.5]


def test_long_term_mean_choices() -> None:
    torch.manual_seed(0)
    y = torch.randn(2, 30, 1).double() + torch.tensor([0.0, 10.0]).double().view(2, 1, 1)
    layers: dict[str, Any] = {
        name: running.UL1d(1, 0.5, 0.1, long_term=name).double()
        for name in ("clip", "stream", "shared")
    }
    for layer in layers.values():
        with ul.sequences(layer):
            layer(y)
    torch.testing.assert_close(layers["clip"].long_mean, y.mean(1))
    weights = 0.9 ** torch.arange(29, -1, -1).double()
    own = (y * weights[:, None]).sum(1) / weights.sum()
    torch.testing.assert_close(layers["stream"].long_mean, own)
    torch.testing.assert_close(layers["shared"].long_mean, own.mean(0, keepdim=True))
    # Around a shared mean the distance between clips counts as long-term change.
    assert layers["shared"].long_cov > 10 * layers["clip"].long_cov
    shared = layers["shared"].long_mean.clone()
    with ul.sequences(layers["shared"]):
        layers["shared"](y[:1, :1])
    torch.testing.assert_close(
        layers["shared"].long_mean, 0.9 * shared + 0.1 * y[0, :1], atol=0.5, rtol=0
    )


# The two roles


@pytest.mark.parametrize("learn", [gradient_of, lambda layer, y: layer(y)])
@pytest.mark.parametrize("sequences", [1, 3])
def test_long_term_may_be_chosen_later(learn: Any, sequences: int) -> None:
    """Set before the first frame, it acts as if set at construction; later, from then on."""
    torch.manual_seed(0)
    y = torch.randn(sequences, 24, 2).double()
    changes: list[Any] = [("auto", "shared"), ("shared", "stream")]
    for early, late in changes:
        at_once, later = (running.UL1d(2, long_term=kind).double() for kind in (late, early))
        later.long_term = late
        for part in y.split(8, dim=1):
            with ul.sequences(nn.ModuleList([at_once, later])):
                assert torch.equal(learn(at_once, part), learn(later, part))
        assert_unchanged(later, statistics(at_once))
        later.long_term = early
        learn(later, y)
        assert len(later.long_mean) == (1 if early == "shared" else sequences)
    later.long_term = "share"  # type: ignore[assignment]
    with pytest.raises(ValueError, match="expected long_term to be one of"):
        learn(later, y)


def test_local_signal_adds_exactly_weight_times_gradient() -> None:
    """Semi-supervised: the hidden layer's gradient changes by weight * g, the loss does not."""
    torch.manual_seed(0)
    x, labels = torch.randn(12, 5), torch.randint(0, 3, (12,))
    hidden, head = nn.Linear(5, 4), nn.Linear(4, 3)

    def hidden_gradient(middle: nn.Module) -> tuple[Tensor, float]:
        out = hidden(x)
        out.retain_grad()
        loss = nn.functional.cross_entropy(head(middle(out)), labels)
        loss.backward()
        assert out.grad is not None
        return out.grad, loss.item()

    plain, loss_plain = hidden_gradient(nn.Identity())
    with_ul, loss_ul = hidden_gradient(ul.UL1d(4, weight=0.25))
    g = gradient_of(ul.UL1d(4), hidden(x))
    torch.testing.assert_close(with_ul - plain, 0.25 * g)
    assert loss_ul == loss_plain


def test_layers_at_several_depths_add_up() -> None:
    torch.manual_seed(0)
    video = torch.randn(10, 1, 8, 8)

    def build(*, low: bool, high: bool) -> nn.Sequential:
        torch.manual_seed(1)
        return nn.Sequential(
            nn.Conv2d(1, 3, 3),
            ul.UL2d(3, 0.8) if low else nn.Identity(),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(108, 2),
            ul.UL1d(2) if high else nn.Identity(),
        )

    gradients: list[Tensor] = []
    for low, high in ((True, True), (True, False), (False, True)):
        net = build(low=low, high=high)
        ul.backward(net(video))
        weight = net.get_parameter("0.weight")
        assert weight.grad is not None
        gradients.append(weight.grad)
    torch.testing.assert_close(gradients[0], gradients[1] + gradients[2])


def test_cost_layer_learns_the_slow_direction() -> None:
    """Unsupervised: the only slow direction among five is found without labels."""
    torch.manual_seed(0)
    t = torch.arange(2000)
    slow = torch.sin(t / 40)
    x = torch.randn(2000, 5)
    x[:, 3] = slow
    net = nn.Sequential(nn.Linear(5, 1), ul.UL1d(1, mu=0.2))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    for _ in range(3):
        for frames in x.split(50):
            optimizer.zero_grad()
            ul.backward(net(frames))
            optimizer.step()
    y = net(x).detach()[:, 0]
    correlation = torch.corrcoef(torch.stack([y, slow]))[0, 1].abs()
    assert correlation > 0.99


def wandering_blob(steps: int) -> tuple[Tensor, Tensor]:
    """(steps, 1, 32, 32) noisy pictures of a blob, and its position."""
    generator = torch.Generator().manual_seed(1)
    place, speed = torch.full((2,), 16.0), torch.zeros(2)
    places = []
    for _ in range(steps):
        speed = 0.95 * speed + 0.3 * torch.randn(2, generator=generator)
        place = place + speed
        speed = torch.where((place < 4) | (place > 28), -speed, speed)
        place = place.clamp(4, 28)
        places.append(place)
    path = torch.stack(places)
    grid = torch.arange(32.0)
    x, y = (torch.exp(-((grid - path[:, i : i + 1]) ** 2) / 18) for i in (0, 1))
    blob = y[:, :, None] * x[:, None, :]
    return (blob + 0.1 * torch.randn(blob.shape, generator=generator))[:, None], path


def test_learning_from_a_stream_does_not_drift(monkeypatch: pytest.MonkeyPatch) -> None:
    """With Eq. 11 alone the network drifts, and the outputs no longer follow the video."""
    video, path = wandering_blob(2000)

    def learn() -> tuple[float, float]:
        """R2 of the blob's place read from the outputs, and how far these are off zero."""
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Conv2d(1, 8, 5, stride=2),
            nn.Tanh(),
            nn.Conv2d(8, 8, 5, stride=2),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(200, 2),
            running.UL1d(2),
        )
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
        for _ in range(8):
            for frames in video.split(50):
                optimizer.zero_grad()
                ul.backward(net(frames))
                optimizer.step()
        with torch.no_grad():
            code = net.eval()(video)
        inputs = torch.cat([code, torch.ones(len(code), 1)], 1)
        missed = path - inputs @ torch.linalg.lstsq(inputs, path).solution
        r2 = 1 - missed.square().sum() / (path - path.mean(0)).square().sum()
        return float(r2), float((code.mean(0) / code.std(0)).norm())

    steady_r2, steady_offset = learn()
    rates = ULBase._rates
    monkeypatch.setattr(ULBase, "_rates", lambda *args: replace(rates(*args), centred=False))
    drifting_r2, drifting_offset = learn()
    assert steady_r2 > 0.5
    assert steady_r2 > drifting_r2 + 0.1
    assert drifting_offset > 4 * steady_offset


def test_gradient_of_a_shift_fades() -> None:
    torch.manual_seed(0)
    y = torch.randn(3, 4000, 2).cumsum(1) * 0.1 + torch.randn(3, 4000, 2)
    shift = gradient_of(running.UL1d(2, 0.3, 0.01, reduction="sum"), y).sum((0, 1)).norm()
    paper = gradient_of(
        running.UL1d(2, 0.3, 0.01, reduction="sum", start="paper"),
        y + torch.arange(4000)[:, None] / 100,
    )
    drifting = gradient_of(
        running.UL1d(2, 0.3, 0.01, reduction="sum"), y + torch.arange(4000)[:, None] / 100
    )
    assert float(drifting.sum((0, 1)).norm()) < 0.2 * float(paper.sum((0, 1)).norm())
    assert float(shift) < 0.2 * float(paper.sum((0, 1)).norm())


def test_semi_supervised_training_uses_the_unlabelled_frames() -> None:
    """Three labels per class: the UL layer finds the slow code, the labels assign classes to it."""

    def accuracy(weight: float, seed: int) -> float:
        torch.manual_seed(seed)
        t = torch.arange(1200)
        angle = t / 30
        x = torch.randn(1200, 20)
        x[:, :2] = torch.stack([angle.sin(), angle.cos()], 1)
        x = x @ torch.linalg.qr(torch.randn(20, 20)).Q
        labels = (angle.sin() > 0).long()
        known = torch.tensor([15, 40, 60, 110, 140, 165])
        hidden, cost = nn.Linear(20, 2), ul.UL1d(2, mu=0.1, weight=weight)
        head = nn.Linear(2, 2)
        optimizer = torch.optim.Adam([*hidden.parameters(), *head.parameters()], lr=0.02)
        for _ in range(6):
            for part in range(0, 1000, 50):
                optimizer.zero_grad()
                ul.backward(cost(hidden(x[part : part + 50])))
                nn.functional.cross_entropy(head(hidden(x[known])), labels[known]).backward()
                optimizer.step()
        guess = head(hidden(x[1000:])).argmax(1)
        return float((guess == labels[1000:]).float().mean())

    error_without = sum(1 - accuracy(0.0, seed) for seed in range(3))
    error_with = sum(1 - accuracy(10.0, seed) for seed in range(3))
    assert error_with < error_without / 2


def test_reduction() -> None:
    torch.manual_seed(0)
    y = torch.randn(8, 3)
    mean, total = ul.UL1d(3), ul.UL1d(3, reduction="sum")
    torch.testing.assert_close(gradient_of(mean, y) * 8, gradient_of(total, y))


def test_mu_by_depth() -> None:
    net = nn.Sequential(ul.UL2d(2), nn.Sequential(nn.ReLU(), ul.UL2d(3)), ul.UL1d(2))
    assert ul.mu_by_depth(net, 0.8, 0.2) == {"0": 0.8, "1.1": 0.5, "2": 0.2}
    assert [layer.mu for layer in ul.ul_layers(net)] == [0.8, 0.5, 0.2]
    assert ul.mu_by_depth(nn.Sequential(ul.UL1d(2))) == {"0": 0.5}
    with pytest.raises(ValueError, match="nearest"):
        ul.mu_by_depth(net, 1.0)


# Training and evaluation, state


@pytest.mark.parametrize("layer", [ul.UL1d(3), ul.UL2d(3)])
def test_eval_never_learns_and_adds_nothing(layer: nn.Module) -> None:
    shape = (6, 3) if isinstance(layer, ul.UL1d) else (6, 3, 4, 4)
    layer(torch.randn(shape))
    before = statistics(layer)
    layer.eval()
    y = torch.randn(shape, requires_grad=True)
    out = layer(y)
    assert torch.equal(out, y)
    out.sum().backward()
    assert y.grad is not None
    assert torch.equal(y.grad, torch.ones(shape))
    assert_unchanged(layer, before)


def test_no_grad_learns_like_batch_norm() -> None:
    layer = ul.UL1d(3)
    with torch.no_grad():
        layer(torch.randn(9, 3))
    assert int(layer.steps) == 9


def test_state_dict_round_trip_continues_exactly() -> None:
    torch.manual_seed(0)
    y = torch.randn(2, 30, 4)
    layer = running.UL1d(4)
    layer(y[:, :20])
    twin = running.UL1d(4)
    twin.load_state_dict(layer.state_dict())
    clone = copy.deepcopy(layer)
    expected = gradient_of(layer, y[:, 20:])
    assert torch.equal(gradient_of(twin, y[:, 20:]), expected)
    assert torch.equal(gradient_of(clone, y[:, 20:]), expected)
    assert_unchanged(twin, statistics(layer))


def test_reset_forgets_everything() -> None:
    torch.manual_seed(0)
    y = torch.randn(10, 3)
    layer = ul.UL1d(3)
    first = gradient_of(layer, y)
    assert not torch.equal(gradient_of(layer, y), first)
    layer.reset()
    assert torch.equal(gradient_of(layer, y), first)


def test_diagonal_keeps_one_variance_per_channel() -> None:
    torch.manual_seed(0)
    maps = torch.randn(5, 3, 4, 4)
    maps[:, 1] = maps[:, 0] + 0.1 * maps[:, 1]
    full, diagonal = ul.UL2d(3), ul.UL2d(3, diagonal=True)
    g_full, g_diagonal = gradient_of(full, maps), gradient_of(diagonal, maps)
    assert torch.equal(diagonal.short_cov, torch.diag(diagonal.short_cov.diagonal()))
    torch.testing.assert_close(diagonal.short_cov.diagonal(), full.short_cov.diagonal())
    assert relative(g_diagonal, g_full) > 0.1
    one = ul.UL2d(1)
    torch.testing.assert_close(
        gradient_of(one, maps[:, :1]), g_diagonal[:, :1], rtol=1e-2, atol=1e-5
    )


# Bad input


@pytest.mark.parametrize(
    ("layer", "y", "message"),
    [
        (ul.UL1d(3), torch.randn(5), r"expected \(time, 3\).* got \(5,\)"),
        (ul.UL1d(3), torch.randn(5, 4), r"expected \(time, 3\).* got \(5, 4\)"),
        (ul.UL1d(3), torch.randn(2, 2, 5, 3), r"got \(2, 2, 5, 3\)"),
        (ul.UL1d(3), torch.ones(5, 3, dtype=torch.int64), "floating point tensor, got torch.int64"),
        (ul.UL1d(3), torch.ones(5, 3, dtype=torch.complex64), "got torch.complex64"),
        (ul.UL1d(3), torch.ones(5, 3, dtype=torch.bool), "got torch.bool"),
        (ul.UL1d(3), [[1.0, 2.0, 3.0]], "expected a tensor, got list"),
        (ul.UL1d(3), torch.randn(0, 3), r"at least one frame, got \(0, 3\)"),
        (ul.UL2d(3), torch.randn(5, 4, 8, 8), r"expected \(time, 3, height.* got \(5, 4, 8, 8\)"),
        (ul.UL2d(3), torch.randn(3, 8, 8), r"got \(3, 8, 8\)"),
        (ul.UL2d(3), torch.randn(5, 3, 0, 8), r"got \(5, 3, 0, 8\)"),
        (ul.UL2d(3), torch.ones(5, 3, 2, 2, dtype=torch.uint8), "got torch.uint8"),
    ],
)
@pytest.mark.parametrize("training", [True, False])
def test_bad_input_changes_nothing(
    layer: nn.Module, y: Tensor, message: str, training: bool
) -> None:
    layer.train()
    layer(torch.randn((4, 3) if isinstance(layer, ul.UL1d) else (4, 3, 2, 2)))
    layer.train(training)
    before = statistics(layer)
    with pytest.raises(ValueError, match=message):
        layer(y)
    assert_unchanged(layer, before)


@pytest.mark.parametrize(
    ("mu", "eps"),
    [(0.0, 0.0), (1.0, 0.1), (0.5, 0.6), (0.5, 0.0), (0.5, -1.0), (float("nan"), 0.1)],
)
def test_rates_outside_their_range(mu: float, eps: float) -> None:
    with pytest.raises(ValueError, match=rf"0 < eps <= mu < 1, got eps={eps} and mu={mu}"):
        ul.UL1d(3, mu, eps)
    layer = ul.UL2d(3)
    layer.mu, layer.eps = mu, eps
    before = statistics(layer)
    with pytest.raises(ValueError, match="0 < eps <= mu < 1"):
        layer(torch.randn(4, 3, 2, 2))
    assert_unchanged(layer, before)


@pytest.mark.parametrize(
    "choices",
    [{"reduction": "none"}, {"start": "cold"}, {"long_term": "batch"}, {"ridge": -1}, {"ridge": 1}],
)
def test_unknown_choices(choices: dict[str, Any]) -> None:
    (name,) = choices
    with pytest.raises(ValueError, match=name):
        ul.UL1d(3, **choices)


def test_bad_sequences_change_nothing() -> None:
    layer = ul.UL1d(3)
    layer(torch.randn(4, 3))
    before = statistics(layer)
    wrong: list[Any] = [[], [3, 0], [-1], [2.5]]
    for lengths in wrong:
        with pytest.raises(ValueError, match="lengths"), ul.sequences(layer, lengths):
            pass
    with pytest.raises(ValueError, match="with 9 frames"), ul.sequences(layer, [4, 5]):
        layer(torch.randn(8, 3))
    with pytest.raises(ValueError, match="with 9 frames"), ul.sequences(layer, [4, 5]):
        layer(torch.randn(1, 9, 3))
    with pytest.raises(ValueError, match=r"scatter \(4, 3, 3\), got \(4, 3\)"):
        layer(torch.randn(4, 3), torch.randn(4, 3))
    assert_unchanged(layer, before)
    with pytest.raises(ValueError, match="expected outputs that require gradients"):
        ul.backward(torch.randn(3))
    with pytest.raises(ValueError, match=">= 1, got 0"):
        ul.UL1d(0)
