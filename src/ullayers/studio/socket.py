"""The WebSocket of the page, and the camera of the browser behind it."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from starlette.concurrency import run_in_threadpool
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from ullayers.errors import Error
from ullayers.studio import tables
from ullayers.studio.files import HEADER, LENGTH, MAX_FRAME_BYTES, free_name
from ullayers.studio.jobs import LIVE, LOG, Job, JobState, Request
from ullayers.studio.studio import Studio
from ullayers.studio.tables import Version, version_of

SIDES = (16, 1920)  # pixels of the frames
WAITING = 4  # frames; more are dropped, so that results stay current
END_SECONDS = 20.0
MAX_LINE = 2**20
Send = Callable[[dict[str, Any]], Awaitable[None]]
POLL_SECONDS = 0.25  # between two checks of the files of running jobs
BEAT_SECONDS = 4.0
SEND_SECONDS = 10.0  # after which a page that takes no messages is dropped
MAX_TEXT = 2**16


class Camera:
    """A running camera.

    Attributes:
        ended: Whether its process has ended.
    """

    def __init__(
        self, job: Job, process: asyncio.subprocess.Process, send: Send, on_end: Send
    ) -> None:
        self.job = job
        self.process = process
        self.ended = False
        self._send = send
        self._on_end = on_end
        self._frames: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._tasks = [asyncio.create_task(self._write()), asyncio.create_task(self._read())]

    @classmethod
    async def start(
        cls, studio: Studio, request: dict[str, Any], send: Send, on_end: Send
    ) -> Camera:
        """Start the training process.

        Args:
            studio: The state.
            request: Request of the page: width, height, task and name.
            send: Sends a message to the page.
            on_end: Called with the last message.

        Raises:
            Error: The size or the task is not possible.
        """
        width, height = request.get("width"), request.get("height")
        for side in (width, height):
            if not isinstance(side, int) or not SIDES[0] <= side <= SIDES[1]:
                raise Error(f"expected frames of {SIDES[0]} to {SIDES[1]} pixels")
        task = request.get("task", "locate")
        if task not in ("locate", "orient"):
            raise Error("a camera can be used to locate or to orient")
        folder = studio.workspace.recordings
        video = folder / free_name(folder, str(request.get("name") or "camera"), ".mp4")
        job = studio.jobs.add(
            Request(name=video.stem, kind="camera", inputs=[str(video)], task=task),
            JobState(state="running", stage="training", since=time.time()),
        )
        with open(job.folder / LOG, "ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "ullayers.studio.camera_process"),
                *(str(studio.workspace.folder), job.name, str(width), str(height)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                limit=MAX_LINE,
                start_new_session=True,
            )
        return cls(job, process, send, on_end)

    async def put(self, content: bytes) -> None:
        """Add a frame from the page; it is dropped if it cannot be processed in time."""
        if HEADER.size < len(content) <= MAX_FRAME_BYTES and self._frames.qsize() < WAITING:
            await self._frames.put(content)

    async def stop(self) -> None:
        """End the recording and wait until it is saved."""
        await self._frames.put(None)
        with suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                await asyncio.gather(*self._tasks, return_exceptions=True)
                return
        with suppress(ProcessLookupError):
            self.process.kill()

    async def _write(self) -> None:
        assert self.process.stdin is not None
        with suppress(ConnectionError):
            while (content := await self._frames.get()) is not None:
                self.process.stdin.write(LENGTH.pack(len(content)) + content)
                await self.process.stdin.drain()
            self.process.stdin.close()

    async def _read(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            with suppress(ValueError):
                await self._send(json.loads(line))
        await self.process.wait()
        self.ended = True
        state = self.job.state
        await self._on_end({"type": "camera_end", "run": self.job.name, "error": state.error})


class Page:
    """One open page.

    Attributes:
        socket: Its WebSocket.
        run: Id of the run whose learning it shows; None for none.
        after: Number of the next training record to send.
        live: Version of the live view that it has.
        camera: The camera of its browser, while it is on.
    """

    def __init__(self, socket: WebSocket) -> None:
        self.socket = socket
        self.run: str | None = None
        self.after = 0
        self.live: Version = (0, 0, 0)
        self.camera: Camera | None = None
        self._sending = asyncio.Lock()

    async def send(self, message: dict[str, Any]) -> None:
        """Send a message; a page that does not accept it is disconnected."""
        if self.socket.client_state != WebSocketState.CONNECTED:
            return
        try:
            async with asyncio.timeout(SEND_SECONDS), self._sending:
                await self.socket.send_text(json.dumps(message))
        except (TimeoutError, RuntimeError, WebSocketDisconnect, OSError):
            with suppress(Exception):
                await self.socket.close()


class Pages:
    """All open pages; starts queued jobs and notifies the pages of changes.

    Args:
        studio: The state.
    """

    def __init__(self, studio: Studio) -> None:
        self.studio = studio
        self.pages: set[Page] = set()
        self._shown = ""
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._poll()), asyncio.create_task(self._beat())]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        for page in list(self.pages):
            if page.camera is not None:
                await page.camera.stop()

    async def _poll(self) -> None:
        while True:
            try:
                await run_in_threadpool(self.studio.jobs.start_next)
                await self.changed(only_if_new=True)
                for page in list(self.pages):
                    await self._send_learning(page)
            except Exception as error:  # one damaged job must not end the updates of all others
                text = f"{type(error).__name__}: {error}"
                await self._tell({"type": "error", "error": text})
            await asyncio.sleep(POLL_SECONDS)

    async def _beat(self) -> None:
        while True:
            await self._tell({"type": "beat"})
            await asyncio.sleep(BEAT_SECONDS)

    async def _tell(self, message: dict[str, Any]) -> None:
        await asyncio.gather(*(page.send(message) for page in list(self.pages)))

    async def changed(self, *, only_if_new: bool = False) -> None:
        """Send all pages the list of videos and runs."""
        if not self.pages:
            return
        state = await run_in_threadpool(self.studio.state)
        shown = json.dumps(state)
        if only_if_new and shown == self._shown:
            return
        self._shown = shown
        await self._tell({"type": "state"} | state)

    async def corrected(self, run: str) -> None:
        """Notify all pages that the corrections of a run have changed."""
        await self._tell({"type": "corrected", "run": run})

    async def _send_learning(self, page: Page) -> None:
        """Send the new training records and the live view of the run that a page shows."""
        run = page.run
        if run is None:
            return
        try:
            folder = self.studio.folder(run)
        except KeyError:
            page.run = None
            return
        records, following = await run_in_threadpool(tables.records_after, folder, page.after)
        if page.run != run:  # the page has left it in the meantime
            return
        if records or following < page.after:
            page.after = following
            answer = {"type": "records", "run": run, "records": records, "next": following}
            await page.send(answer)
        if run in self.studio.opened:
            return
        path = Job(self.studio.workspace, run).folder / LIVE
        version = version_of(path)
        if version != page.live and version[2]:
            page.live = version
            with suppress(OSError, ValueError):
                live = json.loads(path.read_text(encoding="utf-8"))
                await page.send({"type": "live", "run": run, "live": live})

    async def connect(self, socket: WebSocket) -> None:
        """Serve a page until it closes."""
        await socket.accept()
        page = Page(socket)
        self.pages.add(page)
        try:
            await page.send({"type": "state"} | await run_in_threadpool(self.studio.state))
            while True:
                message = await socket.receive()
                if message["type"] == "websocket.disconnect":
                    break
                try:
                    await self._receive(page, message)
                except Error as error:
                    await page.send({"type": "error", "error": str(error)})
        except (WebSocketDisconnect, RuntimeError):
            pass
        finally:
            self.pages.discard(page)
            if page.camera is not None:
                await page.camera.stop()

    async def _receive(self, page: Page, message: Mapping[str, Any]) -> None:
        if (content := message.get("bytes")) is not None:
            if page.camera is not None:
                await page.camera.put(content)
            return
        text = message.get("text") or ""
        try:
            request = json.loads(text) if len(text) <= MAX_TEXT else None
        except (ValueError, RecursionError):
            request = None
        if not isinstance(request, dict):
            raise Error("expected a JSON object")
        kind = request.get("type")
        if kind == "watch":
            self._watch(page, request)
        elif kind == "camera_start":
            await self._start_camera(page, request)
        elif kind == "camera_stop" and page.camera is not None:
            await page.camera.stop()

    def _watch(self, page: Page, request: dict[str, Any]) -> None:
        run, after = request.get("run"), request.get("after", 0)
        page.run = run if isinstance(run, str) else None
        page.after = after if isinstance(after, int) and after >= 0 else 0
        page.live = (0, 0, 0)

    async def _start_camera(self, page: Page, request: dict[str, Any]) -> None:
        if page.camera is not None and not page.camera.ended:
            raise Error("the camera of this page is on")

        async def ended(message: dict[str, Any]) -> None:
            page.camera = None
            await page.send(message)
            await self.changed()

        page.camera = await Camera.start(self.studio, request, page.send, ended)
        await self.changed()
