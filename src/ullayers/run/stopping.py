"""Stopping with Ctrl-C or SIGTERM, or on a full disk, without losing work."""

from __future__ import annotations

import _thread
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
RESEND_DELAY = 0.05  # seconds

Handler = Callable[[int, FrameType | None], None]


class StopFlag:
    """Whether a stop signal has arrived.

    Attributes:
        is_set: Whether one has arrived.
        at_once: Whether signals interrupt at once, because nothing would be lost.
        was_raised: Whether `check` has raised KeyboardInterrupt.
    """

    def __init__(self) -> None:
        self.is_set = False
        self.at_once = False
        self.was_raised = False

    def check(self) -> None:
        """Raise KeyboardInterrupt if a stop signal has arrived."""
        if self.is_set:
            self.was_raised = True
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

    # Ignored signals stay ignored: background jobs are started ignoring Ctrl-C.
    heard = [n for n in STOP_SIGNALS if signal.getsignal(n) not in (signal.SIG_IGN, None)]
    with _resending() as resend, _handled_by(handle, heard):
        yield


@contextmanager
def stop_at_checks() -> Iterator[StopFlag]:
    """Set a flag on the first stop signal, for loops that must not stop in the middle of a step.

    The second signal interrupts at once, for users who cannot wait. A signal that arrives after the
    last check of the loop raises KeyboardInterrupt at the end of the block. Signals without a
    handler in Python, and threads other than the main one, keep their behaviour.
    """
    flag = StopFlag()
    previous = {
        number: handler for number in STOP_SIGNALS if callable(handler := signal.getsignal(number))
    }

    def handle(number: int, frame: FrameType | None) -> None:
        if flag.at_once or flag.is_set:
            previous[signal.Signals(number)](number, frame)
        flag.is_set = True

    with _handled_by(handle, list(previous)):
        yield flag
    if not flag.was_raised:
        flag.check()


@contextmanager
def _handled_by(handler: Handler, numbers: Sequence[signal.Signals]) -> Iterator[None]:
    """Handle signals in the main thread; no other thread can."""
    if threading.current_thread() is not threading.main_thread():
        numbers = ()
    previous = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)


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


@contextmanager
def quiet_writer_threads() -> Iterator[None]:
    """Do not print OSErrors of threads: TensorBoard's writer also raises them in our thread."""
    previous_hook = threading.excepthook

    def hook(arguments: threading.ExceptHookArgs) -> None:
        if not isinstance(arguments.exc_value, OSError):
            previous_hook(arguments)

    threading.excepthook = hook
    try:
        yield
    finally:
        threading.excepthook = previous_hook
