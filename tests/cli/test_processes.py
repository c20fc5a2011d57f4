"""`ul learn` in several processes, started by torchrun."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from safetensors.torch import load_file
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from tests.command import UlCommand, check_refused, ended, start, wait_until
from tests.films import column, files_in, write_ball
from tests.forked import Forked
from ullayers.cli.main import main

pytestmark = pytest.mark.long
LEARN = "--size", "16", "--restarts", "1", "--steps", "28", "--quiet"
SHORTER = *LEARN[:4], "--steps", "2", "--quiet"
Result = tuple[int, str, str]
Job = Callable[..., tuple[Result, Result]]


class Learned(NamedTuple):
    """Three videos and the run that two processes learned from them."""

    inputs: list[str]
    run: Path


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def torchrun(port: int, *command: str) -> Forked:
    """Start one of two agents, each with one process, as on two machines."""
    options = ["--nnodes", "2", "--rdzv-backend", "c10d", "--local-addr", "127.0.0.1"]
    options += ["--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "job", "--max-restarts", "1"]
    options += ["--rdzv-conf", "close_timeout=1,keep_alive_interval=1"]
    options += ["--run-path", "--start-method", "fork"]  # need not import torch again
    return Forked(code=f"from torch.distributed.run import main\nmain({[*options, *command]!r})")


def objectives(run: Path) -> list[float]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["objective"] for line in lines]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Learned:
    """Learned by this process and another one; torchrun would have to start two."""
    folder = tmp_path_factory.mktemp("both")
    inputs = [write_ball(folder / f"ball{i}.mp4", 30 + 5 * i, 24, 32) for i in range(3)]
    command = ["learn", *inputs, "--out", str(folder / "run"), *LEARN]
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in group.items():
            patch.setenv(name, value)
        patch.setenv("RANK", "1")
        with start(*command) as other:
            patch.setenv("RANK", "0")
            assert main(command) == 0
            assert other.wait(timeout=120) == 0, other.communicate()
    return Learned(inputs, folder / "run")


def test_two_processes_learn_what_one_does(both: Learned, tmp_path: Path, here: UlCommand) -> None:
    alone = tmp_path / "alone"
    assert here("learn", *both.inputs, "--out", alone, *LEARN) == (0, "", "")
    np.testing.assert_allclose(objectives(both.run), objectives(alone), atol=1e-4)
    weights = [load_file(run / "model.safetensors") for run in (alone, both.run)]
    for name, value in weights[0].items():
        np.testing.assert_allclose(value, weights[1][name], atol=1e-3)
    tracks = [column(run / "tracks.csv", "x", "y", "confidence") for run in (alone, both.run)]
    np.testing.assert_allclose(tracks[1], tracks[0], atol=1e-4)


PROCESS = """
import os
import sys
from pathlib import Path
from ullayers.cli.main import main

Path(__file__).with_name("rank" + os.environ["RANK"]).write_text(str(os.getpid()))
if status := main():
    sys.exit(status)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_two_machines_lose_nothing_if_a_process_is_killed(both: Learned, tmp_path: Path) -> None:
    """Two agents of torchrun; the one of the process that writes is not the one that counts."""
    script, out, port = tmp_path / "process.py", tmp_path / "out", free_port()
    script.write_text(PROCESS)
    command = [str(script), "learn", *both.inputs, "--out", str(out), *LEARN]
    with torchrun(port, *command) as one, torchrun(port, *command) as two:
        wait_until(one, (out / "checkpoint" / "state.json").exists)
        os.kill(int((tmp_path / "rank1").read_text()), signal.SIGKILL)
        errors = "".join(agent.communicate(timeout=120)[1] for agent in (one, two))
    assert (one.returncode, two.returncode) == (0, 0), errors
    assert "is not empty" not in errors, "continues without another restart"
    assert objectives(out) == objectives(both.run)
    for name in ("model.safetensors", "tracks.csv"):
        assert (out / name).read_bytes() == (both.run / name).read_bytes()


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    """Starts `ul learn` in two processes; all starts share a store, as restarts of torchrun do."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "WORLD_SIZE": "2"}
    for name, value in (group | {"TORCHELASTIC_USE_AGENT_STORE": "True"}).items():
        monkeypatch.setenv(name, value)

    def learn(*arguments: str | Path) -> tuple[Result, Result]:
        processes = []
        for rank in ("0", "1"):
            monkeypatch.setenv("RANK", rank)
            processes.append(start("learn", *arguments))
        first, second = map(ended, processes)
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
        return first, second

    yield learn
    del store  # which must live until here


def write_old_run(folder: Path, *names: str) -> None:
    """Write a folder that looks like the run of another job."""
    (folder / "checkpoint").mkdir(parents=True)
    for name in ("config.json", "model.safetensors", *names):
        (folder / name).write_text('{"learn": {}}')


def test_a_restart_leaves_a_run_alone_that_was_there_before(tmp_path: Path, job: Job) -> None:
    film, run = write_ball(tmp_path / "ball.mp4", 30, 24, 32), tmp_path / "run"
    write_old_run(run)
    for _ in range(2):  # refused, and started again by torchrun
        first, second = job(film, "--out", run, *SHORTER)
        check_refused(first, "is not empty", "--force")
        check_refused(second, "another process has ended, see its message")
    assert files_in(run) == {"config.json", "model.safetensors"}
    assert (run / "model.safetensors").read_text() == '{"learn": {}}'


def test_a_restart_does_not_resume_the_run_that_it_replaces(tmp_path: Path, job: Job) -> None:
    film, run = tmp_path / "ball.mp4", tmp_path / "run"
    write_old_run(run, "checkpoint/state.json")
    command = film, "--out", run, *SHORTER, "--force"
    check_refused(job(*command)[0], "ball.mp4")  # both end before they begin a run
    write_ball(film, 30, 24, 32)
    codes = [code for code, *_ in job(*command)]
    assert codes == [0, 0], "the old run is replaced, not resumed"
    assert json.loads((run / "config.json").read_text())["inputs"] == [str(film)]


def test_other_commands_run_in_one_process(
    tmp_path: Path, here: UlCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    check_refused(here("watch", tmp_path / "a.mp4"), "one process", "without torchrun")
