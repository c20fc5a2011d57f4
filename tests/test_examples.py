"""The training loops in examples/ run as they are, and learn."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from tests.command import ended, run_code, start_python

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


def test_several_processes_learn_together() -> None:
    """Two processes of torchrun; the layers use the clips of both."""
    options = ("--nproc-per-node", "2", "--rdzv-backend", "c10d", "--local-addr", "127.0.0.1")
    program = ("-m", "torch.distributed.run")
    endpoint = ("--rdzv-endpoint", "127.0.0.1:0")
    script = EXAMPLES / "several_processes.py"
    code, out, errors = ended(start_python(*options, *endpoint, script, program=program))
    assert code == 0, errors
    [found] = re.findall(r"R2 of the place: (\S+)", out)  # printed by the first process only
    assert float(found) > 0.95
