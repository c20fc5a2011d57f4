"""Peak memory on long videos: `python -m experiments.studies.long_videos --minutes 1 10 60`.

Each command runs in a process of its own, whose peak memory and CPU time are those that the system
has counted. The videos have 320 x 240 pixels and 25 frames per second. They show a minute of a
synthetic scene again and again, forwards and backwards so that nothing jumps: a beetle that walks
on a table, or three animals that cross. Videos and results stay in `--place`, so that results of
two versions can be compared; a case whose results are there is not run again.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray

from ullayers.video.demo_films import render, render_animals, walk
from ullayers.video.files.writing import VideoWriter

HEIGHT, WIDTH, FPS = 240, 320, 25
MINUTE = 60 * FPS
QUICK = "--restarts", "1", "--quiet"
LEARN = {
    "locate": ("beetle", "--task", "locate", "--steps", "20", *QUICK),
    "orient": ("beetle", "--task", "orient", "--follow", "--steps", "20", *QUICK),
    "features": ("beetle", "--task", "features", "--steps", "20", *QUICK),
    "objects": ("animals", "--task", "locate", "--objects", "3", "--steps", "20", *QUICK),
}
APPLY = {
    "features": ("features", "beetle"),
    "orient": ("orient", "beetle"),
    "orient-overlay": ("orient", "beetle", "--overlay"),
    "locate": ("locate", "beetle", "--objects", "1"),
    "locate-masks": ("locate", "beetle", "--objects", "1", "--masks"),
    "locate-overlay": ("locate", "beetle", "--objects", "1", "--overlay"),
    "objects": ("objects", "animals", "--objects", "3"),
    "objects-masks": ("objects", "animals", "--objects", "3", "--masks"),
    "objects-overlay": ("objects", "animals", "--objects", "3", "--overlay"),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=int, nargs="*", default=[1, 10, 60])
    parser.add_argument("--apply", nargs="*", choices=APPLY, default=list(APPLY))
    parser.add_argument("--learn", nargs="*", choices=LEARN, default=list(LEARN))
    parser.add_argument("--place", type=Path, required=True, help="folder of videos and results")
    arguments = parser.parse_args()
    place: Path = arguments.place
    place.mkdir(parents=True, exist_ok=True)
    for minutes in arguments.minutes:
        for case in arguments.learn:
            scene, *options = LEARN[case]
            out = place / f"learn-{case}-{minutes}"
            measure(["learn", str(video(place, scene, minutes)), *options], out)
    for minutes in arguments.minutes:
        for case in arguments.apply:
            run, scene, *options = APPLY[case]
            trained = place / f"run-{run}"
            if not (trained / "report.html").exists():
                subject, *how = LEARN[run]
                call(["learn", str(video(place, subject, 1)), *how, "--out", str(trained)])
            command = ["apply", str(trained), str(video(place, scene, minutes)), *options]
            measure([*command, "--quiet"], place / f"apply-{case}-{minutes}")


def measure(command: list[str], out: Path) -> None:
    """Run a command, and print its peak memory, its CPU time and a hash of its table."""
    if out.exists():
        return
    started = time.perf_counter()
    peak, cpu = call([*command, "--out", str(out)])
    seconds = time.perf_counter() - started
    [table] = [path for path in map(out.joinpath, ("tracks.csv", "codes.csv")) if path.exists()]
    content = hashlib.sha256(table.read_bytes()).hexdigest()[:12]
    print(
        f"{out.name}: peak {peak:,.0f} MB, {cpu:,.0f} CPU seconds, {seconds:,.0f} seconds, "
        f"{table.stat().st_size / 1e6:.1f} MB {table.name} {content}",
        flush=True,
    )


def call(arguments: list[str]) -> tuple[float, float]:
    """Run the command `ul`; return its peak memory in MB and its CPU time in seconds."""
    command = [sys.executable, "-m", "ullayers", *arguments]
    process = os.spawnv(os.P_NOWAIT, sys.executable, command)
    _, status, usage = os.wait4(process, 0)
    if status:
        raise SystemExit(f"failed: {' '.join(command)}")
    return usage.ru_maxrss / 1024, usage.ru_utime + usage.ru_stime


def video(place: Path, scene: str, minutes: int) -> Path:
    """Return a video of this length; it is made if it is not there."""
    path = place / f"{scene}-{minutes}min.mp4"
    if path.exists():
        return path
    if minutes > 1:
        repeat(video(place, scene, 1), path, minutes)
        return path
    half = list(beetle() if scene == "beetle" else animals())
    with VideoWriter(path, FPS) as file:
        for frame in half + half[::-1]:
            file.write(frame)
    return path


def beetle() -> NDArray[np.uint8]:
    """Return half a minute of a beetle on a table."""
    return render(frames=MINUTE // 2, height=HEIGHT, width=WIDTH)[0]


def animals() -> Iterator[NDArray[np.uint8]]:
    """Yield half a minute of three animals on a floor, with a strip of floor at the right."""
    paths = walk(3, crossings=10**6, most=MINUTE // 2)
    for frame in render_animals(paths, HEIGHT):
        yield np.concatenate([frame, frame[:, HEIGHT - WIDTH : HEIGHT][:, ::-1] * 0 + 190], 1)


def repeat(minute: Path, path: Path, minutes: int) -> None:
    """Write a video several times after each other, without encoding it again."""
    with av.open(str(minute)) as source, av.open(str(path), "w") as target:
        [old] = source.streams.video
        new = target.add_stream_from_template(old)
        assert old.time_base is not None
        length = round(60 / old.time_base)
        for number in range(minutes):
            source.seek(0)
            for packet in source.demux(old):
                if packet.dts is None or packet.pts is None:
                    continue
                packet.pts, packet.dts = packet.pts + number * length, packet.dts + number * length
                packet.stream = new
                target.mux(packet)


if __name__ == "__main__":
    main()
