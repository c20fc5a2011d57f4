"""The training loops in examples/ run as they are, and learn."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from tests.command import run_code

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.parametrize(
    ("script", "package"), [("pytorch", "torch"), ("accelerate", "accelerate")]
)
def test_a_training_loop_learns(script: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs the package {package}")
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    code, out, errors = run_code(
        f"import runpy, sys\nsys.path.insert(0, {str(EXAMPLES)!r})\n"
        f"runpy.run_path({str(EXAMPLES / f'{script}_loop.py')!r}, run_name='__main__')"
    )
    assert code == 0, errors
    found = re.search(r"R2 of the place: (\S+)", out)
    assert found
    assert float(found[1]) > 0.95  # as the example in README.md
