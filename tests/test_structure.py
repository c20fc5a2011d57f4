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
        "import ullayers.cli.learn, ullayers.run.pipeline, ullayers.learning.codes\n"
        "print([m for m in ('sklearn', 'matplotlib') if m in sys.modules])\n"
    )
    assert run_code(code, bare=True)[:2] == (0, "[]\n[]\n")


HIDDEN = """
import sys
from importlib.metadata import packages_distributions

# Others are needed by torch itself.
kept = {"torch", "numpy", "scipy", "ullayers", "typing_extensions", "sympy", "mpmath", "networkx"}
kept |= {"filelock", "jinja2", "markupsafe", "fsspec", "_virtualenv"}
hidden = set(packages_distributions()) - kept


class Without:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.split(".")[0] in hidden else self.finder.find_spec(name, path, target)


sys.meta_path[:] = map(Without, sys.meta_path)
for name in [name for name in sys.modules if name.split(".")[0] in hidden]:
    del sys.modules[name]
"""


def test_layers_and_closed_forms_need_torch_numpy_and_scipy_only() -> None:
    """Import all of these packages, and run the README's example of a layer."""
    readme = (SOURCE.parents[1] / "README.md").read_text()
    layers = readme[readme.index("## Use the layers in your own network") :]
    example = re.search(r"```python\n(.*?)```", layers, re.DOTALL)
    assert example is not None
    lines = [line[4:] for line in example[1].splitlines() if line.startswith((">>>", "..."))]
    names = [
        ".".join(("ullayers", *path.relative_to(SOURCE).with_suffix("").parts))
        for path in modules()
        if path.relative_to(SOURCE).parts[0] in ("kernels", "nn", "exact")
        and not re.search("_loops|_kernels|__main__|slow_features", path.name)
    ]
    code = "\n".join((HIDDEN, *(f"import {name}" for name in names), *lines))
    code += (
        "\nimport numpy, ullayers as ul"
        "\nul.closed_form(numpy.ones((4, 4)) + numpy.eye(4), 2).objective"
        "\nassert {'numba', 'sklearn', 'pandas', 'av'} <= hidden"
        "\nassert not hidden & {name.split('.')[0] for name in sys.modules}"
    )
    status, _, errors = run_code(code, bare=True)
    assert status == 0, errors


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
