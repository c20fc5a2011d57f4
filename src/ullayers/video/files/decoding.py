"""Frames of video files and streams: decoded, counted, cut to a range, converted to tensors."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ullayers.video.clips import (
    DEFAULT_FPS,
    KEEP_HINT,
    Info,
    Reading,
    Render,
    TimedFrame,
    VideoError,
)
from ullayers.video.files.opening import (
    OpenVideo,
    is_recorded,
    load_av,
    open_video,
    without_password,
)
from ullayers.video.files.seeking import KeyFrame, find_key_frame
from ullayers.video.region import Cut, resize

if TYPE_CHECKING:
    from av.filter import Graph
    from av.packet import Packet
    from av.video.frame import VideoFrame
    from av.video.reformatter import VideoReformatter
    from av.video.stream import VideoStream

# A flag of swscale (SWS_ACCURATE_RND). Without it, a fast conversion of frames that keep their size
# leaves the last columns undefined if the width is not a multiple of 16.
ACCURATE_ROUNDING = 0x40000
DISORDER_SECONDS = 1.0  # by which times may go back in containers that estimate them
Decoded = tuple["VideoFrame", float, int]  # frame, seconds, number


def probe_video(path: str, live: bool = False) -> Info:
    """Read the header and decode the first frame."""
    with open_video(path, live) as video:
        frame, *_ = next(decode_frames(video, threading.Event()))
        height, width = upright_size(frame)
        frames = video.stream.frames  # zero in Matroska, whose header has a duration instead
        duration = video.container.duration
        if not frames and duration and video.rate and not live:
            frames = round(duration * 1e-6 * video.rate)
        return Info(width, height, video.rate, frames or None)


class Clock:
    """Counts frames and computes their times, even if the file has none.

    Args:
        video: The open video.
        first: Number of the first frame.
    """

    def __init__(self, video: OpenVideo, first: int = 0) -> None:
        self.rate = video.rate or DEFAULT_FPS
        self.has_times = video.has_times
        self.count = first
        self.seconds = 0.0  # of the last frame whose time is in the file
        self.at = first  # its number

    def tick(self, frame: VideoFrame) -> float:
        """Count a frame and return its time in seconds."""
        if not self.has_times:
            self.at = self.count
            self.seconds = self.count / self.rate
        elif frame.pts is not None:
            self.at = self.count
            self.seconds = float(frame.time)
        seconds = self.seconds + (self.count - self.at) / self.rate
        self.count += 1
        return seconds


@dataclass
class Damage:
    """Errors during decoding."""

    first: int | None = None  # number of the first frame that is damaged or missing
    in_packet: bool = False  # whether the current packet is damaged
    lost: Exception | None = None  # the error that ended reading

    def note(self, number: int) -> None:
        """Record that a frame is damaged or missing."""
        if self.first is None:
            self.first = number


def decode_frames(
    video: OpenVideo, stop: threading.Event, key: KeyFrame | None = None
) -> Iterator[tuple[VideoFrame, float, int]]:
    """Yield each decodable frame, with its time in seconds and its number.

    Args:
        video: The open video.
        stop: Set to stop reading.
        key: Key frame to start from, from `find_key_frame`; None to start from the beginning.

    Raises:
        VideoError: At the end, if some frames could not be decoded or the file is incomplete.
    """
    if key is not None:
        video.container.seek(key.seek, stream=video.stream)
    packets = _packets_to_show(video.container.demux(video.stream), key)
    clock = Clock(video, 0 if key is None else key.number)
    return decode_packets(video, packets, stop, clock, Damage())


def decode_packets(
    video: OpenVideo,
    packets: Iterator[Packet[VideoStream]],
    stop: threading.Event,
    clock: Clock,
    damage: Damage,
) -> Iterator[tuple[VideoFrame, float, int]]:
    """Yield the frames of packets, as `decode_frames` does.

    Args:
        video: The open video.
        packets: Its packets up to the end.
        stop: Set to stop reading.
        clock: Numbers the frames.
        damage: Records errors.

    Raises:
        VideoError: At the end, if some frames could not be decoded or the file is incomplete.
    """
    for packet in _read_packets(packets, stop, damage):
        for frame in _decode_packet(packet, damage):
            if frame.is_corrupt:
                damage.note(clock.count)
            number = clock.count
            yield frame, clock.tick(frame), number
        if damage.in_packet:
            damage.note(clock.count)
    if not stop.is_set():
        _check_complete(video, clock, damage)


def quarter_turns(frame: VideoFrame) -> int:
    """Return the number of anticlockwise quarter turns that bring the frame upright."""
    return round(frame.rotation / 90) % 4


def upright_size(frame: VideoFrame) -> tuple[int, int]:
    """Return (height, width) of a frame after rotation."""
    if quarter_turns(frame) % 2:
        return frame.width, frame.height
    return frame.height, frame.width


def frame_to_tensor(
    path: str,
    reformatter: VideoReformatter,
    frame: VideoFrame,
    size: tuple[int, int],
    grey: bool,
    turns: int | None = None,
    interleaved: bool = False,
) -> Tensor:
    """Convert a decoded frame to an upright (channels, height, width) tensor of this size.

    Args:
        path: Path of the video, for messages.
        reformatter: Converts frames; reuse one for a whole video.
        frame: The frame.
        size: (height, width) of the tensor.
        grey: Return one channel instead of three.
        turns: Anticlockwise quarter turns; None to use the rotation of the frame.
        interleaved: As in `Reading`.
    """
    turns = quarter_turns(frame) if turns is None else turns
    height, width = size[::-1] if turns % 2 else size
    layout = "gray" if grey else "gbrp"  # rgb24 would average colour over pairs of pixels
    method = int(load_av().video.reformatter.Interpolation.AREA)
    if (width, height) == (frame.width, frame.height) and width % 16:
        method |= ACCURATE_ROUNDING
    try:
        small = reformatter.reformat(frame, width, height, layout, interpolation=method, threads=1)
    except (load_av().FFmpegError, ValueError) as error:
        raise VideoError(
            f"{path}: frames of format {frame.format.name} cannot be converted"
        ) from error
    planes = [_plane(small, number) for number in ((0,) if grey else (2, 0, 1))]
    if interleaved and not grey:
        import cv2  # slow to import, and most readers do not need it

        upright = torch.from_numpy(cv2.merge(planes)).permute(2, 0, 1)
    else:
        upright = torch.from_numpy(np.stack(planes))
    return torch.rot90(upright, turns, (1, 2)) if turns else upright  # rot90 always copies


def _plane(frame: VideoFrame, number: int) -> NDArray[np.uint8]:
    """Return a plane of a frame without copying it; its rows may be padded."""
    plane = frame.planes[number]
    rows = np.frombuffer(memoryview(plane), np.uint8).reshape(-1, plane.line_size)
    pixels: NDArray[np.uint8] = rows[: frame.height, : frame.width]
    return pixels


def _packets_to_show(
    packets: Iterator[Packet[VideoStream]], key: KeyFrame | None
) -> Iterator[Packet[VideoStream]]:
    """Drop frames shown before the key frame, because they may need earlier frames."""
    for packet in packets:
        if key is None or packet.pts is None or packet.pts >= key.pts:
            yield packet


def _read_packets(
    packets: Iterator[Packet[VideoStream]], stop: threading.Event, damage: Damage
) -> Iterator[Packet[VideoStream]]:
    while not stop.is_set():
        try:
            packet = next(packets, None)
        except load_av().FFmpegError as error:
            damage.lost = error
            return
        if packet is None:
            return
        yield packet


def _decode_packet(packet: Packet[VideoStream], damage: Damage) -> list[VideoFrame]:
    damage.in_packet = packet.is_corrupt
    try:
        return packet.decode()
    except load_av().FFmpegError:
        damage.in_packet = True
        return []


def _check_complete(video: OpenVideo, clock: Clock, damage: Damage) -> None:
    """Raise VideoError if frames of a source that has ended are damaged or missing."""
    shown = without_password(video.path)
    if clock.count == 0:
        raise VideoError(f"{shown}: no frame can be decoded; is the file complete?")
    is_stream = video.live and not is_recorded(video.path)
    if is_stream:  # it is joined midway, so its first frames may be damaged
        if damage.lost:
            raise VideoError(
                f"{shown}: the stream was lost after frame {clock.count}; is the sender still on?"
            ) from damage.lost
        return
    if damage.lost or _is_cut_short(video, clock.seconds + 1 / clock.rate):
        damage.note(clock.count)
    if damage.first is not None:
        hint = "; they were used" if video.live else KEEP_HINT
        raise VideoError(
            f"{shown}: broken after frame {damage.first}; {clock.count} frames can be read{hint}"
        )


def _is_cut_short(video: OpenVideo, end: float) -> bool:
    """Return whether the file is shorter than its index or header says, which FFmpeg accepts."""
    container, entries = video.container, video.stream.index_entries
    last = entries[-1] if len(entries) else None
    if last and last.pos + last.size > container.size:
        return True
    # The index of Matroska is at the end and lost first; its duration is of the longest stream.
    if "matroska" not in container.format.name or len(container.streams) > 1:
        return False
    duration = (container.duration or 0) / 1e6
    return duration - end > max(0.5, 0.05 * duration)


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
