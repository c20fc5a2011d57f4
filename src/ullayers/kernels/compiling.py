"""Loops that numba compiles: where it is to be had, and what it keeps on disk."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache, partial
from pickle import UnpicklingError
from typing import Any


@cache
def has_numba() -> bool:
    """Without it, or with one that does not fit numpy, frames go through products of matrices."""
    try:
        import numba  # noqa: F401
    except ImportError:
        return False
    return True


def compiled(function: Callable[..., Any]) -> Any:
    """Sums may be taken in any order; what is not a number stays one.

    What one such function calls has to be in its own file: numba keeps what it has made until that
    file changes.
    """
    from numba import njit

    make = partial(njit, nogil=True, error_model="numpy", fastmath={"reassoc", "contract"})
    try:
        return make(cache=True)(function)
    except RuntimeError:  # there is no folder to keep it in: every process compiles anew
        return make()(function)


def run(function: Any, *arguments: Any) -> Any:
    """Call it, also where what numba keeps on disk is damaged or finds no room."""
    try:
        return function(*arguments)
    except (OSError, EOFError, UnpicklingError, ImportError, AttributeError):  # not yet begun
        _forget_what_is_kept(function.__module__)
        return function(*arguments)


def _forget_what_is_kept(module: str) -> None:
    """Every process compiles for itself then."""
    from numba.core.caching import NullCache

    for other in vars(sys.modules[module]).values():
        if hasattr(other, "_cache"):
            other._cache = NullCache()
