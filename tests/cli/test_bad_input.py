"""Inputs, folders and runs that cannot be used: one clear line, and no file is lost."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import ullayers.video.files.opening as opening
from tests.command import (
    QUICK,
    UlCommand,
    check_refused,
    ended,
    run_code,
    start,
)
from tests.films import (
    ball,
    column,
    contents,
    files_in,
    read_table,
    still,
    write_ball,
    write_film,
    write_pictures,
    write_raw,
    write_truncated,
)
from ullayers.run.folder import locked

BAD = {
    "nowhere.mp4": "does not exist",
    "empty.mp4": "cannot be read",
    "text.mp4": "text",
    "noise.mp4": "cannot be read",
    "headless.mp4": "complete",
    "unknown.mp4": "codec that cannot be decoded",
    "truncated.mp4": "broken after",
    "one.png": "give their folder",
    "single": "1 frame in all",
    "mixed": "give a size",
    "spoilt": "img3.png",
    "one.mp4": "1 frame in all",
    "two.mp4": "2 frames",
    "hollow": "empty folder",
    "still.mp4": "nothing moves",
    "*.avi": "nothing matches",
}


def make_bad(folder: Path) -> dict[str, tuple[str, str]]:
    """Write inputs that cannot be learned from; returns their paths and words of the messages."""
    folder.mkdir()
    for name in ("empty.mp4", "hollow/.keep"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    (folder / "text.mp4").write_text("This is no video.\n" * 100)
    (folder / "noise.mp4").write_bytes(np.random.default_rng(0).bytes(5000))
    whole = Path(write_ball(folder / "whole.mp4")).read_bytes()
    (folder / "headless.mp4").write_bytes(whole[: len(whole) // 2])
    unknown = whole.replace(b"avc1", b"zzzz").replace(b"avcC", b"zzzC")  # a codec of nobody
    (folder / "unknown.mp4").write_bytes(unknown)
    write_truncated(folder / "truncated.mp4")
    Image.fromarray(still(1)[0]).save(folder / "one.png")
    write_pictures(folder / "single", still(1))
    mixed = Path(write_pictures(folder / "mixed", ball(5)[0]))
    Image.fromarray(still(1, 20, 30)[0]).save(mixed / "img9.png")
    spoilt = Path(write_pictures(folder / "spoilt", ball(5)[0]))
    (spoilt / "img3.png").write_bytes(b"no picture")
    for name, count in (("one", 1), ("two", 2)):
        write_ball(folder / f"{name}.mp4", count)
    write_film(folder / "still.mp4", still(270, 24, 32))
    return {name: (str(folder / name), words) for name, words in BAD.items()}


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    return make_bad(tmp_path_factory.mktemp("bad") / "in")


@pytest.mark.parametrize("name", BAD)
def test_bad_inputs_are_refused_in_one_line(
    bad: dict[str, tuple[str, str]], place: Path, tmp_path: Path, here: UlCommand, name: str
) -> None:
    path, words = bad[name]
    check_refused(here("learn", path, "--out", tmp_path / "run", *QUICK), words)
    assert not list(tmp_path.iterdir())
    if name not in ("single", "one.mp4", "two.mp4", "still.mp4"):  # these have answers
        check_refused(here("apply", place / "run", path, "--out", tmp_path / "out"), words)
        assert files_in(tmp_path) == set()


def test_a_real_process_prints_nothing_but_that_line(
    bad: dict[str, tuple[str, str]], tmp_path: Path
) -> None:
    """Libraries write past Python's streams, so the commands share a real process."""
    names = ["nowhere.mp4", "truncated.mp4", "two.mp4", "still.mp4"]
    commands = [["learn", bad[name][0], "--out", f"{tmp_path}/{name}", "--quiet"] for name in names]
    code = (
        "import sys\nfrom ullayers.cli.main import main\n"
        f"sys.exit([main(command) for command in {commands!r}] != [2] * {len(names)})"
    )
    returned, out, errors = run_code(code)
    assert (returned, out) == (0, ""), errors
    for line, name in zip(errors.splitlines(keepends=True), names, strict=True):
        check_refused((2, "", line), bad[name][1])


def test_bad_ones_among_many_are_left_out_only_if_asked(
    bad: dict[str, tuple[str, str]], place: Path, tmp_path: Path, here: UlCommand
) -> None:
    some = [bad[name][0] for name in ("empty.mp4", "nowhere.mp4", "truncated.mp4", "spoilt")]
    inputs = [place / "ball.mp4", *some]
    for command, out in ((["learn", *inputs], "run"), (["apply", place / "run", *inputs], "out")):
        quick = QUICK if out == "run" else ("--quiet",)
        skip = "--skip-bad leaves such files out"
        check_refused(here(*command, "--out", tmp_path / out, *quick), "empty.mp4", skip)
        broken = [*command[: -len(some)], bad["truncated.mp4"][0]]
        check_refused(here(*broken, "--out", tmp_path / out, *quick), "broken after", "--skip-bad")
        shutil.rmtree(tmp_path / out, ignore_errors=True)
        code, said, errors = here(*command, "--out", tmp_path / out, *quick, "--skip-bad")
        assert (code, said) == (0, "")
        lines = errors.splitlines()
        assert len(lines) == 4
        for line, path in zip(sorted(lines), sorted(some), strict=True):
            what = "used in part" if "can be read" in line else "left out"
            assert line.startswith(f"ul {command[0]}: {what}: ")
            assert path in line
            assert "--skip-bad" not in line, "it was given"
        assert sum("used in part" in line for line in lines) == 1
        summary = json.loads((tmp_path / out / "summary.json").read_text())
        assert len(summary["bad"]) == len(some)
        rows = [row["sequence"] for row in read_table(tmp_path / out / "tracks.csv")]
        assert rows.count("ball") == 40
        assert set(rows) == {"ball", "truncated", "spoilt"}, "what can be read of them"


def test_a_bad_picture_does_not_take_others_with_it(tmp_path: Path, here: UlCommand) -> None:
    folder, run = Path(write_pictures(tmp_path / "in", ball(30)[0])), tmp_path / "run"
    for number in (0, 4):
        (folder / f"img{number}.png").write_bytes(b"no picture")
    code, said, errors = here("learn", folder, "--out", run, *QUICK, "--skip-bad")
    assert (code, said, errors.count("\n")) == (0, "", 1)
    assert f"left out: {folder}/img0.png" in errors
    assert "2 of 30 images" in errors
    kept = [number for number in range(30) if number not in (0, 4)]
    assert column(run / "tracks.csv", "frame")[:, 0].tolist() == kept
    assert np.median(np.abs(column(run / "tracks.csv", "x", "y") - ball(30)[1][kept])) < 0.05
    check_refused(here("learn", folder, "--out", tmp_path / "b", *QUICK), "img0.png", "remove it")


def test_names_that_are_not_text(tmp_path: Path, here: UlCommand) -> None:
    odd = os.fsdecode(b"b\xe9\xff")
    try:
        film = write_ball(tmp_path / "a.mp4")
        shutil.copy(film, tmp_path / f"{odd}.mp4")
    except OSError:
        pytest.skip("the file system refuses such names")
    assert here("learn", tmp_path / f"{odd}.mp4", "--out", tmp_path / "run", *QUICK) == (0, "", "")
    assert "b??.mp4" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert {row["sequence"] for row in read_table(tmp_path / "run" / "tracks.csv")} == {"b"}
    assert here("learn", "--resume", "--out", tmp_path / "run", "--quiet") == (0, "", "")
    refused = ended(start("learn", film, "--out", tmp_path / odd, *QUICK))
    check_refused(refused, "not UTF-8", "--out")


def test_headers_that_do_not_know_how_long_they_are(tmp_path: Path, here: UlCommand) -> None:
    film, run = write_raw(tmp_path / "a.h264", ball(45)[0]), tmp_path / "run"
    assert here("learn", film, "--out", run, *QUICK) == (0, "", "")
    config = json.loads((run / "config.json").read_text())
    assert (config["result"]["strides"], config["result"]["frames"]) == ({"a": 1}, 45)
    assert here("learn", film, "--out", run, *QUICK, "--stride", "3", "--force") == (0, "", "")
    assert json.loads((run / "config.json").read_text())["result"]["frames"] == 15, "as it was told"


def test_more_outputs_than_there_can_be(place: Path, tmp_path: Path, here: UlCommand) -> None:
    film, many = place / "ball.mp4", ("--task", "orient", "--outputs", "100000000")
    asked = ("learn", film, *many, "--out", tmp_path / "run", *QUICK)
    check_refused(here(*asked), "--outputs 100000000", "40 frames", "ask for fewer")
    check_refused(here("watch", film, *many), "--outputs 100000000", "ask for fewer")
    assert files_in(tmp_path) == set()


def test_training_that_diverges(place: Path, tmp_path: Path, here: UlCommand) -> None:
    film, out = place / "ball.mp4", tmp_path / "run"
    longer = write_ball(tmp_path / "longer.mp4", 160, 24, 32)  # watched, a step per eight frames
    for task in ("locate", "orient"):
        how = ("--task", task, "--out", out, "--size", "16", "--quiet", "--force", "--steps", "30")
        check_refused(here("learn", film, *how, "--lr", "1e5"), "diverged", "smaller --lr")
        watched = ("watch", longer, "--task", task, "--out", tmp_path / task, "--quiet")
        check_refused(here(*watched, "--lr", "1e5"), "diverged", "smaller --lr")
    check_refused(here("learn", film, "--lr", "1e9", *how), "below 1e6")
    code, said, errors = here("learn", film, *how, "--lr", "1000", "--restarts", "1")
    assert (code, said) == (0, "")
    assert "warning: training failed: " in errors


def test_noise_is_not_passed_off_as_something_found(tmp_path: Path, here: UlCommand) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (20, 48, 64, 3), dtype=np.uint8)
    film, run = write_film(tmp_path / "noise.mp4", noise), tmp_path / "run"
    learn = ("learn", film, "--out", run, *QUICK)
    for command in (learn, ("apply", run, film, "--out", tmp_path / "out", "--quiet")):
        code, said, errors = here(*command)
        assert (code, said, errors.count("\n")) == (0, "", 1)
        assert (
            "warning: the positions are unreliable: the confidence is below 0.5 in 100.0% of"
            in errors
        )


def test_nothing_but_bad_ones_is_an_error(
    bad: dict[str, tuple[str, str]], place: Path, tmp_path: Path, here: UlCommand
) -> None:
    some = [bad[name][0] for name in ("empty.mp4", "nowhere.mp4", "text.mp4")]
    check_refused(here("learn", *some, "--skip-bad", "--out", tmp_path / "run"))
    check_refused(here("learn", bad["two.mp4"][0], "--skip-bad", "--out", tmp_path / "run"))
    check_refused(here("apply", place / "run", *some, "--skip-bad", "--out", tmp_path / "out"))
    assert files_in(tmp_path) == set()


def test_names_that_look_like_options(
    tmp_path: Path, here: UlCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("-x.mp4").touch()
    check_refused(here("learn", "-x.mp4"), "unrecognized arguments: -x.mp4 (write ./-NAME for a")
    code, _, errors = here("learn", "-y.mp4")
    assert code == 2
    assert "./" not in errors


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
@pytest.mark.parametrize("inputs", ["/proc", "/proc/kmsg", "/dev"])
def test_files_of_the_system_are_not_opened(inputs: str, place: Path, tmp_path: Path) -> None:
    """Reading some of them never ends."""
    if not Path(inputs).exists():
        pytest.skip(f"needs {inputs}")
    for command in (["learn"], ["apply", str(place / "run")], ["watch"]):
        check_refused(ended(start(*command, inputs, "--out", tmp_path / "out")), inputs)
    assert not (tmp_path / "out").exists()


def test_a_pipe_among_images_is_not_opened(place: Path, tmp_path: Path) -> None:
    folder = tmp_path / "images"
    write_pictures(folder, ball(8)[0])
    os.mkfifo(folder / "zzz.png")
    for command in (["learn", *QUICK], ["apply", place / "run"]):
        code, _, errors = ended(start(*command, folder, "--out", tmp_path / "out"))
        assert code == 2
        assert "zzz.png: is not a file but a pipe or a device" in errors


def test_advice_that_fits(place: Path, tmp_path: Path, here: UlCommand) -> None:
    film, run = place / "ball.mp4", tmp_path / "run"
    os.mkfifo(tmp_path / "pipe")
    first, *others = (Image.fromarray(frame) for frame in ball(5)[0])
    for suffix in (".webp", ".tif"):
        first.save(tmp_path / f"a{suffix}", save_all=True, append_images=others)
    for command in (["learn"], ["apply", place / "run"], ["watch"]):
        check_refused(here(*command, tmp_path / "pipe"), "is not a file", "file")
        check_refused(here(*command, tmp_path / "a.webp"), "convert an animation to mp4")
        check_refused(here(*command, tmp_path / "a.tif"), "convert a stack to mp4")
    for options, told in (
        ("--stride 30", "with --stride 30; use a smaller --stride"),
        ("--max-frames 2", "with --max-frames 2; use a larger --max-frames"),
        ("--stride 5 --max-frames 9", "use a smaller --stride or a larger --max-frames"),
    ):
        check_refused(here("learn", film, "--out", run, *QUICK, *options.split()), told)
    for command in (["learn", "--out", film, "--resume"], ["apply", film, film]):
        check_refused(here(*command), "is a file; give")
    check_refused(here("watch", "http://127.0.0.1:9/a.mkv"), "connection refused", "address right")
    check_refused(here("learn", "rtsp://127.0.0.1:9/a", "--out", run), "is a live stream", "watch")
    assert not run.exists()


def test_a_sender_that_does_not_answer(here: UlCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "TIMEOUT", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        said = here("watch", f"http://me:secret@127.0.0.1:{server.getsockname()[1]}/hall")
    check_refused(said, "no answer within 0.5 seconds", "is the address right")
    assert "secret" not in said[2]


def test_two_demos_do_not_mix(tmp_path: Path, here: UlCommand) -> None:
    for taken in ("demo", "demo/run"):
        with locked(tmp_path / taken):
            check_refused(here("demo", "--out", tmp_path / "demo"), "another process is writing")
    assert files_in(tmp_path) == set()


def test_pictures_that_change_size_with_a_size(
    bad: dict[str, tuple[str, str]], tmp_path: Path, here: UlCommand
) -> None:
    out = tmp_path / "run"
    assert here("learn", bad["mixed"][0], "--out", out, *QUICK, "--size", "12x16")[0] == 0
    assert len(read_table(out / "tracks.csv")) == 6


def test_out_must_be_free(place: Path, tmp_path: Path, here: UlCommand) -> None:
    film, before = place / "ball.mp4", contents(place)
    check_refused(here("learn", film, "--out", place / "run", *QUICK), "--resume", "--force")
    check_refused(here("learn", film, "--out", film, *QUICK), "is a file")
    check_refused(here("learn", film, "--out", film / "run", *QUICK), "is a file")
    check_refused(here("learn", film, "--out", place, *QUICK), "is not empty", "--force")
    check_refused(here("apply", place / "run", film, "--out", place / "run"), "is not empty")
    check_refused(here("apply", place / "run", film, "--out", film), "is a file")
    assert contents(place) == before


def test_force_replaces_only_what_is_ours(place: Path, tmp_path: Path, here: UlCommand) -> None:
    run = tmp_path / "run"
    shutil.copytree(place / "run", run)
    (run / "notes.txt").write_text("mine")
    before = contents(run)
    nowhere, two = tmp_path / "nowhere.mp4", write_ball(tmp_path / "two.mp4", 2)
    for bad in (nowhere, two):
        check_refused(here("learn", bad, "--out", run, *QUICK, "--force"))
        assert contents(run) == before, "the old run stays if the new one cannot be"
    asked = ("--task", "orient", "--out", run, *QUICK, "--force")
    assert here("learn", place / "ball.mp4", *asked)[0] == 0
    assert (run / "notes.txt").read_text() == "mine"
    assert (run / "codes.csv").exists()
    assert not (run / "tracks.csv").exists()


@pytest.mark.parametrize("name", ["tracks.csv", "report.html", "masks/a/000001.png"])
def test_force_spares_files_of_the_same_name_that_are_not_ours(
    place: Path, tmp_path: Path, here: UlCommand, name: str
) -> None:
    film, mine = place / "ball.mp4", tmp_path / "mine" / name
    mine.parent.mkdir(parents=True)
    mine.write_text("x,y\n0.5,0.5\n")
    for command in (["learn", film, *QUICK], ["apply", place / "run", film], ["watch", film]):
        said = here(*command, "--out", tmp_path / "mine", "--force")
        check_refused(said, name.split("/")[0], "not belong to a run", "give another folder")
    (mine.parent / "scene.mp4").write_text("mine")
    check_refused(here("demo", "--out", mine.parent, "--force"), "scene.mp4", "not belong to a run")
    assert mine.read_text() == "x,y\n0.5,0.5\n"


def test_a_run_in_the_folder_of_apply_replaces_its_results(
    place: Path, tmp_path: Path, here: UlCommand
) -> None:
    film, out = place / "ball.mp4", tmp_path / "out"
    applied = ("--max-frames", "20", "--overlay", "--out", out, "--quiet")
    assert here("apply", place / "run", film, *applied) == (0, "", "")
    before = contents(out)
    assert here("learn", film, "--out", out, *QUICK, "--quiet", "--force")[0] == 0
    assert len(read_table(out / "tracks.csv")) > 20
    assert contents(out)["overlay.mp4"] != before["overlay.mp4"]


def test_force_spares_a_report_beside_results_of_apply(
    place: Path, tmp_path: Path, here: UlCommand
) -> None:
    film, out = place / "ball.mp4", tmp_path / "out"
    assert here("apply", place / "run", film, "--out", out, "--quiet") == (0, "", "")
    (out / "report.html").write_text("mine")
    check_refused(
        here("learn", film, "--out", out, *QUICK, "--force"), "report.html", "not belong to a run"
    )
    assert (out / "report.html").read_text() == "mine"


@pytest.mark.parametrize("config", ['{"learn": "piano"}', '["learn"]', '"learn"'])
def test_force_spares_a_config_that_is_not_of_a_run(
    config: str, place: Path, tmp_path: Path, here: UlCommand
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "config.json").write_text(config)
    said = here("learn", place / "ball.mp4", "--out", out, *QUICK, "--force")
    check_refused(said, "config.json", "not belong to a run")
    assert (out / "config.json").read_text() == config


def test_a_file_with_the_name_of_the_lock_is_kept(
    place: Path, tmp_path: Path, here: UlCommand
) -> None:
    (tmp_path / ".lock").write_text("mine")
    said = here("learn", place / "ball.mp4", "--out", tmp_path, *QUICK)
    check_refused(said, "rename the file")
    assert (tmp_path / ".lock").read_text() == "mine"


def test_force_replaces_all_that_apply_has_written(
    place: Path, tmp_path: Path, here: UlCommand
) -> None:
    film, out = place / "ball.mp4", tmp_path / "out"
    all_of_it = ("--overlay", "--masks", "--out", out, "--quiet")
    assert here("apply", place / "run", film, *all_of_it)[0] == 0
    (out / "notes.txt").write_text("mine")
    asked = ("--out", out, "--quiet", "--force")
    assert here("apply", place / "codes", film, *asked) == (0, "", "")
    assert files_in(out) == {"codes.csv", "summary.json", "notes.txt"}


def test_a_folder_that_cannot_be_written_to(
    place: Path, tmp_path: Path, mount: Callable[[str], bool], here: UlCommand
) -> None:
    closed = tmp_path / "disk"
    closed.chmod(0o555)
    if os.access(closed, os.W_OK) and not mount("ro"):
        pytest.skip("needs the right to mount a read-only disk")
    for out in (closed, closed / "run", closed / "deep" / "run"):
        said = here("learn", place / "ball.mp4", "--out", out, *QUICK)
        check_refused(said, "cannot be written to", "--out")
    said = here("apply", place / "run", place / "ball.mp4", "--out", closed / "out")
    check_refused(said, "cannot be written to", "--out")


def test_damaged_and_unfinished_runs(place: Path, tmp_path: Path, here: UlCommand) -> None:
    film, run = place / "ball.mp4", tmp_path / "run"
    check_refused(here("apply", tmp_path / "no", film, "--out", tmp_path / "a"), "does not exist")
    check_refused(here("learn", "--resume", "--out", tmp_path / "no"), "is not a run")
    shutil.copytree(place / "run", run)
    whole = contents(run)
    shutil.copy(place / "codes" / "model.safetensors", run)
    check_refused(here("apply", run, film, "--out", tmp_path / "a"), "does not belong", "learn")
    (run / "model.safetensors").write_bytes(whole["model.safetensors"][:500])
    for command in (["apply", run, film], ["learn", "--resume"]):
        out = tmp_path / "a" if command[0] == "apply" else run
        check_refused(here(*command, "--out", out), "damaged or missing", "--force")
    config = json.loads(whole["config.json"])
    (run / "config.json").write_text(json.dumps({**config, "result": {}}))
    check_refused(here("apply", run, film, "--out", tmp_path / "a"), "--resume")
    (run / "config.json").write_bytes(whole["config.json"][:100])
    check_refused(here("apply", run, film, "--out", tmp_path / "a"), "config.json is damaged")
    assert not (tmp_path / "a").exists()
    assert here("learn", film, "--out", run, *QUICK, "--force")[0] == 0, "as it was told to"


def test_codes_have_no_masks(place: Path, tmp_path: Path, here: UlCommand) -> None:
    film, out = place / "ball.mp4", tmp_path / "out"
    check_refused(here("apply", place / "codes", film, "--out", out, "--masks"), "--masks")
    check_refused(here("learn", film, "--task", "orient", "--out", out, "--masks"), "--masks")
    check_refused(here("learn", film, "--outputs", "3", "--out", out), "--outputs", "x and y")
