"""Every test here leaves no reading thread behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.video.samples import readers


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert not readers()
