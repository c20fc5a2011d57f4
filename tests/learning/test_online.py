"""Watching: a result for every frame, training that helps, and exact resuming."""

from __future__ import annotations

import csv
import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import ullayers as ul
import ullayers.run.watcher as watching
from tests.command import UlCommand, check_refused, start
from tests.films import read_table, write_ball
from tests.locate.still_films import HEIGHT, WIDTH, circle, film
from ullayers.cli.watch import View
from ullayers.files import from_json
from ullayers.learning.config import Config
from ullayers.run.watch import WatchResult
from ullayers.run.watcher import CLIP_FRAMES, CLIPS_PER_STEP, FRAMES_PER_STEP, Watcher, WatcherState
from ullayers.video.camera.motion import LiveBackdrop
from ullayers.video.demo_films import write_scene
from ullayers.video.sources import Reading, VideoError, find_sources, read_all

ONE = "--objects", "1"  # one row per frame


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scene")
    write_scene(folder, frames=600)
    return folder


@pytest.fixture(scope="module")
def truth(scene: Path) -> np.ndarray:
    with open(scene / "truth.csv", encoding="utf-8") as file:
        return np.array([[float(row["x"]), float(row["y"])] for row in csv.DictReader(file)])


def ball(t: int, height: int = 24, width: int = 32) -> Tensor:
    """Noise with a bright square on a slow circle."""
    generator = torch.Generator().manual_seed(t)
    frame = torch.randint(90, 110, (3, height, width), generator=generator).byte()
    x = round((0.5 + 0.35 * np.cos(t / 15)) * width)
    y = round((0.5 + 0.35 * np.sin(t / 15)) * height)
    frame[:, max(0, y - 2) : y + 2, max(0, x - 2) : x + 2] = 250
    return frame


def frames_in(table: Path) -> list[int]:
    return [int(row["frame"]) for row in read_table(table)]


@pytest.mark.long
def test_learning_while_watching_helps(
    scene: Path, truth: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flickering lamp distracts background subtraction more than a network that learns."""

    def last_third() -> float:
        config = Config(lr=1e-3)
        found = [s.values[:2] for s in ul.watch(str(scene / "scene.mp4"), config=config, size=48)]
        assert len(found) == len(truth)
        apart = np.linalg.norm(np.array(found) - truth, axis=1)
        return float(apart[400:].mean())

    learned = last_third()
    monkeypatch.setattr(Watcher, "catch_up", lambda self: None)  # where it learns
    assert learned < 0.7 * last_third()


def test_every_frame_has_an_answer(scene: Path) -> None:
    found = list(ul.watch(str(scene / "scene.mp4"), size=32, stride=2, max_frames=40, grey=True))
    assert [s.frame for s in found] == list(range(0, 40, 2))
    assert found[5].seconds == pytest.approx(10 / 25)
    assert all(s.columns == ("x", "y", "confidence") and len(s.values) == 3 for s in found)
    assert all(s.mask is not None and s.mask.shape == (24, 32) for s in found)
    assert all(0 <= v <= 1 for s in found for v in s.values)


def test_codes(scene: Path) -> None:
    config = Config(task="orient", outputs=3)
    found = list(ul.watch(str(scene / "scene.mp4"), config=config, size=32, max_frames=20))
    assert all(s.columns == ("y0", "y1", "y2") and s.mask is None for s in found)
    assert np.isfinite([s.values for s in found]).all()
    with pytest.raises(VideoError, match="whole recording"):
        next(ul.watch(str(scene / "scene.mp4"), config=Config(task="features")))


@pytest.mark.parametrize("task", ["locate", "orient"])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_going_on_is_exact(task: str, optimizer: str) -> None:
    config = Config(task=task, optimizer=optimizer)  # type: ignore[arg-type]
    whole = Watcher(config, 3, (24, 32))
    for t in range(40):
        whole.see(ball(t))
    first = Watcher(config, 3, (24, 32))
    for t in range(23):
        first.see(ball(t))
    tensors, rest = first.state()
    second = Watcher(config, 3, (24, 32))
    state = from_json(WatcherState, json.loads(json.dumps(rest)))
    second.load({k: v.clone() for k, v in tensors.items()}, state)
    for t in range(23, 40):
        second.see(ball(t))
    for key, value in whole.state()[0].items():
        assert torch.equal(value, second.state()[0][key]), key
    assert repr(whole.state()[1]) == repr(second.state()[1])  # a first J is nan


def test_what_is_kept_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "MEMORY_FRAMES", 72)
    monkeypatch.setattr(watching, "WINDOW", 2)
    watcher = Watcher(Config(), 3, (24, 32))

    def size() -> int:
        tensors, rest = watcher.state()
        return sum(t.numel() for t in tensors.values()) + len(rest["history"])

    for t in range(max(72, CLIPS_PER_STEP * CLIP_FRAMES + 2 * 2 * FRAMES_PER_STEP)):
        watcher.see(ball(t))
    watcher.catch_up()
    before = size()
    assert len(watcher.memory) == 72
    assert len(watcher.trainer.history) == 2 * 2
    for t in range(30):
        watcher.see(ball(t))
    assert size() == before


def test_learning_stops_when_it_has_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "WINDOW", 3)
    watcher = Watcher(Config(tolerance=100.0), 3, (24, 32))  # J never falls by as much
    frames = 0
    while watcher.learning:
        watcher.see(ball(frames))
        watcher.catch_up()
        frames += 1
        assert len(watcher.trainer.history) == max(
            0, (frames - CLIPS_PER_STEP * CLIP_FRAMES) // FRAMES_PER_STEP + 1
        )
    assert len(watcher.trainer.history) == 2 * 3
    before = watcher.net.state_dict()["conv1.weight"].clone()
    values, _ = watcher.see(ball(0))
    assert torch.equal(watcher.net.state_dict()["conv1.weight"], before)
    assert np.isfinite(values).all()


def test_an_answer_does_not_wait_for_learning() -> None:
    """A step of training happens after the answer for its frame."""
    watcher = Watcher(Config(), 3, (24, 32))
    for t in range(CLIPS_PER_STEP * CLIP_FRAMES):
        watcher.see(ball(t))
    assert len(watcher.trainer.history) == 0
    watcher.catch_up()
    assert len(watcher.trainer.history) == 1
    watcher.catch_up()
    assert len(watcher.trainer.history) == 1


def test_live_backdrop_forgets_what_passes_and_follows_the_camera() -> None:
    torch.manual_seed(0)
    table = torch.nn.functional.avg_pool2d(torch.rand(1, 3, 60, 120), 5, 1, 2)[0]
    live = LiveBackdrop()
    for t in range(60):  # the camera pans, one pixel in two frames; nothing else moves
        left = live.foreground(table[:, 6:54, t // 2 : t // 2 + 64])
        live.update(left)
    still = LiveBackdrop()
    for t in range(60):
        frame = table[:, 6:54, :64].clone()
        frame[:, 10:16, t : t + 6] = 1.0
        passing = still.foreground(frame)
        still.update(passing)
    assert float(left.abs().mean()) < 0.2 * float(
        (table[:, 6:54, :64] - table[:, 6:54, 30:94]).abs().mean()
    )
    assert float(passing[:, 30:].abs().max()) < 1e-6  # where nothing ever was
    assert float(passing[:, 10:16, 60:].mean()) > 0.3  # where it is now


def test_an_object_that_stops_is_still_found() -> None:
    moving = circle(120)
    places = np.concatenate([moving, np.repeat(moving[-1:], 300, axis=0)])
    frames = torch.from_numpy(film(places)).permute(0, 3, 1, 2)
    small = torch.nn.functional.interpolate(frames.float(), (48, 64), mode="area").byte()
    watcher = Watcher(Config(), 3, (48, 64))
    watcher.learning = False  # the weights at the start are enough
    found = np.array([watcher.see(frame)[0] for frame in small])
    away = np.abs(found[:, :2] - places / (WIDTH, HEIGHT)).max(1)
    assert np.median(away[70:120]) < 0.03
    assert away[120:].max() < 0.03
    assert (found[120:, 2] >= 0.5).all()


def test_nothing_is_found_where_an_object_has_left() -> None:
    places = np.repeat(circle(2)[:1], 420, axis=0)
    places[100:] = np.nan  # it had become background
    frames = torch.from_numpy(film(places)).permute(0, 3, 1, 2)
    small = torch.nn.functional.interpolate(frames.float(), (48, 64), mode="area").byte()
    watcher = Watcher(Config(), 3, (48, 64))
    watcher.learning = False  # the weights at the start are enough
    found = np.array([watcher.see(frame)[0] for frame in small])
    # The background changes by half a grey level per frame: a contrast of 100 needs 200 frames.
    assert np.mean(found[350:, 2] >= 0.5) < 0.05


def test_a_folder_keeps_table_checkpoint_and_network(
    scene: Path, tmp_path: Path, here: UlCommand
) -> None:
    out, video = tmp_path / "run", str(scene / "scene.mp4")
    command = ("watch", video, "--size", "32", "--max-frames", "30", "--out", out, "--quiet", *ONE)
    assert here(*command) == (0, "", "")
    assert frames_in(out / "tracks.csv") == list(range(30))
    check_refused(here(*command), "--resume")
    assert here("watch", video, "--out", out, "--quiet", "--resume") == (0, "", "")
    assert frames_in(out / "tracks.csv") == list(range(60)), "it goes on after the last one"
    rows = read_table(out / "tracks.csv")
    assert float(rows[30]["time"]) == pytest.approx(30 / 25)
    assert json.loads((out / "config.json").read_text())["result"]["frames"] == 60
    applied = tmp_path / "applied"
    apply = ("apply", out, video, "--max-frames", "9", "--out", applied, "--quiet")
    assert here(*apply)[:2] == (0, "")  # nine noisy frames show too little to be sure
    assert len((applied / "tracks.csv").read_text().splitlines()) == 10


def test_lines_for_a_pipe(scene: Path, here: UlCommand) -> None:
    film = scene / "scene.mp4", "--size", "32", *ONE
    code, out, errors = here("watch", *film, "--max-frames", "5")
    assert (code, errors) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "sequence,frame,object,time,x,y,confidence,x_px,y_px"
    assert [line.split(",")[1] for line in lines[1:]] == ["0", "1", "2", "3", "4"]
    with start("watch", *film) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert [process.stdout.readline() for _ in range(3)] == [f"{line}\n" for line in lines[:3]]
        process.stdout.close()  # as `head -3` does
        assert process.stderr.read() == ""


def test_ctrl_c_keeps_what_was_learned(scene: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = start("watch", scene / "scene.mp4", "--out", out, "--lines", *ONE)
    assert process.stdout is not None
    for _ in range(10):
        process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert error.count("\n") == 1
    assert "stopped" in error
    seen = json.loads((out / "config.json").read_text())["result"]["frames"]
    assert len((out / "tracks.csv").read_text().splitlines()) == seen + 1
    assert (out / "checkpoint" / "state.json").exists()


def test_checkpoints_come_by_the_clock(scene: Path, tmp_path: Path) -> None:
    found = ul.watch(str(scene / "scene.mp4"), size=32, folder=tmp_path / "run", every=0.0)
    for _ in range(4):
        next(found)
    state = json.loads((tmp_path / "run" / "checkpoint" / "state.json").read_text())
    assert state["count"] == 3  # whoever asks for the fourth answer has used the third
    found.close()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere.mp4"], "does not exist"),
        (["/dev/video97"], "camera"),
        (["scene.mp4", "--resume"], "--out"),
        (["scene.mp4", "--resume", "--out", "nothing-here"], "not a run"),
        (["scene.mp4", "--device", "toaster"], "toaster"),
        (["scene.mp4", "--mu", "2"], "mu"),
        (["scene.mp4", "--size", "100000"], "sides from 8 to 8192, got '100000'"),
        (["scene.mp4", "--roi", "-5,0,64,48"], "X and Y of at least 0"),
    ],
)
def test_bad_input_is_one_line(
    scene: Path, arguments: list[str], says: str, here: UlCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(scene)
    check_refused(here("watch", *arguments), says)


def test_a_picture_folder_can_be_watched(scene: Path, tmp_path: Path) -> None:
    from PIL import Image

    clip = read_all(find_sources([str(scene / "scene.mp4")])[0])
    for t in range(6):
        Image.fromarray(clip.frames[t].permute(1, 2, 0).numpy()).save(tmp_path / f"{t}.png")
    assert [s.frame for s in ul.watch(str(tmp_path), size=32)] == list(range(6))


def test_live_view_redraws_in_place() -> None:
    import io

    screen = io.StringIO()
    view = View(screen, period=0.0)
    for t in range(3):
        view.show(WatchResult("hall", t, t / 25, ("y0", "y1"), (float(t), -1.0), -0.5))
        time.sleep(0.001)
    frames = screen.getvalue().split("\x1b[20F")
    assert len(frames) == 3
    assert all(len(frame.splitlines()) == 20 for frame in frames)
    assert all(frame.count("O") == 1 for frame in frames)
    assert "frame 2" in frames[2]


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a pseudo terminal")
def test_a_terminal_gets_the_view(scene: Path) -> None:
    master, slave = os.openpty()
    watch = "watch", scene / "scene.mp4", "--size", "32", "--max-frames", "5"
    with start(*watch, stdout=slave) as process:
        os.close(slave)
        shown = b""
        while True:
            try:
                part = os.read(master, 4096)
            except OSError:
                break
            shown += part
        os.close(master)
        assert process.wait(timeout=60) == 0
    assert b"frames/s" in shown
    assert b"\x1b[20F" in shown or shown.count(b"frame ") == 1


def test_rows_after_the_checkpoint_are_not_kept(scene: Path, tmp_path: Path) -> None:
    """A process that is killed has written more rows than it has saved steps."""
    video, out = str(scene / "scene.mp4"), tmp_path / "run"
    found = ul.watch(video, size=32, folder=out, every=1e9, max_frames=9, objects=1)
    for _ in range(5):
        next(found)
    state = json.loads((out / "checkpoint" / "state.json").read_text())
    assert state["count"] == 0  # saved at the start, so that it can go on from there
    found.close()
    with open(out / "tracks.csv", "a", encoding="utf-8") as file:
        file.write("scene,5,0.2,0.1")  # half a row
    list(ul.watch(video, size=32, folder=out, resume=True))
    assert frames_in(out / "tracks.csv") == list(range(5 + 9))


def test_force_leaves_nothing_of_the_run_before(scene: Path, tmp_path: Path) -> None:
    out, video = tmp_path / "run", str(scene / "scene.mp4")
    list(ul.watch(video, size=32, folder=out, max_frames=3))
    (out / "report.html").write_text("old")
    (out / "notes.txt").write_text("mine")
    list(ul.watch(video, size=32, folder=out, max_frames=3, force=True))
    assert not (out / "report.html").exists()
    assert (out / "notes.txt").read_text() == "mine"


def test_another_source_is_not_gone_on_with(scene: Path, tmp_path: Path) -> None:
    out, video = tmp_path / "run", str(scene / "scene.mp4")
    other = write_scene(tmp_path / "other", seed=1, frames=9)  # a file of the same name
    list(ul.watch(video, size=32, folder=out, max_frames=3))
    for wrong in (str(other), "http://127.0.0.1:9/hall"):
        with pytest.raises(ValueError, match=r"from another source \(scene\); give that one"):
            list(ul.watch(wrong, folder=out, resume=True))
    assert [s.frame for s in ul.watch(video, folder=out, resume=True)] == [3, 4, 5]


def test_a_folder_that_grows_is_gone_on_with(scene: Path, tmp_path: Path) -> None:
    from PIL import Image

    clip = read_all(find_sources([str(scene / "scene.mp4")])[0], Reading(max_frames=12))
    pictures, out = tmp_path / "in", tmp_path / "run"
    pictures.mkdir()
    for t, frame in enumerate(clip.frames):
        Image.fromarray(frame.permute(1, 2, 0).numpy()).save(pictures / f"{t}.png")
        if t == 6:
            seen = [s.frame for s in ul.watch(str(pictures), size=32, stride=2, folder=out)]
            assert seen == [0, 2, 4, 6]
    assert [s.frame for s in ul.watch(str(pictures), folder=out, resume=True)] == [8, 10]
    with pytest.raises(ValueError, match="no frame after 10; start again with --force"):
        list(ul.watch(str(pictures), folder=out, resume=True))


def test_resume_for_some_more_frames(scene: Path, tmp_path: Path, here: UlCommand) -> None:
    out = tmp_path / "run"
    watch = ("watch", scene / "scene.mp4", "--size", "32", "--out", out, "--quiet", *ONE)
    assert here(*watch, "--max-frames", "6") == (0, "", "")
    assert here(*watch, "--max-frames", "4", "--resume") == (0, "", "")
    assert [row["frame"] for row in read_table(out / "tracks.csv")] == [str(t) for t in range(10)]


def test_a_source_may_be_a_path_or_the_number_of_a_camera(tmp_path: Path) -> None:
    clip = Path(write_ball(tmp_path / "clip.mp4", 3))
    assert [found.frame for found in ul.watch(clip, size=16)] == [0, 1, 2]
    with pytest.raises(VideoError, match=r"no such camera|opencv"):
        next(ul.watch(99))
    for wrong in (None, 3.5, True):
        with pytest.raises(TypeError, match=r"expected a video file, .* or a Source, got"):
            next(ul.watch(wrong))  # type: ignore[arg-type]
