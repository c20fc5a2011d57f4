"""Files of zones: what they mean, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ullayers.tracks.behaviour import ZoneError, Zones, contains, read_zones

SQUARE = [[10, 10], [90, 10], [90, 90], [10, 90]]


def written(folder: Path, content: Any) -> Path:
    path = folder / "zones.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_units(tmp_path: Path) -> None:
    pixels = read_zones(written(tmp_path, {"zones": {"nest": SQUARE}}))
    assert pixels.polygons(100, 100)["nest"].tolist() == SQUARE
    shares = read_zones(
        written(tmp_path, {"units": "frame", "zones": {"all": [[0, 0], [1, 0], [1, 1], [0, 1]]}})
    )
    assert shares.polygons(640, 480)["all"].max(0).tolist() == [640, 480]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "expected JSON"),
        ("[]", "expected JSON"),
        ("[" * 100_000, "expected JSON"),
        ({"zones": {}}, "has no zone"),
        ({"zones": {"a": [[0, 0], [1, 1]]}}, "3 to 500 corners"),
        ({"zones": {"a": [[0, 0], [9, 9], [9, 0], [0, 9]]}}, "cross"),
        ({"zones": {"a": [[0, 0], [9, 0], [4, 0]]}}, "cross"),
        ({"zones": {"a": [[0, 0], [4, 0], [9, 0]]}}, "zone 'a'"),
        ({"zones": {"a": [[0, 0], [0, 0], [9, 0], [9, 9]]}}, "same"),
        ({"zones": {"a": [[0, 0], [9, 0], [9, "x"]]}}, "expected"),
        ({"zones": {" ": SQUARE}}, "names"),
        ({"zones": {"a": SQUARE}, "unit": "frame"}, "unknown entry"),
        ({"zones": {"a": SQUARE}, "units": "metres"}, "units"),
        ('{"zones": {"a": [[0, 0], [NaN, 0], [9, 9]]}}', "expected"),
        (
            '{"zones": {"a": [[0,0],[9,0],[9,9]], "a": [[0,0],[5,0],[5,5]]}}',
            "two zones are named 'a'",
        ),
    ],
)
def test_bad_files_are_refused_in_one_line(content: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(ZoneError, match=words) as refused:
        read_zones(written(tmp_path, content))
    assert "\n" not in str(refused.value)
    assert "--zones" in str(refused.value)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ZoneError, match="does not exist"):
        read_zones(tmp_path / "no.json")
    with pytest.raises(ZoneError, match="cannot be read"):
        read_zones(tmp_path)


def test_zones_beyond_the_frame() -> None:
    zones = Zones({"far": [(0, 0), (700, 0), (700, 100)]})
    with pytest.raises(ZoneError, match="'far' reaches beyond the frames of 640 x 480"):
        zones.polygons(640, 480)


def test_points_in_a_concave_polygon() -> None:
    horseshoe = np.array([[0.0, 0], [9, 0], [9, 9], [6, 9], [6, 3], [3, 3], [3, 9], [0, 9]])
    x, y = np.array([1.0, 4.5, 8.0, 4.5, -1.0]), np.array([8.0, 8.0, 8.0, 1.0, 5.0])
    assert contains(horseshoe, x, y).tolist() == [True, False, True, True, False]
    assert contains(horseshoe[::-1], x, y).tolist() == [True, False, True, True, False]


def test_neighbouring_zones_share_no_point() -> None:
    random = np.random.default_rng(0)
    x, y = random.integers(0, 11, (2, 500)).astype(float)
    left = np.array([[0.0, 0], [5, 0], [7, 11], [0, 11]])
    right = np.array([[5.0, 0], [11, 0], [11, 11], [7, 11]])
    whole = np.array([[0.0, 0], [11, 0], [11, 11], [0, 11]])
    both = contains(left, x, y).astype(int) + contains(right, x, y)
    np.testing.assert_array_equal(both, contains(whole, x, y))
