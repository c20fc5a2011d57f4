"""The camera of the browser: frames go to a training process, results to the page."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from ullayers.errors import Error
from ullayers.studio.camera_frames import HEADER, LENGTH, MAX_FRAME_BYTES
from ullayers.studio.jobs import LOG, Job, JobState, Request
from ullayers.studio.studio import Studio
from ullayers.studio.workspace import free_name

SIDES = (16, 1920)  # pixels of the frames
WAITING = 4  # frames; more are dropped, so that results stay current
END_SECONDS = 20.0
MAX_LINE = 2**20

Send = Callable[[dict[str, Any]], Awaitable[None]]


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
