"""Fleets of video on Ray: `python -m experiments.studies.fleets --clips 500 --minutes 10 60`.

Short clips (64 x 48 pixels, 40 frames) with the plain loop, and with one and two Ray workers; then
the peak memory of a Ray worker and of the command on long videos, each on a new Ray instance.
Times include everything from finding the clips to the summary. Starting Ray, and the first task of
each worker, which imports the package, are counted separately. CPU seconds are those of all
processes, Ray's included: they can be compared even if the machine is busy with something else.
Needs Linux.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

from ullayers.cli.main import main as ul
from ullayers.run.fleet import LOCAL, apply_fleet, cluster
from ullayers.run.plan import csv_name, load_plan
from ullayers.run.write import ExportOptions, export
from ullayers.video.files.writing import VideoWriter
from ullayers.video.sources import find_sources

HEIGHT, WIDTH, FPS = 48, 64, 25
CYCLE = 625  # frames after which a video repeats itself


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clips", type=int, default=500)
    parser.add_argument("--minutes", type=int, nargs="*", default=[10, 60])
    parser.add_argument("--task", choices=("locate", "orient"), default="locate")
    parser.add_argument("--one", nargs=2, metavar=("RUN", "VIDEO"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # as in a worker
    if arguments.one:
        measure_memory(*arguments.one)
        return
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        write_video(place / "first.mp4", 40, 0)
        how = ["--task", arguments.task, "--steps", "5", "--quiet"]
        ul(["learn", f"{place}/first.mp4", "--out", f"{place}/run", *how])
        if arguments.clips:
            compare(place, arguments.clips)
        for minutes in arguments.minutes:
            write_video(place / f"{minutes}min.mp4", 60 * FPS * minutes, 1)
            command = [
                sys.executable,
                __file__,
                "--one",
                f"{place}/run",
                f"{place}/{minutes}min.mp4",
            ]
            subprocess.run(command, check=True)


def write_video(path: Path, frames: int, seed: int) -> None:
    """Write a video of a ball that goes round and round over a noisy ground."""
    random = np.random.default_rng(seed)
    ground = random.uniform(60, 180, (HEIGHT, WIDTH, 3))
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    cycle = []
    for t in range(min(frames, CYCLE)):
        angle = 2 * np.pi * t / CYCLE
        right, down = 32 + 19 * np.sin(14 * angle), 24 + 14 * np.cos(20 * angle)
        frame = ground + random.normal(0, 2, (HEIGHT, WIDTH, 1))
        frame[np.hypot(x - right, y - down) < 6] = 250, 30, 30
        cycle.append(frame.clip(0, 255).astype(np.uint8))
    with VideoWriter(path, FPS) as video:
        for t in range(frames):
            video.write(cycle[t % CYCLE])


def compare(place: Path, count: int) -> None:
    """Time the plain loop, one worker and two workers, and compare the tables byte by byte."""
    clips = place / "clips"
    clips.mkdir()
    for number in range(min(count, 20)):
        write_video(clips / f"{number}.mp4", 40, number)
    for number in range(20, count):
        shutil.copy(clips / f"{number % 20}.mp4", clips / f"{number}.mp4")
    run, pattern = load_plan(place / "run", "cpu"), [f"{clips}/**/*.mp4"]
    options = ExportOptions()
    warm_up = find_sources([str(clips / "0.mp4"), str(clips / "1.mp4")])
    export(run, warm_up, place / "warm", options)
    base = report(
        "plain loop", count, lambda: export(run, find_sources(pattern), place / "0", options)
    )
    for workers in (1, 2):
        started = time.perf_counter()
        with cluster(LOCAL, cpus=workers):
            apply_fleet(run, warm_up, place / f"warm{workers}", options)
            print(f"start of Ray and of its workers: {time.perf_counter() - started:.1f} s")
            out = place / str(workers)
            cpu = report(
                f"{workers} worker{'s'[: workers - 1]}",
                count,
                lambda out=out: apply_fleet(run, find_sources(pattern), out, options),  # type: ignore[misc]
            )
        print(f"    {1000 * (cpu - base) / count:.1f} ms more CPU time per clip")
        tables = [(folder / csv_name(run)).read_bytes() for folder in (place / "0", out)]
        same = tables[0] == tables[1]
        print(f"    tables are {'equal' if same else 'DIFFERENT'}")


def report(what: str, clips: int, work: Callable[[], object]) -> float:
    """Run something, print how long it took, and return its CPU seconds."""
    started, before = time.perf_counter(), cpu_seconds()
    work()
    seconds, cpu = time.perf_counter() - started, cpu_seconds() - before
    print(
        f"{what}: {clips} clips in {seconds:.1f} s, {40 * clips / seconds:,.0f} frames/s; "
        f"{cpu:.1f} CPU seconds, {40 * clips / cpu:,.0f} frames per CPU second",
        flush=True,
    )
    return cpu


def cpu_seconds() -> float:
    """Return the CPU time of this process and of all processes that descend from it."""
    ticks = (sum(map(int, fields[11:15])) for fields in own_processes().values())
    return sum(ticks) / os.sysconf("SC_CLK_TCK")


def own_processes() -> dict[int, list[str]]:
    """Return this process and all that descend from it, with the fields of /proc/PID/stat."""
    fields: dict[int, list[str]] = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields[int(place.parent.name)] = place.read_text().rsplit(")", 1)[1].split()
    own = {os.getpid()}
    while found := {child for child in fields if int(fields[child][1]) in own} - own:
        own |= found
    return {process: fields[process] for process in own if process in fields}


def peak_mb(process: int) -> float:
    """Return the largest memory that a process has had."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def is_worker(process: int) -> bool:
    """Whether a process is a worker of Ray, which may have ended its task."""
    title = Path(f"/proc/{process}/cmdline").read_text().rstrip("\0 ")
    return title in ("ray::IDLE", "ray::apply_in_worker")


def measure_memory(folder: str, video: str) -> None:
    """Apply a run to one video on Ray, and print the speed and the peak memory."""
    run, sources = load_plan(folder, "cpu"), find_sources([video])
    with tempfile.TemporaryDirectory() as out, cluster(LOCAL, cpus=1):
        before = cpu_seconds()
        results = apply_fleet(run, sources, Path(out), ExportOptions())
        seconds = cpu_seconds() - before
        worker = max(peak_mb(process) for process in own_processes() if is_worker(process))
        size = (Path(out) / csv_name(run)).stat().st_size / 1e6
    frames = results.totals.frames
    print(
        f"{Path(video).stem}: {frames:,} frames, {seconds:.0f} CPU seconds with the start of the "
        f"worker, peak of the worker {worker:,.0f} MB, of the command {peak_mb(os.getpid()):,.0f} "
        f"MB, table {size:.2f} MB",
        flush=True,
    )


if __name__ == "__main__":
    main()
