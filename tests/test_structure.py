"""Rules of the code base that a program can check; import-linter checks the imports."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ullayers as ul
from tests.command import run_code

SOURCE = Path(ul.__file__).parent


def modules() -> list[Path]:
    return [path for path in sorted(SOURCE.rglob("*.py")) if path.name != "__init__.py"]


def test_only_one_module_imports_numba() -> None:
    users = {
        path.relative_to(SOURCE).as_posix()
        for path in modules()
        if re.search(r"^\s*(import|from) numba\b", path.read_text(), re.MULTILINE)
    }
    assert users == {"kernels/numba/compiling.py"}


def test_import_is_light() -> None:
    code = (
        "import sys, ullayers\n"
        "print([m for m in ('scipy', 'sklearn', 'matplotlib') if m in sys.modules])\n"
        "import ullayers.cli.learn, ullayers.run.pipeline, ullayers.learn.codes\n"
        "print([m for m in ('sklearn', 'matplotlib') if m in sys.modules])\n"
    )
    assert run_code(code, bare=True)[:2] == (0, "[]\n[]\n")


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
