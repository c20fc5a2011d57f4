"""Choice between a square around the moving object and the whole frame, for codes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace
from statistics import median

from ullayers.learn.footage import cut, natural_reading
from ullayers.video.follow import moving_share
from ullayers.video.reader import Reading, Source, VideoError

MAX_SHARE = 0.5  # of the frame: larger objects are not followed
SOURCES = 8  # largest number of sources to check
FRAMES = 64  # largest number of frames to check in each source


def covers_little(sources: Sequence[Source], reading: Reading) -> bool:
    """Return whether the moving object covers less than half of the frame in most sources.

    Sources that cannot be read are left out; if none can be read, the result is False.

    Args:
        sources: Sources to train on.
        reading: How to read them, without `follow`.

    Example:
        >>> import tempfile
        >>> from ullayers.video.reader import find_sources
        >>> from ullayers.video.scene import write_scene
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     video = write_scene(folder, frames=60)  # of a beetle on a table
        ...     covers_little(find_sources([str(video)]), Reading(longest=64))
        True
    """
    shares = []
    for source in sources[:: -(-len(sources) // SOURCES)]:
        with suppress(VideoError):
            own = natural_reading(reading, source.probe()) if reading.stride == 1 else reading
            short = replace(own, max_frames=min(FRAMES, own.max_frames or FRAMES))
            with closing(cut(source, short)) as clips:
                shares += [moving_share(clip.frames) for clip in clips]
    return bool(shares) and median(shares) < MAX_SHARE
