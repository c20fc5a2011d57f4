"""The overlay of codes: its panel shows all of them, so it needs a second pass."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from ullayers.learn.results import Answer
from ullayers.learn.runs import Run
from ullayers.output.display import display_size
from ullayers.output.drawing import Outline
from ullayers.output.exported import Exported
from ullayers.output.overlay import Overlay
from ullayers.video.reader import Info, Reading, Source

DRAWN_AT_ONCE = 64  # frames in memory


def draw_codes(
    path: Path,
    run: Run,
    sources: Sequence[Source],
    done: Exported,
    fps: float,
    stride: int,
    share: int,
) -> None:
    """Write the overlay of codes.

    Args:
        path: The video.
        run: The run that was applied.
        sources: What it was applied to.
        done: Its results.
        fps: Frames per second of the overlay.
        stride: Every how many frames were used.
        share: Number of frames of each source.
    """
    results = zip(done.answers, done.infos, strict=True)
    found = {answer.sequence: (answer.rows(slice(0, share)), info) for answer, info in results}
    shown = [source for source in sources if source.name in found]
    cloud = np.concatenate([found[source.name][0].values for source in shown])
    with Overlay(path, fps, cloud) as video:
        for source in shown:
            answer, info = found[source.name]
            reading = Reading(
                size=display_size(info),
                start=run.reading.start,
                end=run.reading.end,
                stride=stride,
                max_frames=share,
            )
            _draw_code(video, source, answer, reading, region_outline(run, source, info))


def region_outline(run: Run, source: Source, info: Info) -> Outline | None:
    """Make the outline of the region of interest of a run; None without a region."""
    cut = run.reading.cut(source.path, info.height, info.width)
    return None if cut is None else Outline(cut, display_size(info))


def _draw_code(
    video: Overlay, source: Source, answer: Answer, reading: Reading, outline: Outline | None
) -> None:
    start = 0
    with closing(source.clips(DRAWN_AT_ONCE, reading)) as clips:
        for clip in clips:
            part = answer.rows(slice(start, start + len(clip.index)))
            if outline is not None:
                outline.paint(clip.frames)
            video.add(clip.frames[: len(part.index)], part)
            start += len(part.index)
            if start == len(answer.index):  # what follows may be broken
                break
