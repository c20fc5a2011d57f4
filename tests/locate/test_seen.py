"""Objects that a network sees: outlines, tracks, and agreement with a still camera's evidence."""

import cv2
import numpy as np
import pytest

from ullayers.locate.recording.seen import SeenRecording, shows_the_same
from ullayers.locate.recording.windows import StillRecording
from ullayers.locate.scene.background import still_scene
from ullayers.locate.tracking.selection import choose_objects

FRAMES = 30
PLACES = [((10 + 4 * t, 24), (150 - 4 * t, 84)) for t in range(FRAMES)]


def film() -> np.ndarray:
    """Return frames of a floor with two dark squares that walk."""
    rng = np.random.default_rng(0)
    floor = cv2.GaussianBlur(rng.integers(120, 220, (120, 180, 3), np.uint8), (0, 0), 3)
    frames = floor + rng.normal(0, 2, (FRAMES, *floor.shape))
    for frame, places in zip(frames, PLACES, strict=True):
        for x, y in places:
            frame[y : y + 12, x : x + 12] = 20
    return frames.clip(0, 255).astype(np.uint8)


def odds(*objects: int, rests: bool = False) -> np.ndarray:
    """Return the odds of some of these squares at half the size."""
    values = np.full((FRAMES, 60, 90), 0.01, np.float32)
    for t, places in enumerate(PLACES):
        for number in objects:
            x, y = PLACES[0][1] if rests and number else places[number]
            values[t, y // 2 : y // 2 + 6, x // 2 : x // 2 + 6] = 20
    return values


@pytest.fixture(scope="module")
def still() -> StillRecording:
    frames = film()
    return StillRecording.start(still_scene(frames), frames)


def test_a_still_camera_that_shows_the_same_objects_is_enough(still: StillRecording) -> None:
    assert shows_the_same(still, film(), odds(0, 1))


def test_a_still_camera_that_shows_other_objects_is_not(still: StillRecording) -> None:
    assert not shows_the_same(still, film(), odds(0))
    assert not shows_the_same(still, film(), odds(0, 1)[:, ::-1])
    assert not shows_the_same(still, film(), odds())


def test_an_object_at_rest_is_an_object_if_a_network_has_seen_it() -> None:
    recording = SeenRecording()
    recording.follow_all(patience=5)
    found = recording.segment(film(), odds(0, 1, rests=True))
    assert recording.tracker is not None
    tracks = recording.tracker.finish()
    assert len(choose_objects(tracks, FRAMES, (180, 120))) == 1
    seen = choose_objects(tracks, FRAMES, (180, 120), seen=True)
    assert [len(each.sightings) for each in seen] == [FRAMES, FRAMES]
    assert found.owners is not None
    assert set(np.unique(found.owners)) == {0, 1, 2}


def test_the_outline_of_what_is_seen_has_its_size() -> None:
    found = SeenRecording().segment(film(), odds(0))
    areas = found.masks.sum((1, 2))
    assert np.all((areas > 110) & (areas < 180))
    centres = np.array([places[0] for places in PLACES]) + 6
    assert np.abs(found.positions * (180, 120) - centres).max() < 1.5
    assert found.confidence.min() > 0.9


def test_nothing_is_found_where_nothing_is_seen() -> None:
    recording = SeenRecording()
    recording.follow_all(patience=5)
    found = recording.segment(film(), odds())
    assert np.isnan(found.positions).all()
    assert not found.masks.any()
    assert not found.confidence.any()
