"""Videos: opened, uploaded, refused, deleted."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from tests.studio.conftest import write_video
from tests.studio.numbered import write_run
from ullayers.errors import Error
from ullayers.studio.files import Library, Workspace, sources_of
from ullayers.studio.studio import Studio


def sources(client: TestClient) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get("/api/state").json()["sources"]
    return found


def test_opened_videos_are_listed_and_shown(client: TestClient) -> None:
    [source] = sources(client)
    assert (source["name"], source["width"], source["height"]) == ("brightness", 64, 48)
    assert (source["frames"], source["fps"], source["origin"]) == (12, 10.0, "opened")
    for number in (7, 0, 11):
        jpeg = client.get(f"/api/sources/{source['id']}/frame/{number}?width=32").content
        picture = np.asarray(Image.open(io.BytesIO(jpeg)))
        assert picture.shape == (24, 32, 3)
        assert abs(picture.mean() - 15 * number) < 3
    assert client.get(f"/api/sources/{source['id']}/frame/12").status_code == 400
    assert client.get(f"/api/sources/{source['id']}/frame/-1").status_code == 400
    assert client.get("/api/sources/unknown/frame/0").status_code == 404


def test_videos_of_a_run_are_opened_once(
    tmp_path: Path, numbered: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening a long video takes a while."""
    run = write_run(tmp_path / "run", numbered)
    studio = Studio(Workspace.open(tmp_path / "studio"), [str(run)])
    monkeypatch.setattr("ullayers.studio.files.find_sources", None)
    state = studio.state()
    assert state["runs"][0]["sources"] == [source["id"] for source in state["sources"]]
    assert [source["name"] for source in state["sources"]] == ["numbered"]
    studio.close()


def test_a_video_of_a_run_may_appear_later(tmp_path: Path, video: Path) -> None:
    """Such as the recording of the camera, which is not there while it runs."""
    recording = tmp_path / "recording.mp4"
    assert sources_of((str(recording),)) == []
    video.rename(recording)
    assert [source.name for source in sources_of((str(recording),))] == ["recording"]


def test_upload(client: TestClient, tmp_path: Path) -> None:
    content = write_video(tmp_path / "new.mp4", 5).read_bytes()
    answer = client.post("/api/uploads", params={"name": "../../new film.mp4"}, content=content)
    assert answer.status_code == 201
    assert answer.json()["name"] == "new_film"
    again = client.post("/api/uploads", params={"name": "new film.mp4"}, content=content).json()
    assert again["name"] == "new_film-2"
    assert [source["origin"] for source in sources(client)] == ["opened", "upload", "upload"]
    assert client.delete(f"/api/sources/{again['id']}").status_code == 204
    assert len(sources(client)) == 2
    [opened] = [source for source in sources(client) if source["origin"] == "opened"]
    assert client.delete(f"/api/sources/{opened['id']}").status_code == 400


def test_an_upload_is_checked_beside_other_requests(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening a large file takes a while."""

    def check(path: Path, name: str) -> None:
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()

    monkeypatch.setattr("ullayers.studio.files._check_video", check)
    assert client.post("/api/uploads", params={"name": "a.mp4"}, content=b"a").status_code == 201


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("broken.mp4", b"not a video"),
        ("empty.mp4", b""),
        ("evil.sh", b"#!/bin/sh\nrm -rf /\n"),
        ("list.m3u8", b"#EXTM3U\n#EXTINF:1,\n/etc/passwd\n"),
    ],
)
def test_uploads_that_are_not_videos_are_removed(
    client: TestClient, studio: Studio, name: str, content: bytes
) -> None:
    answer = client.post("/api/uploads", params={"name": name}, content=content)
    assert answer.status_code == 400
    assert name in answer.json()["error"]
    assert list(studio.workspace.uploads.iterdir()) == []


def test_uploads_are_bounded(client: TestClient, studio: Studio, tmp_path: Path) -> None:
    studio.library.upload_limit = 1000
    content = write_video(tmp_path / "new.mp4").read_bytes()
    assert len(content) > 1000
    answer = client.post("/api/uploads", params={"name": "a.mp4"}, content=content)
    assert answer.status_code == 413
    unannounced = iter([content[:900], content[900:]])
    answer = client.post("/api/uploads", params={"name": "a.mp4"}, content=unannounced)
    assert answer.status_code == 413
    assert list(studio.workspace.uploads.iterdir()) == []


@pytest.mark.parametrize(
    "name",
    ["..", ".", "/etc/passwd", "a\0b.mp4", "<img src=x>.mp4", "CON", "a" * 500, "\u202e.mp4"],
)
def test_odd_names_become_safe_ones(client: TestClient, tmp_path: Path, name: str) -> None:
    content = write_video(tmp_path / "new.mp4", 3).read_bytes()
    shown = client.post("/api/uploads", params={"name": name}, content=content).json()["name"]
    assert shown
    assert not set(shown) & set("/\\<>\0\u202e \"'")
    assert len(shown) <= 64


def test_inputs_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(Error, match="does not exist"):
        Library(Workspace.open(tmp_path / "studio"), [str(tmp_path / "nowhere.mp4")])


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("")
    with pytest.raises(Error, match="not a studio folder"):
        Workspace.open(tmp_path)
