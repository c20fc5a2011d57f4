"""The server of the page: access, URLs and files, starting and stopping."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ullayers.errors import Error
from ullayers.studio import tables
from ullayers.studio.editing import (
    correct,
    corrections_of,
    exported_file,
    outlines_of,
    redo,
    table_of,
    undo,
)
from ullayers.studio.files import TooLargeError, Workspace
from ullayers.studio.jobs import LIVE, LIVE_PICTURE, describe
from ullayers.studio.socket import Pages
from ullayers.studio.studio import Studio
from ullayers.tracks.corrections import compare_runs, read_corrections

PAGE_POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; media-src 'self' blob:; style-src 'self'; "
    "script-src 'self'; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'none'; object-src 'none'"
)
# Files of a run are untrusted: they run no scripts and cannot reach the server.
FILE_POLICY = (
    "sandbox; default-src 'none'; img-src data:; media-src 'self' data:; "
    "style-src 'unsafe-inline'; font-src data:"
)
POLICY = "content-security-policy"
PAGE = Path(__file__).with_name("page")
FILES = {path.relative_to(PAGE).as_posix(): path for path in PAGE.rglob("*") if path.is_file()}
TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
# Browsers keep scripts and styles, but ask each time whether they have changed. Chromium loads the
# icon each time the page changes its address.
CACHING = {".html": "no-store", ".svg": "private, max-age=86400"}
ASK_FIRST = "private, no-cache"
MAX_BODY = 2**20  # bytes of a request that is not an upload
FRAME_HEADER = "x-frame"  # number of the frame in a response
FOREVER = "private, max-age=31536000, immutable"
PLAIN_TEXT = (".csv", ".md", ".jsonl", ".json")
PORT = 8420
TRIED_PORTS = 20
LOCAL = "127.0.0.1"
MAX_MESSAGE = 2**23  # bytes of a WebSocket message


class AccessControl:
    """Middleware that refuses foreign pages, other host names and requests without the token.

    A page that was loaded from elsewhere cannot connect: browsers send its `Origin`. A host name
    that an attacker points at this computer (DNS rebinding) is refused by its `Host`. The address
    that the connection was made to is always allowed: it is not a name.

    Args:
        app: The application.
        token: The secret.
        hosts: Allowed values of `Host`, with the port.
    """

    def __init__(self, app: ASGIApp, token: str, hosts: Collection[str]) -> None:
        self.app = app
        self.token = token
        self.hosts = {host.lower() for host in hosts}
        port = next(iter(hosts)).rpartition(":")[2]
        self.cookie = f"ul_studio_{port}"  # cookies are shared between ports

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if refusal is not None:
            await self._refuse(scope, receive, send, *refusal)
        elif scope["type"] == "http" and scope["path"] == "/" and scope["query_string"]:
            await self._welcome(scope, receive, send)
        else:
            await self.app(scope, receive, _with_headers(send))

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = Headers(scope=scope)
        hosts = (self.hosts | {_own_address(scope)}) - {""}
        if headers.get("host", "").lower() not in hosts:
            return 421, "this server does not answer to that host name"
        origin = headers.get("origin")
        changes = scope["type"] == "websocket" or scope["method"] not in ("GET", "HEAD")
        if origin is None and changes:
            return 403, "a request that changes something must come from the page"
        if origin is not None and _host(origin) not in hosts:
            return 403, "requests of other pages are refused"
        if not self._knows_token(scope, headers):
            return 401, "the token is missing; use the address that ul studio prints"
        return None

    def _knows_token(self, scope: Scope, headers: Headers) -> bool:
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [])
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            cookie = None
        if cookie is not None:
            given.append(cookie.value)
        return any(hmac.compare_digest(one.encode(), self.token.encode()) for one in given)

    async def _refuse(
        self, scope: Scope, receive: Receive, send: Send, status: int, text: str
    ) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": text})
            return
        response = JSONResponse({"error": text}, status)
        await response(scope, receive, _with_headers(send))

    async def _welcome(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Store the token in a cookie, so that it does not stay in the URL."""
        response = RedirectResponse("/", 303)
        response.set_cookie(self.cookie, self.token, httponly=True, samesite="strict", path="/")
        await response(scope, receive, _with_headers(send))


def _own_address(scope: Scope) -> str:
    """Return the address and port that a connection was made to; empty if they are unknown."""
    name, port = scope.get("server") or ("", None)
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return ""
    if isinstance(address, ipaddress.IPv6Address):
        return f"{address.ipv4_mapped}:{port}" if address.ipv4_mapped else f"[{address}]:{port}"
    return f"{address}:{port}"


def _host(origin: str) -> str:
    """Return the host and the port of the origin of a web page; empty if it has none."""
    try:
        parts = urlsplit(origin)
    except ValueError:  # such as http://[
        return ""
    return parts.netloc.lower() if parts.scheme in ("http", "https") else ""


def _with_headers(send: Send) -> Send:
    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers.setdefault(POLICY, PAGE_POLICY)
            headers["x-content-type-options"] = "nosniff"
            headers["referrer-policy"] = "no-referrer"
            headers["cross-origin-resource-policy"] = "same-origin"
            headers["cross-origin-opener-policy"] = "same-origin"
            headers.setdefault("cache-control", "no-store")
        await send(message)

    return wrapped


async def page_file(request: Request) -> Response:
    """Return a file of the page. They are small and many, so no threads are used to read them.

    Raises:
        KeyError: There is no such file.
    """
    path = FILES[request.path_params["path"] or "index.html"]
    content = path.read_bytes()
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {"etag": tag, "cache-control": CACHING.get(path.suffix, ASK_FIRST)}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=TYPES[path.suffix], headers=headers)


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
        records, following = await run_in_threadpool(tables.records_after, folder, after)
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
        return JSONResponse(await self._table(request, tables.overview_of))

    async def sample(self, request: Request) -> Response:
        return _numbers(await self._table(request, tables.pack_sample, _columns(request)))

    async def rows(self, request: Request) -> Response:
        frames = _whole(request, "first"), _whole(request, "last")
        return _numbers(await self._table(request, tables.pack_rows, *frames, _columns(request)))

    async def extremes(self, request: Request) -> Response:
        frames = _whole(request, "first"), _whole(request, "last"), _whole(request, "step")
        return _numbers(
            await self._table(request, tables.pack_extremes, *frames, _columns(request))
        )

    async def _table(self, request: Request, answer: Callable[..., Any], *arguments: Any) -> Any:
        """Apply a function to the table of a sequence."""
        folder = self.studio.folder(request.path_params["id"])
        sequence = request.path_params["sequence"]
        found = "found" in request.query_params

        def read() -> Any:
            return answer(table_of(folder, sequence, found=found), *arguments)

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
        if name not in [entry["name"] for entry in tables.files_of(folder)]:
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


def open_port(host: str, port: int | None) -> socket.socket:
    """Return a socket that listens; the next free port if none is given.

    Raises:
        Error: The address cannot be used.
    """
    ports = range(PORT, PORT + TRIED_PORTS) if port is None else [port]
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for number in ports:
        # asyncio sends small answers at once (TCP_NODELAY) only if the protocol is given.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, number))
            listener.listen()  # else another server that starts now could take the same port
            return listener
        except socket.gaierror as error:
            listener.close()
            raise Error(f"{host}: cannot be used ({error.strerror}); change --host") from error
        except OverflowError:
            listener.close()
            reason = "ports end at 65535"
        except OSError as error:
            listener.close()
            reason = str(error.strerror)
    raise Error(f"{host}: port {ports[-1]} cannot be used ({reason}); give another --port")


def allowed_hosts(host: str, port: int) -> list[str]:
    """Return the allowed values of `Host`, besides the address of the connection.

    >>> allowed_hosts("127.0.0.1", 8420)
    ['127.0.0.1:8420', 'localhost:8420', '[::1]:8420']
    """
    names = [LOCAL, "localhost", "[::1]"]
    if host not in (LOCAL, "localhost", "::1"):
        names += [f"[{host}]" if ":" in host else host]
        if _is_any(host):
            names += [socket.gethostname()]
    return list(dict.fromkeys(f"{name}:{port}" for name in names))


def _is_any(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _network_address() -> str | None:
    """Return the address of this computer in its network; None if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # chooses a network interface; nothing is sent
        except OSError:
            return None
        return str(probe.getsockname()[0])


def serve(
    inputs: Sequence[str],
    folder: str,
    *,
    host: str = LOCAL,
    port: int | None = None,
    started: Callable[[str, str | None], None] = lambda address, shared: None,
) -> None:
    """Serve a studio until it is interrupted.

    Args:
        inputs: Videos, folders, run folders or cameras to open.
        folder: The studio folder.
        host: Address to listen on.
        port: Port to listen on; None for the first free one.
        started: Called with the URL of the page when the server is ready, and with the one for
            other computers if it listens to them.

    Raises:
        Error: An input cannot be read, or the address cannot be used.
    """
    workspace = Workspace.open(folder)
    studio = Studio(workspace, inputs)
    threading.Thread(target=studio.prepare, name="ullayers-prepare", daemon=True).start()
    with open_port(host, port) as listener:
        number = listener.getsockname()[1]
        app = make_app(studio, allowed_hosts(host, number))
        page = f":{number}/?token={quote(workspace.token)}"
        shown = LOCAL if _is_any(host) else f"[{host}]" if ":" in host else host
        other = _network_address() if _is_any(host) else None
        shared = other and f"http://{other}{page}"
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            ws_max_size=MAX_MESSAGE,
            timeout_graceful_shutdown=3,
            server_header=False,
        )
        server = _Server(config, lambda: started(f"http://{shown}{page}", shared))
        server.run(sockets=[listener])


class _Server(uvicorn.Server):
    """A server that reports when it is ready."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self.ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then report it."""
        await super().startup(sockets)
        if self.started:
            self.ready()
