"""Sources of frames, read as clips that are decoded ahead in a background thread."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Generator, Hashable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ullayers.video import memory
from ullayers.video.camera.capture import load_cv2, needs_opencv, probe_camera, read_camera
from ullayers.video.clips import READ_AS_IS, Kind, TimedFrame
from ullayers.video.clips import Clip as Clip
from ullayers.video.clips import Info as Info
from ullayers.video.clips import Reading as Reading
from ullayers.video.clips import VideoError as VideoError
from ullayers.video.files.decoding import probe_video, read_video
from ullayers.video.files.finding import find_sequences, safe_name
from ullayers.video.files.images import list_images, probe_images, read_images
from ullayers.video.files.opening import CAMERAS, has_cameras, is_unpaused, open_video
from ullayers.video.parallel import read_ahead

CHUNK_BYTES = 2**28  # memory allocated for a chunk before its frames arrive
PROBES_KEPT = 256  # results of `Source.probe` that are remembered


@dataclass(frozen=True)
class Source:
    """One sequence: a video file, a folder (or quoted pattern) of images, a camera or a URL.

    Example:
        >>> import tempfile, numpy as np
        >>> from ullayers.video.files.writing import VideoWriter
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with VideoWriter(f"{folder}/a.mp4", fps=10) as video:
        ...         for _ in range(5):
        ...             video.write(np.zeros((48, 64, 3), np.uint8))
        ...     [source] = find_sources([folder])
        ...     [clip.index.tolist() for clip in source.clips(2, Reading(grey=True))]
        [[0, 1], [2, 3], [4]]
    """

    name: str
    path: str
    kind: Kind

    def probe(self) -> Info:
        """Return frame size, frame rate and number of frames.

        The header and the first frame are read once, and the result is cached until a file changes;
        cameras and streams are opened each time.
        """
        if self.kind == "live":
            needs = needs_opencv(self.path, live=True)
            return probe_camera(self.path) if needs else probe_video(self.path, live=True)
        return _probe_unchanged(self.path, self.kind, _file_state(self.path, self.kind))

    def clips(
        self, length: int, reading: Reading = READ_AS_IS, *, ahead: int = 2
    ) -> Generator[Clip, None, None]:
        """Yield consecutive chunks of frames, decoded ahead in the background.

        Close the generator to stop early. A camera does not wait: if its reader is slow, whole
        chunks are left out, which `index` shows.

        Args:
            length: Number of frames per chunk; the last may be shorter.
            reading: Options for reading.
            ahead: Number of chunks to decode ahead.

        Raises:
            VideoError: After the readable frames, if some cannot be read.
        """
        if length < 1 or ahead < 1:
            raise ValueError(f"expected length and ahead of at least 1, got {length}, {ahead}")
        stop = threading.Event()
        live = self.kind == "live"
        if self.kind == "images":
            frames = read_images(self.path, reading, stop)
        elif needs_opencv(self.path, live):
            frames = read_camera(self.path, reading, stop)
        else:
            frames = read_video(self.path, live, reading, stop)
        newest = is_unpaused(self.path, live)
        return read_ahead(_chunks(frames, length, reading.interleaved), ahead, stop, newest)


def find_sources(paths: Sequence[str], bad: dict[str, str] | None = None) -> list[Source]:
    """Return every sequence in `paths`, in natural order within each path.

    Args:
        paths: Video files, folders of images (one sequence each), folders of videos or of such
            folders (many sequences), or quoted patterns. A file is a video if it can be opened as
            one.
        bad: If given, inputs that cannot be read are added here with their error and left out.

    Raises:
        VideoError: If a path does not exist or contains something that cannot be read.

    Example:
        >>> find_sources(["nowhere/*.mp4"])
        Traceback (most recent call last):
        ullayers.video.clips.VideoError: nowhere/*.mp4: nothing matches this pattern
    """
    sequences = find_sequences([paths] if isinstance(paths, str) else paths, bad)
    return [Source(one.name, one.path, one.kind) for one in sequences]


def open_live(path: str) -> Source:
    """Return a file played as a stream, a camera (0 or /dev/video0) or a URL as a source.

    Where PyAV cannot read cameras (on Windows, and in builds without them), OpenCV does:
    pip install opencv-python-headless.

    Example:
        >>> open_live("rtsp://user:secret@door.local/hall").name
        'door.local_hall'
    """
    if "://" in path:
        return Source(safe_name(re.sub(r"^\w+://(.*@)?|[?#].*", "", path)), path, "live")
    if os.path.isfile(path):
        with open_video(path):
            return Source(safe_name(Path(path).stem), path, "live")
    if not path.isdecimal() and not path.startswith("/dev/video"):
        what = "is not a file" if os.path.exists(path) else "does not exist"
        raise VideoError(f"{path}: {what}; give a video file, a camera (0, 1, ...) or a URL")
    return _open_camera(path)


def read_all(source: Source, reading: Reading = READ_AS_IS) -> Clip:
    """Read the whole source as one clip.

    Raises:
        VideoError: If any of it cannot be read.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for number in range(10):
        ...         Image.new("RGB", (64, 48)).save(f"{folder}/{number}.png")
        ...     clip = read_all(find_sources([folder])[0], Reading(stride=4))
        >>> clip.frames.shape, clip.index.tolist()
        (torch.Size([3, 3, 48, 64]), [0, 4, 8])
    """
    return Clip.join(list(source.clips(64, reading)))


def _open_camera(path: str) -> Source:
    if not has_cameras():
        load_cv2()  # report a missing package now, not when the first frame is read
    _, device = CAMERAS.get(sys.platform, ("", "{}"))
    path = device.format(path) if path.isdecimal() else path
    if path.startswith("/") and not os.path.exists(path):
        raise VideoError(f"{path}: no such camera; ls /dev/video* lists the cameras")
    number = path.removeprefix("/dev/video").split(":")[0]
    return Source(safe_name(f"camera{number}"), path, "live")


# Probing


@lru_cache(maxsize=PROBES_KEPT)
def _probe_unchanged(path: str, kind: Kind, state: Hashable) -> Info:
    """Probe files; `state` makes the cache forget files that have changed."""
    return probe_images(path) if kind == "images" else probe_video(path)


def _file_state(path: str, kind: Kind) -> Hashable:
    """Return a value that changes with the files of a source."""
    files = list_images(path) if kind == "images" else [path]
    return hash(tuple((file, *_stat(file)) for file in files))


def _stat(file: str) -> tuple[int, ...]:
    try:
        stat = os.stat(file)
    except OSError:
        return ()
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


# Chunks of frames


def _chunks(
    frames: Generator[TimedFrame, None, None], length: int, interleaved: bool
) -> Generator[Clip, None, None]:
    """Group frames into clips; frames read before an error are yielded before it is raised."""
    error: VideoError | None = None
    with closing(frames):  # frees a camera even while a traceback still refers to the generator
        while error is None:
            clip, error = _collect(islice(frames, length), length, interleaved)
            if clip is None:
                break
            yield clip
    if error is not None:
        raise error


def _collect(
    frames: Iterator[TimedFrame], length: int, interleaved: bool
) -> tuple[Clip | None, VideoError | None]:
    """Return up to `length` frames as a clip, and the error that ended reading, if any."""
    pixels = torch.empty(0)
    seconds: list[float] = []
    index: list[int] = []
    error = None
    try:
        for frame, time, number in frames:
            # Filled in place: a list of frames and its stack would take twice the memory.
            if not index:
                room = min(length, max(1, CHUNK_BYTES // frame.numel()))
                pixels = _room((room, *frame.shape), interleaved)
            elif len(index) == len(pixels):
                more = min(len(pixels), length - len(pixels))
                pixels = torch.cat([pixels, torch.empty_like(pixels[:more])])
            pixels[len(index)] = frame
            seconds.append(time)
            index.append(number)
    except VideoError as caught:
        error = caught
    if not index:
        return None, error
    if len(index) < len(pixels):
        pixels = pixels[: len(index)].clone()
    return Clip(pixels, torch.tensor(seconds, dtype=torch.float64), torch.tensor(index)), error


def _room(shape: tuple[int, ...], interleaved: bool) -> Tensor:
    """Return memory for frames of the shape (count, channels, height, width)."""
    # NumPy asks for huge pages, which the system provides several times faster.
    if interleaved:
        count, channels, height, width = shape
        pixels = memory.empty((count, height, width, channels), np.uint8)
        return torch.from_numpy(pixels).permute(0, 3, 1, 2)
    return torch.from_numpy(memory.empty(shape, np.uint8))
