"""Seeking in video files: where to start decoding, with the frame numbers of a full decode."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from heapq import heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from ullayers.video.decoding import KeyFrame, OpenVideo, load_av

if TYPE_CHECKING:
    from av.packet import Packet
    from av.video.stream import VideoStream

CHECKED_FRAMES = 8  # frames after the wanted time that are compared with their packets
HIDDEN_FRAMES = frozenset({"vp8"})  # codecs with packets of which no frame is shown


class _Candidate(NamedTuple):
    """A packet that starts with a key frame.

    Attributes:
        pts: Presentation time; None if it is not known yet.
        dts: Decoding time; None if the file has none.
        before: Number of packets before it that hold a frame to show.
    """

    pts: int | None
    dts: int | None
    before: int

    @property
    def seek(self) -> int:
        # Most demuxers look for decoding times.
        timestamp = self.pts if self.dts is None else self.dts
        assert timestamp is not None
        return timestamp

    def is_packet(self, packet: Packet[VideoStream]) -> bool:
        return packet.dts == self.dts if self.pts is None else packet.pts == self.pts


def find_key_frame(video: OpenVideo, seconds: float) -> KeyFrame | None:
    """Find the last key frame up to a time from which decoding gives the same as a full decode.

    Frames are counted without decoding them: in the index of an mp4 or mov file, otherwise by
    reading the packets before the key frame. The frames from the key frame to a few after the
    wanted time are decoded and must be exactly those of their packets.

    Args:
        video: The open video; it is left at any position.
        seconds: The wanted time.

    Returns:
        The key frame, or None if the file has to be decoded from its beginning.
    """
    if not video.stream.time_base or video.stream.codec_context.name in HIDDEN_FRAMES:
        return None
    wanted = math.floor(Fraction(seconds) / video.stream.time_base)
    try:
        for candidate in _candidates(video, wanted):
            if candidate.before == 0:
                return None
            packets = _packets_from(video, candidate, wanted)
            key = next(packets, None)
            if key is not None and key.pts is not None and key.pts <= wanted:
                return _check(candidate, key, packets, wanted)
    except load_av().FFmpegError:
        pass
    return None


def _candidates(video: OpenVideo, wanted: int) -> Iterator[_Candidate]:
    """Yield key frames that are decoded up to the wanted time, latest first."""
    stream = video.stream
    is_complete = "mov" in video.container.format.name and len(stream.index_entries) > 0
    if is_complete and len(stream.index_entries) == stream.frames:
        return _in_index(stream, wanted)
    return _by_reading(video, wanted)


def _in_index(stream: VideoStream, wanted: int) -> Iterator[_Candidate]:
    entries = stream.index_entries
    place = entries.search_timestamp(wanted) if entries[0].is_keyframe else -1
    while place >= 0:
        entry = entries[place]
        hidden = sum(each.is_discard for each in islice(entries, place))
        yield _Candidate(None, entry.timestamp, place - hidden)
        place = entries.search_timestamp(entry.timestamp - 1)


def _by_reading(video: OpenVideo, wanted: int) -> Iterator[_Candidate]:
    found: list[_Candidate] = []
    count = 0
    last = None
    for packet in video.container.demux(video.stream):
        if (packet.dts is not None and packet.dts > wanted) or not packet.size:
            break
        if packet.pts is None or (count == 0 and not packet.is_keyframe):
            return
        if packet.dts is not None:
            if last is not None and packet.dts <= last:  # times start again in the middle
                return
            last = packet.dts
        if packet.is_keyframe:
            found.append(_Candidate(packet.pts, packet.dts, count))
        count += not packet.is_discard
    yield from reversed(found)


def _packets_from(
    video: OpenVideo, candidate: _Candidate, wanted: int
) -> Iterator[Packet[VideoStream]]:
    """Seek to a key frame and yield its packet and those that follow."""
    video.container.seek(candidate.seek, stream=video.stream)
    packets = video.container.demux(video.stream)
    for packet in packets:
        if packet.is_keyframe and candidate.is_packet(packet):
            yield packet
            yield from packets
        elif packet.dts is not None and packet.dts > wanted:
            return


def _check(
    candidate: _Candidate,
    key: Packet[VideoStream],
    packets: Iterator[Packet[VideoStream]],
    wanted: int,
) -> KeyFrame | None:
    """Decode up to some frames after the wanted time, and compare them with their packets."""
    assert key.pts is not None
    expected: list[int] = []  # times of the packets whose frames have not come yet
    leading = 0  # packets after the key frame that are shown before it
    left = CHECKED_FRAMES
    packet: Packet[VideoStream] | None = key
    while packet is not None:
        if packet.size and (packet.pts is None or packet.is_corrupt):
            return None
        if packet.pts is not None and packet.pts < key.pts:
            leading += not packet.is_discard
        else:
            if packet.pts is not None and not packet.is_discard:
                heappush(expected, packet.pts)
            for frame in packet.decode():
                if frame.is_corrupt or not expected or frame.pts != heappop(expected):
                    return None
                left -= frame.pts >= wanted
        is_past = packet.dts is None or packet.dts >= key.pts  # all leading packets were counted
        if left <= 0 and is_past:
            break
        packet = next(packets, None)
    return KeyFrame(key.pts, candidate.seek, candidate.before + leading)
