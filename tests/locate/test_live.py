"""Several objects while frames arrive: the scene, the number of objects, and who is who."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import cv2
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import ullayers.locate.tracking.live as live_objects
from tests.locate.still_films import HEIGHT, WIDTH, circle, film, wall
from ullayers.learning.config import Config
from ullayers.locate.tracking.live import (
    LiveObject,
    LiveObjects,
    LiveScene,
    is_in_front,
    live_state,
    restore,
)
from ullayers.run.watcher import Watcher

Frame = NDArray[np.uint8]
PATIENCE = 12


def discs(
    paths: NDArray[np.float64], shades: tuple[int, ...] = (30, 60), seed: int = 0
) -> Iterator[Frame]:
    """Yield frames with discs at (time, objects, 2) places; none where they are NaN."""
    rng = np.random.default_rng(seed)
    behind = wall() + 60
    for places in paths:
        frame = behind + rng.normal(0, 3, behind.shape)
        for (x, y), shade in zip(places, shades, strict=False):
            if not np.isnan(x):
                centre = round(16 * x), round(16 * y)
                cv2.circle(frame, centre, 6 * 16, (shade,) * 3, -1, cv2.LINE_AA, 4)
        yield frame.round().clip(0, 255).astype(np.uint8)


def passing(frames: int) -> NDArray[np.float64]:
    """Return two objects that pass each other again and again, side by side."""
    t = np.arange(frames)
    wave = 50 * np.cos(2 * np.pi * t / 160)
    first = np.stack([80 + wave, 56 + 0 * t], 1)
    second = np.stack([80 - wave, 66 + 0 * t], 1)
    return np.stack([first, second], 1)


def watch(live: LiveObjects, frames: Iterable[Frame]) -> list[tuple[LiveObject, ...]]:
    return [live.see(frame) for frame in frames]


def places(found: tuple[LiveObject, ...]) -> dict[int, NDArray[np.float64]]:
    return {one.number: np.array([one.x * WIDTH, one.y * HEIGHT]) for one in found}


def test_objects_keep_their_numbers_when_they_pass() -> None:
    paths = passing(280)
    live = LiveObjects(None, PATIENCE)
    found = watch(live, discs(paths))
    assert live.names == 2
    assert all(len(each) == 2 for each in found[40:])
    own = {
        number: np.linalg.norm(paths[40] - place, axis=1).argmin()
        for number, place in places(found[40]).items()
    }
    assert sorted(own.values()) == [0, 1]
    distance = [
        np.linalg.norm(paths[t, own[number]] - place)
        for t in range(40, len(paths))
        for number, place in places(found[t]).items()
    ]
    assert np.median(distance) < 1
    assert np.mean(np.array(distance) < 6) > 0.97, "within the object, but for the crossings"


def test_outlines_and_labels_are_those_of_the_objects() -> None:
    paths = passing(60)
    live = LiveObjects(None, PATIENCE)
    found = watch(live, discs(paths))[-1]
    for one in found:
        mask = live.labels == one.number
        assert mask.sum() == pytest.approx(np.pi * 36, rel=0.25)
        drawn = np.zeros(mask.shape, np.uint8)
        corners = (one.outline * (WIDTH, HEIGHT) - 0.5).round().astype(np.int32)
        cv2.fillPoly(drawn, [corners], 1)
        assert (drawn.astype(bool) == mask).mean() > 0.999
        assert one.confidence > 0.5


def test_an_exchange_is_undone_by_the_appearance() -> None:
    """Two tracks are exchanged unnoticed, as in a crossing where one object hides the other."""
    paths = passing(340)
    live = LiveObjects(None, PATIENCE)
    frames = list(discs(paths, shades=(30, 90)))
    before = places(watch(live, frames[:279])[-1])  # they are together around 280
    for one in live.tracker.active:
        one.place = paths[279, 1 - int(np.linalg.norm(paths[279] - one.place, axis=1).argmin())]
        one.velocity = -one.velocity
    after = places(watch(live, frames[279:330])[-1])
    for number, place in before.items():
        own = np.linalg.norm(paths[278] - place, axis=1).argmin()
        assert np.linalg.norm(paths[329, own] - after[number]) < 6


def test_one_object_and_things_that_are_none() -> None:
    """A lamp that flickers and a thing that is moved once are not counted."""
    moving = circle(300)[:160]
    rng = np.random.default_rng(0)
    live = LiveObjects(None, PATIENCE)
    counts = []
    for t, frame in enumerate(film(moving)):
        if rng.random() < 0.5:
            frame[5:15, 5:15] = 250
        left = 120 if t < 100 else 126
        frame[100:112, left : left + 12] = 240
        counts.append(len(live.see(frame)))
    assert max(counts) == 1
    assert np.mean(np.array(counts[60:]) == 1) > 0.95


def test_what_was_there_from_the_beginning_leaves_nothing_behind() -> None:
    """The first frame shows the object: its place is background after a few frames."""
    live = LiveObjects(None, PATIENCE)
    for frame in film(circle(200)[:60]):
        live.see(frame)
    assert np.abs(live.scene.backdrop - wall()).max(2)[90:].mean() < 4
    first = np.zeros((HEIGHT, WIDTH), np.uint8)
    cv2.circle(first, (130, 60), 5, 1, -1)
    assert np.abs(live.scene.backdrop - wall()).mean(2)[first > 0].mean() < 8


def test_an_object_that_stops_is_kept_and_one_that_leaves_is_given_up() -> None:
    moving = circle(200)[:80]
    resting = np.concatenate([moving, np.repeat(moving[-1:], 200, axis=0)])
    live = LiveObjects(None, PATIENCE)
    found = watch(live, film(resting))
    assert all(len(each) == 1 and each[0].confidence > 0.5 for each in found[60:])
    nothing = np.full((PATIENCE + 2, 2), np.nan)
    gone = watch(live, film(nothing, seed=1))
    assert [each[0].confidence for each in gone[:2]] == [0.0, 0.0], "expected where it was"
    assert len(gone[0][0].outline) == 0
    assert gone[-1] == ()


def test_an_object_that_comes_back_has_its_number() -> None:
    paths = passing(300)
    paths[150:200, 1] = np.nan  # hidden for longer than the patience
    live = LiveObjects(None, PATIENCE)
    found = watch(live, discs(paths))
    assert [one.number for one in found[140]] == [1, 2]
    assert len(found[190]) == 1
    assert [one.number for one in found[-1]] == [1, 2]
    assert live.names == 2


def test_an_animal_that_lives_in_an_arena_has_one_number() -> None:
    """Also if it hides, and comes out far away."""
    t = np.arange(280)
    paths = np.stack([35 + 20 * np.cos(t / 30), 60 + 20 * np.sin(t / 30)], 1)
    paths[150:170] = np.nan
    paths[170:, 0] += 90
    live = LiveObjects(None, PATIENCE)
    found = watch(live, discs(paths[:, None]))
    assert [one.number for one in found[140]] == [1]
    assert found[165] == ()
    assert [one.number for one in found[-1]] == [1]
    assert live.names == 1


def test_the_number_of_objects_can_be_given() -> None:
    third = np.stack([20 + np.arange(150) * 0.8, np.full(150, 100.0)], 1)
    paths = np.concatenate([passing(150), third[:, None]], 1)
    live = LiveObjects(2, PATIENCE)
    found = watch(live, discs(paths, shades=(30, 60, 45)))
    assert {one.number for each in found for one in each} == {1, 2}
    assert len(found[-1]) == 2


def test_light_that_changes_and_a_scene_that_changes() -> None:
    live = LiveObjects(None, PATIENCE)
    found = watch(live, film(circle(200)[:100], drift=0.5))
    assert all(len(each) == 1 for each in found[60:])
    another = np.full((HEIGHT, WIDTH, 3), 30, np.uint8)
    another[::2] = 200
    for _ in range(PATIENCE + 3):
        shown = live.see(another)
    assert shown == ()


@pytest.mark.parametrize("count", [1, 45])
def test_going_on_from_a_state_is_exact(count: int) -> None:
    frames = list(discs(passing(80)))
    first, second = LiveObjects(None, PATIENCE), LiveObjects(None, PATIENCE)
    watch(first, frames[:count])
    damaged = live_state(first) | {"tracks": np.zeros((3, 2))}
    restore(second, live_state(first))
    rest = frames[count:]
    for before, after in zip(watch(first, rest), watch(second, rest), strict=True):
        assert [one.number for one in before] == [one.number for one in after]
        for one, other in zip(before, after, strict=True):
            assert (one.x, one.y, one.confidence) == (other.x, other.y, other.confidence)
            assert np.array_equal(one.outline, other.outline)
    with pytest.raises(ValueError, match="numbers"):
        restore(second, damaged)


def test_what_is_kept_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flicker starts a track every few frames; their numbers start again before they overflow."""
    monkeypatch.setattr(live_objects, "MOST_TRACKS", 20)
    rng = np.random.default_rng(0)
    live = LiveObjects(None, 3)
    sizes = []
    for t, frame in enumerate(film(circle(400)[:200])):
        if t % 5 == 0:
            left, top = rng.integers(0, 40, 2)
            frame[top : top + 8, left : left + 8] = 250
        found = live.see(frame)
        sizes.append(sum(array.size for array in live_state(live).values()))
    assert live.tracker.count < 30
    assert [one.number for one in found] == [1]
    assert max(sizes[100:]) < 1.1 * max(sizes[50:100])


def test_a_camera_that_moves_shows_the_main_object() -> None:
    rng = np.random.default_rng(0)
    texture = rng.normal(0, 60, (HEIGHT, 3 * WIDTH, 3)).astype(np.float32)
    wide = (120 + cv2.GaussianBlur(texture, (0, 0), 2)).clip(0, 255).astype(np.uint8)
    watcher = Watcher(Config(), 3, (48, 64), LiveObjects(None, PATIENCE))
    watcher.learning = False
    counts = []
    for t in range(60):
        left = 0 if t < 20 else 4 * (t - 20)
        frame = wide[:, left : left + WIDTH].copy()
        cv2.circle(frame, (20 + 2 * t, 60), 6, (250, 250, 250), -1)
        watcher.see(torch.from_numpy(frame).permute(2, 0, 1))
        counts.append(len(watcher.objects))
    assert counts[-20:] == [1] * 20
    assert watcher.objects[0].x == pytest.approx((20 + 2 * 59) / WIDTH, abs=0.15)


def test_who_enters_the_frame_is_not_an_animal_that_hides() -> None:
    t = np.arange(260.0)
    resident = np.stack([80 + 50 * np.cos(t / 12), 56 + 30 * np.sin(t / 12)], 1)
    resident[140:] = np.nan  # it hides
    entering = np.stack([1.5 * (t - 160), np.full(len(t), 60.0)], 1)
    entering[:160] = np.nan
    live = LiveObjects(None, PATIENCE)
    found = watch(live, discs(np.stack([resident, entering], 1)))
    assert [one.number for one in found[130]] == [1]
    assert [one.number for one in found[-1]] == [2]


def test_a_part_of_an_object_at_rest_is_not_an_object() -> None:
    """An animal that is in the first frame moves by less than its length before it walks away."""
    t = np.arange(260.0)
    wiggle = np.stack([60 + 4 * np.sin(t / 5), 60 + 3 * np.sin(t / 3)], 1)
    walk = np.clip(t - 180, 0, None)[:, None] * (1.0, 0.0)
    live = LiveObjects(None, PATIENCE)
    found = watch(live, discs((wiggle + walk)[:, None]))
    assert all(each == () for each in found[:180])
    assert all(len(each) == 1 for each in found[220:])


def test_only_objects_are_in_front_of_the_scene() -> None:
    """Neither the place that one has left, nor a part of one, nor a change of light is."""
    scene, nothing = LiveScene(), np.zeros((HEIGHT, WIDTH), bool)
    resting = np.array([[[40.0, 60.0]]])
    cloth = np.s_[90:115, 120:150]
    for frame in discs(np.repeat(resting, 20, axis=0)):
        frame[cloth] = 220
        scene.update(scene.look(frame), nothing, nothing)
    rows, columns = np.mgrid[:HEIGHT, :WIDTH]

    def is_shown(disc: tuple[float, float], shade: int, thing: NDArray[np.bool_]) -> bool:
        [frame] = discs(np.array([[disc]]))
        frame[cloth] = shade
        return is_in_front(scene.look(frame), thing)

    def disc_at(x: float, y: float) -> NDArray[np.bool_]:
        return np.asarray(np.hypot(columns + 0.5 - x, rows + 0.5 - y) < 6)

    changed = np.zeros((HEIGHT, WIDTH), bool)
    changed[cloth] = True
    before = disc_at(40, 60)
    assert is_shown((80, 60), 220, disc_at(80, 60))
    assert not is_shown((80, 60), 220, before)
    assert not is_shown((45, 60), 220, disc_at(45, 60) & ~before)
    assert not is_shown((40, 60), 190, changed)


def test_an_animal_that_begins_to_move_later_is_known_at_once() -> None:
    t = np.arange(240.0)
    first = np.stack([80 + 50 * np.cos(t / 12), 40 + 25 * np.sin(t / 12)], 1)
    second = np.stack([40 + np.clip(t - 160, 0, None), np.full(len(t), 95.0)], 1)
    live = LiveObjects(None, PATIENCE)
    found = watch(live, discs(np.stack([first, second], 1)))
    assert all(len(each) == 1 for each in found[60:160])
    assert all(len(each) == 2 for each in found[212:])
