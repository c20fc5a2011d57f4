"""Starting the server."""

from __future__ import annotations

import http.client
import socket
from contextlib import closing
from pathlib import Path

import pytest
import uvicorn

from tests.command import UlCommand
from tests.studio.browser import LocalServer
from ullayers.errors import Error
from ullayers.studio.server import LOCAL, open_port


def test_addresses_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Error, match=r"port 65536 .*ports end at 65535.*; give another --port"):
        open_port(LOCAL, 65536)

    def unknown(*_: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket.socket, "bind", unknown)
    with pytest.raises(Error, match=r"nowhere: cannot be used \(Name .*; change --host"):
        open_port("nowhere", 8420)


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


def test_other_computers_are_told_an_address(
    tmp_path: Path, here: UlCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ullayers.studio.server._network_address", lambda: "192.168.0.7")
    monkeypatch.setattr(uvicorn.Server, "run", lambda server, sockets: server.ready())
    for host, others in (("0.0.0.0", 1), ("127.0.0.1", 0)):
        code, out, _ = here(
            *("studio", "--host", host, "--no-browser"), *("--out", tmp_path / "studio")
        )
        assert code == 0
        own = next(line for line in out.splitlines() if line.startswith("studio: "))
        shared = own.replace("studio: http://127.0.0.1", "from other computers: http://192.168.0.7")
        assert "?token=" in own
        assert out.splitlines().count(shared) == others
