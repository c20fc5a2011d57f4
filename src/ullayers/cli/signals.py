"""Stopping a command with Ctrl-C or SIGTERM without losing work."""

from __future__ import annotations

import _thread
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
RESEND_DELAY = 0.05  # seconds

Handler = Callable[[int, FrameType | None], None]


class StopFlag:
    """Whether a stop signal has arrived."""

    def __init__(self) -> None:
        self.is_set = False

    def check(self) -> None:
        """Raise KeyboardInterrupt if a stop signal has arrived."""
        if self.is_set:
            raise KeyboardInterrupt


@contextmanager
def stop_with_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt on a stop signal, as soon as it can take effect.

    It cannot take effect during an import, because a partially imported module fails in unexpected
    ways, or in a weakref callback or `__del__`, where Python drops exceptions. In both cases the
    signal is sent again shortly afterwards.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        if _is_importing(frame):
            resend(number)
        else:
            raise KeyboardInterrupt(number)

    with _resending() as resend, _handled_by(handle):
        yield


@contextmanager
def stop_at_checks() -> Iterator[StopFlag]:
    """Set a flag on the first stop signal, for loops that must not stop in the middle of a step.

    The second signal raises KeyboardInterrupt at once, for users who cannot wait.
    """
    flag = StopFlag()

    def handle(number: int, frame: FrameType | None) -> None:
        if flag.is_set:
            raise KeyboardInterrupt(number)
        flag.is_set = True

    with _handled_by(handle):
        yield flag


@contextmanager
def _handled_by(handler: Handler) -> Iterator[None]:
    """Handle stop signals, except ignored ones: background jobs are started ignoring Ctrl-C."""
    previous = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    active = [number for number in STOP_SIGNALS if previous[number] not in (signal.SIG_IGN, None)]
    for number in active:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number in active:
            signal.signal(number, previous[number])


@contextmanager
def _resending() -> Iterator[Callable[[int], None]]:
    """Resend an interrupt that Python has dropped; yield the function that does so."""
    previous_hook = sys.unraisablehook
    timers: list[threading.Timer] = []

    def resend(number: int) -> None:
        timer = threading.Timer(RESEND_DELAY, _thread.interrupt_main, [number])
        timer.daemon = True
        timers[:] = [timer]
        timer.start()

    def hook(dropped: UnraisableHookArgs) -> None:
        if isinstance(dropped.exc_value, KeyboardInterrupt):
            number = dropped.exc_value.args[0] if dropped.exc_value.args else signal.SIGINT
            resend(number)
        else:
            previous_hook(dropped)

    sys.unraisablehook = hook
    try:
        yield resend
    finally:
        sys.unraisablehook = previous_hook
        for timer in timers:
            timer.cancel()


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if "importlib._bootstrap" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False
