"""The statistics of a layer: name, shape, dtype and initial value of each buffer.

The layer's buffers and the arguments of the compiled loop and of the GPU kernels are all derived
from `STATISTICS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch
from torch import Tensor


class Statistic(NamedTuple):
    """One buffer of a layer.

    Attributes:
        name: Name of the buffer.
        shape: Sizes, as numbers or names: "d" is the number of features, "streams" that of the
            streams, "long" that of the rows of the long-term mean (streams, or positions if the
            mean is shared).
        dtype: None for the dtype of the layer, float32 or float64.
        start: Initial value. "known" is 1 for layers with `start="paper"` and 0 otherwise;
            "identity" is the identity matrix times that.
    """

    name: str
    shape: tuple[int | str, ...]
    dtype: torch.dtype | None = None
    start: Literal["zero", "known", "identity", "true"] = "zero"

    @property
    def per_stream(self) -> bool:
        """Whether the buffer has one row per stream."""
        return bool(self.shape) and self.shape[0] in ("streams", "long")

    def sized(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Return the shape in numbers."""
        return tuple(n if isinstance(n, int) else sizes[n] for n in self.shape)

    def fill(self, buffer: Tensor, known: float) -> None:
        """Set a buffer to its initial value."""
        if self.start == "identity":
            buffer.zero_().diagonal().fill_(known)
        else:
            buffer.fill_({"zero": 0.0, "known": known, "true": 1.0}[self.start])


def _with_rest(
    name: str, shape: tuple[int | str, ...], start: Literal["zero", "identity"] = "zero"
) -> tuple[Statistic, Statistic]:
    """Return a statistic and a second buffer for its rounding error."""
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
    Statistic("pull", (1, "d")),  # moving average of the gradient
    Statistic("steps", (), torch.int64),
    Statistic("left_out", (2,), torch.int64),  # skipped positions, steps without an inverse
    Statistic(
        "continues", (), torch.bool, "true"
    ),  # whether the next call may continue the streams
)
NAMES = tuple(statistic.name for statistic in STATISTICS)
WITH_REST = tuple(n.removesuffix("_rest") for n in NAMES if n.endswith("_rest"))


def why_not_as_described(buffers: Mapping[str, Tensor]) -> str | None:
    """Return which buffer the user replaced by one of another shape, dtype or layout, if any."""
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
