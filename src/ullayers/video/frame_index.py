"""Index of the key frames of a video file, by the number of frames before them."""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_right

from ullayers.video.frames import VideoError
from ullayers.video.matroska import key_frames
from ullayers.video.opening import OpenVideo, load_av, open_video
from ullayers.video.remote import is_url
from ullayers.video.seeking import (
    Candidate,
    UncertainError,
    counted_packets,
    has_complete_index,
    is_shown,
)

NOTICE_PACKETS = 1000  # packets between notifications of waiting threads
UNKNOWN = -(2**63)  # a time that the file does not have


class FrameIndex:
    """Key frames of a video file, in order.

    The index of an mp4, mov or AVI file is used directly. Other files are read in a separate
    thread: the block headers of a Matroska or WebM file, otherwise all packets. Key frames can be
    used as soon as they have been read. Those after a packet that cannot be counted are left out.

    Args:
        video: The open video; only its header is used.
        wait_for_need: Start to read packets only when `wait` is called.
    """

    def __init__(self, video: OpenVideo, *, wait_for_need: bool = False) -> None:
        self._before = array("q")
        self._pts = array("q")
        self._dts = array("q")
        self._frames = 0  # whose packets were counted
        self._finished = False
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._path = video.path
        self._is_matroska = "matroska" in video.container.format.name and not is_url(video.path)
        if has_complete_index(video):
            self._copy(video)
            self._finished = True
        elif not wait_for_need:
            self._start()

    def last(self, number: int) -> Candidate | None:
        """Return the last key frame with at most this many frames before it."""
        with self._changed:
            place = bisect_right(self._before, number) - 1
            if place < 0:
                return None
            pts, dts = self._pts[place], self._dts[place]
            return Candidate(
                None if pts == UNKNOWN else pts,
                None if dts == UNKNOWN else dts,
                self._before[place],
            )

    def covers(self, number: int) -> bool:
        """Return whether the last key frame before a frame is already known."""
        with self._changed:
            return self._finished or self._frames > number

    def wait(self, number: int) -> None:
        """Wait until the index covers a frame."""
        with self._changed:
            if not self._finished and self._thread is None:
                self._start()
            self._changed.wait_for(lambda: self._finished or self._frames > number)

    def close(self) -> None:
        """Stop reading packets and release waiting threads."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _copy(self, video: OpenVideo) -> None:
        """Copy the index of the file, up to its actual end."""
        entries = video.stream.index_entries
        if not entries[0].is_keyframe:
            return
        size = video.container.size
        is_whole = entries[-1].pos + entries[-1].size <= size
        frames = 0
        for entry in entries:
            if not is_whole and entry.pos + entry.size > size:
                break
            if entry.is_keyframe:
                self._add(frames, None, entry.timestamp)
            frames += not entry.is_discard

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._read, name="ullayers-index", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        """Count the frames of the file."""
        try:
            found = key_frames(self._path) if self._is_matroska else None
            if found is not None:
                times, before = found
                for pts, count in zip(times.tolist(), before.tolist(), strict=True):
                    # The first packets after a seek have no decoding time, so seek to before it.
                    self._add(count, pts, pts - 1)
                return
            with open_video(self._path) as video:
                frames = 0
                for place, packet in enumerate(counted_packets(video)):
                    if packet.is_keyframe:
                        self._add(frames, packet.pts, packet.dts)
                    frames += is_shown(packet)
                    if place % NOTICE_PACKETS == 0:
                        self._tell(frames)
                    if self._stop.is_set():
                        break
        except (VideoError, UncertainError, load_av().FFmpegError, OSError):
            pass  # the rest is decoded in order, and the decoder reports the error
        finally:
            with self._changed:
                self._finished = True
                self._changed.notify_all()

    def _add(self, before: int, pts: int | None, dts: int | None) -> None:
        with self._changed:
            self._before.append(before)
            self._pts.append(UNKNOWN if pts is None else pts)
            self._dts.append(UNKNOWN if dts is None else dts)

    def _tell(self, frames: int) -> None:
        with self._changed:
            self._frames = frames
            self._changed.notify_all()
