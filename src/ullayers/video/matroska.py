"""Key frames of a Matroska or WebM file, counted from the headers of its blocks.

The index of the file has only the times of key frames. Reading all packets takes ten times as long.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ullayers.kernels.numba.compiling import compile_loop

SEGMENT = 0x18538067
CLUSTER = 0x1F43B675
TRACKS = 0x1654AE6B
TRACK = 0xAE
NUMBER = 0xD7
KIND = 0x83
CODEC = 0x86
ENCODINGS = 0x6D80
TIME = 0xE7
SIMPLE_BLOCK = 0xA3
GROUP = 0xA0
BLOCK = 0xA1
REFERENCE = 0xFB
HEADER = 0x1A45DFA3
VIDEO = 1
LARGE = 2**24  # bytes: for smaller files, loading the compiled loop does not pay off
LEAST_BYTES = 8  # of a block
MAX_FRAMES = 2**27
KEY, LACING = 0x80, 0x06  # bits of the flags of a block
# Codecs in which a block is a packet with one frame to show.
CODECS = (b"V_MPEG4/ISO/", b"V_MPEGH/ISO/HEVC", b"V_VP9", b"V_AV1", b"V_MJPEG", b"V_FFV1")

Integers = NDArray[np.int64]


def key_frames(path: str) -> tuple[Integers, Integers] | None:
    """Return the key frames of a large file.

    Args:
        path: The file.

    Returns: Their times in ticks of the file, and the number of frames before each of them; None if
    they are uncertain, or the file is damaged or so small that reading its packets is faster.
    """
    if os.path.getsize(path) < LARGE:
        return None
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        number = _video_track(content)
        if number is None:
            return None
        data = np.frombuffer(content, np.uint8)
        room = min(len(data) // LEAST_BYTES, MAX_FRAMES)
        times = np.empty(room, np.int64)
        is_key = np.empty(room, np.bool_)
        count = _compiled()(data, number, times, is_key)
        del data  # otherwise the file stays mapped
    times = times[: max(count, 0)]
    before = np.flatnonzero(is_key[: max(count, 0)])
    if (
        not len(before)
        or before[0]
        or (times < times[0]).any()
        or (np.diff(times[before]) <= 0).any()
    ):
        return None
    return times[before], before


def _video_track(content: mmap.mmap) -> int | None:
    """Return the number of the only video track; None if its blocks may not be its frames."""
    for kind, start, end in _elements(content, 0, len(content)):
        if kind == SEGMENT:
            return _in_segment(content, start, end)
    return None


def _in_segment(content: mmap.mmap, start: int, end: int) -> int | None:
    for kind, first, last in _elements(content, start, end):
        if kind == CLUSTER:
            return None
        if kind != TRACKS:
            continue
        tracks = [
            {name: content[a:b] for name, a, b in _elements(content, *place)}
            for element, *place in _elements(content, first, last)
            if element == TRACK
        ]
        videos = [track for track in tracks if track.get(KIND) == bytes([VIDEO])]
        if len(videos) != 1 or ENCODINGS in videos[0] or NUMBER not in videos[0]:
            return None
        is_known = videos[0].get(CODEC, b"").startswith(CODECS)
        return int.from_bytes(videos[0][NUMBER]) if is_known else None
    return None


def _elements(content: mmap.mmap, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield kind, start and end of the elements in a part of a file, while they are valid."""
    while start < end:
        length = 9 - content[start].bit_length()
        kind = int.from_bytes(content[start : start + length])
        start += length
        if length > 4 or start >= end:
            return
        length = 9 - content[start].bit_length()
        if length > 8 or start + length > end:
            return
        size = int.from_bytes(content[start : start + length]) & ((1 << 7 * length) - 1)
        is_unknown = size == (1 << 7 * length) - 1
        start += length
        stop = end if is_unknown else min(end, start + size)
        yield kind, start, stop
        start = stop


@cache
def _compiled() -> Any:
    """Compile the loop on first use, because importing numba is slow."""
    return compile_loop(_count, _element, _marked, _integer, _add_time)


def _count(data: Any, track: int, times: Any, is_key: Any) -> int:
    """Fill in the times of all frames, and whether they are key frames; return their number.

    Master elements that contain blocks are entered and all other elements are skipped, so only the
    position of the next element is needed. Returns -1 for unexpected content.
    """
    at = 0
    frames = 0
    segments = 0
    cluster_time = -1
    referenced = False  # whether the current group refers to other frames
    grouped = -1  # frame in the current group
    while at < len(data):
        kind, size, at = _element(data, at)
        if at < 0:
            return -1
        if kind == SEGMENT or kind == CLUSTER:
            segments += kind == SEGMENT
            cluster_time = -1
            continue
        if size < 0 or at + size > len(data) or segments != (kind != HEADER):
            return -1
        if kind == GROUP:
            referenced = False
            grouped = -1
            continue
        if kind == TIME:
            cluster_time = _integer(data, at, size)
        elif kind == REFERENCE:
            referenced = True
            if grouped >= 0:
                is_key[grouped] = False
        elif kind == SIMPLE_BLOCK or kind == BLOCK:
            frame = frames
            frames = _add_time(data, at, size, track, cluster_time, times, frame)
            if frames < 0:
                return -1
            if frames > frame:
                is_simple = kind == SIMPLE_BLOCK
                is_key[frame] = data[at + 3] & KEY != 0 if is_simple else not referenced
                grouped = -1 if is_simple else frame
        at += size
    return frames


def _element(data: Any, at: int) -> tuple[int, int, int]:
    """Return kind, size and start of the content of an element.

    The size is -1 if it is unknown, and the start is -1 if the element is not valid.
    """
    kind, at_size = _marked(data, at, 4)
    if at_size < 0:
        return 0, 0, -1
    size, start = _marked(data, at_size, 8)
    if start < 0:
        return 0, 0, -1
    unknown = (1 << 7 * (start - at_size)) - 1
    size &= unknown  # without the mark
    return kind, -1 if size == unknown else size, start


def _marked(data: Any, at: int, longest: int) -> tuple[int, int]:
    """Return an integer whose first bit set marks its length, and its end; -1 if not valid."""
    length, bit = 1, 0x80
    while bit and not data[at] & bit:
        bit >>= 1
        length += 1
    if length > longest or at + length >= len(data):
        return 0, -1
    return _integer(data, at, length), at + length


def _integer(data: Any, at: int, length: int) -> int:
    value = 0
    for place in range(at, at + length):
        value = value << 8 | int(data[place])
    return value


def _add_time(
    data: Any, at: int, size: int, track: int, cluster_time: int, times: Any, frames: int
) -> int:
    """Add the time of a block if it is of the track.

    Returns:
        The number of frames, or -1 for unexpected content.
    """
    if size < 4 or cluster_time < 0 or not data[at] & 0x80:
        return -1
    if data[at] & 0x7F != track:
        return frames
    if data[at + 3] & LACING or size == 4 or frames >= len(times):
        return -1
    offset = _integer(data, at + 1, 2)
    times[frames] = cluster_time + (offset - 0x10000 if offset & 0x8000 else offset)
    return frames + 1
