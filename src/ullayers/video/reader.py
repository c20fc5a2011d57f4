"""Files, folders, cameras -> Clip: frames with their times, decoded ahead and never all at once."""

from __future__ import annotations

import glob
import os
import queue
import re
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, islice
from itertools import count as numbers
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ullayers.video.capture import load_cv2, needs_opencv, probe_camera, read_camera
from ullayers.video.frames import (
    CAMERAS,
    LARGE,
    PATIENCE,
    PICTURE_RATE,
    PICTURES,
    READ_AS_IS,
    VIDEOS,
    Item,
    Kind,
    decode_frames,
    has_cameras,
    is_unpaused,
    list_folder,
    load_av,
    open_video,
    probe_pictures,
    quarter_turns,
    read_pictures,
    read_video,
    suffix_of,
)
from ullayers.video.frames import Clip as Clip
from ullayers.video.frames import Info as Info
from ullayers.video.frames import Reading as Reading
from ullayers.video.frames import VideoError as VideoError
from ullayers.video.frames import natural_key as natural_key


def _chunks(items: Generator[Item, None, None], length: int) -> Generator[Clip, None, None]:
    """Clips of `length`; what was read before an error is handed on before the error is."""
    error: VideoError | None = None
    with closing(items):  # a camera is free at once, whoever still holds an error's traceback
        while error is None:
            clip, error = _collect(islice(items, length), length)
            if clip is None:
                break
            yield clip
    if error is not None:
        raise error


def _collect(items: Iterator[Item], length: int) -> tuple[Clip | None, VideoError | None]:
    frames, error = torch.empty(0), None
    seconds: list[float] = []
    index: list[int] = []
    try:
        for picture, when, number in items:
            if not index:  # filled in place: a list and its stack would be two chunks in memory
                room = min(length, max(64, LARGE // picture.numel()))
                frames = torch.empty(room, *picture.shape, dtype=torch.uint8)
            elif len(index) == len(frames):
                more = min(len(frames), length - len(frames))
                frames = torch.cat([frames, torch.empty_like(frames[:more])])
            frames[len(index)] = picture
            seconds.append(when)
            index.append(number)
    except VideoError as caught:
        error = caught
    if not index:
        return None, error
    frames = frames if len(frames) == len(index) else frames[: len(index)].clone()
    return Clip(frames, torch.tensor(seconds, dtype=torch.float64), torch.tensor(index)), error


def _in_background(
    clips: Generator[Clip, None, None], ahead: int, stop: threading.Event, newest: bool
) -> Generator[Clip, None, None]:
    """Hand on what a thread reads. With `newest`, a full queue loses its oldest clip."""
    box: queue.Queue[Clip | Exception | None] = queue.Queue(ahead)

    def work() -> None:
        end = None
        try:
            with closing(clips):
                for clip in clips:
                    if stop.is_set():
                        return
                    if newest and box.full():
                        _empty(box, 1)
                    box.put(clip)
        except Exception as error:
            end = error
        if not stop.is_set():
            box.put(end)

    thread = threading.Thread(target=work, name="ullayers-video", daemon=True)
    try:
        thread.start()  # in the block, so that an interrupt here stops the thread, too
        while (got := box.get()) is not None:
            if isinstance(got, Exception):
                raise got
            yield got
    finally:
        stop.set()
        _empty(box, ahead)  # makes room, so that a waiting put ends and the thread sees `stop`
        with suppress(RuntimeError):  # interrupted while it starts: it will see `stop`
            thread.join(2 * PATIENCE)


def _empty(box: queue.Queue[Any], count: int) -> None:
    for _ in range(count):
        with suppress(queue.Empty):
            box.get_nowait()


@dataclass(frozen=True)
class Source:
    """One sequence: a video file, a folder (or quoted pattern) of pictures, a camera or a URL.

    Example:
        >>> import tempfile, numpy as np
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
        """Look at the header and the first frame."""
        if self.kind == "images":
            return probe_pictures(self.path)
        live = self.kind == "live"
        if needs_opencv(self.path, live):
            return probe_camera(self.path)
        with open_video(self.path, live) as (container, stream):
            frame, _ = next(decode_frames(self.path, live, container, stream, threading.Event()))
            swap = -1 if quarter_turns(frame) % 2 else 1
            width, height = (frame.width, frame.height)[::swap]
            rate = stream.average_rate or stream.guessed_rate
            frames = stream.frames  # zero in Matroska, whose header has a duration instead
            if not frames and container.duration and rate and not live:
                frames = round(container.duration * 1e-6 * float(rate))
            return Info(width, height, float(rate) if rate else None, frames or None)

    def clips(
        self, length: int, reading: Reading = READ_AS_IS, *, ahead: int = 2
    ) -> Generator[Clip, None, None]:
        """Consecutive chunks of up to `length` frames, `ahead` of them decoded in the background.

        A broken file gives the frames that can be read and then raises VideoError. Close the
        generator to stop early. A camera does not wait: if its reader is slow, whole chunks are
        left out, which `index` shows.
        """
        if length < 1 or ahead < 1:
            raise ValueError(f"expected length and ahead of at least 1, got {length}, {ahead}")
        stop, live = threading.Event(), self.kind == "live"
        if self.kind == "images":
            items = read_pictures(self.path, reading, stop)
        elif needs_opencv(self.path, live):
            items = read_camera(self.path, reading, stop)
        else:
            items = read_video(self.path, live, reading, stop)
        newest = is_unpaused(self.path, live)
        return _in_background(_chunks(items, length), ahead, stop, newest)


def find_sources(paths: Sequence[str], bad: dict[str, str] | None = None) -> list[Source]:
    """Every sequence in `paths`, in natural order within each path.

    A path is a video file, a folder of pictures (one sequence), a folder of videos or of such
    folders (many), or a quoted pattern. A file is a video if it can be opened as one.

    Args:
        paths: where to look.
        bad: if given, what cannot be read is written here, with its error, and left out.

    Raises:
        VideoError: a path does not exist or holds something that cannot be read.

    Example:
        >>> find_sources(["nowhere/*.mp4"])
        Traceback (most recent call last):
        ullayers.video.frames.VideoError: nowhere/*.mp4: nothing matches this pattern
    """
    paths = [paths] if isinstance(paths, str) else list(paths)
    if not paths:
        raise VideoError("expected at least one video file, folder or pattern")
    found: dict[str, tuple[Kind, str]] = {}  # by real path: naming a file twice reads it once
    for path in paths:
        try:
            there = _find(os.path.expanduser(os.fspath(path)), bad)
        except VideoError as error:
            if bad is None:
                raise error.among(len(paths)) from None
            bad.setdefault(path, str(error))
            continue
        for kind, place in there:
            found.setdefault(os.path.realpath(place), (kind, place))
    places = list(found.values())
    names = _names([_folder_of(place) if kind == "images" else place for kind, place in places])
    return [Source(name, path, kind) for name, (kind, path) in zip(names, places, strict=True)]


def open_live(path: str) -> Source:
    """A file played as a stream, a camera (0 or /dev/video0) or a URL.

    Where PyAV reads no cameras (on Windows, in builds without them) OpenCV does:
    pip install 'ullayers[camera]'.

    Example:
        >>> open_live("rtsp://user:secret@door.local/hall").name
        'door.local_hall'
    """
    if "://" in path:
        return Source(_safe(re.sub(r"^\w+://(.*@)?|[?#].*", "", path)), path, "live")
    if os.path.isfile(path):
        with open_video(path):
            return Source(_safe(Path(path).stem), path, "live")
    if not path.isdecimal() and not path.startswith("/dev/video"):
        what = "is no file" if os.path.exists(path) else "does not exist"
        raise VideoError(f"{path}: {what}; give a video file, a camera (0, 1, ...) or a URL")
    if not has_cameras():
        load_cv2()  # that it is missing is said here, not when the first frame is asked for
    _, device = CAMERAS.get(sys.platform, ("", "{}"))
    path = device.format(path) if path.isdecimal() else path
    if path.startswith("/") and not os.path.exists(path):
        raise VideoError(f"{path}: no such camera; ls /dev/video* lists those there are")
    return Source(_safe(f"camera{path.removeprefix('/dev/video').split(':')[0]}"), path, "live")


def read_all(source: Source, reading: Reading = READ_AS_IS) -> Clip:
    """The whole source as one clip; VideoError if any of it cannot be read.

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


class VideoWriter:
    """Writes an mp4 that appears under its name only when it is complete.

    Args:
        path: the file to write; replaced if it exists.
        fps: frames a second.

    Example:
        >>> import tempfile, torch
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with VideoWriter(f"{folder}/a.mp4", fps=25) as video:
        ...         video.write(torch.zeros(3, 47, 63, dtype=torch.uint8))
        ...     find_sources([f"{folder}/a.mp4"])[0].probe()
        Info(width=64, height=48, rate=25.0, frames=1)
    """

    def __init__(self, path: str | os.PathLike[str], fps: float = PICTURE_RATE) -> None:
        if not 0 < fps < 1000:
            raise ValueError(f"expected between 0 and 1000 frames a second, got {fps}")
        self.path, self.rate = Path(path), Fraction(fps).limit_denominator(1001)
        if not self.path.parent.is_dir():
            raise VideoError(f"{path}: its folder does not exist; make it first")
        self._partial = self.path.with_name(f".{uuid.uuid4().hex}.part")
        self._shape: tuple[int, ...] | None = None

    def __enter__(self) -> VideoWriter:
        self._container = load_av().open(str(self._partial), "w", format="mp4")
        return self

    def write(self, frame: np.ndarray[Any, Any] | Tensor) -> None:
        """Add one uint8 RGB frame: (height, width, 3) array or (3, height, width) tensor."""
        picture = frame.permute(1, 2, 0).cpu().numpy() if isinstance(frame, Tensor) else frame
        if picture.ndim != 3 or picture.shape[2] != 3 or picture.dtype != np.uint8:
            raise ValueError(f"expected a uint8 RGB frame, got {frame.dtype} {tuple(frame.shape)}")
        if self._shape is None:
            self._start(picture.shape)
        if picture.shape != self._shape:
            raise ValueError(f"expected frames of shape {self._shape}, got {picture.shape}")
        odd = [(0, side % 2) for side in picture.shape[:2]]  # H.264 halves the colour's sides
        picture = np.ascontiguousarray(np.pad(picture, [*odd, (0, 0)], mode="edge"))
        self._container.mux(self._stream.encode(load_av().VideoFrame.from_ndarray(picture)))

    def _start(self, shape: tuple[int, ...]) -> None:
        codec = "libx264" if "libx264" in load_av().codecs_available else "mpeg4"
        self._shape, self._stream = shape, self._container.add_stream(codec, rate=self.rate)
        self._stream.height, self._stream.width = (side + side % 2 for side in shape[:2])
        self._stream.pix_fmt = "yuv420p"  # the one that every browser plays
        good = {"crf": "20", "preset": "veryfast"}, {"flags": "+qscale", "global_quality": "354"}
        self._stream.options = good[codec != "libx264"]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        try:
            if kind is None and self._shape is None:
                raise VideoError(f"{self.path}: no frame was written")
            if kind is None:
                self._container.mux(self._stream.encode())
            with nullcontext() if kind is None else suppress(Exception):
                self._container.close()
            if kind is None:
                os.replace(self._partial, self.path)
        finally:
            self._partial.unlink(missing_ok=True)


def _find(path: str, bad: dict[str, str] | None) -> list[tuple[Kind, str]]:
    """The sequences of one path; pictures are known by their suffix, videos by opening them."""
    if os.path.isfile(path):
        with open_video(path):
            return [("video", path)]
    if not os.path.isdir(path):
        if glob.has_magic(path):
            return _match(path, bad)
        if "://" in path:
            where = path.rpartition("@")[2]  # no password in a message
            raise VideoError(f"{where}: is an address; save it as a file, or use ul watch")
        if os.path.exists(path):  # a pipe has no end to go back from, and is read several times
            raise VideoError(f"{path}: is no file but a pipe or a device; save it as a file first")
        raise VideoError(f"{path}: does not exist; check the spelling")
    entries = list_folder(path)
    found = _flat(path, entries, bad)
    for entry in filter(_is_no_run, entries):
        found += _flat(entry, list_folder(entry), bad) if os.path.isdir(entry) else []
    if not found:
        what = "no picture and no video in it or in its folders" if entries else "an empty folder"
        raise VideoError(f"{path}: {what}; give a video file or a folder of pictures or videos")
    return found


def _is_no_run(folder: str) -> bool:
    """A run that was put beside its videos holds a video of its own."""
    return not all(os.path.exists(f"{folder}/{name}") for name in ("config.json", "metrics.jsonl"))


def _match(pattern: str, bad: dict[str, str] | None) -> list[tuple[Kind, str]]:
    matches = sorted(glob.glob(pattern, recursive=True), key=natural_key)
    if not matches:
        raise VideoError(f"{pattern}: nothing matches this pattern")
    folders: dict[str, list[str]] = {}
    for file in filter(os.path.isfile, matches):
        folders.setdefault(os.path.dirname(file), []).append(file)
    found: list[tuple[Kind, str]] = []
    for folder, files in folders.items():
        found += _flat(os.path.join(glob.escape(folder), os.path.basename(pattern)), files, bad)
    for match in matches:
        if os.path.isdir(match) and match.rstrip("/") not in folders:
            found += _find(match, bad)
    if not found:
        raise VideoError(f"{pattern}: matches no picture and no video")
    return found


def _flat(place: str, entries: list[str], bad: dict[str, str] | None) -> list[tuple[Kind, str]]:
    """The sequences among the files of one folder."""
    files = [entry for entry in entries if os.path.isfile(entry)]
    if not any(suffix_of(file) in PICTURES for file in files):
        return [("video", file) for file in files if _is_video(file, bad, len(files))]
    if any(suffix_of(file) in VIDEOS for file in files):
        raise VideoError(f"{place}: holds pictures and videos; say which, as in '*.mp4'")
    return [("images", place)]


def _is_video(file: str, bad: dict[str, str] | None, count: int) -> bool:
    try:
        with open_video(file):
            return True
    except VideoError as error:
        if suffix_of(file) in VIDEOS:  # it was meant to be read: leaving it out would hide a loss
            if bad is None:
                raise error.among(count) from None
            bad[file] = str(error)
        return False


def _folder_of(place: str) -> str:
    return place if os.path.isdir(place) else os.path.dirname(place)


def _names(paths: list[str]) -> list[str]:
    """Short names; with the parent folder's where two would be alike, then numbered."""
    whole = [Path(os.path.abspath(path)) for path in paths]
    short = [_safe(path.name if path.is_dir() else path.stem) for path in whole]
    count = Counter(name.casefold() for name in short)  # as file systems may not tell case apart
    names: dict[str, str] = {}
    for name, path in zip(short, whole, strict=True):
        base = name if count[name.casefold()] == 1 else _safe(f"{path.parent.name}_{name}")
        tries = chain([base], (f"{base}-{n}" for n in numbers(2)))
        name = next(one for one in tries if one.casefold() not in names)
        names[name.casefold()] = name
    return list(names.values())


def _safe(name: str) -> str:
    return re.sub(r"[^\w.+-]+", "_", name).strip("._-")[:100] or "video"
