"""Dividing the clips of a training step between processes, such as those of `torchrun`.

Each process draws the same clips, passes its share of them through the network, and receives the
outputs for all of them. J and its gradient are then those of a single process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ullayers.nn.distributed import process_count


@dataclass(frozen=True)
class Share:
    """The clips of one process.

    Attributes:
        frames: Their frames in the batch of all clips.
        lengths: Their lengths.
        counts: Number of frames of each process.
    """

    frames: slice
    lengths: list[int]
    counts: list[int]

    def gather(self, outputs: Tensor) -> Tensor:
        """Return the outputs for the frames of all clips, given those for its own frames."""
        if len(self.counts) == 1:
            return outputs
        gathered: Tensor = _Gather.apply(outputs, self.counts)  # type: ignore[no-untyped-call]
        return gathered


def own_share(lengths: Sequence[int]) -> Share:
    """Return the clips of this process: consecutive ones, or all if there is one process.

    Args:
        lengths: Length of each clip.

    Example:
        >>> own_share([5, 7])
        Share(frames=slice(0, 12, None), lengths=[5, 7], counts=[12])
    """
    count = process_count()
    shares = [list(lengths[_part(len(lengths), i, count)]) for i in range(count)]
    counts = [sum(share) for share in shares]
    rank = dist.get_rank() if count > 1 else 0
    start = sum(counts[:rank])
    return Share(slice(start, start + counts[rank]), shares[rank], counts)


def _part(total: int, number: int, parts: int) -> slice:
    return slice(total * number // parts, total * (number + 1) // parts)


class _Gather(torch.autograd.Function):
    """Concatenates the tensors of all processes, which may differ in length.

    All processes compute the same J from the result. Gradients are averaged over processes, so each
    one multiplies its own part by their number.
    """

    @staticmethod
    def forward(ctx: Any, own: Tensor, counts: list[int]) -> Tensor:
        rank = dist.get_rank()
        ctx.part = slice(sum(counts[:rank]), sum(counts[: rank + 1]))
        padded = own.new_zeros(max(counts), *own.shape[1:])
        padded[: len(own)] = own
        parts = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(parts, padded)
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return process_count() * gradients[0][ctx.part], None


def average_gradients(net: nn.Module) -> None:
    """Replace the gradients of a network by their mean over all processes."""
    count = process_count()
    if count == 1:
        return
    weights = [weight for weight in net.parameters() if weight.requires_grad]
    flat = torch.cat(
        [(torch.zeros_like(w) if w.grad is None else w.grad).flatten() for w in weights]
    )
    dist.all_reduce(flat)
    flat /= count
    for weight, mean in zip(weights, flat.split([w.numel() for w in weights]), strict=True):
        weight.grad = mean.view_as(weight).clone()
