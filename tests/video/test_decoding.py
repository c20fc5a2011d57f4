"""Video files: formats, times, rotation, damage."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from PIL import Image

from tests.real_data import DATA
from tests.video.samples import (
    cut,
    level,
    pattern,
    read,
    write_noise,
    write_video,
)
from ullayers.video.clips import Reading, VideoError
from ullayers.video.files.writing import VideoWriter
from ullayers.video.sources import find_sources, read_all


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


@pytest.mark.parametrize("width", [18, 24, 40, 42, 56])
def test_every_column_is_converted(tmp_path: Path, width: int) -> None:
    """Swscale has a fast conversion that leaves the last columns as they were in memory."""
    path = write_video(tmp_path / "a.mp4", 3, size=(32, width))
    frames = read(path).frames.float()
    for number, frame in enumerate(frames):
        assert (frame[:, -8:] - (20 + 3 * number)).abs().max() < 6


def test_frames_that_change_size_take_that_of_the_first(tmp_path: Path) -> None:
    small = Path(write_video(tmp_path / "a.mjpeg", 3, "mjpeg", pix_fmt="yuvj420p"))
    large = Path(write_video(tmp_path / "b.mjpeg", 3, "mjpeg", (96, 128), pix_fmt="yuvj420p"))
    small.write_bytes(small.read_bytes() + large.read_bytes())
    assert read(str(small)).frames.shape == (6, 3, 48, 64)


def test_a_sound_file_is_not_a_video(tmp_path: Path) -> None:
    with av.open(str(tmp_path / "a.wav"), "w") as container:
        stream: Any = container.add_stream("pcm_s16le", rate=8000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), layout="mono")
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
    with pytest.raises(VideoError, match="has no video stream"):
        find_sources([str(tmp_path / "a.wav")])


def test_missing_pyav_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "av", None)
    (tmp_path / "a.mp4").touch()
    with pytest.raises(ModuleNotFoundError, match=r"pip install av"):
        find_sources([str(tmp_path / "a.mp4")])


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


@pytest.mark.data
def test_mouse_video() -> None:
    [source] = find_sources([f"{DATA}/tracktor/videos/mouse_video.mp4"])
    info = source.probe()
    assert (info.width, info.height, info.frames) == (640, 480, 10_000)
    assert info.rate == pytest.approx(30, abs=0.1)
    clip = read_all(source, Reading(grey=True, stride=100, max_frames=20))
    assert clip.frames.shape == (20, 1, 480, 640)
    assert clip.index.tolist() == list(range(0, 2000, 100))
    torch.testing.assert_close(clip.seconds, clip.index.double() / 30, rtol=0, atol=1e-6)
    # The published track finds the black mouse in these frames: pictures and numbers match.
    # (Its rows count from 0 as we do, its own frame column from 1.)
    track = f"{DATA}/tracktor/output/mouse_video_tracked.csv"
    rows = np.loadtxt(track, delimiter=",", skiprows=1)[clip.index]
    x, y = torch.from_numpy(rows[:, 2:]).long().T
    there = clip.frames[torch.arange(20), 0, y, x].double()
    assert float((there < 50).double().mean()) > 0.9
    assert len(read_all(source, Reading(size=(6, 8), max_frames=777)).index) == 777
