"""Loops are compiled once, and cached where that is possible."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
from numba.core.caching import NullCache

import ullayers.kernels.numba.compiling as compiling
from tests.command import run_code


def test_without_a_cache_folder_loops_are_still_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def njit(cache: bool = False, **_: Any) -> Any:
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        made.append(cache)
        return lambda function: function

    monkeypatch.setattr("numba.njit", njit)
    assert compiling.compiled(len) is len
    assert made == [False]


LOOP = """
from ullayers.kernels.numba.compiling import compiled

@compiled
def twice(x):
    return 2 * x
"""


def test_a_damaged_cache_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile and cache a loop, then truncate the files of the cache."""
    name = "elsewhere.test_loops"
    monkeypatch.setattr(compiling, "__package__", "elsewhere")  # leave other loops alone
    (tmp_path / "loop.py").write_text(LOOP)
    for turn in range(2):
        spec = importlib.util.spec_from_file_location(name, tmp_path / "loop.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        assert compiling.run(module.twice, 21) == 42
        kept = list((tmp_path / "__pycache__").glob("*.nbi"))
        assert kept
        for path in kept:
            path.write_bytes(path.read_bytes()[: 20 * turn])
    assert isinstance(module.twice._cache, NullCache)


def test_compilation_is_announced_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a new process with an empty cache. Two small loops: a layer's take ten seconds."""
    code = (
        "import numpy as np\n"
        "from ullayers.kernels.numba.fresh_loops import _put\n"
        "out = np.zeros(4, np.float32)\n"
        "_put(out, 1.0, 2.0, 3.0, 4.0)"
    )
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    status, out, said = run_code(code, bare=True)
    assert (status, out) == (0, "")
    assert said.startswith("compiling CPU kernels, once on this machine")
    assert said.count("\n") == 1
    assert run_code(code, bare=True) == (0, "", "")


def test_loops_are_cached_until_their_file_changes() -> None:
    stamp = compiling._stamps()
    assert {name for name, *_ in stamp} == {"fresh_loops.py"}
    assert compiling.loops("fresh").measure._cache._cache_file._source_stamp == stamp
