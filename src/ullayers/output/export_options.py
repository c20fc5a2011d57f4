"""What an export writes, and what must be the same for it to be resumed."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

from ullayers.learn.run_config import ReadingEntry
from ullayers.learn.runs import Run
from ullayers.learn.several import Several
from ullayers.learn.teaching import Teaching


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """What to export.

    Attributes:
        stride: Use every `stride`-th frame.
        max_frames: Largest number of frames to use from each source.
        masks: Write every mask as a PNG of the frame's size to masks/SEQUENCE/FRAME.png.
        soft: Write masks in grey, with 128 at the outline, instead of black and white.
        overlay: Number of frames in overlay.mp4, shared among the sources; None for no video.
        samples: Keep some frames of some sources for the report.
        skip_bad: Leave out sources that cannot be read.
        resume: Keep the rows of a partial table.
        keep_scenes: Store the scenes of still cameras in the run; see `answers`.
        objects: Number of objects to track; None to find it.
        teaching: Positions given by the user; None for none.
    """

    stride: int = 1
    max_frames: int | None = None
    masks: bool = False
    soft: bool = False
    overlay: int | None = None
    samples: bool = False
    skip_bad: bool = False
    resume: bool = False
    keep_scenes: bool = False
    objects: int | None = 1
    teaching: Teaching | None = None


def follows_several(run: Run, options: ExportOptions) -> bool:
    """Return whether all objects are tracked, not only the main one."""
    return run.config.task == "locate" and options.objects != 1


def notes_of(several: Several | None, options: ExportOptions) -> list[str]:
    """Return notes for the user about the objects of a source, one sentence each."""
    if several is None:
        return []
    is_hard = options.soft and several.rows is not None
    return [*several.notes, *["Masks of several objects have no soft edges."] * is_hard]


def request_of(run: Run, options: ExportOptions) -> list[str | int | None]:
    """Return the request of an export; results are resumed only if it is the same."""
    request: list[str | int | None] = [
        os.path.abspath(run.folder),
        options.stride,
        options.max_frames,
    ]
    if follows_several(run, options):
        request.append(f"objects {options.objects}")
    part = ReadingEntry.of(run.reading, None, None)
    if part.start or part.end is not None or part.roi is not None:
        request.append(json.dumps([part.start, part.end, part.roi]))
    return request
