"""Hostile and unusual input: odd metadata, playlists, absurd sizes, damaged images."""

from __future__ import annotations

import io
import json
import os
import random
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from PIL import EpsImagePlugin, Image, ImageOps

import ullayers.video.clips as frames
import ullayers.video.files.opening as opening
from tests.video.samples import level, pattern, read, write_images, write_video
from ullayers.video.access import FrameAccess
from ullayers.video.clips import MAX_PIXELS, VideoError
from ullayers.video.files.opening import open_video
from ullayers.video.sources import Source, find_sources, open_live, read_all

SIDE = 13_300  # pixels; their product is just below what Pillow itself refuses


READ_EACH = """
import json, resource, sys
from ullayers.video.clips import VideoError
from ullayers.video.sources import find_sources, read_all
for path in sys.argv[1:]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        said = f"{len(read_all(find_sources([path])[0]).index)} frames"
    except VideoError as error:
        said = str(error)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps([said, (after - before) * 1024]))
"""


def read_each(*paths: str) -> tuple[list[tuple[str, int]], str]:
    """Read sources in a new process, as users do: nothing there changes the warnings.

    Returns:
        For each source what is said of it and the bytes of memory that it took, and what was
        printed to stderr.
    """
    command = [sys.executable, "-c", READ_EACH, *paths]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()], done.stderr


# Metadata


def write_titled(path: Path) -> str:
    """A video whose title and whose stream's title are Latin-1."""
    with av.open(str(path), "w") as container:
        container.metadata["title"] = "CONTAINER"
        stream: Any = container.add_stream("mpeg4", rate=25)
        stream.metadata["title"] = "STREAM"
        stream.height, stream.width, stream.pix_fmt = 48, 64, "yuv420p"
        for number in range(5):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pattern(number))))
        container.mux(stream.encode())
    content = path.read_bytes()
    assert content.count(b"CONTAINER") == content.count(b"STREAM") == 1
    content = content.replace(b"CONTAINER", "CAFÉ AU L".encode("latin-1"))
    path.write_bytes(content.replace(b"STREAM", "STRÈAM".encode("latin-1")))
    return str(path)


@pytest.mark.parametrize("name", ["a.avi", "a.mp4", "a.mkv"])
def test_metadata_need_not_be_utf8(tmp_path: Path, name: str) -> None:
    path = write_titled(tmp_path / name)
    with pytest.raises(UnicodeDecodeError):
        av.open(path)
    [source] = find_sources([str(tmp_path)])
    assert source.probe().width == 64
    clip = read_all(source)
    assert len(clip.index) == 5
    with FrameAccess(source) as frames:
        assert torch.equal(frames.render(3, (48, 64)), clip.frames[3])
    assert len(read_all(open_live(path)).index) == 5


# Playlists

ENDLESS = "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nother.ts\n"
SDP = "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 5004 RTP/AVP 96\n"
MPD = """<?xml version="1.0"?>
<MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static" mediaPresentationDuration="PT1S">
<Period><AdaptationSet mimeType="video/mp4"><Representation id="1" bandwidth="1000">
<BaseURL>other.ts</BaseURL></Representation></AdaptationSet></Period></MPD>
"""
PLAYLISTS = {
    "list.m3u8": ENDLESS + "#EXT-X-ENDLIST\n",
    "endless.m3u8": ENDLESS,
    "list.txt": "ffconcat version 1.0\nfile other.ts\n",
    "list.mp4": "ffconcat version 1.0\nfile other.ts\n",
    "stream.sdp": SDP,
}


@pytest.mark.timeout(60)  # one without an end would be read for ever
@pytest.mark.parametrize("name", PLAYLISTS)
@pytest.mark.parametrize("live", [False, True])
def test_a_playlist_is_refused_and_what_it_names_not_opened(
    tmp_path: Path, name: str, live: bool
) -> None:
    other = Path(write_video(tmp_path / "other.ts", 5))
    path = tmp_path / name
    path.write_text(PLAYLISTS[name])
    check = watch_access(other)
    with pytest.raises(VideoError, match=f"{name}: is a playlist .*give the video files"):
        open_live(str(path)) if live else find_sources([str(path)])
    for kind in ("live", "video"):
        with pytest.raises(VideoError, match="is a playlist"):
            next(Source("list", str(path), kind).clips(4))
    check()


def watch_access(path: Path) -> Callable[[], None]:
    """Return a function that fails if the file has been read."""
    modified = path.stat().st_mtime_ns
    os.utime(path, ns=(modified - 10**12, modified))  # so that the next access changes the time
    before = path.stat().st_atime_ns

    def check() -> None:
        assert path.stat().st_atime_ns == before
        path.read_bytes()
        if path.stat().st_atime_ns == before:
            pytest.skip("this file system does not record when files are read")

    return check


@pytest.mark.parametrize(("name", "content"), [("a.mpd", MPD), ("endless.mp4", ENDLESS)])
def test_what_ffmpeg_does_not_take_for_a_playlist(tmp_path: Path, name: str, content: str) -> None:
    check = watch_access(Path(write_video(tmp_path / "other.ts", 5)))
    (tmp_path / name).write_text(content)
    with pytest.raises(VideoError, match=f"{name}: (is a playlist|cannot be read)"):
        find_sources([str(tmp_path / name)])
    check()


def test_a_file_named_like_an_image_pattern_opens_no_other(tmp_path: Path) -> None:
    folder = Path(write_images(tmp_path / "a", 3))
    (folder / "img0.png").rename(folder / "img%d.png")
    check = watch_access(folder / "img1.png")
    with pytest.raises(VideoError, match="is text or a single image, not a video"):
        find_sources([str(folder / "img%d.png")])
    check()


def test_links_and_odd_names_still_work(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", 5)
    write_images(tmp_path / "images", 5)
    for name in ("link.mp4", "a: b, c.mp4", "m3u8", "list.m3u8", "concat:x|y", "-i"):
        os.symlink(path, tmp_path / name)
        assert level(read(str(tmp_path / name))) == list(range(5))
    os.symlink(tmp_path / "images", tmp_path / "folder")
    assert level(read(str(tmp_path / "folder"))) == list(range(5))


# Absurd sizes


def write_png(path: Path, width: int, height: int) -> None:
    """A black PNG of any size, without the memory that it takes once decoded."""
    packer = zlib.compressobj(9)
    row = bytes(1 + width)
    data = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    with path.open("wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n")
        for name, content in ((b"IHDR", header), (b"IDAT", data), (b"IEND", b"")):
            check = struct.pack(">I", zlib.crc32(name + content))
            file.write(struct.pack(">I", len(content)) + name + content + check)


def test_sizes_that_pillow_refuses_itself(tmp_path: Path) -> None:
    write_png(tmp_path / "1.png", 100_000, 8)
    content = bytearray((tmp_path / "1.png").read_bytes())
    content[16:24] = struct.pack(">II", 100_000, 100_000)
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    (tmp_path / "1.png").write_bytes(content)
    with pytest.raises(
        VideoError, match=r"1\.png: 10000000000 pixels, but the limit is 67 million"
    ):
        read(str(tmp_path))


def test_the_limit_is_for_pixels_and_not_for_sides(tmp_path: Path) -> None:
    write_png(tmp_path / "1.png", 100_000, 8)
    assert read(str(tmp_path), size=(8, 8)).frames.shape == (1, 3, 8, 8)


def test_frames_of_an_absurd_size_are_refused(tmp_path: Path) -> None:
    path = Path(write_video(tmp_path / "a.avi", 2, "rawvideo", pix_fmt="yuv420p"))
    content = bytearray(path.read_bytes())
    place = content.index(b"strf") + 12
    assert struct.unpack_from("<ii", content, place) == (64, 48)
    struct.pack_into("<ii", content, place, 32_768, 32_768)
    path.write_bytes(content)
    with pytest.raises(VideoError, match=r"a\.avi: 32768 x 32768 pixels, but the limit is 67 mill"):
        find_sources([str(path)])


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.avi", "a.h264", "jpeg.avi"])
def test_the_size_of_frames_that_are_too_large_is_named(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    codec, pix_fmt = ("mjpeg", "yuvj420p") if "jpeg" in name else ("libx264", "yuv420p")
    path = write_video(tmp_path / name, 2, codec, pix_fmt=pix_fmt)
    monkeypatch.setattr(frames, "MAX_PIXELS", 1000)
    monkeypatch.setattr(opening, "MAX_PIXELS", 1000)
    with pytest.raises(VideoError, match=f"{name}: 64 x 48 pixels, but the limit"):
        find_sources([path])


def test_frames_that_grow_beyond_the_limit_are_not_decoded(tmp_path: Path) -> None:
    small = Path(write_video(tmp_path / "a.mjpeg", 3, "mjpeg", pix_fmt="yuvj420p"))
    large = io.BytesIO()
    Image.new("L", (9000, 9000)).save(large, "JPEG")
    assert 9000 * 9000 > MAX_PIXELS
    small.write_bytes(small.read_bytes() + large.getvalue())
    got: list[int] = []
    with pytest.raises(VideoError, match="broken after frame 3; 3 frames can be read"):
        got.extend(n for clip in Source("a", str(small), "video").clips(8) for n in clip.index)
    assert got == [0, 1, 2]


def test_open_video_limits_the_decoder(tmp_path: Path) -> None:
    with open_video(write_video(tmp_path / "a.mp4", 2)) as video:
        assert video.stream.codec_context.options == {"max_pixels": str(MAX_PIXELS)}


# Damaged images


def damaged_tiffs(folder: Path, count: int) -> list[str]:
    """TIFFs of all compressions with random bytes changed, each in a folder of its own."""
    chance = random.Random(0)
    pixels = np.random.default_rng(0).integers(0, 255, (48, 64, 3), dtype=np.uint8)
    folders = []
    for number in range(count):
        compression = chance.choice([None, "tiff_lzw", "jpeg", "tiff_deflate", "group4"])
        image = Image.fromarray(pixels)
        file = io.BytesIO()
        (image.convert("1") if compression == "group4" else image).save(
            file, "TIFF", compression=compression
        )
        content = bytearray(file.getvalue())
        for _ in range(chance.randint(1, 6)):
            near = chance.randrange(250)  # the header, and the directory at the end
            place = chance.choice([near, len(content) - 1 - near, chance.randrange(len(content))])
            content[place % len(content)] = chance.randrange(256)
        folders.append(str(folder / f"{number}"))
        (folder / f"{number}").mkdir()
        (folder / f"{number}" / "1.tif").write_bytes(content)
    return folders


def test_large_and_damaged_images_are_refused_silently(tmp_path: Path) -> None:
    (tmp_path / "large").mkdir()
    write_png(tmp_path / "large" / "1.png", SIDE, SIDE)
    assert (tmp_path / "large" / "1.png").stat().st_size < 10**6
    lines, errors = read_each(str(tmp_path / "large"), *damaged_tiffs(tmp_path, 300))
    assert errors == ""
    assert len(lines) == 301
    said, memory = lines[0]
    assert said == (
        f"{tmp_path}/large/1.png: 13300 x 13300 pixels, but the limit is 67 million pixels; "
        "resize or remove this file"
    )
    assert memory < SIDE * SIDE // 2  # it has not been decoded
    bad = [said for said, _ in lines if "1.tif: cannot be read as an image; replace or" in said]
    assert len(bad) > 100


def test_any_exception_of_pillow_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_images(tmp_path / "a", 2)

    def fail(*_: Any, **__: Any) -> None:
        raise TypeError("a damaged TIFF")

    for owner, name in ((Image, "open"), (ImageOps, "exif_transpose")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, fail)
            with pytest.raises(VideoError, match=r"img0\.png: cannot be read .*2 of 2 images"):
                read(folder)


def test_pillow_starts_no_other_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "a.eps")
    (tmp_path / "a.eps").rename(tmp_path / "a.png")
    started: list[Any] = []
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *args: started.append(args))
    with pytest.raises(VideoError, match=r"a\.png: cannot be read as an image"):
        read(str(tmp_path))
    assert started == []
