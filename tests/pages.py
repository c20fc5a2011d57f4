"""Reports as a browser would find them, and contents to make them of."""

from __future__ import annotations

import base64
import io
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray
from PIL import Image

import ullayers.report.charts as charts
from ullayers.report.page import Contents, Sample, write_report
from ullayers.tracks.table import TRACK, Answer, code_columns

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
            "trial": trial,
            "step": 10 * step,
            "kind": "clip",
            "seed": trial,
            "objective": trial - 3 * (1 - np.exp(-step / 9)),
            "features": features,
            "rank": features * (1 - 0.5 * np.exp(-step / 9)),
            "seconds": 0.1 * step,
        }
        for trial in range(trials)
        for step in range(steps)
    ]


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
        title="Where <it> goes & why",
        config={"seed": 7, "inputs": ["a.mp4", "b.mp4"], "train": {"lr": 0.003, "name": "<b>"}},
        records=records(),
        winner=0,
        answers=[track()],
        samples=samples(2),
        kernels={
            "conv1": random.standard_normal((8, 3, 5, 5)),
            "last": random.random((1, 8, 1, 1)),
        },
        maps={"conv1": random.standard_normal((8, 30, 40))},
        maps_picture=blob(3)[0],
        facts=[("frames", "10,000"), ("J", "<1>")],
        scores=[("error of the place", "1.2 %")],
    )


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
