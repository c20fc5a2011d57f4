"""Several objects: tracking through crossings, their number, and identities."""

import gc
import tracemalloc
from dataclasses import replace

import cv2
import numpy as np
import pytest

from ullayers.locate.recording.finder import ObjectFinder, SeenFrame
from ullayers.locate.tracking.blobs import (
    Blobs,
    axes_of,
    core_covariance,
    find_blobs,
    find_pieces,
    fit_ellipses,
    mix_gaussians,
    separation,
)
from ullayers.locate.tracking.identity import find_crossings, resolve
from ullayers.locate.tracking.selection import choose_objects
from ullayers.locate.tracking.settle import Several
from ullayers.locate.tracking.tracker import TrackedObject, Tracker
from ullayers.tracks.table import TRACK, Answer

SIZE = 240, 160  # width, height


def picture(
    ellipses: list[tuple[float, float, float]], shades: tuple[int, ...] = ()
) -> tuple[np.ndarray, np.ndarray]:
    """Return a frame with ellipses at x, y and angle, and the mask of all of them."""
    frame = np.full((SIZE[1], SIZE[0], 3), 200, np.uint8)
    mask = np.zeros((SIZE[1], SIZE[0]), np.uint8)
    for i, (x, y, angle) in enumerate(ellipses):
        shade = shades[i] if shades else 60
        place = round(16 * x), round(16 * y)
        axes = 14 * 16, 6 * 16
        cv2.ellipse(frame, place, axes, angle, 0, 360, (shade,) * 3, -1, shift=4)
        cv2.ellipse(mask, place, axes, angle, 0, 360, 1, -1, shift=4)
    return frame, mask > 0


def step(tracker: Tracker, blobs: Blobs) -> np.ndarray:
    """Return the number of the object of each pixel."""
    owners = np.zeros((SIZE[1], SIZE[0]), np.uint16)
    tracker.step(blobs, owners)
    return owners


def track(paths: np.ndarray, shades: tuple[int, ...] = ()) -> list[TrackedObject]:
    """Track ellipses along paths (time, objects, 3)."""
    tracker = Tracker(patience=10)
    for places in paths:
        frame, mask = picture(list(map(tuple, places)), shades)
        step(tracker, find_blobs(frame, mask, 9 * mask.astype(np.float32), 3.0, typical=100))
    return tracker.finish()


def crossing_paths(frames: int = 60) -> np.ndarray:
    """Return two objects that walk towards each other and pass, side by side."""
    t = np.linspace(0, 1, frames)
    still = np.zeros(frames)
    right = np.stack([30 + 180 * t, 74 + still, still], 1)
    left = np.stack([210 - 180 * t, 84 + still, still], 1)
    return np.stack([right, left], 1)


def places(one: TrackedObject) -> np.ndarray:
    return np.array([(each.x, each.y) for each in one.sightings])


def test_blobs_are_measured() -> None:
    frame, mask = picture([(60, 50, 0), (180, 90, 90)])
    blobs = find_blobs(frame, mask, 9 * mask.astype(np.float32), 3.0, typical=100)
    order = blobs.places[:, 0].argsort()
    assert np.allclose(blobs.places[order], [(60.5, 50.5), (180.5, 90.5)], atol=0.3)
    lying, standing = blobs.spreads[order]
    # The variance of a uniform ellipse along an axis is the square of a quarter of its length.
    assert np.sqrt(lying[0, 0]) == pytest.approx(7, rel=0.06)
    assert np.sqrt(standing[1, 1]) == pytest.approx(7, rel=0.06)
    assert blobs.boxes[order][0].tolist() == pytest.approx([46, 44, 75, 57], abs=1)
    assert np.allclose(blobs.colours[:, 0], 60)
    assert len(blobs.pixels(int(order[0]))) == blobs.areas[order[0]]


def test_the_axis_of_a_body_with_a_spread_wing() -> None:
    frame, mask = picture([(60, 50, 0)])
    body = mask.copy()
    mask[56:86, 48:56] = True  # the wing
    strength = np.where(body, 9.0, 3.6) * mask
    blobs = find_blobs(frame, mask, strength.astype(np.float32), 3.0, typical=100)
    assert abs(np.degrees(axes_of(blobs.spreads[0])[2])) > 30
    assert abs(np.degrees(axes_of(blobs.cores[0])[2])) < 3
    xx, xy, yy = core_covariance(mask, strength)
    assert np.allclose([[xx, xy], [xy, yy]], blobs.cores[0])
    assert np.isnan(core_covariance(mask & False, strength)).all()


def test_a_frame_without_blobs() -> None:
    frame, mask = picture([])
    blobs = find_blobs(frame, mask, mask.astype(np.float32), 3.0, typical=100)
    assert blobs.areas.shape == (0,)
    assert step(Tracker(5), blobs).max() == 0


def look_at(mask: np.ndarray) -> SeenFrame:
    nothing = np.full(2, np.nan), np.full(3, np.nan)
    return SeenFrame(*nothing, None, False, 0.0, False, find_pieces(mask), None)


def test_noise_does_not_decide_how_large_an_object_is() -> None:
    frame, mask = picture([(60, 50, 0), (180, 90, 90)])
    seen = [(mask, 9.0 * mask) for _ in range(20)]
    wide = mask.copy()
    wide[110:] = True  # just above the threshold of 3, and larger than all objects together
    seen[7] = wide, np.where(mask, 9, 3.5 * wide)
    finder = ObjectFinder(threshold=3.0, patience=10)
    frames = np.stack([frame] * len(seen))
    evidence = np.stack([strength for _, strength in seen]).astype(np.float32)
    finder.follow(frames, [look_at(where) for where, _ in seen], evidence)
    assert finder.typical == mask.sum() / 2
    lengths = sorted(len(one.sightings) for one in finder.tracker.finish())
    assert lengths[-2:] == [20, 20]
    assert sum(lengths[:-2]) <= 1
    assert np.count_nonzero(wide & ~mask) > 20 * np.count_nonzero(mask)


def test_faint_objects_have_an_area_too() -> None:
    frame, mask = picture([(60, 50, 0), (180, 90, 90)])
    finder = ObjectFinder(threshold=3.0, patience=10)
    looks = [look_at(mask), look_at(mask & False)]
    faint = np.stack([3.5 * mask, 0 * mask]).astype(np.float32)
    finder.follow(np.stack([frame, frame]), looks, faint)
    assert finder.typical == mask.sum() / 2


def test_objects_that_pass_each_other_keep_their_numbers() -> None:
    paths = crossing_paths()
    found = choose_objects(track(paths), len(paths), SIZE)
    assert len(found) == 2
    for i, one in enumerate(found):
        assert [each.frame for each in one.sightings] == list(range(len(paths)))
        error = np.linalg.norm(places(one) - paths[:, i, :2] - 0.5, axis=1)
        assert np.median(error) < 0.5
        assert error.max() < 6, "less than half of an object, also while they touch"
    [crossing] = find_crossings(found, pause=3)
    assert crossing.objects == (1, 2)
    touching = np.abs(paths[:, 0, 0] - paths[:, 1, 0]) < 28
    assert touching[crossing.first]
    assert touching[crossing.last]


def test_pixels_of_touching_objects_are_parted() -> None:
    tracker = Tracker(patience=10)
    for now in crossing_paths():
        frame, mask = picture(list(map(tuple, now)))
        owners = step(tracker, find_blobs(frame, mask, 9 * mask.astype(np.float32), 3.0, 100))
        assert ((owners > 0) == mask).all()
        _, first = picture([tuple(now[0])])
        _, second = picture([tuple(now[1])])
        wrong = ((owners == 1) & second & ~first) | ((owners == 2) & first & ~second)
        assert wrong.sum() < 0.15 * mask.sum()


def test_places_of_parted_pixels() -> None:
    grid = np.stack(np.meshgrid(np.arange(40.0), np.arange(10.0)), -1).reshape(-1, 2)
    spread = np.array([[33.0, 0], [0, 8.0]])
    start = np.array([(7.0, 6.0), (33.0, 3.0)])
    found = mix_gaussians(grid, start, np.stack([spread] * 2), np.array([200.0, 200.0]))
    assert np.allclose(found.places, [(9.5, 4.5), (29.5, 4.5)], atol=1)
    assert np.bincount(found.owner).tolist() == [200, 200]


def test_ellipses_that_cover_each_other_are_found() -> None:
    """Their common outline shows where both are, although their centres nearly coincide."""
    true = [(60.0, 60.0, 20.0), (64.0, 58.0, 110.0)]
    _, mask = picture(true)
    rows, columns = np.nonzero(mask)
    pixels = np.column_stack([columns, rows]).astype(float) + 0.5
    spread = np.diag([14.0**2, 6.0**2]) / 4
    spreads = np.stack([spread, spread[::-1, ::-1]])  # expected at 0 and 90 degrees
    found = fit_ellipses(pixels, np.array([(58.0, 61.0), (65.0, 60.0)]), spreads)
    assert np.allclose(found.places - 0.5, [each[:2] for each in true], atol=0.5)
    angles = np.degrees([axes_of(each)[2] for each in found.spreads]) % 180
    assert np.allclose(angles, [20, 110], atol=4)
    assert (found.known > 0.5).all()


def test_parts_of_an_object_behind_a_post_are_one_object() -> None:
    """Both parts are seen for long enough to be objects before the post ends."""
    paths = crossing_paths(120)[:, :1]
    tracker = Tracker(patience=10)
    for t, (x, y, _) in enumerate(paths[:, 0]):
        frame, mask = picture([(x, y, 90.0)])
        if t < 40:
            mask[int(y) + 2 : int(y) + 6] = False  # a bar hides a stripe of it
        step(tracker, find_blobs(frame, mask, 9 * mask.astype(np.float32), 3.0, typical=0))
    [one] = choose_objects(tracker.finish(), len(paths), SIZE)
    assert one.sightings.column("frame").tolist() == list(range(120))
    assert one.sightings[119].area > 240


def test_an_object_that_hides_is_the_same_when_it_returns() -> None:
    paths = crossing_paths(80)
    tracker = Tracker(patience=10)
    for t, now in enumerate(paths):
        seen = now[:1] if 10 < t < 16 else now
        frame, mask = picture(list(map(tuple, seen)))
        step(tracker, find_blobs(frame, mask, 9 * mask.astype(np.float32), 3.0, 100))
    assert len(tracker.finish()) == 2


def test_fragments_and_noise_are_not_objects() -> None:
    """Something that flickers at a place is dropped by J; a piece of an object by its size."""
    rng = np.random.default_rng(0)
    tracker = Tracker(patience=10)
    paths = crossing_paths(100)[:, :1]
    for t, now in enumerate(paths):
        frame, mask = picture(list(map(tuple, now)))
        x, y = now[0, :2].astype(int)
        if t % 3:
            mask[y - 6 : y + 7, x - 6 : x - 3] = False  # a stripe that cuts off a piece
        if t % 2:
            left, top = 200 + rng.integers(-1, 2), 140 + rng.integers(-1, 2)
            mask[top : top + 10, left : left + 10] = True
        step(tracker, find_blobs(frame, mask, 9 * mask.astype(np.float32), 3.0, 100))
    [one] = choose_objects(tracker.finish(), len(paths), SIZE)
    assert np.median(np.linalg.norm(places(one) - paths[:, 0, :2], axis=1)) < 5


def test_the_number_of_objects_can_be_given() -> None:
    paths = np.concatenate([crossing_paths(), crossing_paths()[:, :1] + (0, 50, 0)], 1)
    tracked = track(paths)
    assert len(choose_objects(tracked, len(paths), SIZE)) == 3
    assert len(choose_objects(tracked, len(paths), SIZE, wanted=2)) == 2
    assert len(choose_objects(tracked, len(paths), SIZE, wanted=5)) == 3
    assert choose_objects([], 10, SIZE) == []


def test_what_is_rarely_clear_is_not_an_object() -> None:
    """Branches in the wind: their path is like that of an object, but few sightings are clear."""
    paths = crossing_paths(90) + np.array([[0, -20, 0], [0, 20, 0]])
    tracker = Tracker(patience=10)
    for t, (animal, branch) in enumerate(paths):
        frame, mask = picture([tuple(animal), tuple(branch)])
        evidence = 9 * mask.astype(np.float32)
        if t % 3:
            _, left_out = picture([tuple(branch)])
            evidence[left_out] = 3.6  # above the threshold of 3, but below 4.5, where it is clear
        step(tracker, find_blobs(frame, mask, evidence, 3.0, typical=100))
    tracked = tracker.finish()
    assert len(choose_objects(tracked, len(paths), SIZE, wanted=2)) == 2
    [one] = choose_objects(tracked, len(paths), SIZE)
    assert np.median(np.linalg.norm(places(one) - paths[:, 0, :2], axis=1)) < 2


def test_a_short_visit_beside_a_resident_is_not_counted() -> None:
    """An experimenter's hand at the beginning is not a second animal."""
    t = np.arange(400)
    resident = np.stack([120 + 80 * np.sin(t / 40), 60 + 30 * np.cos(t / 31), 0 * t], 1)
    tracker = Tracker(patience=10)
    for n, place in enumerate(resident):
        visitor = [(10 + 3 * n, 140, 0)] if n < 25 else []
        frame, mask = picture([tuple(place), *visitor])
        step(tracker, find_blobs(frame, mask, 9 * mask.astype(np.float32), 3.0, 100))
    assert len(choose_objects(tracker.finish(), len(t), SIZE)) == 1


def swapped(objects: list[TrackedObject], frame: int) -> list[TrackedObject]:
    """Exchange two objects from a frame on, as a tracker does that confuses them."""
    first, second = (one.sightings for one in objects)
    parts = [first[:frame] + second[frame:], second[:frame] + first[frame:]]
    return [replace(one, sightings=own) for one, own in zip(objects, parts, strict=True)]


def back_and_forth(times: int) -> np.ndarray:
    """Return two objects that pass each other several times."""
    once = crossing_paths(50)
    return np.concatenate([once, once[::-1]] * times)


def test_appearance_undoes_an_exchange() -> None:
    paths = back_and_forth(4)
    found = choose_objects(track(paths, shades=(60, 75)), len(paths), SIZE)
    crossings = find_crossings(found, pause=3)
    assert len(crossings) == 8
    confused = swapped(found, crossings[3].nearest)
    resolved, judged = resolve(confused, crossings)
    for one in resolved:
        shades = [each.colours[0] for each in one.sightings if not each.company]
        assert np.ptp(shades) < 5, "an object has one shade"
    assert min(each.confidence for each in judged) > 0.9


def test_objects_that_look_alike_are_not_exchanged() -> None:
    """Without differences in appearance, motion decides."""
    paths = back_and_forth(4)
    found = choose_objects(track(paths), len(paths), SIZE)
    resolved, _ = resolve(found, find_crossings(found, pause=3))
    for before, after in zip(found, resolved, strict=True):
        assert np.allclose(places(before), places(after))


def test_sightings_do_not_pile_up_in_memory() -> None:
    """Hours of video are followed; a Python object for each frame would take a kilobyte."""
    frame, mask = picture([(60, 50, 0), (180, 90, 90)])
    blobs = find_blobs(frame, mask, 9 * mask.astype(np.float32), 3.0, typical=100)
    tracker, owners = Tracker(patience=10), np.zeros(mask.shape, np.uint16)
    for _ in range(1500):  # until Python's own lists of free objects are full
        tracker.step(blobs, owners)
    tracemalloc.start()
    for _ in range(500):
        tracker.step(blobs, owners)
    gc.collect()
    allocated = tracemalloc.take_snapshot()
    tracemalloc.stop()
    # Other threads of the tests allocate memory, too.
    ours = allocated.filter_traces([tracemalloc.Filter(True, "*/ullayers/locate/*")])
    growth = sum(trace.size for trace in ours.traces)
    assert 0 < growth / 1000 < 50, "bytes for each object and frame"
    assert [len(one.sightings) for one in tracker.finish()] == [2000, 2000]


def test_objects_that_hide_each_other_are_not_separated() -> None:
    """Otherwise a crossing of animals that look the same would have a high confidence."""
    spreads = np.stack([np.eye(2)] * 2)
    assert separation(np.zeros((2, 2)), spreads).tolist() == [0, 0]
    assert separation(np.array([(0.0, 0.0), (9.0, 0.0)]), spreads).tolist() == [1, 1]


def test_confidence_after_hiding_needs_a_difference_in_appearance() -> None:
    """Of animals that look the same, motion alone cannot tell which is which after they hid."""
    paths = back_and_forth(4)
    for shades, sure in (((60, 60), False), ((60, 75), True)):
        found = choose_objects(track(paths, shades=shades), len(paths), SIZE)
        hidden = [replace(each, apart=0.0) for each in find_crossings(found, pause=3)]
        judged = resolve(found, hidden)[1]
        assert len(judged) == 8
        assert all((each.confidence > 0.9) == sure for each in judged)
        if not sure:
            assert max(each.confidence for each in judged) < 0.7


def behind_a_disc(x: np.ndarray) -> Tracker:
    """Return a tracker that has followed an ellipse at x, which passes behind a resting disc."""
    tracker = Tracker(patience=100)
    frame = np.full((SIZE[1], SIZE[0], 3), 200, np.uint8)
    for column in x.round().astype(int):
        drawn = cv2.circle(np.zeros((SIZE[1], SIZE[0]), np.uint8), (120, 80), 22, 1, -1)
        mask = cv2.ellipse(drawn, (column, 80), (10, 5), 0, 0, 360, 1, -1) > 0
        step(tracker, find_blobs(frame, mask, 9 * mask.astype(np.float32), 3.0, typical=500))
    return tracker


def rows_of(tracker: Tracker) -> Answer:
    count = tracker.frame
    time = np.arange(count)
    main = Answer("film", time, time / 25, TRACK, np.zeros((count, 3)))
    several = Several(wanted=2)
    several.finish(tracker, main, SIZE, (1.0, 1.0))
    assert several.rows is not None
    return several.rows


def test_a_hidden_object_is_interpolated_without_confidence() -> None:
    x = np.linspace(30, 210, 90)
    rows = rows_of(behind_a_disc(x))
    passing, disc = (rows.values[rows.objects == number] for number in (1, 2))
    hidden = passing[:, 2] == 0
    assert np.count_nonzero(hidden) >= 3
    assert np.abs(x[hidden] - 120).max() < 22 - 10, "within the disc"
    assert np.abs(passing[hidden, 0] * SIZE[0] - x[hidden]).max() < 6
    assert np.all(disc[:, 2] > 0.5), "nothing hides the disc"


def test_an_object_that_stays_hidden_has_no_more_rows() -> None:
    x = np.concatenate([np.linspace(30, 120, 45), np.full(3, 120.0)])
    rows = rows_of(behind_a_disc(x))
    assert np.count_nonzero(rows.objects == 2) == len(x), "the disc"
    assert 40 <= np.count_nonzero(rows.objects == 1) <= 45
