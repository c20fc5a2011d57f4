"""A buffer of recent frames, for networks that receive one or a few frames at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from ullayers.nn.statistics import LayerLock


class ReplayMemory(nn.Module):
    """Store the latest frames of a stream and sample clips from them.

    A single frame has no covariance, and averages over outputs of past weights do not describe the
    current network. With this memory, each step learns from clips sampled from recent frames, with
    fresh statistics: W and B are those of the current network, and the gradient is exact for the
    sampled clips. One step per few frames, with a batch of clips, is cheaper than one step per
    frame and learns more (`docs/online.md`).

    The buffers are the whole state: after `state_dict` and `load_state_dict`, learning continues
    exactly. Samples depend only on `seed` and on the number of frames seen.

    Args:
        shape: Shape of a frame.
        frames: Number of frames to keep; older frames are dropped.
        clips: Number of clips per sample.
        length: Number of frames per clip.
        seed: Seed for sampling.

    Shape:
        `add` takes (time, *shape); `sample` returns (clips * length, *shape).

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
        >>> for count, frame in enumerate(x, 1):  # frames arrive one at a time
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
        for name, value in (("frames", frames), ("clips", clips), ("length", length)):
            if not isinstance(value, int):
                raise TypeError(f"expected {name} to be an integer, got {value!r}")
        if clips < 1 or length < 2:
            raise ValueError(
                f"expected at least 1 clip of at least 2 frames, got {clips} of {length}"
            )
        if frames < length:
            raise ValueError(f"expected room for a clip of {length} frames, got {frames} frames")
        if isinstance(shape, (int, str)) or not all(isinstance(n, int) and n > 0 for n in shape):
            raise ValueError(f"expected the shape of a frame, such as (3, 48, 64), got {shape!r}")
        self.clips = clips
        self.length = length
        self.seed = seed
        self._lock = LayerLock()
        self.register_buffer("frames", torch.zeros(frames, *shape))
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))

    @property
    def lengths(self) -> list[int]:
        """Lengths of the clips in a sample, for `sequences`."""
        return [self.length] * self.clips

    def __len__(self) -> int:
        return min(int(self.seen), len(self.frames))

    def extra_repr(self) -> str:
        """Return the settings, for print(net)."""
        _, *shape = self.frames.shape
        return f"{tuple(shape)}, {len(self.frames)}, clips={self.clips}, length={self.length}"

    @torch.no_grad()
    def add(self, frames: Tensor) -> None:
        """Add frames (time, *shape) that follow those of the previous call.

        Frames with a NaN or an infinite value are skipped, as in UL layers.
        """
        if not isinstance(frames, Tensor) or frames.is_complex():
            found = frames.dtype if isinstance(frames, Tensor) else type(frames).__name__
            raise ValueError(f"expected a tensor of real numbers, got {found}")
        _, *shape = self.frames.shape
        if list(frames.shape[1:]) != shape or frames.ndim == 0:
            expected = ", ".join(map(str, ["time", *shape]))
            raise ValueError(f"expected frames ({expected}), got {tuple(frames.shape)}")
        frames = frames.to(self.frames)  # before the check: large values may become infinite
        usable = frames[frames.isfinite().flatten(1).all(1)]
        with self._lock.held():
            self._append(usable)

    def _append(self, usable: Tensor) -> None:
        count = len(usable)
        indices = torch.arange(count, device=self.frames.device) + self.seen
        kept = slice(max(0, count - len(self.frames)), count)  # if there are more than fit
        self.frames[indices[kept] % len(self.frames)] = usable[kept]
        self.seen += count

    @torch.no_grad()
    def sample(self) -> Tensor:
        """Return random clips from the memory, concatenated: (clips * length, *shape)."""
        with self._lock.held():
            return self._sample()

    def _sample(self) -> Tensor:
        held = len(self)
        if held < self.length:
            raise ValueError(f"expected at least {self.length} frames in the memory, got {held}")
        seen = int(self.seen)
        random = np.random.default_rng([self.seed, seen])
        first = random.integers(seen - held, seen - self.length, (self.clips, 1), endpoint=True)
        indices = torch.from_numpy((first + np.arange(self.length)) % len(self.frames))
        return self.frames[indices.flatten().to(self.frames.device)]
