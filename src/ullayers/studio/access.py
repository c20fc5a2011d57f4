"""Access control: only the server's own pages with the token may send requests."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Collection
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
