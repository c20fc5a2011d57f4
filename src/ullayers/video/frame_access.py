"""Random access to the frames of a source by number."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple, Self

import cv2
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ullayers.video.decoded_frames import KeptFrames
from ullayers.video.decoding import Clock, Damage, decode_packets, frame_to_tensor
from ullayers.video.frame_index import FrameIndex
from ullayers.video.numbered_frames import ImageFrames, NumberedFrames, no_frame
from ullayers.video.opening import OpenVideo, is_recorded, load_av, open_video
from ullayers.video.reader import Source, VideoError
from ullayers.video.remote import is_url, without_password
from ullayers.video.seeking import (
    CHECKED_FRAMES,
    Candidate,
    UncertainError,
    checked_frames,
    packets_from,
)

if TYPE_CHECKING:
    from av.packet import Packet
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

KEPT_BYTES = 2**26  # of decoded frames, as the decoder stores them
NEAR = 32  # frames ahead that are decoded in order instead of seeking
FIRST_STEP = 64  # frames to go back where a key frame cannot be used; doubled each time
MAX_PENDING = 128  # frames decoded before the number of their key frame is known
QUALITY = 85  # of JPEG
QUICK_SECONDS = 0.08  # of decoding; if it takes longer, a key frame is shown first


class FrameAccess:
    """Frames of a video file or a folder of images by their number.

    Frame n is frame n of a full decode, numbered as in `Clip.index` and the result tables. If the
    position of frame n in the file is uncertain, the file is decoded in order up to this frame,
    which takes longer. Instances may be shared by threads.

    Args:
        source: A video file or a folder of images.

    Raises:
        VideoError: The source cannot be read, or is live.

    Example:
        >>> import tempfile
        >>> from ullayers.video.reader import find_sources
        >>> from ullayers.video.writer import VideoWriter
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with VideoWriter(f"{folder}/a.mp4", fps=10) as video:
        ...         for t in range(20):
        ...             video.write(np.full((48, 64, 3), 10 * t, np.uint8))
        ...     with FrameAccess(find_sources([folder])[0]) as frames:
        ...         frame, small = frames.frame(15), frames.frame(3, width=32)
        >>> frame.shape, bool(abs(frame.mean() - 150) < 2), small.shape
        ((48, 64, 3), True, (24, 32, 3))
    """

    def __init__(self, source: Source) -> None:
        info = source.probe()
        self._size = info.height, info.width
        self._path = without_password(source.path)
        self._lock = threading.Lock()
        self._frames: NumberedFrames | None = _open(source)

    def frame(self, number: int, width: int | None = None) -> NDArray[np.uint8]:
        """Return a frame (height, width, 3) in RGB.

        Args:
            number: Number of the frame, from 0.
            width: Width of the result, with the aspect ratio of the frame; frames are not enlarged.

        Raises:
            VideoError: There is no such frame, or it cannot be decoded.
        """
        if number < 0:
            raise VideoError(f"{self._path}: there is no frame {number}; the first one is 0")
        frames = self._frames
        if frames is not None:
            frames.wait(number)  # without the lock: frames that are known now can be served
        with self._lock:
            if self._frames is None:
                raise VideoError(f"{self._path}: was closed; open it again")
            tensor = self._frames.render(number, self._scaled(width))
        return np.ascontiguousarray(tensor.permute(1, 2, 0).numpy())

    def jpeg(self, number: int, width: int | None = None, quality: int = QUALITY) -> bytes:
        """Return a frame as the bytes of a JPEG file.

        Args:
            number: Number of the frame, from 0.
            width: As in `frame`.
            quality: From 0 to 100.

        Raises:
            VideoError: There is no such frame, or it cannot be decoded.
        """
        pixels = cv2.cvtColor(self.frame(number, width), cv2.COLOR_RGB2BGR)
        return cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, quality])[1].tobytes()

    def quick(self, number: int) -> int:
        """Return the number of this frame if it can be decoded quickly, or of an earlier frame.

        Frames of large videos are slow to decode, and key frames may be far apart. While a user
        scrubs, the frame at the last key frame is good enough.

        Args:
            number: Number of the frame, from 0.
        """
        frames = self._frames
        return number if frames is None or number < 0 else frames.quick(number)

    def close(self) -> None:
        """Close the file."""
        frames = self._frames
        if frames is not None:
            frames.stop()
        with self._lock:
            if self._frames is not None:
                self._frames.close()
            self._frames = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _scaled(self, width: int | None) -> tuple[int, int]:
        """Return the (height, width) of a result."""
        own_height, own_width = self._size
        if width is not None and width < 1:
            raise ValueError(f"expected a width of at least 1, got {width}")
        if width is None or width >= own_width:
            return self._size
        return max(1, round(own_height * width / own_width)), width


def _open(source: Source) -> NumberedFrames:
    if source.kind == "images":
        return ImageFrames(source.path)
    if source.kind == "live" and not is_recorded(source.path):
        shown = without_password(source.path)
        raise VideoError(f"{shown}: is live; only the frames of files can be read again")
    return _Video(source.path)


class _Landing(NamedTuple):
    """Result of decoding from a key frame.

    Attributes:
        is_before: Whether the key frame is the requested frame or is shown before it.
        frame: The requested frame; None if the file ends before it.
    """

    is_before: bool
    frame: VideoFrame | None


class _Video:
    """Frames of a video file, decoded from the last key frame before them.

    Attributes:
        limit: Key frames with at least this many frames before them are not reliable.
        next: Number of the next frame of the decoder; infinity if it has to seek first.
        end: The error for frames after the last one, and the number of frames.
        cost: Recent decoding time per frame in seconds.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.kept = KeptFrames(KEPT_BYTES)
        self.reformatter = load_av().video.reformatter.VideoReformatter()
        self.stopped = threading.Event()
        self.stack = ExitStack()
        self.limit = math.inf
        self.next = math.inf
        self.end: tuple[str | None, int] | None = None
        self.is_start_checked = False
        self.cost = 0.0
        self._restart()
        self.index = FrameIndex(self.video, wait_for_need=is_url(path))

    def wait(self, number: int) -> None:
        if not self._is_near(number):
            self.index.wait(number)

    def quick(self, number: int) -> int:
        key = self.index.last(number) if self.index.covers(number) else None
        if key is None or self._is_near(number):
            return number
        return number if (number - key.before) * self.cost <= QUICK_SECONDS else key.before

    def _is_near(self, number: int) -> bool:
        return number in self.kept or self.next <= number <= self.next + NEAR

    def stop(self) -> None:
        self.stopped.set()
        self.index.close()

    def close(self) -> None:
        self.stack.close()

    def render(self, number: int, size: tuple[int, int]) -> Tensor:
        frame = self.kept.get(number) or self._decode(number)
        return frame_to_tensor(self.path, self.reformatter, frame, size, grey=False)

    def _decode(self, number: int) -> VideoFrame:
        if self.end is not None and number >= self.end[1]:
            raise self._no_frame(number)
        frame = None
        if not self.next <= number <= self.next + NEAR:
            frame = self._move(number)
        return self._decode_on(number) if frame is None else frame

    def _decode_on(self, number: int) -> VideoFrame:
        """Decode in order up to a frame."""
        message = None
        try:
            for frame, _, at in self.frames:
                self.kept.add(at, frame)
                self.next = at + 1
                if self.damage.first is not None:
                    self.limit = min(self.limit, self.damage.first)
                if at == number:
                    return frame
        except VideoError as error:
            message = error.reason
        if not self.stopped.is_set():
            self.end = message, self.clock.count
        self.next = math.inf
        raise self._no_frame(number)

    def _no_frame(self, number: int) -> VideoError:
        if self.end is None:
            return VideoError(f"{self.path}: was closed; open it again")
        message, count = self.end
        if message is not None:
            return VideoError(f"{message}; there is no frame {number}")
        return no_frame(self.path, number, count)

    # Where to decode from

    def _move(self, number: int) -> VideoFrame | None:
        """Seek to the last key frame before a frame, unless continuing to decode is faster.

        Returns:
            The frame, if it was decoded on the way.
        """
        self._check_start()
        step = FIRST_STEP
        candidate = self._key_before(number)
        while candidate is not None:
            if candidate.before <= self.next <= number:
                return None
            try:
                landing = self._start_at(candidate, number)
            except (load_av().FFmpegError, UncertainError):
                self._distrust(candidate)
                candidate = self._key_before(candidate.before - step)
                step *= 2
                continue
            if landing.is_before:
                return landing.frame
            candidate = self._key_before(candidate.before - 1)
        if self.next > number:
            self._restart()
        return None

    def _check_start(self) -> None:
        """Use no key frames if the first frames do not match the first packets."""
        first = self.index.last(0)
        if self.is_start_checked or first is None:
            return
        self.is_start_checked = True
        try:
            self._start_at(first, 0)
        except (load_av().FFmpegError, UncertainError):
            self._distrust(first)

    def _distrust(self, candidate: Candidate) -> None:
        """Stop using this key frame, later ones, and the frames decoded from it."""
        self.limit = candidate.before
        self.kept.clear()

    def _key_before(self, number: int) -> Candidate | None:
        return self.index.last(int(min(number, self.limit - 1)))

    def _start_at(self, candidate: Candidate, number: int) -> _Landing:
        """Decode from a key frame to a few frames after the requested one, and check each frame.

        Raises:
            UncertainError: Frames may not be those of a full decode.
        """
        self.next = math.inf
        began = time.perf_counter()
        packets = packets_from(self.video, candidate)
        key = next(packets, None)
        if key is None:
            raise UncertainError("the key frame is not where it should be")
        ahead = 0 if self.video.stream.codec_context.codec.intra_only else CHECKED_FRAMES
        clock: Clock | None = None
        wanted = None
        pending: list[VideoFrame] = []
        for frames, first in checked_frames(candidate, key, packets):
            pending += frames
            if first is None and len(pending) > MAX_PENDING:
                raise UncertainError("frames are too far out of order")
            if first is None:
                continue
            if candidate.before == 0 < first:
                raise UncertainError("the first frames need others before them")
            if first > number:
                return _Landing(False, None)
            clock = clock or Clock(self.video, first)
            for frame in pending:
                wanted = frame if clock.count == number else wanted
                self.kept.add(clock.count, frame)
                clock.tick(frame)
            pending.clear()
            if clock.count > number + ahead:
                break
        if clock is None:
            raise UncertainError("the file ends before the key frame")
        decoded = max(1, clock.count - candidate.before)
        self.cost = 0.5 * self.cost + 0.5 * (time.perf_counter() - began) / decoded
        self._go_on(packets, clock)
        return _Landing(True, wanted)

    def _restart(self) -> None:
        """Open the file again, to decode it from its beginning."""
        stack = ExitStack()
        self.video: OpenVideo = stack.enter_context(open_video(self.path))
        self.stack.close()
        self.stack = stack
        packets = self.video.container.demux(self.video.stream)
        self._go_on(packets, Clock(self.video))

    def _go_on(self, packets: Iterator[Packet[VideoStream]], clock: Clock) -> None:
        self.clock = clock
        self.damage = Damage()
        self.frames = decode_packets(self.video, packets, self.stopped, clock, self.damage)
        self.next = clock.count
