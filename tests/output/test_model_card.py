"""README.md of a run: valid for the Hugging Face Hub, true, and safe whatever files are called."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from markdown_it import MarkdownIt

import ullayers as ul
from tests.command import QUICK, UlCommand, check_refused
from tests.films import write_ball
from ullayers.errors import Error, RunError
from ullayers.learning.networks import Encoder, Locator
from ullayers.run.folder import CARD_START
from ullayers.run.plan import load_plan
from ullayers.run.reports import write_card, write_corrected_report
from ullayers.run.summary import Exported
from ullayers.tracks.table import TRACK, Answer
from ullayers.tracks.tracked_video import read_videos
from ullayers.video.sources import Info, open_live

ODD = "a|b_*c*_<img src=x>`d`[e](http://f)&amp; #\n---\nlicense: g \\ www.h.com"


def test_the_hub_can_read_it(place: Path) -> None:
    hub = pytest.importorskip("huggingface_hub", reason="needs the package huggingface_hub")
    for name, task, kind in (
        ("run", "locate", "image-segmentation"),
        ("codes", "orient", "image-feature-extraction"),
    ):
        card = hub.ModelCard.load(place / name / "README.md")
        assert card.data.library_name == "ullayers"
        assert card.data.pipeline_tag == kind
        assert {"unsupervised-learning", "video", task} <= set(card.data.tags)
        assert card.data.license is None


def test_figures_are_those_of_the_run(place: Path) -> None:
    text = (place / "run" / "README.md").read_text()
    assert text.encode().startswith(CARD_START)
    summary = json.loads((place / "run" / "summary.json").read_text())
    result = json.loads((place / "run" / "config.json").read_text())["result"]
    assert "\n# Object location: ball\n" in text
    assert "| Task | locate |" in text
    assert "| Frames | 40 |" in text
    assert f"| J of the evaluation, lower is better | {result['objective']:.2f} |" in text
    assert f"{summary['found']:.1%} of the frames" in text
    assert f"| Trusted | {'yes' if summary['trusted'] else 'no'} |" in text
    assert all(f"- {reason}" in text for reason in summary["reasons"])
    assert "| ball | 40 | 40 x 30 | 25 |" in text
    assert str(place) not in text, "it names files, not where they are"
    assert "Object found" not in (place / "codes" / "README.md").read_text()


def test_the_code_in_it_runs(place: Path) -> None:
    for name in ("run", "codes"):
        text = (place / name / "README.md").read_text()
        code = text.split("```python\n")[1].split("```")[0].replace("RUN", str(place / name))
        shape = re.search(r"\(time, (\d+), (\d+), (\d+)\)", code)
        assert shape
        frames = torch.rand(4, *map(int, shape.groups()))
        names: dict[str, object] = {"frames": frames, "foreground": frames - 0.5}
        exec(code, names)
        assert isinstance(names["net"], (Locator, Encoder))
        assert ("square crops" in code) == load_plan(place / name).reading.follow


def test_odd_names_are_shown_as_they_are(place: Path, tmp_path: Path) -> None:
    run = load_plan(place / "run", "cpu")
    run.folder = tmp_path
    assert run.result is not None
    run.result.sources[:] = [ODD]
    answer = Answer(ODD, np.arange(2), np.arange(2.0), TRACK, np.full((2, 3), 0.9))
    done = Exported()
    done.add(answer, {}, Info(64, 48, None, 2))
    write_card(run, done)
    body = (tmp_path / "README.md").read_text().split("---\n", 2)[2]
    html = MarkdownIt("commonmark").enable("table").render(body)
    assert html.count("<h1>") == 1
    assert "<img" not in html
    assert "<a " not in html
    assert "<em>" not in html
    shown = " ".join(ODD.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    assert f"<td>{shown}</td>" in html
    assert "<td>unknown</td>" in html, "the frame rate"


def test_many_sequences_are_not_all_listed(place: Path, tmp_path: Path) -> None:
    run = load_plan(place / "codes", "cpu")
    run.folder = tmp_path
    done = Exported()
    for i in range(25):
        answer = Answer(f"film{i}", np.arange(2), np.arange(2.0), ("y0", "y1"), np.ones((2, 2)))
        done.add(answer, {}, Info(64, 48, 25.0, 2))
    write_card(run, done)
    text = (tmp_path / "README.md").read_text()
    assert "film19" in text
    assert "film20" not in text
    assert "5 more are in summary.json" in text


def test_a_readme_of_the_user_is_never_touched(
    place: Path, tmp_path: Path, here: UlCommand
) -> None:
    film = write_ball(tmp_path / "ball.mp4")
    run, out = tmp_path / "run", tmp_path / "out"
    shutil.copytree(place / "run", run)
    (run / "README.md").write_text("mine")
    assert here("learn", "--resume", "--out", run, "--quiet") == (0, "", "")
    check_refused(
        here("learn", film, "--out", run, *QUICK, "--force"), "README.md", "not belong to a run"
    )
    out.mkdir()
    (out / "README.md").write_text("mine")
    applied = ("apply", place / "run", film, "--out", out, "--max-frames", "20", "--quiet")
    for _ in range(2):  # into a folder of the user, then over the results there
        assert here(*applied, "--force") == (0, "", "")
    watched = ("watch", film, "--out", run, "--objects", "1", "--max-frames", "20", "--quiet")
    assert here(*watched, "--force") == (0, "", "")
    assert [(place / "README.md").read_text() for place in (run, out)] == ["mine"] * 2


@pytest.mark.parametrize("objects", ["1", "auto"])
def test_watching_writes_a_card_and_a_summary(
    place: Path, tmp_path: Path, here: UlCommand, objects: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(place / "run", run)  # whose card is of another network
    watched = ("watch", place / "ball.mp4", "--out", run, "--objects", objects, "--quiet")
    assert here(*watched, "--max-frames", "3", "--force")[0] == 0
    assert "| Frames | 3 |" in (run / "README.md").read_text()
    assert here(*watched, "--max-frames", "37", "--resume")[0] == 0
    text = (run / "README.md").read_text()
    assert text.encode().startswith(CARD_START)
    assert "by `ul watch`" in text
    assert "| Frames | 40 |" in text
    rows = [row.split(",") for row in (run / "tracks.csv").read_text().splitlines()]
    frame, confidence = rows[0].index("frame"), rows[0].index("confidence")
    sure = {row[frame] for row in rows[1:] if float(row[confidence]) >= 0.5}
    assert f"{len(sure) / 40:.1%} of the frames" in text
    summary = json.loads((run / "summary.json").read_text())
    assert summary["found"] == len(sure) / 40
    assert (summary["frames"], summary["task"]) == (40, "locate")
    assert summary["trusted"] == (not summary["reasons"])
    [video] = read_videos(run)
    info = open_live(str(place / "ball.mp4")).probe()
    assert (video.count, video.width, video.height) == (40, info.width, info.height)
    assert video.fps == pytest.approx(info.rate)
    with pytest.raises(Error, match="written by ul watch; reports are for runs of ul learn"):
        write_corrected_report(load_plan(run, "cpu"), tmp_path / "report.html")
    result = json.loads((run / "config.json").read_text())["result"]
    objective = "unknown" if result["objective"] is None else f"{result['objective']:.2f}"
    assert f"lower is better | {objective} |" in text
    assert "| ball | 40 |" in text


def test_from_pretrained_needs_two_files(place: Path, tmp_path: Path) -> None:
    for name, kind in (("run", Locator), ("codes", Encoder)):
        copy = tmp_path / name
        copy.mkdir()
        for file in ("config.json", "model.safetensors"):
            shutil.copy(place / name / file, copy)
        net = ul.from_pretrained(copy)
        assert isinstance(net, kind)
        assert not net.training
        expected = load_plan(place / name, "cpu").net
        assert expected is not None
        for key, value in expected.state_dict().items():
            torch.testing.assert_close(net.state_dict()[key], value)


def test_from_pretrained_says_what_is_wrong(place: Path, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="expected the folder of a run, a path, got NoneType"):
        ul.from_pretrained(cast(Any, None))
    with pytest.raises(RunError, match="does not exist; give the folder of a run"):
        ul.from_pretrained(tmp_path / "nobody/model")
    with pytest.raises(RunError, match=r"it has no config\.json"):
        ul.from_pretrained(tmp_path)
    shutil.copy(place / "run" / "config.json", tmp_path)
    with pytest.raises(RunError, match=r"model\.safetensors: is damaged or missing"):
        ul.from_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"result": {}}))
    with pytest.raises(RunError, match="training has not finished"):
        ul.from_pretrained(tmp_path)
