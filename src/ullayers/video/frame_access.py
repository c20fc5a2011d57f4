"""Frames of a source by their number."""

from __future__ import annotations

import threading
from collections.abc import Generator

import cv2
import numpy as np
from numpy.typing import NDArray

from ullayers.video.reader import Clip, Reading, Source, VideoError

QUALITY = 85


class FrameAccess:
    """Frames of a video or a folder of images by their number, as a full decode counts them.

    Args:
        source: The source.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self._clips: Generator[Clip, None, None] | None = None
        self._latest: tuple[int, NDArray[np.uint8]] = (-1, np.zeros((0, 0, 3), np.uint8))
        self._lock = threading.Lock()

    def frame(self, number: int, width: int | None = None) -> NDArray[np.uint8]:
        """Return a frame (height, width, 3) in RGB.

        Args:
            number: Number of the frame.
            width: Width to resize it to; None for its own.

        Raises:
            VideoError: There is no such frame.
        """
        with self._lock:
            frame = self._read(number)
        if width is None or width == frame.shape[1]:
            return frame
        height = max(1, round(width * frame.shape[0] / frame.shape[1]))
        resized = cv2.resize(frame, (width, height), interpolation=cv2.INTER_AREA)
        return resized.astype(np.uint8, copy=False)

    def jpeg(self, number: int, width: int | None = None, quality: int = QUALITY) -> bytes:
        """Return a frame as a JPEG file.

        Raises:
            VideoError: There is no such frame.
        """
        frame = cv2.cvtColor(self.frame(number, width), cv2.COLOR_RGB2BGR)
        return cv2.imencode(".jpg", frame, [cv2.IMWRITE_JPEG_QUALITY, quality])[1].tobytes()

    def _read(self, number: int) -> NDArray[np.uint8]:
        if self._latest[0] == number:
            return self._latest[1]
        if self._clips is None or number <= self._latest[0]:
            self.close()
            self._clips = self.source.clips(1, Reading(), ahead=8)
        for clip in self._clips:
            self._latest = int(clip.index[0]), clip.frames[0].permute(1, 2, 0).numpy()
            if self._latest[0] == number:
                return self._latest[1]
        self.close()
        raise VideoError(f"{self.source.name}: there is no frame {number}")

    def close(self) -> None:
        """Close the source."""
        if self._clips is not None:
            self._clips.close()
        self._clips = None
        self._latest = (-1, self._latest[1])
