"""A second process that works on frames."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.locate.still_films import circle, film
from ullayers.locate.helper import Helper, HelperLost, can_help, for_each, without_help
from ullayers.locate.recording.windows import StillRecording
from ullayers.locate.scene.background import still_scene
from ullayers.video import recycled

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
    images = recycled.empty((count, 400, 700), np.float32)
    images[:] = np.arange(count)[:, None, None]
    return images


def test_arrays_are_filled_in_both_processes(helper: Helper) -> None:
    images = pictures(40)
    scaled = recycled.zeros(images.shape, np.float32)
    assert recycled.place_of(images[3]) is not None
    found = for_each(Worker(3.0), "scale", images, scaled, helper=helper)
    np.testing.assert_array_equal(scaled, 3 * images)
    assert all(np.shares_memory(own, each) for (_, own), each in zip(found, scaled, strict=True))


def test_the_helper_can_do_all_of_the_work(helper: Helper) -> None:
    images = pictures(9)
    scaled = recycled.zeros(images.shape, np.float32)
    found = for_each(Worker(3.0), "scale", images, scaled, helper=helper, here=False)
    assert os.getpid() not in {process for process, _ in found}
    np.testing.assert_array_equal(scaled, 3 * images)


def test_other_arrays_are_copied(helper: Helper) -> None:
    image = np.ones((2, 3), np.float32)
    [(_, scaled)] = helper.call("scale", [(image, np.zeros_like(image))])
    assert scaled.tolist() == [[3.0] * 3] * 2


def test_memory_that_is_given_up_is_closed_by_both_processes(helper: Helper) -> None:
    count = len(os.listdir(f"/proc/{helper._process.pid}/fd"))
    for _ in range(3):
        image = pictures(1)
        helper.call("scale", [(image[0], recycled.zeros(image[0].shape, np.float32))])
        del image
        recycled.release()
    helper.call("divide", [(1,)])
    assert len(os.listdir(f"/proc/{helper._process.pid}/fd")) <= count + 1


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


def test_the_process_ends_with_this_one(helper: Helper) -> None:
    helper.call("divide", [(1,)])
    helper._socket.close()  # as when this process is killed
    assert helper._process.wait(120) == 0


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
