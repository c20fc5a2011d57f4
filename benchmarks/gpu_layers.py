"""UL layers with fresh statistics on a GPU, beside batch norm: `python benchmarks/gpu_layers.py`.

Forward and backward of whole layers, in microseconds, from Python and as CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

import ullayers as ul

MAPS = [(256, 64, 32), (64, 16, 64), (256, 16, 64), (512, 128, 16)]
CODES = [(128, 64), (128, 256), (128, 1024)]


def main() -> None:
    for time, channels, size in MAPS:
        maps = torch.randn(time, channels, size, size, device="cuda")
        norm = graph_and_calls(step_of(nn.BatchNorm2d(channels).cuda(), maps))
        ours = graph_and_calls(step_of(ul.UL2d(channels).cuda(), maps))
        old = graph_and_calls(step_of(ul.UL2d(channels, statistics="running").cuda(), maps))
        print(f"{time} x {channels} x {size}^2: fresh {ours}, running {old}, batch norm {norm}")
    for time, features in CODES:
        codes = torch.randn(time, features, device="cuda")
        ours = graph_and_calls(step_of(ul.UL1d(features).cuda(), codes))
        print(f"{time} x {features}: fresh {ours}", flush=True)


def step_of(layer: nn.Module, inputs: Tensor) -> Callable[[], None]:
    y, above = inputs.clone().requires_grad_(), torch.randn_like(inputs)

    def step() -> None:
        torch.autograd.grad(layer(y), [y, *layer.parameters()], above)

    return step


def graph_and_calls(step: Callable[[], None]) -> str:
    calls = fastest(step)
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        return f"{calls:.0f} us ({fastest(graph.replay):.0f} as a graph)"
    except RuntimeError as error:
        return f"{calls:.0f} us (no graph: {str(error).splitlines()[0][:60]})"


def fastest(step: Callable[[], None], rounds: int = 30) -> float:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    best = float("inf")
    for _ in range(rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(5):
            step()
        end.record()
        torch.cuda.synchronize()
        best = min(best, 1000 * begin.elapsed_time(end) / 5)
    return best


if __name__ == "__main__":
    main()
