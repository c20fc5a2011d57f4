"""Starting the server of a studio."""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Callable, Sequence
from urllib.parse import quote

import uvicorn

from ullayers.errors import Error
from ullayers.studio.app import make_app
from ullayers.studio.studio import Studio
from ullayers.studio.workspace import Workspace

PORT = 8420
TRIED_PORTS = 20
LOCAL = "127.0.0.1"
MAX_MESSAGE = 2**23  # bytes of a WebSocket message


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
