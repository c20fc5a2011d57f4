"""Size and region of the frames that a run learns from."""

from __future__ import annotations

from collections.abc import Sequence

from ullayers.learn.run_config import check_size
from ullayers.video.reader import Info, Reading, Source, VideoError
from ullayers.video.region import Region


def check_region(
    roi: Region | None, sources: Sequence[Source], infos: Sequence[Info], *, skip_bad: bool
) -> None:
    """Refuse a region of interest that does not fit into the frames of a source.

    Args:
        roi: The region; None for whole frames.
        sources: Sources to read.
        infos: Their headers.
        skip_bad: Check the first source only; others are left out when they are read.

    Raises:
        VideoError: The region does not fit.
    """
    reading = Reading(roi=roi)
    for source, info in list(zip(sources, infos, strict=True))[: 1 if skip_bad else None]:
        try:
            reading.cut(source.path, info.height, info.width)
        except VideoError as error:
            raise error.with_skip_hint(len(sources)) from None


def small_size(
    size: int | tuple[int, int], info: Info, roi: Region | None = None
) -> tuple[int, int]:
    """Return the (height, width) of training frames.

    Args:
        size: The longer side, or both.
        info: Header of the first source.
        roi: Part of the frames that is used; None for all of them.

    Raises:
        RunError: The size is too large.
    """
    reading = Reading(longest=size, roi=roi) if isinstance(size, int) else Reading(size=size)
    shape = reading.target(info.height, info.width)
    check_size(shape)
    return shape
