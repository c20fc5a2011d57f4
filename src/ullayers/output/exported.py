"""What `export` found and wrote."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ullayers.learn.results import Answer
from ullayers.video.reader import Info


@dataclass
class Exported:
    """Results of `export`; `answers`, `masks` and `infos` have one entry for each sequence.

    Attributes:
        answers: All rows of the sequence, without masks.
        masks: Some evenly spaced masks of the sequence by row number.
        infos: Frame size and frame rate of the sequence.
        frames_to_show: Some evenly spaced frames by sequence name and row number, in colour at
            display size; only of some sequences, and none of resumed ones.
        bad: Sources that could not be read completely, with the error.
        files: Files and folders that were written.
    """

    answers: list[Answer] = field(default_factory=list)
    masks: list[dict[int, NDArray[np.uint8]]] = field(default_factory=list)
    infos: list[Info] = field(default_factory=list)
    frames_to_show: dict[str, dict[int, Tensor]] = field(default_factory=dict)
    bad: dict[str, str] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)

    def add(self, answer: Answer, masks: dict[int, NDArray[np.uint8]], info: Info) -> None:
        """Add a sequence."""
        self.answers.append(answer)
        self.masks.append(masks)
        self.infos.append(info)

    @property
    def frames(self) -> int:
        """Number of frames of all sequences."""
        return sum(len(answer.index) for answer in self.answers)
