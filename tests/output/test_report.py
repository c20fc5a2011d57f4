"""The report: one file that needs nothing else, and says what it shows."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from markupsafe import escape

import ullayers.report.charts as charts
from tests.command import run_code
from tests.pages import (
    NASTY,
    SECTIONS,
    Page,
    chart_named,
    full,
    labels,
    lines,
    make,
    samples,
    stroke,
    track,
)
from ullayers.report.page import Contents, Sample, write_report
from ullayers.tracks.measures import measure_motion
from ullayers.video.sources import Info

pytestmark = pytest.mark.usefixtures("full_reports")


def test_a_full_report_has_everything(tmp_path: Path) -> None:
    page = make(tmp_path, replace(full(), samples=samples(8)))
    assert set(page.ids) >= SECTIONS
    assert page.tags.count("h1") == 1
    assert page.tags.count("h2") == len(SECTIONS)
    for text in ("Where <it> goes & why", "10,000", "<1>", "1.2 %", "ground truth", "0.003"):
        assert text in page.said
    assert "a.mp4, b.mp4" in page.said
    assert "<b>" in page.said
    images = {"samples": 8, "kernels": 1 + 2 + 1, "scatter": 2}  # a frame, two kernels, a map
    charts_of = {"time": 2, "scatter": 1, "training": 2}  # wide and narrow; J and rank
    for name, section in sections(page).items():
        assert section.count("<img") + section.count("<image") == images.get(name, 0), name
        assert section.count("<svg") == charts_of.get(name, 0), name
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def sections(page: Page) -> dict[str, str]:
    """Return the sections of a page by their id."""
    return dict(re.findall(r'<section id="(\w+)">(.*?)</section>', page.text, re.S))


def test_training_comes_after_the_results(tmp_path: Path) -> None:
    contents = replace(full(), facts=[("found in", "98.0%")], details=[("evaluation J", "-1.2")])
    page = make(tmp_path, contents)
    order = ["98.0%", *(f'id="{name}"' for name in ("samples", "time", "scatter")), "For experts"]
    order += ["evaluation J", *(f'id="{name}"' for name in ("training", "kernels", "config"))]
    places = [page.text.index(each) for each in order]
    assert places == sorted(places)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    return make(tmp_path_factory.mktemp("report"), full())


def test_every_section_says_how_to_read_it(page: Page) -> None:
    for section in re.findall(r"<section.*?</section>", page.text, re.S):
        assert 'class="note"' in section
    assert "J is low when" in page.said


def test_axes_are_named(page: Page) -> None:
    assert {"x", "y", "time (s)"} <= labels(chart_named(page, "over time"))
    assert {"x", "y", "time (s)"} <= labels(chart_named(page, "all frames"))
    assert {"J", "training step", "kept: trial 0", "other trials"} <= labels(chart_named(page, "J"))
    rank = labels(chart_named(page, "effective rank"))
    assert {"effective rank", "training step", "features: 2"} <= rank


def test_the_winner_is_bold_and_all_others_thin(page: Page) -> None:
    for name in ("J", "effective rank"):
        [kept] = lines(chart_named(page, name), charts.KEPT)
        others = lines(chart_named(page, name), "currentColor")
        assert float(stroke(kept)["stroke-width"]) > 2
        assert len(others) == 2
        assert all(float(stroke(other)["stroke-width"]) < 1 for other in others)


def test_sequence_names_are_text(tmp_path: Path) -> None:
    contents = replace(
        full(),
        title=NASTY,
        answers=[track(50, NASTY), track(50, "b")],
        samples=samples(2, NASTY),
        config={NASTY: {NASTY: NASTY}},
        facts=[(NASTY, NASTY)],
        kernels={NASTY: np.eye(5)[None, None]},
        maps={},
        scores=[(NASTY, NASTY)],
    )
    page = make(tmp_path, contents)
    assert NASTY not in page.text
    for name, section in sections(page).items():
        if name not in ("scatter", "training"):  # which name no sequence, setting or layer
            assert str(escape(NASTY)) in section, name
    assert f"<h1>{escape(NASTY)}</h1>" in page.text
    assert page.text.count(f"<dt>{escape(NASTY)}</dt><dd>{escape(NASTY)}</dd>") == 2


def test_low_confidence_is_faint(tmp_path: Path) -> None:
    answer = track(300)
    answer.values[100:200, 2] = 0.1
    chart = chart_named(make(tmp_path, Contents("a", answers=[answer])), "over time")
    for colour in charts.LINES[:2]:
        faint, firm = lines(chart, colour)
        assert float(stroke(faint)["stroke-opacity"]) < 0.5
        assert "stroke-opacity" not in stroke(firm)
        assert firm.get("d", "").count("M") == faint.get("d", "").count("M") + 1, "a gap"


def test_speed_and_distance_of_every_sequence(tmp_path: Path) -> None:
    lost = track(50, "lost", confidence=0.1)
    answers = [track(300, NASTY), lost, *(track(30, f"film{n}") for n in range(120))]
    infos = [Info(640, 480, 25.0, 300), Info(320, 240, None, None)] + 120 * [
        Info(64, 48, 29.97, 30)
    ]
    page = make(tmp_path, Contents("a", answers=answers, infos=infos))
    assert {"speed", "sequences"} <= set(page.ids)
    assert "speed over time" in [chart.get("aria-label") for chart in page.charts]
    motion = measure_motion(answers[0], 640, 480)
    for text in ("640 x 480", f"{motion.distance:,.0f}", f"{motion.speed_quantile(0.95):,.0f}"):
        assert text in page.said
    assert "29.97" in page.said
    assert page.said.count("unknown") == 1 + 4, "the rate; distance and speeds of what was lost"
    assert "22 more sequences are in summary.json" in page.said
    nothing = make(tmp_path, Contents("a", answers=[lost], infos=infos[1:2]))
    assert "speed" not in nothing.ids
    assert "sequences" in nothing.ids


def test_video_beside_the_report_is_linked_to(tmp_path: Path) -> None:
    assert "video" not in make(tmp_path, Contents("a")).tags
    (tmp_path / "overlay.mp4").write_bytes(b"...")
    page = make(tmp_path, Contents("a"))
    assert "video" in page.tags
    assert ("src", "overlay.mp4") in page.attributes
    assert ("controls", "") in page.attributes
    assert "overlay.mp4 from the folder" in page.said


def test_masks_and_dots_are_drawn_on_samples(tmp_path: Path) -> None:
    picture = np.full((90, 120, 3), 100, np.uint8)
    mask = np.zeros((30, 40), np.float32)
    mask[10:20, 5:15] = 1
    sample = Sample("a", 1.25, picture, mask, np.array([0.25, 0.5, 1.0]))
    page = make(tmp_path, Contents("a", samples=[sample]))
    [image] = page.images
    pixels = np.asarray(image.resize((120, 90)).convert("RGB")).astype(int)
    assert np.abs(pixels[:, 70:] - 100).max() < 8
    assert pixels[45, 30, 0] - pixels[45, 30, 2] > 100, "an orange dot"
    assert pixels[35, 22, 1] - pixels[35, 22, 0] > 20, "a tint"
    assert "1.25 s" in page.said


def test_the_same_contents_give_the_same_page(page: Page, tmp_path: Path) -> None:
    assert make(tmp_path, full()).text == page.text


def test_an_error_leaves_the_old_report(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("before")
    no_picture = replace(samples(1)[0], picture=np.zeros((9, 9, 5), np.uint8))
    with pytest.raises(TypeError):
        write_report(path, replace(full(), samples=[no_picture]))
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [
        ("report.html", "before")
    ]


def test_malformed_training_records_are_ignored(page: Page, tmp_path: Path) -> None:
    good = full().records
    bad: list[Any] = [
        {"objective": 1.0},
        {"trial": "x", "step": 1, "objective": 1.0},
        {"trial": 0, "objective": 1.0},
        {"trial": 0, "step": 1, "objective": [1.0], "rank": "x", "features": {}, "kind": "clip"},
        {"trial": True, "step": 1},
        [],
        None,
    ]
    assert make(tmp_path, replace(full(), records=bad + good + bad)).text == page.text
    assert "training" not in make(tmp_path, Contents("a", records=bad[:3])).ids
    said = make(tmp_path, Contents("a", records=bad[:4])).said
    assert "No finite J" in said
    assert "No effective rank" in said


def test_settings_of_matplotlib_are_left_alone(tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)
    make(tmp_path, Contents("a", answers=[track(50)]))
    assert dict(matplotlib.rcParams) == before
    code = (
        "import sys, ullayers.cli.learn\n"
        "assert 'matplotlib' not in sys.modules, 'training would wait for it'\n"
        "from ullayers.report.page import *\n"
        f"write_report({os.fspath(tmp_path / 'b.html')!r}, Contents('a', kernels={{}}))\n"
        "print('matplotlib.pyplot' in sys.modules)"
    )
    assert run_code(code, bare=True)[:2] == (0, "False\n")


def test_the_page_says_why_results_are_not_to_be_trusted(tmp_path: Path) -> None:
    sentence = "The object was found in 98.0% of the frames."
    trusted = make(tmp_path, Contents("a", trust=sentence))
    assert f"Trusted. {sentence}" in trusted.said
    assert "Do not trust" not in trusted.said
    assert "Trusted" not in make(tmp_path, Contents("a")).said, "it is not known"
    reason = "The confidence is below 0.5 in 61.7% of the frames."
    doubtful = make(tmp_path, Contents("a", warnings=[reason]))
    assert "Do not trust these results." in doubtful.said
    assert reason in doubtful.said
    assert "Trusted" not in doubtful.said
