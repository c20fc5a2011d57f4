"""The report: one file that needs nothing else, says what it shows, and copes with little."""

from __future__ import annotations

import base64
import io
import os
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from ullayers import charts
from ullayers.report import Contents, Sample, write_report
from ullayers.results import TRACK, Answer, code_columns

Floats = NDArray[np.float64]
NASTY = 'a<script>alert("1")</script>&\'$x_1$ 日本 http://evil.example/.mp4'
SECTIONS = {"samples", "time", "scatter", "training", "kernels", "config"}


class Page(HTMLParser):
    """What a browser would find in the page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text, self.tags, self.attributes, self.words = text, [""], [("", "")], [""]
        self.ids: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        self.ids += [value or "" for name, value in attrs if name == "id"]

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def said(self) -> str:
        return " ".join(" ".join(self.words).split())

    @property
    def charts(self) -> list[ElementTree.Element]:
        """Every SVG, which must be well-formed."""
        return [
            ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", self.text, re.S)
        ]

    @property
    def images(self) -> list[Image.Image]:
        """Every picture, those inside SVG included."""
        data = [value.split(",", 1)[1] for _, value in self.attributes if value.startswith("data:")]
        found = [Image.open(io.BytesIO(base64.b64decode(text))) for text in data]
        return [image.convert("RGBA") for image in found]


def read(path: Path) -> Page:
    return Page(path.read_text(encoding="utf-8"))


def make(tmp_path: Path, contents: Contents) -> Page:
    write_report(tmp_path / "report.html", contents)
    page = read(tmp_path / "report.html")
    check_self_contained(page)
    return page


def check_self_contained(page: Page) -> None:
    """No address anywhere but in text; nothing loaded; no id twice; every figure drawn."""
    assert len(page.text.encode()) < 3_000_000
    assert "script" not in page.tags
    assert "link" not in page.tags
    for name, value in page.attributes:
        assert "http" not in value[:200], name
        if name in ("src", "href", "xlink:href", "poster", "srcset"):
            assert re.match(r"data:image/(png|jpeg);base64,|#|overlay\.mp4$", value), value[:80]
    assert "@import" not in page.text
    assert set(re.findall(r"url\((.)", page.text)) <= {"#"}
    assert len(page.ids) == len(set(page.ids))
    assert set(re.findall(r"url\(#(\w+)\)", page.text)) <= set(page.ids)
    assert charts.INK not in page.text, "all ink is the page's"
    for image in page.images:
        assert np.asarray(image).std() > 4, "a blank picture"
    for chart in page.charts:
        assert chart.findall(".//text"), "axes have numbers"


def blob(number: int, height: int = 90, width: int = 120) -> tuple[NDArray[np.uint8], Floats]:
    """A noisy picture with a bright disc, and where it is."""
    random = np.random.default_rng(number)
    x, y = 0.5 + 0.3 * np.sin(number), 0.5 + 0.3 * np.cos(2 * number)
    down, right = np.mgrid[:height, :width]
    inside = np.hypot(right - x * width, down - y * height) < height / 8
    picture = random.integers(60, 120, (height, width, 3)) + 100 * inside[..., None]
    return picture.astype(np.uint8), np.array([x, y, 0.9])


def samples(count: int = 8, sequence: str = "a") -> list[Sample]:
    made = []
    for number in range(count):
        picture, place = blob(number)
        mask = np.asarray(picture[::3, ::3, 0] > 130, np.float32)
        made.append(Sample(sequence, 1.5 * number, picture, mask, place))
    return made


def records(trials: int = 3, steps: int = 40, features: int = 2) -> list[dict[str, Any]]:
    return [
        {
            "trial": trial, "step": 10 * step, "kind": "clip", "seed": trial,
            "objective": trial - 3 * (1 - np.exp(-step / 9)), "features": features,
            "rank": features * (1 - 0.5 * np.exp(-step / 9)), "seconds": 0.1 * step,
        }
        for trial in range(trials)
        for step in range(steps)
    ]  # fmt: skip


def track(count: int = 300, sequence: str = "a", confidence: float = 0.9) -> Answer:
    t = np.arange(count)
    places = [0.5 + 0.3 * np.sin(t / 20), 0.5 + 0.3 * np.cos(t / 31), np.full(count, confidence)]
    return Answer(sequence, t, t / 25, TRACK, np.stack(places, 1))


def codes(count: int = 300, d: int = 2, sequence: str = "a") -> Answer:
    t = np.arange(count)
    values = np.stack([np.sin(t / (20 + 5 * i) + i) for i in range(d)], 1)
    return Answer(sequence, t, t / 25, code_columns(d), values)


def full() -> Contents:
    random = np.random.default_rng(0)
    return Contents(
        "Where <it> goes & why",
        {"seed": 7, "inputs": ["a.mp4", "b.mp4"], "train": {"lr": 0.003, "name": "<b>"}},
        records(), 0, [track()], samples(2),
        {"conv1": random.standard_normal((8, 3, 5, 5)), "last": random.random((1, 8, 1, 1))},
        {"conv1": random.standard_normal((8, 30, 40))}, blob(3)[0],
        [("frames", "10,000"), ("J", "<1>")], [("error of the place", "1.2 %")],
    )  # fmt: skip


def stroke(path: ElementTree.Element) -> dict[str, str]:
    pairs = [part.split(":") for part in path.get("style", "").split(";") if ":" in part]
    return {name.strip(): value.strip() for name, value in pairs}


def lines(chart: ElementTree.Element, colour: str) -> list[ElementTree.Element]:
    """Lines of that colour with more than two points: those of data."""
    paths = [path for path in chart.iter("path") if stroke(path).get("stroke") == colour]
    return [path for path in paths if path.get("d", "").count("L") > 2]


def labels(chart: ElementTree.Element) -> set[str]:
    return {"".join(text.itertext()).strip() for text in chart.iter("text")}


def chart_named(page: Page, name: str) -> ElementTree.Element:
    return next(chart for chart in page.charts if chart.get("aria-label") == name)


def test_a_full_report_has_everything(tmp_path: Path) -> None:
    page = make(tmp_path, replace(full(), samples=samples(8)))
    assert set(page.ids) >= SECTIONS
    assert page.tags.count("h1") == 1
    assert page.tags.count("h2") == len(SECTIONS)
    for text in ("Where <it> goes & why", "10,000", "<1>", "1.2 %", "Against the truth", "0.003"):
        assert text in page.said
    assert "a.mp4, b.mp4" in page.said
    assert "<b>" in page.said
    assert len(page.images) == 8 + 1 + 2 + 1 + 2, (
        "samples, frame, kernels, maps, scatter and its bar"
    )
    assert len(page.charts) == 2 + 1 + 2, "time, wide and narrow; scatter; J and rank"
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_every_section_says_how_to_read_it(tmp_path: Path) -> None:
    page = make(tmp_path, full())
    for section in re.findall(r"<section.*?</section>", page.text, re.S):
        assert "class='note'" in section
    assert "J is low when" in page.said


def test_axes_are_named(tmp_path: Path) -> None:
    page = make(tmp_path, full())
    assert {"x", "y", "time (s)"} <= labels(chart_named(page, "over time"))
    assert {"x", "y", "time (s)"} <= labels(chart_named(page, "all frames"))
    assert {"J", "training step", "kept: trial 0", "other trials"} <= labels(chart_named(page, "J"))
    rank = labels(chart_named(page, "effective rank"))
    assert {"effective rank", "training step", "features: 2"} <= rank


def test_the_winner_is_bold_and_all_others_thin(tmp_path: Path) -> None:
    page = make(tmp_path, full())
    for name in ("J", "effective rank"):
        [kept] = lines(chart_named(page, name), charts.KEPT)
        others = lines(chart_named(page, name), "currentColor")
        assert float(stroke(kept)["stroke-width"]) > 2
        assert len(others) == 2
        assert all(float(stroke(other)["stroke-width"]) < 1 for other in others)


def test_sequence_names_are_text(tmp_path: Path) -> None:
    contents = replace(
        full(), title=NASTY, answers=[track(50, NASTY), track(50, "b")],
        samples=samples(2, NASTY), config={NASTY: {NASTY: NASTY}}, facts=[(NASTY, NASTY)],
        kernels={NASTY: np.eye(5)[None, None]}, maps={}, scores=[(NASTY, NASTY)],
    )  # fmt: skip
    page = make(tmp_path, contents)
    assert page.said.count(NASTY) == 2 + 1 + 2 + 3 + 2 + 2 + 1 + 0


def test_low_confidence_is_faint(tmp_path: Path) -> None:
    answer = track(300)
    answer.values[100:200, 2] = 0.1
    chart = chart_named(make(tmp_path, Contents("a", answers=[answer])), "over time")
    for colour in charts.LINES[:2]:
        faint, firm = lines(chart, colour)
        assert float(stroke(faint)["stroke-opacity"]) < 0.5
        assert "stroke-opacity" not in stroke(firm)
        assert firm.get("d", "").count("M") == faint.get("d", "").count("M") + 1, "a gap"


def test_video_beside_the_report_is_linked_to(tmp_path: Path) -> None:
    assert "video" not in make(tmp_path, full()).tags
    (tmp_path / "overlay.mp4").write_bytes(b"...")
    page = make(tmp_path, full())
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


def test_codes(tmp_path: Path) -> None:
    shown = [replace(sample, mask=None, values=np.array([-1.0, 0.5])) for sample in samples(3)]
    page = make(tmp_path, replace(full(), answers=[codes()], samples=shown))
    assert {"y0", "y1"} <= labels(chart_named(page, "over time"))
    assert {"y0", "y1", "time (s)"} <= labels(chart_named(page, "all frames"))
    assert "(\N{MINUS SIGN}1.00, 0.50)" in page.said


def test_one_number(tmp_path: Path) -> None:
    page = make(tmp_path, Contents("a", answers=[codes(300, 1)]))
    assert {"y0", "frames"} <= labels(chart_named(page, "all frames"))
    assert "How many frames" in page.said


@pytest.mark.parametrize("d", [8, 12])
def test_many_numbers(tmp_path: Path, d: int) -> None:
    shown = [replace(sample, mask=None, values=np.zeros(d)) for sample in samples(1)]
    page = make(tmp_path, Contents("a", answers=[codes(300, d)], samples=shown))
    assert f"the first two of {d} numbers" in page.said
    assert ("The first 8 of its 12" in page.said) == (d == 12)
    assert {f"y{i}" for i in range(8)} <= labels(chart_named(page, "over time"))


def test_one_frame_and_one_record(tmp_path: Path) -> None:
    for answer in (track(1), codes(1), codes(1, 1), track(1, confidence=0.0)):
        page = make(tmp_path, replace(full(), answers=[answer], records=records(1, 1)))
        chart = chart_named(page, "over time")
        assert len(list(chart.iter("use"))) > 0, "a mark where there is no line"


def test_no_finite_objective(tmp_path: Path) -> None:
    for value in (None, float("nan"), float("inf")):
        rows = [record | {"objective": value} for record in records()]
        page = make(tmp_path, replace(full(), records=rows))
        assert "No finite J" in page.said
        assert chart_named(page, "effective rank")
    rows = [record | {"objective": None, "rank": None} for record in records()]
    assert "No effective rank" in make(tmp_path, replace(full(), records=rows)).said


def test_some_finite_objectives(tmp_path: Path) -> None:
    rows = records(2)
    rows[0] |= {"objective": None}
    rows[5] |= {"objective": float("nan")}
    for row in rows[40:]:
        row["objective"] = float("nan")
    page = make(tmp_path, replace(full(), records=rows))
    assert len(lines(chart_named(page, "J"), charts.KEPT)) == 1
    assert not lines(chart_named(page, "J"), "currentColor")


def test_two_kinds_of_objective_are_told_apart(tmp_path: Path) -> None:
    rows = records(2) + [record | {"kind": "stream"} for record in records(2)]
    page = make(tmp_path, replace(full(), records=rows))
    assert {"kept: trial 0, clip", "kept: trial 0, stream"} <= labels(chart_named(page, "J"))
    assert "dashed ones" in page.said


@pytest.mark.parametrize(("count", "shown"), [(2, 2), (3, 3), (6, 6), (200, 6)])
def test_many_sequences(tmp_path: Path, count: int, shown: int) -> None:
    page = make(tmp_path, Contents("a", answers=[track(40, f"s{i}") for i in range(count)]))
    drawn = [chart for chart in page.charts if chart.get("aria-label") == "over time"]
    assert len(drawn) == shown * (1 + shown % 2)
    assert ("194 more sequences are left out" in page.said) == (count == 200)


def test_chunks_of_a_sequence_are_one(tmp_path: Path) -> None:
    whole = make(tmp_path, Contents("a", answers=[track(300)])).text
    answer = track(300)
    parts = [
        Answer("a", answer.index[cut], answer.seconds[cut], TRACK, answer.values[cut])
        for cut in (slice(0, 100), slice(100, 100), slice(100, 300))
    ]
    assert make(tmp_path, Contents("a", answers=parts)).text == whole


def test_nothing_is_sure_or_finite(tmp_path: Path) -> None:
    page = make(tmp_path, replace(full(), answers=[track(300, confidence=0.0)]))
    assert chart_named(page, "all frames")
    lost = track(50)
    lost.values[:] = np.nan
    page = make(tmp_path, replace(full(), answers=[lost]))
    assert "scatter" not in page.ids
    lost.values[20:] = track(50).values[20:]
    assert "scatter" in make(tmp_path, replace(full(), answers=[lost])).ids


def test_almost_nothing(tmp_path: Path) -> None:
    page = make(tmp_path, Contents("Empty"))
    assert "Empty" in page.said
    assert not page.charts
    assert not page.images
    assert not SECTIONS & set(page.ids)


def test_grey_pictures_of_any_size(tmp_path: Path) -> None:
    for picture in (
        blob(1)[0][:, :, 0],
        blob(1)[0][:, :, :1],
        blob(1, 700, 900)[0],
        blob(1, 9, 9)[0],
    ):
        sample = Sample("a", 0.0, picture, None, np.array([0.5, 0.5, 1.0]))
        page = make(tmp_path, replace(full(), samples=[sample], maps_picture=picture))
        assert max(image.width for image in page.images) <= 1000


def test_kernels_of_all_shapes(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    shapes = [(8, 4, 5, 5), (4, 8, 5, 5), (1, 8, 1, 1), (16, 1, 7, 7), (64, 64, 3, 3), (1, 1, 3, 3)]
    kernels = {str(shape): random.standard_normal(shape) for shape in shapes}
    page = make(tmp_path, Contents("a", kernels=kernels))
    assert len(page.images) == len(shapes)
    assert "8 outputs across, 4 inputs down" in page.said
    assert "8 inputs across, 4 outputs down" in page.said
    assert "16 of 64 outputs across, 16 of 64 inputs down" in page.said
    assert "1 output, 8 inputs" in page.said
    flat = Contents("a", kernels={"zero": np.zeros((2, 2, 3, 3)), "none": np.zeros((0, 2, 3, 3))})
    write_report(tmp_path / "report.html", flat)
    assert len(read(tmp_path / "report.html").images) == 1


def test_kernel_colours_are_symmetric() -> None:
    kernels = np.zeros((1, 3, 1, 1))
    kernels[0, :, 0, 0] = -0.5, 0, 2
    page = Page(charts.kernel_sheet(kernels))
    [image] = page.images
    low, zero, high = (np.asarray(image)[1, x, :3].astype(int) for x in (1, 7, 13))
    assert np.ptp(zero) < 5, "zero is grey"
    assert low[2] > low[0]
    assert high[0] > high[2] + 80
    assert "+2" in page.said
    assert np.asarray(image)[0, 4, 3] == 0, "clear between"


def test_maps_without_kernels_and_too_many_layers(tmp_path: Path) -> None:
    maps = {f"layer{i}": np.random.default_rng(i).random((20, 12, 16)) for i in range(11)}
    page = make(tmp_path, Contents("a", maps=maps))
    assert len(page.images) == 6
    assert "16 of 20 channels" in page.said
    assert "5 more layers are left out" in page.said


def test_the_largest_report_is_small(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    noise = random.integers(0, 255, (720, 1280, 3), np.uint8)
    contents = Contents(
        "large", {}, records(60, 400), 3,
        [codes(20000, 8, f"s{i}") for i in range(5)],
        [Sample("s0", 0.0, noise, None, np.zeros(8))] * 20,
        {f"c{i}": random.standard_normal((64, 64, 7, 7)) for i in range(9)},
        {f"c{i}": random.standard_normal((64, 180, 320)) for i in range(9)},
        noise,
    )  # fmt: skip
    make(tmp_path, contents)


def test_thinning_keeps_peaks() -> None:
    values = np.zeros(100_000)
    values[[777, 54_321]] = 1, -1
    rows = charts.thinned(values, 500)
    assert len(rows) <= 1000
    assert {777, 54_321} <= set(rows.tolist())


def test_the_same_contents_give_the_same_page(tmp_path: Path) -> None:
    assert make(tmp_path, full()).text == make(tmp_path, full()).text


def test_an_error_leaves_the_old_report(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("before")
    with pytest.raises(KeyError):
        write_report(path, replace(full(), records=[{"objective": 1.0}]))
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [
        ("report.html", "before")
    ]


def test_settings_of_matplotlib_are_left_alone(tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)
    make(tmp_path, full())
    assert dict(matplotlib.rcParams) == before
    code = (
        "import sys; from ullayers.report import *\n"
        f"write_report({os.fspath(tmp_path / 'b.html')!r}, Contents('a', kernels={{}}))\n"
        "print('matplotlib.pyplot' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "False"
