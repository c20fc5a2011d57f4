"""Objects that hide or leave and come back keep their number where that is certain enough."""

import numpy as np

from tests.locate.test_several import SIZE, picture, step
from ullayers.locate.tracking.blobs import find_blobs
from ullayers.locate.tracking.identity import find_crossings, find_objects, is_closed, most_at_once
from ullayers.locate.tracking.selection import choose_objects
from ullayers.locate.tracking.tracker import TrackedObject, Tracker

NEST = 200.0, 80.0
SHADES = 40, 90, 140


def to_nest(start: tuple[float, float], frames: int) -> np.ndarray:
    """Return a walk around the start that ends at the nest."""
    t = np.arange(frames)
    x, y = start
    walk = np.stack([x + 20 * np.sin(t / 9), y + 12 * np.cos(t / 7), 0 * t], 1)
    rest = min(40, frames)
    walk[-rest:] += np.linspace(0, 1, rest)[:, None] * ([*NEST, 0] - walk[-rest:])
    return walk


def follow(visits: list[tuple[int, int, np.ndarray]]) -> list[TrackedObject]:
    """Track animals that are visible from a frame on, as (animal, frame, path)."""
    tracker = Tracker(patience=10)
    for t in range(max(start + len(path) for _, start, path in visits)):
        seen = [(k, path[t - start]) for k, start, path in visits if 0 <= t - start < len(path)]
        frame, mask = picture([tuple(p) for _, p in seen], tuple(SHADES[k] for k, _ in seen))
        step(tracker, find_blobs(frame, mask, 9 * mask.astype(np.float32), 3.0, 100))
    return tracker.finish()


def nest_scene(returning: int) -> tuple[list[TrackedObject], int]:
    """Two animals hide in the nest, one after the other; one of them comes out again."""
    first, second = to_nest((60, 40), 160), to_nest((60, 120), 190)
    again = to_nest((90, 70), 180)[::-1]
    return follow([(0, 0, first), (1, 0, second), (returning, 400, again)]), 580


def test_an_animal_that_comes_out_of_its_nest_is_the_one_that_looks_the_same() -> None:
    for returning in (0, 1):
        tracked, frames = nest_scene(returning)
        assert len(choose_objects(tracked, frames, SIZE)) == 3
        found, moving = find_objects(tracked, frames, SIZE)
        assert moving == len(found) == 2
        returned = [one.sightings.column("frame")[-1] == frames - 1 for one in found]
        assert returned[returning]
        assert sum(returned) == 1


def test_an_animal_that_looks_different_is_another_one() -> None:
    tracked, frames = nest_scene(returning=2)
    assert len(find_objects(tracked, frames, SIZE)[0]) == 3


def test_where_several_hide_the_return_is_listed_as_a_crossing() -> None:
    tracked, frames = nest_scene(returning=0)
    found, _ = find_objects(tracked, frames, SIZE)
    [crossing] = [each for each in find_crossings(found, pause=3) if each.last == 400]
    assert crossing.objects == (1, 2)
    assert crossing.first == 189
    assert crossing.confidence == 0.5


def leaving_scene() -> tuple[list[TrackedObject], int]:
    """Two animals; one leaves to the left and later enters at the right."""
    t = np.arange(400)
    stays = np.stack([120 + 40 * np.sin(t / 20), 120 + 15 * np.cos(t / 17), 0 * t], 1)
    leaves = np.stack([100 - 1.0 * t, 40 + 8 * np.sin(t / 11), 0 * t], 1)[:120]
    enters = np.stack([260 - 1.0 * t, 60 + 8 * np.sin(t / 11), 0 * t], 1)[:160]
    return follow([(0, 0, stays), (1, 0, leaves), (1, 240, enters)]), len(t)


def test_with_a_given_number_whoever_enters_is_the_one_that_is_missing() -> None:
    tracked, frames = leaving_scene()
    assert len(find_objects(tracked, frames, SIZE)[0]) == 3
    assert len(find_objects(tracked, frames, SIZE, wanted=3)[0]) == 3
    found, _ = find_objects(tracked, frames, SIZE, wanted=2)
    spans = [one.sightings.column("frame")[[0, -1]].tolist() for one in found]
    assert spans == [[0, 399], [0, 399]]


def test_fewer_than_are_seen_at_once_are_not_joined() -> None:
    tracked, frames = leaving_scene()
    [one], moving = find_objects(tracked, frames, SIZE, wanted=1)
    assert moving == 3
    assert len(one.sightings) == frames
    assert most_at_once(tracked, frames) == 2


def test_a_scene_is_closed_if_objects_vanish_inside() -> None:
    for scene, closed in ((nest_scene(0), True), (leaving_scene(), False)):
        tracked, frames = scene
        assert is_closed(choose_objects(tracked, frames, SIZE), frames, SIZE) == closed
    assert find_objects([], 10, SIZE, wanted=2) == ([], 0)
