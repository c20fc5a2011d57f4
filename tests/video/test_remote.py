"""Videos in object stores and on web servers give the frames of local files."""

from __future__ import annotations

import sys
import uuid
from pathlib import Path

import pytest
import torch

from tests.films import write_ball, write_truncated
from tests.servers import served
from ullayers.errors import MissingPackageError
from ullayers.video.files.opening import absolute_path, is_url
from ullayers.video.sources import Reading, Source, VideoError, find_sources, read_all

fsspec = pytest.importorskip("fsspec", reason="needs pip install fsspec")


@pytest.fixture
def store(tmp_path: Path) -> str:
    """A folder in memory, with two videos in folders of it and a text."""
    place = f"memory://{uuid.uuid4().hex}"
    memory = fsspec.filesystem("memory")
    for number, name in enumerate(("day2/a.mp4", "day10/a.mp4")):
        film = Path(write_ball(tmp_path / f"film{number}.mp4", 60, seed=number))
        memory.pipe(f"{place}/{name}", film.read_bytes())
    memory.pipe(f"{place}/day2/notes.txt", b"no video")
    return place


def check_same(source: Source, path: Path, reading: Reading) -> None:
    expected, found = read_all(find_sources([str(path)])[0], reading), read_all(source, reading)
    assert torch.equal(found.frames, expected.frames)
    assert found.index.tolist() == expected.index.tolist()
    assert found.seconds.tolist() == expected.seconds.tolist()


@pytest.mark.parametrize("reading", [Reading(), Reading(start=1.0, stride=3, longest=32)])
def test_frames_are_those_of_the_file(store: str, tmp_path: Path, reading: Reading) -> None:
    for number, source in enumerate(find_sources([f"{store}/**/*.mp4"])):
        assert source.name == ("day2_a", "day10_a")[number], "in natural order"
        assert source.probe() == find_sources([f"{tmp_path}/film{number}.mp4"])[0].probe()
        check_same(source, tmp_path / f"film{number}.mp4", reading)


def test_a_web_server(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp", reason="needs pip install 'fsspec[http]'")
    write_ball(tmp_path / "film.mp4", 60)
    with served(tmp_path) as address:
        for path in ("film.mp4", "film.mp4?key=1", "*.mp4"):
            [source] = find_sources([f"{address}/{path}"])
            assert source.name == "film"
            check_same(source, tmp_path / "film.mp4", Reading(start=1.0))
        with pytest.raises(VideoError, match=r"none\.mp4: does not exist"):
            find_sources([f"{address}/none.mp4"])[0].probe()
    with pytest.raises(VideoError, match="check the address, the network") as gone:
        Source("film", f"{address.replace('//', '//me:secret@')}/gone.mp4", "video").probe()
    assert "secret" not in str(gone.value)


def test_broken_videos_are_found_out(tmp_path: Path) -> None:
    memory, place = fsspec.filesystem("memory"), f"memory://{uuid.uuid4().hex}"
    memory.pipe(f"{place}/a.mp4", Path(write_truncated(tmp_path / "a.mp4")).read_bytes())
    memory.pipe(f"{place}/b.mp4", b"This is no video.")
    [broken, text] = find_sources([f"{place}/*.mp4"])
    with pytest.raises(VideoError, match="broken after frame"):
        read_all(broken)
    with pytest.raises(VideoError, match="cannot be read as a video"):
        text.probe()


def test_what_cannot_be_found_is_refused(store: str) -> None:
    for url, words in (
        (f"{store}/*.avi", "no video matches"),
        ("rtsp://me:secret@door/hall", "rtsp://door/hall: is a live stream; use ul watch"),
        ("nowhere://bucket/*.mp4", "Protocol not known"),
    ):
        with pytest.raises(VideoError, match=words.replace("*", r"\*")):
            find_sources([url])


def test_a_connection_that_is_lost(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    [source] = find_sources([f"{store}/day2/*.mp4"])

    def lost(*_: object) -> bytes:
        raise RuntimeError("reset\nby peer")

    monkeypatch.setattr(type(fsspec.open(source.path).open()), "read", lost)
    with pytest.raises(VideoError, match=r"a\.mp4: cannot be read \(reset by peer\)"):
        read_all(source)


def test_packages_that_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(
        MissingPackageError, match=r"s3://bucket/a\.mp4: needs the package s3fs: pip install s3fs"
    ):
        find_sources(["s3://bucket/a.mp4"])[0].probe()
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    monkeypatch.delitem(sys.modules, "fsspec.implementations.http", raising=False)
    needed = r"https://x/a\.mp4: needs the package aiohttp: pip install 'ullayers\[remote\]'"
    with pytest.raises(MissingPackageError, match=needed):
        find_sources(["https://x/a.mp4"])[0].probe()
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(MissingPackageError, match=r"fsspec: pip install 'ullayers\[remote\]'"):
        find_sources(["memory://a/*.mp4"])


def test_urls_are_told_from_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("s3:").mkdir()
    write_ball(tmp_path / "s3:" / "a.mp4", 5)
    assert not is_url("s3://a.mp4"), "an odd name of a local file"
    assert len(read_all(find_sources(["s3://a.mp4"])[0]).index) == 5
    assert absolute_path("s3://b.mp4") == "s3://b.mp4"
