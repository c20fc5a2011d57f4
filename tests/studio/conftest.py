from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("starlette", reason="the studio is not installed (pip install '.[studio]')")

from starlette.testclient import TestClient

from tests.studio.browser import (
    NARROW,
    WIDE,
    LocalServer,
    OpenTab,
    Server,
    Tab,
    opened_browser,
    write_camera_film,
)
from tests.studio.numbered import OTHER_SEED, write_numbered, write_run
from ullayers.studio.files import Workspace
from ullayers.studio.server import make_app
from ullayers.studio.studio import Studio
from ullayers.video.files.writing import VideoWriter

if TYPE_CHECKING:
    from playwright.sync_api import Browser

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


@pytest.fixture(scope="package")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser; for this package only, as Playwright keeps an event loop running."""
    film = write_camera_film(tmp_path_factory.mktemp("camera") / "ball.y4m")
    with opened_browser(film) as opened:
        yield opened


@pytest.fixture(scope="session")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A video of 300 numbered frames."""
    return write_numbered(tmp_path_factory.mktemp("numbered"))


@pytest.fixture(scope="session")
def gallery(tmp_path_factory: pytest.TempPathFactory, numbered: Path) -> Iterator[Server]:
    """A server with runs on a video of 300 numbered frames; only `corrected` may be corrected."""
    folder = tmp_path_factory.mktemp("gallery")
    runs = [write_run(folder / name, numbered) for name in ("plain", "corrected")]
    runs.append(write_run(folder / "other", numbered, seed=OTHER_SEED))
    server = LocalServer(folder / "studio", *runs)
    yield server
    server.kill()


@pytest.fixture
def open_tab(browser: Browser) -> Iterator[OpenTab]:
    """Opens pages, which are closed at the end; nothing may have gone wrong on them."""
    tabs: list[Tab] = []

    def make(server: Server, place: str = "", *, narrow: bool = False, **options: Any) -> Tab:
        width, height = NARROW if narrow else WIDE
        mobile = {"has_touch": True, "is_mobile": True} if narrow else {}
        context = browser.new_context(
            viewport={"width": width, "height": height}, **mobile | options
        )
        tabs.append(Tab(context.new_page(), server, place))
        return tabs[-1]

    yield make
    for tab in tabs:
        tab.close()
