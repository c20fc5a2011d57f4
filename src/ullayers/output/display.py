"""Frames at display size, taken while the small frames of the network are read."""

from __future__ import annotations

from torch import Tensor

from ullayers.learn.footage import Spread
from ullayers.video.frames import Render
from ullayers.video.reader import Info, Reading

DISPLAY_SIZE = 480  # longer side of displayed frames, in pixels


def display_size(info: Info) -> tuple[int, int]:
    """Return the (height, width) of displayed frames; small ones are enlarged by an integer.

    >>> display_size(Info(640, 480, 25.0, None)), display_size(Info(100, 50, 25.0, None))
    ((360, 480), (200, 400))
    """
    height, width = Reading(longest=DISPLAY_SIZE).target(info.height, info.width)
    factor = max(1, DISPLAY_SIZE // max(height, width))
    return factor * height, factor * width


class SampleTap:
    """Keeps evenly spaced frames; pass it to a `Reading` as its `tap`.

    Args:
        size: (height, width) of the kept frames.
        count: Largest number of frames to keep.

    Example:
        >>> import torch
        >>> tap = SampleTap((2, 3), 2)
        >>> for value in range(6):
        ...     tap(lambda size: torch.full((3, *size), value))
        >>> sorted(tap.samples)
        [0, 4]
    """

    def __init__(self, size: tuple[int, int], count: int) -> None:
        self.size = size
        self._kept = Spread[Tensor](count)

    def __call__(self, render: Render) -> None:
        """Process the next frame, which is rendered only if it is kept."""
        self._kept.extend([render], lambda render: render(self.size))

    @property
    def samples(self) -> dict[int, Tensor]:
        """The kept frames, by their number among the frames read."""
        return dict(self._kept.items)
