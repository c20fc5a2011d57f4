"""An overlay video of chosen frames, with corrections."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ullayers.errors import UserError
from ullayers.output.object_overlay import draw_objects
from ullayers.output.tracked_video import TrackedVideo
from ullayers.studio.editing import outlines_of
from ullayers.video.frame_access import FrameAccess
from ullayers.video.writer import VideoWriter

MOST_FRAMES = 9000  # of one video: five minutes at 30 frames per second
BLOCK = 32  # frames in memory
MAX_WIDTH = 960  # pixels


def write_overlay(
    path: Path, folder: Path, video: TrackedVideo, access: FrameAccess, first: int, last: int
) -> None:
    """Draw outlines, trails and numbers of corrected tracks onto frames.

    Args:
        path: The video to write.
        folder: The run.
        video: Corrected tracks of the sequence.
        access: Its frames.
        first: First frame.
        last: Last frame.

    Raises:
        UserError: There are too many frames, or none.
    """
    if not 0 <= last - first < MOST_FRAMES:
        raise UserError(f"an overlay has up to {MOST_FRAMES:,} frames; select a shorter range")
    width = min(MAX_WIDTH, video.width) // 2 * 2
    with VideoWriter(path, video.fps) as writer:
        for start in range(first, last + 1, BLOCK):
            numbers = np.arange(start, min(start + BLOCK, last + 1))
            frames = np.stack([access.frame(int(number), width) for number in numbers])
            even = frames[:, : frames.shape[1] // 2 * 2]
            found = outlines_of(folder, video.name, int(numbers[0]), int(numbers[-1]))
            labels = np.stack(
                [_labels(found.get(int(n), []), even.shape[1:3], video) for n in numbers]
            )
            drawn = draw_objects(even, labels, video.tracks, numbers, video.crossings)
            for frame in drawn:
                writer.write(frame)


def _labels(polygons: list[Any], size: tuple[int, int], video: TrackedVideo) -> NDArray[np.uint16]:
    """Return the number of the object of each pixel."""
    labels = np.zeros(size, np.uint16)
    scale = np.array([size[1] / video.width, size[0] / video.height])
    for number, points in polygons:
        corners = np.round(np.reshape(points, (-1, 2)) * scale).astype(np.int32)
        cv2.fillPoly(labels, [corners], number)
    return labels
