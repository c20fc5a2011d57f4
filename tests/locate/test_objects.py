"""Parts of frames are linked into the path of one object, and J prefers smooth paths."""

from __future__ import annotations

import numpy as np

from ullayers.locate.paths import (
    ObjectPath,
    Part,
    fill_gaps,
    in_world,
    label_parts,
    track_objective,
    trim_swollen,
)


def part(x: float, mass: float = 1.0) -> Part:
    return Part(x, 0.0, mass, 1)


def test_parts_are_ordered_by_mass_and_by_attention() -> None:
    strength = np.zeros((20, 20), np.float32)
    strength[2:5, 2:5] = 4
    strength[12:14, 12:14] = 5
    parts = label_parts(strength, 1.0).parts
    assert [round(p.x, 1) for p in parts] == [3.5, 13.0]
    attention = (strength == 5).astype(np.float32)
    assert round(label_parts(strength, 1.0, attention).parts[0].x, 1) == 13.0


def test_a_path_stays_with_its_object() -> None:
    """A second object is as clear, and for a while clearer."""
    frames = [[part(10 + t, 1.0), part(80 - t, 1.0 if t < 10 else 3.0)] for t in range(20)]
    frames[0] = frames[0][:1]
    assert ObjectPath(100, clear=1.0).follow(frames) == [0] * 20


def test_a_path_jumps_after_a_cut_and_waits_in_a_gap() -> None:
    frames = [[part(10)], [part(11)], [], [part(90)], [part(91)]]
    assert ObjectPath(100, clear=1.0).follow(frames) == [0, 0, None, 0, 0]
    assert ObjectPath(100, clear=1.0).follow([[], []]) == [None, None]


def test_a_swollen_part_at_the_beginning_is_cut_back() -> None:
    parts = np.zeros((12, 10, 30), bool)
    parts[:, 3:7, 3:7] = True
    parts[:2, 2:8, 3:30] = True
    trimmed = trim_swollen(parts)
    assert trimmed[0].any(0).sum() <= 4 + 2 * 3 * 2
    np.testing.assert_array_equal(trimmed[2:], parts[2:])


def test_j_prefers_slow_and_rich_tracks() -> None:
    rng = np.random.default_rng(0)
    slow = np.stack([np.linspace(0, 40, 60), 10 * np.sin(np.linspace(0, 6, 60))], axis=1)
    restless = slow + rng.normal(0, 5, slow.shape)
    still = 20 + rng.normal(0, 0.3, slow.shape)
    judged = [track_objective(path) for path in (slow, restless, still)]
    assert judged[0] < judged[1] < judged[2]


def test_a_track_with_few_frames_cannot_win() -> None:
    path = np.full((10, 2), np.nan)
    path[:3] = 1.0
    assert track_objective(path) == np.inf


def test_world_coordinates_undo_the_camera() -> None:
    shifts = np.stack([np.array([[1, 0, 2.0 * t], [0, 1, 0], [0, 0, 1]]) for t in range(5)])
    seen = np.stack([-2.0 * np.arange(5), np.ones(5)], axis=1)  # a fixed point, camera pans
    np.testing.assert_allclose(in_world(seen, shifts), np.tile([0.0, 1.0], (5, 1)), atol=1e-9)
    seen[2] = np.nan
    assert np.isnan(in_world(seen, shifts)).any(1).tolist() == [False, False, True, False, False]


def test_gaps_are_filled() -> None:
    path = np.array([[np.nan, np.nan], [1.0, 2.0], [np.nan, np.nan], [3.0, 6.0]])
    np.testing.assert_allclose(fill_gaps(path), [[1, 2], [1, 2], [2, 4], [3, 6]])
