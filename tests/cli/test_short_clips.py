"""Short clips of a camera whose scene a run has seen before."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.command import UlCommand, check_refused
from tests.films import column, write_pictures
from tests.locate.still_films import HEIGHT, WIDTH, circle, film
from ullayers.errors import RunError
from ullayers.locate.recording.windows import STILL_SIDE
from ullayers.run.plan import SCENES_FILE, read_scenes

QUICK = "--steps", "2", "--restarts", "1", "--quiet"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has seen the disc move."""
    from ullayers.cli.main import main

    place = tmp_path_factory.mktemp("seen")
    pictures = write_pictures(place / "disc", film(circle(160)))
    assert main(["learn", pictures, "--out", str(place / "run"), *QUICK]) == 0
    return place / "run"


@pytest.mark.parametrize("count", [1, 12])
def test_an_object_that_rests_in_a_short_clip_is_found(
    count: int, run: Path, tmp_path: Path, here: UlCommand
) -> None:
    place = np.array([[0.3 * WIDTH, 0.6 * HEIGHT]] * count)
    pictures = write_pictures(tmp_path / "resting", film(place, seed=1))
    code, _, errors = here("apply", run, pictures, "--out", tmp_path / "out", "--quiet")
    assert code == 0, errors
    rows = column(tmp_path / "out" / "tracks.csv", "x", "y", "confidence")
    assert np.abs(rows[:, :2] - (0.3, 0.6)).max() < 0.03
    assert (rows[:, 2] >= 0.5).all()
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["found"] == 1


def test_clips_of_another_scene_are_not_confused(
    run: Path, tmp_path: Path, here: UlCommand
) -> None:
    other = np.random.default_rng(0).integers(0, 255, (12, HEIGHT, WIDTH, 3), dtype=np.uint8)
    pictures = write_pictures(tmp_path / "other", np.repeat(other[:1], 12, axis=0))
    code, _, errors = here("apply", run, pictures, "--out", tmp_path / "out")
    assert code == 0
    assert "warning" in errors
    assert (column(tmp_path / "out" / "tracks.csv", "confidence") < 0.5).all()


def test_scenes_are_kept_once_and_checked(run: Path, tmp_path: Path, here: UlCommand) -> None:
    [recording] = read_scenes(run)
    assert recording.scene.noise.shape == (HEIGHT, WIDTH)
    assert recording.path.longer_side == STILL_SIDE
    kept = (run / SCENES_FILE).read_bytes()
    picture = write_pictures(tmp_path / "one", film(circle(1)))
    (run / SCENES_FILE).write_bytes(b"broken")
    refused = here("apply", run, picture, "--out", tmp_path / "out")
    (run / SCENES_FILE).write_bytes(kept)
    check_refused(refused, SCENES_FILE, "damaged")


@pytest.mark.parametrize(
    "change",
    [
        {"backdrop": torch.zeros(0, 0, 3, dtype=torch.uint8), "noise": torch.zeros(0, 0).half()},
        {"noise": torch.full((HEIGHT, WIDTH), torch.nan).half()},
        {"noise": torch.zeros(HEIGHT, WIDTH).half()},
        {"threshold": torch.tensor(torch.nan)},
        {"backdrop": torch.zeros(HEIGHT, WIDTH, 3)},
    ],
    ids=["empty", "NaN", "zero", "threshold", "dtype"],
)
def test_scenes_that_cannot_be_are_refused(
    change: dict[str, torch.Tensor], run: Path, tmp_path: Path
) -> None:
    tensors = load_file(run / SCENES_FILE)
    tensors |= {f"disc/{key}": value for key, value in change.items()}
    save_file(tensors, tmp_path / SCENES_FILE)
    with pytest.raises(RunError, match="damaged; delete it"):
        read_scenes(tmp_path)
