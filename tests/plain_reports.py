"""Reports with empty charts, and small overlays, for the many tests that do not look at them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest

import ullayers.report.behaviour as behaviour_charts
import ullayers.report.charts as charts
import ullayers.report.overlay as display

FUNCTIONS: dict[ModuleType, tuple[str, ...]] = {
    charts: ("time_chart", "speed_chart", "scatter_chart", "training_chart", "held_out_chart"),
    behaviour_charts: ("presence_chart", "speed_distribution", "nearest_chart"),
}
REAL = {(module, name): getattr(module, name) for module in FUNCTIONS for name in FUNCTIONS[module]}
DISPLAY_SIZE = display.DISPLAY_SIZE
SMALL = 160  # instead of the usual DISPLAY_SIZE


def empty_chart(*_: Any) -> charts.Chart:
    return charts.Chart("0 0 1 1", "left empty by a test", "")


@contextmanager
def plain_reports() -> Iterator[None]:
    """Leave charts empty, and draw overlays and other pictures of frames small."""
    with pytest.MonkeyPatch.context() as patch:
        for module, name in REAL:
            patch.setattr(module, name, empty_chart)
        patch.setattr(display, "DISPLAY_SIZE", SMALL)
        yield


@contextmanager
def full_reports() -> Iterator[None]:
    """Draw reports and overlays as users get them."""
    with pytest.MonkeyPatch.context() as patch:
        for (module, name), function in REAL.items():
            patch.setattr(module, name, function)
        patch.setattr(display, "DISPLAY_SIZE", DISPLAY_SIZE)
        yield
