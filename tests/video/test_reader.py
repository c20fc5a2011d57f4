"""Sources: probing, reading options, chunks, the background thread, live sources."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import ullayers.video.files.decoding as decoding
import ullayers.video.files.decoding as recordings
import ullayers.video.files.images as images
import ullayers.video.sources as reader
from tests.servers import served
from tests.video.samples import (
    level,
    read,
    readers,
    text_file,
    write_images,
    write_video,
)
from ullayers.video.clips import Clip, Info, Reading, VideoError
from ullayers.video.files.opening import without_password
from ullayers.video.parallel import read_ahead
from ullayers.video.sources import Source, find_sources, open_live, read_all


def test_probe(tmp_path: Path) -> None:
    [source] = find_sources([write_video(tmp_path / "a.mp4", 30)])
    assert source.probe() == Info(width=64, height=48, rate=25.0, frames=30)
    [source] = find_sources([write_video(tmp_path / "a.mkv", 30)])
    assert source.probe().frames == 30, "from the duration in its header"
    [source] = find_sources([write_images(tmp_path / "pictures", 12)])
    assert source.probe() == Info(width=64, height=48, rate=25.0, frames=12)


@pytest.fixture
def probed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that have been probed by opening them."""
    paths: list[str] = []

    def record(name: str, probe: Callable[..., Info]) -> None:
        def recorded(path: str, *args: Any, **options: Any) -> Info:
            paths.append(path)
            return probe(path, *args, **options)

        monkeypatch.setattr(reader, name, recorded)

    record("probe_video", decoding.probe_video)
    record("probe_images", images.probe_images)
    return paths


def test_a_file_is_probed_once_until_it_changes(tmp_path: Path, probed: list[str]) -> None:
    path = write_video(tmp_path / "a.mp4", 30)
    [source], [again] = find_sources([path]), find_sources([path])
    with ThreadPoolExecutor(4) as pool:
        infos = list(pool.map(lambda _: source.probe(), range(20)))
    assert set(infos) == {Info(64, 48, 25.0, 30)}
    assert len(probed) <= 4, "each thread may be the first"
    probed.clear()
    assert again.probe() == infos[0]
    assert probed == []
    write_video(tmp_path / "a.mp4", 20, size=(32, 48))
    assert source.probe() == Info(48, 32, 25.0, 20)
    assert probed == [path]


def test_a_file_replaced_by_one_of_the_same_size_and_date(
    tmp_path: Path, probed: list[str]
) -> None:
    path = write_video(tmp_path / "a.mp4", 30)
    [source] = find_sources([path])
    source.probe()
    before = os.stat(path)
    other = tmp_path / "b.mp4"
    other.write_bytes(Path(path).read_bytes())
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    os.replace(other, path)
    source.probe()
    assert probed == [path, path]


def test_image_folders_are_probed_once_until_they_change(tmp_path: Path, probed: list[str]) -> None:
    folder = write_images(tmp_path / "a", 3)
    (tmp_path / "a" / "img0.png").write_text("not an image")
    for place in (folder, f"{folder}/img*.png"):
        probed.clear()
        [source] = find_sources([place])
        assert source.probe() == source.probe() == Info(64, 48, 25.0, 3)
        assert len(probed) == 1
    (tmp_path / "a" / "img3.png").write_bytes((tmp_path / "a" / "img2.png").read_bytes())
    assert source.probe().frames == 4
    Image.new("RGB", (10, 20)).save(tmp_path / "a" / "img1.png")
    assert source.probe() == Info(10, 20, 25.0, 4)
    assert len(probed) == 3


def test_errors_and_live_sources_are_probed_again(tmp_path: Path, probed: list[str]) -> None:
    path = write_video(tmp_path / "a.mp4", 3)
    live = open_live(path)
    assert live.probe() == live.probe()
    assert probed == [path, path]
    missing = Source("b", str(tmp_path / "b.mp4"), "video")
    for _ in range(2):
        with pytest.raises(VideoError, match="cannot be read"):
            missing.probe()
    assert len(probed) == 4


def test_the_memory_for_probes_is_bounded() -> None:
    assert reader._probe_unchanged.cache_info().maxsize == reader.PROBES_KEPT


def test_reading_options(tmp_path: Path) -> None:
    for path in (write_video(tmp_path / "a.mp4", 30), write_images(tmp_path / "a", 30)):
        clip = read(path, stride=5, max_frames=4, size=(24, 30), grey=True)
        assert clip.frames.shape == (4, 1, 24, 30)
        assert clip.index.tolist() == [0, 5, 10, 15] == level(clip)
        torch.testing.assert_close(clip.seconds, torch.tensor([0, 0.2, 0.4, 0.6]).double())
        assert read(path, longest=32, max_frames=1).frames.shape == (1, 3, 24, 32)
        assert read(path, longest=500, max_frames=1).frames.shape == (1, 3, 48, 64)
        assert len(read(path, stride=29).index) == 2
        assert len(read(path, max_frames=99).index) == 30


@pytest.mark.parametrize(
    ("height", "width", "longest", "expected"),
    [
        (480, 640, 64, (48, 64)),
        (640, 480, 64, (64, 48)),
        (1080, 1920, 100, (56, 100)),
        (47, 63, 100, (46, 62)),  # never enlarged, not even to be even
        (480, 640, 63, (46, 62)),
        (1, 1000, 10, (2, 10)),
    ],
)
def test_longest(height: int, width: int, longest: int, expected: tuple[int, int]) -> None:
    assert Reading(longest=longest).target(height, width) == expected


def test_bad_readings() -> None:
    with pytest.raises(ValueError, match="got both"):
        Reading(size=(2, 2), longest=2)
    with pytest.raises(ValueError, match="stride of at least 1, got 0"):
        Reading(stride=0)
    with pytest.raises(ValueError, match="at least 1 x 1"):
        Reading(size=(0, 4))
    with pytest.raises(ValueError, match="length and ahead of at least 1, got 0, 2"):
        Source("a", "a", "video").clips(0)


@pytest.mark.parametrize("kind", ["a.mp4", "pictures"])
def test_chunk_boundaries_do_not_matter(tmp_path: Path, kind: str) -> None:
    make = write_video if kind.endswith("mp4") else write_images
    [source] = find_sources([make(tmp_path / kind, 70)])
    whole = list(source.clips(100))
    parts = list(source.clips(7, ahead=1))
    assert [len(part.index) for part in parts] == [7] * 10
    assert len(whole) == 1
    for name in ("frames", "seconds", "index"):
        joined = torch.cat([getattr(part, name) for part in parts])
        assert torch.equal(joined, getattr(whole[0], name))
        assert torch.equal(joined, getattr(read_all(source), name))


@pytest.mark.parametrize("ahead", [1, 2, 5])
@pytest.mark.parametrize("taken", [1, 3])
def test_early_close_stops_the_thread(tmp_path: Path, ahead: int, taken: int) -> None:
    [source] = find_sources([write_video(tmp_path / "a.mp4", 70)])
    clips = source.clips(2, ahead=ahead)
    assert not readers()  # nothing starts before the first frame is asked for
    for _ in range(taken):
        next(clips)
    assert len(readers()) <= 1
    started = time.monotonic()
    clips.close()
    assert time.monotonic() - started < 10
    assert not readers()


def test_reading_ahead_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = 0
    convert = decoding.frame_to_tensor

    def counting(*args: Any) -> torch.Tensor:
        nonlocal decoded
        decoded += 1
        return convert(*args)

    monkeypatch.setattr(recordings, "frame_to_tensor", counting)
    [source] = find_sources([write_video(tmp_path / "a.mp4", 70)])
    clips = source.clips(5, ahead=2)
    next(clips)
    while decoded < 5 * (2 + 2):
        time.sleep(0.01)
    time.sleep(0.1)
    assert decoded == 5 * (2 + 2)  # one in hand, two in the queue, one waiting to enter it
    clips.close()


def test_large_chunks_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "CHUNK_BYTES", 1)
    [source] = find_sources([write_video(tmp_path / "a.mp4", 70)])
    [clip] = source.clips(10**12)
    assert level(clip) == clip.index.tolist() == list(range(70))
    assert clip.frames.untyped_storage().nbytes() == clip.frames.numel()


def test_a_bug_in_the_thread_is_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> torch.Tensor:
        raise RuntimeError("a bug")

    monkeypatch.setattr(recordings, "frame_to_tensor", fail)
    [source] = find_sources([write_video(tmp_path / "a.mp4", 3)])
    with pytest.raises(RuntimeError, match="a bug"):
        next(source.clips(4))


def test_an_exit_in_the_thread_ends_the_reader() -> None:
    """A tap may call sys.exit; the reader used to wait forever."""

    def numbers() -> Generator[int, None, None]:
        yield 1
        raise SystemExit(3)

    got: list[int] = []
    with pytest.raises(SystemExit, match="3"):
        got.extend(read_ahead(numbers()))
    assert got == [1]


def test_a_slow_reader_of_a_camera_gets_the_newest(tmp_path: Path) -> None:
    ended = threading.Event()

    def numbers() -> Generator[Clip, None, None]:
        for number in range(50):
            one = torch.tensor([number])
            yield Clip(one, one, one)
        ended.set()

    clips = read_ahead(numbers(), 2, newest=True)
    first = next(clips)
    ended.wait()
    rest = [int(clip.index) for clip in clips]
    assert int(first.index) < 50
    assert rest[-1] == 49
    assert len(rest) <= 3


@pytest.mark.parametrize("grey", [False, True])
def test_interleaved_frames_are_the_same(tmp_path: Path, grey: bool) -> None:
    for path in (write_video(tmp_path / "a.mp4"), write_images(tmp_path / "images")):
        plain, interleaved = (
            read(path, size=(24, 32), grey=grey, interleaved=each) for each in (False, True)
        )
        assert torch.equal(plain.frames, interleaved.frames)
        assert plain.frames.is_contiguous()
        assert interleaved.frames.is_contiguous(memory_format=torch.channels_last)


def test_a_lean_reader_prepares_only_what_there_is_room_for() -> None:
    made: list[int] = []
    next_made = threading.Semaphore(0)

    def numbers() -> Generator[int, None, None]:
        for number in range(5):
            made.append(number)
            next_made.release()
            yield number

    items = read_ahead(numbers(), lean=True)
    for number in range(3):
        assert next(items) == number
        for _ in range(2 if number == 0 else 1):
            assert next_made.acquire(timeout=120)
        assert made == list(range(number + 2))  # the one that was taken, and the next
    assert list(items) == [3, 4]


def test_live_file(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", 30)
    source = open_live(path)
    assert (source.name, source.kind) == ("a", "live")
    assert sum(len(clip.index) for clip in source.clips(1, ahead=1)) == 30


def test_live_url(tmp_path: Path) -> None:
    write_video(tmp_path / "a.mkv", 30)
    with served(tmp_path) as address:
        assert level(read_all(open_live(f"{address}/a.mkv"))) == list(range(30))
        with pytest.raises(VideoError, match=r"none\.mkv: cannot be read"):
            read_all(open_live(f"{address.replace('//', '//me:secret@')}/none.mkv"))


def test_live_refusals(tmp_path: Path) -> None:
    for path in ("nothing", str(tmp_path)):
        with pytest.raises(VideoError, match="give a video file, a camera"):
            open_live(path)
    for camera in ("97", "/dev/video97"):
        with pytest.raises(VideoError, match="camera"):
            open_live(camera)
    text_file(tmp_path / "a.mp4")
    with pytest.raises(VideoError, match="cannot be read as a video"):
        open_live(str(tmp_path / "a.mp4"))
    assert without_password("rtsp://me:secret@door/hall") == "rtsp://door/hall"
