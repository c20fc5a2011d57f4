"""Statistics over several processes of `torch.distributed`."""

from __future__ import annotations

import hashlib
import weakref
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ullayers.kernels.moments import Request, precision_of

# The first collective of a call has the same size for all layers, so that processes that call
# different layers are detected instead of mixing up their sums.
FIRST_NUMBERS = 4096
DESCRIPTION_BYTES = 512


class Share(NamedTuple):
    """Contribution of a process to a call."""

    longest: int = 0  # frames of its longest clip
    clips: int = 0
    moving: int = 0  # frames of clips of two frames or more
    frames: int = 0  # times positions
    values: int = 0


class _Order:
    """Numbers the modules of a process group by their first call."""

    group: weakref.ref[Any] | None = None
    modules = 0


class Member:
    """A module's number in its process group, the same in all processes."""

    def __init__(self) -> None:
        self._group: weakref.ref[Any] | None = None
        self._number = 0

    def number(self) -> int:
        """Return the number, which is set in the first call with the current process group."""
        group = dist.group.WORLD
        if _Order.group is None or _Order.group() is not group:
            _Order.group, _Order.modules = weakref.ref(group), 0
        if self._group is None or self._group() is not group:
            _Order.modules += 1
            self._group, self._number = weakref.ref(group), _Order.modules
        return self._number

    def __reduce__(self) -> tuple[type[Member], tuple[()]]:
        return Member, ()  # copies are separate modules


def process_count() -> int:
    """Return the number of processes of the default process group, 1 without one.

    >>> process_count()
    1
    """
    if not dist.is_available() or not dist.is_initialized():
        return 1
    return dist.get_world_size()


class Pool:
    """Sums over all processes, for one call of a module.

    The first sum also carries a description of the call, which must be the same in all processes,
    and the share of each process.

    Args:
        member: The module.
        description: Its kind, settings and input, except for the number of frames.
        share: Contribution of this process.
        by_steps: Whether the gradient is multiplied by the number of steps.
    """

    def __init__(
        self, member: Member, description: str, share: Share, by_steps: bool = False
    ) -> None:
        self._description = f"module {member.number()} is {description}"
        self._share, self._by_steps = share, by_steps
        self._shares: list[Share] = []
        self.processes, self.rank = process_count(), dist.get_rank()

    def add_up(self, *tensors: Tensor) -> list[Tensor]:
        """Return float64 sums of the tensors over all processes."""
        flat = torch.cat([tensor.reshape(-1).double() for tensor in tensors])
        flat = self._sum(flat) if self._shares else self._first_sum(flat)
        parts = flat.split([tensor.numel() for tensor in tensors])
        return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]

    def longest(self) -> int:
        """Return the frames of the longest clip of all processes."""
        return max(share.longest for share in self._shares)

    def most_clips(self) -> int:
        """Return the largest number of clips of a process."""
        return max(share.clips for share in self._shares)

    def moving(self) -> int:
        """Return the frames of clips of two frames or more, of all processes."""
        return sum(share.moving for share in self._shares)

    def whole(self, request: Request) -> Request:
        """Return the settings of the call of all processes together."""
        longest = self.longest()
        scale = request.scale * (longest if self._by_steps else 1)
        return replace(request, longest=longest, scale=scale)

    def precision(self, dtype: torch.dtype, features: int) -> torch.dtype:
        """Return the working precision of the call of all processes together."""
        frames = sum(share.frames for share in self._shares)
        return precision_of(dtype, sum(share.values for share in self._shares), frames, features)

    def _first_sum(self, flat: Tensor) -> Tensor:
        digest = hashlib.blake2b(self._description.encode(), digest_size=6).digest()
        own = [float(int.from_bytes(digest)), *map(float, self._share)]
        header = flat.new_zeros(self.processes, len(own))
        header[self.rank] = flat.new_tensor(own)
        size, begin = header.numel() + FIRST_NUMBERS, header.numel()
        message = torch.cat([header.flatten(), flat])
        missing = max(0, size - len(message))
        first = self._sum(torch.nn.functional.pad(message[:size], (0, missing)))
        rows = first[:begin].view_as(header).tolist()
        if len({row[0] for row in rows}) > 1:
            self._raise_mismatch(flat.device)
        self._shares = [Share(*map(int, row[1:])) for row in rows]
        found = first[begin : begin + len(flat)]
        rest = flat[len(found) :]
        return found if len(rest) == 0 else torch.cat([found, self._sum(rest)])

    def _sum(self, numbers: Tensor) -> Tensor:
        try:
            dist.all_reduce(numbers)
        except RuntimeError as error:
            raise RuntimeError(
                f"rank {self.rank} could not synchronise its statistics ({error}): "
                f"{self._description}. All processes have to call the same UL layers equally "
                "often; those without frames pass an empty input"
            ) from error
        return numbers

    def _raise_mismatch(self, device: torch.device) -> None:
        """Raise a RuntimeError that names a rank whose call differs from that of rank 0."""
        text = self._description.encode()[:DESCRIPTION_BYTES].ljust(DESCRIPTION_BYTES)
        own = torch.frombuffer(bytearray(text), dtype=torch.uint8).to(device)
        gathered = [torch.empty_like(own) for _ in range(self.processes)]
        dist.all_gather(gathered, own)
        texts = [bytes(each.tolist()).decode(errors="ignore").rstrip() for each in gathered]
        rank = next(rank for rank, text in enumerate(texts) if text != texts[0])
        raise RuntimeError(
            f"expected the same call of a UL layer in all processes, but on rank 0 {texts[0]}, "
            f"and on rank {rank} {texts[rank]}"
        )
