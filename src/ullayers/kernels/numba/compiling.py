"""Loops that numba compiles: where it is to be had, and what it keeps on disk."""

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
SECONDS = 10  # that it takes to compile the loops of one kind of call


@cache
def loops(name: str) -> Any:
    """A module of them. To load it takes its time, and to compile it seconds, once on a machine."""
    return import_module(f"{__package__}.{name}_loops")


def compiled(function: Callable[..., Any], *, any_order: bool = True) -> Any:
    """Sums may be taken in any order, unless that is not wanted; what is not a number stays one.

    Numba keeps what it has made until the function's own file changes. But what it calls may be in
    another: here all files of loops have to be as they were.
    """
    from numba import njit

    _announce_compilation()
    freedom = {"reassoc", "contract"} if any_order else False
    make = partial(njit, nogil=True, error_model="numpy", fastmath=freedom)
    try:
        made: Any = make(cache=True)(function)
        made._cache._cache_file._source_stamp = _stamps()
    except (RuntimeError, AttributeError):  # there is no folder, or another numba
        return make()(function)  # every process compiles anew
    return made


@cache
def _announce_compilation() -> None:
    """Have a line logged when numba compiles one of our loops, instead of finding it on disk."""
    from numba.core import event

    class Announcer(event.Listener):
        said = False

        def on_start(self, happened: Any) -> None:
            ours = happened.data["dispatcher"].py_func.__module__.startswith(f"{__package__}.")
            if ours and not self.said:
                self.said = True
                logger.warning(
                    "compiling CPU kernels, once on this machine (about %d s); run "
                    "`python -m ullayers.kernels` beforehand to avoid this", SECONDS,
                )  # fmt: skip

        def on_end(self, happened: Any) -> None:
            pass

    event.register("numba:compile", Announcer())  # type: ignore[no-untyped-call]


@cache
def _stamps() -> list[tuple[str, float, int]]:
    """Of all files with loops: when they were changed, and their sizes."""
    files = sorted(Path(__file__).parent.glob("*_loops.py"))
    return [(path.name, path.stat().st_mtime, path.stat().st_size) for path in files]


def run(function: Any, *arguments: Any) -> Any:
    """Call it, also where what numba keeps on disk is damaged or finds no room."""
    try:
        return function(*arguments)
    except (OSError, EOFError, UnpicklingError, ImportError, AttributeError) as error:
        if not _is_of_numba(error):  # but of a signal that came meanwhile
            raise
        _forget_what_is_kept()
        return function(*arguments)


def _is_of_numba(error: Exception) -> bool:
    """Whether it comes from there, by way of the standard library or not; else from a handler."""
    place, last = error.__traceback__, ""
    while place is not None:
        package = place.tb_frame.f_globals.get("__name__", "").split(".")[0]
        last = last if package in sys.stdlib_module_names else package
        place = place.tb_next
    return last == "numba"


def _forget_what_is_kept() -> None:
    """Every process compiles for itself then."""
    from numba.core.caching import NullCache

    for name, module in list(sys.modules.items()):
        if name.startswith(f"{__package__}.") and name.endswith("_loops"):
            for function in vars(module).values():
                if hasattr(function, "_cache"):
                    function._cache = NullCache()
