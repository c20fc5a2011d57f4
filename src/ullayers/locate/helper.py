"""A second process that works on frames.

Threads share Python's lock, and a frame is processed in many short steps, so two threads are hardly
faster than one. A helper is a second process with a copy of an object, whose methods it calls. It
reads frames from memory shared with `recycled`, and ends when this process does, however that ends.
"""

from __future__ import annotations

import io
import logging
import os
import pickle
import socket
import struct
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ullayers.video import recycled
from ullayers.video.parallel import in_parallel
from ullayers.video.recycled import Place

logger = logging.getLogger("ullayers")
HEADER = struct.Struct("<QI")  # bytes of a message, number of files sent with it
AT_ONCE = 4  # frames per message
MOST_FILES = 128  # sent with a message; the system allows 253
PATIENCE = 20.0  # seconds to wait for the process to end
# The folders with packages are the same as here, as far as they are known.
PROGRAM = "import sys; sys.path[:] = {path!r}; from {module} import serve; serve({number})"


_is_allowed: ContextVar[bool] = ContextVar("_is_allowed", default=True)


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
        self._known: set[int] = set()
        self._sharing = recycled.share()
        self._socket, other = socket.socketpair()
        with other:
            program = PROGRAM.format(path=sys.path, module=__name__, number=other.fileno())
            # In a session of its own, it does not receive Ctrl-C.
            self._process = subprocess.Popen(
                [sys.executable, "-c", program],
                pass_fds=[other.fileno()],
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
        used: set[int] = set()

        def place_of(array: NDArray[Any]) -> Place | None:
            place = recycled.place_of(array)
            if place is not None:
                used.add(place.number)
            return place

        rest = _dumped(message, place_of)
        files = recycled.shared_files()
        new, gone = sorted(used - self._known), self._known - files.keys()
        self._known = (self._known | used) - gone
        try:
            if self.is_lost:
                raise EOFError("it was lost before")
            _send(self._socket, pickle.dumps((new, gone, rest)), [files[each] for each in new])
            return _loaded(_receive(self._socket)[0], recycled.array_at)
        except (OSError, EOFError) as error:
            if not self.is_lost:
                logger.warning("the second process has ended; continuing in one process")
                self.is_lost = True
            raise HelperLost from error

    def close(self) -> None:
        """End the process."""
        self.is_lost = True
        recycled.unshare(self._sharing)
        self._process.kill()
        self._process.wait(PATIENCE)
        self._socket.close()


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
    waiting = deque(enumerate(zip(*arguments, strict=False)))
    found: dict[int, Any] = {}
    failed: list[Exception] = []

    def feed() -> None:
        while some := _taken(waiting, AT_ONCE):
            try:
                results = helper.call(method, [own for _, own in some])
            except HelperLost:
                waiting.extend(some)
                return
            except Exception as error:
                failed.append(error)
                waiting.clear()
                return
            found.update(zip([number for number, _ in some], results, strict=True))

    feeder = threading.Thread(target=feed, name="ullayers-helper", daemon=True)
    feeder.start()
    try:
        if not here:
            feeder.join()
        while waiting or feeder.is_alive():
            for number, own in _taken(waiting, 1):
                found[number] = function(*own)
            if not waiting:
                feeder.join()  # if the helper is lost, the frames that it had are waiting again
    finally:
        waiting.clear()
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


# Messages


class _Pickler(pickle.Pickler):
    """Refers to arrays in shared memory instead of copying them."""

    def __init__(self, file: io.BytesIO, place_of: Any) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._place_of = place_of

    def persistent_id(self, value: Any) -> Place | None:
        place: Place | None = self._place_of(value) if isinstance(value, np.ndarray) else None
        return place


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, array_at: Any) -> None:
        super().__init__(file)
        self._array_at = array_at

    def persistent_load(self, place: Any) -> Any:
        return self._array_at(place)


def _dumped(message: Any, place_of: Any) -> bytes:
    file = io.BytesIO()
    _Pickler(file, place_of).dump(message)
    return file.getvalue()


def _loaded(content: bytes, array_at: Any) -> Any:
    return _Unpickler(io.BytesIO(content), array_at).load()


def _send(connection: socket.socket, content: bytes, files: list[int]) -> None:
    header = HEADER.pack(len(content), len(files))
    sent = socket.send_fds(connection, [header], files) if files else connection.send(header)
    connection.sendall(header[sent:])
    connection.sendall(content)


def _receive(connection: socket.socket) -> tuple[bytes, list[int]]:
    header, files, _, _ = socket.recv_fds(connection, HEADER.size, MOST_FILES)
    header += _exactly(connection, HEADER.size - len(header))
    size, _ = HEADER.unpack(header)
    return bytes(_exactly(connection, size)), list(files)


def _exactly(connection: socket.socket, size: int) -> bytearray:
    content = bytearray(size)
    view = memoryview(content)
    while len(view):
        count = connection.recv_into(view)
        if not count:
            raise EOFError("the other process has ended")
        view = view[count:]
    return content


# The second process


class _SharedArrays:
    """Arrays in memory of the first process, copied to be used and back to be returned.

    They are not mapped, because mapped memory would count as memory of both processes.
    """

    def __init__(self) -> None:
        self.files: dict[int, int] = {}
        self._places: dict[int, Place] = {}
        self._used: list[NDArray[Any]] = []  # so that their ids remain theirs

    def update(self, new: Iterable[int], files: Iterable[int], gone: Iterable[int]) -> None:
        """Add files of new memory, and close those of memory that has ended."""
        self.files.update(zip(new, files, strict=True))
        for number in gone:
            os.close(self.files.pop(number))

    def array_at(self, place: Place) -> NDArray[Any]:
        """Return a copy of an array."""
        array = np.empty(place.shape, place.dtype)
        os.preadv(self.files[place.number], [array.data.cast("B")], place.offset)
        self._places[id(array)] = place
        self._used.append(array)
        return array

    def place_of(self, array: NDArray[Any]) -> Place | None:
        """Copy an array back, if it comes from shared memory, and return its place there."""
        place = self._places.get(id(array))
        if place is not None:
            os.pwritev(self.files[place.number], [array.data.cast("B")], place.offset)
        return place

    def forget(self) -> None:
        """Forget all copies."""
        self._places.clear()
        self._used.clear()


def serve(number: int) -> None:
    """Answer the messages of another process until it ends.

    Args:
        number: File descriptor of the connection to it.
    """
    cv2.setNumThreads(1)
    connection = socket.socket(fileno=number)
    shared = _SharedArrays()
    worker: Any = None
    with suppress(EOFError, ConnectionError):
        while True:
            content, files = _receive(connection)
            new, gone, rest = pickle.loads(content)
            shared.update(new, files, gone)  # before the arrays in the message are read
            message = _loaded(rest, shared.array_at)
            if worker is None:
                worker, answer = message, None
            else:
                answer = _answer(worker, *message)
            _send(connection, _dumped(answer, shared.place_of), [])
            shared.forget()


def _answer(worker: Any, method: str, tasks: list[tuple[Any, ...]]) -> Any:
    try:
        return [getattr(worker, method)(*own) for own in tasks]
    except Exception as error:
        return error
