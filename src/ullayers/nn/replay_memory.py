"""A memory of recent frames, for networks that get their frames one or a few at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn


class ReplayMemory(nn.Module):
    """The latest frames of a stream, to draw clips from.

    One frame has no covariance, and averages over frames that earlier weights have seen do not
    describe the outputs of the present ones. So keep the latest frames, and let every step learn
    from clips drawn from all of them, with fresh statistics: W and B are then those of the present
    network, and the gradient is exact for what the step has seen. A step with a batch of frames
    every few frames costs less than a step for every frame, and learns more (`docs/online.md`).

    The buffers are the state: save and load them with `state_dict` and `load_state_dict`, and
    learning goes on exactly. What `sample` draws depends on `seed` and on the number of frames
    seen, on nothing else.

    Args:
        shape: of a frame.
        frames: how many are kept; then the oldest make room.
        clips: in a sample.
        length: frames of a clip.
        seed: of the draws.

    Shape:
        `add` takes (time, *shape) and `sample` gives (clips * length, *shape).

    Example:
        >>> import torch, ullayers as ul
        >>> _ = torch.manual_seed(0)
        >>> angle = torch.linspace(0, 60, 600)
        >>> x = torch.stack([angle.sin(), angle.cos()], 1) @ torch.randn(2, 5)
        >>> x = x + 0.3 * torch.randn(600, 5)
        >>> net = torch.nn.Sequential(
        ...     torch.nn.Linear(5, 2), ul.UL1d(2, statistics="fresh", long_term="shared")
        ... )
        >>> optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
        >>> memory = ul.ReplayMemory((5,), frames=400)
        >>> for count, frame in enumerate(x, 1):  # they come one at a time
        ...     memory.add(frame[None])
        ...     if len(memory) >= 128 and count % 4 == 0:
        ...         optimizer.zero_grad()
        ...         with ul.sequences(net, memory.lengths):
        ...             ul.backward(net(memory.sample()))
        ...         optimizer.step()
        >>> len(memory)
        400
    """

    frames: Tensor
    seen: Tensor

    def __init__(
        self,
        shape: Sequence[int],
        frames: int = 1024,
        *,
        clips: int = 16,
        length: int = 8,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if clips < 1 or length < 2:
            raise ValueError(
                f"expected at least 1 clip of at least 2 frames, got {clips} of {length}"
            )
        if frames < length:
            raise ValueError(f"expected room for a clip of {length} frames, got {frames} frames")
        self.clips, self.length, self.seed = clips, length, seed
        self.register_buffer("frames", torch.zeros(frames, *shape))
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))

    @property
    def lengths(self) -> list[int]:
        """Of the clips in a sample, for `sequences`."""
        return [self.length] * self.clips

    def __len__(self) -> int:
        return min(int(self.seen), len(self.frames))

    def extra_repr(self) -> str:
        """What `print` shows."""
        _, *shape = self.frames.shape
        return f"{tuple(shape)}, {len(self.frames)}, clips={self.clips}, length={self.length}"

    @torch.no_grad()
    def add(self, frames: Tensor) -> None:
        """Remember frames (time, *shape) that follow those of the call before.

        Frames with a NaN or an infinite value are left out, as UL layers leave them out.
        """
        _, *shape = self.frames.shape
        if list(frames.shape[1:]) != shape or frames.ndim == 0:
            expected = ", ".join(map(str, ["time", *shape]))
            raise ValueError(f"expected frames ({expected}), got {tuple(frames.shape)}")
        frames = frames.to(self.frames)  # in whose precision a large value may be infinite
        usable = frames[frames.isfinite().flatten(1).all(1)]
        count = len(usable)
        places = torch.arange(count, device=self.frames.device) + self.seen
        kept = slice(max(0, count - len(self.frames)), count)  # the last of very many
        self.frames[places[kept] % len(self.frames)] = usable[kept]
        self.seen += count

    @torch.no_grad()
    def sample(self) -> Tensor:
        """Clips from anywhere in the memory, one after the other: (clips * length, *shape)."""
        held = len(self)
        if held < self.length:
            raise ValueError(f"expected at least {self.length} frames to draw from, got {held}")
        seen = int(self.seen)
        random = np.random.default_rng([self.seed, seen])
        first = random.integers(seen - held, seen - self.length, (self.clips, 1), endpoint=True)
        places = torch.from_numpy((first + np.arange(self.length)) % len(self.frames))
        return self.frames[places.flatten().to(self.frames.device)]
