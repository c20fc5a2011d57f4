"""Items of a generator, prepared ahead in a background thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator
from contextlib import closing, suppress
from typing import Any, TypeVar

PATIENCE = 20.0  # seconds to wait for the thread to end
THREAD_NAME = "ullayers-video"

T = TypeVar("T")


def read_ahead(
    items: Generator[T, None, None],
    most: int = 1,
    stop: threading.Event | None = None,
    newest: bool = False,
    lean: bool = False,
) -> Generator[T, None, None]:
    """Yield the items of a generator that runs in a background thread.

    An exception of the generator is raised here, after the items before it.

    Args:
        items: The generator.
        most: Size of the queue of items.
        stop: Set to make the thread stop.
        newest: Whether a full queue drops its oldest item instead of waiting.
        lean: Whether to prepare an item only once there is room for it in the queue.

    Example:
        >>> list(read_ahead(number**2 for number in range(4)))
        [0, 1, 4, 9]
    """
    stop = threading.Event() if stop is None else stop
    box: queue.Queue[tuple[T] | BaseException | None] = queue.Queue(most)
    taken = threading.Semaphore(most - 1)

    work = (items, box, stop, newest, taken if lean else None)
    thread = threading.Thread(target=_prepare, args=work, name=THREAD_NAME, daemon=True)
    try:
        thread.start()  # in the block, so that an interrupt here also stops the thread
        while (got := box.get()) is not None:
            if isinstance(got, BaseException):
                raise got
            taken.release()
            yield got[0]
            del got
    finally:
        stop.set()
        taken.release()  # so that a waiting thread sees `stop`
        _drop(box, most)  # so that a waiting put returns and the thread sees `stop`
        with suppress(RuntimeError):  # interrupted while it starts: it will see `stop`
            thread.join(PATIENCE)


def _prepare(
    items: Generator[T, None, None],
    box: queue.Queue[tuple[T] | BaseException | None],
    stop: threading.Event,
    newest: bool,
    taken: threading.Semaphore | None,
) -> None:
    """Put the items into the queue, then None, or the exception that ended them."""
    end: BaseException | None = None
    try:
        with closing(items):
            for item in items:
                if stop.is_set():
                    return
                if newest and box.full():
                    _drop(box, 1)
                box.put((item,))
                del item  # it may be large, and the next one takes a while
                if taken is not None:
                    taken.acquire()
                    if stop.is_set():
                        return
    except BaseException as error:  # even SystemExit: the reader waits for an answer
        end = error
    if not stop.is_set():
        box.put(end)


def is_reading() -> bool:
    """Return whether a thread has not ended yet, although its items are no longer wanted."""
    return any(thread.name == THREAD_NAME for thread in threading.enumerate())


def _drop(box: queue.Queue[Any], count: int) -> None:
    for _ in range(count):
        with suppress(queue.Empty):
            box.get_nowait()
