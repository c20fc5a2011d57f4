"""Compile loops with numba, and cache them on disk."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

logger = logging.getLogger("ullayers")
COMPILE_SECONDS = 10  # roughly, for the loops of one kind of call


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
def loops(name: str) -> Any:
    """Import a module of loops when it is first needed; importing numba is slow."""
    return import_module(f"{__package__}.{name}_loops")


def compiled(function: Callable[..., Any], *, any_order: bool = True) -> Any:
    """Compile a function; sums may be reordered if `any_order`, and NaN stays NaN.

    Numba invalidates its cache if the file of a function changes, but not if that of a function it
    calls does. Here the cache is valid only while no file with loops has changed.
    """
    from numba import njit

    _announce_compilation()
    freedom = {"reassoc", "contract"} if any_order else False
    make = partial(njit, nogil=True, error_model="numpy", fastmath=freedom)
    try:
        made: Any = make(cache=True)(function)
        made._cache._cache_file._source_stamp = _stamps()
    except (RuntimeError, AttributeError):  # no writable folder, or another version of numba
        return make()(function)  # compiled again in every process
    return made


def compile_loop(function: Callable[..., Any], *parts: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a loop of another package.

    The cache is valid until the file of the loop changes. If it cannot be used, because it is
    damaged or the disk is full, the loop is compiled again in every process.

    Args:
        function: The loop.
        parts: All functions that it calls, from the same file; they must not create arrays.
    """
    from numba import njit
    from numba.extending import register_jitable

    for part in parts:
        # Calls that are not inlined, and counting references to arrays, take several times as long.
        register_jitable(forceinline=True, _nrt=False)(part)
    try:
        cached = njit(cache=True, nogil=True)(function)
    except RuntimeError:  # no writable folder
        cached = None
    plain = njit(nogil=True)(function)

    def call(*arguments: Any) -> Any:
        try:
            return (plain if cached is None else cached)(*arguments)
        except (OSError, EOFError, UnpicklingError, ImportError, AttributeError):
            return plain(*arguments)

    return call


@cache
def _announce_compilation() -> None:
    """Log a line when numba compiles one of our loops instead of loading it from its cache."""
    from numba.core import event

    class Announcer(event.Listener):
        said = False

        def on_start(self, happened: Any) -> None:
            ours = happened.data["dispatcher"].py_func.__module__.startswith(f"{__package__}.")
            if ours and not self.said:
                self.said = True
                logger.warning(
                    "compiling CPU kernels, once on this machine (about %d s); run "
                    "`python -m ullayers.kernels` beforehand to avoid this",
                    COMPILE_SECONDS,
                )

        def on_end(self, happened: Any) -> None:
            pass

    event.register("numba:compile", Announcer())  # type: ignore[no-untyped-call]


@cache
def _stamps() -> list[tuple[str, float, int]]:
    """Return names, modification times and sizes of all files with loops."""
    files = sorted(Path(__file__).parent.glob("*_loops.py"))
    return [(path.name, path.stat().st_mtime, path.stat().st_size) for path in files]


def run(function: Any, *arguments: Any) -> Any:
    """Call a compiled function, without numba's cache if that is damaged or the disk is full."""
    try:
        return function(*arguments)
    except (OSError, EOFError, UnpicklingError, ImportError, AttributeError) as error:
        if not _is_from_numba(error):  # raised by a signal handler meanwhile
            raise
        _disable_cache()
        return function(*arguments)


def _is_from_numba(error: Exception) -> bool:
    """Return whether numba raised the error, directly or through the standard library."""
    place, last = error.__traceback__, ""
    while place is not None:
        package = place.tb_frame.f_globals.get("__name__", "").split(".")[0]
        last = last if package in sys.stdlib_module_names else package
        place = place.tb_next
    return last == "numba"


def _disable_cache() -> None:
    """Disable the cache in this process."""
    from numba.core.caching import NullCache

    for name, module in list(sys.modules.items()):
        if name.startswith(f"{__package__}.") and name.endswith("_loops"):
            for function in vars(module).values():
                if hasattr(function, "_cache"):
                    function._cache = NullCache()
