"""ReplayMemory: its content, its samples, and exact continuation of learning."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import ullayers as ul
from ullayers.nn.replay_memory import ReplayMemory


def numbered(*numbers: int) -> Tensor:
    """Return frames (time, 1, 2) that contain their number."""
    return torch.tensor(numbers, dtype=torch.float32)[:, None, None].expand(-1, 1, 2)


@pytest.mark.parametrize("portion", [1, 3, 7, 50])
def test_the_latest_frames_are_kept_for_any_split(portion: int) -> None:
    memory = ReplayMemory((1, 2), frames=7, clips=2, length=3)
    for part in numbered(*range(24)).split(portion):
        memory.add(part)
    assert len(memory) == 7
    assert sorted(memory.frames[:, 0, 0].tolist()) == list(range(17, 24))
    whole = ReplayMemory((1, 2), frames=7, clips=2, length=3)
    whole.add(numbered(*range(24)))
    assert torch.equal(memory.sample(), whole.sample())


def test_clips_are_consecutive_and_from_everywhere() -> None:
    memory = ReplayMemory((1, 2), frames=10, clips=5, length=4)
    starts = set()
    for number in range(200):
        memory.add(numbered(number))
        if len(memory) < 10:
            continue
        clips = memory.sample()[:, 0, 0].view(5, 4)
        assert torch.equal(clips.diff(dim=1), torch.ones(5, 3))
        starts |= set((number - clips[:, 0]).int().tolist())
    assert starts == set(range(3, 10)), "the newest clip begins 3 frames ago, the oldest 9"


def test_a_sample_depends_on_the_seed_and_the_frames_seen_alone() -> None:
    one, same, other = (ReplayMemory((1, 2), frames=100, seed=seed) for seed in (1, 1, 2))
    for memory in (one, same, other):
        memory.add(numbered(*range(100)))
    assert torch.equal(one.sample(), one.sample())
    torch.rand(3)  # the global generator must not matter
    assert torch.equal(one.sample(), same.sample())
    assert not torch.equal(one.sample(), other.sample())
    before = one.sample()
    one.add(numbered(100))
    assert not torch.equal(one.sample(), before)


def test_frames_that_are_not_finite_are_skipped() -> None:
    memory = ReplayMemory((1, 2), frames=6, clips=1, length=4)
    memory.add(numbered(0, 1))
    bad = numbered(2, 3, 4, 5).clone()
    bad[1, 0, 1], bad[2, 0, 0] = torch.nan, torch.inf
    memory.add(bad)
    assert len(memory) == 4
    assert memory.sample()[:, 0, 0].tolist() == [0, 1, 2, 5]


def learner(seed: int = 0) -> tuple[torch.nn.Sequential, torch.optim.Optimizer, ReplayMemory]:
    torch.manual_seed(seed)
    layer = ul.UL1d(2, statistics="fresh", long_term="shared")
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2), layer)
    return net, torch.optim.Adam(net.parameters(), 1e-3), ReplayMemory((4,), 40, clips=4, length=8)


def see(
    x: Tensor, net: torch.nn.Module, optimizer: torch.optim.Optimizer, memory: ReplayMemory
) -> None:
    for frame in x:
        memory.add(frame[None])
        if len(memory) < 32:
            continue
        optimizer.zero_grad()
        with ul.sequences(net, memory.lengths):
            ul.backward(net(memory.sample()))
        optimizer.step()


def test_learning_continues_exactly() -> None:
    torch.manual_seed(1)
    x = torch.randn(90, 4).cumsum(0)
    whole, first, second = learner(), learner(), learner(seed=5)
    see(x, *whole)
    see(x[:55], *first)
    second[0].load_state_dict(first[0].state_dict())
    second[1].load_state_dict(first[1].state_dict())
    second[2].load_state_dict(first[2].state_dict())
    see(x[55:], *second)
    for one, other in ((whole[0], second[0]), (whole[2], second[2])):
        for key, value in one.state_dict().items():
            assert torch.equal(value, other.state_dict()[key]), key


def test_a_step_depends_only_on_its_clips() -> None:
    """The gradient is exactly that of the sampled frames, without past weights."""
    torch.manual_seed(1)
    x = torch.randn(60, 4).cumsum(0)
    net, optimizer, memory = learner()
    see(x, net, optimizer, memory)
    fresh, *_ = learner()
    fresh.load_state_dict(net.state_dict())
    for layer in ul.ul_layers(fresh):
        layer.reset()
    for one in (net, fresh):
        one.zero_grad()
        with ul.sequences(one, memory.lengths):
            ul.backward(one(memory.sample()))
    for weight, other in zip(net.parameters(), fresh.parameters(), strict=True):
        assert weight.grad is not None
        assert other.grad is not None
        assert torch.equal(weight.grad, other.grad)


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        ((1, 1, 3), r"expected frames \(time, 1, 2\), got \(1, 1, 3\)"),
        ((1, 2), r"expected frames \(time, 1, 2\), got \(1, 2\)"),
        ((), r"expected frames \(time, 1, 2\), got \(\)"),
    ],
)
def test_frames_of_another_size_are_refused(shape: tuple[int, ...], says: str) -> None:
    memory = ReplayMemory((1, 2), frames=6, clips=1, length=2)
    memory.add(numbered(0, 1))
    with pytest.raises(ValueError, match=says):
        memory.add(torch.zeros(shape))
    assert len(memory) == 2


def test_too_little_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2 frames, got 3 of 1"):
        ReplayMemory((2,), clips=3, length=1)
    with pytest.raises(ValueError, match="room for a clip of 8 frames, got 7"):
        ReplayMemory((2,), frames=7)
    memory = ReplayMemory((1, 2), frames=6, clips=1, length=3)
    memory.add(numbered(0, 1))
    with pytest.raises(ValueError, match="at least 3 frames in the memory, got 2"):
        memory.sample()


def test_repr() -> None:
    assert repr(ReplayMemory((3, 4), 50)) == "ReplayMemory((3, 4), 50, clips=16, length=8)"


def test_a_position_is_learned_from_single_frames() -> None:
    """A bump moves over 24 noisy pixels: its position is the only slow variable."""
    random = torch.Generator().manual_seed(0)
    place = 0.5 + 0.4 * torch.sin(torch.randn(4000, generator=random).mul(0.15).cumsum(0))
    pixels = (torch.arange(24) + 0.5) / 24
    x = torch.exp(-((pixels - place[:, None]) / 0.1).square())
    x = x + 0.3 * torch.randn(x.shape, generator=random)
    torch.manual_seed(0)
    layer = ul.UL1d(1, statistics="fresh", long_term="shared")
    net = torch.nn.Sequential(torch.nn.Linear(24, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer, memory = torch.optim.Adam(net.parameters(), 1e-2), ReplayMemory((24,), 1000)
    for count, frame in enumerate(x[:3000], 1):
        memory.add(frame[None])
        if count % 16 == 0 and len(memory) >= 128:
            optimizer.zero_grad()
            with ul.sequences(layer, memory.lengths):
                ul.backward(layer(net(memory.sample())))
            optimizer.step()
    with torch.no_grad():
        found = net(x[3000:])[:, 0]
    assert abs(float(torch.corrcoef(torch.stack([found, place[3000:]]))[0, 1])) > 0.9


def test_values_that_overflow_the_memory_are_skipped() -> None:
    memory = ul.ReplayMemory((2,), frames=8, clips=1, length=2)
    memory.add(torch.tensor([[1e300, 0.0], [1.0, 2.0]], dtype=torch.float64))
    assert len(memory) == 1
    assert memory.frames.isfinite().all()


@pytest.mark.parametrize("shape", [3, "3", (-1,), (0, 2), (2.5,)])
def test_a_shape_that_is_none_is_refused(shape: Any) -> None:
    with pytest.raises(ValueError, match=r"expected the shape of a frame, such as \(3, 48, 64\)"):
        ReplayMemory(shape)


@pytest.mark.parametrize("frames", [np.ones((1, 1, 2)), torch.ones(1, 1, 2, dtype=torch.cfloat)])
def test_frames_of_another_kind_are_refused(frames: Any) -> None:
    memory = ReplayMemory((1, 2))
    with pytest.raises(ValueError, match="expected a tensor of real numbers, got"):
        memory.add(frames)
    assert len(memory) == 0


def test_threads_that_share_it_lose_no_frames() -> None:
    memory = ReplayMemory((1, 2), frames=1200)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(memory.add, numbered(*range(1200)).split(3)))
    assert sorted(memory.frames[:, 0, 0].tolist()) == list(range(1200))
