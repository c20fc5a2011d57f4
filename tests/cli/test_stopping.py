"""Stopped in the middle, by Ctrl-C, by the system or by a full disk: it goes on exactly."""

from __future__ import annotations

import json
import resource
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.command import (
    QUICK,
    STOPPED,
    WRITTEN,
    UlCommand,
    check_refused,
    check_stopped,
    lines_of,
    start,
    ul,
    unfinished,
    wait_until,
)
from tests.films import (
    ball,
    files_in,
    read_table,
    write_ball,
    write_film,
)


def lines_without_time(run: Path) -> list[dict[str, Any]]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [{**json.loads(line), "seconds": 0} for line in lines]


STOPS = {
    "locate": ("adamw", signal.SIGKILL), "orient": ("sgd", signal.SIGINT),
    "features": ("adamw", signal.SIGTERM),
}  # fmt: skip


@pytest.mark.parametrize("task", STOPS)
def test_a_run_that_is_stopped_goes_on_to_the_same_bits(
    place: Path, tmp_path: Path, here: UlCommand, task: str
) -> None:
    """Stopped within a trial, and again after the race."""
    optimizer, how = STOPS[task]
    seeds = "1" if task == "locate" else "2"  # two trials of 20 steps each
    options = ("--task", task, "--optimizer", optimizer, "--steps", "90", "--restarts", seeds,
               "--size", "12", "--quiet")  # fmt: skip
    whole, run = tmp_path / "whole", tmp_path / "run"
    assert here("learn", place / "ball.mp4", "--out", whole, *options)[0] == 0
    metrics = run / "metrics.jsonl"
    for stop in (25, 43):
        asked = [place / "ball.mp4", *options] if stop == 25 else ["--resume", "--quiet"]
        with start("learn", *asked, "--out", run) as process:
            wait_until(process, lambda stop=stop: lines_of(metrics) >= stop)  # type: ignore[misc]
            process.send_signal(how)
            if how != signal.SIGKILL:
                check_stopped(process)
        assert not files_in(run) & {"model.safetensors", "codes.csv", "tracks.csv", "report.html"}
        assert how == signal.SIGKILL or not unfinished(run)
    assert here("learn", place / "ball.mp4", "--out", run, *options, "--resume")[0] == 0
    table = "tracks.csv" if task == "locate" else "codes.csv"
    for name in ("model.safetensors", table, "config.json"):
        assert (run / name).read_bytes() == (whole / name).read_bytes()
    assert lines_without_time(run) == lines_without_time(whole)
    assert not unfinished(run)


def test_ctrl_c_while_it_loads_reads_and_applies(place: Path, tmp_path: Path) -> None:
    """Before anything is there, nothing is said to be kept; afterwards it is."""
    film, run, out = place / "ball.mp4", tmp_path / "run", tmp_path / "out"
    long = write_film(tmp_path / "long.mp4", np.tile(ball(40)[0], (60, 1, 1, 1)))
    with start("learn", film, "--out", run) as process:
        wait_until(process, lambda: b"torch" in Path(f"/proc/{process.pid}/maps").read_bytes())
        process.send_signal(signal.SIGINT)
        said = check_stopped(process, "stopped; ")
    # An import goes on to its end, so that the first steps may be done when it is heard.
    begun = (run / "checkpoint" / "state.json").exists()
    assert (STOPPED if begun else "nothing was finished; start again") in said
    inputs = (film, long)
    with start("apply", place / "run", *inputs, "--out", out, "--overlay", "--quiet") as process:
        wait_until(process, (out / "tracks.partial.json").exists)
        process.send_signal(signal.SIGINT)
        check_stopped(process)
    assert files_in(out) == {"tracks.partial.csv", "tracks.partial.json"}
    assert {row["sequence"] for row in read_table(out / "tracks.partial.csv")} == {"ball"}
    code, _, errors = ul("apply", place / "run", *inputs, "--out", out, "--resume")
    assert (code, errors) == (0, "")
    rows = [row["sequence"] for row in read_table(out / "tracks.csv")]
    assert rows == ["ball"] * 40 + ["long"] * 2400
    assert files_in(out) == {"tracks.csv"}


def test_results_that_are_stopped_go_on(place: Path, tmp_path: Path) -> None:
    """What `learn` writes at its end is kept as that of `apply` is."""
    long = write_film(tmp_path / "long.mp4", np.tile(ball(40)[0], (60, 1, 1, 1)))
    run, asked = tmp_path / "run", (place / "ball.mp4", long, *QUICK)
    with start("learn", *asked, "--out", run, "--stride", "8") as process:
        wait_until(process, (run / "tracks.partial.json").exists)
        process.send_signal(signal.SIGTERM)
        check_stopped(process)
    partial = run / "tracks.partial.csv"
    partial.write_text(partial.read_text().replace("ball,0,0.000000", "ball,0,0.123456"))
    assert ul("learn", "--out", run, "--resume", "--quiet") == (0, "", "")
    rows = read_table(run / "tracks.csv")
    assert [row["sequence"] for row in rows] == ["ball"] * 40 + ["long"] * 2400
    assert rows[0]["time"] == "0.123456", "it is not done again"
    assert {"overlay.mp4", "report.html"} <= files_in(run)
    assert not list(run.glob("*.partial.*"))


def test_a_resumed_run_has_its_own_options(place: Path, here: UlCommand) -> None:
    run, film = place / "run", place / "ball.mp4"
    same = (film, "--size", "16", "--steps", "2", "--restarts", "1", "--quiet")
    assert here("learn", *same, "--out", run, "--resume")[0] == 0, "the same ones may be repeated"
    for option in (["--size", "24"], ["--steps", "3"], ["--task", "orient"], ["--seed", "4"],
                   ["--max-frames", "9"], ["--grey"]):  # fmt: skip
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
    """Without a small disk: a process whose files cannot grow."""
    limit = int(size.removesuffix("k")) * 1024
    return {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))}


@pytest.mark.parametrize("size", ["4k", "60k", "200k"])
def test_a_full_disk(
    place: Path, tmp_path: Path, mount: Callable[[str], bool], here: UlCommand, size: str
) -> None:
    """Full at once, at the first checkpoint, and when the results are written."""
    run, quick = tmp_path / "disk" / "run", ("--steps", "22", "--restarts", "1", "--size", "12")
    small = mount(f"size={size}")
    if not small and size != "200k":
        pytest.skip("a small disk cannot be had here, and small files do not fill one")
    how = {} if small else limited("150k")
    said = ul("learn", place / "ball.mp4", "--out", run, *quick, "--quiet", **how)
    begun = (run / "checkpoint" / "state.json").exists()
    check_refused(said, "the disk is full", "--resume" if begun else "start again")
    assert not unfinished(run)
    assert "report.html" not in files_in(run)
    assert not (run / "tracks.csv").exists() or len(read_table(run / "tracks.csv")) == 40
    assert (run / "model.safetensors").exists() == (size == "200k"), "what is finished is kept"
    assert not small or mount("remount,size=20m")
    assert here("learn", "--resume", "--out", run, "--quiet") == (0, "", "")
    assert WRITTEN <= files_in(run)
