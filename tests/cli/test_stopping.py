"""Commands that are stopped by Ctrl-C, by the system or by a full disk continue exactly."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.command import (
    QUICK,
    STOPPED,
    WRITTEN,
    UlCommand,
    check_refused,
    check_stopped,
    lines_of,
    run_code,
    start,
    start_python,
    ul,
    unfinished,
    wait_until,
)
from tests.films import (
    ball,
    contents,
    files_in,
    read_table,
    write_ball,
    write_film,
)
from tests.tracks.growing import change_rows
from ullayers.tracks.store import finished_sequences


def lines_without_time(run: Path) -> list[dict[str, Any]]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [{**json.loads(line), "seconds": 0} for line in lines]


STOPS = {
    "locate": ("adamw", signal.SIGKILL),
    "orient": ("sgd", signal.SIGINT),
    "features": ("adamw", signal.SIGTERM),
}


def signal_when(happened: Callable[[], bool], number: int) -> threading.Thread:
    """Send a signal to this process as soon as something has happened."""

    def watch() -> None:
        while not happened():
            time.sleep(0.005)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


@pytest.fixture
def hear_ctrl_c() -> Iterator[None]:
    """Tests that run in the background ignore SIGINT."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


@pytest.mark.long
@pytest.mark.usefixtures("hear_ctrl_c")
@pytest.mark.parametrize("task", STOPS)
def test_a_run_that_is_stopped_resumes_to_the_same_bits(
    place: Path, tmp_path: Path, here: UlCommand, task: str
) -> None:
    """Stopped within a trial, and again after the best trial was chosen."""
    optimizer, number = STOPS[task]
    # 65 steps in all: 65 from one random start, or 20 from each of two and 25 more of the better
    steps, starts = ("65", "1") if task == "locate" else ("45", "2")
    settings = ("--task", task, "--optimizer", optimizer, "--steps", steps, "--restarts", starts)
    plain = () if task == "locate" else ("--no-follow",)  # crops are larger than these frames
    options = (*settings, *plain, "--size", "12", "--quiet")
    whole, run = tmp_path / "whole", tmp_path / "run"
    assert here("learn", place / "ball.mp4", "--out", whole, *options)[0] == 0
    metrics = run / "metrics.jsonl"
    with start("learn", place / "ball.mp4", *options, "--out", run) as process:
        wait_until(process, lambda: lines_of(metrics) >= 25)
        process.send_signal(number)
        if number != signal.SIGKILL:
            check_stopped(process)
    check_unfinished(run, killed=number == signal.SIGKILL)
    if number == signal.SIGKILL:
        with start("learn", "--resume", "--quiet", "--out", run) as process:
            wait_until(process, lambda: lines_of(metrics) >= 43)
            process.send_signal(number)
    else:  # in this process, which need not import torch again
        sender = signal_when(lambda: lines_of(metrics) >= 43, number)
        said = here("learn", "--resume", "--quiet", "--out", run)
        sender.join()
        assert said == (130, "", f"ul learn: {STOPPED}\n")
    check_unfinished(run, killed=number == signal.SIGKILL)
    assert here("learn", place / "ball.mp4", "--out", run, *options, "--resume")[0] == 0
    table = "tracks.csv" if task == "locate" else "codes.csv"
    for name in ("model.safetensors", table, "config.json"):
        assert (run / name).read_bytes() == (whole / name).read_bytes()
    assert lines_without_time(run) == lines_without_time(whole)
    assert not unfinished(run)


def check_unfinished(run: Path, *, killed: bool) -> None:
    """Check that a stopped run has no results, nor files that are written in part."""
    assert not files_in(run) & {"model.safetensors", "codes.csv", "tracks.csv", "report.html"}
    assert killed or not unfinished(run)


def test_ctrl_c_while_it_loads_reads_and_applies(
    place: Path, tmp_path: Path, here: UlCommand
) -> None:
    """The message says that work is kept only if there is any."""
    film, run, out = place / "ball.mp4", tmp_path / "run", tmp_path / "out"
    long = write_film(tmp_path / "long.mp4", np.tile(ball(40, 16, 24)[0], (5, 1, 1, 1)))
    with start_python("learn", film, "--out", run, "--quiet") as process:
        wait_until(process, lambda: b"torch" in Path(f"/proc/{process.pid}/maps").read_bytes())
        process.send_signal(signal.SIGINT)
        said = check_stopped(process, "stopped; ")
    # A stop waits for the end of an import, so that the first steps may be finished by then.
    begun = (run / "checkpoint" / "state.json").exists()
    assert (STOPPED if begun else "nothing was finished; start again") in said
    inputs = (film, long)
    with start("apply", place / "run", *inputs, "--out", out, "--overlay", "--quiet") as process:
        wait_until(process, lambda: bool(finished_sequences(out)))
        process.send_signal(signal.SIGINT)
        check_stopped(process)
    assert files_in(out) == {"tracks.partial.sqlite", "outlines.partial.sqlite"}
    assert finished_sequences(out) == {"ball"}
    done = here("apply", place / "run", *inputs, "--out", out, "--resume", "--quiet")
    assert done == (0, "", "")
    rows = [row["sequence"] for row in read_table(out / "tracks.csv")]
    assert rows == ["ball"] * 40 + ["long"] * 200
    assert files_in(out) == {"tracks.csv", "outlines.sqlite", "behaviour.csv", "summary.json"}


def test_results_that_are_stopped_resume(place: Path, tmp_path: Path, here: UlCommand) -> None:
    """The table that `ul learn` writes at its end continues like that of `ul apply`."""
    long = write_film(tmp_path / "long.mp4", np.tile(ball(40, 16, 24)[0], (5, 1, 1, 1)))
    run, asked = tmp_path / "run", (place / "ball.mp4", long, *QUICK)
    with start("learn", *asked, "--out", run, "--stride", "8") as process:
        wait_until(process, lambda: bool(finished_sequences(run)))
        process.send_signal(signal.SIGTERM)
        check_stopped(process)
    change_rows(run / "tracks.partial.sqlite", later)
    assert here("learn", "--out", run, "--resume", "--quiet") == (0, "", "")
    rows = read_table(run / "tracks.csv")
    assert [row["sequence"] for row in rows] == ["ball"] * 40 + ["long"] * 200
    assert rows[0]["time"] == "0.123456", "a finished sequence is not done again"
    assert {"overlay.mp4", "report.html"} <= files_in(run)
    assert not list(run.glob("*.partial.*"))


def later(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Change the time of the first row: frame, time, ..."""
    rows[0, rows[0].tolist().index(0.0, 1)] = 0.123456
    return rows


DYING = """
import os
import sys
from contextlib import contextmanager
from ullayers.cli.main import main
from ullayers.tracks.store import Database

last, *arguments = sys.argv[1:]
steps = 0
replace, changing = os.replace, Database.changing

def step():
    global steps
    steps += 1
    if steps == int(last):
        os._exit(9)  # like kill -9

def dying(*paths):
    step()
    replace(*paths)

@contextmanager
def dying_changing(self):
    with changing(self) as database:
        yield database
        step()  # before the change is committed

os.replace = dying
Database.changing = dying_changing
sys.exit(main(arguments))
"""


@pytest.mark.long
def test_an_export_that_is_killed_at_any_step_resumes(
    place: Path, tmp_path: Path, here: UlCommand
) -> None:
    """Until the last file is written, everything that is needed to continue is kept."""
    command = ("apply", place / "run", place / "ball.mp4", "--max-frames", "8", "--quiet", "--out")
    assert here(*command, tmp_path / "whole")[0] == 0
    for number in range(1, 60):
        out = tmp_path / str(number)
        code, *_ = run_code(DYING, str(number), *map(str, command), str(out))
        assert code == (9 if code else 0)
        status, _, errors = here(*command, out, "--resume")
        assert (status, "already finished" in errors) == (0, code == 0)
        assert contents(out) == contents(tmp_path / "whole"), f"killed before step {number}"
        if code == 0:
            break
    assert 15 < number < 59


def test_a_resumed_run_has_its_own_options(place: Path, here: UlCommand) -> None:
    run, film = place / "run", place / "ball.mp4"
    same = (film, "--size", "16", "--steps", "2", "--restarts", "1", "--quiet")
    assert here("learn", *same, "--out", run, "--resume")[0] == 0, "its own options may be repeated"
    others = ["--size 24", "--steps 3", "--task orient", "--seed 4", "--max-frames 9", "--grey"]
    for option in map(str.split, others):
        check_refused(here("learn", "--out", run, "--resume", *option), option[0], "--force")
    other = write_ball(place / "other.mp4", 5)
    check_refused(here("learn", other, "--out", run, "--resume"), "leave the inputs out")


def test_masks_are_remembered(place: Path, tmp_path: Path, here: UlCommand) -> None:
    run = tmp_path / "run"
    asked = ("learn", place / "ball.mp4", "--out", run, *QUICK, "--masks", "--max-frames", "5")
    assert here(*asked)[0] == 0
    shutil.rmtree(run / "masks")
    (run / "tracks.csv").unlink()
    assert here("learn", "--resume", "--out", run, "--quiet")[0] == 0
    assert len(list((run / "masks" / "ball").iterdir())) == 5
    assert len(read_table(run / "tracks.csv")) == 5


def limited(size: str) -> dict[str, Any]:
    """Options of a process whose files cannot grow, instead of a small disk."""
    limit = int(size.removesuffix("k")) * 1024
    return {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))}


@pytest.mark.parametrize("size", ["4k", "60k", "200k"])
def test_a_full_disk(
    place: Path, tmp_path: Path, mount: Callable[[str], bool], here: UlCommand, size: str
) -> None:
    """The disk is full at once, at the first checkpoint, or when results are written.

    Where no disk can be mounted, a process of its own with a limit replaces the last.
    """
    run, quick = tmp_path / "disk" / "run", ("--steps", "22", "--restarts", "1", "--size", "12")
    small = mount(f"size={size}")
    if not small and size != "200k":
        pytest.skip("needs the right to mount a small disk")
    learn = here if small else ul
    how = {} if small else limited("150k")
    said = learn("learn", place / "ball.mp4", "--out", run, *quick, "--quiet", **how)
    begun = (run / "checkpoint" / "state.json").exists()
    check_refused(said, "the disk is full", "--resume" if begun else "start again")
    assert not unfinished(run)
    assert "report.html" not in files_in(run)
    assert not (run / "tracks.csv").exists() or len(read_table(run / "tracks.csv")) == 40
    assert (run / "model.safetensors").exists() == (size == "200k"), "what is finished is kept"
    assert not small or mount("remount,size=20m")
    assert here("learn", "--resume", "--out", run, "--quiet") == (0, "", "")
    assert WRITTEN <= files_in(run)


@pytest.mark.parametrize(("size", "is_begun"), [("16k", False), ("440k", True)])
def test_a_disk_that_is_full_while_results_are_written(
    place: Path,
    tmp_path: Path,
    mount: Callable[[str], bool],
    here: UlCommand,
    size: str,
    is_begun: bool,
) -> None:
    """It is full at once, or among the masks of the second video."""
    if not mount(f"size={size}"):
        pytest.skip("needs the right to mount a small disk")
    films = [shutil.copy(place / "ball.mp4", tmp_path / f"{name}.mp4") for name in "abc"]
    out = tmp_path / "disk" / "out"
    apply = ("apply", place / "run", *films, "--masks", "--quiet", "--out")
    hint = "finished work is kept; continue with --resume" if is_begun else "start again"
    check_refused(here(*apply, out), "the disk is full; free some space", hint)
    assert out.exists() == is_begun, "nothing is left of what is not finished"
    if is_begun:
        assert [path.name for path in (out / "masks").iterdir()] == ["a"]
    assert mount("remount,size=20m")
    assert here(*apply, out, *["--resume"] * is_begun) == (0, "", "")
    if not is_begun:
        return
    assert here(*apply, tmp_path / "whole") == (0, "", "")
    written, whole = contents(out), contents(tmp_path / "whole")
    for each in (written, whole):
        each.pop("outlines.sqlite")  # its pages may be in another order
    assert written == whole
