"""The outcome of a run, as stored in config.json."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from ullayers.learn.footage import LongMean


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """The outcome of learning or watching; unknown values are None.

    Attributes:
        kind: Reference mean for long-term variation: of each clip, or of the whole stream.
        seed: Seed of the trial that won.
        trial: Number of the trial that won.
        objective: Evaluation J of the trained network on training frames; while watching, J of the
            last step.
        held_out_objective: J on held-out frames; None if there are too few to compare it with J on
            training frames.
        held_out_frames: Number of held-out frames; 0 if there were too few.
        held_out_correlation: Correlation of held-out frames with their neighbours in time, for each
            number of the code.
        folded: Share of the frames of closed loops whose code also belongs to a different frame;
            None if there are no loops.
        start: Evaluation J before training.
        scores: J used to compare trials; None where it is not finite.
        steps: Optimizer steps of the winner; while watching, frames.
        frames: Number of frames read.
        trained_frames: Number of frames trained on: neither held out nor dropped to save memory.
            None in runs of version 0.1, which used all frames it kept.
        sources: Names of the sources.
        strides: Stride with which each source was read, by its name.
        bad: Inputs that could not be read, with their errors.
        camera: Whether the camera moves in some source.
        torch: Version of PyTorch.

    Example:
        >>> result = RunResult(kind="clip", objective=-1.0, frames=40)
        >>> result.objective, result.start, result.sources
        (-1.0, None, [])
    """

    kind: LongMean
    seed: int | None = None
    trial: int | None = None
    objective: float | None = None
    held_out_objective: float | None = None
    held_out_frames: int | None = None
    held_out_correlation: list[float] | None = None
    folded: float | None = None
    start: float | None = None
    scores: list[float | None] | None = None
    steps: int | None = None
    frames: int | None = None
    trained_frames: int | None = None
    sources: list[str] = field(default_factory=list)
    strides: dict[str, int] = field(default_factory=dict)
    bad: dict[str, str] = field(default_factory=dict)
    camera: bool | None = None
    torch: str | None = None


def clean_result(content: Any) -> Any:
    """Convert the JSON of a result to that of `RunResult`: {} is none, NaN and infinity are null.

    Version 0.1 wrote scores that were not finite unchanged.
    """
    if not content:
        return None
    if not isinstance(content, dict) or not isinstance(content.get("scores"), list):
        return content
    scores = [finite(v) if isinstance(v, float) else v for v in content["scores"]]
    return {**content, "scores": scores}


def finite(value: float) -> float | None:
    """Return the value, or None if it is NaN or infinite, which JSON cannot represent."""
    return value if math.isfinite(value) else None
