"""With a still camera, the object is found in changing light and wherever it rests."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.locate.moving_scene import film as moving_film
from tests.locate.still_films import HEIGHT, WIDTH, Places, circle, film
from ullayers.locate.moving.segment import Segments
from ullayers.locate.outline import contrast_outline
from ullayers.locate.recording.windows import (
    MovingRecording,
    StillRecording,
    find_still_scene,
    fits,
)
from ullayers.locate.scene.background import still_scene
from ullayers.locate.scene.still import StillScene
from ullayers.tracks.masks import EDGE


def scene_of(frames: NDArray[np.uint8]) -> StillRecording:
    rows = np.linspace(0, len(frames) - 2, 48).astype(int)
    scene = find_still_scene(frames[rows], frames[rows + 1])
    assert scene is not None
    return StillRecording.start(scene, frames[rows])


def distances(found: Segments, places: Places) -> NDArray[np.float64]:
    """In pixels; infinite where nothing was found."""
    apart = np.linalg.norm(found.positions * (WIDTH, HEIGHT) - (places + 0.5), axis=1)
    return np.where(np.isnan(apart), np.inf, apart)


@pytest.mark.parametrize(
    "light",
    [{}, {"noise": 12.0}, {"bands": 0.08}, {"drift": 0.4}, {"radius": 2}],
    ids=["plain", "noise", "bands", "drift", "small"],
)
def test_a_disc_is_found_in_any_light(light: dict[str, float]) -> None:
    places = circle(160)
    frames = film(places, **light)  # type: ignore[arg-type]
    found = scene_of(frames).segment(frames)
    assert np.quantile(distances(found, places), 0.95) < 2
    assert np.mean(found.confidence >= 0.5) > 0.9


def test_an_object_that_rests_most_of_the_time_is_found() -> None:
    places = circle(200)
    places[:140] = places[140]  # in the median of every pixel
    frames = film(places)
    found = scene_of(frames).segment(frames)
    assert np.quantile(distances(found, places), 0.95) < 2


def test_a_textured_object_that_rests_most_of_the_time_is_found() -> None:
    """Its edges are no stronger than those of the scene behind it."""
    places = circle(200)
    places[:130] = places[130]
    frames, masks = textured_object(places, radius=12, texture=2.0)
    found = scene_of(frames).segment(frames)
    assert np.quantile(distances(found, places), 0.95) < 2
    both = np.count_nonzero(found.masks & masks, axis=(1, 2))
    either = np.count_nonzero(found.masks | masks, axis=(1, 2))
    assert np.quantile(both / either, 0.1) > 0.8


def textured_object(
    places: Places, radius: int = 40, texture: float = 1.0
) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Return a film of a textured disc, and its masks."""
    rng = np.random.default_rng(5)
    coat = cv2.GaussianBlur(rng.normal(0, 80, (HEIGHT, WIDTH, 3)).astype(np.float32), (0, 0), 2)
    frames = film(np.full_like(places, np.nan), texture=texture)
    masks = np.zeros(frames.shape[:3], bool)
    for frame, mask, (x, y) in zip(frames, masks, places.round().astype(int), strict=True):
        mask[:] = cv2.circle(np.zeros((HEIGHT, WIDTH), np.uint8), (x, y), radius, 1, -1) > 0
        moved = np.roll(coat, (y - HEIGHT // 2, x - WIDTH // 2), (0, 1))
        frame[mask] = (90 + moved[mask]).clip(0, 255)
    return frames, masks


def test_an_object_that_hides_the_scene_most_of_the_time_is_outlined() -> None:
    t = np.arange(200)
    places = np.stack([80 + 60 * np.sin(t / 12), np.full(200, 60.0)], axis=1)
    frames, masks = textured_object(places)
    hidden = masks.mean(0) > 0.5
    assert hidden.mean() > 0.1, "a median over time shows the object here"
    found = scene_of(frames).segment(frames)
    both = np.count_nonzero(found.masks & masks, axis=(1, 2))
    either = np.count_nonzero(found.masks | masks, axis=(1, 2))
    assert np.quantile(both / either, 0.1) > 0.8  # 0.35 with a median over all frames


def test_an_object_that_never_leaves_its_place_is_outlined() -> None:
    places = (circle(200) - (80, 60)) / 4 + (80, 60)
    frames, masks = textured_object(places, radius=30)
    assert masks.all(axis=0).mean() > 0.05, "the scene is never seen here"
    found = scene_of(frames).segment(frames)
    both = np.count_nonzero(found.masks & masks, axis=(1, 2))
    either = np.count_nonzero(found.masks | masks, axis=(1, 2))
    assert np.quantile(both / either, 0.1) > 0.8  # 0.41 with the median


def test_an_object_that_rests_and_moves_in_one_place_is_found() -> None:
    """Around this place, most frames without motion show the object at rest."""
    angle = np.arange(200) / 3
    places = np.stack([55 + 12 * np.cos(angle), 60 + 12 * np.sin(angle)], axis=1)
    places[:70] = 55, 60
    places[170:] = circle(200)[170:] / 2 + (70, 20)  # somewhere else
    frames = film(places, radius=9)
    found = scene_of(frames).segment(frames)
    assert np.quantile(distances(found, places), 0.9) < 3


def test_leaves_that_always_move_are_part_of_the_scene() -> None:
    places = circle(160)
    frames = film(places)
    rng = np.random.default_rng(3)
    leaves = cv2.GaussianBlur(rng.normal(0, 60, (60, 80, 3)).astype(np.float32), (0, 0), 1.5)
    for frame in frames:
        down, right = rng.integers(0, 5, 2)
        frame[:40, :60] = 100 + leaves[down : down + 40, right : right + 60]
    found = scene_of(frames).segment(frames)
    assert np.mean(found.masks[:, :40, :60]) < 0.01


def test_windows_continue_each_other() -> None:
    places = circle(160)
    frames = film(places)
    whole = scene_of(frames).segment(frames)
    recording = scene_of(frames)
    parts = [recording.segment(frames[start : start + 40]) for start in range(0, 160, 40)]
    np.testing.assert_array_equal(np.concatenate([p.positions for p in parts]), whole.positions)


def test_the_outline_covers_the_disc() -> None:
    places = circle(160)
    frames = film(places, radius=8)
    found = scene_of(frames).segment(frames)
    truth = np.zeros((HEIGHT, WIDTH), np.uint8)
    cv2.circle(truth, (round(places[50, 0]), round(places[50, 1])), 8, 1, -1)
    both = np.count_nonzero(found.masks[50] & (truth > 0))
    either = np.count_nonzero(found.masks[50] | (truth > 0))
    assert both / either > 0.85


def test_a_faint_part_has_an_outline_of_its_own() -> None:
    """Trousers that differ from the scene by less than half as much as the jacket."""
    frame = np.full((60, 60, 3), 200, np.uint8)
    scene = StillScene(frame.astype(np.float32), np.ones((60, 60), np.float32), bands=False)
    frame[10:30, 20:34] = 40
    frame[30:50, 20:34] = 130
    part = np.zeros((60, 60), bool)
    part[9:51, 19:35] = True
    outlined = contrast_outline(frame, scene, np.ones((1, 1, 1), np.float32), part)
    mask = np.zeros((60, 60), bool)
    mask[outlined.box] = outlined.soft >= EDGE
    truth = frame[..., 0] < 200
    assert np.count_nonzero(mask != truth) < 0.1 * np.count_nonzero(truth)


def test_nothing_is_found_in_noise() -> None:
    nothing = np.full((160, 2), np.nan)
    frames = film(nothing, noise=8.0)
    found = scene_of(frames).segment(frames)
    assert np.mean(found.confidence >= 0.5) < 0.05


def test_two_equal_discs_are_noticed() -> None:
    frames = film(circle(160))
    second = film(circle(160)[::-1])
    both = np.minimum(frames, second)
    assert np.median(scene_of(both).segment(both).others) > 0.5
    assert np.median(scene_of(frames).segment(frames).others) < 0.1


def test_a_moving_camera_is_recognised() -> None:
    for kind in ("pan", "zoom"):
        frames, _ = moving_film(kind, count=40)
        assert find_still_scene(frames[:-1:2], frames[1::2]) is None
    slow = np.stack([np.roll(film(circle(1))[0], t // 10, axis=1) for t in range(160)])
    assert find_still_scene(slow[:-1:4], slow[1::4]) is None


def test_a_still_camera_before_a_plain_wall_is_recognised() -> None:
    """Noise alone can be matched by small motions of a camera, which must not count."""
    rng = np.random.default_rng(0)
    frames = np.full((60, HEIGHT, WIDTH, 3), 128.0) + rng.normal(0, 3, (60, HEIGHT, WIDTH, 1))
    for frame, (x, y) in zip(frames, circle(60), strict=True):
        frame[round(y) - 5 : round(y) + 5, round(x) - 5 : round(x) + 5] = (200, 30, 30)
    pixels = frames.round().clip(0, 255).astype(np.uint8)
    assert find_still_scene(pixels[:-1:2], pixels[1::2]) is not None


def test_a_scene_fits_its_own_frames_only() -> None:
    frames = film(circle(60))
    scene = still_scene(frames[::2])
    assert fits(scene, frames[1::2])
    assert not fits(scene, np.ascontiguousarray(frames[:, :, ::-1]))


def test_attention_chooses_between_objects() -> None:
    """Two discs move alike; the network looks at one of them."""
    places = circle(40)
    others = np.stack([places[:, 0], HEIGHT - places[:, 1]], axis=1)
    frames = np.minimum(film(places, noise=1.0), film(others, noise=1.0))
    attention = np.zeros((40, HEIGHT, WIDTH), np.float32)
    for t, (x, y) in enumerate(others):
        cv2.circle(attention[t], (round(x), round(y)), 8, 1.0, -1)
    found = MovingRecording().segment(frames, attention)
    apart = np.abs(places[:, 1] - others[:, 1]) > 30  # elsewhere the discs touch
    assert np.median(distances(found, others)[apart]) < 4


def test_a_position_between_two_objects_is_unsure() -> None:
    places = circle(160)
    pair = film(places)
    for frame, (x, y) in zip(pair, places, strict=True):
        cv2.circle(frame, (round(x) + 15, round(y)), 6, (30, 30, 40), -1)
    found = scene_of(pair).segment(pair)
    between = distances(found, places + np.array([7.5, 0])) < 2
    assert between.mean() > 0.9
    assert np.mean(found.confidence[between] < 0.5) > 0.95


def test_slow_changes_of_the_light_are_not_motion_of_the_camera() -> None:
    places = circle(160)
    gain = np.linspace(0.5, 1.8, len(places))[:, None, None, None]
    brighter = (film(places) * gain).clip(0, 255).astype(np.uint8)  # the wall is overexposed
    found = scene_of(brighter).segment(brighter)
    assert np.quantile(distances(found, places), 0.9) < 2


def test_a_key_frame_that_changes_everything_a_little_is_not_an_object() -> None:
    places = circle(160)
    places[120:] = np.nan
    frames = film(places, noise=0.5)
    blocks = np.random.default_rng(3).normal(0, 4, (HEIGHT // 2, WIDTH // 2, 3)).astype(np.float32)
    frames[120:] = (frames[120:] + cv2.resize(blocks, (WIDTH, HEIGHT))).clip(0, 255)
    found = scene_of(frames).segment(frames)
    assert np.mean(found.confidence[120:] >= 0.5) < 0.1
    assert np.mean(found.confidence[:120] >= 0.5) > 0.9


def test_the_outline_covers_a_textured_object() -> None:
    """It has stripes of a low contrast, like a white dog in front of sand."""
    behind = np.full((HEIGHT, WIDTH, 3), 150, np.float32)
    scene = StillScene(behind, np.ones((HEIGHT, WIDTH), np.float32), bands=False)
    disc = cv2.circle(np.zeros((HEIGHT, WIDTH), np.uint8), (80, 60), 24, 1, -1) > 0
    columns = np.arange(WIDTH) % 8
    frame = behind.astype(np.uint8)
    frame[disc & (columns < 4)] = 70
    frame[disc & (columns >= 4)] = 128
    found = contrast_outline(frame, scene, np.ones((1, 1, 1), np.float32), disc)
    mask = np.zeros((HEIGHT, WIDTH), bool)
    mask[found.box] = found.soft >= EDGE
    assert (mask & disc).sum() > 0.9 * disc.sum()
    assert mask.sum() < 1.1 * disc.sum()


def test_legs_of_a_large_object_belong_to_its_outline_but_not_a_thin_tail() -> None:
    behind = np.full((HEIGHT, WIDTH, 3), 150, np.float32)
    scene = StillScene(behind, np.ones((HEIGHT, WIDTH), np.float32), bands=False)
    body, tail = np.zeros((2, HEIGHT, WIDTH), bool)
    body[20:70, 30:120] = True
    body[70:110, 36:44] = body[70:110, 104:112] = True  # legs
    tail[30:33, 120:150] = True
    frame = behind.astype(np.uint8)
    frame[body | tail] = 60
    found = contrast_outline(frame, scene, np.ones((1, 1, 1), np.float32), body | tail)
    mask = np.zeros((HEIGHT, WIDTH), bool)
    mask[found.box] = found.soft >= EDGE
    assert mask[body].mean() > 0.95
    assert mask[tail].mean() < 0.2


def test_the_outline_covers_an_object_before_two_backdrops() -> None:
    behind = np.full((HEIGHT, WIDTH, 3), 200, np.float32)
    behind[:, WIDTH // 2 :] = 110
    scene = StillScene(behind, np.ones((HEIGHT, WIDTH), np.float32), bands=False)
    frame = behind.astype(np.uint8)
    cv2.circle(frame, (WIDTH // 2, HEIGHT // 2), 20, (60, 60, 60), -1)
    disc = np.all(frame == 60, axis=-1)
    found = contrast_outline(frame, scene, np.ones((1, 1, 1), np.float32), disc)
    mask = np.zeros((HEIGHT, WIDTH), bool)
    mask[found.box] = found.soft >= EDGE
    right = np.s_[:, WIDTH // 2 :]
    assert mask[right].sum() > 0.8 * disc[right].sum()  # 0.06 with one contrast for all of it
    assert mask.sum() < 1.1 * disc.sum()
