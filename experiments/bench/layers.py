"""Cost of UL layers compared with batch norm, layer norm and a convolution."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.bench.timing import BenchOptions, Row, Step, fastest, forward_backward
from ullayers.learning.networks import Encoder
from ullayers.nn.layers import UL1d, UL2d

MAPS = [(256, 64, 32), (64, 16, 64), (256, 16, 64), (512, 128, 16)]  # time, channels, size
CODES = [(time, features) for features in (2, 16, 64, 256, 1024) for time in (16, 128, 1024)]
VIDEO_FRAMES = 64  # per training step
FRAME_FEATURES = [2, 8, 32, 64, 128, 256]  # for one frame at a time


def rows(options: BenchOptions) -> Iterator[Row]:
    """Yield all rows; `quick` leaves out the large sizes."""
    device = options.device
    quick = options.quick
    for time_, channels, size in MAPS:
        if not quick or time_ * channels * size**2 < 2**23:
            yield maps_row(time_, channels, size, device)
    for time_, features in CODES:
        if not quick or time_ * features < 2**13:
            yield codes_row(time_, features, device)
    for features in FRAME_FEATURES:
        if not quick or features <= 32:
            yield frame_row(features, device)
    for network in NETWORKS:
        yield training_row(network, device)


def maps_row(time_: int, channels: int, size: int, device: str) -> Row:
    """Compare UL2d with batch norm, a 3 x 3 convolution of the same width and a lower bound.

    The bound ("the least") reads the maps twice and writes them once.
    """
    maps, other = torch.randn(2, time_, channels, size, size, device=device)
    buffer = torch.empty_like(maps)
    layers = {
        "ours": UL2d(channels),
        "batch norm": nn.BatchNorm2d(channels),
        "conv": nn.Conv2d(channels, channels, 3, padding=1),
    }
    steps = {name: forward_backward(layer.to(device), [maps]) for name, layer in layers.items()}
    steps["the least"] = lambda: torch.add(maps, other, out=buffer)
    row = _row("maps", f"{time_} x {channels} x {size} x {size}", steps, device)
    if maps.is_cuda:
        compared = ("ours", "batch norm")
        row["copies"] = {name: extra_memory(layers[name], maps) for name in compared}
    return row


def codes_row(time_: int, features: int, device: str) -> Row:
    """Compare UL1d with layer norm on a chunk of frames."""
    y = torch.randn(time_, features, device=device)
    layers = {"ours": UL1d(features), "layer norm": nn.LayerNorm(features)}
    steps = {name: forward_backward(layer.to(device), [y]) for name, layer in layers.items()}
    return _row("codes", f"{time_} x {features}", steps, device)


def frame_row(features: int, device: str) -> Row:
    """Compare UL1d with layer norm on one frame at a time, as a camera delivers them."""
    frames = list(torch.randn(50, 1, features, device=device))
    layer_norm = partial(F.layer_norm, normalized_shape=(features,))
    steps = {
        "ours": forward_backward(UL1d(features).to(device), frames),
        "layer norm": forward_backward(layer_norm, frames),
    }
    return _row("frame", f"1 x {features}", steps, device)


def training_row(network: str, device: str) -> Row:
    """Compare training steps of a small video network with and without UL layers."""
    video = torch.rand(VIDEO_FRAMES, 3, 64, 64, device=device)
    torch.manual_seed(0)
    nets = {"ours": NETWORKS[network](True), "without them": NETWORKS[network](False)}
    if network == PLAIN:
        nets["batch norm in their place"] = video_network(True, layer_type=nn.BatchNorm2d)
    steps = {name: _training(net.to(device), video) for name, net in nets.items()}
    return _row("training", network, steps, device)


def video_network(added: bool, layer_type: Callable[[int], nn.Module] = UL2d) -> nn.Module:
    """Three convolutions with pooling and two outputs.

    Args:
        added: Add a layer after each convolution, and UL1d after the outputs if it is UL2d.
        layer_type: Type of the added layers.
    """
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 16), (16, 32), (32, 64)):
        layers.append(nn.Conv2d(inputs, outputs, 3, padding=1))
        if added:
            layers.append(layer_type(outputs))
        layers += [nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Flatten(), nn.Linear(64 * 8 * 8, 2)]
    if added and layer_type is UL2d:
        layers.append(UL1d(2))
    return nn.Sequential(*layers)


def encoder(with_ul: bool) -> nn.Module:
    """The network of `ul learn --task orient`, which always has a UL layer at its end."""
    return Encoder((64, 64), channels=3, long_term="stream", local=float(with_ul))


PLAIN = "3 x 3 convolutions"
NETWORKS: dict[str, Callable[[bool], nn.Module]] = {
    PLAIN: video_network,
    "5 x 5, strides of 2": encoder,
}


def extra_memory(layer: nn.Module, maps: Tensor) -> float:
    """Return the peak GPU memory of forward and backward, in multiples of the input's size."""
    y = maps.clone().requires_grad_()
    gradient = torch.zeros_like(maps)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    layer(y).backward(gradient)
    copies = (torch.cuda.max_memory_allocated() - before) / (y.numel() * y.element_size())
    return round(copies, 2)


def _training(net: nn.Module, video: Tensor) -> Step:
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        outputs = net(video)
        outputs.backward(torch.zeros_like(outputs))  # UL layers add their own gradient
        optimizer.step()

    return step


def _row(kind: str, shape: str, steps: dict[str, Step], device: str) -> Row:
    times = fastest(steps, device)
    ours = times["ours"]
    others = {name: value for name, value in times.items() if name != "ours"}
    return {
        "kind": kind,
        "shape": shape,
        "microseconds": {name: round(1e6 * value, 1) for name, value in times.items()},
        "times": {name: round(ours / value, 3) for name, value in others.items()},
    }


HEADER = (
    f"{'what':9}{'shape, time first':20}{'our step':>13}  ours / theirs, for a step forward and "
    "backward"
)


def line(row: Row) -> str:
    """Format a row of the table."""
    cost = ", ".join(f"{ratio:6.2f} x {name}" for name, ratio in row["times"].items())
    each = row.get("copies", {}).items()
    copies = "".join(f", {name} takes {n} copies of the input" for name, n in each)
    return f"{row['kind']:9}{row['shape']:20}{row['microseconds']['ours']:10.0f} us  {cost}{copies}"
