"""The WebSocket of the page: messages to the page, and the camera of the browser."""

from __future__ import annotations

import io
import struct
import time
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient, WebSocketTestSession

from tests.studio.conftest import HOST
from ullayers.studio import tables
from ullayers.studio.editing import outlines_of
from ullayers.studio.jobs import JobState, Request
from ullayers.studio.studio import Studio
from ullayers.tracks.reading import read_tracks

OWN = {"origin": f"http://{HOST}"}
SOCKET = f"ws://{HOST}/ws"
CAMERA_FRAMES = 45


def receive(socket: WebSocketTestSession, kind: str) -> dict[str, Any]:
    """Return the next message of a kind."""
    while True:
        message: dict[str, Any] = socket.receive_json()
        if message["type"] == kind:
            return message


def test_pages_are_told_what_changes(client: TestClient, video: Path) -> None:
    with (
        client,
        client.websocket_connect(SOCKET, headers=OWN) as first,
        client.websocket_connect(SOCKET, headers=OWN) as second,
    ):
        assert [source["name"] for source in receive(first, "state")["sources"]] == ["brightness"]
        for text in ("", "[]", "{", "[" * 10_000, '{"type": "watch", "run": 7}'):
            first.send_text(text)  # bad messages do not disconnect it
        first.send_bytes(b"no camera is on")
        client.post("/api/uploads", params={"name": "a.mp4"}, content=video.read_bytes())
        for socket in (first, second):
            while len(receive(socket, "state")["sources"]) < 2:
                pass


def test_a_page_may_leave_a_run_while_its_records_are_read(
    client: TestClient, studio: Studio, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets no error message; the text was "None"."""
    reading, left = Event(), Event()

    def records_after(folder: Path, after: int) -> tuple[list[dict[str, Any]], int]:
        reading.set()
        assert left.wait(10)
        return [], after

    monkeypatch.setattr(tables, "records_after", records_after)
    stopped = JobState(state="stopped")
    studio.jobs.add(Request(name="first"), stopped)
    with client, client.websocket_connect(SOCKET, headers=OWN) as socket:
        socket.send_json({"type": "watch", "run": "first"})
        assert reading.wait(10)
        socket.send_json({"type": "watch", "run": None})
        socket.send_text("[]")  # answered after the message before it was processed
        assert receive(socket, "error")["error"] == "expected a JSON object"
        left.set()
        studio.jobs.add(Request(name="second"), stopped)
        while len((message := socket.receive_json()).get("runs", [])) < 2:
            assert message["type"] != "error"


def frame(number: int) -> bytes:
    """A bright square on a dark scene, as the page sends it."""
    rng = np.random.default_rng(0)
    picture = rng.integers(0, 60, (120, 160, 3), np.uint8)
    x = 60 + int(50 * np.sin(number / 6))
    picture[50:74, x : x + 24] = 250
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "jpeg", quality=85)
    return struct.pack("<IId", number, 0, number / 10) + file.getvalue()


def test_the_camera_of_the_browser(client: TestClient, studio: Studio) -> None:
    """Frames in, outlines out within 100 ms; a run and a recording stay."""
    with client, client.websocket_connect(SOCKET, headers=OWN) as socket:
        socket.send_json({"type": "camera_start", "width": 160, "height": 120, "name": "desk"})
        delays, offsets = [], []
        for number in range(CAMERA_FRAMES):
            sent = time.monotonic()
            socket.send_bytes(frame(number))
            if number == 20:
                socket.send_bytes(struct.pack("<IId", 0, 0, 0.0) + b"not a JPEG")
            found = receive(socket, "camera")
            assert found["seq"] == number
            delays.append(time.monotonic() - sent)
            offsets.append(abs(160 * found["values"][0] - 72 - int(50 * np.sin(number / 6))))
        assert found["outlines"]
        assert np.median(offsets[25:]) < 8  # pixels
        [job] = studio.jobs.all()
        assert client.post(f"/api/runs/{job.name}/stop").json()["state"] == "stopping"
        socket.send_bytes(frame(CAMERA_FRAMES))  # if the process is waiting for one
        end = receive(socket, "camera_end")
        assert end["error"] is None
    [job] = studio.jobs.all()
    assert job.state.state == "done"
    [track] = read_tracks(job.run / "tracks.csv")
    assert track.frame[-1] == CAMERA_FRAMES - 1
    assert (
        len(track.frame) >= CAMERA_FRAMES - 35
    )  # it takes up to 30 frames until the object is certain
    [recording] = [entry for entry in studio.library.entries() if entry.origin == "recording"]
    assert recording.describe()["frames"] == CAMERA_FRAMES
    [sequence] = studio.details(job.name)["sequences"]
    assert sequence["source"] == recording.id
    outlined = outlines_of(job.run, sequence["name"], 0, CAMERA_FRAMES - 1)
    assert set(outlined) <= set(track.frame.tolist())
    assert len(outlined) > 0.8 * len(track.frame)
    assert (sequence["first"], sequence["last"]) == (0, CAMERA_FRAMES - 1)
    address = f"/api/runs/{job.name}"
    move = {"op": "move", "sequence": sequence["name"], "object": 1, "frame": 40, "x": 3, "y": 4}
    assert client.post(f"{address}/corrections", json=move).status_code == 200
    assert client.post(f"{address}/export", json={"format": "csv"}).status_code == 200


@pytest.mark.parametrize(
    "request_", [{}, {"width": 4, "height": 3}, {"width": 160, "height": 120, "task": "features"}]
)
def test_cameras_that_are_refused(client: TestClient, request_: dict[str, Any]) -> None:
    with client, client.websocket_connect(SOCKET, headers=OWN) as socket:
        socket.send_json({"type": "camera_start"} | request_)
        assert receive(socket, "error")["error"]
