"""No command replaces what it reads, with --force and through any link."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PIL import Image

from tests.command import QUICK, check_refused, ended, start
from tests.films import write_ball

Link = Callable[[Path, Path], None]
LINKS: dict[str, Link] = {
    "the file": lambda old, new: None,
    "a hard link": lambda old, new: os.link(old, new),
    "a symbolic link": lambda old, new: new.symlink_to(old),
}


@pytest.fixture(scope="module")
def made(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a video, a run on it, what `ul apply` has found in it, and true positions."""
    folder = tmp_path_factory.mktemp("made")
    shutil.copytree(place / "run", folder / "run")
    film = shutil.copy(place / "ball.mp4", folder / "ball.mp4")
    config = folder / "run" / "config.json"
    config.write_text(config.read_text().replace(str(place), str(folder)))
    assert ended(start("apply", folder / "run", film, "--out", folder / "found", "--quiet"))[0] == 0
    shutil.copy(folder / "run" / "tracks.csv", folder / "truth.csv")
    (folder / "zones.json").write_text('{"zones": {"a": [[0, 0], [20, 0], [20, 20]]}}')
    return folder


@pytest.fixture
def folder(made: Path) -> Iterator[Path]:
    """The folder, in which a test must not change a file that was there."""
    before = {path: path.read_bytes() for path in made.rglob("*") if path.is_file()}
    yield made
    for path in [path for path in made.rglob("*") if path not in before and not path.is_dir()]:
        path.unlink()
    assert {path: path.read_bytes() for path in made.rglob("*") if path.is_file()} == before


def check_kept(*arguments: str | Path, words: str) -> None:
    check_refused(ended(start(*arguments, "--force")), words)


PAIRS = [
    ("ball.mp4", "the file"),
    ("ball.mp4", "a hard link"),
    ("run/model.safetensors", "a hard link"),
    ("run/outlines.sqlite", "a symbolic link"),
]


@pytest.mark.parametrize(
    ("read", "link"),
    [*PAIRS, *(("truth.csv", link) for link in LINKS), ("run/tracks.csv", "the file")],
)
def test_score(folder: Path, read: str, link: str) -> None:
    out = folder / read if link == "the file" else folder / "linked.json"
    LINKS[link](folder / read, out)
    check_kept("score", folder / "run", folder / "truth.csv", "--out", out, words=f"{out}: is ")


@pytest.mark.parametrize(("read", "link"), PAIRS)
@pytest.mark.parametrize("option", ["--out", "--report", "--onnx", "--torch-export"])
def test_export(folder: Path, option: str, read: str, link: str) -> None:
    out = folder / read if link == "the file" else folder / "linked.html"
    LINKS[link](folder / read, out)
    wanted = ["--format", "mot"] * (option == "--out")
    check_kept("export", folder / "run", *wanted, option, out, words=f"{out}: is ")


def test_export_of_applied_results(folder: Path) -> None:
    for out, words in (
        (folder / "found" / "outlines.sqlite", "is a file of the run"),
        (folder / "ball.mp4", "is a video or an image"),  # the results do not know their input
    ):
        check_kept("export", folder / "found", "--format", "mot", "--out", out, words=words)


def test_images_that_a_run_has_learned_from(tmp_path: Path) -> None:
    images = tmp_path / "images"
    images.mkdir()
    for number in range(12):
        Image.new("RGB", (32, 24), (20 * number, 0, 0)).save(images / f"{number}.png")
    learned = ("learn", images, "--out", tmp_path / "run", "--task", "features", *QUICK)
    assert ended(start(*learned))[0] == 0
    out, before = tmp_path / "card.html", (images / "3.png").read_bytes()
    out.symlink_to(images / "3.png")
    check_kept("export", tmp_path / "run", "--report", out, words="is the input")
    assert (images / "3.png").read_bytes() == before


@pytest.mark.parametrize("command", ["learn", "apply", "watch"])
def test_folders_with_an_input(folder: Path, command: str) -> None:
    film, run = folder / "found" / "overlay.mp4", [folder / "run"] * (command == "apply")
    shutil.copy(folder / "ball.mp4", film)
    words = f"the input {film} is in this folder"
    check_kept(command, *run, film, "--out", folder / "found", words=words)
    film.unlink()
    film.symlink_to(folder / "ball.mp4")
    words = f"{film}: is the input {folder / 'ball.mp4'}"
    check_kept(command, *run, folder / "ball.mp4", "--out", folder / "found", words=words)


@pytest.mark.parametrize("command", ["learn", "apply"])
def test_zones_and_regions_in_the_folder(folder: Path, command: str) -> None:
    run = [folder / "run"] * (command == "apply")
    film, out = folder / "ball.mp4", folder / "found"
    arguments: list[str | Path] = [command, *run, film, "--out", out]
    zones = folder / "found" / "overlay.mp4"  # a name that the command writes
    shutil.copy(folder / "zones.json", zones)
    check_kept(*arguments, "--zones", zones, words=f"{zones}: would be replaced by a result")
    roi = folder / "found" / "masks" / "ball" / "000000.png"
    roi.parent.mkdir(parents=True)
    Image.new("L", (64, 48), 255).save(roi)
    check_kept(*arguments, "--roi", roi, words=f"{roi}: would be replaced by a result")
    roi.unlink()
    shutil.rmtree(folder / "found" / "masks")


def test_corrections(folder: Path) -> None:
    arguments = ("learn", "--corrections", folder / "run", "--out", folder / "run")
    check_refused(ended(start(*arguments, "--force")), str(folder / "run"))


def test_demo(tmp_path: Path) -> None:
    """A video and a table of the user with the names of the demo's."""
    film = Path(write_ball(tmp_path / "scene.mp4", 5))
    (tmp_path / "truth.csv").write_text("sequence,frame,x,y\nscene,0,1,2\n")
    before = film.read_bytes()
    check_kept("demo", "--out", tmp_path, words="does not belong to a run")
    assert film.read_bytes() == before


def test_studio(folder: Path, tmp_path: Path) -> None:
    from ullayers.errors import RunError
    from ullayers.studio.editing import export_run

    run = tmp_path / "run"
    shutil.copytree(folder / "run", run)
    for name in ("tracks.mot.txt", "ball.mot.txt", "report.html"):
        for read in (run / "tracks.csv", folder / "ball.mp4"):
            (run / "export").mkdir(exist_ok=True)
            (run / "export" / name).symlink_to(read)
            with pytest.raises(RunError, match=r"is a file of the run|is the input"):
                export_run(run, {"format": "report" if name == "report.html" else "mot"})
            (run / "export" / name).unlink()
