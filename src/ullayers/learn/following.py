"""Decides whether a code is learned from a square around what moves, or from the whole frame."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace
from statistics import median

from ullayers.learn.footage import cut, natural_reading
from ullayers.video.follow import moving_share
from ullayers.video.reader import Reading, Source, VideoError

MAX_SHARE = 0.5  # of the frame: what covers more of it is not followed
SOURCES = 8  # sources that are looked at
FRAMES = 64  # frames of each that are looked at


def covers_little(sources: Sequence[Source], reading: Reading) -> bool:
    """Whether what moves covers less than half of the frame, in most of some sources.

    Sources that cannot be read are left out; if none can, the answer is no.

    Args:
        sources: What will be learned from.
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
