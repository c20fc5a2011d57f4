"""Time that synchronised statistics take in a training step, for one and two processes.

    python -m experiments.studies.processes

Prints milliseconds of a forward and backward pass of a UL layer alone, without and with
synchronisation over the processes (gloo, one thread each), the fastest of many.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

import ullayers as ul

INPUTS = {
    "UL1d, 16 features": (256, 16),
    "UL1d, 64 features": (256, 64),
    "UL1d, 256 features": (256, 256),
    "UL2d, 16 x 32 x 32": (32, 16, 32, 32),
}
LONG_TERM = ("clip", "shared")
REPEATS = 100


def fastest_ms(shape: tuple[int, ...], long_term: Any, synchronize: bool) -> float:
    kind = ul.UL1d if len(shape) == 2 else ul.UL2d
    layer = kind(shape[1], statistics="fresh", long_term=long_term, synchronize=synchronize)
    frames = torch.randn(shape)
    times = []
    for _ in range(REPEATS):
        if dist.is_initialized():
            dist.barrier()  # measure communication, not the wait for a slower process
        start = time.perf_counter()
        ul.backward(layer(frames.requires_grad_()))
        times.append(1000 * (time.perf_counter() - start))
    return min(times)


def measure(rank: int, world: int, store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    for name, shape in INPUTS.items():
        for long_term in LONG_TERM:
            alone, together = (fastest_ms(shape, long_term, each) for each in (False, True))
            if rank == 0:
                print(f"{world} | {name} | {long_term} | {alone:.2f} | {together:.2f}", flush=True)
    dist.destroy_process_group()


def main() -> None:
    print("processes | layer | long_term | alone, ms | synchronised, ms")
    for world in (1, 2):
        with tempfile.TemporaryDirectory() as folder:
            spawn(measure, (world, str(Path(folder) / "store")), nprocs=world)


if __name__ == "__main__":
    main()
