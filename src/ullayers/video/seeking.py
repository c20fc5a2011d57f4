"""Seeking in video files: where to start decoding, with the frame numbers of a full decode."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from heapq import heappop, heappush
from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple

from ullayers.video.decoding import KeyFrame
from ullayers.video.opening import OpenVideo, load_av

if TYPE_CHECKING:
    from av.packet import Packet
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

CHECKED_FRAMES = 8  # frames after the requested one that are compared with their packets
SHOWN_IN_VP8 = 0x10  # bit of the first byte of a packet; frames without it are for reference only


class UncertainError(Exception):
    """Decoding from a key frame may not give the frames and numbers of a full decode."""


class Candidate(NamedTuple):
    """A packet that starts with a key frame.

    Attributes:
        pts: Presentation time; None if unknown.
        dts: Decoding time; None if the file has none.
        before: Number of packets before it that hold a frame to show.
    """

    pts: int | None
    dts: int | None
    before: int

    @property
    def seek(self) -> int:
        """The timestamp to seek to."""
        # Most demuxers look for decoding times.
        timestamp = self.pts if self.dts is None else self.dts
        assert timestamp is not None
        return timestamp

    def is_packet(self, packet: Packet[VideoStream]) -> bool:
        """Return whether this is the packet of the key frame."""
        return packet.dts == self.dts if self.pts is None else packet.pts == self.pts


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
    try:
        for candidate in _candidates(video, wanted):
            if candidate.before == 0:
                return None
            packets = packets_from(video, candidate)
            key = next(packets, None)
            if key is not None and key.pts is not None and key.pts <= wanted:
                return _check(candidate, key, packets, wanted)
    except (load_av().FFmpegError, UncertainError):
        pass
    return None


def is_shown(packet: Packet[VideoStream]) -> bool:
    """Return whether a packet holds a frame to show."""
    if packet.is_discard:
        return False
    is_vp8 = packet.stream.codec_context.name == "vp8"
    return not is_vp8 or bool(packet.size and memoryview(packet)[0] & SHOWN_IN_VP8)


def has_complete_index(video: OpenVideo) -> bool:
    """Return whether the file has an index of all its frames, as mp4, mov and most AVI files do."""
    stream = video.stream
    entries = stream.index_entries
    if not 0 < len(entries) == stream.frames:
        return False
    # An empty chunk of an AVI file repeats a frame, and is not decoded.
    is_avi = video.container.format.name == "avi" and all(entry.size for entry in entries)
    return is_avi or "mov" in video.container.format.name


def _candidates(video: OpenVideo, wanted: int) -> Iterator[Candidate]:
    """Yield key frames decoded up to the requested time, latest first."""
    if has_complete_index(video):
        return _in_index(video.stream, wanted)
    return _by_reading(video, wanted)


def _in_index(stream: VideoStream, wanted: int) -> Iterator[Candidate]:
    entries = stream.index_entries
    place = entries.search_timestamp(wanted) if entries[0].is_keyframe else -1
    while place >= 0:
        entry = entries[place]
        hidden = sum(each.is_discard for each in islice(entries, place))
        yield Candidate(None, entry.timestamp, place - hidden)
        place = entries.search_timestamp(entry.timestamp - 1)


def _by_reading(video: OpenVideo, wanted: int) -> Iterator[Candidate]:
    found: list[Candidate] = []
    count = 0
    for packet in counted_packets(video):
        if packet.dts is not None and packet.dts > wanted:
            break
        if packet.is_keyframe:
            found.append(Candidate(packet.pts, packet.dts, count))
        count += is_shown(packet)
    yield from reversed(found)


def counted_packets(video: OpenVideo) -> Iterator[Packet[VideoStream]]:
    """Yield the packets of a video from its beginning, as long as they can be counted.

    Raises:
        UncertainError: A packet without a time, or times that start again in the middle.
    """
    first = last = None
    for packet in video.container.demux(video.stream):
        if not packet.size:
            return
        if packet.pts is None:
            raise UncertainError("a packet has no time")
        if first is None and packet.is_keyframe:
            first = packet.pts
        if first is None or packet.pts < first:
            raise UncertainError("the first frames need others before them")
        if packet.dts is not None:
            if last is not None and packet.dts <= last:
                raise UncertainError("times start again in the middle")
            last = packet.dts
        yield packet


def packets_from(video: OpenVideo, candidate: Candidate) -> Iterator[Packet[VideoStream]]:
    """Seek to a key frame and yield its packet and those that follow; none if it is not found."""
    video.container.seek(candidate.seek, stream=video.stream)
    packets = video.container.demux(video.stream)
    for packet in packets:
        if packet.is_keyframe and candidate.is_packet(packet):
            yield packet
            yield from packets
        elif packet.dts is not None and packet.dts > candidate.seek:
            return


def _check(
    candidate: Candidate,
    key: Packet[VideoStream],
    packets: Iterator[Packet[VideoStream]],
    wanted: int,
) -> KeyFrame | None:
    """Decode to a few frames after the requested time, and compare them with their packets."""
    left = CHECKED_FRAMES
    number = None
    for frames, number in checked_frames(candidate, key, packets):
        left -= sum(frame.pts is not None and frame.pts >= wanted for frame in frames)
        if left <= 0 and number is not None:
            break
    if key.pts is None or number is None:
        return None
    return KeyFrame(key.pts, candidate.seek, number)


def checked_frames(
    candidate: Candidate, key: Packet[VideoStream], packets: Iterator[Packet[VideoStream]]
) -> Iterator[tuple[list[VideoFrame], int | None]]:
    """Decode from a key frame on, and check that the frames match their packets exactly.

    Args:
        candidate: The key frame.
        key: Its packet.
        packets: The packets that follow.

    Yields:
        The frames of each packet, and the number of the key frame as soon as it is known.

    Raises:
        UncertainError: Frames are missing, damaged or in another order.
    """
    expected: list[int] = []  # times of packets whose frames have not been decoded yet
    leading = 0  # packets after the key frame that are shown before it
    number = None
    if key.pts is None:
        raise UncertainError("the key frame has no time")
    for packet in chain([key], packets):
        if packet.size and (packet.pts is None or packet.is_corrupt):
            raise UncertainError("a packet is damaged or has no time")
        frames: list[VideoFrame] = []
        if packet.pts is not None and packet.pts < key.pts:
            leading += is_shown(packet)
        else:
            if packet.pts is not None and is_shown(packet):
                heappush(expected, packet.pts)
            frames = packet.decode()
            for frame in frames:
                if frame.is_corrupt or not expected or frame.pts != heappop(expected):
                    raise UncertainError("a frame is not that of its packet")
        if packet.dts is None or packet.dts >= key.pts:  # all leading packets were counted
            number = candidate.before + leading
        yield frames, number
