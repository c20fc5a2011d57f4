"""Which optional backends are installed."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec


@cache
def has_numba() -> bool:
    """Return whether numba can compile.

    Importing it fails next to a numpy version that it does not support, and NUMBA_DISABLE_JIT=1
    turns its compiler off; uncompiled, the loops would be thousands of times slower than PyTorch.
    """
    try:
        from numba import config
    except ImportError:
        return False
    return not config.DISABLE_JIT  # type: ignore[attr-defined]


@cache
def has_triton() -> bool:
    """Return whether Triton is installed; it comes with the CUDA builds of PyTorch."""
    return find_spec("triton") is not None
