"""The statistics of a layer, described once: name, shape, dtype and start.

The layer's buffers, their order in memory for the compiled loop, and what the GPU kernels are given
are all derived from `STATISTICS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch
from torch import Tensor


class Statistic(NamedTuple):
    """One buffer of a layer.

    Attributes:
        name: of the buffer.
        shape: numbers, or what they stand for: "d" features; "streams"; "long", the rows of the
            long-term mean, which are the streams, or the positions if the mean is shared.
        dtype: None is that of the layer, float32 or float64.
        start: before the first frame. "known" is 1 if the statistics start as known
            (`start="paper"`) and 0 otherwise; "identity" is the identity times that.
    """

    name: str
    shape: tuple[int | str, ...]
    dtype: torch.dtype | None = None
    start: Literal["zero", "known", "identity", "true"] = "zero"

    @property
    def per_stream(self) -> bool:
        """Whether it has a row for every stream."""
        return bool(self.shape) and self.shape[0] in ("streams", "long")

    def sized(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Its shape in numbers."""
        return tuple(n if isinstance(n, int) else sizes[n] for n in self.shape)

    def fill(self, buffer: Tensor, known: float) -> None:
        """Set a buffer to its start."""
        if self.start == "identity":
            buffer.zero_().diagonal().fill_(known)
        else:
            buffer.fill_({"zero": 0.0, "known": known, "true": 1.0}[self.start])


def _with_rest(
    name: str, shape: tuple[int | str, ...], start: Literal["zero", "identity"] = "zero"
) -> tuple[Statistic, Statistic]:
    """A statistic, and what its precision cannot hold of it."""
    return Statistic(name, shape, start=start), Statistic(f"{name}_rest", shape)


STATISTICS = (
    *_with_rest("short_mean", ("streams", "d")),
    *_with_rest("long_mean", ("long", "d")),
    *_with_rest("short_cov", ("d", "d"), "identity"),  # W
    *_with_rest("long_cov", ("d", "d"), "identity"),  # B
    Statistic("short_evidence", ("streams",), start="known"),
    Statistic("long_evidence", ("long",), start="known"),
    Statistic("cov_evidence", (2,), start="known"),  # of W and B
    Statistic("ridge_level", (2,)),
    Statistic("pull", (1, "d")),  # the gradient's own long-term mean
    Statistic("steps", (), torch.int64),
    Statistic("left_out", (2,), torch.int64),  # unusable positions, steps without an inverse
    Statistic("continues", (), torch.bool, "true"),  # whether the next frames may go on
)
NAMES = tuple(statistic.name for statistic in STATISTICS)
WITH_REST = tuple(n.removesuffix("_rest") for n in NAMES if n.endswith("_rest"))


def why_not_as_described(buffers: Mapping[str, Tensor]) -> str | None:
    """Which buffer somebody has replaced by one of another shape, dtype or layout."""
    cov = buffers["short_cov"]
    sizes = {
        "d": len(cov),
        "streams": len(buffers["short_mean"]),
        "long": len(buffers["long_mean"]),
    }
    for statistic in STATISTICS:
        buffer = buffers[statistic.name]
        plain = buffer.is_contiguous() and not buffer.is_neg() and not buffer.is_inference()
        same = buffer.shape == statistic.sized(sizes) and buffer.device == cov.device
        if not (plain and same and buffer.dtype == (statistic.dtype or cov.dtype)):
            return f"the buffer {statistic.name} was replaced by one of another kind"
    return None
