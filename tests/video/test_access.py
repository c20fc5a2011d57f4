"""Any frame by its number: that of a full decode, and not by decoding everything before it."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import pytest
import torch

import ullayers.video.access as access
from tests.video.samples import cut, read, write_images, write_noise, write_video
from tests.video.seek_films import CHANGED, FRAMES, GOP, SEEKABLE, UNSEEKABLE
from ullayers.video.access import FrameAccess, FrameTimes
from ullayers.video.clips import VideoError
from ullayers.video.files.seeking import Timestamps, count_frames
from ullayers.video.sources import Reading, Source, find_sources, read_all


def open_frames(path: Path | str) -> FrameAccess:
    [source] = find_sources([str(path)])
    return FrameAccess(source)


def pixels(path: Path | str, **how: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """All frames of a full decode, (time, height, width, 3)."""
    return read(str(path), **how).frames.permute(0, 2, 3, 1).numpy()


def readable(path: Path | str) -> list[np.ndarray[Any, Any]]:
    """All frames of a full decode of a broken file."""
    found = []
    try:
        for clip in find_sources([str(path)])[0].clips(1):
            found.append(clip.frames[0].permute(1, 2, 0).numpy())
    except VideoError:
        return found
    raise AssertionError("the file is not broken")


def decoded(frames: FrameAccess) -> int:
    """How many frames were decoded, if there is room for all of them."""
    assert frames._video is not None
    return len(frames._video.kept)


@pytest.mark.parametrize("name", [*SEEKABLE, *UNSEEKABLE, *CHANGED])
def test_frames_in_any_order_are_those_of_a_full_decode(seek_films: Path, name: str) -> None:
    whole = pixels(seek_films / name)
    numbers = random.Random(name).sample(range(len(whole)), 20)
    last = len(whole) - 1
    with open_frames(seek_films / name) as frames:
        for number in (*numbers, last, 0, GOP, GOP - 1, GOP + 1, 2 * GOP - 2, *range(60, 75), last):
            assert np.array_equal(frames.frame(number), whole[number]), number
        for number in (len(whole), 10**12):
            with pytest.raises(VideoError, match=f"no frame {number}; the last of {len(whole)} is"):
                frames.frame(number)
        assert np.array_equal(frames.frame(3), whole[3])


@pytest.mark.parametrize("name", [*SEEKABLE, *UNSEEKABLE, *CHANGED])
def test_times_of_an_earlier_decode_find_the_same_frames(seek_films: Path, name: str) -> None:
    [source] = find_sources([str(seek_films / name)])
    times = FrameTimes()
    part = Reading(stride=7, max_frames=6, timed=times.note)
    assert len(read_all(source, part).index) == 6
    known = len(times.seconds())
    assert 36 <= known < 50
    whole = read_all(source)
    assert np.array_equal(times.seconds(), whole.seconds[:known])
    numbers = random.Random(name).sample(range(len(whole.index)), 20)
    for seconds in (whole.seconds.numpy(), times.seconds()):
        with FrameAccess(source, seconds) as frames:
            for number in (*numbers, 0, GOP, GOP - 1, 2 * GOP - 2, *range(60, 70)):
                assert torch.equal(frames.render(number, (48, 64)), whole.frames[number]), number


def test_times_from_the_middle(seek_films: Path) -> None:
    [source] = find_sources([str(seek_films / "open.mkv")])
    times = FrameTimes()
    read_all(source, Reading(start=5.0, timed=times.note))
    assert np.isnan(times.seconds()[: 2 * GOP]).all()
    assert not np.isnan(times.seconds()[125:]).any()
    whole = pixels(source.path)
    with FrameAccess(source, times.seconds()) as frames:
        for number in (180, 130, 20, 125):
            assert np.array_equal(frames.frame(number), whole[number])


@pytest.mark.parametrize("name", ["open.mkv", "newer.webm", "plain.webm", "open.mp4"])
def test_with_known_times_packets_are_not_counted(
    seek_films: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    [source] = find_sources([str(seek_films / name)])
    whole = read_all(source)
    monkeypatch.setattr(access, "count_frames", lambda *_: pytest.fail("read the whole file"))
    monkeypatch.setattr(Timestamps, "of_file", lambda *_: pytest.fail("read the index"))
    with FrameAccess(source, whole.seconds.numpy()) as frames:
        for number in (3 * GOP + 5, 3 * GOP + 4):
            assert torch.equal(frames.render(number, (48, 64)), whole.frames[number])
        assert decoded(frames) <= GOP


def test_wrong_times_do_not_give_wrong_frames(seek_films: Path) -> None:
    """As if the file had been replaced since."""
    [source] = find_sources([str(seek_films / "open.mkv")])
    whole = pixels(source.path)
    seconds = np.arange(FRAMES) / 25
    for wrong in (seconds / 3, seconds + 0.007, seconds[::2], np.full(9, np.nan), np.array([])):
        with FrameAccess(source, wrong) as frames:
            for number in (150, 60, 199, 2):
                assert np.array_equal(frames.frame(number), whole[number])


# Several of its small frames share one time, so that a seek in old.mpg changes the others.
@pytest.mark.parametrize("name", sorted({*SEEKABLE, "edited.mp4"} - {"old.mpg"}))
def test_only_what_is_needed_is_decoded(seek_films: Path, name: str) -> None:
    with open_frames(seek_films / name) as frames:
        frames.frame(3 * GOP + 5)
        assert decoded(frames) <= GOP  # the first ones, which are checked, and those near 3 GOP
        frames.frame(3 * GOP + 4)
        frames.frame(0)
        assert decoded(frames) <= GOP


def test_frames_in_order_are_decoded_once(
    seek_films: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("there is no need to seek")

    monkeypatch.setattr(access, "seek", never)
    whole = pixels(seek_films / "open.mp4")
    with open_frames(seek_films / "open.mp4") as frames:
        for number in range(0, FRAMES, 3):
            assert np.array_equal(frames.frame(number), whole[number])


def test_what_takes_long_has_a_key_frame_nearby(
    seek_films: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = next(iter(SEEKABLE))
    whole = pixels(seek_films / name)
    with open_frames(seek_films / name) as frames:
        far = len(whole) - 2
        frames.frame(2 * GOP)  # reads the index and measures the speed
        assert frames.quick(far) == far  # it is fast enough
        monkeypatch.setattr(access, "QUICK_SECONDS", 0.0)
        near = frames.quick(far)
        assert far - GOP <= near < far
        assert np.array_equal(frames.frame(near), whole[near])
        frames.frame(far)
        assert frames.quick(far) == far  # it is at hand now
        assert frames.quick(-1) == -1


def test_few_frames_are_kept(seek_films: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "KEPT_BYTES", 3 * 64 * 48 * 2)
    whole = pixels(seek_films / "open.mp4")
    with open_frames(seek_films / "open.mp4") as frames:
        for number in (3, 140, 139, 138, 0, 199, 120):
            assert np.array_equal(frames.frame(number), whole[number])
        assert decoded(frames) <= 4


def test_variable_frame_rates(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mkv", 8, pts=[0, 10, 20, 500, 510, 2000, 2001, 2500])
    whole = pixels(path)
    with open_frames(path) as frames:
        for number in (7, 2, 5, 0):
            assert np.array_equal(frames.frame(number), whole[number])


def test_intra_only_files(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.avi", 40, "mjpeg", pix_fmt="yuvj420p")
    whole = pixels(path)
    with open_frames(path) as frames:
        assert np.array_equal(frames.frame(35), whole[35])
        assert decoded(frames) < 5
        assert np.array_equal(frames.frame(11), whole[11])


def test_a_width_keeps_the_aspect_ratio(seek_films: Path) -> None:
    path = seek_films / "closed.mp4"
    small = pixels(path, size=(24, 32))
    with open_frames(path) as frames:
        assert np.array_equal(frames.frame(120, 32), small[120])
        assert frames.frame(120, 1).shape == (1, 1, 3)
        assert frames.frame(120, 5000).shape == (48, 64, 3), "frames are not enlarged"
        with pytest.raises(ValueError, match="a width of at least 1"):
            frames.frame(120, 0)


def test_jpeg(seek_films: Path) -> None:
    with open_frames(seek_films / "closed.mp4") as frames:
        content = frames.jpeg(77, width=32, quality=95)
        expected = frames.frame(77, 32)
    shown = np.asarray(cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR))[..., ::-1]
    assert shown.shape == expected.shape
    assert np.abs(shown.astype(int) - expected).mean() < 20
    assert abs(shown.mean((0, 1)) - expected.mean((0, 1))).max() < 3, "red is red"


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv"])
def test_what_comes_before_the_end_of_a_cut_file(tmp_path: Path, name: str) -> None:
    path = write_noise(tmp_path / name, **({"movflags": "faststart"} if "mp4" in name else {}))
    cut(path, 0.7)
    whole = readable(path)
    assert 20 < len(whole) < 55
    with open_frames(path) as frames:
        for number in (55, len(whole), 59):
            with pytest.raises(VideoError, match=r"broken after frame \d+; .* no frame \d+$"):
                frames.frame(number)
        for number in (len(whole) - 1, 0, 15):
            assert np.array_equal(frames.frame(number), whole[number])


def test_damage_in_the_middle(seek_films: Path, tmp_path: Path) -> None:
    """Once it was seen, frames after it are counted as a full decode counts them."""
    content = bytearray((seek_films / "closed.mp4").read_bytes())
    with av.open(str(seek_films / "closed.mp4")) as container:
        [packet] = islice(container.demux(), 2 * GOP + 10, 2 * GOP + 11)
        assert packet.pos is not None
        content[packet.pos : packet.pos + packet.size] = bytes(packet.size)
    path = tmp_path / "damaged.mp4"
    path.write_bytes(content)
    whole = readable(path)
    assert len(whole) < FRAMES, "one frame is missing"
    with open_frames(path) as frames:
        for number in (10, 2 * GOP + 12, 3 * GOP + 20, 2 * GOP - 5, len(whole) - 1, 0):
            assert np.array_equal(frames.frame(number), whole[number]), number
        with pytest.raises(VideoError, match="broken after frame 1"):
            frames.frame(len(whole))


def test_damage_is_no_reason_to_decode_in_order_if_times_are_known(
    seek_films: Path, tmp_path: Path
) -> None:
    content = bytearray((seek_films / "open.mkv").read_bytes())
    with av.open(str(seek_films / "open.mkv")) as container:
        [packet] = islice(container.demux(), GOP + 10, GOP + 11)
        assert packet.pos is not None
        end = packet.pos + packet.size
        content[end - 12 : end] = bytes(12)
    path = tmp_path / "damaged.mkv"
    path.write_bytes(content)
    times = FrameTimes()
    [source] = find_sources([str(path)])
    with pytest.raises(VideoError, match="broken"):
        read_all(source, Reading(timed=times.note))
    whole = readable(path)
    assert len(whole) == len(times.seconds())
    with FrameAccess(source, times.seconds()) as frames:
        for number in (3 * GOP + 5, 2 * GOP + 3):
            assert np.array_equal(frames.frame(number), whole[number])
        assert decoded(frames) <= GOP


def test_images(tmp_path: Path) -> None:
    path = write_images(tmp_path / "in", 12)
    whole = pixels(path)
    (tmp_path / "in" / "img4.png").write_bytes(b"no image")
    with open_frames(path) as frames:
        for number in (11, 3, 5):
            assert np.array_equal(frames.frame(number), whole[number])
        assert frames.frame(5, 16).shape == (12, 16, 3)
        with pytest.raises(VideoError, match=r"img4.png: cannot be read as an image"):
            frames.frame(4)
        with pytest.raises(VideoError, match="there is no frame 12; the last of 12 is 11"):
            frames.frame(12)


@pytest.mark.parametrize("name", ["open.mp4", "open.mkv", "guessed_times.avi"])
def test_several_threads(seek_films: Path, name: str) -> None:
    whole = pixels(seek_films / name)
    numbers = [random.Random(1).randrange(FRAMES) for _ in range(60)]
    with open_frames(seek_films / name) as frames, ThreadPoolExecutor(4) as pool:
        for number, found in zip(numbers, pool.map(frames.frame, numbers), strict=True):
            assert np.array_equal(found, whole[number])


def test_closing_ends_what_waits(seek_films: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The packets of a long file may take a while to count."""
    is_reading, is_closing = threading.Event(), threading.Event()

    def slow(*arguments: Any) -> Any:
        is_reading.set()
        is_closing.wait()
        return count_frames(*arguments)

    monkeypatch.setattr(access, "count_frames", slow)
    frames = open_frames(seek_films / "open.mkv")
    assert is_reading.wait(10)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(frames.frame, 150)
        threading.Timer(0.2, is_closing.set).start()
        frames.close()
        with pytest.raises(VideoError, match="closed"):
            waiting.result()
    frames.close()


def test_what_has_no_frames_to_return_to(seek_films: Path) -> None:
    with open_frames(seek_films / "closed.mp4") as frames:
        with pytest.raises(VideoError, match="no frame -1"):
            frames.frame(-1)
        frames.frame(5)
    with pytest.raises(VideoError, match="closed"):
        frames.frame(5)
    with pytest.raises(VideoError):
        FrameAccess(Source("camera", "/dev/video99", "live"))
