"""A cache of decoded frames."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from av.video.frame import VideoFrame


class KeptFrames:
    """The latest decoded frames, up to a number of bytes."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.bytes = 0
        self.frames: OrderedDict[int, tuple[VideoFrame, int]] = OrderedDict()

    def __contains__(self, number: int) -> bool:
        return number in self.frames

    def get(self, number: int) -> VideoFrame | None:
        """Return a frame if it is still cached."""
        if number not in self.frames:
            return None
        self.frames.move_to_end(number)
        return self.frames[number][0]

    def add(self, number: int, frame: VideoFrame) -> None:
        """Add a frame; the oldest ones are dropped to make room."""
        if number in self.frames:
            self.bytes -= self.frames.pop(number)[1]
        size = sum(plane.buffer_size for plane in frame.planes)
        self.frames[number] = frame, size
        self.bytes += size
        while self.bytes > self.most and len(self.frames) > 1:
            self.bytes -= self.frames.popitem(last=False)[1][1]

    def clear(self) -> None:
        """Forget all frames."""
        self.frames.clear()
        self.bytes = 0
