"""The training loops in examples/ run as they are, and learn."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.parametrize(
    ("script", "package"), [("pytorch", "torch"), ("accelerate", "accelerate")]
)
def test_a_training_loop_learns(script: str, package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs the package {package}")
    shown = subprocess.run(
        [sys.executable, EXAMPLES / f"{script}_loop.py"],
        env=os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"},
        capture_output=True,
        text=True,
        check=True,
    )
    found = re.search(r"R2 of the place: (\S+)", shown.stdout)
    assert found
    assert float(found[1]) > 0.95  # as the example in README.md
