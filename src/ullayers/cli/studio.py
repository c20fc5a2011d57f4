"""`ul studio`: the page for training, inspecting, correcting and exporting."""

from __future__ import annotations

import os
import sys
import webbrowser
from argparse import Namespace
from contextlib import suppress
from importlib.util import find_spec

from ullayers.errors import MissingPackageError

PACKAGES = ("starlette", "uvicorn", "websockets")


def run(arguments: Namespace) -> None:
    """Serve the page until Ctrl-C."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise MissingPackageError(
            f"ul studio needs {missing[0]}; install it with pip install 'ullayers[studio]'"
        )
    from ullayers.studio.server import serve

    def started(address: str, shared: str | None) -> None:
        if not arguments.quiet:
            others = f"from other computers: {shared}\n" if shared else ""
            print(f"studio: {address}\n{others}stop with Ctrl-C; runs continue", flush=True)
        if not arguments.no_browser:
            _open_browser(address)

    with suppress(KeyboardInterrupt):
        serve(
            arguments.inputs,
            arguments.out,
            host=arguments.host,
            port=arguments.port,
            started=started,
        )


def _open_browser(address: str) -> None:
    """Open the page if there is a display."""
    has_screen = sys.platform in ("win32", "darwin") or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")
    )
    if has_screen:
        webbrowser.open(address)
