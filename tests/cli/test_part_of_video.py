"""--start, --end and --roi on the command line, and --device auto."""

from __future__ import annotations

import json
from argparse import ArgumentTypeError
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.command import QUICK, UlCommand, check_refused, ended, start
from tests.films import ball, column, read_table, write_ball, write_pictures
from ullayers.cli.main import main
from ullayers.cli.options import clock_time, region
from ullayers.learning.config import Config, choose_device
from ullayers.run.plan import load_plan
from ullayers.run.watch import watch
from ullayers.video.sources import Source, VideoError

PART = ("--start", "0.4", "--end", "0:01.2", "--roi", "0,0,48,48")


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_ball(tmp_path_factory.mktemp("film") / "ball.mp4", 50, 48, 64)


@pytest.fixture(scope="module")
def part(tmp_path_factory: pytest.TempPathFactory, film: str) -> Path:
    """A run on a part of the film."""
    folder = tmp_path_factory.mktemp("part") / "run"
    assert main(["learn", film, "--out", str(folder), *PART, *QUICK]) == 0
    return folder


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("12.5", 12.5),
        ("0", 0.0),
        (".5", 0.5),
        ("1:30", 90.0),
        ("90:00", 5400.0),
        ("01:02:03", 3723.0),
        ("1:00:02.25", 3602.25),
    ],
)
def test_times(text: str, seconds: float) -> None:
    assert clock_time(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "-1", "1:60", "1:60:00", "1:2:3:4", "1:", ":30", "nan", "inf", "1e3", "1,5", "x"]
)
def test_times_that_are_none(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="expected seconds, MM:SS or HH:MM:SS, got"):
        clock_time(text)


def test_regions() -> None:
    assert region("1,2,30,40") == (1, 2, 30, 40)
    assert region(" 1, 2, 30, 40") == (1, 2, 30, 40)
    assert region("a,b.png") == "a,b.png"


def test_learning_from_a_part(part: Path) -> None:
    rows = column(part / "tracks.csv", "frame", "time", "x", "y", "x_px")
    assert rows[:, 0].tolist() == list(range(10, 30))
    np.testing.assert_allclose(rows[:, 1], rows[:, 0] / 25, atol=1e-6)
    assert rows[:, 2].max() <= 0.75, "x of the whole frame"
    np.testing.assert_allclose(rows[:, 4], 64 * rows[:, 2], atol=0.01)
    reading = json.loads((part / "config.json").read_text())["reading"]
    assert (reading["start"], reading["end"], reading["roi"]) == (0.4, 1.2, [0, 0, 48, 48])


def test_apply_uses_the_region_of_the_run_and_the_whole_time(
    part: Path, film: str, tmp_path: Path, here: UlCommand
) -> None:
    code, _, errors = here("apply", part, film, "--out", tmp_path / "own", "--masks", "--quiet")
    assert code == 0, errors
    rows = column(tmp_path / "own" / "tracks.csv", "frame", "x")
    assert rows[:, 0].tolist() == list(range(50))
    masks = [np.asarray(Image.open(file)) for file in (tmp_path / "own" / "masks").rglob("*.png")]
    assert len(masks) == 50
    assert {mask.shape for mask in masks} == {(48, 64)}
    assert max(int(mask[:, 48:].max()) for mask in masks) == 0
    other = ("--roi", "16,0,48,48", "--start", "1", "--quiet")
    assert here("apply", part, film, "--out", tmp_path / "other", *other)[0] == 0
    rows = column(tmp_path / "other" / "tracks.csv", "frame", "x")
    assert rows[:, 0].tolist() == list(range(25, 50))
    assert rows[:, 1].min() >= 0.25


def test_apply_refuses_frames_that_are_too_small(
    part: Path, tmp_path: Path, here: UlCommand
) -> None:
    small = write_ball(tmp_path / "small.mp4", 9, 32, 40)
    result = here("apply", part, small, "--out", tmp_path / "out")
    check_refused(result, "small.mp4: --roi 0,0,48,48 does not fit into its frames of 40 x 32")
    assert not (tmp_path / "out").exists()
    large = write_ball(tmp_path / "large.mp4", 9, 96, 128)
    both = (small, large, "--out", tmp_path / "both")
    check_refused(here("apply", part, *both), "small.mp4", "--skip-bad leaves such files out")
    code, _, errors = here("apply", part, large, small, *both[2:], "--skip-bad", "--quiet")
    assert code == 0
    assert "left out" in errors
    assert {row["sequence"] for row in read_table(tmp_path / "both" / "tracks.csv")} == {"large"}


def test_a_mask_picture(film: str, tmp_path: Path, here: UlCommand) -> None:
    """It is kept in the run, which can be used without the picture, at another size."""
    picture = np.zeros((96, 128), np.uint8)
    picture[:, :96] = 255
    Image.fromarray(picture).save(tmp_path / "arena.png")
    run = tmp_path / "run"
    roi = ("--roi", tmp_path / "arena.png")
    assert here("learn", film, "--out", run, *roi, *QUICK)[0] == 0
    (run / "report.html").unlink()
    other = Image.new("L", (64, 48), "white")
    other.save(tmp_path / "other.png")
    again = ("learn", "--resume", "--out", run, "--quiet")
    assert here(*again, *roi)[0] == 0
    refused = here(*again, "--roi", tmp_path / "other.png")
    check_refused(refused, "this run has --roi a mask of 128 x 96 pixels; leave --roi out")
    (tmp_path / "arena.png").unlink()
    assert here("apply", run, film, "--out", tmp_path / "out", "--quiet")[0] == 0
    assert column(tmp_path / "out" / "tracks.csv", "x").max() <= 0.75
    wide = write_ball(tmp_path / "wide.mp4", 9, 48, 96)
    refused = here("apply", run, wide, "--out", tmp_path / "wide", "--quiet")
    check_refused(refused, "wide.mp4: --roi has 128 x 96 pixels and its frames 96 x 48")


def test_watching_a_part(film: str, tmp_path: Path, here: UlCommand) -> None:
    code, out, errors = here("watch", film, *PART, "--objects", "1", "--out", tmp_path / "run")
    assert code == 0, errors
    lines = [line.split(",") for line in out.splitlines()[1:]]
    assert [int(line[1]) for line in lines] == list(range(10, 30))
    assert max(float(line[4]) for line in lines) <= 0.75
    assert (tmp_path / "run" / "tracks.csv").read_text() == out
    assert load_plan(tmp_path / "run").reading.end == 1.2


def test_watching_on_stays_in_the_range(film: str, tmp_path: Path, here: UlCommand) -> None:
    command = ("watch", film, "--stride", "3", "--objects", "1", "--out", tmp_path / "run")
    assert here(*command, *PART, "--max-frames", "6")[0] == 0
    assert column(tmp_path / "run" / "tracks.csv", "frame").ravel().tolist() == [10, 13]
    assert here(*command, "--resume", "--max-frames", "99")[0] == 0
    frames = column(tmp_path / "run" / "tracks.csv", "frame").ravel().tolist()
    assert frames == list(range(10, 30, 3))
    check_refused(here(*command, "--resume", "--lines"), "has no frame after 28")
    check_refused(
        here(*command, "--resume", "--start", "0.2"), "this run has --start 0.4; leave --start out"
    )


def test_pictures_of_a_range(tmp_path: Path, here: UlCommand) -> None:
    pictures = write_pictures(tmp_path / "in", ball(50, 48, 64)[0])
    assert here("learn", pictures, "--out", tmp_path / "run", *PART, *QUICK)[0] == 0
    frames = column(tmp_path / "run" / "tracks.csv", "frame").ravel().tolist()
    assert frames == list(range(10, 30))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--start", "9"), "ball.mp4: has no frame from 9 s; its last frame is at 1.96 s"),
        (("--start", "0.41", "--end", "0.42"), "has no frame from 0.41 s to 0.42 s"),
        (("--start", "1", "--end", "1"), "--end 1 is not after --start 1"),
        (("--end", "0"), "--end 0 is not after --start 0"),
        (("--start", "1:75"), "expected seconds, MM:SS or HH:MM:SS, got '1:75'"),
        (("--end", "0.05"), "fewer than three consecutive frames are left with --end 0.05"),
        (("--roi", "0,0,99,48"), "ball.mp4: --roi 0,0,99,48 does not fit into its frames of 64"),
        (("--roi", "0,0,5,48"), "--roi 0,0,5,48: expected X,Y,W,H"),
        (("--roi", "0,0,48"), "--roi 0,0,48: is neither X,Y,W,H"),
    ],
)
def test_refusals(
    film: str, tmp_path: Path, here: UlCommand, options: tuple[str, ...], words: str
) -> None:
    check_refused(here("learn", film, "--out", tmp_path / "run", *options, *QUICK), words)
    assert not (tmp_path / "run").exists()


def test_an_empty_range_in_a_process_of_its_own(film: str, part: Path, tmp_path: Path) -> None:
    process = start("apply", part, film, "--start", "1:00", "--out", tmp_path / "out")
    check_refused(ended(process), "has no frame from 60 s")


def test_a_camera_has_no_start() -> None:
    with pytest.raises(VideoError, match="--start is for files and folders"):
        next(watch(Source("door", "rtsp://door.local/hall", "live"), start=1.0))


def test_device_auto(part: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Resolved where something is trained or loaded, and stored as what it was."""
    stored = json.loads((part / "config.json").read_text())["learn"]["device"]
    assert stored == ("cuda" if torch.cuda.is_available() else "cpu")
    assert Config().device == "auto"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device("auto") == "cuda"
    assert Config().resolved(many=False).device == "cuda"
    assert Config(device="cpu").resolved(many=False).device == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == "cpu"
    assert Config().resolved(many=False).device == "cpu"
    assert load_plan(part, "auto").config.device == "cpu"
    assert load_plan(part).config.device == stored


def test_a_run_of_another_machine_is_applied_on_this_one(
    part: Path, film: str, tmp_path: Path, here: UlCommand
) -> None:
    if torch.cuda.is_available():
        pytest.skip("cuda is available here")
    run = tmp_path / "run"
    run.mkdir()
    content = json.loads((part / "config.json").read_text())
    content["learn"]["device"] = "cuda"
    (run / "config.json").write_text(json.dumps(content))
    (run / "model.safetensors").write_bytes((part / "model.safetensors").read_bytes())
    assert here("apply", run, film, "--out", tmp_path / "out", "--quiet")[0] == 0
    refused = here("apply", run, film, "--out", tmp_path / "no", "--device", "cuda")
    check_refused(refused, "device 'cuda' cannot be used here; try --device cpu")
