"""Work in other threads and processes.

Items of a generator are prepared ahead in a thread. Work on single frames is divided between two
threads, or between this and a second process. Threads share Python's lock, so two threads are
hardly faster than one where a frame is processed in many short steps. A helper is a second process
with a copy of an object, whose methods it calls. It reads frames from memory shared by `memory`,
and ends when this process does, however that ends.
"""

from __future__ import annotations

import io
import logging
import os
import pickle
import queue
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from contextvars import ContextVar
from multiprocessing.connection import Connection, Pipe
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ullayers.video import memory
from ullayers.video.memory import Place

logger = logging.getLogger("ullayers")
AT_ONCE = 4  # frames per message
PATIENCE = 20.0  # seconds to wait for a thread or a process to end
# The folders with packages are the same as here, as far as they are known.
PROGRAM = "import sys; sys.path[:] = {path!r}; from {module} import serve; serve({numbers})"
T = TypeVar("T")
_is_allowed: ContextVar[bool] = ContextVar("_is_allowed", default=True)
THREAD_NAME = "ullayers-video"


def in_parallel(function: Callable[..., T], *arguments: Iterable[Any]) -> list[T]:
    """Call a function for each frame in two threads; OpenCV and NumPy release the GIL.

    >>> in_parallel(lambda a, b: a + b, [1, 2], [3, 4])
    [4, 6]
    """
    return _divided(function, lambda tasks: [function(*own) for own in tasks], arguments, 1)


def for_each(
    worker: object, method: str, *arguments: Iterable[Any], helper: Helper | None, here: bool = True
) -> list[Any]:
    """Call a method for each frame, in this process and in a second one.

    Args:
        worker: The object of the method.
        method: Its name.
        arguments: The arguments for each frame.
        helper: A helper with a copy of the object; None to use two threads instead.
        here: Whether this process takes part, as opposed to leaving the work to the helper.
    """
    function = getattr(worker, method)
    if helper is None or helper.is_lost:
        return in_parallel(function, *arguments)
    call = helper.call
    return _divided(function, lambda tasks: call(method, tasks), arguments, AT_ONCE, here)


def _divided(
    here: Callable[..., T],
    there: Callable[[list[tuple[Any, ...]]], list[T]],
    arguments: tuple[Iterable[Any], ...],
    at_once: int,
    takes_part: bool = True,
) -> list[T]:
    """Divide work between this thread and another, each of which takes the next frames itself.

    Handing over each frame would take as long as many of the functions do.

    Args:
        here: Called for single frames in this thread.
        there: Called for several frames in the other thread.
        arguments: The arguments for each frame.
        at_once: Number of frames that the other thread takes at once.
        takes_part: Whether this thread takes any, unless the other one is lost.
    """
    waiting = deque(enumerate(zip(*arguments, strict=False)))
    found: dict[int, T] = {}
    failed: list[Exception] = []

    def work() -> None:
        while some := _taken(waiting, at_once):
            try:
                results = there([own for _, own in some])
            except HelperLost:
                waiting.extend(some)
                return
            except Exception as error:
                failed.append(error)
                waiting.clear()
                return
            found.update(zip([number for number, _ in some], results, strict=True))

    other = threading.Thread(target=work, name="ullayers-parallel", daemon=True)
    other.start()
    try:
        if not takes_part:
            other.join()
        while waiting or other.is_alive():
            for number, own in _taken(waiting, 1):
                found[number] = here(*own)
            if not waiting:
                other.join()  # if the helper is lost, the frames that it had are waiting again
    finally:
        waiting.clear()
        other.join()
    if failed:
        raise failed[0]
    return [found[number] for number in range(len(found))]


def _taken(waiting: deque[Any], most: int) -> list[Any]:
    """Take up to `most` items; another thread may take the others at the same time."""
    some = []
    with suppress(IndexError):
        for _ in range(most):
            some.append(waiting.popleft())
    return some


# The second process


@contextmanager
def without_help() -> Iterator[None]:
    """Let `can_help` return False within this block, where another process has the other cores."""
    before = _is_allowed.set(False)
    try:
        yield
    finally:
        _is_allowed.reset(before)


def can_help() -> bool:
    """Return whether a second process can be of use on this system."""
    if not hasattr(os, "memfd_create") or not sys.executable or not _is_allowed.get():
        return False
    return len(os.sched_getaffinity(0)) > 1


class HelperLost(Exception):
    """The second process has ended."""


class Helper:
    """A second process that calls methods of a copy of an object.

    Args:
        worker: The object. It must not change.

    Example:
        >>> helper = Helper("a-b")
        >>> helper.call("split", [("-",), ("b",)])
        [['a', 'b'], ['a-', '']]
        >>> helper.close()
    """

    def __init__(self, worker: object) -> None:
        self.is_lost = False
        self._lock = threading.Lock()
        self._file = memory.share()
        self._connection, other = Pipe()
        with other:
            files = other.fileno(), self._file
            numbers = ", ".join(map(str, files))
            program = PROGRAM.format(path=sys.path, module=__name__, numbers=numbers)
            # In a session of its own, it does not receive Ctrl-C.
            self._process = subprocess.Popen(
                [sys.executable, "-c", program],
                pass_fds=files,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        # It takes a second to start, in which this process can go on.
        self._lock.acquire()
        threading.Thread(target=self._introduce, args=(worker,), daemon=True).start()

    def _introduce(self, worker: object) -> None:
        try:
            with suppress(HelperLost):
                self._exchange(worker)
        finally:
            self._lock.release()

    def call(self, method: str, tasks: list[tuple[Any, ...]]) -> list[Any]:
        """Call a method with each of several tuples of arguments.

        Arrays in shared memory are not copied to the other process. If it returns one of them, what
        it has written into it appears here.

        Raises:
            HelperLost: The process has ended.
            Exception: The method has raised it.
        """
        with self._lock:
            found = self._exchange((method, tasks))
        if isinstance(found, Exception):
            raise found
        results: list[Any] = found
        return results

    def _exchange(self, message: Any) -> Any:
        sent: dict[Place, NDArray[Any]] = {}

        def place_of(array: NDArray[Any]) -> Place | None:
            place = memory.place_of(array, self._file)
            if place is not None:
                sent[place] = array
            return place

        content = _dumped(message, place_of)
        try:
            if self.is_lost:
                raise EOFError("it was lost before")
            self._connection.send_bytes(content)
            return _loaded(self._connection.recv_bytes(), sent.__getitem__)
        except (OSError, EOFError) as error:
            if not self.is_lost:
                logger.warning("the second process has ended; continuing in one process")
                self.is_lost = True
            raise HelperLost from error

    def close(self) -> None:
        """End the process."""
        self.is_lost = True
        memory.unshare(self._file)
        self._process.kill()
        self._process.wait(PATIENCE)
        self._connection.close()


class _Pickler(pickle.Pickler):
    """Refers to arrays in shared memory instead of copying them."""

    def __init__(self, file: io.BytesIO, place_of: Callable[[NDArray[Any]], Place | None]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._place_of = place_of

    def persistent_id(self, value: Any) -> Place | None:
        return self._place_of(value) if isinstance(value, np.ndarray) else None


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, array_at: Callable[[Place], NDArray[Any]]) -> None:
        super().__init__(file)
        self._array_at = array_at

    def persistent_load(self, place: Any) -> NDArray[Any]:
        return self._array_at(place)


def _dumped(message: Any, place_of: Callable[[NDArray[Any]], Place | None]) -> bytes:
    file = io.BytesIO()
    _Pickler(file, place_of).dump(message)
    return file.getvalue()


def _loaded(content: bytes, array_at: Callable[[Place], NDArray[Any]]) -> Any:
    return _Unpickler(io.BytesIO(content), array_at).load()


def serve(connection: int, file: int) -> None:
    """Answer the messages of another process until it ends.

    Args:
        connection: File descriptor of the connection to it.
        file: File descriptor of the shared memory.
    """
    import cv2  # slow to import, and only needed here

    cv2.setNumThreads(1)
    messages: Connection[Any, Any] = Connection(connection)
    # Arrays are copied to be used and back to be returned. Mapped memory would count as memory of
    # both processes.
    used: dict[int, tuple[Place, NDArray[Any]]] = {}

    def array_at(place: Place) -> NDArray[Any]:
        array = np.empty(place.shape, place.dtype)
        os.preadv(file, [array.data.cast("B")], place.offset)
        used[id(array)] = place, array
        return array

    def place_of(array: NDArray[Any]) -> Place | None:
        if id(array) not in used:
            return None
        place = used[id(array)][0]
        os.pwritev(file, [array.data.cast("B")], place.offset)
        return place

    with suppress(EOFError, ConnectionError):
        worker = _loaded(messages.recv_bytes(), array_at)
        answer: Any = None
        while True:
            messages.send_bytes(_dumped(answer, place_of))
            used.clear()
            method, tasks = _loaded(messages.recv_bytes(), array_at)
            try:
                answer = [getattr(worker, method)(*own) for own in tasks]
            except Exception as error:
                answer = error


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
