"""Speed and memory of the page of `ul studio` on a ten-hour video, in headless Chromium.

    python -m experiments.studies.studio_page [--run]

The video repeats a minute of a synthetic scene (320 x 240, H.264, 25 frames per second, a key frame
every two seconds). `--run` also measures a run on it with three objects. Both are made on the first
call (two minutes, 1.2 GB) and stay in `experiments/out/studio_page`. Each repetition starts the
command in a new process, opens the page in a new context of a running browser as soon as the URL is
printed, and then once more. Jumps are clicks on the slider. Times are from the input event to the
end of the repaint with the picture of that frame, and include up to 17 ms until the browser
repaints. Needs Linux.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import av
import numpy as np
from playwright.sync_api import Browser, sync_playwright

from tests.output.made_tracks import wanderers, write_tables
from tests.studio.browser import WIDE, Server, Tab, browser_path
from tests.studio.numbered import write_run
from ullayers.video.demo_films import render

PLACE = Path("experiments/out/studio_page").absolute()
HEIGHT, WIDTH, FPS = 240, 320, 25
MINUTE = 60 * FPS
FRAMES = 600 * MINUTE
JUMPS, STEPS = 100, 60
PAUSE = 300  # ms after a jump, in which the page fetches the frames around it
BITS = 11  # of the number of a frame within its minute
BLOCK = WIDTH // BITS
CODEC = {"crf": "30", "preset": "veryfast", "g": str(2 * FPS), "sc_threshold": "0"}

NOTE_TIMES = """
const afterRepaint = (check) => requestAnimationFrame(() => setTimeout(check));
const noteFirst = () => {
  if (typeof window.ulStudio?.shown === "number")
    window.firstPicture = performance.timeOrigin + performance.now();
  else afterRepaint(noteFirst);
};
const noteNext = ({timeStamp}) => {
  const check = () => {
    if (ulStudio.shown === ulStudio.frame) window.pictureMs = performance.now() - timeStamp;
    else afterRepaint(check);
  };
  afterRepaint(check);
};
noteFirst();
for (const name of ["pointerdown", "keydown"]) addEventListener(name, noteNext, true);
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", action="store_true", help="also measure a run with three objects")
    parser.add_argument("--starts", type=int, default=5, help="number of servers to start")
    arguments = parser.parse_args()
    inputs = [ten_hours()]
    if arguments.run:
        inputs.append(run_on(inputs[0]))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path())
        for path in inputs:
            measure(browser, path, arguments.starts)
        browser.close()


def measure(browser: Browser, path: Path, starts: int) -> None:
    """Print a table of all measurements of a video or run."""
    before = os.getloadavg()[0]
    fresh: list[float] = []
    again: list[float] = []
    for _ in range(starts):
        with started(path) as server:
            for seconds in (fresh, again):
                tab, first = opened(browser, server)
                tab.close()
                seconds.append(first)
    print(f"\n| {path.name} | Goal | Measured |\n|---|---|---|")
    show("First picture", "at most 2 s", fresh, "s")
    show("First picture, page opened again", "", again, "s")
    with started(path) as server:
        tab, _ = opened(browser, server)
        use(tab, server)
        if not path.is_dir():  # objects of a run would cover the numbers
            check_pictures(tab)
        tab.close()
    after = os.getloadavg()[0]
    print(f"\nLoad average {before:.1f} before, {after:.1f} after; {os.cpu_count()} cores.")


def use(tab: Tab, server: Server) -> None:
    """Print times of jumps and steps on an open page, then memory."""
    shares = np.random.default_rng(0).uniform(0, 1, JUMPS)
    show("Jump to a random frame", "at most 150 ms", [jump(tab, share) for share in shares], "ms")
    for key, start in (("ArrowRight", 0.4), ("ArrowLeft", 0.6)):
        jump(tab, start)
        steps = [picture_ms(tab, tab.press, key) for _ in range(STEPS)]
        show(f"Step of one frame, {key}", "", steps, "ms")
    print(f"| Memory of the page's process | under 300 MB | {page_memory(tab):.0f} MB |")
    private = memory(server.process.pid, "Private_Clean", "Private_Dirty")
    print(f"| Private memory of the server | | {private:.0f} MB |")


def show(name: str, goal: str, times: list[float], unit: str) -> None:
    """Print a row of the table."""
    values = statistics.median(times), float(np.percentile(times, 95)), max(times)
    middle, most, slowest = (f"{value:.{2 if unit == 's' else 0}f} {unit}" for value in values)
    share = f"95 % within {most}, " if len(times) >= 20 else ""
    row = f"| {name}, {len(times)} | {goal} | median {middle}, {share}slowest {slowest} |"
    print(row, flush=True)


class UserServer(Server):
    """`ul studio`, started as by a user."""

    def start(self) -> None:
        """Start it."""
        command = [sys.executable, "-m", "ullayers", "studio", *map(str, self.inputs)]
        command += ["--out", str(self.folder), "--no-browser"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().split()[1]
        self.port = urlsplit(self.address).port


@contextmanager
def started(path: Path) -> Iterator[Server]:
    """Start a server with an empty folder, and stop it."""
    with tempfile.TemporaryDirectory() as folder:
        server = UserServer(Path(folder), path)
        try:
            yield server
        finally:
            server.kill()


def opened(browser: Browser, server: Server) -> tuple[Tab, float]:
    """Open the page in a new context; return it and the seconds until its first picture."""
    width, height = WIDE
    page = browser.new_context(viewport={"width": width, "height": height}).new_page()
    page.add_init_script(NOTE_TIMES)
    begun = time.time()
    tab = Tab(page, server)
    tab.wait("window.firstPicture")
    if server.inputs[0].is_dir():  # the first server converts its table; do not stop it before
        tab.wait("ulStudio.objects.length > 0 && ulStudio.ready")
    return tab, tab.get("firstPicture") / 1000 - begun


def jump(tab: Tab, share: float) -> float:
    """Click on the slider, then wait; return milliseconds until the picture was shown."""
    box = tab.part("scrubber").bounding_box()
    assert box is not None
    x, y = box["x"] + share * box["width"], box["y"] + box["height"] / 2
    milliseconds = picture_ms(tab, tab.page.mouse.click, x, y)
    tab.page.wait_for_timeout(PAUSE)
    return milliseconds


def picture_ms(tab: Tab, act: Callable[..., None], *arguments: Any) -> float:
    """Return milliseconds from an input event to the picture of the frame it leads to."""
    tab.get("window.pictureMs = null")
    act(*arguments)
    tab.wait("pictureMs !== null")
    return float(tab.get("pictureMs"))


def check_pictures(tab: Tab) -> None:
    """Check for some frames that the canvas shows the frame that the page says."""
    middles = BLOCK * (np.arange(BITS) + 0.5)
    for share in np.linspace(0.05, 0.95, 10):
        jump(tab, share)
        frame, colours = tab.picture(np.stack([middles, np.full(BITS, HEIGHT - 8.0)], 1))
        number = int(((colours.mean(-1) > 128) << np.arange(BITS)).sum())
        assert (frame, number) == (tab.studio("frame"), frame % MINUTE), (frame, number)


def page_memory(tab: Tab) -> float:
    """Return the proportional set size of the page's process in MB."""
    browser = tab.page.context.browser
    assert browser is not None
    processes = browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"]
    return max(memory(each["id"], "Pss") for each in processes if each["type"] == "renderer")


def memory(process: int, *names: str) -> float:
    """Return the sum of entries of smaps_rollup in MB."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:]
    return sum(int(line.split()[1]) for line in lines if line.split(":")[0] in names) / 1024


def ten_hours() -> Path:
    """Return the video; it is made if it is not there."""
    path = PLACE / "ten_hours.mp4"
    if path.exists():
        return path
    PLACE.mkdir(parents=True, exist_ok=True)
    partial = PLACE / "partial.mp4"
    with av.open(minute(), "r") as source, av.open(str(partial), "w") as target:
        [old] = source.streams.video
        new = target.add_stream_from_template(old)
        assert old.time_base is not None
        for start in range(0, FRAMES, MINUTE):
            shift = round(start / FPS / old.time_base)
            source.seek(0)
            for packet in source.demux(old):
                if packet.dts is not None and packet.pts is not None:
                    packet.pts, packet.dts = packet.pts + shift, packet.dts + shift
                    packet.stream = new
                    target.mux(packet)
    return partial.rename(path)


def minute() -> io.BytesIO:
    """Return half a minute forwards and backwards, with the number of each frame in bits."""
    half = render(frames=MINUTE // 2, height=HEIGHT, width=WIDTH)[0]
    video = io.BytesIO()
    with av.open(video, "w", format="mp4") as file:
        stream = file.add_stream("libx264", rate=FPS, options=CODEC)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for number, pixels in enumerate(np.concatenate([half, half[::-1]])):
            bits = np.repeat(number >> np.arange(BITS) & 1, BLOCK)
            pixels[-16:, : len(bits)] = np.where(bits, 235, 20)[:, None]
            file.mux(stream.encode(av.VideoFrame.from_ndarray(pixels)))
        file.mux(stream.encode())
    video.seek(0)
    return video


def run_on(video: Path) -> Path:
    """Return a run on the video; it is made if it is not there (outlines of 300 frames only)."""
    folder = PLACE / "run"
    if folder.exists():
        return folder
    with tempfile.TemporaryDirectory(dir=PLACE) as place:
        made = write_run(Path(place) / "run", video, sequence=video.stem)
        tracks, crossings = wanderers(3, FRAMES, video.stem)
        fitted = [each.changed(x_px=each.x_px / 2, y_px=each.y_px / 2) for each in tracks]
        write_tables(made, fitted, crossings)
        sequence = {"name": video.stem, "width": WIDTH, "height": HEIGHT, "fps": FPS}
        summary = json.loads((made / "summary.json").read_text()) | {"frames": FRAMES}
        summary["sequences"] = [sequence | {"frames": FRAMES}]
        (made / "summary.json").write_text(json.dumps(summary))
        return made.rename(folder)


if __name__ == "__main__":
    main()
