"""Frames at a size for people, taken while the network's small frames are read."""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor

from ullayers.learn.footage import Spread
from ullayers.video.frames import Render
from ullayers.video.reader import Info, Reading

DISPLAY_SIZE = 480  # longer side of displayed frames, in pixels


def display_size(info: Info) -> tuple[int, int]:
    """Return the (height, width) to show frames at; small ones are enlarged by a whole factor.

    >>> display_size(Info(640, 480, 25.0, None)), display_size(Info(100, 50, 25.0, None))
    ((360, 480), (200, 400))
    """
    height, width = Reading(longest=DISPLAY_SIZE).target(info.height, info.width)
    factor = max(1, DISPLAY_SIZE // max(height, width))
    return factor * height, factor * width


class DisplayTap:
    """Keeps frames for the overlay and for the report; pass it to a `Reading` as its `tap`.

    Args:
        size: (height, width) of the kept frames.
        overlay: Number of frames, from the first, to keep until they are drawn.
        samples: Number of evenly spaced frames to keep.

    Example:
        >>> tap = DisplayTap((2, 3), overlay=2, samples=2)
        >>> for value in range(6):
        ...     tap(lambda size: torch.full((3, *size), value))
        >>> tap.take(9).shape, sorted(tap.samples)
        (torch.Size([2, 3, 2, 3]), [0, 4])
    """

    def __init__(self, size: tuple[int, int], overlay: int, samples: int) -> None:
        self.size = size
        self._left = overlay
        self._waiting: deque[Tensor] = deque()
        self._samples = Spread[Tensor | None](samples)

    def __call__(self, render: Render) -> None:
        """See the next frame; it is rendered only if it is needed."""
        is_sample = self._samples.most > 0 and self._samples.count % self._samples.every == 0
        picture = render(self.size) if is_sample or self._left else None
        if self._left and picture is not None:
            self._waiting.append(picture)
            self._left -= 1
        if self._samples.most > 0:
            self._samples.extend([picture])

    def take(self, count: int) -> Tensor:
        """Remove and return up to `count` frames that wait to be drawn, in order."""
        taken = [self._waiting.popleft() for _ in range(min(count, len(self._waiting)))]
        return torch.stack(taken) if taken else torch.empty(0)

    @property
    def samples(self) -> dict[int, Tensor]:
        """The evenly spaced frames by their number among the frames read."""
        return {row: frame for row, frame in self._samples.items.items() if frame is not None}
