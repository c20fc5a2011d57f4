"""UL layers with fresh statistics on a GPU beside batch norm: microseconds of forward and backward.

    python -m experiments.studies.gpu            kernels of maps
    python -m experiments.studies.gpu --layers   whole layers, from Python and as CUDA graphs
    python -m experiments.studies.gpu --kernels  which kernel takes how long
    python -m experiments.studies.gpu --sweep    other sizes of tiles
    python -m experiments.studies.gpu --tf32     where the user allows TF32

The kernels are `measure` and `gradient`, without the two small factors in between. All contenders
of a row take turns, and the median round counts.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from statistics import median

import torch
from torch import Tensor, nn

import ullayers as ul
import ullayers.kernels.triton.fresh as launch_fresh
from ullayers.kernels.moments import LongTerm, Rates, Request, Weights

SHAPES = [(256, 64, 32), (64, 16, 64), (256, 16, 64), (512, 128, 16)]  # frames, channels, side
ROUNDS, REPEATS = 15, 10
LARGEST = 1e18
Step = Callable[[], object]


def microseconds(steps: dict[str, Step]) -> dict[str, float]:
    """The median round of each, in turns."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(ROUNDS + 2):
        for name, step in steps.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(REPEATS):
                step()
            end.record()
            end.synchronize()
            if turn > 1:  # those before warm up
                times[name].append(begin.elapsed_time(end) * 1000 / REPEATS)
    return {name: median(taken) for name, taken in times.items()}


def as_graph(step: Step) -> Step:
    """The same as a CUDA graph."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def maps_of(
    T: int,
    C: int,
    side: int,
    *,
    channels_last: bool = False,
    spoilt: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    torch.manual_seed(0)
    maps = torch.randn(T, C, side, side, device="cuda").to(dtype)
    if spoilt:
        maps[5::20] = torch.nan  # whole frames
        maps[3, 0, ::7] = torch.nan
    memory = torch.channels_last if channels_last else torch.contiguous_format
    return maps.contiguous(memory_format=memory)


def ours(maps: Tensor, lengths: tuple[int, ...], long_term: LongTerm = "clip") -> Step:
    frames = maps.flatten(2)
    request = Request(lengths, Rates(0.5, 1e-3, 1e-4, long_term), LARGEST)
    factors = torch.eye(maps.shape[1], device="cuda").repeat(2, 1, 1)
    weights = Weights(factors, False)
    above = torch.randn_like(maps).flatten(2)

    def step() -> Tensor:
        moments = launch_fresh.measure(frames, request, None)
        return launch_fresh.gradient(frames, request, weights, moments.saved, above)

    return step


def batch_norm(maps: Tensor) -> Step:
    layer = nn.BatchNorm2d(maps.shape[1]).cuda()
    y, above = maps.clone().requires_grad_(), torch.randn_like(maps)
    leaves = [y, *layer.parameters()]
    return lambda: torch.autograd.grad(layer(y), leaves, above)


def compare(name: str, step: Step, other: Step) -> None:
    took = microseconds(
        {"ours": step, "norm": other, "our graph": as_graph(step), "norm graph": as_graph(other)}
    )
    print(
        f"{name:34} {took['ours']:7.0f} {took['norm']:7.0f} {took['ours'] / took['norm']:6.2f}"
        f" {took['our graph']:9.0f} {took['norm graph']:7.0f}"
        f" {took['our graph'] / took['norm graph']:6.2f}",
        flush=True,
    )


def memory_of(maps: Tensor) -> str:
    """Most memory beside the input and the gradient, and what is kept for it, in copies."""
    frames = maps.flatten(2)
    request = Request((len(maps),), Rates(0.5, 1e-3, 1e-4, "clip"), LARGEST)
    factors = torch.eye(maps.shape[1], device="cuda").repeat(2, 1, 1)
    weights = Weights(factors, False)
    size = maps.numel() * maps.element_size()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    moments = launch_fresh.measure(frames, request, None)
    first, kept = torch.cuda.max_memory_allocated() - before, torch.cuda.memory_allocated() - before
    launch_fresh.gradient(frames, request, weights, moments.saved, None)
    second = torch.cuda.max_memory_allocated() - before - size
    return f"measure {first / size:.2f}, kept {kept / size:.2f}, gradient {second / size:.2f}"


def tables() -> None:
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print(f"{'maps':34} {'ours':>7} {'norm':>7} {'ratio':>6} {'our graph':>9} {'norm':>7} ratio")
    for shape in SHAPES:
        maps = maps_of(*shape)
        compare(f"{shape}", ours(maps, (shape[0],)), batch_norm(maps))
    first = SHAPES[0]
    maps, ragged = maps_of(*first), (100, 25, 60, 31, 40)
    norm = batch_norm(maps)
    compare("  unequal clips", ours(maps, ragged), norm)
    compare("  shared mean, unequal clips", ours(maps, ragged, "shared"), norm)
    compare("  shared mean, clips of 16", ours(maps, (16,) * 16, "shared"), norm)
    compare("  stream", ours(maps, (256,), "stream"), norm)
    compare("  NaN frames", ours(maps_of(*first, spoilt=True), (256,)), norm)
    last = maps_of(*first, channels_last=True)
    compare("  channels last", ours(last, (256,)), batch_norm(last))
    half = maps_of(*first, dtype=torch.bfloat16)
    compare("  bfloat16", ours(half, (256,)), batch_norm(half))
    for shape in SHAPES:
        print(f"memory in copies of the input, {shape}: {memory_of(maps_of(*shape))}")


def tf32_table() -> None:
    """With TF32 allowed by the user."""
    torch.backends.cuda.matmul.allow_tf32 = True
    for shape in SHAPES:
        maps = maps_of(*shape)
        compare(f"TF32 {shape}", ours(maps, (shape[0],)), batch_norm(maps))
    torch.backends.cuda.matmul.allow_tf32 = False


def kernels() -> None:
    """Time of each kernel by the profiler."""
    for shape in SHAPES:
        step = ours(maps_of(*shape), (shape[0],))
        step()
        activities = [torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profile:
            for _ in range(REPEATS):
                step()
            torch.cuda.synchronize()
        rows = sorted(profile.key_averages(), key=lambda row: -row.device_time_total)
        parts = [
            f"{row.key[:24]} {row.device_time_total / REPEATS:.0f} ({row.count // REPEATS}x)"
            for row in rows
            if row.device_time_total
        ]
        print(f"{shape}: {', '.join(parts)}", flush=True)


CHOICES = {
    "seen_block": (16, 32, 64, 128),
    "seen_warps": (4, 8),
    "seen_stages": (1, 2, 3, 4),
    "block": (64, 128, 256),
    "gram_block": (32, 64, 128),
    "gram_warps": (4, 8),
    "gram_stages": (1, 2, 3, 4),
    "gram_programs": (1, 2, 3, 4, 6),
    "out_block": (64, 128, 256),
    "out_warps": (4, 8),
    "out_stages": (1, 2, 3),
    "out_programs": (1, 2, 3, 4),
}


def time_plan(maps: Tensor) -> float:
    step = as_graph(ours(maps, (len(maps),)))
    return microseconds({"ours": step})["ours"]


def sweep() -> None:
    """One choice after the other, as graphs; what makes it 2 % faster is kept."""
    for shape in SHAPES:
        maps, width = maps_of(*shape), max(16, shape[1])
        best, plan = time_plan(maps), launch_fresh.PLANS[width]
        print(f"{shape}: {best:.0f} us with {plan}", flush=True)
        for name, values in CHOICES.items():
            for value in values:
                launch_fresh.PLANS[width] = replace(plan, **{name: value})
                try:
                    took = time_plan(maps)
                except Exception as error:  # does not fit the shared memory, for one
                    print(f"  {name}={value}: {type(error).__name__}", flush=True)
                    continue
                print(f"  {name}={value}: {took:.0f} us", flush=True)
                if took < 0.98 * best:
                    best, plan = took, launch_fresh.PLANS[width]
        launch_fresh.PLANS[width] = plan
        print(f"  best {best:.0f} us: {plan}", flush=True)
    for room in (2**21, 2**22, 2**23, 2**24):
        launch_fresh.WORKSPACE = room
        rows = [f"{time_plan(maps_of(*shape)):.0f}" for shape in SHAPES]
        print(f"workspace of {room} values: {', '.join(rows)} us", flush=True)


CODES = [(128, 64), (128, 256), (128, 1024)]


def layers() -> None:
    """Time of whole layers."""
    for time, channels, size in SHAPES:
        maps = torch.randn(time, channels, size, size, device="cuda")
        norm = graph_and_calls(step_of(nn.BatchNorm2d(channels).cuda(), maps))
        ours = graph_and_calls(step_of(ul.UL2d(channels).cuda(), maps))
        print(f"{time} x {channels} x {size}^2: fresh {ours}, batch norm {norm}", flush=True)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parts = {"layers": layers, "kernels": kernels, "sweep": sweep, "tf32": tf32_table}
    for name in parts:
        parser.add_argument(f"--{name}", dest="part", action="store_const", const=parts[name])
    parser.set_defaults(part=tables)
    parser.parse_args().part()


if __name__ == "__main__":
    main()
