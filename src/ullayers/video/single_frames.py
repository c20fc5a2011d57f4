"""Single frames out of a long video, without decoding all that comes before them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from torch import Tensor

from ullayers.video.frames import load_av, open_video, to_picture
from ullayers.video.reader import Source


def frames_at(
    source: Source, seconds: Sequence[float], size: tuple[int, int], most: int
) -> list[Tensor] | None:
    """The frames at these times, or None where they cannot be had, and must be read in order.

    Only the frame with exactly that time will do. A file with few key frames, none near enough, or
    damage somewhere is for those who read it from the start.

    Args:
        source: a sequence.
        seconds: times as `Source.clips` gives them.
        size: (height, width) to bring the frames to.
        most: frames to decode for one that is wanted.

    Example:
        >>> import tempfile, numpy as np
        >>> from ullayers.video.reader import VideoWriter, find_sources
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
    av = load_av()
    reformatter = av.video.reformatter.VideoReformatter()
    found: list[Tensor] = []
    with open_video(source.path) as (container, stream):
        for when in seconds:
            wanted = round(when / stream.time_base) if stream.time_base else 0
            try:
                container.seek(wanted, stream=stream)
                for frame in islice(container.decode(stream), most):
                    if frame.is_corrupt or frame.pts is None or frame.pts > wanted:
                        return None
                    if frame.pts == wanted:
                        found.append(to_picture(source.path, reformatter, frame, size, False))
                        break
                else:
                    return None
            except av.FFmpegError:
                return None
    return found
