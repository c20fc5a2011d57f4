"""Learning from positions corrected by a user."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ullayers.files import from_json
from ullayers.learning.footage import gather
from ullayers.learning.networks import Locator
from ullayers.learning.teaching import Lesson, Teaching, read_taught
from ullayers.video.files.writing import VideoWriter
from ullayers.video.region import Rectangle
from ullayers.video.sources import Reading, find_sources


@pytest.mark.parametrize(
    "places",
    [
        [[3, 0.5, 0.5], [2, 0.5, 0.5]],
        [[3, 0.5, 0.5], [3, 0.5, 0.5]],
        [[3, 1.5, 0.5]],
        [[3, None, 0.5]],
        [[-1, 0.5, 0.5]],
        [[3, float("nan"), 0.5]],
        [[3, 0.5]],
        "all",
    ],
)
def test_damaged_places_are_refused(places: Any) -> None:
    with pytest.raises(ValueError, match=r"places|expected finite numbers"):
        from_json(Teaching, {"run": "a", "corrections": 1, "places": {"a": places}})


def test_anchors_of_a_window_and_a_region() -> None:
    teaching = Teaching("run", 3, {"a": [(4, 0.5, 0.25), (6, None, None), (8, 0.1, 0.1)]})
    whole = teaching.anchors("a", None, np.arange(5, 9))
    assert whole is not None
    assert whole.nothing.tolist() == [False, True, False, False]
    assert whole.places[3].tolist() == [0.1, 0.1]
    cut = Rectangle(16, 0, 32, 24).fit(height=48, width=64)
    part = teaching.anchors("a", cut, np.arange(4, 9))
    assert part is not None
    assert part.places[0].tolist() == [0.5, 0.5]
    assert part.given.sum() == 1  # the other place is outside of the region
    assert teaching.anchors("a", None, np.arange(20, 30)) is None
    assert teaching.anchors("a", None, np.arange(5, 30, 7)) is None  # frames that were left out
    assert teaching.anchors("b", None, np.arange(9)) is None
    assert str(teaching) == "3 corrections of run"


def test_corrected_frames_are_read_exactly(tmp_path: Path) -> None:
    with VideoWriter(tmp_path / "a.mp4", fps=10) as video:
        for t in range(40):
            video.write(np.full((48, 64, 3), 5 * t, np.uint8))
    sources = find_sources([str(tmp_path)])
    reading = Reading(size=(24, 32), stride=4)
    footage = gather(sources, reading)
    teaching = Teaching("run", 2, {"a": [(13, 0.5, 0.25), (30, None, None), (99, 0.5, 0.5)]})
    found = read_taught(teaching, sources, reading, footage)
    assert [each.piece.clip.index.tolist() for each in found] == [[13], [30]]
    levels = [float(each.piece.clip.frames.float().mean()) for each in found]
    assert levels == pytest.approx([65, 150], abs=2)
    assert found[0].place.tolist() == [0.5, 0.25]
    assert np.isnan(found[1].place).all()


def two_things(frames: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Foreground with a small red thing and a large blue one, and the places of the former."""
    random = np.random.default_rng(seed)
    pictures = torch.zeros(frames, 3, 36, 48)
    places = torch.zeros(frames, 2)
    for t in range(frames):
        x, y = random.integers(2, 16), random.integers(2, 28)
        pictures[t, 0, y : y + 4, x : x + 4] = 1
        places[t] = torch.tensor([(x + 2) / 48, (y + 2) / 36])
        x, y = random.integers(24, 40), random.integers(2, 28)
        pictures[t, 2, y : y + 6, x : x + 6] = 1
    return pictures, places


def test_a_few_places_teach_the_network() -> None:
    torch.manual_seed(0)
    net = Locator()
    frames, places = two_things(4, seed=0)
    others, truth = two_things(40, seed=1)
    net.get_ready(others)
    lesson = Lesson(frames, places)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3)
    generator = torch.Generator().manual_seed(0)

    def mean_distance() -> float:
        with torch.no_grad():
            return float((net(others).centroid - truth).norm(dim=1).mean())

    before = mean_distance()
    for _ in range(60):
        optimizer.zero_grad()
        lesson.loss(net, generator).backward()
        optimizer.step()
    assert mean_distance() < before / 2  # in frames that it has not seen


def test_nothing_lowers_the_confidence() -> None:
    torch.manual_seed(0)
    net = Locator()
    frames, _ = two_things(4, seed=0)
    net.get_ready(frames)
    lesson = Lesson(frames, torch.full((4, 2), torch.nan))
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    before = float(lesson.loss(net).detach())
    for _ in range(20):
        optimizer.zero_grad()
        lesson.loss(net).backward()
        optimizer.step()
    assert float(lesson.loss(net).detach()) < before
    assert all(weight.isfinite().all() for weight in net.parameters())
