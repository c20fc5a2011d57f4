"""Seeking in video files: key frames from which decoding gives the frames of a full decode."""

from __future__ import annotations

import math
import threading
from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from contextlib import suppress
from fractions import Fraction
from heapq import heappop, heappush
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ullayers.video.clips import VideoError
from ullayers.video.files.opening import OpenVideo, load_av, open_video

if TYPE_CHECKING:
    from av.packet import Packet
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

CHECKED_FRAMES = 8  # frames after the requested one that are compared with their packets
FIRST_STEP = 16  # frames to go back if a seek ends after the requested frame; doubled each time
SHOWN_IN_VP8 = 0x10  # bit of the first byte of a packet; frames without it are for reference only


class UncertainError(Exception):
    """Decoding from a key frame may not give the frames and numbers of a full decode."""


class KeyFrame(NamedTuple):
    """A frame from which decoding can start.

    Attributes:
        pts: Its time, in units of the stream.
        seek: The timestamp to seek to.
        number: Its frame number.
    """

    pts: int
    seek: int
    number: int


class Timestamps:
    """Timestamps of consecutive frames, in units of the stream.

    Args:
        stamps: The timestamps, which do not decrease.
        keys: Timestamps of key frames; None if the times are those of decoded frames.
        first: Number of the first of these frames.
        are_decoding: Whether they are the times at which packets are decoded, as in the index of an
            mp4 or AVI file, not those at which frames are shown.

    Attributes:
        seeks: Decoding times of the key frames, for which most containers are searched.
    """

    def __init__(
        self,
        stamps: array[int],
        keys: array[int] | None,
        first: int = 0,
        *,
        are_decoding: bool = False,
    ) -> None:
        self.stamps = stamps
        self.keys = array("q") if keys is None else keys
        self.first = first
        self.are_decoding = are_decoding
        self.are_exact = keys is None
        self.seeks = self.keys if are_decoding else array("q")

    @classmethod
    def of_file(cls, video: OpenVideo) -> Timestamps | None:
        """Return the times in the index of an mp4, mov or AVI file, up to its actual end.

        Returns:
            The times; None if the file has no index of all its frames.
        """
        entries = video.stream.index_entries
        if not 0 < len(entries) == video.stream.frames or not entries[0].is_keyframe:
            return None
        name = video.container.format.name
        # An empty chunk of an AVI file repeats a frame, and is not decoded.
        if "mov" not in name and not (name == "avi" and all(entry.size for entry in entries)):
            return None
        size = video.container.size
        is_whole = entries[-1].pos + entries[-1].size <= size
        stamps, keys = array("q"), array("q")
        for entry in entries:
            if not is_whole and entry.pos + entry.size > size:
                break
            if entry.is_keyframe:
                keys.append(entry.timestamp)
            if not entry.is_discard:
                stamps.append(entry.timestamp)
        return cls(stamps, keys, are_decoding=True)

    @classmethod
    def of_seconds(cls, video: OpenVideo, seconds: NDArray[np.float64]) -> Timestamps | None:
        """Return the times of frames that were decoded before.

        Args:
            video: The open video.
            seconds: Times of the frames as in `Clip.seconds`, NaN for frames before the first known
                one.

        Returns:
            The times; None if frames cannot be found by them.
        """
        known = np.flatnonzero(np.isfinite(seconds))
        flags = load_av().format.Flags
        # In such containers, times of packets are estimated, and differ after a seek.
        is_estimated = video.container.format.flags & (flags.ts_discont | flags.no_timestamps).value
        if not len(known) or not video.stream.time_base or not video.has_times or is_estimated:
            return None
        first = int(known[0])
        stamps = np.rint(seconds[first:] / float(video.stream.time_base))
        if len(known) < len(stamps) or (np.diff(stamps) <= 0).any():
            return None
        return cls(array("q", stamps.astype(np.int64).tobytes()), None, first)

    def last(self, stamp: int) -> int:
        """Return the number of the last frame at or before a timestamp."""
        return self.first + bisect_right(self.stamps, stamp) - 1

    def before(self, number: int) -> tuple[int, int | None] | None:
        """Return where to seek for a frame.

        Returns:
            The timestamp to seek to, and the timestamp of the key frame, as far as it is known;
            None for frames before the first known one.
        """
        place = min(number - self.first, len(self.stamps) - 1)
        if place < 0 or self.are_exact:
            return None if place < 0 else (self.stamps[place], None)
        key = bisect_right(self.keys, self.stamps[place]) - 1
        return None if key < 0 else (self.seeks[key], self.keys[key])

    def differ(self, number: int, frame: VideoFrame) -> bool:
        """Return whether a frame is known to have another number."""
        place = number - self.first
        return self.are_exact and 0 <= place < len(self.stamps) and self.stamps[place] != frame.pts

    def stamp_of(self, packet: Packet[VideoStream]) -> int | None:
        """Return the timestamp of a packet that can be compared with these."""
        return packet.dts if self.are_decoding else packet.pts

    def number_of(self, packet: Packet[VideoStream]) -> int | None:
        """Return the number of the frame of a packet; None if it is unknown."""
        stamp = self.stamp_of(packet)
        if stamp is None:
            return None
        place = bisect_left(self.stamps, stamp)
        is_single = self.stamps[place : place + 2].count(stamp) == 1
        return self.first + place if is_single or packet.is_discard else None


class Start(NamedTuple):
    """A key frame to which a container was moved.

    Attributes:
        key: The key frame.
        packets: Its packet and those that follow, without frames shown before it.
    """

    key: KeyFrame
    packets: Iterator[Packet[VideoStream]]


def find_key_frame(video: OpenVideo, seconds: float) -> KeyFrame | None:
    """Find the last key frame before a time from which decoding matches a full decode.

    Frames are counted without decoding them: in the index of an mp4, mov or AVI file, otherwise by
    reading the packets before the key frame. The frames from the key frame to a few after the
    requested time are decoded and must match their packets exactly.

    Args:
        video: The open video; it is left at any position.
        seconds: The requested time.

    Returns:
        The key frame, or None if the file has to be decoded from its beginning.
    """
    if not video.stream.time_base:
        return None
    wanted = math.floor(Fraction(seconds) / video.stream.time_base)
    left = CHECKED_FRAMES
    try:
        times = Timestamps.of_file(video) or _count_until(video, wanted, threading.Event())
        start = seek(video, times, times.last(wanted), wanted)
        if start is None or start.key.number == 0:
            return None
        for frame in checked_frames(start):
            left -= frame.pts is not None and frame.pts >= wanted
            if left <= 0:
                break
    except (load_av().FFmpegError, UncertainError):
        return None
    return start.key


def count_frames(path: str, stop: threading.Event) -> Timestamps:
    """Return the times of the frames of a file, from its packets, as far as they can be counted.

    Args:
        path: The file.
        stop: Set to stop reading.
    """
    try:
        with open_video(path) as video:
            return _count_until(video, math.inf, stop)
    except (VideoError, OSError):  # the decoder reports the error
        return Timestamps(array("q"), array("q"))


def _count_until(video: OpenVideo, wanted: float, stop: threading.Event) -> Timestamps:
    """Return the times of all frames up to a timestamp, as far as they can be counted."""
    times = Timestamps(array("q"), array("q"))
    first = last = None
    with suppress(load_av().FFmpegError):
        for packet in video.container.demux(video.stream):
            if not packet.size:
                return times
            if first is None and packet.is_keyframe:
                first = packet.pts
            if packet.pts is None or first is None or packet.pts < first:
                break  # the packet has no time, or its frame needs frames before the first one
            if packet.dts is not None:
                if last is not None and packet.dts <= last:
                    break  # times start again in the middle
                last = packet.dts
                if last > wanted or stop.is_set():
                    break
            if is_shown(packet):
                insort(times.stamps, packet.pts)
            if packet.is_keyframe:
                times.seeks.append(packet.pts if packet.dts is None else packet.dts)
                times.keys.append(packet.pts)
    del times.stamps[bisect_left(times.stamps, last or 0) :]  # others may come before these
    return times


def is_shown(packet: Packet[VideoStream]) -> bool:
    """Return whether a packet holds a frame to show."""
    if packet.is_discard:
        return False
    is_vp8 = packet.stream.codec_context.name == "vp8"
    return not is_vp8 or bool(packet.size and memoryview(packet)[0] & SHOWN_IN_VP8)


def seek(
    video: OpenVideo, times: Timestamps, number: int, latest: int | None = None
) -> Start | None:
    """Move to a key frame before a frame, in most files to the last one.

    Args:
        video: The open video.
        times: Times of its frames.
        number: Number of the frame.
        latest: Time at or before which the key frame is shown; None for that of the frame.

    Returns:
        The key frame, or None if the file has to be decoded from its beginning.

    Raises:
        UncertainError: The number of the key frame is unknown.
    """
    step = 0
    while step <= number:
        before = times.before(number - step)
        if before is None:
            break
        timestamp, expected = before
        video.container.seek(timestamp, stream=video.stream)
        start = next_key_frame(video, times, timestamp, expected)
        if start is not None and start.key.number <= number:
            if latest is None or start.key.pts <= latest:
                return start
        step = max(FIRST_STEP, 2 * step)
    return None


def next_key_frame(
    video: OpenVideo, times: Timestamps, timestamp: int, expected: int | None
) -> Start | None:
    """Move on to the expected key frame.

    Args:
        video: The open video.
        times: Times of its frames.
        timestamp: The timestamp that it was moved to.
        expected: The timestamp of the key frame; None for the next one, up to `timestamp`.

    Returns:
        The key frame, or None if there is none, or only later ones.

    Raises:
        UncertainError: The number of the key frame is unknown.
    """
    packets = video.container.demux(video.stream)
    for key in packets:
        stamp = times.stamp_of(key)
        if key.is_keyframe and stamp is not None and (expected is None or stamp >= expected):
            break
    else:
        return None
    if stamp > (timestamp if expected is None else expected):
        return None
    number = times.number_of(key)
    if number is None or key.pts is None:
        raise UncertainError("the key frame is not where it should be")
    read = [key]
    if times.are_decoding:  # packets after the key frame may be shown before it
        for packet in packets:
            read.append(packet)
            if packet.dts is None or packet.dts >= key.pts:
                break
            number += packet.pts is not None and packet.pts < key.pts and is_shown(packet)
    shown = (each for each in chain(read, packets) if each.pts is None or each.pts >= key.pts)
    return Start(KeyFrame(key.pts, timestamp, number), shown)


def checked_frames(start: Start) -> Iterator[VideoFrame]:
    """Decode from a key frame on, and check that the frames match their packets exactly.

    Raises:
        UncertainError: Frames are missing, damaged or in another order.
    """
    expected: list[int] = []  # times of packets whose frames have not been decoded yet
    for packet in start.packets:
        if packet.size and (packet.pts is None or packet.is_corrupt):
            raise UncertainError("a packet is damaged or has no time")
        if packet.pts is not None and is_shown(packet):
            heappush(expected, packet.pts)
        for frame in packet.decode():
            if frame.is_corrupt or not expected or frame.pts != heappop(expected):
                raise UncertainError("a frame is not that of its packet")
            yield frame
