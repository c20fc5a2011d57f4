"""Frames of video files and streams, with time range, stride and region."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Generator, Iterator
from fractions import Fraction
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ullayers.video.decoding import decode_frames, frame_to_tensor, quarter_turns, upright_size
from ullayers.video.frames import Reading, Render, TimedFrame
from ullayers.video.opening import is_recorded, load_av, open_video
from ullayers.video.region import Cut, resize
from ullayers.video.remote import without_password
from ullayers.video.seeking import find_key_frame

if TYPE_CHECKING:
    from av.filter import Graph
    from av.video.frame import VideoFrame

DISORDER_SECONDS = 1.0  # by which times may go back in containers that estimate them

Decoded = tuple["VideoFrame", float, int]  # frame, seconds, number


def read_video(
    path: str, live: bool, reading: Reading, stop: threading.Event
) -> Generator[TimedFrame, None, None]:
    """Yield the frames of a video file or stream with their times and numbers.

    Raises:
        VideoError: At the end, if frames are damaged or missing, or if none is in the time range.
    """
    convert: _Converter | None = None
    frames = _tapped(_frames_in_range(path, live, reading, stop), path, reading.passing)
    kept = islice(frames, 0, None, reading.stride)
    for frame, seconds, index in _tapped(islice(kept, reading.max_frames), path, reading.tap):
        convert = convert or _Converter(path, reading, frame)
        yield convert(frame), seconds, index


def _tapped(
    frames: Iterator[Decoded], path: str, tap: Callable[[Render], None] | None
) -> Iterator[Decoded]:
    """Yield decoded frames after calling a tap of a `Reading` for each of them."""
    reformatter = load_av().video.reformatter.VideoReformatter()
    for decoded in frames:
        if tap is not None:
            tap(partial(frame_to_tensor, path, reformatter, decoded[0], grey=False))
        yield decoded


def _frames_in_range(
    path: str, live: bool, reading: Reading, stop: threading.Event
) -> Iterator[Decoded]:
    """Yield the decoded frames from `start` and `first` on, up to `end`."""
    origin = 0.0 if not live or is_recorded(path) else None  # cameras count from any time
    latest = -math.inf
    in_order = True
    is_empty = is_whole = True
    for frame, seconds, number in _decode_near(path, live, reading.start, stop):
        if reading.timed is not None:
            reading.timed(number, seconds)
        origin = seconds if origin is None else origin
        in_order = in_order and seconds >= latest
        latest = max(latest, seconds)
        if reading.end is not None and seconds - origin >= reading.end:
            is_whole = False
            if in_order or seconds - origin >= reading.end + DISORDER_SECONDS:
                break
        elif seconds >= reading.start and number >= reading.first:
            is_empty = False
            yield frame, seconds, number
    if is_empty and not reading.first and not stop.is_set():
        raise reading.no_frames(without_password(path), latest if is_whole else None)


def _decode_near(path: str, live: bool, seconds: float, stop: threading.Event) -> Iterator[Decoded]:
    """Decode from a key frame before a time, or from the beginning if that is not possible."""
    if seconds > 0:
        with open_video(path, live) as video:
            key = find_key_frame(video, seconds)
            if key is not None:
                yield from decode_frames(video, stop, key)
                return
    with open_video(path, live) as video:
        yield from decode_frames(video, stop)


class _Converter:
    """Converts decoded frames to tensors of the size of a reading.

    Args:
        path: Path of the video.
        reading: How to read it.
        first: The first frame; later frames of another size are resized to its size.
    """

    def __init__(self, path: str, reading: Reading, first: VideoFrame) -> None:
        self.path = path
        self.grey = reading.grey
        self.interleaved = reading.interleaved
        # One reformatter for all frames: creating one per frame takes three times as long.
        self.reformatter = load_av().video.reformatter.VideoReformatter()
        self.cut = reading.cut(path, *upright_size(first))
        self.size = reading.target(*upright_size(first))
        self.turns = quarter_turns(first)
        self.crop = None if self.cut is None else _Crop(first, self.cut)

    def __call__(self, frame: VideoFrame) -> Tensor:
        """Return a frame as (channels, height, width)."""
        if self.crop is None or self.cut is None:
            return self._convert(frame, self.size)
        part = self.crop(frame)
        if self.cut.inside is None:
            return self._convert(part, self.size, self.turns)
        # Fill before resizing; otherwise pixels outside the region would be mixed in.
        pixels = self._convert(part, (self.cut.height, self.cut.width), self.turns)
        filled = self.cut.fill(pixels.permute(1, 2, 0).squeeze(-1).numpy())
        small = torch.from_numpy(resize(filled, self.size))
        return small[None] if self.grey else small.permute(2, 0, 1)

    def _convert(
        self, frame: VideoFrame, size: tuple[int, int], turns: int | None = None
    ) -> Tensor:
        return frame_to_tensor(
            self.path, self.reformatter, frame, size, self.grey, turns, self.interleaved
        )


class _Crop:
    """Crops decoded frames without converting them."""

    def __init__(self, first: VideoFrame, cut: Cut) -> None:
        self.form = first.width, first.height, first.format.name
        graph: Graph = load_av().filter.Graph()
        source = graph.add_buffer(
            width=first.width,
            height=first.height,
            format=first.format,
            time_base=first.time_base or Fraction(1, 1000),
        )
        left, top, width, height = _stored_box(cut, quarter_turns(first))
        crop = graph.add("crop", f"{width}:{height}:{left}:{top}:exact=1")
        source.link_to(crop)
        crop.link_to(graph.add("buffersink"))
        graph.configure()
        self.graph = graph
        self.reformatter = load_av().video.reformatter.VideoReformatter()

    def __call__(self, frame: VideoFrame) -> VideoFrame:
        if (frame.width, frame.height, frame.format.name) != self.form:
            frame = self.reformatter.reformat(frame, *self.form)
        self.graph.push(frame)
        part: VideoFrame = self.graph.pull()  # type: ignore[assignment]
        return part


def _stored_box(cut: Cut, turns: int) -> tuple[int, int, int, int]:
    """Return left, top, width and height before the frame is turned upright.

    Args:
        cut: The box in upright frames.
        turns: Number of anticlockwise quarter turns that bring a frame upright.
    """
    height, width = cut.frame
    left = cut.left
    top = cut.top
    columns = cut.width
    rows = cut.height
    for _ in range(turns):  # turn clockwise
        left, top, columns, rows = height - top - rows, left, rows, columns
        height, width = width, height
    return left, top, columns, rows
