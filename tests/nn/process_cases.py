"""Training runs that processes share; `test_distributed` compares numbers of processes."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import ullayers as ul

LENGTHS = (14, 9, 6, 2, 17, 21)  # of six streams
ONE_LEFT = 12  # step from which only the last stream is left
MARK = 9.0  # frames with this value become NaN before the UL layers


class Spoil(nn.Module):
    """Set the frames that have a mark to NaN."""

    marked: Tensor

    def forward(self, y: Tensor) -> Tensor:
        return y.masked_fill(self.marked, torch.nan)


class Net(nn.Module):
    """Two parts, with a UL layer after each; the second ends with an unmarked code."""

    def __init__(self, first: nn.Module, second: nn.Module, checkpointing: bool = False) -> None:
        super().__init__()
        self.first, self.second, self.checkpointing = first, second, checkpointing
        self.spoil = Spoil()

    def forward(self, x: Tensor) -> Tensor:
        self.spoil.marked = (x == MARK).flatten(1).any(1).view(-1, *[1] * (x.ndim - 1))
        if not self.checkpointing:
            y: Tensor = self.second(self.first(x))
        else:
            y = checkpoint(
                self.second, checkpoint(self.first, x, use_reentrant=False), use_reentrant=False
            )
        return y


def codes(layers: dict[str, Any], front: nn.Module | None = None, d: int = 4) -> nn.Module:
    first = nn.Sequential(
        front or nn.Identity(), nn.Linear(5, d), nn.Tanh(), ul.UL1d(d, weight=0.3, **layers)
    )
    return Net(first, nn.Sequential(nn.Linear(d, 2), ul.UL1d(2, **layers)))


def spoiled_codes(layers: dict[str, Any]) -> nn.Module:
    net = Net(nn.Sequential(nn.Linear(5, 4), nn.Tanh()), nn.Identity())
    net.second = nn.Sequential(net.spoil, ul.UL1d(4, **layers))
    return net


def maps(layers: dict[str, Any], checkpointing: bool = False) -> nn.Module:
    first = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Tanh(), ul.UL2d(3, weight=0.3, **layers))
    return Net(first, nn.Sequential(nn.Conv2d(3, 2, 3), ul.UL2d(2, **layers)), checkpointing)


class Case(NamedTuple):
    """A training run."""

    net: Callable[[], nn.Module]
    shape: tuple[int, ...] = (5,)
    clips: bool = True  # marked by `sequences`, of unequal lengths; else (streams, time, ...)
    take_loss: bool = True
    broadcast_buffers: bool = True
    sharded: bool = False  # FSDP instead of DDP
    dtype: torch.dtype = torch.float64
    marks: bool = False
    limit: float = 1e-10  # of differences between numbers of processes
    rate: float = 2e-3  # training must not diverge, or rounding errors grow without limit


FRESH: dict[str, Any] = {"statistics": "fresh"}
CASES = {
    "clips": Case(lambda: codes(FRESH)),
    "clips, no broadcast": Case(lambda: codes(FRESH), broadcast_buffers=False, take_loss=False),
    "streams": Case(lambda: codes(FRESH), clips=False, take_loss=False),
    "auto": Case(lambda: codes({"reduction": "sum"}), clips=False, rate=5e-5),
    "sharded": Case(lambda: codes(FRESH), sharded=True),
    "float32": Case(lambda: codes(FRESH), dtype=torch.float32, limit=1e-5),
    # More features than frames: without the ridge, W and B would have no inverse.
    "wide": Case(lambda: codes(FRESH, d=80), limit=1e-5),
    "shared, NaN": Case(lambda: spoiled_codes({"long_term": "shared", **FRESH}), marks=True),
    "NaN": Case(lambda: spoiled_codes({"long_term": "stream", **FRESH}), marks=True),
    "whiten": Case(lambda: codes(FRESH, ul.Whiten(5))),
    "maps, checkpoints": Case(lambda: maps(FRESH, True), shape=(1, 6, 7)),
    "maps, shared": Case(
        lambda: maps({"long_term": "shared", "diagonal": True, **FRESH}), shape=(1, 6, 7)
    ),
}


def train(
    case: Case, rank: int, world: int, steps: range, state: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Train with the streams of a rank; return weights, gradients and statistics."""
    torch.manual_seed(0)
    net = case.net().to(case.dtype)
    if state is not None:
        net.load_state_dict(state)
    wrapped = wrap(case, net)
    optimizer = torch.optim.SGD(net.parameters(), lr=case.rate)
    for step in steps:
        x, lengths, total = batch(case, step, rank, world)
        optimizer.zero_grad()
        with ul.sequences(net, lengths) if case.clips else nullcontext():
            y = wrapped(x)
        if case.take_loss:
            task = y.nan_to_num().square().sum() * world / total
            (0.1 * task + ul.loss(wrapped)).backward()
        else:
            ul.backward(y)
        optimizer.step()
    found: dict[str, Any] = dict(net.state_dict())
    found |= {f"grad {name}": p.grad for name, p in net.named_parameters()}
    return {k: v.full_tensor() if isinstance(v, DTensor) else v for k, v in found.items()}


def wrap(case: Case, net: nn.Module) -> nn.Module:
    """Return the network, ready for training in the present process group."""
    if not dist.is_initialized():
        return net
    if case.sharded:
        fully_shard(net, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
        return net
    return DistributedDataParallel(net, forward_sync_buffers=case.broadcast_buffers)


def batch(case: Case, step: int, rank: int, world: int) -> tuple[Tensor, list[int], int]:
    """Return the frames of a rank, the lengths of its clips, and the frames of all ranks."""
    random = torch.Generator().manual_seed(step)
    left = len(LENGTHS) if step < ONE_LEFT else 1
    lengths = LENGTHS[-left:] if case.clips else (40,) * left
    streams = []
    for length in lengths:
        stream = torch.randn(length, *case.shape, generator=random, dtype=torch.float64).cumsum(0)
        if case.marks and length > 4:
            stream[2].flatten()[0] = MARK
        streams.append(stream.to(case.dtype))
    own = streams[rank::world]
    empty = torch.zeros(0, *([] if case.clips else [40]), *case.shape, dtype=case.dtype)
    x = empty if not own else torch.cat(own) if case.clips else torch.stack(own)
    return x, list(lengths[rank::world]), sum(lengths)


def mismatched_features(rank: int) -> None:
    ul.UL1d(2 + rank)(torch.randn(40, 2 + rank))


def mismatched_layers(rank: int) -> None:
    layers = [ul.UL1d(2), ul.UL1d(2)]
    for _ in range(2):
        for layer in layers[: 2 - rank]:
            layer(torch.randn(40, 2))


def mismatched_setting(rank: int, name: str, values: tuple[Any, Any]) -> None:
    ul.UL1d(2, **{name: values[rank]})(torch.randn(40, 2))


def running(rank: int) -> None:
    ul.UL1d(2, statistics="running")(torch.randn(40, 2))


def too_few(rank: int) -> None:
    ul.UL1d(2)(torch.randn(10, 2))


def none_left(rank: int) -> None:
    ul.UL1d(2, statistics="fresh")(torch.randn(0, 2))


def compiled(rank: int) -> None:
    torch.compile(ul.UL1d(2), backend="eager", fullgraph=True)(torch.randn(40, 2))


def alone(rank: int) -> None:
    """Layers that are not synchronised need no other process."""
    if rank == 0:
        ul.UL1d(2, synchronize=False)(torch.randn(40, 2))
        ul.Whiten(2, synchronize=False)(torch.randn(40, 2))


FAILURES: dict[str, Callable[[int], None]] = {
    "alone": alone,
    "running": running,
    "too few": too_few,
    "none left": none_left,
    "compiled": compiled,
    "weight": partial(mismatched_setting, name="weight", values=(1.0, 0.5)),
    "reduction": partial(mismatched_setting, name="reduction", values=("mean", "sum")),
    "statistics": partial(mismatched_setting, name="statistics", values=("auto", "fresh")),
    "features": mismatched_features,
    "layers": mismatched_layers,
}


def work(rank: int, world: int, store: str, jobs: list[tuple[str, Any]]) -> bytes:
    """Run jobs in a new process group; return their results."""
    results: list[Any] = []
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=60),
    )
    try:
        for name, given in jobs:
            if name in FAILURES:
                results.append(_failure(FAILURES[name], rank))
            else:
                results.append(train(CASES[name], rank, world, *given))
    finally:
        dist.destroy_process_group()
    file = io.BytesIO()
    torch.save(results, file)
    return file.getvalue()


def _failure(job: Callable[[int], None], rank: int) -> str:
    try:
        job(rank)
    except (RuntimeError, ValueError) as error:
        return str(error)
    return ""


def serve(rank: int, requests: Any, results: Any) -> None:
    """Run requests until there is None."""
    torch.set_num_threads(1)
    while (request := requests.get()) is not None:
        try:
            results.put((rank, work(rank, *request)))
        except BaseException as error:
            results.put((rank, f"{type(error).__name__}: {error}"))
            raise
