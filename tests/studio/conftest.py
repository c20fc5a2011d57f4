from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("starlette", reason="the studio is not installed (pip install '.[studio]')")

from starlette.testclient import TestClient

from ullayers.studio.app import make_app
from ullayers.studio.studio import Studio
from ullayers.studio.workspace import Workspace
from ullayers.video.writer import VideoWriter

HOST = "127.0.0.1:8420"


def write_video(path: Path, frames: int = 12) -> Path:
    """Write a video whose frames have the brightness 15 x their number."""
    with VideoWriter(path, fps=10) as video:
        for number in range(frames):
            video.write(np.full((48, 64, 3), 15 * number, np.uint8))
    return path


@pytest.fixture
def video(tmp_path: Path) -> Path:
    return write_video(tmp_path / "brightness.mp4")


@pytest.fixture
def studio(tmp_path: Path, video: Path) -> Iterator[Studio]:
    made = Studio(Workspace.open(tmp_path / "studio"), [str(video)])
    yield made
    made.close()


@pytest.fixture
def client(studio: Studio) -> Iterator[TestClient]:
    """A page that has entered with the token; jobs are not started."""
    app = make_app(studio, [HOST])
    client = TestClient(app, base_url=f"http://{HOST}", headers={"origin": f"http://{HOST}"})
    assert client.get(f"/?token={studio.workspace.token}").status_code == 200
    yield client
    client.close()
