"""Rules of the code base that a program can check; import-linter checks the imports."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ullayers as ul
from tests.command import run_code

SOURCE = Path(ul.__file__).parent
MAP = SOURCE.parents[1] / "CONTRIBUTING.md"
MOST_LINES = 406


def modules() -> list[Path]:
    return [path for path in sorted(SOURCE.rglob("*.py")) if path.name != "__init__.py"]


def test_map_lists_every_module() -> None:
    section = MAP.read_text().split("## The map")[1].split("\n## ")[0]
    listed = re.findall(r"`(\w+/[\w/]*(?:\.py)?|\w+\.py)`", section)
    folders = [name for name in listed if name.endswith("/")]
    tree = {path.relative_to(SOURCE).as_posix() for path in modules()} - {"__main__.py"}
    covered = {name for name in tree if any(name.startswith(folder) for folder in folders)}
    assert sorted(set(listed) - set(folders)) == sorted(tree - covered)
    assert all((SOURCE / folder).is_dir() for folder in folders)


def test_only_one_module_imports_numba() -> None:
    users = {
        path.relative_to(SOURCE).as_posix()
        for path in modules()
        if re.search(r"^\s*(import|from) numba\b", path.read_text(), re.MULTILINE)
    }
    assert users == {"kernels/backends.py", "kernels/numba/compiling.py"}


def test_import_is_light() -> None:
    code = (
        "import sys, ullayers\n"
        "print([m for m in ('scipy', 'sklearn', 'matplotlib') if m in sys.modules])\n"
        "import ullayers.cli.learn, ullayers.learn.run_training, ullayers.learn.readout\n"
        "print([m for m in ('sklearn', 'matplotlib') if m in sys.modules])\n"
    )
    assert run_code(code, bare=True)[:2] == (0, "[]\n[]\n")


@pytest.mark.parametrize("path", modules(), ids=lambda p: p.name)
def test_files_stay_readable(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MOST_LINES


def test_only_kernel_launches_are_formatted_by_hand() -> None:
    by_hand = [path for path in modules() if "# fmt:" in path.read_text()]
    assert {path.parent.relative_to(SOURCE).as_posix() for path in by_hand} == {"kernels/triton"}


def test_every_public_name_has_an_example() -> None:
    for name in ul.__all__:
        thing = getattr(ul, name)
        assert thing.__doc__, name
        if not (isinstance(thing, type) and issubclass(thing, (Exception, ul.Health, ul.Spectrum))):
            assert ">>>" in thing.__doc__, f"{name} has no runnable example"


def test_unknown_names_are_reported() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = ul.Nothing
