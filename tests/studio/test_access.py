"""Only pages of the server's own address that know the token get in."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from tests.studio.conftest import HOST
from ullayers.studio.server import allowed_hosts, make_app
from ullayers.studio.studio import Studio

OWN = {"origin": f"http://{HOST}"}
SOCKET = f"ws://{HOST}/ws"


@pytest.fixture
def stranger(studio: Studio) -> TestClient:
    return TestClient(make_app(studio, [HOST]), base_url=f"http://{HOST}", follow_redirects=False)


def test_the_token_is_needed(stranger: TestClient, studio: Studio) -> None:
    for address in ("/", "/api/state", "/js/main.js", "/api/runs/x/file/report.html"):
        assert stranger.get(address).status_code == 401
    assert stranger.get("/?token=wrong").status_code == 401
    assert stranger.get("/?token=" + "é" * 8).status_code == 401
    welcome = stranger.get(f"/?token={studio.workspace.token}")
    assert welcome.status_code == 303
    assert welcome.headers["location"] == "/"  # the token does not stay in the address
    cookie = welcome.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert stranger.get("/api/state").status_code == 200


def test_foreign_pages_are_refused(client: TestClient) -> None:
    for origin in (
        "https://evil.example",
        "http://127.0.0.1:9999",
        "null",
        "http://[",
        f"ftp://{HOST}",
        f"chrome-extension://{HOST}",
        f"http://a@{HOST}.evil",
    ):
        assert client.get("/api/state", headers={"origin": origin}).status_code == 403
        assert client.post("/api/demo", headers={"origin": origin}).status_code == 403
        with (
            pytest.raises(WebSocketDisconnect),
            client.websocket_connect(SOCKET, headers={"origin": origin}),
        ):
            pass
    with client.websocket_connect(SOCKET, headers=OWN):
        pass


def test_changes_need_an_origin(studio: Studio) -> None:
    client = TestClient(make_app(studio, [HOST]), base_url=f"http://{HOST}")
    token = {"token": studio.workspace.token}
    assert client.get("/api/state", params=token).status_code == 200
    assert client.post("/api/demo", params=token).status_code == 403
    with pytest.raises(WebSocketDisconnect), client.websocket_connect(SOCKET):
        pass


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8420", "127.0.0.1", "127.0.0.1:80"])
def test_other_host_names_are_refused(client: TestClient, host: str) -> None:
    """A host name that an attacker points at this computer is refused (DNS rebinding)."""
    assert client.get("/api/state", headers={"host": host}).status_code == 421
    with (
        pytest.raises(WebSocketDisconnect),
        client.websocket_connect(SOCKET, headers={"host": host, "origin": f"http://{host}"}),
    ):
        pass


def test_hosts_that_are_allowed() -> None:
    assert "evil.example:8420" not in allowed_hosts("0.0.0.0", 8420)
    assert "192.168.0.7:8420" in allowed_hosts("192.168.0.7", 8420)


@pytest.mark.parametrize(
    ("server", "address"),
    [
        ("192.168.0.7", "192.168.0.7"),
        ("::ffff:192.168.0.7", "192.168.0.7"),
        ("2001:db8::7", "[2001:db8::7]"),
    ],
)
def test_other_computers_use_the_address_they_connect_to(
    studio: Studio, server: str, address: str
) -> None:
    """`ul studio --host 0.0.0.0` need not know the addresses of this computer."""
    app = make_app(studio, allowed_hosts("0.0.0.0", 8420))

    async def connected(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["server"] = (server, 8420)
        await app(scope, receive, send)

    client = TestClient(connected, base_url=f"http://{address}:8420")
    assert client.get("/api/state").status_code == 401
    assert client.get(f"/?token={studio.workspace.token}").status_code == 200
    own, other = ({"origin": f"http://{name}:8420"} for name in (address, "192.168.0.8"))
    assert client.post("/api/runs", headers=own).status_code == 400
    assert client.post("/api/runs", headers=other).status_code == 403
    for name in ("", "192.168.0.8:8420", "evil.example:8420"):
        assert client.get("/api/state", headers={"host": name}).status_code == 421


def test_pages_run_their_own_scripts_only(client: TestClient) -> None:
    page = client.get("/").headers
    assert "script-src 'self'" in page["content-security-policy"]
    assert "unsafe" not in page["content-security-policy"]
    assert page["x-content-type-options"] == "nosniff"


def test_scripts_are_kept_by_the_browser_and_checked(client: TestClient) -> None:
    script = client.get("/js/main.js").headers
    assert script["content-type"].startswith("text/javascript")
    assert script["cache-control"] == "private, no-cache"
    same = client.get("/js/main.js", headers={"if-none-match": script["etag"]})
    assert (same.status_code, same.content) == (304, b"")
    assert same.headers["etag"] == script["etag"]
    other = client.get("/js/session.js", headers={"if-none-match": script["etag"]})
    assert other.status_code == 200
    assert client.get("/").headers["cache-control"] == "no-store"
    assert client.get("/api/state").headers["cache-control"] == "no-store"
    assert client.get("/js").status_code == client.get("/js/none.js").status_code == 404


def test_files_outside_are_not_served(client: TestClient, studio: Studio, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    folder = studio.workspace.runs / "run"
    folder.mkdir()
    (studio.workspace.jobs / "run").mkdir()
    (studio.workspace.jobs / "run" / "request.json").write_text('{"name": "run"}')
    (folder / "report.html").symlink_to(secret)
    (folder / "secret.csv").write_text("secret")
    (folder / "summary.json").write_text("{}")
    assert client.get("/api/runs/run/file/summary.json").status_code == 200
    tried = [
        "/api/runs/run/file/report.html",  # a link out of the folder
        "/api/runs/run/file/secret.csv",  # not one of the files of a run
        "/api/runs/run/file/..%2f..%2fstudio.json",
        "/api/runs/..%2f..%2f/file/studio.json",
        "/api/runs/run/exports/..%2fconfig.json",
        "/..%2f..%2f..%2fpyproject.toml",
        "/../studio.py",
        "/%2e%2e/studio.py",
        f"/{secret}",
        f"/api/sources/{'%2f'.join(str(secret).split(os.sep))}/frame/0",
    ]
    for address in tried:
        answer = client.get(address)
        assert answer.status_code in (400, 404), address
        assert "secret" not in answer.text.replace("secret.txt", "")


def test_files_of_a_run_cannot_act_as_pages(client: TestClient, studio: Studio) -> None:
    folder = studio.workspace.runs / "run"
    folder.mkdir()
    (studio.workspace.jobs / "run").mkdir()
    (studio.workspace.jobs / "run" / "request.json").write_text('{"name": "run"}')
    (folder / "report.html").write_text("<script>alert(1)</script>")
    (folder / "tracks.csv").write_text("<script>alert(1)</script>")
    report = client.get("/api/runs/run/file/report.html")
    assert report.headers["content-security-policy"].startswith("sandbox; default-src 'none'")
    assert (
        client.get("/api/runs/run/file/tracks.csv").headers["content-type"].startswith("text/plain")
    )


def test_the_token_is_private(studio: Studio) -> None:
    assert (studio.workspace.folder / "studio.json").stat().st_mode & 0o077 == 0
