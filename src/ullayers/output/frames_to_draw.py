"""Frames of an overlay, read again once their results are known."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing

from torch import Tensor

from ullayers.learn.runs import Run
from ullayers.output.display import display_size
from ullayers.output.drawing import Outline
from ullayers.video.reader import Reading, Source

DRAWN_AT_ONCE = 64  # frames in memory


def frames_to_draw(
    run: Run, source: Source, stride: int, most: int
) -> Generator[Tensor, None, None]:
    """Yield (3, height, width) uint8 frames with the outline of the region of interest.

    Args:
        run: The applied run.
        source: Source it was applied to.
        stride: Stride of the frames used.
        most: Largest number of frames.
    """
    info = source.probe()
    size = display_size(info)
    cut = run.reading.cut(source.path, info.height, info.width)
    outline = None if cut is None else Outline(cut, size)
    start, end = run.reading.start, run.reading.end
    reading = Reading(
        size=size, start=start, end=end, stride=stride, max_frames=most, interleaved=True
    )
    with closing(source.clips(DRAWN_AT_ONCE, reading)) as clips:
        for clip in clips:
            if outline is not None:
                outline.paint(clip.frames)
            yield from clip.frames
