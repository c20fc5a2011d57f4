"""Frames at display size, taken while the small frames of the network are read."""

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

from ullayers.learn.footage import Spread
from ullayers.learn.survey import to_pixels
from ullayers.locate.tracking.settle import in_whole_frame
from ullayers.report.drawing import (
    TRAIL_FRAMES,
    AnyFloats,
    CodeAxes,
    MaskPainter,
    Pixels,
    Trail,
    around,
    dot_reach,
    draw_objects,
    paint_box,
    paint_dot,
)
from ullayers.tracks.reading import Crossing, Track
from ullayers.tracks.table import TRACK, Answer
from ullayers.video.frames import Render
from ullayers.video.reader import Info, Reading
from ullayers.video.writer import VideoWriter

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


def draw_track(frames: Pixels, answer: Answer, trail: AnyFloats | None = None) -> Pixels:
    """Draw masks, positions and the trail of recent positions.

    Args:
        frames: (time, height, width, 3) uint8.
        answer: Results with the columns `TRACK`; the confidence is the opacity of the dot.
        trail: (k, 2) positions before these frames, oldest first, or (k, 3) with confidence.

    Returns:
        New frames of the same shape.

    Example:
        >>> frames = np.zeros((1, 48, 64, 3), np.uint8)
        >>> found = np.array([[0.25, 0.5, 1.0]])
        >>> drawn = draw_track(frames, Answer("a", np.arange(1), np.zeros(1), TRACK, found))
        >>> drawn[0, 24, 16].tolist(), drawn[0, 24, 48].tolist()
        ([255, 172, 28], [0, 0, 0])
    """
    _check(frames, answer)
    height, width = frames.shape[1:3]
    drawn = np.empty_like(frames)
    line = Trail(height, width)
    if trail is not None:
        line.follow(*_to_pixels(trail[-TRAIL_FRAMES:], height, width))
    positions, opacities = _to_pixels(answer.values, height, width)
    painter = None
    if answer.masks is not None:
        painter = MaskPainter(answer.masks.shape[1:], (height, width), answer.box)
    canvas = torch.empty((height, width, 3))
    for t, frame in enumerate(frames):
        line.move(positions[t], opacities[t])
        changed = [line.reach(), dot_reach(canvas.shape, positions[t], opacities[t])]
        if painter is not None and answer.masks is not None:
            changed.append(painter.reach(answer.masks[t]))
        window = around(changed)  # the rest of the canvas is not used
        canvas[window] = torch.from_numpy(frame[window]).float()
        if painter is not None and answer.masks is not None:
            painter.paint(canvas, answer.masks[t])
        line.paint(canvas)
        paint_dot(canvas, positions[t], opacities[t])
        drawn[t] = frame
        drawn[t][window] = _rounded(canvas[window])
    return drawn


def draw_crops(frames: Pixels, crops: AnyFloats) -> Pixels:
    """Outline the used part of each frame.

    Args:
        frames: (time, height, width, 3) uint8.
        crops: (time, 4) left, top, right and bottom in 0..1 of the frame.

    Returns:
        New frames of the same shape.

    Example:
        >>> frames = np.zeros((1, 48, 64, 3), np.uint8)
        >>> drawn = draw_crops(frames, np.array([[0.25, 0.25, 0.75, 0.75]]))
        >>> drawn[0, 24, 16].any(), drawn[0, 24, 32].any()
        (np.True_, np.False_)
    """
    drawn = np.empty_like(frames)
    for t, (frame, crop) in enumerate(zip(frames, crops, strict=True)):
        canvas = torch.from_numpy(frame).float()
        paint_box(canvas, crop)
        drawn[t] = _rounded(canvas)
    return drawn


def draw_code(
    frames: Pixels,
    answer: Answer,
    cloud: AnyFloats,
    trail: AnyFloats | None = None,
    first: int | None = None,
) -> Pixels:
    """Add a square panel at the right with all codes in grey and the current one as a dot.

    The panel shows the first two values of the code, or a single one against the frame number.

    Args:
        frames: (time, height, width, 3) uint8.
        answer: Codes of these frames.
        cloud: (n, d) all codes.
        trail: (k, d) codes of the frames before these, oldest first.
        first: Row of `cloud` of the first frame; None for its frame number.

    Returns:
        New frames (time, height, width + height, 3).

    Example:
        >>> frames, turn = np.zeros((1, 48, 64, 3), np.uint8), np.linspace(0, 6.28, 100)
        >>> cloud = np.c_[np.cos(turn), np.sin(turn)]
        >>> answer = Answer("a", np.arange(1), np.zeros(1), ("y0", "y1"), cloud[:1])
        >>> draw_code(frames, answer, cloud).shape
        (1, 48, 112, 3)
    """
    _check(frames, answer)
    if cloud.ndim != 2 or cloud.shape[1] != answer.values.shape[1]:
        columns = answer.values.shape[1]
        raise ValueError(f"expected a cloud of shape (n, {columns}), got {cloud.shape}")
    if first is None:
        first = int(answer.index[0]) if len(answer.index) else 0
    side, width = frames.shape[1:3]
    drawn = np.empty((len(frames), side, width + side, 3), np.uint8)
    drawn[:, :, :width] = frames
    axes = CodeAxes.around(_to_plane(cloud), side, single=cloud.shape[1] == 1)
    panel = axes.panel(_to_plane(cloud))
    line = Trail(side, side)
    if trail is not None:
        before = trail[-TRAIL_FRAMES:]
        line.follow(axes(_to_plane(before, first - len(before))), np.ones(len(before)))
    for t, point in enumerate(axes(_to_plane(answer.values, first))):
        canvas = panel.clone()
        line.move(point, 1.0)
        line.paint(canvas)
        paint_dot(canvas, point, 1.0)
        drawn[t, :, width:] = _rounded(canvas)
    return drawn


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


def _check(frames: Pixels, answer: Answer) -> None:
    if frames.ndim != 4 or frames.shape[3] != 3 or frames.dtype != np.uint8:
        raise ValueError(
            f"expected uint8 frames (time, height, width, 3), got {frames.dtype} {frames.shape}"
        )
    masks = len(frames) if answer.masks is None else len(answer.masks)
    if not len(frames) == len(answer.values) == masks:
        raise ValueError(f"expected answers to {len(frames)} frames, got {len(answer.values)}")


def _rounded(canvas: Tensor) -> Pixels:
    """Round a float picture to uint8; the picture is overwritten."""
    rounded: Pixels = canvas.add_(0.5).byte().numpy()
    return rounded


def _to_pixels(values: AnyFloats, height: int, width: int) -> tuple[AnyFloats, AnyFloats]:
    """Return positions in pixels, whose centres are whole numbers, and opacities."""
    positions = values[:, :2] * (width, height) - 0.5
    confidence = values[:, 2] if values.shape[1] > 2 else np.ones(len(values))
    return positions, np.nan_to_num(confidence).clip(0, 1)


def _to_plane(codes: AnyFloats, first: int = 0) -> AnyFloats:
    """Return the first two values of each code, or the row number and the only value."""
    if codes.shape[1] > 1:
        return codes[:, :2]
    return np.column_stack([first + np.arange(len(codes)), codes[:, 0]])


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
