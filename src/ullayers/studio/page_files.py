"""The files of the page: HTML, scripts, styles and the icon."""

from __future__ import annotations

import hashlib
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

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
