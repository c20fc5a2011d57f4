"""Paths through positions corrected by a user."""

from __future__ import annotations

import numpy as np

from ullayers.locate.flow import Floats
from ullayers.locate.paths import NO_LABEL, Anchors, Labelled, ObjectPath, label_parts, taught_path
from ullayers.locate.recording.finder import Notable
from ullayers.locate.recording.windows import PreparedWindow, guided_choices

FRAMES, HEIGHT, WIDTH = 60, 40, 120


def two_movers() -> Floats:
    """Strength of a small object that moves in row 5, and a large one in rows 20 to 31."""
    strength = np.zeros((FRAMES, HEIGHT, WIDTH), np.float32)
    for t in range(FRAMES):
        strength[t, 4:8, t : t + 4] = 1
        strength[t, 20:32, 100 - t : 112 - t] = 1
    return strength


def given(frames: dict[int, tuple[float, float]], nothing: tuple[int, ...] = ()) -> Anchors:
    anchors = Anchors(np.full((FRAMES, 2), np.nan), np.isin(np.arange(FRAMES), nothing))
    for frame, (x, y) in frames.items():
        anchors.places[frame] = x / WIDTH, y / HEIGHT
    return anchors


def labelled_parts(strength: Floats) -> list[Labelled]:
    return [label_parts(frame, 0.5) for frame in strength]


def chosen_y(labelled: list[Labelled], chosen: list[int | None]) -> list[float]:
    return [
        np.nan if number is None else each.parts[number].y
        for each, number in zip(labelled, chosen, strict=True)
    ]


def test_one_place_changes_all_frames() -> None:
    strength = two_movers()
    plain = labelled_parts(strength)
    path = ObjectPath(WIDTH, 144.0)
    assert set(chosen_y(plain, path.follow([each.parts for each in plain]))) == {26.0}

    anchors = given({30: (31, 7)})
    labelled = anchors.choose(plain, strength)
    frames = [each.parts for each in labelled]
    told = taught_path(WIDTH, frames, anchors.given.tolist())
    found = chosen_y(labelled, told.follow(frames, anchors.given.tolist()))
    assert set(found) == {6.0}  # also before the place was given


def test_size_alone_leads_back_after_a_gap() -> None:
    strength = two_movers()
    strength[20:40, :10] = 0  # hidden for a while
    anchors = given({5: (7, 6)})
    labelled = anchors.choose(labelled_parts(strength), strength)
    frames = [each.parts for each in labelled]
    path = taught_path(WIDTH, frames, anchors.given.tolist())
    found = chosen_y(labelled, path.follow(frames, anchors.given.tolist()))
    assert set(found[:20] + found[40:]) == {6.0}


def test_a_place_where_nothing_stands_out() -> None:
    strength = two_movers()
    [told] = given({0: (60, 38)}).choose(labelled_parts(strength), strength)[:1]
    [part] = told.parts
    assert part.label == NO_LABEL
    assert (part.x, part.y) == (60, 38)


def test_frames_with_nothing_have_no_parts() -> None:
    strength = two_movers()
    anchors = given({}, nothing=(3, 4))
    labelled = anchors.choose(labelled_parts(strength), strength)
    assert [len(each.parts) for each in labelled[2:6]] == [2, 0, 0, 2]


def window(strength: Floats) -> PreparedWindow:
    small = np.zeros((*strength.shape, 3), np.uint8)
    gain = np.ones((1, 1, 1), np.float32)
    parts = zip(strength, labelled_parts(strength), strict=True)
    return PreparedWindow(small, strength, [Notable(gain, *each) for each in parts])


def test_places_in_later_windows_count() -> None:
    strength = two_movers()
    anchors = given({50: (52, 6)})
    windows = [
        (
            window(strength[start : start + 20]),
            Anchors(anchors.places[start : start + 20], anchors.nothing[start : start + 20])
            if start == 40
            else None,
        )
        for start in (0, 20, 40)
    ]
    choices = list(guided_choices(windows))
    assert [len(choice or []) for choice in choices] == [20, 20, 20]
    labelled = anchors.choose(labelled_parts(strength), strength)
    every = [number for choice in choices for number in choice or []]
    assert set(chosen_y(labelled, every)) == {6.0}
