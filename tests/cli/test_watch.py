"""`ul watch` on damaged files, and on pictures of different sizes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.command import UlCommand
from tests.films import ball, read_table, write_ball, write_pictures, write_truncated


def test_pictures_that_change_size_need_a_size(tmp_path: Path, here: UlCommand) -> None:
    frames = [*ball(4)[0], *ball(4, 32, 32)[0]]
    folder = write_pictures(tmp_path / "mixed", frames)
    code, out, errors = here("watch", folder, "--objects", "1")
    assert code == 2
    assert errors.endswith(
        "make them the same size, or give a size as height x width, such as --size 48x64\n"
    )
    assert len(out.splitlines()) == 1 + 4, "rows up to there"
    code, out, errors = here("watch", folder, "--size", "16x16", "--objects", "1")
    assert (code, errors, len(out.splitlines())) == (0, "", 1 + 8)


@pytest.mark.parametrize("damage", ["at the end", "in the middle"])
def test_a_damaged_file_is_used_as_far_as_it_goes(
    tmp_path: Path, here: UlCommand, damage: str
) -> None:
    path = tmp_path / "a.mp4"
    if damage == "at the end":
        write_truncated(path)
    else:
        write_ball(path, 40)
        content = bytearray(path.read_bytes())
        first, last = len(content) // 4, len(content) // 2
        content[first:last] = bytes(last - first)
        path.write_bytes(content)
    code, _, errors = here("watch", path, "--out", tmp_path / "out", "--quiet", "--objects", "1")
    assert code == 2
    found = re.fullmatch(
        rf"ul watch: {path}: broken after frame (\d+); (\d+) frames can be read; they were used\n",
        errors,
    )
    assert found is not None, errors
    rows = read_table(tmp_path / "out" / "tracks.csv")
    assert 0 < len(rows) == int(found[2]) <= 40
