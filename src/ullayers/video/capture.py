"""Cameras through OpenCV, where PyAV reads none: on Windows, and in builds without them."""

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

from ullayers.video.frames import Info, Item, Reading, VideoError, has_cameras, is_camera

BACKENDS = {"linux": "CAP_V4L2", "darwin": "CAP_AVFOUNDATION", "win32": "CAP_DSHOW"}
SILENCE = 5.0  # seconds of failed reads after which a camera is lost; one broken JPEG is no loss
RETRY = 0.01  # seconds between failed reads, which an unplugged camera answers at once

Pixels = np.ndarray[Any, np.dtype[np.uint8]]

_levels: list[int] = []  # OpenCV's log levels to go back to, one for each open camera
_lock = threading.Lock()


def load_cv2() -> ModuleType:
    """OpenCV, loaded where it is used."""
    try:
        import cv2
    except ImportError as error:
        raise VideoError(
            "reading a camera here needs OpenCV: pip install 'ullayers[camera]'"
        ) from error
    return cv2


def needs_opencv(path: str, live: bool) -> bool:
    """Whether this is a camera that PyAV cannot read.

    >>> needs_opencv("rtsp://door.local/hall", live=True)
    False
    """
    return live and is_camera(path) and not has_cameras()


def capture_arguments(path: str) -> tuple[Any, ...]:
    """What `cv2.VideoCapture` takes to open the camera of this name."""
    backend = getattr(load_cv2(), BACKENDS.get(sys.platform, "CAP_ANY"))
    number = re.fullmatch(r"(?:/dev/video)?(\d+)(?::none)?", path)
    return int(number[1]) if number else path, backend


@contextmanager
def _quietly(cv2: ModuleType) -> Iterator[None]:
    """Keep OpenCV from printing warnings: our one line says it.

    Its level is the whole process's. Of several cameras, whichever ends last takes the lowest
    entry of the stack, which is the level from before the first.
    """
    log = cv2.utils.logging
    with _lock:
        _levels.append(log.setLogLevel(log.LOG_LEVEL_SILENT))
    try:
        yield
    finally:
        with _lock:
            log.setLogLevel(_levels.pop())


@contextmanager
def open_camera(path: str) -> Iterator[Any]:
    """The camera as a `cv2.VideoCapture`, released at the end whatever happens."""
    cv2 = load_cv2()
    with _quietly(cv2):
        capture = cv2.VideoCapture(*capture_arguments(path))
        try:
            if not capture.isOpened():
                raise VideoError(
                    f"{path}: this camera cannot be opened; is it there, free, and yours to read?"
                )
            yield capture
        finally:
            capture.release()


def _take(
    path: str, capture: Any, stride: int, stop: threading.Event
) -> Generator[tuple[Pixels, float, int], None, None]:
    """Every `stride`-th frame with its time since the first and its number."""
    count, start = 0, 0.0
    last = time.perf_counter()
    while not stop.is_set():
        there, pixels = capture.grab(), None
        now = time.perf_counter()
        if there and count % stride == 0:  # the others are not even decoded
            there, pixels = capture.retrieve()
        if not there:
            if now - last > SILENCE:
                raise VideoError(
                    f"{path}: the camera stopped after frame {count}; is it plugged in?"
                )
            stop.wait(RETRY)
            continue
        last, start = now, start if count else now
        if pixels is not None:
            yield pixels, now - start, count
        count += 1


def read_camera(path: str, reading: Reading, stop: threading.Event) -> Generator[Item, None, None]:
    """The frames of a camera, with the time since the first, as they have none, and numbers."""
    cv2 = load_cv2()
    with open_camera(path) as capture:
        target = None
        taken = _take(path, capture, reading.stride, stop)
        for pixels, seconds, index in islice(taken, reading.max_frames):
            target = target or reading.target(*pixels.shape[:2])
            yield _to_picture(cv2, pixels, target, reading.grey), seconds, index


def probe_camera(path: str) -> Info:
    """Look at the first frame."""
    with open_camera(path) as capture, closing(_take(path, capture, 1, threading.Event())) as taken:
        height, width = next(taken)[0].shape[:2]
        rate = capture.get(load_cv2().CAP_PROP_FPS)
        # Drivers that do not know say 0, -1 or nan. A camera has no number of frames.
        return Info(width, height, rate if rate > 0 else None, None)


def _to_picture(cv2: ModuleType, pixels: Pixels, size: tuple[int, int], grey: bool) -> Tensor:
    if pixels.shape[:2] != size:
        pixels = cv2.resize(pixels, size[::-1], interpolation=cv2.INTER_AREA)
    flat = pixels.ndim == 2 or pixels.shape[2] == 1  # some scientific cameras have no colour
    if not (grey and flat):
        colours = cv2.COLOR_GRAY2RGB if flat else cv2.COLOR_BGR2RGB
        pixels = cv2.cvtColor(pixels, cv2.COLOR_BGR2GRAY if grey else colours)
    whole = torch.from_numpy(pixels)
    return whole.reshape(1, *size) if grey else whole.permute(2, 0, 1)
