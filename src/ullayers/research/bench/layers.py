"""What UL layers cost beside what they stand among: batch and layer norm, and a convolution.

Everything is measured side by side in one process, as `timing` says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ullayers.learn.models import Encoder
from ullayers.nn.layers import UL1d, UL2d, backward
from ullayers.research.bench.timing import How, Row, Step, fastest

MAPS = [(256, 64, 32), (64, 16, 64), (256, 16, 64), (512, 128, 16)]  # time, channels, size
CODES = [(time, features) for features in (2, 16, 64, 256, 1024) for time in (16, 128, 1024)]
FRAMES = [2, 8, 32, 64, 128, 256]  # features of one frame at a time


def rows(how: How) -> Iterator[Row]:
    """All rows, one after the other; `quick` leaves out the large ones."""
    device, quick = how.device, how.quick
    for time_, channels, size in MAPS:
        if not quick or time_ * channels * size**2 < 2**23:
            yield maps_row(time_, channels, size, device)
    for time_, features in CODES:
        if not quick or time_ * features < 2**13:
            yield codes_row(time_, features, device)
    for features in FRAMES:
        if not quick or features <= 32:
            yield frame_row(features, device)
    for network in NETWORKS:
        yield training_row(network, device)


def maps_row(time_: int, channels: int, size: int, device: str) -> Row:
    """UL2d beside batch normalisation, a 3 x 3 convolution of the same width, and the least.

    That is to read the maps twice and write them once, with nothing to compute.
    """
    maps, other = torch.randn(2, time_, channels, size, size, device=device)
    room = torch.empty_like(maps)
    layers = {
        "ours": UL2d(channels),
        "batch norm": nn.BatchNorm2d(channels),
        "conv": nn.Conv2d(channels, channels, 3, padding=1),
    }
    steps = {name: _step(layer.to(device), [maps]) for name, layer in layers.items()}
    steps["the least"] = lambda: torch.add(maps, other, out=room)
    row = _row("maps", f"{time_} x {channels} x {size} x {size}", steps, device)
    if maps.is_cuda:
        beside = ("ours", "batch norm")
        row["copies"] = {name: extra_memory(layers[name], maps) for name in beside}
    return row


def codes_row(time_: int, features: int, device: str) -> Row:
    """UL1d on a chunk beside layer normalisation."""
    y = torch.randn(time_, features, device=device)
    layers = {"ours": UL1d(features), "layer norm": nn.LayerNorm(features)}
    steps = {name: _step(layer.to(device), [y]) for name, layer in layers.items()}
    return _row("codes", f"{time_} x {features}", steps, device)


def frame_row(features: int, device: str) -> Row:
    """UL1d on one frame at a time, as a camera brings them, beside layer normalisation."""
    frames = list(torch.randn(50, 1, features, device=device))
    steps = {
        "ours": _step(UL1d(features).to(device), frames),
        "layer norm": _step(partial(F.layer_norm, normalized_shape=(features,)), frames),
    }
    return _row("frame", f"1 x {features}", steps, device)


def training_row(network: str, device: str) -> Row:
    """A training step of a small video network: UL layers behind convolutions, none, or others."""
    video = torch.rand(64, 3, 64, 64, device=device)
    torch.manual_seed(0)
    nets = {"ours": NETWORKS[network](True), "without them": NETWORKS[network](False)}
    if network == PLAIN:
        nets["batch norm in their place"] = video_network(True, behind=nn.BatchNorm2d)
    steps = {name: _training(net.to(device), video) for name, net in nets.items()}
    return _row("training", network, steps, device)


def video_network(with_ul: bool, behind: Callable[[int], nn.Module] = UL2d) -> nn.Module:
    """Three convolutions with pooling and a code of two, a UL layer behind each of them or none."""
    layers: list[nn.Module] = []
    for before, after in ((3, 16), (16, 32), (32, 64)):
        layers.append(nn.Conv2d(before, after, 3, padding=1))
        layers += [behind(after)] if with_ul else []
        layers += [nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Flatten(), nn.Linear(64 * 8 * 8, 2)]
    return nn.Sequential(*layers, *([UL1d(2)] if with_ul and behind is UL2d else []))


def encoder(with_ul: bool) -> nn.Module:
    """The network of `ul learn --task orient`, which has a UL layer at its end in any case."""
    return Encoder((64, 64), channels=3, long_term="stream", local=float(with_ul))


PLAIN = "3 x 3 convolutions"
NETWORKS: dict[str, Callable[[bool], nn.Module]] = {
    PLAIN: video_network,
    "5 x 5, strides of 2": encoder,
}


def extra_memory(layer: nn.Module, maps: Tensor) -> float:
    """At its peak on a GPU, forward and backward, in copies of the input, beside the input."""
    y, above = maps.clone().requires_grad_(), torch.zeros_like(maps)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    layer(y).backward(above)
    copies = (torch.cuda.max_memory_allocated() - before) / (y.numel() * y.element_size())
    return round(copies, 2)


def _step(layer: Callable[[Tensor], Tensor], inputs: list[Tensor]) -> Step:
    leaves = [y.clone().requires_grad_() for y in inputs]
    above, turn = torch.randn_like(leaves[0]), 0

    def step() -> None:
        nonlocal turn
        turn += 1
        y = leaves[turn % len(leaves)]
        y.grad = None
        layer(y).backward(above)

    return step


def _training(net: nn.Module, video: Tensor) -> Step:
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        backward(net(video))
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
    """A row of the table."""
    cost = ", ".join(f"{ratio:6.2f} x {name}" for name, ratio in row["times"].items())
    each = row.get("copies", {}).items()
    copies = "".join(f", {name} takes {n} copies of the input" for name, n in each)
    return f"{row['kind']:9}{row['shape']:20}{row['microseconds']['ours']:10.0f} us  {cost}{copies}"
