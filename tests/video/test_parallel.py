"""Work on frames, divided between threads or processes."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.locate.still_films import circle, film
from ullayers.locate.recording.windows import StillRecording
from ullayers.locate.scene.background import still_scene
from ullayers.video import memory
from ullayers.video.parallel import (
    Helper,
    HelperLost,
    can_help,
    for_each,
    in_parallel,
    without_help,
)

pytestmark = pytest.mark.skipif(
    not hasattr(os, "memfd_create"), reason="no shared memory on this system"
)
Images = NDArray[np.float32]


@dataclass(frozen=True)
class Worker:
    factor: float

    def scale(self, image: Images, scaled: Images) -> tuple[int, Images]:
        """Return the process, and the image in memory of the caller."""
        np.multiply(image, self.factor, out=scaled)
        return os.getpid(), scaled

    def divide(self, number: int) -> float:
        return self.factor / number


@pytest.fixture
def helper() -> Iterator[Helper]:
    helper = Helper(Worker(3.0))
    yield helper
    helper.close()


def pictures(count: int) -> Images:
    images = memory.empty((count, 400, 700), np.float32)
    images[:] = np.arange(count)[:, None, None]
    return images


def test_arrays_are_filled_in_both_processes(helper: Helper) -> None:
    images = pictures(40)
    scaled = memory.zeros(images.shape, np.float32)
    assert memory.place_of(images[3], helper._file) is not None
    found = for_each(Worker(3.0), "scale", images, scaled, helper=helper)
    np.testing.assert_array_equal(scaled, 3 * images)
    assert all(np.shares_memory(own, each) for (_, own), each in zip(found, scaled, strict=True))


def test_the_helper_can_do_all_of_the_work(helper: Helper) -> None:
    images = pictures(9)
    scaled = memory.zeros(images.shape, np.float32)
    found = for_each(Worker(3.0), "scale", images, scaled, helper=helper, here=False)
    assert os.getpid() not in {process for process, _ in found}
    np.testing.assert_array_equal(scaled, 3 * images)


def test_other_arrays_are_copied(helper: Helper) -> None:
    image = np.ones((2, 3), np.float32)
    [(_, scaled)] = helper.call("scale", [(image, np.zeros_like(image))])
    assert scaled.tolist() == [[3.0] * 3] * 2


def test_an_error_is_raised_here(helper: Helper) -> None:
    with pytest.raises(ZeroDivisionError):
        for_each(Worker(3.0), "divide", [1, 2, 0, 4], helper=helper, here=False)
    assert for_each(Worker(3.0), "divide", [1, 2], helper=helper) == [3.0, 1.5]


def test_work_continues_after_the_helper_is_killed(
    helper: Helper, caplog: pytest.LogCaptureFixture
) -> None:
    helper.call("divide", [(1,)])
    os.kill(helper._process.pid, signal.SIGKILL)
    with caplog.at_level(logging.WARNING, "ullayers"):
        for here in (False, True):
            expected = [3 / number for number in range(1, 100)]
            assert for_each(Worker(3.0), "divide", range(1, 100), helper=helper, here=here) == (
                expected
            )
    assert caplog.text.count("the second process has ended") == 1
    with pytest.raises(HelperLost):
        helper.call("divide", [(1,)])


MAIN = """
import os
import numpy as np
from ullayers.video import memory
from ullayers.video.parallel import Helper
helper = Helper("a-b")
images = memory.zeros((40, 400, 700), np.float32)
assert helper.call("split", [("-",)]) == [["a", "b"]]
print(helper._process.pid, os.readlink(f"/proc/self/fd/{helper._file}"), flush=True)
input()
"""


def test_nothing_is_left_when_the_main_process_is_killed() -> None:
    before = set(os.listdir("/dev/shm"))
    command = [sys.executable, "-c", MAIN]
    main = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert main.stdout is not None
    number, name = main.stdout.readline().split(maxsplit=1)
    assert name.startswith("/memfd:"), "memory without a name"
    assert Path(f"/proc/{number}").exists()
    main.kill()
    main.communicate()
    end = time.monotonic() + 120
    while Path(f"/proc/{number}").exists() and state(number) != "Z":
        assert time.monotonic() < end, "the second process runs on"
        time.sleep(0.05)
    assert set(os.listdir("/dev/shm")) <= before


def state(process: str) -> str:
    """The state of a process: Z if it has ended and its new parent has not noticed."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def test_one_core_is_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})
    assert not can_help()


def test_help_can_be_refused_for_a_while() -> None:
    before = can_help()
    with without_help():
        assert not can_help()
    assert can_help() == before


def test_objects_are_the_same_with_help() -> None:
    frames = film(circle(100))
    scene = still_scene(frames)

    def segments(*, helped: bool) -> list[Any]:
        recording = StillRecording.start(scene, frames)
        recording.follow_all(patience=10)
        found = []
        for window in (frames[:50], frames[50:]):
            if not helped:
                found.append(recording.segment(window))
                continue
            with recording.with_help():
                ahead = recording.prepare(window, here=False)
                found.append(recording.segment(window, prepared=ahead))
        assert all(each.owners is not None and each.owners.any() for each in found)
        return [
            array
            for each in found
            for array in (each.soft, each.positions, each.confidence, each.cores, each.owners)
        ]

    for plain, helped in zip(segments(helped=False), segments(helped=True), strict=True):
        np.testing.assert_array_equal(plain, helped)


def test_results_are_in_order_and_all_threads_work() -> None:
    together = threading.Barrier(2, timeout=30)

    def square(number: int) -> int:
        if number < 2:
            together.wait()  # breaks unless every thread has a frame
        return number**2

    assert in_parallel(square, range(200)) == [number**2 for number in range(200)]


def test_an_error_in_any_frame_is_raised() -> None:
    for bad in range(4):
        with pytest.raises(ZeroDivisionError):
            in_parallel(lambda a, b: a // b, range(4), [each != bad for each in range(4)])
