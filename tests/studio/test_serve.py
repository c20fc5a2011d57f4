"""Starting the server."""

from __future__ import annotations

import http.client
import socket
from contextlib import closing
from pathlib import Path

from tests.studio.browser import LocalServer
from ullayers.studio.serve import LOCAL


def test_answers_are_sent_at_once(tmp_path: Path, video: Path) -> None:
    """With Nagle's algorithm, the end of a small answer would wait for an acknowledgement."""
    server = LocalServer(tmp_path / "studio", video)
    try:
        with closing(http.client.HTTPConnection(LOCAL, server.port)) as client:
            client.request("GET", "/icon.svg")
            assert client.getresponse().status == 401
            [connection] = server.server.server_state.connections
            accepted = connection.transport.get_extra_info("socket")
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    finally:
        server.kill()
