"""The studio in a real browser: its server, its pages, and what must never happen on them."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import cv2
import numpy as np
import pytest
import uvicorn
from numpy.typing import NDArray

from tests.command import start
from tests.films import ball
from ullayers.studio.files import Workspace
from ullayers.studio.server import LOCAL, make_app, open_port
from ullayers.studio.studio import Studio

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, Request

NAMES = ("chromium", "chromium-browser", "google-chrome")
PATIENCE = 120.0  # seconds; a busy computer is slow
WIDE, NARROW = (1440, 900), (390, 844)

# Nothing but this computer can be reached, so a page that needs more than its server breaks. One
# name is that of an attacker who lets it point at this computer.
REBOUND = "rebound.test"
OFFLINE = f"--host-resolver-rules=MAP {REBOUND} 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
FAKE_CAMERA = ("--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream")
TELL_VIOLATIONS = """
addEventListener("securitypolicyviolation", (event) =>
  console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`))
"""

# Colours of the picture at points of the video, and the frame that it says it shows. The canvas of
# the page itself is not read: browsers then draw it without the GPU.
READ_PICTURE = """([points, pane]) => {
  const canvas = document.querySelectorAll("[data-testid=picture]")[pane];
  const copy = new OffscreenCanvas(canvas.width, canvas.height);
  const context = copy.getContext("2d", {willReadFrequently: true});
  context.drawImage(canvas, 0, 0);
  const {scale, left, top} = ulStudio.placement;
  const ratio = canvas.width / canvas.clientWidth;
  const colour = ([x, y]) =>
    [...context.getImageData(ratio * (left + scale * x), ratio * (top + scale * y), 1, 1).data];
  return [ulStudio.shown, points.map(colour)];
}"""
NEXT_PAINT = "new Promise((done) => requestAnimationFrame(() => setTimeout(done)))"


def write_camera_film(path: Path, frames: int = 100) -> Path:
    """Write what the camera shows, again and again: a bright ball that circles, 10 frames/s."""
    pictures, _ = ball(frames, 120, 160)
    with open(path, "wb") as file:
        file.write(b"YUV4MPEG2 W160 H120 F10:1 Ip A1:1 C420jpeg\n")
        for picture in pictures:
            file.write(b"FRAME\n" + cv2.cvtColor(picture, cv2.COLOR_RGB2YUV_I420).tobytes())
    return path


def browser_path() -> str | None:
    """Return the program of a browser; None if there is none."""
    candidates = [os.environ.get("ULLAYERS_BROWSER"), *map(shutil.which, NAMES)]
    return next((path for path in candidates if path), None)


@contextmanager
def opened_browser(camera: Path) -> Iterator[Browser]:
    """Start a browser whose camera shows a file (Y4M); skips where there is none."""
    api = pytest.importorskip(
        "playwright.sync_api", reason="Playwright is not installed (pip install playwright)"
    )
    path = browser_path()
    if path is None:
        pytest.skip("no browser: install Chromium, or set ULLAYERS_BROWSER to its path")
    options = ["--no-sandbox", OFFLINE, *FAKE_CAMERA, f"--use-file-for-fake-video-capture={camera}"]
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=options)
        yield browser
        browser.close()


class Server:
    """`ul studio` in a process of its own, which can be killed and started again.

    Args:
        folder: The studio folder.
        inputs: Videos and run folders to open.
    """

    def __init__(self, folder: Path, *inputs: Path) -> None:
        self.folder = folder
        self.inputs = inputs
        self.port: int | None = None
        self.start()

    def start(self) -> None:
        """Start it, at the same port as before."""
        port = () if self.port is None else ("--port", str(self.port))
        self.process = start("studio", *self.inputs, "--out", self.folder, "--no-browser", *port)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("studio: http://127.0.0.1:"), (line, self.process.communicate())
        self.address = line.split()[1]
        self.port = urlsplit(self.address).port

    def kill(self) -> None:
        """End it as a power failure would."""
        self.process.kill()
        self.process.communicate()


class LocalServer(Server):
    """A studio in a thread of this process, which starts faster but cannot be killed.

    Args:
        folder: The studio folder.
        inputs: Videos and run folders to open.
    """

    def start(self) -> None:
        """Start it."""
        studio = Studio(Workspace.open(self.folder), [str(path) for path in self.inputs])
        self.listener = open_port(LOCAL, None)
        self.port = self.listener.getsockname()[1]
        self.address = f"http://{LOCAL}:{self.port}/?token={studio.workspace.token}"
        app = make_app(studio, [f"{LOCAL}:{self.port}"])
        self.server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        self.thread = Thread(target=self.server.run, kwargs={"sockets": [self.listener]})
        self.thread.start()

    def kill(self) -> None:
        """Stop it."""
        self.server.should_exit = True
        self.thread.join()
        self.listener.close()


class Tab:
    """A page of the studio that notes everything that must not happen on it.

    Args:
        page: An empty page.
        server: The server.
        place: What to open: the part of the address after #.
    """

    def __init__(self, page: Page, server: Server, place: str = "") -> None:
        self.page = page
        self.server = server
        self.problems: list[str] = []
        self.allowed: tuple[str, ...] = ()
        self.origin = f"http://127.0.0.1:{server.port}/"
        page.add_init_script(TELL_VIOLATIONS)
        page.on("console", self._note_console)
        page.on("pageerror", lambda error: self.problems.append(f"uncaught: {error}"))
        page.on("request", self._note_request)
        page.goto(server.address)
        if place:
            page.goto(f"{self.origin}#{place}")
            page.reload()
        self.wait("ulStudio.connection === 'open' && ulStudio.ready")

    def _note_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(f"{message.text} ({message.location.get('url')})")

    def _note_request(self, request: Request) -> None:
        if not request.url.startswith((self.origin, "data:", "blob:" + self.origin)):
            self.problems.append(f"asked for {request.url}")

    def close(self) -> None:
        """Close the page; nothing may have gone wrong on it."""
        self.page.context.close()
        bad = [text for text in self.problems if not any(part in text for part in self.allowed)]
        assert not bad, bad

    def get(self, expression: str, argument: Any = None) -> Any:
        """Return the value of an expression on the page."""
        return self.page.evaluate(expression, argument)

    def studio(self, name: str) -> Any:
        """Return what the page says about itself."""
        return self.get(f"ulStudio.{name}")

    def wait(self, expression: str, seconds: float = PATIENCE) -> None:
        """Wait until an expression is true; the policy of the page forbids Playwright's own way."""
        end = time.monotonic() + seconds
        while not self.get(expression):
            assert time.monotonic() < end, f"{expression} after {seconds} s; {self.problems}"
            self.page.wait_for_timeout(20)

    def part(self, name: str) -> Locator:
        """Return the element with a test id."""
        return self.page.get_by_test_id(name)

    def open_run(self, name: str) -> None:
        """Open a run of the list."""
        self.part("run").filter(has_text=name).locator("button.item").click()
        self.wait("ulStudio.objects.length > 0 && ulStudio.ready")

    def upload(self, name: str, content: bytes) -> None:
        """Add a file of this name."""
        self.page.locator("#file-input").set_input_files(
            {"name": name, "mimeType": "video/mp4", "buffer": content}
        )

    def press(self, *keys: str) -> None:
        """Press keys, one after the other."""
        for key in keys:
            self.page.keyboard.press(key)

    def wait_for_frame(self, number: int) -> None:
        """Wait until a frame is shown and nothing else is on its way."""
        self.wait(f"ulStudio.frame === {number} && ulStudio.shown === {number} && ulStudio.ready")

    def picture(self, points: NDArray[Any], pane: int = 0) -> tuple[int, NDArray[np.int64]]:
        """Return the frame that is shown, and its colours (n, 3) at points (n, 2) of the video.

        Args:
            points: The points.
            pane: 1 for the picture of the run to compare with.
        """
        self.get(NEXT_PAINT)
        frame, colours = self.get(READ_PICTURE, [np.asarray(points, float).tolist(), pane])
        return frame, np.array(colours)[:, :3]

    def point(self, x: float, y: float) -> tuple[float, float]:
        """Return the place of a pixel of the video on the page."""
        box = self.part("picture").first.bounding_box()
        assert box is not None
        placement = self.studio("placement")
        scale = placement["scale"]
        return box["x"] + placement["left"] + scale * x, box["y"] + placement["top"] + scale * y

    def texts(self, selector: str) -> list[str]:
        """Return the texts of elements."""
        texts: list[str] = self.get(
            "(selector) => [...document.querySelectorAll(selector)].map((e) => e.textContent)",
            selector,
        )
        return texts

    def wait_for_texts(self, selector: str, *texts: str) -> None:
        """Wait until elements have these texts."""
        end = time.monotonic() + PATIENCE
        while (now := self.texts(selector)) != list(texts):
            assert time.monotonic() < end, f"{now} instead of {texts}"
            self.page.wait_for_timeout(20)

    def toast(self) -> str:
        """Return the latest message."""
        return self.part("toast").last.locator("span").first.inner_text()


OpenTab = Callable[..., Tab]  # server, what to open, and options of the page to the page
