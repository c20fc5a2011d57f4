"""Which optional backends are installed."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec


@cache
def has_numba() -> bool:
    """Return whether numba can be imported; it fails next to a numpy it does not support."""
    try:
        import numba  # noqa: F401
    except ImportError:
        return False
    return True


@cache
def has_triton() -> bool:
    """Return whether Triton is installed; it comes with the CUDA builds of PyTorch."""
    return find_spec("triton") is not None
