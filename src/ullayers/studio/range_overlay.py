"""An overlay video of chosen frames, with corrections."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ullayers.errors import Error
from ullayers.report.drawing import draw_objects
from ullayers.report.overlay import DISPLAY_SIZE
from ullayers.studio.editing import outlines_of
from ullayers.tracks.tracked_video import TrackedVideo
from ullayers.video.access import FrameAccess
from ullayers.video.files.writing import VideoWriter

MOST_OVERLAY_FRAMES = 9000  # five minutes at 30 frames per second
FRAMES_IN_MEMORY = 32
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
        Error: There are too many frames, or none.
    """
    if not 0 <= last - first < MOST_OVERLAY_FRAMES:
        raise Error(f"an overlay has up to {MOST_OVERLAY_FRAMES:,} frames; select a shorter range")
    own = access.frame(first).shape[:2]
    size = _shown_size(*own)
    with VideoWriter(path, video.fps) as writer:
        for start in range(first, last + 1, FRAMES_IN_MEMORY):
            numbers = np.arange(start, min(start + FRAMES_IN_MEMORY, last + 1))
            frames = np.stack([_shown(access.frame(int(n), size[1]), size) for n in numbers])
            found = outlines_of(folder, video.name, int(numbers[0]), int(numbers[-1]))
            labels = np.stack([_labels(found.get(int(n), []), own, size) for n in numbers])
            drawn = draw_objects(frames, labels, video.tracks, numbers, video.crossings)
            for frame in drawn:
                writer.write(frame)


def _shown_size(height: int, width: int) -> tuple[int, int]:
    """Return an even (height, width); small frames are enlarged as in overlay.mp4.

    >>> _shown_size(120, 160), _shown_size(1080, 1920), _shown_size(481, 641)
    ((360, 480), (540, 960), (480, 640))
    """
    scale = min(max(1, DISPLAY_SIZE // max(height, width)), MAX_WIDTH / width)
    return max(2, round(scale * height) // 2 * 2), max(2, round(scale * width) // 2 * 2)


def _shown(frame: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    resized = cv2.resize(frame, size[::-1], interpolation=cv2.INTER_CUBIC)
    return resized.astype(np.uint8, copy=False)


def _labels(polygons: list[Any], own: tuple[int, ...], size: tuple[int, int]) -> NDArray[np.uint16]:
    """Return the number of the object of each pixel.

    Args:
        polygons: Numbers of objects and their points in pixels of the video.
        own: (height, width) of the video.
        size: (height, width) of the result.
    """
    labels = np.zeros(size, np.uint16)
    scale = np.array([size[1] / own[1], size[0] / own[0]])
    for number, points in polygons:
        corners = np.round(np.reshape(points, (-1, 2)) * scale).astype(np.int32)
        cv2.fillPoly(labels, [corners], number)
    return labels
