"""Cameras through OpenCV, where PyAV cannot read them: on Windows, and in some builds."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from itertools import islice
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ullayers.video.clips import Info, Reading, TimedFrame, VideoError
from ullayers.video.files.opening import has_cameras, is_camera

BACKENDS = {"linux": "CAP_V4L2", "darwin": "CAP_AVFOUNDATION", "win32": "CAP_DSHOW"}
MAX_SILENCE = 5.0  # seconds of failed reads after which a camera counts as lost
RETRY_SECONDS = 0.01  # pause after a failed read; an unplugged camera fails at once
Pixels = np.ndarray[Any, np.dtype[np.uint8]]
_log_levels: list[int] = []  # OpenCV's log levels to restore, one for each open camera
_log_lock = threading.Lock()


def load_cv2() -> ModuleType:
    """Import OpenCV on first use."""
    try:
        import cv2
    except ImportError as error:
        raise VideoError(
            "reading a camera here needs OpenCV: pip install opencv-python-headless"
        ) from error
    return cv2


def needs_opencv(path: str, live: bool) -> bool:
    """Return whether this is a camera that PyAV cannot read.

    >>> needs_opencv("rtsp://door.local/hall", live=True)
    False
    """
    return live and is_camera(path) and not has_cameras()


def capture_arguments(path: str) -> tuple[Any, ...]:
    """Return the arguments of `cv2.VideoCapture` that open the camera of this name."""
    backend = getattr(load_cv2(), BACKENDS.get(sys.platform, "CAP_ANY"))
    number = re.fullmatch(r"(?:/dev/video)?(\d+)(?::none)?", path)
    return int(number[1]) if number else path, backend


@contextmanager
def open_camera(path: str) -> Iterator[Any]:
    """Open a camera as a `cv2.VideoCapture` and release it at the end."""
    cv2 = load_cv2()
    with _silenced(cv2):
        capture = cv2.VideoCapture(*capture_arguments(path))
        try:
            if not capture.isOpened():
                raise VideoError(
                    f"{path}: this camera cannot be opened; is it connected, unused by other "
                    "programs, and are you allowed to read it?"
                )
            yield capture
        finally:
            capture.release()


def read_camera(
    path: str, reading: Reading, stop: threading.Event
) -> Generator[TimedFrame, None, None]:
    """Yield the frames of a camera with the seconds since the first and their numbers."""
    cv2 = load_cv2()
    with open_camera(path) as capture:
        size = None
        cut = None
        grabbed = _grab_frames(path, capture, reading.stride, stop)
        for pixels, seconds, index in islice(grabbed, reading.max_frames):
            if reading.end is not None and seconds >= reading.end:
                return
            if size is None:
                cut = reading.cut(path, *pixels.shape[:2])
                size = reading.target(*pixels.shape[:2])
            if cut is not None:
                pixels = cut.fill(cut.crop(pixels))
            yield _to_tensor(cv2, pixels, size, reading.grey), seconds, index


def probe_camera(path: str) -> Info:
    """Read the first frame."""
    with open_camera(path) as capture:
        with closing(_grab_frames(path, capture, 1, threading.Event())) as grabbed:
            height, width = next(grabbed)[0].shape[:2]
        rate = capture.get(load_cv2().CAP_PROP_FPS)
        # A driver that does not know its rate returns 0, -1 or NaN.
        return Info(width, height, rate if rate > 0 else None, None)


@contextmanager
def _silenced(cv2: ModuleType) -> Iterator[None]:
    """Keep OpenCV from printing warnings about errors that we report ourselves.

    Its log level is global. With several cameras open, the last to close restores the lowest entry
    of the stack, which is the level before the first was opened.
    """
    log = cv2.utils.logging
    with _log_lock:
        _log_levels.append(log.setLogLevel(log.LOG_LEVEL_SILENT))
    try:
        yield
    finally:
        with _log_lock:
            log.setLogLevel(_log_levels.pop())


def _grab_frames(
    path: str, capture: Any, stride: int, stop: threading.Event
) -> Generator[tuple[Pixels, float, int], None, None]:
    """Yield every `stride`-th frame with the seconds since the first and its number.

    Single failed reads, such as a broken JPEG, are ignored.
    """
    count = 0
    start = 0.0
    last = time.perf_counter()
    while not stop.is_set():
        ok = capture.grab()
        pixels = None
        now = time.perf_counter()
        if ok and count % stride == 0:  # skipped frames are not decoded
            ok, pixels = capture.retrieve()
        if not ok:
            if now - last > MAX_SILENCE:
                raise VideoError(
                    f"{path}: the camera stopped after frame {count}; is it plugged in?"
                )
            stop.wait(RETRY_SECONDS)
            continue
        last = now
        if count == 0:
            start = now
        if pixels is not None:
            yield pixels, now - start, count
        count += 1


def _to_tensor(cv2: ModuleType, pixels: Pixels, size: tuple[int, int], grey: bool) -> Tensor:
    if pixels.shape[:2] != size:
        pixels = cv2.resize(pixels, size[::-1], interpolation=cv2.INTER_AREA)
    is_grey = pixels.ndim == 2 or pixels.shape[2] == 1  # as from some scientific cameras
    if not grey:
        pixels = cv2.cvtColor(pixels, cv2.COLOR_GRAY2RGB if is_grey else cv2.COLOR_BGR2RGB)
    elif not is_grey:
        pixels = cv2.cvtColor(pixels, cv2.COLOR_BGR2GRAY)
    frame = torch.from_numpy(pixels)
    return frame.reshape(1, *size) if grey else frame.permute(2, 0, 1)
