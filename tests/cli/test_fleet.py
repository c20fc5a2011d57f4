"""`ul apply --ray` as a command: stopping, resuming, and what it refuses."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import ullayers.run.fleet as cluster
from tests.command import UlCommand, check_refused, check_stopped, start_python, ul, wait_until
from tests.films import contents, files_in, write_ball, write_truncated
from ullayers.run.folder import has_parts

pytest.importorskip("ray", reason="needs pip install 'ullayers[ray]'")


def test_ctrl_c_keeps_what_is_finished(place: Path, tmp_path: Path, here: UlCommand) -> None:
    """Ctrl-C in the middle, then `--resume`; the result is that of the plain command."""
    videos = tmp_path / "in" / "deep"
    videos.mkdir(parents=True)
    film = write_ball(videos / "film0.mp4", 20)
    for number in range(1, 60):
        shutil.copy(film, videos / f"film{number}.mp4")
    write_truncated(videos / "film60.mp4")
    (videos / "film61.mp4").write_bytes(b"no video")
    command = ("apply", place / "codes", f"{tmp_path}/in/**/*.mp4", "--skip-bad", "--quiet")
    out, plain = tmp_path / "out", tmp_path / "plain"
    process = start_python(*command, "--out", out, "--ray", start_new_session=True)
    wait_until(process, lambda: has_parts(out))
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does, Ray's processes included
    check_stopped(process)
    notes = {path: path.stat().st_mtime_ns for path in out.glob("parts/*/part.json")}
    assert 1 <= len(notes) < 61
    check_refused(here(*command, "--out", out), "is not empty", "--resume")
    check_refused(here(*command, "--out", out, "--resume"), "was started with --ray")
    code, said, errors = ul(*command, "--out", out, "--ray", "--resume")
    assert (code, said, errors) == here(*command, "--out", plain)
    assert len(errors.splitlines()) == 2, "one video is left out, one is used in part"
    assert contents(out) == contents(plain)
    code, _, _ = here(*command, "--out", out, "--force")
    assert (code, files_in(out)) == (0, {"codes.csv", "summary.json"}), "no file of the fleet stays"


IMPATIENT = """\
import sys
import ullayers.run.fleet as cluster
from ullayers.cli.main import main
cluster.LOST_SECONDS = 3
sys.exit(main())
"""


def kill_head(driver: int) -> None:
    """Kill the head of the Ray instance that a process has started."""
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            name, _, rest = file.read_text().split("(", 1)[1].rpartition(")")
            if name == "gcs_server" and int(rest.split()[1]) == driver:
                os.kill(int(file.parent.name), signal.SIGKILL)
                return
    raise AssertionError("no Ray instance found")


@pytest.mark.skipif(sys.platform != "linux", reason="finds the process in /proc")
def test_a_dead_head_ends_the_command_and_keeps_what_is_finished(
    place: Path, tmp_path: Path, here: UlCommand
) -> None:
    film = write_ball(tmp_path / "film0.mp4", 12)
    for number in range(1, 400):
        shutil.copy(film, tmp_path / f"film{number}.mp4")
    out = tmp_path / "out"
    command = ("apply", place / "codes", f"{tmp_path}/*.mp4", "--out", out, "--quiet", "--ray")
    arguments = [sys.executable, "-c", IMPATIENT, *map(str, command)]
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True) as process:
        wait_until(process, lambda: has_parts(out))
        kill_head(process.pid)
        _, errors = process.communicate(timeout=60)
    own = [line for line in errors.splitlines() if line.startswith("ul ")]
    assert process.returncode == 2, errors
    assert len(own) == 1
    assert "no longer answers; finished videos are kept" in own[0]
    assert "--resume" in own[0]
    assert 1 <= len(list(out.glob("parts/*/part.json"))) < 400
    check_refused(here(*command[:-1]), "is not empty", "--resume")


def test_addresses_without_a_cluster(
    place: Path, tmp_path: Path, here: UlCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("apply", place / "run", place / "ball.mp4", "--out", tmp_path / "out", "--ray")
    for address in ("127.0.0.1:9", "ray://127.0.0.1:9"):
        check_refused(here(*command, address), f"--ray {address}: no Ray cluster there", "refused")
    check_refused(here(*command, "nowhere.invalid:6379"), "no Ray cluster there")
    check_refused(here(*command, "videos/"), "expected HOST:PORT", "last on the command line")
    monkeypatch.setattr(cluster, "JOIN_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:  # something else than Ray
        address = f"127.0.0.1:{server.getsockname()[1]}"
        check_refused(here(*command, address), "no answer within 0.5 seconds")
    assert not files_in(tmp_path)


@contextmanager
def ray_head() -> Iterator[str]:
    """Start a cluster of one machine, and yield the address for clients outside of it."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("", 0)) as two:
        ports = [str(each.getsockname()[1]) for each in (one, two)]
    options = ["--head", "--block", "--num-cpus", "1", "--include-dashboard", "false"]
    options += ["--port", ports[0], "--ray-client-server-port", ports[1]]
    options += ["--min-worker-port", "0", "--max-worker-port", "0"]  # any, also those of clients
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", *options]
    env = os.environ | {"RAY_AUTH_MODE": "disabled", "GRPC_ENABLE_FORK_SUPPORT": "0"}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as head:
        try:
            wait_until(head, lambda: is_listening(int(ports[1])))
            yield f"ray://127.0.0.1:{ports[1]}"
        finally:
            head.terminate()


def is_listening(port: int) -> bool:
    with suppress(OSError):
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    return False


def test_a_client_outside_the_cluster(place: Path, tmp_path: Path, here: UlCommand) -> None:
    command = ("apply", place / "codes", write_ball(tmp_path / "film.mp4", 12), "--quiet")
    plain, out = tmp_path / "plain", tmp_path / "out"
    with ray_head() as address:
        env = os.environ | {"RAY_AUTH_MODE": "disabled"}
        code, said, errors = ul(*command, "--out", out, "--ray", address, env=env)
    assert (code, said) == (0, ""), errors
    assert here(*command, "--out", plain)[0] == 0
    for name in ("codes.csv", "summary.json"):
        assert (out / name).read_bytes() == (plain / name).read_bytes()


def test_what_a_fleet_does_not_do(
    place: Path, tmp_path: Path, here: UlCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("apply", place / "run", place / "ball.mp4", "--out", tmp_path / "out")
    check_refused(here(*command, "--part", "1/2", "--ray"), "leave --ray or --part out")
    check_refused(here(*command, "--device", "cuda", "--ray"), "uses CPUs", "--device cuda")
    check_refused(here(*command[:2], tmp_path / "none.mp4", "--ray"), "does not exist")
    monkeypatch.setitem(sys.modules, "ray", None)
    check_refused(here(*command, "--ray"), "needs the package ray: pip install 'ullayers[ray]'")
    assert not files_in(tmp_path)
