"""Frames of open videos, decoded with PyAV one at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ullayers.video.frames import DEFAULT_FPS, KEEP_HINT, Info, VideoError
from ullayers.video.opening import OpenVideo, is_recorded, load_av, open_video
from ullayers.video.remote import without_password
from ullayers.video.seeking import KeyFrame

if TYPE_CHECKING:
    from av.packet import Packet
    from av.video.frame import VideoFrame
    from av.video.reformatter import VideoReformatter
    from av.video.stream import VideoStream

# A flag of swscale (SWS_ACCURATE_RND). Without it, a fast conversion of frames that keep their size
# leaves the last columns undefined if the width is not a multiple of 16.
ACCURATE_ROUNDING = 0x40000


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
