"""Single frames by their number, in any order: seek to a key frame and decode up to the frame."""

from __future__ import annotations

import math
import threading
import time
from array import array
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Self

import cv2
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ullayers.video.clips import VideoError
from ullayers.video.files.decoding import Clock, Damage, decode_packets, frame_to_tensor
from ullayers.video.files.images import list_images, render_image
from ullayers.video.files.opening import (
    OpenVideo,
    is_recorded,
    is_url,
    load_av,
    open_video,
    without_password,
)
from ullayers.video.files.seeking import (
    CHECKED_FRAMES,
    Start,
    Timestamps,
    UncertainError,
    checked_frames,
    count_frames,
    next_key_frame,
    seek,
)
from ullayers.video.sources import Source

if TYPE_CHECKING:
    from av.packet import Packet
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

KEPT_BYTES = 2**26  # of decoded frames, as the decoder stores them
NEAR = 32  # frames ahead that are decoded in order instead of seeking
QUALITY = 85  # of JPEG
QUICK_SECONDS = 0.08  # of decoding; if it takes longer, a key frame is shown first


class FrameAccess:
    """Frames of a video file or a folder of images by their number.

    Frame n is frame n of a full decode, numbered as in `Clip.index` and the result tables. If the
    position of frame n in the file is uncertain, the file is decoded in order up to this frame,
    which takes longer. Instances may be shared by threads.

    The index of an mp4, mov or AVI file is used directly. The times of frames in other files are
    counted by reading their packets once, in a thread; give `times` to save that.

    Args:
        source: A video file or a folder of images.
        times: Times of the frames from 0 on in seconds, as `FrameTimes` notes them; NaN before the
            first known one. Frames after the last known one are found by decoding on from it.

    Raises:
        VideoError: The source cannot be read, or is live.

    Example:
        >>> import tempfile
        >>> from ullayers.video.sources import find_sources
        >>> from ullayers.video.files.writing import VideoWriter
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with VideoWriter(f"{folder}/a.mp4", fps=10) as video:
        ...         for t in range(20):
        ...             video.write(np.full((48, 64, 3), 10 * t, np.uint8))
        ...     with FrameAccess(find_sources([folder])[0]) as frames:
        ...         frame, small = frames.frame(15), frames.frame(3, width=32)
        >>> frame.shape, bool(abs(frame.mean() - 150) < 2), small.shape
        ((48, 64, 3), True, (24, 32, 3))
    """

    def __init__(self, source: Source, times: NDArray[np.float64] | None = None) -> None:
        info = source.probe()
        self._size = info.height, info.width
        self._path = without_password(source.path)
        self._lock = threading.Lock()
        self._is_open = True
        self._files = list_images(source.path) if source.kind == "images" else None
        if source.kind == "live" and not is_recorded(source.path):
            raise VideoError(f"{self._path}: is live; only the frames of files can be read again")
        self._video = None if self._files is not None else _Video(source.path, times)

    def frame(self, number: int, width: int | None = None) -> NDArray[np.uint8]:
        """Return a frame (height, width, 3) in RGB.

        Args:
            number: Number of the frame, from 0.
            width: Width of the result, with the aspect ratio of the frame; frames are not enlarged.

        Raises:
            VideoError: There is no such frame, or it cannot be decoded.
        """
        own_height, own_width = self._size
        if width is not None and width < 1:
            raise ValueError(f"expected a width of at least 1, got {width}")
        size = self._size
        if width is not None and width < own_width:
            size = max(1, round(own_height * width / own_width)), width
        return np.ascontiguousarray(self.render(number, size).permute(1, 2, 0).numpy())

    def render(self, number: int, size: tuple[int, int]) -> Tensor:
        """Return a frame as (3, height, width), at any (height, width).

        Args:
            number: Number of the frame, from 0.
            size: Height and width of the result.

        Raises:
            VideoError: There is no such frame, or it cannot be decoded.
        """
        if number < 0:
            raise VideoError(f"{self._path}: there is no frame {number}; the first one is 0")
        if self._video is not None:
            self._video.wait(number)  # without the lock: frames known now can be served meanwhile
        with self._lock:
            if not self._is_open:
                raise VideoError(f"{self._path}: was closed; open it again")
            if self._video is not None:
                return self._video.render(number, size)
            assert self._files is not None
            if number >= len(self._files):
                raise _no_frame(self._path, number, len(self._files))
            return render_image(self._files[number], size)

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
        with self._lock:
            if self._video is None or not self._is_open or number < 0:
                return number
            return self._video.quick(number)

    def close(self) -> None:
        """Close the file."""
        if self._video is not None:
            self._video.stop()
        with self._lock:
            if self._video is not None and self._is_open:
                self._video.stack.close()
            self._is_open = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class FrameTimes:
    """Times of the frames of a video, noted while it is decoded for another purpose.

    Example:
        >>> import tempfile
        >>> from ullayers.video.sources import Reading, find_sources, read_all
        >>> from ullayers.video.files.writing import VideoWriter
        >>> times = FrameTimes()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with VideoWriter(f"{folder}/a.mp4", fps=10) as video:
        ...         for t in range(20):
        ...             video.write(np.full((48, 64, 3), 10 * t, np.uint8))
        ...     [source] = find_sources([folder])
        ...     clip = read_all(source, Reading(stride=4, timed=times.note))
        ...     with FrameAccess(source, times.seconds()) as frames:
        ...         frame = frames.frame(15)
        >>> times.seconds()[[0, 15, 19]].tolist(), bool(abs(frame.mean() - 150) < 2)
        ([0.0, 1.5, 1.9], True)
    """

    def __init__(self) -> None:
        self._seconds = array("d")

    def note(self, number: int, seconds: float) -> None:
        """Note the time of the next frame; for `Reading.timed`."""
        self._seconds.extend([math.nan] * (number - len(self._seconds)))
        self._seconds.append(seconds)

    def seconds(self) -> NDArray[np.float64]:
        """Return the time of each frame, NaN before the first noted one."""
        return np.array(self._seconds, np.float64)


def _no_frame(path: str, number: int, count: int) -> VideoError:
    """Return the error for a frame after the last one."""
    return VideoError(f"{path}: there is no frame {number}; the last of {count} is {count - 1}")


class _Video:
    """Frames of a video file, decoded from a key frame before them.

    Attributes:
        limit: Key frames are used up to this frame; others are not reliable.
        next: Number of the next frame of the decoder; infinity if it has to seek first.
        end: The error for frames after the last one, and the number of frames.
        cost: Recent decoding time per frame in seconds.
    """

    def __init__(self, path: str, seconds: NDArray[np.float64] | None) -> None:
        self.path = path
        self.kept: dict[int, VideoFrame] = {}  # the latest ones, in the order of decoding
        self.decoded = 0  # number of frames
        self.reformatter = load_av().video.reformatter.VideoReformatter()
        self.stopped = threading.Event()
        self.stack = ExitStack()
        self.limit = math.inf
        self.next = math.inf
        self.end: tuple[str | None, int] | None = None
        self.cost = 0.0
        self.is_start_checked = False
        self._restart()
        known = None if seconds is None else Timestamps.of_seconds(self.video, seconds)
        self.times = known or Timestamps.of_file(self.video)
        self.executor = ThreadPoolExecutor(1, "ullayers-index")
        self.counting: Future[Timestamps] | None = None
        if self.times is None and not is_url(path):
            self.counting = self.executor.submit(count_frames, path, self.stopped)

    def wait(self, number: int) -> None:
        """Wait until it is known how to find a frame; called by any thread."""
        if self.times is None and not self._is_near(number):
            with suppress(RuntimeError):  # closed by another thread
                self.counting = self.counting or self.executor.submit(
                    count_frames, self.path, self.stopped
                )
            if self.counting is not None:
                self.times = self.counting.result()

    def stop(self) -> None:
        """Make `wait` return; called by any thread."""
        self.stopped.set()
        self.executor.shutdown()

    def quick(self, number: int) -> int:
        """Return the number of a frame that can be decoded quickly."""
        if self.times is None or self._is_near(number) or number >= self.limit:
            return number
        self.next = math.inf
        try:
            start = seek(self.video, self.times, number)
        except (load_av().FFmpegError, UncertainError):
            return number
        if start is None or (number - start.key.number) * self.cost <= QUICK_SECONDS:
            return number
        return start.key.number

    def render(self, number: int, size: tuple[int, int]) -> Tensor:
        """Return a frame as (3, height, width)."""
        frame = self.kept.get(number)
        if frame is None:
            if self.end is not None and number >= self.end[1]:
                raise self._no_frame(number)
            began, before = time.perf_counter(), self.decoded
            if not self._is_near(number):
                frame = self._move(number)
            frame = frame or self._decode_on(number)
            seconds = (time.perf_counter() - began) / max(1, self.decoded - before)
            self.cost = 0.5 * self.cost + 0.5 * seconds
        return frame_to_tensor(self.path, self.reformatter, frame, size, grey=False)

    def _keep(self, number: int, frame: VideoFrame) -> None:
        """Keep a decoded frame, in place of the oldest ones."""
        self.decoded += 1
        self.kept.pop(number, None)
        self.kept[number] = frame
        size = sum(plane.buffer_size for plane in frame.planes)
        while len(self.kept) > max(1, KEPT_BYTES // size):
            del self.kept[next(iter(self.kept))]

    def _is_near(self, number: int) -> bool:
        return number in self.kept or self.next <= number <= self.next + NEAR

    def _decode_on(self, number: int) -> VideoFrame:
        """Decode in order up to a frame."""
        message = None
        try:
            for frame, _, at in self.frames:
                if self.times is not None and self.limit > 0 and self.times.differ(at, frame):
                    self._distrust(0)
                    self._restart()
                    return self._decode_on(number)
                self._keep(at, frame)
                self.next = at + 1
                if self.damage.first is not None and not self._are_exact:
                    self.limit = min(self.limit, self.damage.first)
                if at == number:
                    return frame
        except VideoError as error:
            message = error.reason
        if not self.stopped.is_set():
            self.end = message, self.clock.count
        self.next = math.inf
        raise self._no_frame(number)

    @property
    def _are_exact(self) -> bool:
        """Whether times of decoded frames are known."""
        return self.times is not None and self.times.are_exact

    def _no_frame(self, number: int) -> VideoError:
        if self.end is None:
            return VideoError(f"{self.path}: was closed; open it again")
        message, count = self.end
        if message is not None:
            return VideoError(f"{message}; there is no frame {number}")
        return _no_frame(without_password(self.path), number, count)

    def _move(self, number: int) -> VideoFrame | None:
        """Move to a key frame before a frame.

        Returns:
            The frame, if it was decoded on the way.
        """
        self.wait(number)
        if self.times is None:
            raise self._no_frame(number)
        self._check_start(self.times)
        while self.limit > 0 and not self.limit <= self.next <= number:
            reachable = int(min(number, self.limit - 1))
            self.next = math.inf
            start = None
            try:
                start = seek(self.video, self.times, reachable)
                if start is None:
                    break
                return self._follow(start, reachable, number)
            except (load_av().FFmpegError, UncertainError):
                self._distrust(0 if start is None else start.key.number)
        if self.next > number:
            self._restart()
        return None

    def _check_start(self, times: Timestamps) -> None:
        """Use no key frames if the first frames do not match the first packets or times."""
        if self.is_start_checked:
            return
        self.is_start_checked = True
        if self.next > 0:
            self._restart()
        if times.are_exact:
            with suppress(VideoError):
                self._decode_on(CHECKED_FRAMES)
            return
        try:
            before = times.before(0)
            start = before and next_key_frame(self.video, times, *before)
            if start is None or start.key.number > 0:
                raise UncertainError("the first frames need others before them")
            self._follow(start, 0, 0)
        except (load_av().FFmpegError, UncertainError):
            self._distrust(0)
            self.next = math.inf

    def _distrust(self, number: int) -> None:
        """Stop using key frames from this frame on, and the frames decoded from them."""
        self.limit = number
        self.kept.clear()

    def _follow(self, start: Start, reachable: int, number: int) -> VideoFrame | None:
        """Decode from a key frame to a few frames after a reachable one, and check each frame.

        Returns:
            The requested frame, if it is among them.

        Raises:
            UncertainError: Frames may not be those of a full decode.
        """
        clock = Clock(self.video, start.key.number)
        wanted = None
        if not self._are_exact:  # otherwise frames are compared with their times
            intra_only = self.video.stream.codec_context.codec.intra_only
            ahead = 0 if intra_only else CHECKED_FRAMES
            for frame in checked_frames(start):
                wanted = frame if clock.count == number else wanted
                self._keep(clock.count, frame)
                clock.tick(frame)
                if clock.count > reachable + ahead:
                    break
        self._go_on(start.packets, clock)
        return wanted

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
