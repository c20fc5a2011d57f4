"""Single frames of a long video, read by seeking instead of decoding everything before them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

from torch import Tensor

from ullayers.video.decoding import frame_to_tensor
from ullayers.video.opening import OpenVideo, load_av, open_video
from ullayers.video.reader import Source

if TYPE_CHECKING:
    from av.video.frame import VideoFrame


def frames_at(
    source: Source, seconds: Sequence[float], size: tuple[int, int], most: int
) -> list[Tensor] | None:
    """Return the frames at these times, or None if the source has to be read in order instead.

    Only frames with exactly these times are returned. Files with few key frames, without a frame
    at one of the times or with damage have to be read in order.

    Args:
        source: A sequence.
        seconds: Times as in the clips of the source.
        size: (height, width) to resize the frames to.
        most: Maximum number of frames to decode for each returned frame.

    Example:
        >>> import tempfile, numpy as np
        >>> from ullayers.video.reader import find_sources
        >>> from ullayers.video.writer import VideoWriter
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with VideoWriter(f"{folder}/a.mp4", fps=10) as video:
        ...         for t in range(20):
        ...             video.write(np.full((48, 64, 3), 10 * t, np.uint8))
        ...     [source] = find_sources([folder])
        ...     [frame] = frames_at(source, [1.5], (24, 32), most=20)
        >>> tuple(frame.shape), bool(abs(float(frame.float().mean()) - 150) < 2)
        ((3, 24, 32), True)
    """
    if source.kind != "video":
        return None
    reformatter = load_av().video.reformatter.VideoReformatter()
    found: list[Tensor] = []
    with open_video(source.path) as video:
        for time in seconds:
            frame = _frame_at(video, time, most)
            if frame is None:
                return None
            found.append(frame_to_tensor(source.path, reformatter, frame, size, False))
    return found


def _frame_at(video: OpenVideo, seconds: float, most: int) -> VideoFrame | None:
    stream = video.stream
    wanted = round(seconds / stream.time_base) if stream.time_base else 0
    try:
        video.container.seek(wanted, stream=stream)
        for frame in islice(video.container.decode(stream), most):
            if frame.is_corrupt or frame.pts is None or frame.pts > wanted:
                return None
            if frame.pts == wanted:
                return frame
    except load_av().FFmpegError:
        pass
    return None
