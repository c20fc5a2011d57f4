"""Rules for the files of the page; how it behaves is tested in a browser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ullayers
from ullayers.tracks.formats.names import FORMATS
from ullayers.tracks.masks import PALETTE, SHADES

PAGE = Path(ullayers.__file__).parent / "studio" / "page"
SCRIPTS = sorted((PAGE / "js").glob("*.js"))
MARKUP = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\(|new Function"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.name)
def test_text_cannot_become_markup(path: Path) -> None:
    assert re.findall(MARKUP, path.read_text()) == []


def test_html_obeys_a_strict_policy() -> None:
    html = (PAGE / "index.html").read_text()
    assert re.findall(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", html) == []


def test_everything_comes_from_this_server() -> None:
    for path in (*SCRIPTS, *PAGE.rglob("*.css"), PAGE / "index.html"):
        addresses = re.findall(r"(?:https?:)?//[\w.-]+\.\w+/?[\w/]*", path.read_text())
        assert set(addresses) <= {"http://www.w3.org/2000/svg"}, path


def test_every_script_is_used_and_found() -> None:
    seen: set[Path] = set()
    waiting = [PAGE / "js" / "main.js"]
    while waiting:
        path = waiting.pop()
        if path not in seen:
            seen.add(path)
            names = re.findall(r'^(?:import|\} from)[^"]*"(\.[^"]+)"', path.read_text(), re.M)
            waiting += [(path.parent / name).resolve() for name in names]
    assert seen == set(SCRIPTS)


def test_html_names_files_that_exist() -> None:
    html = (PAGE / "index.html").read_text()
    names = re.findall(r'(?:href|src)="([^"#]+)"', html)
    assert names
    assert [name for name in names if not (PAGE / name).is_file()] == []
    assert {name for name in names if name.startswith("css/")} == {
        f"css/{path.name}" for path in (PAGE / "css").iterdir()
    }


def test_colours_are_those_of_the_overlay() -> None:
    code = (PAGE / "js" / "colours.js").read_text()
    palette = code.split("const PALETTE = [")[1].split("];")[0]
    found = [tuple(map(int, row)) for row in re.findall(r"\[(\d+), (\d+), (\d+)\]", palette)]
    assert found == list(PALETTE)
    shades = code.split("const SHADES = [")[1].split("]")[0]
    assert tuple(map(float, shades.split(","))) == SHADES


def test_every_format_can_be_exported() -> None:
    code = (PAGE / "js" / "export.js").read_text()
    tracks = code.split("const TRACKS = [")[1].split("];")[0]
    assert set(re.findall(r'\["(\w+)",', tracks)) == {*FORMATS, "csv", "overlay", "report"}
