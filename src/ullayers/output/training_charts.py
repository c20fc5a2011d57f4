"""Charts of training: J and the effective rank over the steps of each trial."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from ullayers.output.charts import (
    INK,
    KEPT,
    NARROW,
    Chart,
    Floats,
    add_legend,
    label_y,
    new_figure,
    rendered,
    thinned,
)

KEPT_LINE: dict[str, Any] = {"color": KEPT, "linewidth": 2.4}
OTHER_LINE: dict[str, Any] = {"color": INK, "linewidth": 0.9, "alpha": 0.4}
NUMBERS = ("objective", "rank", "features", "seconds", "training", "held_out")


def training_chart(
    records: Sequence[dict[str, Any]], winner: int, key: str, label: str
) -> Chart | None:
    """Draw one value of each trial over training, with the winner in bold.

    Args:
        records: Training records with `trial`, `step` and `kind`.
        winner: The trial that was kept.
        key: Name of the value to draw.
        label: Name of the y axis.

    Returns:
        The chart, or None if no value is finite.

    Example:
        >>> training_chart([{"trial": 0, "step": 1, "objective": -2.0}], 0, "objective", "J").label
        'J'
        >>> training_chart([{"trial": 0, "step": 1, "objective": None}], 0, "objective", "J")
    """
    series = _series(records, key)
    if not series:
        return None
    figure = new_figure(NARROW, 250)
    axes = figure.subplots()
    kinds = sorted({kind for _, kind in series})
    max_stretches = max(20, 3000 // len(series))
    # The winner is drawn last, on top of the others.
    for (trial, kind), table in sorted(series.items(), key=lambda entry: entry[0][0] == winner):
        name = f"kept: trial {trial}" if trial == winner else "other trials"
        axes.plot(
            *table[thinned(table[:, 1], max_stretches)].T,
            label=f"{name}, {kind}" if len(kinds) > 1 else name,
            linestyle=("-", "--", ":")[kinds.index(kind) % 3],
            marker="o" if len(table) == 1 else "",
            **(KEPT_LINE if trial == winner else OTHER_LINE),
        )
    axes.set_xlabel("training step")
    label_y(axes, label)
    if key == "rank":
        _mark_full_rank(axes, max(int(record.get("features") or 0) for record in records))
    add_legend(axes)
    return rendered(figure, label)


def held_out_chart(records: Sequence[dict[str, Any]], winner: int) -> Chart | None:
    """Draw J of the kept trial, on training and on held-out frames.

    Args:
        records: Training records with `trial`, `step`, `training` and `held_out`.
        winner: The trial that was kept.

    Returns:
        The chart, or None if nothing was held out.

    Example:
        >>> record = {"trial": 0, "step": 25, "training": -2.1, "held_out": -2.0}
        >>> held_out_chart([record], 0).label, held_out_chart([{"trial": 0, "step": 1}], 0)
        ('J on held-out frames', None)
    """
    kept = [record for record in records if record["trial"] == winner]
    lines = {key: list(_series(kept, key).values()) for key in ("held_out", "training")}
    if not lines["held_out"] or not lines["training"]:
        return None
    figure = new_figure(NARROW, 250)
    axes = figure.subplots()
    for name, key, look in (
        ("training frames", "training", OTHER_LINE),
        ("held-out frames", "held_out", KEPT_LINE),
    ):
        axes.plot(*lines[key][0].T, marker="o", markersize=3, label=name, **look)
    axes.set_xlabel("training step")
    label_y(axes, "J")
    add_legend(axes)
    return rendered(figure, "J on held-out frames")


def _series(records: Sequence[dict[str, Any]], key: str) -> dict[tuple[int, str], Floats]:
    """Collect the finite values of each trial and kind as (steps, 2): step and value."""
    rows: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for record in records:
        value = record.get(key)
        if value is not None and math.isfinite(value):
            place = record["trial"], str(record.get("kind", ""))
            rows.setdefault(place, []).append((float(record["step"]), float(value)))
    return {place: np.array(sorted(some)) for place, some in rows.items()}


def _mark_full_rank(axes: Axes, features: int) -> None:
    axes.axhline(features, color=INK, linewidth=1, linestyle=(0, (4, 3)), alpha=0.7)
    axes.annotate(
        f"features: {features}",
        xy=(1, features),
        xycoords=("axes fraction", "data"),
        xytext=(-2, 4),
        textcoords="offset points",
        ha="right",
        fontsize=10,
    )
    axes.set_ylim(0, max(1.15 * features, axes.get_ylim()[1]))


def valid_records(records: Sequence[Any]) -> list[dict[str, Any]]:
    """Keep the training records that can be drawn.

    A record needs an integer `trial` and `step`. Other values that should be numbers but are not
    become None.

    >>> good = {"trial": 0, "step": 1, "rank": 2.0}
    >>> valid_records([good, {"step": 1}, {"trial": 0, "step": 2, "rank": "x"}, "no record"])
    [{'trial': 0, 'step': 1, 'rank': 2.0}, {'trial': 0, 'step': 2, 'rank': None}]
    """
    valid = []
    for record in records:
        if isinstance(record, dict) and all(_is_int(record.get(key)) for key in ("trial", "step")):
            values = {key: record[key] for key in NUMBERS if key in record}
            cleaned = {key: value if _is_number(value) else None for key, value in values.items()}
            valid.append(record | cleaned)
    return valid


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return _is_int(value) or (isinstance(value, float) and math.isfinite(value))
