"""Videos that tests share; every test leaves no reading thread behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.video.samples import readers
from tests.video.seek_films import write_films


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert not readers()


@pytest.fixture(scope="session")
def seek_films(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files from `seek_films.py`."""
    return write_films(tmp_path_factory.mktemp("seek"))
