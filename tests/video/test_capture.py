"""Cameras through OpenCV: a small file plays the camera, read by the real cv2.VideoCapture."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import pytest
import torch

import ullayers.video.camera.capture as capture
import ullayers.video.sources as sources
from tests.command import run_code
from tests.video.samples import level, pattern, readers
from ullayers.video.clips import Info, Reading, VideoError
from ullayers.video.files.opening import has_cameras, is_camera, is_unpaused
from ullayers.video.files.writing import VideoWriter
from ullayers.video.sources import Source, open_live, read_all

CAMERA = Source("camera0", "/dev/video0", "live")
FRAMES = 30


class Flaky:
    """A capture whose `grab` or `retrieve` fails for the calls of these numbers."""

    def __init__(self, real: Any, method: str, bad: set[int]) -> None:
        self._real, self._method, self._bad, self._calls = real, method, bad, count()

    def __getattr__(self, name: str) -> Any:
        if name == self._method and next(self._calls) in self._bad:
            return lambda: False if name == "grab" else (False, None)
        return getattr(self._real, name)


@pytest.fixture
def no_av_cameras(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(av, "formats_available", {"matroska,webm", "mp4"})


@pytest.fixture
def cv2(no_av_cameras: None) -> Iterator[Any]:
    found = pytest.importorskip("cv2")
    before = found.utils.logging.getLogLevel()
    yield found
    assert found.utils.logging.getLogLevel() == before
    assert capture._log_levels == []


def film(path: Path) -> str:
    with VideoWriter(path, fps=20) as writer:
        for number in range(FRAMES):
            writer.write(pattern(number))
    return str(path)


@pytest.fixture
def opened(cv2: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The captures opened in a test, in which any camera is a file of `FRAMES` frames."""
    file = film(tmp_path / "camera.mp4")
    captures: list[Any] = []
    make = cv2.VideoCapture

    def record(*arguments: Any) -> Any:
        captures.append(make(*arguments))
        return captures[-1]

    monkeypatch.setattr(cv2, "VideoCapture", record)
    monkeypatch.setattr(capture, "capture_arguments", lambda _: (file,))
    monkeypatch.setattr(capture, "MAX_SILENCE", 0.1)
    yield captures
    assert captures
    assert not any(one.isOpened() for one in captures)


def test_frames_are_those_of_the_camera(opened: list[Any]) -> None:
    clip = read_all(CAMERA, Reading(max_frames=FRAMES))
    assert clip.frames.shape == (FRAMES, 3, 48, 64)
    assert clip.frames.dtype == torch.uint8
    assert clip.index.tolist() == list(range(FRAMES)) == level(clip)
    red, green, _ = clip.frames[10, :, 4, 4].tolist()
    assert red > 220
    assert green < 60


def test_reading_options(opened: list[Any]) -> None:
    clip = read_all(CAMERA, Reading(stride=5, max_frames=4, size=(24, 30), grey=True))
    assert clip.frames.shape == (4, 1, 24, 30)
    assert clip.index.tolist() == [0, 5, 10, 15] == level(clip)
    assert read_all(CAMERA, Reading(longest=32, max_frames=1)).frames.shape == (1, 3, 24, 32)
    assert read_all(CAMERA, Reading(longest=500, max_frames=1)).frames.shape == (1, 3, 48, 64)
    assert read_all(CAMERA, Reading(grey=True, max_frames=1)).frames.shape == (1, 1, 48, 64)


@pytest.mark.parametrize("shape", [(48, 64), (48, 64, 1)])
@pytest.mark.parametrize("size", [(48, 64), (24, 32)])
def test_a_camera_without_colour(cv2: Any, shape: tuple[int, ...], size: tuple[int, int]) -> None:
    pixels = pattern(7)[:, :, 1].reshape(shape)
    grey = capture._to_tensor(cv2, pixels, size, grey=True)
    assert grey.shape == (1, *size)
    assert grey[0, -1, -1] == 41
    assert torch.equal(capture._to_tensor(cv2, pixels, size, grey=False), grey.expand(3, *size))


def test_time_is_the_clock_s_since_the_first_frame(
    opened: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    started = time.perf_counter()
    clip = read_all(CAMERA, Reading(max_frames=FRAMES))
    assert clip.seconds[0] == 0
    assert bool((clip.seconds.diff() > 0).all())
    assert clip.seconds[-1] < time.perf_counter() - started
    ticks = count(1000)  # one look at the clock to begin with and one for each frame
    monkeypatch.setattr(capture, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    clip = read_all(CAMERA, Reading(stride=3, max_frames=4))
    assert clip.seconds.tolist() == [0, 3, 6, 9] == clip.index.tolist()


def test_a_camera_that_stops_delivering(opened: list[Any]) -> None:
    clips = CAMERA.clips(8, ahead=9)
    got: list[int] = []
    with pytest.raises(VideoError) as caught:
        got.extend(number for clip in clips for number in clip.index.tolist())
    assert got == list(range(FRAMES))
    expected = f"/dev/video0: the camera stopped after frame {FRAMES}; is it plugged in?"
    assert str(caught.value) == expected


@pytest.mark.parametrize("method", ["grab", "retrieve"])
def test_broken_frames_are_skipped(
    opened: list[Any], cv2: Any, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = cv2.VideoCapture
    monkeypatch.setattr(cv2, "VideoCapture", lambda *args: Flaky(make(*args), method, {0, 3, 4}))
    monkeypatch.setattr(capture, "MAX_SILENCE", 30.0)
    clip = read_all(CAMERA, Reading(max_frames=20))
    assert clip.index.tolist() == list(range(20))
    missed = set(range(FRAMES)) - set(level(clip))
    assert {0, 3, 4} <= missed if method == "retrieve" else min(missed) == 20


def test_a_camera_that_never_delivers(
    opened: list[Any], cv2: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, never = cv2.VideoCapture, set(range(10**5))
    monkeypatch.setattr(cv2, "VideoCapture", lambda *args: Flaky(make(*args), "retrieve", never))
    for ask in (CAMERA.probe, lambda: read_all(CAMERA)):
        with pytest.raises(VideoError, match="stopped after frame 0"):
            ask()


def test_early_close_frees_the_camera(opened: list[Any]) -> None:
    clips = CAMERA.clips(2, ahead=1)
    assert not opened  # nothing is opened before the first frame is asked for
    next(clips)
    clips.close()
    assert not opened[0].isOpened()
    assert not readers()


def test_close_does_not_wait_for_a_silent_camera(
    opened: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture, "MAX_SILENCE", 60.0)
    clips = CAMERA.clips(FRAMES - 1)
    next(clips)
    time.sleep(0.1)  # the file has ended by now and reads fail
    started = time.monotonic()
    clips.close()
    assert time.monotonic() - started < 10


def test_an_error_of_the_consumer_frees_the_camera(opened: list[Any]) -> None:
    def consume() -> None:
        for _ in CAMERA.clips(2):
            raise RuntimeError("the consumer's")

    with pytest.raises(RuntimeError, match="the consumer's") as caught:
        consume()
    assert caught.value.__traceback__
    assert not opened[0].isOpened()


@pytest.mark.parametrize(("module", "name"), [(capture, "_to_tensor"), (sources, "_collect")])
def test_a_bug_frees_the_camera(
    opened: list[Any], module: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(items: Any, *_: Any) -> None:
        if name == "_collect":
            next(items)
        raise RuntimeError("a bug")

    monkeypatch.setattr(module, name, fail)
    with pytest.raises(RuntimeError, match="a bug") as caught:
        next(CAMERA.clips(2))
    assert caught.value.__traceback__  # which holds the frames that read
    assert not opened[0].isOpened()


def test_a_slow_reader_gets_the_newest(opened: list[Any]) -> None:
    clips = CAMERA.clips(1, ahead=2)
    first = next(clips)
    time.sleep(0.5)
    rest: list[int] = []
    with pytest.raises(VideoError, match="stopped"):
        rest.extend(int(clip.index) for clip in clips)
    assert int(first.index) < FRAMES - 1
    assert rest[-1] == FRAMES - 1
    assert len(rest) <= 3


def test_stop_ends_reading(opened: list[Any]) -> None:
    stop = threading.Event()
    items = capture.read_camera("0", Reading(), stop)
    next(items)
    stop.set()
    assert list(items) == []


def test_probe(opened: list[Any], cv2: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert CAMERA.probe() == Info(width=64, height=48, rate=20.0, frames=None)
    make = cv2.VideoCapture

    def unknowing(*args: Any) -> Any:
        real = make(*args)
        methods = ("isOpened", "grab", "retrieve", "release")
        return SimpleNamespace(
            get=lambda _: float("nan"), **{name: getattr(real, name) for name in methods}
        )

    monkeypatch.setattr(cv2, "VideoCapture", unknowing)
    assert CAMERA.probe() == Info(width=64, height=48, rate=None, frames=None)


def test_open_live(opened: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "exists", lambda _: True)
    for platform, path in {"linux": "/dev/video2", "darwin": "2:none", "win32": "2"}.items():
        monkeypatch.setattr(sys, "platform", platform)
        source = open_live("2")
        assert (source.name, source.path, source.kind) == ("camera2", path, "live")
        assert is_unpaused(path, live=True)
        assert len(read_all(source, Reading(max_frames=3)).index) == 3


def test_two_cameras_share_one_log_level(opened: list[Any], cv2: Any) -> None:
    log = cv2.utils.logging
    first, second = (capture.read_camera(name, Reading(), threading.Event()) for name in "01")
    next(first)
    next(second)
    first.close()  # the fixture sees that closing in this order restores the level, too
    assert log.getLogLevel() == log.LOG_LEVEL_SILENT
    second.close()


# Refusals


@pytest.mark.parametrize("path", ["97", "/dev/video97", "97:none", "/dev/video-none"])
def test_a_missing_camera(cv2: Any, path: str, capfd: pytest.CaptureFixture[str]) -> None:
    source = Source("camera97", path, "live")
    asks: list[Callable[[], Any]] = [source.probe, lambda: next(source.clips(2))]
    for ask in asks:
        with pytest.raises(VideoError) as caught:
            ask()
        assert str(caught.value).startswith(
            f"{path}: this camera cannot be opened; is it connected"
        )
        assert "\n" not in str(caught.value)
    if sys.platform == "linux":  # elsewhere some of what OpenCV says does not pass its log
        assert capfd.readouterr().err == ""


def test_a_missing_camera_is_seen_at_once_on_linux(
    cv2: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("97", "/dev/video97"):
        with pytest.raises(VideoError, match=r"^/dev/video97: no such camera; ls /dev/video"):
            open_live(name)


def test_without_opencv(no_av_cameras: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    asks: list[Callable[[], Any]] = [
        lambda: open_live("0"),
        lambda: open_live("/dev/video0"),
        CAMERA.probe,
        lambda: next(CAMERA.clips(2)),
    ]
    for ask in asks:
        with pytest.raises(VideoError) as caught:
            ask()
        expected = "reading a camera here needs OpenCV: pip install opencv-python-headless"
        assert str(caught.value) == expected


def test_opencv_is_loaded_only_for_cameras() -> None:
    code = "import sys, ullayers.video.sources\nprint('cv2' in sys.modules)"
    assert run_code(code, bare=True)[:2] == (0, "False\n")


# What is a camera, and who reads it


def test_pyav_comes_first_where_it_reads_cameras(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    for formats, known in (
        ({"mp4", "video4linux2,v4l2"}, True),  # how FFmpeg names it in PyAV's wheel
        ({"mp4", "v4l2"}, True),
        ({"mp4", "avfoundation"}, False),
    ):
        monkeypatch.setattr(av, "formats_available", formats)
        assert has_cameras() is known
        assert capture.needs_opencv("/dev/video0", live=True) is not known
    assert not capture.needs_opencv("/dev/video0", live=False)
    assert not capture.needs_opencv("rtsp://door/hall", live=True)
    monkeypatch.setattr(sys, "platform", "win32")
    assert not has_cameras()


def test_a_file_named_like_a_camera_is_a_file(
    no_av_cameras: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    film(tmp_path / "0")
    assert not is_camera("0")
    assert is_camera("1")
    assert level(read_all(open_live("0"))) == list(range(FRAMES))


@pytest.mark.parametrize(
    ("platform", "path", "camera", "backend"),
    [
        ("linux", "/dev/video12", 12, "CAP_V4L2"),
        ("linux", "/dev/video-front", "/dev/video-front", "CAP_V4L2"),
        ("darwin", "1:none", 1, "CAP_AVFOUNDATION"),
        ("win32", "0", 0, "CAP_DSHOW"),
        ("freebsd14", "0", 0, "CAP_ANY"),
    ],
)
def test_camera_names(
    cv2: Any,
    platform: str,
    path: str,
    camera: int | str,
    backend: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    assert capture.capture_arguments(path) == (camera, getattr(cv2, backend))
