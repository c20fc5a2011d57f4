"""The networks of `ul`: their outputs, and the gradients of their weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ullayers.learning.networks import Encoder, Locator, Model, weights
from ullayers.nn.networks import backward, ul_layers


def blobs(places: list[tuple[float, float]], height: int = 48, width: int = 64) -> Tensor:
    """Foregrounds with one bright square each, (count, 3, height, width)."""
    frames = torch.zeros(len(places), 3, height, width)
    for frame, (x, y) in zip(frames, places, strict=True):
        left, top = round(x * width), round(y * height)
        frame[:, top - 3 : top + 3, left - 3 : left + 3] = 0.6
    return frames


def make(task: str) -> Model:
    torch.manual_seed(0)
    return Locator() if task == "locate" else Encoder((24, 32), 3, outputs=6, codes=3)


def frames_for(task: str, count: int) -> Tensor:
    torch.manual_seed(1)
    if task == "orient":
        return torch.rand(count, 3, 24, 32)
    t = torch.arange(count) / 5
    places = torch.stack([0.5 + 0.3 * t.sin(), 0.5 + 0.3 * (1.3 * t).cos()], 1).tolist()
    return blobs([(x, y) for x, y in places], 24, 32)


@pytest.mark.parametrize("strength", [0.01, 0.3, 1.0])
@torch.no_grad()
def test_the_mask_is_where_the_object_is(strength: float) -> None:
    places = [(0.2, 0.25), (0.5, 0.5), (0.8, 0.3), (0.6, 0.75)]
    found = Locator().eval()(strength * blobs(places))
    assert found.centroid.shape == (4, 2)
    assert float((found.centroid - torch.tensor(places)).abs().max()) < 0.02
    assert torch.allclose(found.mask.sum((1, 2)), torch.ones(4))
    inside = blobs(places)[:, 0] > 0
    assert ((found.mask * inside).sum((1, 2)) > 0.7).all()


@torch.no_grad()
def test_left_and_right_are_alike_before_learning() -> None:
    net, frames = Locator().eval(), blobs([(0.2, 0.25), (0.7, 0.6)])
    found, mirrored = net(frames), net(frames.flip(-1))
    assert torch.allclose(mirrored.centroid[:, 0], 1 - found.centroid[:, 0], atol=1e-5)
    assert torch.allclose(mirrored.centroid[:, 1], found.centroid[:, 1], atol=1e-5)


@torch.no_grad()
def test_confidence_goes_from_nothing_to_a_point() -> None:
    net = Locator().eval()
    nothing, point = torch.zeros(1, 3, 48, 64), torch.zeros(1, 3, 48, 64)
    point[..., 23:25, 31:33] = 1
    spread = blobs([(0.2, 0.5)]) + blobs([(0.8, 0.5)])
    sure = [float(net.confidence(net(frame))) for frame in (nothing, spread, point)]
    assert sure[0] < 0.05
    assert sure[0] < sure[1] < sure[2]
    assert sure[2] > 0.8
    assert torch.allclose(net(nothing).centroid, torch.tensor([[0.5, 0.5]]), atol=1e-3)


@torch.no_grad()
def test_pictures_of_masks_show_the_object() -> None:
    net, frames = Locator().eval(), blobs([(0.3, 0.4), (0.7, 0.6)])
    picture = net.picture(net(frames))
    assert float(picture.min()) >= 0
    assert torch.allclose(picture.amax((1, 2)), torch.ones(2))
    shown = picture > 0.5
    inside = frames[:, 0] > 0
    assert float((shown & inside).sum() / inside.sum()) > 0.5
    assert int((shown & ~inside).sum()) < 0.5 * int(inside.sum())


@pytest.mark.parametrize("task", ["locate", "orient"])
@torch.no_grad()
def test_frames_do_not_see_each_other(task: str) -> None:
    net, frames = make(task).eval(), frames_for(task, 12)
    whole = net(frames)[0] if task == "locate" else net(frames)
    parts = [net(part)[0] if task == "locate" else net(part) for part in frames.split(5)]
    assert torch.allclose(torch.cat(parts), whole, atol=1e-6)


@pytest.mark.parametrize("task", ["locate", "orient"])
@pytest.mark.parametrize("local", [0.0, 0.1])
def test_learning_reaches_every_weight(task: str, local: float) -> None:
    torch.manual_seed(0)
    net: Model = Locator(local=local) if task == "locate" else Encoder((24, 32), 3, local=local)
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    frames = frames_for(task, 40)
    net.get_ready(frames)
    for _ in range(2):  # the last layer of a locator starts at zero and hides those before it
        optimizer.zero_grad()
        backward(net.learn_from(frames, [20, 20]))
        optimizer.step()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        # A shift of all codes of a clip changes neither W nor B: nothing reaches the last bias.
        assert name == "full.bias" or parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize("task", ["locate", "orient"])
def test_finished_networks_learn_nothing(task: str) -> None:
    net = make(task)
    backward(net.learn_from(frames_for(task, 20), [20]))
    net.eval()
    before = {key: value.clone() for key, value in net.state_dict().items()}
    net(frames_for(task, 30))
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())


@pytest.mark.parametrize("task", ["locate", "orient"])
def test_weights_are_all_that_a_finished_network_needs(task: str) -> None:
    net = make(task)
    for _ in range(3):
        backward(net.learn_from(frames_for(task, 20), [20]))
    net.get_ready(frames_for(task, 20))
    saved = weights(net)
    costs = set(ul_layers(net))
    statistics = {f"{name}." for name, module in net.named_modules() if module in costs}
    assert not any(key.startswith(tuple(statistics)) for key in saved)
    torch.manual_seed(5)
    fresh = Locator() if task == "locate" else Encoder((24, 32), 3, outputs=6, codes=3)
    lost = fresh.load_state_dict(saved, strict=False)
    assert not lost.unexpected_keys
    assert all(key.startswith(tuple(statistics)) for key in lost.missing_keys)
    frames = frames_for(task, 9)
    both = [n.eval()(frames) for n in (net, fresh)]
    assert torch.equal(*(found[0] if task == "locate" else found for found in both))


def test_the_size_of_things_is_measured() -> None:
    small, large = Locator(), Locator()
    small.get_ready(blobs([(0.3, 0.4), (0.6, 0.5)]))
    wide = torch.zeros(2, 3, 48, 64)
    wide[:, :, 10:34, 10:40] = 0.6
    large.get_ready(wide)
    assert 0.01 < float(small.size) < 0.1
    assert float(large.size) > 2 * float(small.size)


@pytest.mark.parametrize("size", [(8, 8), (17, 33), (48, 64), (64, 20)])
@pytest.mark.parametrize("channels", [1, 3])
@torch.no_grad()
def test_all_sizes_and_colours(size: tuple[int, int], channels: int) -> None:
    frames = torch.rand(4, channels, *size)
    encoder = Encoder(size, channels, outputs=5, codes=2).eval()
    assert encoder(frames).shape == (4, 5)
    assert encoder.code(frames).shape == (4, 2)
    found = Locator(channels).eval()(frames)
    assert found.mask.shape == (4, *size)
    assert ((found.centroid > 0) & (found.centroid < 1)).all()


@torch.no_grad()
def test_a_code_does_not_see_how_bright_the_light_is() -> None:
    encoder, frames = make("orient").eval(), 0.2 + 0.4 * frames_for("orient", 6)
    dim, bright = encoder(0.7 * frames), encoder(1.3 * frames)
    other = encoder(frames.flip(0))
    assert float((dim - bright).abs().max()) < 0.2 * float((dim - other).abs().max())
