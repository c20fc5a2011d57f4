"""The web application: routes and their responses."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route, WebSocketRoute

from ullayers.errors import Error
from ullayers.studio import run_view, windows
from ullayers.studio.access import FILE_POLICY, POLICY, AccessControl
from ullayers.studio.editing import (
    correct,
    corrections_of,
    outlines_of,
    redo,
    undo,
)
from ullayers.studio.exporting import exported_file
from ullayers.studio.jobs import LIVE, LIVE_PICTURE, describe
from ullayers.studio.library import TooLargeError
from ullayers.studio.page_files import page_file
from ullayers.studio.socket import Pages
from ullayers.studio.studio import Studio
from ullayers.tracks.corrections import compare_runs, read_corrections

MAX_BODY = 2**20  # bytes of a request that is not an upload
FRAME_HEADER = "x-frame"  # number of the frame in a response
FOREVER = "private, max-age=31536000, immutable"
PLAIN_TEXT = (".csv", ".md", ".jsonl", ".json")


def make_app(studio: Studio, hosts: Collection[str]) -> Starlette:
    """Create the application.

    Args:
        studio: The state.
        hosts: Allowed host names and ports.
    """
    pages = Pages(studio)
    api = _Api(studio, pages)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with pages:
            yield
        studio.close()

    page = Route("/{path:path}", page_file, methods=["GET"])
    return Starlette(
        routes=[*api.routes(), WebSocketRoute("/ws", pages.connect), page],
        middleware=[Middleware(AccessControl, token=studio.workspace.token, hosts=hosts)],
        exception_handlers={Error: _user_error, KeyError: _not_found, 404: _not_found},
        lifespan=lifespan,
    )


async def _user_error(request: Request, error: Exception) -> Response:
    status = 413 if isinstance(error, TooLargeError) else 400
    text = str(error).encode("utf-8", "replace").decode()  # a name may have half a character
    return JSONResponse({"error": text}, status)


async def _not_found(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": "there is nothing at this address"}, 404)


async def _body(request: Request) -> dict[str, Any]:
    """Return the JSON object of a request.

    Raises:
        Error: It is too large, or not a JSON object.
    """
    content = bytearray()
    async for block in request.stream():
        content += block
        if len(content) > MAX_BODY:
            raise Error("the request is too large")
    try:
        parsed = json.loads(content or b"{}")
    except (ValueError, RecursionError) as error:
        raise Error("expected JSON") from error
    if not isinstance(parsed, dict):
        raise Error("expected a JSON object")
    return parsed


def _whole(request: Request, name: str, default: int | None = None) -> int:
    text = request.query_params.get(name, request.path_params.get(name))
    if text is None and default is not None:
        return default
    try:
        number = int(str(text))
    except ValueError:
        number = -1
    if not 0 <= number < 2**53:
        raise Error(f"{name}: expected a whole number, got {str(text)[:20]!r}")
    return number


def _columns(request: Request) -> list[str]:
    """Return the requested columns; empty for all."""
    return [name for name in request.query_params.get("columns", "").split(",") if name]


class _Api:
    """The functions behind /api; each takes a request and returns JSON or a response."""

    def __init__(self, studio: Studio, pages: Pages) -> None:
        self.studio = studio
        self.pages = pages

    def routes(self) -> list[Route]:
        """Return the routes."""
        table: list[tuple[str, str, Callable[[Request], Awaitable[Response]]]] = [
            ("GET", "/api/state", self.state),
            ("POST", "/api/uploads", self.upload),
            ("POST", "/api/demo", self.demo),
            ("DELETE", "/api/sources/{id}", self.remove_source),
            ("GET", "/api/sources/{id}/frame/{number}", self.frame),
            ("POST", "/api/runs", self.add_run),
            ("GET", "/api/runs/{id}", self.run),
            ("DELETE", "/api/runs/{id}", self.remove_run),
            ("POST", "/api/runs/{id}/stop", self.stop),
            ("POST", "/api/runs/{id}/resume", self.resume),
            ("GET", "/api/runs/{id}/metrics", self.metrics),
            ("GET", "/api/runs/{id}/live", self.live),
            ("GET", f"/api/runs/{{id}}/{LIVE_PICTURE}", self.live_picture),
            ("GET", "/api/runs/{id}/overview/{sequence}", self.overview),
            ("GET", "/api/runs/{id}/sample/{sequence}", self.sample),
            ("GET", "/api/runs/{id}/rows/{sequence}", self.rows),
            ("GET", "/api/runs/{id}/extremes/{sequence}", self.extremes),
            ("GET", "/api/runs/{id}/outlines/{sequence}", self.outlines),
            ("GET", "/api/runs/{id}/file/{name}", self.file),
            ("POST", "/api/runs/{id}/export", self.export),
            ("GET", "/api/runs/{id}/exports/{name}", self.exported),
            ("POST", "/api/runs/{id}/relearn", self.relearn),
            ("GET", "/api/runs/{id}/changes", self.changes),
            ("GET", "/api/runs/{id}/corrections", self.corrections),
            ("POST", "/api/runs/{id}/corrections", self.correct),
            ("POST", "/api/runs/{id}/corrections/undo", self.undo),
            ("POST", "/api/runs/{id}/corrections/redo", self.redo),
        ]
        return [Route(path, function, methods=[method]) for method, path, function in table]

    async def state(self, request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(self.studio.state))

    async def upload(self, request: Request) -> Response:
        length = request.headers.get("content-length", "")
        size = int(length) if length.isdecimal() and len(length) < 20 else None
        name = request.query_params.get("name", "video")
        try:
            entry = await self.studio.library.upload(name, size, request.stream())
        except ClientDisconnect:
            return Response(status_code=400)
        await self.pages.changed()
        return JSONResponse(await run_in_threadpool(entry.describe), 201)

    async def demo(self, request: Request) -> Response:
        entry = await run_in_threadpool(self.studio.library.add_demo)
        await self.pages.changed()
        return JSONResponse(await run_in_threadpool(entry.describe), 201)

    async def remove_source(self, request: Request) -> Response:
        self.studio.library.remove(request.path_params["id"])
        await self.pages.changed()
        return Response(status_code=204)

    async def frame(self, request: Request) -> Response:
        number = _whole(request, "number")
        width = _whole(request, "width", 0) or None
        id = request.path_params["id"]
        near = "near" in request.query_params  # an earlier frame will do if it is faster
        if near:
            number = await run_in_threadpool(self.studio.quick, id, number)
        jpeg = await run_in_threadpool(self.studio.jpeg, id, number, width)
        headers = {"cache-control": "no-store" if near else FOREVER, FRAME_HEADER: str(number)}
        return Response(jpeg, media_type="image/jpeg", headers=headers)

    async def add_run(self, request: Request) -> Response:
        job = await run_in_threadpool(self.studio.add_run, await _body(request))
        await self.pages.changed()
        return JSONResponse(self.studio.run(job.name), 201)

    async def run(self, request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(self.studio.details, request.path_params["id"]))

    async def remove_run(self, request: Request) -> Response:
        await run_in_threadpool(self.studio.job(request.path_params["id"]).delete)
        await self.pages.changed()
        return Response(status_code=204)

    async def stop(self, request: Request) -> Response:
        job = self.studio.job(request.path_params["id"])
        job.stop()
        await self.pages.changed()
        return JSONResponse(describe(job))

    async def resume(self, request: Request) -> Response:
        job = self.studio.job(request.path_params["id"])
        job.resume()
        await self.pages.changed()
        return JSONResponse(describe(job))

    async def metrics(self, request: Request) -> Response:
        folder = self.studio.folder(request.path_params["id"])
        after = _whole(request, "after", 0)
        records, following = await run_in_threadpool(run_view.records_after, folder, after)
        return JSONResponse({"records": records, "next": following})

    async def live(self, request: Request) -> Response:
        path = self.studio.job(request.path_params["id"]).folder / LIVE
        if not path.exists():
            return JSONResponse(None)
        return FileResponse(path, media_type="application/json")

    async def live_picture(self, request: Request) -> Response:
        path = self.studio.job(request.path_params["id"]).folder / LIVE_PICTURE
        if not path.exists():
            raise KeyError(LIVE_PICTURE)
        return FileResponse(path, media_type="image/jpeg")

    async def overview(self, request: Request) -> Response:
        return JSONResponse(await self._table(request, windows.overview_of))

    async def sample(self, request: Request) -> Response:
        return _numbers(await self._table(request, windows.pack_sample, _columns(request)))

    async def rows(self, request: Request) -> Response:
        frames = _whole(request, "first"), _whole(request, "last")
        return _numbers(await self._table(request, windows.pack_rows, *frames, _columns(request)))

    async def extremes(self, request: Request) -> Response:
        frames = _whole(request, "first"), _whole(request, "last"), _whole(request, "step")
        return _numbers(
            await self._table(request, windows.pack_extremes, *frames, _columns(request))
        )

    async def _table(self, request: Request, answer: Callable[..., Any], *arguments: Any) -> Any:
        """Apply a function to the table of a sequence."""
        folder = self.studio.folder(request.path_params["id"])
        sequence = request.path_params["sequence"]
        found = "found" in request.query_params

        def read() -> Any:
            return answer(windows.table_of(folder, sequence, found=found), *arguments)

        return await run_in_threadpool(read)

    async def outlines(self, request: Request) -> Response:
        folder = self.studio.folder(request.path_params["id"])
        frames = _whole(request, "first"), _whole(request, "last")
        sequence = request.path_params["sequence"]
        return JSONResponse(
            {"frames": await run_in_threadpool(outlines_of, folder, sequence, *frames)}
        )

    async def file(self, request: Request) -> Response:
        folder = self.studio.folder(request.path_params["id"])
        name = request.path_params["name"]
        if name not in [entry["name"] for entry in run_view.files_of(folder)]:
            raise KeyError(name)
        return _file(folder / name, download="download" in request.query_params)

    async def export(self, request: Request) -> Response:
        id = request.path_params["id"]
        paths = await run_in_threadpool(self.studio.export, id, await _body(request))
        files = [
            {
                "name": path.name,
                "bytes": path.stat().st_size,
                "url": f"/api/runs/{quote(id)}/exports/{quote(path.name)}",
            }
            for path in paths
        ]
        return JSONResponse({"files": files})

    async def exported(self, request: Request) -> Response:
        folder = self.studio.folder(request.path_params["id"])
        return _file(exported_file(folder, request.path_params["name"]), download=True)

    async def relearn(self, request: Request) -> Response:
        job = await run_in_threadpool(self.studio.relearn, request.path_params["id"])
        await self.pages.changed()
        return JSONResponse(self.studio.run(job.name), 201)

    async def changes(self, request: Request) -> Response:
        folder = self.studio.folder(request.path_params["id"])
        other = self.studio.folder(request.query_params.get("with", ""))

        def compare() -> dict[str, Any]:
            return asdict(compare_runs(folder, other, read_corrections(folder)))

        return JSONResponse(await run_in_threadpool(compare))

    async def corrections(self, request: Request) -> Response:
        folder = self.studio.folder(request.path_params["id"])
        return JSONResponse(await run_in_threadpool(corrections_of, folder))

    async def correct(self, request: Request) -> Response:
        return await self._edit(request, correct, await _body(request))

    async def undo(self, request: Request) -> Response:
        return await self._edit(request, undo)

    async def redo(self, request: Request) -> Response:
        return await self._edit(request, redo)

    async def _edit(
        self, request: Request, change: Callable[..., None], *arguments: Any
    ) -> Response:
        id = request.path_params["id"]
        folder = self.studio.folder(id)
        await run_in_threadpool(change, folder, *arguments)
        await self.pages.corrected(id)
        return JSONResponse({"corrections": await run_in_threadpool(corrections_of, folder)})


def _numbers(content: bytes) -> Response:
    return Response(content, media_type="application/octet-stream")


def _file(path: Path, *, download: bool) -> Response:
    """Return a file of a run, sandboxed so that it cannot act as a page of this server."""
    kind = "text/plain" if path.suffix in PLAIN_TEXT else None
    name = path.name if download else None
    disposition = "attachment" if download else "inline"
    return FileResponse(
        path,
        media_type=kind,
        filename=name,
        content_disposition_type=disposition,
        headers={POLICY: FILE_POLICY},
    )
