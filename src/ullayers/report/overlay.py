"""The overlay video, and frames at display size for it and for the report."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Generator, Sequence
from types import TracebackType
from typing import IO, Self

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ullayers.learning.footage import Spread
from ullayers.learning.survey import to_pixels
from ullayers.locate.tracking.settle import in_whole_frame
from ullayers.report.drawing import (
    TRAIL_FRAMES,
    AnyFloats,
    Pixels,
    draw_code,
    draw_crops,
    draw_objects,
    draw_track,
)
from ullayers.tracks.reading import Crossing, Track
from ullayers.tracks.table import TRACK, Answer
from ullayers.video.clips import Render
from ullayers.video.files.writing import VideoWriter
from ullayers.video.sources import Info, Reading

DISPLAY_SIZE = 480  # longer side of displayed frames, in pixels
SAMPLING = cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444  # all colours
JPEG = cv2.IMWRITE_JPEG_QUALITY, 95, *SAMPLING


def display_size(info: Info) -> tuple[int, int]:
    """Return the (height, width) of displayed frames; small ones are enlarged by an integer.

    >>> display_size(Info(640, 480, 25.0, None)), display_size(Info(100, 50, 25.0, None))
    ((360, 480), (200, 400))
    """
    height, width = Reading(longest=DISPLAY_SIZE).target(info.height, info.width)
    factor = max(1, DISPLAY_SIZE // max(height, width))
    return factor * height, factor * width


class SampleTap:
    """Keeps evenly spaced frames; pass it to a `Reading` as its `tap`.

    Args:
        size: (height, width) of the kept frames.
        count: Largest number of frames to keep.

    Example:
        >>> import torch
        >>> tap = SampleTap((2, 3), 2)
        >>> for value in range(6):
        ...     tap(lambda size: torch.full((3, *size), value))
        >>> sorted(tap.samples)
        [0, 4]
    """

    def __init__(self, size: tuple[int, int], count: int) -> None:
        self.size = size
        self._kept = Spread[Tensor](count)

    def __call__(self, render: Render) -> None:
        """Process the next frame, which is rendered only if it is kept."""
        self._kept.extend([render], lambda render: render(self.size))

    @property
    def samples(self) -> dict[int, Tensor]:
        """The kept frames, by their number among the frames read."""
        return dict(self._kept.items)


class PictureStore:
    """Keeps frames of sources in a temporary file, as JPEG, until they are drawn.

    A frame is decoded once for its results and its picture. What is drawn onto it, which may depend
    on the last frame of the source, is drawn later.

    Example:
        >>> import torch
        >>> with PictureStore() as store:
        ...     tap = store.tap("a", (8, 12), 2)
        ...     for value in (50, 100, 150):
        ...         tap(lambda size: torch.full((3, *size), value, dtype=torch.uint8))
        ...     [int(frame.float().mean()) for frame in store.read("a")]
        [50, 100]
    """

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile()
        self._places: dict[str, list[tuple[int, int]]] = {}  # start and length of each picture

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def tap(self, name: str, size: tuple[int, int], count: int) -> Callable[[Render], None]:
        """Return a `tap` for a `Reading` that keeps the first frames of a source.

        Args:
            name: Name of the source.
            size: (height, width) of the kept frames.
            count: Number of frames to keep.
        """
        places = self._places[name] = []

        def keep(render: Render) -> None:
            if len(places) < count:
                places.append((self._file.tell(), self._file.write(_to_jpeg(render(size)))))

        return keep

    def has(self, name: str) -> bool:
        """Return whether frames of a source were kept."""
        return bool(self._places.get(name))

    def read(self, name: str) -> Generator[Tensor, None, None]:
        """Yield the kept frames of a source, (3, height, width) uint8."""
        for start, length in self._places.pop(name):
            self._file.seek(start)
            yield _from_jpeg(self._file.read(length))
        self._file.seek(0, os.SEEK_END)


def as_kept(frame: Tensor) -> Tensor:
    """Return a frame as a `PictureStore` would, so that a resumed overlay is the same."""
    return _from_jpeg(_to_jpeg(frame))


def _to_jpeg(frame: Tensor) -> bytes:
    pixels = frame.expand(3, -1, -1)[[2, 1, 0]].permute(1, 2, 0).contiguous().numpy()
    return cv2.imencode(".jpg", pixels, JPEG)[1].tobytes()


def _from_jpeg(content: bytes) -> Tensor:
    pixels = np.asarray(cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR))
    return torch.from_numpy(np.ascontiguousarray(pixels[..., ::-1])).permute(2, 0, 1)


class Overlay:
    """Writes an mp4 of frames with results; the file appears when it is complete.

    Frames that differ in size from the first are resized to fit into it, with black borders.

    Args:
        path: The file to write.
        fps: Frames per second.
        cloud: (n, d) all codes in the order in which they are added; None for tracks.

    Example:
        >>> import tempfile
        >>> frames, found = torch.zeros(5, 3, 48, 64, dtype=torch.uint8), np.full((5, 3), 0.5)
        >>> answer = Answer("a", np.arange(5), np.arange(5) / 25, TRACK, found)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with Overlay(f"{folder}/overlay.mp4", fps=25) as overlay:
        ...         overlay.add(frames, answer)
        ...     os.listdir(folder)
        ['overlay.mp4']
    """

    def __init__(
        self, path: str | os.PathLike[str], fps: float, cloud: AnyFloats | None = None
    ) -> None:
        self._video = VideoWriter(path, fps)
        self._cloud = cloud
        self._size: tuple[int, int] | None = None
        self._sequence: str | None = None
        self._trail: AnyFloats | None = None
        self._count = 0

    def __enter__(self) -> Overlay:
        self._video.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._video.__exit__(kind, error, trace)

    def add(self, frames: Tensor, answer: Answer) -> None:
        """Draw and write the next frames of a sequence; see `draw`."""
        self.write(self.draw(frames, answer))

    def write(self, pictures: Pixels) -> None:
        """Write pictures (time, height, width, 3) to the video."""
        for picture in pictures:
            self._video.write(picture)

    def draw(self, frames: Tensor, answer: Answer) -> Pixels:
        """Draw the next frames of a sequence, to be written next.

        Args:
            frames: (time, 3 or 1, height, width) uint8.
            answer: Results for these frames.
        """
        if frames.ndim != 4 or frames.shape[1] not in (1, 3) or frames.dtype != torch.uint8:
            raise ValueError(
                "expected uint8 frames (time, 3 or 1, height, width), got "
                f"{frames.dtype} {tuple(frames.shape)}"
            )
        if answer.sequence != self._sequence:
            self._sequence = answer.sequence
            self._trail = None
        if self._size is None:
            self._size = frames.shape[2], frames.shape[3]
        pictures = to_pixels(_fit(frames.cpu(), self._size))
        drawn = self._draw(pictures, answer, self._size)
        before = answer.values[:0] if self._trail is None else self._trail
        self._trail = np.concatenate([before, answer.values])[-TRAIL_FRAMES:]
        self._count += len(frames)
        return drawn

    def draw_objects(
        self,
        frames: Tensor,
        answer: Answer,
        labels: NDArray[np.uint8],
        tracks: Sequence[Track],
        crossings: Sequence[Crossing],
    ) -> Pixels:
        """Draw the next frames of a sequence with several objects, to be written next.

        Args:
            frames: (time, 3 or 1, height, width) uint8.
            answer: Rows of these frames.
            labels: (time, any height, any width) object number of each pixel, in the part of the
                frame given by `answer.box`.
            tracks: Tracks of all objects.
            crossings: Their crossings.
        """
        if self._size is None:
            self._size = frames.shape[2], frames.shape[3]
        pixels = to_pixels(_fit(frames.cpu(), self._size))
        whole = in_whole_frame(labels, answer.box)
        drawn = draw_objects(pixels, whole, tracks, answer.index, crossings)
        self._sequence, self._trail = answer.sequence, None
        self._count += len(frames)
        return _pad(drawn, self._size)

    def _draw(self, pictures: Pixels, answer: Answer, size: tuple[int, int]) -> Pixels:
        if answer.columns == TRACK:  # positions refer to the picture without borders
            return _pad(draw_track(pictures, answer, self._trail), size)
        if self._cloud is None:
            raise ValueError(f"expected cloud= for codes, got none with {answer.columns}")
        if answer.crops is not None:  # they refer to the picture without borders
            pictures = draw_crops(pictures, answer.crops)
        padded = _pad(pictures, size)
        return draw_code(padded, answer, self._cloud, self._trail, self._count)


def _fit(frames: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize frames (time, channels, height, width) to the largest that fit into `size`."""
    scale = min(size[0] / frames.shape[2], size[1] / frames.shape[3])
    height = max(1, min(size[0], round(scale * frames.shape[2])))
    width = max(1, min(size[1], round(scale * frames.shape[3])))
    if frames.shape[2:] == (height, width):
        return frames
    return F.interpolate(frames.contiguous(), (height, width), mode="bilinear", antialias=True)


def _pad(pictures: Pixels, size: tuple[int, int]) -> Pixels:
    """Centre pictures (time, height, width, 3) on black ones of `size`."""
    height, width = pictures.shape[1:3]
    if (height, width) == size:
        return pictures
    padded = np.zeros((len(pictures), *size, 3), np.uint8)
    top, left = (size[0] - height) // 2, (size[1] - width) // 2
    padded[:, top : top + height, left : left + width] = pictures
    return padded
