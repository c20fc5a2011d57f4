"""Reading and writing video: real files made here, exact times and numbers, clear refusals."""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Generator, Iterator
from fractions import Fraction
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from PIL import Image

import ullayers.video.frames as frames
import ullayers.video.reader as video
from ullayers.video.reader import (
    Clip,
    Info,
    Reading,
    Source,
    VideoError,
    VideoWriter,
    find_sources,
    natural_key,
    open_live,
    read_all,
)

Pixels = np.ndarray[Any, np.dtype[np.uint8]]


def pattern(number: int, height: int = 48, width: int = 64) -> Pixels:
    """A grey level that tells the frame's number, and a bright square at the top left."""
    picture = np.full((height, width, 3), 20 + 3 * number, np.uint8)
    picture[: height // 4, : width // 4] = (250, 30, 30)
    return picture


def level(clip: Clip) -> list[int]:
    """The numbers that `pattern` has drawn, read back from the bottom right corners."""
    corner = clip.frames[:, :, -4:, -4:].double().mean((1, 2, 3))
    return [round((float(value) - 20) / 3) for value in corner]


def write_video(
    path: Path,
    count: int = 30,
    codec: str = "libx264",
    size: tuple[int, int] = (48, 64),
    pts: list[int] | None = None,
    pix_fmt: str = "yuv420p",
    **options: str,
) -> str:
    with av.open(str(path), "w", options=options) as container:
        stream: Any = container.add_stream(codec, rate=25)
        stream.height, stream.width = size
        stream.pix_fmt = pix_fmt
        if codec == "mpeg4":  # its default rate loses the levels that number the frames
            stream.options = {"flags": "+qscale", "global_quality": "236"}
        if pts:
            stream.time_base = stream.codec_context.time_base = Fraction(1, 1000)
        for number in range(count):
            frame = av.VideoFrame.from_ndarray(pattern(number, *size))
            if pts:
                frame.pts, frame.time_base = pts[number], Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return str(path)


def write_noise(path: Path, **options: str) -> str:
    """Frames that do not compress, so that a cut in bytes is a cut in frames."""
    random = np.random.default_rng(0)
    with av.open(str(path), "w", options=options) as container:
        stream: Any = container.add_stream("libx264", rate=25)
        stream.height, stream.width, stream.pix_fmt = 48, 64, "yuv420p"
        for _ in range(60):
            noise = random.integers(0, 255, (48, 64, 3), dtype=np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(noise)))
        container.mux(stream.encode())
    return str(path)


def write_pictures(folder: Path, count: int = 12, suffix: str = "png") -> str:
    folder.mkdir(parents=True)
    for number in range(count):
        Image.fromarray(pattern(number)).save(folder / f"img{number}.{suffix}")
    return str(folder)


def read(path: str, **how: Any) -> Clip:
    [source] = find_sources([path])
    return read_all(source, Reading(**how))


def readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "ullayers-video"]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert not readers()


@pytest.mark.parametrize(
    ("name", "codec", "pix_fmt"),
    [
        ("a.mp4", "libx264", "yuv420p"),
        ("a.mp4", "mpeg4", "yuv420p"),
        ("a.mkv", "libx264", "yuv444p"),
        ("a.avi", "mjpeg", "yuvj420p"),
        ("a.avi", "mpeg4", "yuv420p"),
        ("video_without_suffix", "libx264", "yuv420p"),
        ("in: a strange %d name.mp4", "libx264", "yuv420p"),
    ],
)
def test_formats(tmp_path: Path, name: str, codec: str, pix_fmt: str) -> None:
    path = write_video(tmp_path / f"{name}.mp4", 30, codec, pix_fmt=pix_fmt)
    if not name.startswith(("video", "in:")):
        path = write_video(tmp_path / name, 30, codec, pix_fmt=pix_fmt)
    else:
        os.rename(path, path := str(tmp_path / name))
    clip = read(path)
    assert clip.frames.shape == (30, 3, 48, 64)
    assert clip.frames.dtype == torch.uint8
    assert clip.index.dtype == torch.int64
    assert clip.seconds.dtype == torch.float64
    assert clip.index.tolist() == list(range(30)) == level(clip)
    torch.testing.assert_close(clip.seconds, torch.arange(30).double() / 25, atol=1e-3, rtol=0)
    red, green, _ = clip.frames[10, :, 4, 4].tolist()
    assert red > 220
    assert green < 60


def test_gif_and_raw_stream_without_times(tmp_path: Path) -> None:
    pictures = [Image.fromarray(pattern(number)) for number in range(5)]
    pictures[0].save(tmp_path / "a.gif", save_all=True, append_images=pictures[1:], duration=200)
    clip = read(str(tmp_path / "a.gif"), grey=True)
    torch.testing.assert_close(clip.seconds, torch.arange(5).double() / 5)
    raw = read(write_video(tmp_path / "a.h264", 30))
    torch.testing.assert_close(raw.seconds, torch.arange(30).double() / 25, rtol=0, atol=1e-12)
    assert level(raw) == list(range(30))


def test_variable_frame_rate_is_kept(tmp_path: Path) -> None:
    pts = [0, 10, 20, 500, 510, 2000, 2001, 2500]
    clip = read(write_video(tmp_path / "a.mkv", 8, pts=pts))
    torch.testing.assert_close(clip.seconds, torch.tensor(pts).double() / 1000)
    assert level(clip) == list(range(8))


def test_probe(tmp_path: Path) -> None:
    [source] = find_sources([write_video(tmp_path / "a.mp4", 30)])
    assert source.probe() == Info(width=64, height=48, rate=25.0, frames=30)
    [source] = find_sources([write_video(tmp_path / "a.mkv", 30)])
    assert source.probe().frames == 30, "from the duration in its header"
    [source] = find_sources([write_pictures(tmp_path / "pictures", 12)])
    assert source.probe() == Info(width=64, height=48, rate=25.0, frames=12)


def test_reading_options(tmp_path: Path) -> None:
    for path in (write_video(tmp_path / "a.mp4", 30), write_pictures(tmp_path / "a", 30)):
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
    make = write_video if kind.endswith("mp4") else write_pictures
    [source] = find_sources([make(tmp_path / kind, 70)])
    whole = list(source.clips(100))
    parts = list(source.clips(7, ahead=1))
    assert [len(part.index) for part in parts] == [7] * 10
    assert len(whole) == 1
    for name in ("frames", "seconds", "index"):
        joined = torch.cat([getattr(part, name) for part in parts])
        assert torch.equal(joined, getattr(whole[0], name))
        assert torch.equal(joined, getattr(read_all(source), name))


def test_white_is_white_and_grey_is_full_range(tmp_path: Path) -> None:
    with VideoWriter(tmp_path / "a.mp4") as writer:
        writer.write(np.full((48, 64, 3), 255, np.uint8))
        writer.write(np.zeros((48, 64, 3), np.uint8))
    grey = read(str(tmp_path / "a.mp4"), grey=True, size=(24, 32)).frames
    assert grey[0].min() >= 253
    assert grey[1].max() <= 2
    assert read(str(tmp_path / "a.mp4")).frames[0].min() >= 252


def rotate(path: str, a: int, b: int, c: int, d: int) -> None:
    """Write a turn into the track header of an mp4, as telephones do."""
    data = bytearray(Path(path).read_bytes())
    start = data.index(b"tkhd") + 4 + 40  # version 0: the matrix follows forty bytes of header
    one = 1 << 16
    struct.pack_into(">9i", data, start, a * one, b * one, 0, c * one, d * one, 0, 0, 0, 1 << 30)
    Path(path).write_bytes(data)


@pytest.mark.parametrize(
    ("matrix", "turns"), [((0, 1, -1, 0), -1), ((-1, 0, 0, -1), 2), ((0, -1, 1, 0), 1)]
)
def test_rotation_is_honoured(
    tmp_path: Path, matrix: tuple[int, int, int, int], turns: int
) -> None:
    path = write_video(tmp_path / "a.mp4", 3)
    upright = read(path)
    rotate(path, *matrix)
    turned = read(path)
    assert torch.equal(turned.frames, torch.rot90(upright.frames, turns, (2, 3)))
    height, width = turned.frames.shape[2:]
    info = find_sources([path])[0].probe()
    assert (info.height, info.width) == (height, width)
    assert read(path, longest=32).frames.shape[2:] == (height // 2, width // 2)
    assert read(path, size=(20, 30)).frames.shape[2:] == (20, 30)


def test_odd_sizes_and_single_frames(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.avi", 1, "mjpeg", size=(47, 63), pix_fmt="yuvj444p")
    assert read(path).frames.shape == (1, 3, 47, 63)
    assert read(path, grey=True).frames.shape == (1, 1, 47, 63)


def test_frames_that_change_size_take_that_of_the_first(tmp_path: Path) -> None:
    small = Path(write_video(tmp_path / "a.mjpeg", 3, "mjpeg", pix_fmt="yuvj420p"))
    large = Path(write_video(tmp_path / "b.mjpeg", 3, "mjpeg", (96, 128), pix_fmt="yuvj420p"))
    small.write_bytes(small.read_bytes() + large.read_bytes())
    assert read(str(small)).frames.shape == (6, 3, 48, 64)


# Pictures


def test_picture_kinds(tmp_path: Path) -> None:
    grey = np.linspace(0, 65535, 48 * 64).reshape(48, 64).astype(np.uint16)
    Image.fromarray(grey).save(tmp_path / "1.png")
    Image.fromarray(pattern(1)).quantize(8).save(tmp_path / "2.png")
    clear = np.dstack([np.full((48, 64, 3), 200, np.uint8), np.zeros((48, 64), np.uint8)])
    clear[:, 32:, 3] = 255
    Image.fromarray(clear).save(tmp_path / "3.png")
    Image.fromarray(pattern(3)).convert("CMYK").save(tmp_path / "4.jpg")
    Image.fromarray(pattern(3)[:, :, 0] > 200).save(tmp_path / "5.tif")
    (tmp_path / "notes.txt").write_text("not a picture")
    clip = read(str(tmp_path))
    assert clip.frames.shape == (5, 3, 48, 64)
    assert clip.frames[0, 0, -1, -1] == 255
    assert clip.frames[0, 0].double().mean() == pytest.approx(127.5, abs=0.5)
    assert clip.frames[1, :, -1, -1].tolist() == [23, 23, 23]
    assert clip.frames[2, :, 0, 0].tolist() == [0, 0, 0]
    assert clip.frames[2, :, 0, -1].tolist() == [200, 200, 200]
    assert set(clip.frames[4].unique().tolist()) == {0, 255}
    assert read(str(tmp_path), grey=True, size=(12, 16)).frames.shape == (5, 1, 12, 16)


@pytest.mark.parametrize("suffix", ["jpg", "png"])
def test_camera_orientation(tmp_path: Path, suffix: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held upright: turn the picture clockwise
    Image.fromarray(pattern(5)).save(tmp_path / f"1.{suffix}", exif=exif)
    clip = read(str(tmp_path))
    assert clip.frames.shape == (1, 3, 64, 48)
    assert clip.frames[0, 0, 4, -4] > 220  # the square went from the top left to the top right
    assert read(str(tmp_path), longest=32).frames.shape == (1, 3, 32, 24)
    info = find_sources([str(tmp_path)])[0].probe()
    assert (info.height, info.width) == (64, 48)


def test_pictures_of_two_sizes(tmp_path: Path) -> None:
    folder = write_pictures(tmp_path / "a", 5)
    Image.new("RGB", (10, 20)).save(tmp_path / "a/img3.png")
    with pytest.raises(VideoError, match=r"img3.png: 10 x 20 pixels, but .*img0.png has 64 x 48"):
        read(folder)
    assert read(folder, size=(16, 16)).frames.shape == (5, 3, 16, 16)
    [source] = find_sources([folder])
    clips = source.clips(2)
    assert next(clips).index.tolist() == [0, 1]
    assert next(clips).index.tolist() == [2]
    with pytest.raises(VideoError, match="img3"):
        next(clips)


def test_bad_pictures(tmp_path: Path) -> None:
    page = Image.new("L", (4, 4))
    for name, message in {
        "a": "several pages",
        "b": "floating point",
        "c": "cannot be read",
    }.items():
        (tmp_path / name).mkdir()
        file = tmp_path / name / "1.tif"
        if name == "a":
            page.save(file, save_all=True, append_images=[page])
        elif name == "b":
            Image.fromarray(np.zeros((4, 4), np.float32)).save(file)
        else:
            file.write_text("not a picture")
        with pytest.raises(VideoError, match=f"1.tif: .*{message}"):
            read(str(tmp_path / name))


# What is found where


def test_natural_order(tmp_path: Path) -> None:
    names = ["img10", "img9b", "img9a10", "img9a9", "2", "10", "img01", "img1", "a"]
    ordered = ["2", "10", "a", "img01", "img1", "img9a9", "img9a10", "img9b", "img10"]
    assert sorted(names, key=natural_key) == ordered
    assert level(read(write_pictures(tmp_path / "a", 12))) == list(range(12))


def test_folders(tmp_path: Path) -> None:
    for name in ("run10", "run2"):
        write_pictures(tmp_path / "many" / name, 2)
    (tmp_path / "many/.hidden").mkdir()
    (tmp_path / "many/README").write_text("text")
    found = find_sources([str(tmp_path / "many")])
    assert [(source.name, source.kind) for source in found] == [
        ("run2", "images"),
        ("run10", "images"),
    ]
    (tmp_path / "videos").mkdir()
    for name in ("b10.mp4", "b2.mp4"):
        write_video(tmp_path / "videos" / name, 2)
    (tmp_path / "videos/labels.csv").write_text("a,b\n1,2\n")
    (tmp_path / "videos/._b2.mp4").write_text("what macOS leaves behind")
    found = find_sources([str(tmp_path / "videos"), str(tmp_path / "many")])
    assert [source.name for source in found] == ["b2", "b10", "run2", "run10"]


def test_patterns(tmp_path: Path) -> None:
    write_pictures(tmp_path / "a", 4)
    write_pictures(tmp_path / "b", 4)
    Image.new("RGB", (4, 4)).save(tmp_path / "a" / "thumb.jpg")
    write_video(tmp_path / "c.mp4", 2)
    [source] = find_sources([f"{tmp_path}/a/img*.png"])
    assert (source.name, source.kind) == ("a", "images")
    assert len(read_all(source).index) == 4
    found = find_sources([f"{tmp_path}/*/img*.png"])
    assert [source.name for source in found] == ["a", "b"]
    found = find_sources([f"{tmp_path}/[bc]*"])
    assert sorted(source.name for source in found) == ["b", "c"]
    assert len(find_sources([f"{tmp_path}/**"])) == 3


def test_names_are_unique_and_safe(tmp_path: Path) -> None:
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        write_video(tmp_path / folder / "clip.mp4", 1)
    write_video(tmp_path / "x" / "CLIP.avi", 1, "mjpeg", pix_fmt="yuvj420p")
    write_video(tmp_path / "x" / '-a, "b"; c\'d.mp4', 1)
    found = find_sources([str(tmp_path / "x"), str(tmp_path / "y"), str(tmp_path / "x/clip.mp4")])
    assert len(found) == 4
    names = {os.path.basename(source.path): source.name for source in found}
    assert names['-a, "b"; c\'d.mp4'] == "a_b_c_d"
    assert sorted(source.name for source in found) == ["a_b_c_d", "x_CLIP", "x_clip-2", "y_clip"]


def text_file(path: Path) -> None:
    path.write_text("some text, not a video\n" * 100)


def test_refusals(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "useless").mkdir()
    text_file(tmp_path / "useless/notes.txt")
    text_file(tmp_path / "text.mp4")
    (tmp_path / "zero.mp4").touch()
    Image.new("RGB", (4, 4)).save(tmp_path / "one.png")
    (tmp_path / "mixed").mkdir()
    Image.new("RGB", (4, 4)).save(tmp_path / "mixed/one.png")
    write_video(tmp_path / "mixed/a.mp4", 1)
    expected = {
        "nowhere": "nowhere: does not exist",
        "nowhere.mp4": "nowhere.mp4: does not exist",
        "empty": "empty: an empty folder",
        "useless": "useless: no picture and no video",
        "*.mov": "nothing matches this pattern",
        "useless/*": "matches no picture and no video",
        "text.mp4": "text.mp4: cannot be read as a video",
        "useless/notes.txt": "notes.txt: is text or one picture",
        "zero.mp4": "zero.mp4: cannot be read as a video",
        "one.png": "one.png: is text or one picture, no video; for pictures give their folder",
        "mixed": "mixed: holds pictures and videos",
    }
    for name, message in expected.items():
        with pytest.raises(VideoError) as caught:
            find_sources([str(tmp_path / name)])
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)
    with pytest.raises(VideoError, match="at least one"):
        find_sources([])


def test_a_video_that_cannot_be_opened_is_not_passed_over(tmp_path: Path) -> None:
    write_video(tmp_path / "a.mp4", 1)
    text_file(tmp_path / "b.mp4")
    with pytest.raises(VideoError, match=r"b\.mp4"):
        find_sources([str(tmp_path)])


def test_sound_is_no_video(tmp_path: Path) -> None:
    with av.open(str(tmp_path / "a.wav"), "w") as container:
        stream: Any = container.add_stream("pcm_s16le", rate=8000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), layout="mono")
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
    with pytest.raises(VideoError, match="holds no moving pictures"):
        find_sources([str(tmp_path / "a.wav")])


def test_missing_pyav_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "av", None)
    (tmp_path / "a.mp4").touch()
    with pytest.raises(ModuleNotFoundError, match=r"pip install av"):
        find_sources([str(tmp_path / "a.mp4")])


# Broken files


def cut(path: str, share: float) -> None:
    data = Path(path).read_bytes()
    Path(path).write_bytes(data[: int(len(data) * share)])


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv"])
def test_what_is_readable_comes_before_the_error(tmp_path: Path, name: str) -> None:
    path = write_noise(tmp_path / name, **({"movflags": "+faststart"} if "mp4" in name else {}))
    cut(path, 0.6)
    [source] = find_sources([path])
    got: list[int] = []
    with pytest.raises(VideoError, match=rf"{name}: broken after frame \d+; \d+ frames") as caught:
        got.extend(number for clip in source.clips(8) for number in clip.index.tolist())
    assert 25 < len(got) < 40
    assert f"; {len(got)} frames can be read" in str(caught.value)
    with pytest.raises(VideoError, match="broken"):
        read_all(source)
    assert len(read_all(source, Reading(max_frames=5)).index) == 5


def test_damage_in_the_middle(tmp_path: Path) -> None:
    path = Path(write_noise(tmp_path / "a.mp4"))
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 3000] = np.random.default_rng(0).bytes(3000)
    path.write_bytes(data)
    [source] = find_sources([str(path)])
    got: list[int] = []
    with pytest.raises(VideoError, match="broken after frame"):
        got.extend(number for clip in source.clips(8) for number in clip.index.tolist())
    assert 50 < len(got) < 60  # reading goes on after the damage


def test_index_at_the_end_and_cut_off(tmp_path: Path) -> None:
    path = write_noise(tmp_path / "a.mp4")
    cut(path, 0.9)
    with pytest.raises(VideoError, match=r"a\.mp4: cannot be read as a video .*is it complete"):
        find_sources([path])


def test_no_frame_can_be_decoded(tmp_path: Path) -> None:
    path = Path(write_noise(tmp_path / "a.mp4", movflags="+faststart"))
    data = path.read_bytes()
    start = data.index(b"mdat") + 4
    path.write_bytes(data[:start] + bytes(len(data) - start))
    [source] = find_sources([str(path)])
    with pytest.raises(VideoError, match="no frame can be decoded"):
        read_all(source)
    with pytest.raises(VideoError, match="no frame can be decoded"):
        source.probe()


def test_a_file_that_vanishes(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", 3)
    [source] = find_sources([path])
    os.remove(path)
    with pytest.raises(VideoError, match=r"a\.mp4: cannot be read"):
        next(source.clips(4))


# The thread


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
    assert time.monotonic() - started < 1
    assert not readers()


def test_reading_ahead_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = 0
    convert = frames.to_picture

    def counting(*args: Any) -> torch.Tensor:
        nonlocal decoded
        decoded += 1
        return convert(*args)

    monkeypatch.setattr(frames, "to_picture", counting)
    [source] = find_sources([write_video(tmp_path / "a.mp4", 70)])
    clips = source.clips(5, ahead=2)
    next(clips)
    time.sleep(0.3)
    assert decoded == 5 * (2 + 2)  # one in hand, two in the queue, one waiting to enter it
    clips.close()


def test_large_chunks_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video, "LARGE", 1)
    [source] = find_sources([write_video(tmp_path / "a.mp4", 70)])
    [clip] = source.clips(10**12)
    assert level(clip) == clip.index.tolist() == list(range(70))
    assert clip.frames.untyped_storage().nbytes() == clip.frames.numel()


def test_a_bug_in_the_thread_is_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> torch.Tensor:
        raise RuntimeError("a bug")

    monkeypatch.setattr(frames, "to_picture", fail)
    [source] = find_sources([write_video(tmp_path / "a.mp4", 3)])
    with pytest.raises(RuntimeError, match="a bug"):
        next(source.clips(4))


def test_a_slow_reader_of_a_camera_gets_the_newest(tmp_path: Path) -> None:
    def numbers() -> Generator[Clip, None, None]:
        for number in range(50):
            one = torch.tensor([number])
            yield Clip(one, one, one)

    clips = video._in_background(numbers(), 2, threading.Event(), newest=True)
    first = next(clips)
    time.sleep(0.2)
    rest = [int(clip.index) for clip in clips]
    assert int(first.index) < 50
    assert rest[-1] == 49
    assert len(rest) <= 3


# Live


def test_live_file(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", 30)
    source = open_live(path)
    assert (source.name, source.kind) == ("a", "live")
    assert sum(len(clip.index) for clip in source.clips(1, ahead=1)) == 30


def test_live_url(tmp_path: Path) -> None:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            pass

    write_video(tmp_path / "a.mkv", 30)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        address = f"http://127.0.0.1:{server.server_port}"
        assert level(read_all(open_live(f"{address}/a.mkv"))) == list(range(30))
        with pytest.raises(VideoError, match=r"none\.mkv: cannot be read"):
            read_all(open_live(f"{address.replace('//', '//me:secret@')}/none.mkv"))
    finally:
        server.shutdown()
        server.server_close()


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
    assert frames._shown("rtsp://me:secret@door/hall") == "rtsp://door/hall"


# Writing


@pytest.mark.parametrize("codec", ["libx264", "mpeg4"])
def test_written_and_read_back(tmp_path: Path, codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if codec == "mpeg4":
        monkeypatch.setattr(av, "codecs_available", {"mpeg4"})
    with VideoWriter(tmp_path / "a.mp4", fps=12.5) as writer:
        for number in range(20):
            picture = pattern(number, 47, 63)
            writer.write(picture if number % 2 else torch.from_numpy(picture).permute(2, 0, 1))
    clip = read(str(tmp_path / "a.mp4"))
    assert clip.frames.shape == (20, 3, 48, 64)
    assert level(clip) == list(range(20))
    torch.testing.assert_close(clip.seconds, torch.arange(20).double() / 12.5)
    assert os.listdir(tmp_path) == ["a.mp4"]


def fill(target: Path, frames: list[Pixels]) -> None:
    with VideoWriter(target) as writer:
        for frame in frames:
            writer.write(frame)
        assert len(os.listdir(target.parent)) == 2  # the old file and the unfinished one
        raise RuntimeError("stop")


def test_nothing_half_written(tmp_path: Path) -> None:
    target = tmp_path / "a.mp4"
    target.write_text("old")
    with pytest.raises(RuntimeError, match="stop"):
        fill(target, [pattern(number) for number in range(70)])
    with pytest.raises(ValueError, match=r"of shape \(48, 64, 3\)"):
        fill(target, [pattern(0), pattern(0, 20, 20)])
    with pytest.raises(RuntimeError, match="at once"), VideoWriter(target):
        raise RuntimeError("at once")
    with pytest.raises(VideoError, match="no frame was written"), VideoWriter(target):
        pass
    with pytest.raises(ValueError, match="uint8 RGB"), VideoWriter(target) as writer:
        writer.write(torch.zeros(3, 4, 4))
    assert os.listdir(tmp_path) == ["a.mp4"]
    assert target.read_text() == "old"
    with pytest.raises(VideoError, match="folder does not exist"):
        VideoWriter(tmp_path / "none/a.mp4")
    with pytest.raises(ValueError, match="frames a second, got 0"):
        VideoWriter(target, fps=0)


# Real data


def test_mouse_video() -> None:
    data = os.environ.get("ULLAYERS_DATA")
    if not data:
        pytest.skip("set ULLAYERS_DATA to the folder with tracktor/videos/mouse_video.mp4")
    [source] = find_sources([f"{data}/tracktor/videos/mouse_video.mp4"])
    info = source.probe()
    assert (info.width, info.height, info.frames) == (640, 480, 10_000)
    assert info.rate == pytest.approx(30, abs=0.1)
    clip = read_all(source, Reading(grey=True, stride=100, max_frames=20))
    assert clip.frames.shape == (20, 1, 480, 640)
    assert clip.index.tolist() == list(range(0, 2000, 100))
    torch.testing.assert_close(clip.seconds, clip.index.double() / 30, rtol=0, atol=1e-6)
    # The published track finds the black mouse in these frames: pictures and numbers match.
    # (Its rows count from 0 as we do, its own frame column from 1.)
    track = f"{data}/tracktor/output/mouse_video_tracked.csv"
    rows = np.loadtxt(track, delimiter=",", skiprows=1)[clip.index]
    x, y = torch.from_numpy(rows[:, 2:]).long().T
    there = clip.frames[torch.arange(20), 0, y, x].double()
    assert float((there < 50).double().mean()) > 0.9
    assert len(read_all(source, Reading(size=(6, 8), max_frames=777)).index) == 777
