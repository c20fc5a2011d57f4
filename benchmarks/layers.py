"""What a UL2d layer costs beside batch normalisation and a 3 x 3 convolution of the same width.

Forward and backward, one thread, fastest of five rounds in which all take turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import ullayers as ul

SHAPES = [(30, 32, 64), (64, 16, 64), (256, 64, 32)]  # frames, channels, height and width
ROUNDS = 5


def seconds(step: Callable[[], None]) -> float:
    begin = time.perf_counter()
    step()
    return time.perf_counter() - begin


def forward_backward(layer: nn.Module, maps: Tensor) -> Callable[[], None]:
    def step() -> None:
        maps.grad = None
        layer(maps).backward(torch.zeros_like(maps))

    return step


def main() -> None:
    torch.set_num_threads(1)
    print("frames, channels, size    UL2d ms   of BatchNorm2d   of a 3 x 3 conv")
    for frames, channels, size in SHAPES:
        maps = torch.randn(frames, channels, size, size, requires_grad=True)
        layers = [
            ul.UL2d(channels), nn.BatchNorm2d(channels), nn.Conv2d(channels, channels, 3, padding=1)
        ]  # fmt: skip
        steps = [forward_backward(layer, maps) for layer in layers]
        rounds = [[seconds(step) for step in steps] for _ in range(ROUNDS)]
        ours, norm, conv = (min(times) for times in zip(*rounds, strict=True))
        shape = f"({frames}, {channels}, {size})"
        print(f"{shape:25} {1e3 * ours:7.0f} {ours / norm:16.1f} {ours / conv:17.2f}")


if __name__ == "__main__":
    main()
