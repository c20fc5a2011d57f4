"""The `ul` command as a user runs it: results of videos of all kinds."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.command import (
    QUICK,
    WRITTEN,
    UlCommand,
    check_refused,
    unfinished,
)
from tests.films import (
    ball,
    column,
    files_in,
    read_table,
    write_ball,
    write_pictures,
    write_timed,
)
from tests.pages import check_self_contained
from tests.pages import read as read_page
from ullayers.cli.main import main
from ullayers.tracks.table import CROP
from ullayers.video.sources import find_sources, read_all


@pytest.mark.parametrize(
    "command",
    [[], ["demo"], ["learn"], ["apply"], ["watch"], ["export"]],
    ids=str,
)
def test_help_needs_no_torch(command: list[str]) -> None:
    code = (
        "import sys\nfrom ullayers.cli.main import main\n"
        f"try: main({[*command, '--help']!r})\n"
        "except SystemExit as end: assert not end.code\n"
        "print('loaded:', *({'torch', 'numpy', 'av', 'PIL', 'matplotlib'} & set(sys.modules)))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.startswith(f"usage: {' '.join(['ul', *command])} ")
    assert shown.stdout.endswith("loaded:\n")


def test_names_that_the_output_cannot_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    film = write_ball(tmp_path / "\N{LATIN SMALL LETTER E WITH ACUTE}.mp4", 2)
    printed = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, encoding="ascii"))
    assert main(["watch", film, "--objects", "1", "--size", "16"]) == 0
    assert printed.getvalue().splitlines()[1].startswith(rb"\xe9,0,")


def test_version_and_mistakes_on_the_command_line(here: UlCommand) -> None:
    code, out, _ = here("--version")
    assert code == 0
    assert out.startswith("ullayers ")
    check_refused(here(), "ul --help")
    check_refused(here("dance"), "dance", "--help")
    check_refused(here("learn", "--task", "dance"), "locate")
    check_refused(here("learn", "a.mp4", "--size", "0"), "64 or 48x64")
    check_refused(here("learn", "a.mp4", "--steps", "none"), "whole number")
    check_refused(here("learn"), "give a video file, a folder or a pattern")
    check_refused(here("apply", "run"), "INPUT")
    for empty in (["learn", ""], ["apply", "run", ""], ["watch", ""], ["learn", "a", "--out", ""]):
        check_refused(here(*empty), "expected a name, got an empty one", "variable")
    check_refused(here("learn", "a.mp4", "--stride", "9" * 30), "--stride", "at most 1e9")
    check_refused(here("learn", "a.mp4", "--device", "abacus"), "abacus", "--device cpu")
    check_refused(here("learn", "a.mp4", "--mu", "2"), "eps <= mu < 1")


def test_a_run_has_everything(place: Path) -> None:
    run = place / "run"
    names = files_in(run)
    events = {name for name in names if name.startswith("tensorboard/")}
    assert names - events == WRITTEN
    assert len(events) == 1
    config = json.loads((run / "config.json").read_text())
    assert config["learn"]["steps"] == 2
    assert config["reading"]["size"] == [12, 16]
    metrics = (run / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in metrics] == [1, 2] * 2
    rows = read_table(run / "tracks.csv")
    columns = ["sequence", "frame", "object", "time", "x", "y", "confidence", "x_px", "y_px"]
    assert list(rows[0])[:9] == columns
    assert [(row["sequence"], row["frame"]) for row in rows] == [
        ("ball", f"{i}") for i in range(40)
    ]
    assert np.median(np.abs(column(run / "tracks.csv", "x", "y") - ball(40)[1])) < 0.05
    assert len(read_all(find_sources([str(run / "overlay.mp4")])[0]).index) == 40
    page = read_page(run / "report.html")
    check_self_contained(page)
    assert len(page.charts) == 8
    assert "</html>" in page.text


def test_settings_are_in_words(place: Path) -> None:
    for run, words in (("run", "x and y"), ("codes", "2")):
        text = (place / run / "report.html").read_text()
        table = dict(re.findall(r"<tr><th>([^<]*)</th><td>([^<]*)</td></tr>", text))
        assert (table["size"], table["colour"], table["frames"]) == ("16 x 12 pixels", "yes", "all")
        assert (table["outputs"], table["local"], table["tolerance"]) == (words, "off", "off")
        assert table["long mean"] == "stream" or table["long mean"].endswith(", chosen by J")
        assert not {"None", "True", "False"} & set(table.values())


def test_codes_have_a_table_of_their_own(place: Path) -> None:
    rows = read_table(place / "codes" / "codes.csv")
    # The ball covers little of the frame, so a square around it is used.
    assert list(rows[0]) == ["sequence", "frame", "time", "y0", "y1", *CROP]
    assert len(rows) == 40
    assert not (place / "codes" / "tracks.csv").exists()
    values = column(place / "codes" / "codes.csv", "y0", "y1")
    assert np.allclose(values.std(0), 1, atol=0.1)


def test_features_of_any_number(place: Path, tmp_path: Path, here: UlCommand) -> None:
    out = tmp_path / "run"
    asked = ("--task", "features", "--outputs", "5", "--out", out, *QUICK)
    assert here("learn", place / "ball.mp4", *asked) == (0, "", "")
    assert list(read_table(out / "codes.csv")[0])[3:] == [f"y{i}" for i in range(5)]


def test_apply_to_other_videos(place: Path, tmp_path: Path, here: UlCommand) -> None:
    for number, shape in enumerate([(48, 64), (96, 54), (30, 40)]):
        write_ball(tmp_path / f"film{number}.mp4", 10 + number, *shape)
    out = tmp_path / "out"
    asked = ("apply", place / "run", tmp_path, "--out", out, "--overlay", "--masks")
    code, said, errors = here(*asked)
    assert code == 0
    assert all(line.startswith("applying: ") for line in errors.splitlines()), "on a slow machine"
    assert "tracks.csv" in said
    rows = [row["sequence"] for row in read_table(out / "tracks.csv")]
    assert rows == ["film0"] * 10 + ["film1"] * 11 + ["film2"] * 12
    assert len(read_all(find_sources([str(out / "overlay.mp4")])[0]).index) == 33
    assert len(list((out / "masks" / "film1").iterdir())) == 11
    with Image.open(out / "masks" / "film1" / "000003.png") as mask:
        assert mask.size == (54, 96)
    assert not unfinished(out)


def test_apply_gives_what_learn_gave(place: Path, tmp_path: Path, here: UlCommand) -> None:
    for run, table in (("run", "tracks.csv"), ("codes", "codes.csv")):
        out = tmp_path / run
        assert here("apply", place / run, place / "ball.mp4", "--out", out, "--quiet")[0] == 0
        assert (out / table).read_bytes() == (place / run / table).read_bytes()
        more = {"behaviour.csv", "outlines.sqlite"} if run == "run" else set()
        assert files_in(out) == {table, "summary.json"} | more


SHAPES: dict[str, tuple[tuple[int, int], list[str], list[int]]] = {
    "tiny": ((16, 16), ["--size", "64"], [16, 16]),
    "vertical": ((96, 54), ["--size", "32"], [32, 18]),
    "odd": ((37, 51), ["--size", "24", "--grey"], [18, 24]),
    "given": ((48, 64), ["--size", "18x20"], [18, 20]),
    "few": ((48, 64), ["--size", "16", "--max-frames", "9"], [12, 16]),
    "every third": ((48, 64), ["--size", "16", "--stride", "3", "--max-frames", "10"], [12, 16]),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_videos_of_all_shapes(tmp_path: Path, here: UlCommand, shape: str) -> None:
    size, options, small = SHAPES[shape]
    film, run = write_ball(tmp_path / "a.mp4", 20, *size), tmp_path / "run"
    quick = ("--steps", "2", "--restarts", "1", "--quiet", "--out", run)
    code, said, errors = here("learn", film, *options, *quick)
    assert (code, said) == (0, "")
    # In films of a few pixels, a result may be unsure.
    assert errors == "" or errors.startswith("ul learn: warning: the positions are unreliable")
    config = json.loads((run / "config.json").read_text())
    assert config["reading"]["size"] == small
    count = {"few": 9, "every third": 10}.get(shape, 20)
    assert column(run / "tracks.csv", "frame")[:, 0].tolist() == list(range(count))
    assert config["result"]["frames"] == {"every third": 4}.get(shape, count)
    clip = read_all(find_sources([str(run / "overlay.mp4")])[0])
    assert len(clip.index) == count
    height, width = clip.frames.shape[2:]
    assert height / width == pytest.approx(size[0] / size[1], rel=0.1)


def test_many_sources_of_all_sizes_with_odd_names(tmp_path: Path, here: UlCommand) -> None:
    videos, when = tmp_path / "videos", [0, 40, 50, 400, 410, 1000, 3000, 3001]
    videos.mkdir()
    write_ball(videos / 'a, "b".mp4', 9, 48, 64)
    write_ball(videos / "Ünï 日本.mp4", 9, 64, 36)
    write_timed(videos / "uneven.mp4", ball(8)[0], when)
    write_pictures(tmp_path / "pictures", ball(7, 20, 30)[0])
    inputs = (f"{videos}/*.mp4", tmp_path / "pictures")
    assert here("learn", *inputs, "--out", tmp_path / "run", *QUICK, "--masks") == (0, "", "")
    rows = read_table(tmp_path / "run" / "tracks.csv")
    names = [row["sequence"] for row in rows]
    assert sorted(map(names.count, set(names))) == [7, 8, 9, 9]
    uneven = [float(row["time"]) for row in rows if row["sequence"] == "uneven"]
    assert np.allclose(uneven, np.array(when) / 1000, atol=1e-3)
    masks = {path.name for path in (tmp_path / "run" / "masks").iterdir()}
    assert masks == set(names)
