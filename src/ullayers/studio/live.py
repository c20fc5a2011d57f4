"""Data for the page while a network learns, written by the training process."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from ullayers.errors import RunError
from ullayers.learning.checkpoint import read_tensors
from ullayers.learning.networks import Encoder, Locator, Model
from ullayers.learning.training import Learner, Record
from ullayers.learning.trials import ClipTrial, Trial
from ullayers.report.pictures import kernel_sheet
from ullayers.run.apply import describe
from ullayers.run.folder import finite
from ullayers.run.pipeline import Event
from ullayers.studio.jobs import LIVE, Job, Stage
from ullayers.studio.workspace import write_quickly
from ullayers.tracks.masks import EDGE
from ullayers.tracks.table import TRACK, Answer
from ullayers.video.region import Box

STATE_SECONDS = 0.25  # between two versions of state.json
LIVE_SECONDS = 0.5  # between two versions of live.json
LIVE_SHARE = 0.1  # share of the time that may be spent on the live view
PREVIEW_FRAMES = 32
RATE_SECONDS = 2.0  # over which the speed is averaged
MIN_POINTS = 3  # of an outline


def mask_outlines(masks: NDArray[np.uint8], box: Box | None = None) -> list[list[list[float]]]:
    """Return the outlines of masks as polygons x0, y0, x1, y1, ... in 0..1.

    Args:
        masks: (time, height, width) uint8; the edge of the object is at `EDGE`.
        box: Part of the frame that the masks cover; None for all of it.

    Example:
        >>> masks = np.zeros((1, 4, 8), np.uint8)
        >>> masks[0, 1:3, 2:6] = 255
        >>> mask_outlines(masks)
        [[[0.3125, 0.375, 0.3125, 0.625, 0.6875, 0.625, 0.6875, 0.375]]]
    """
    left, top, width, height = (0.0, 0.0, 1.0, 1.0) if box is None else box
    scale = np.array([width / masks.shape[2], height / masks.shape[1]])
    outlines = []
    for mask in masks:
        found, _ = cv2.findContours(
            (mask >= EDGE).astype(np.uint8), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE
        )
        polygons = [
            (points[:, 0] + 0.5) * scale + (left, top)
            for points in found
            if len(points) >= MIN_POINTS
        ]
        outlines.append([_rounded(polygon).ravel().tolist() for polygon in polygons])
    return outlines


def _rounded(values: NDArray[Any]) -> NDArray[np.float64]:
    rounded: NDArray[np.float64] = np.round(np.nan_to_num(values).astype(np.float64), 5)
    return rounded


def saved_kernels(folder: Path) -> str | None:
    """Return the kernels of a network saved by a watching job; None if there is none."""
    try:
        saved = read_tensors(folder / "model.safetensors")
    except RunError:
        return None
    first = [saved[name] for name in ("conv1.weight", "convs.0.weight") if name in saved]
    return kernel_sheet(first[0].float().numpy()).picture.uri if first else None


def kernels_uri(net: Model) -> str:
    """Return the kernels of the first convolution as a data URI."""
    first = net.convs[0] if isinstance(net, Encoder) else net.conv1
    weight = first.weight
    assert isinstance(weight, torch.Tensor)
    return kernel_sheet(weight.detach().float().cpu().numpy()).picture.uri


class LiveView:
    """Writes state.json and live.json of a job regularly.

    Args:
        job: The job.
        ids: Ids of the videos by the name of their sequence.
    """

    def __init__(self, job: Job, ids: Mapping[str, str]) -> None:
        self.job = job
        self.ids = ids
        self.state = job.state
        self.live: dict[str, Any] = {"kernels": None, "preview": None, "trial": None}
        self._last_state = 0.0
        self._next_live = 0.0
        self._marks: list[tuple[float, int]] = []

    def follow(self, event: Event) -> None:
        """Show what the pipeline has just done."""
        if event.learner is not None and event.record is not None:
            self.step(event.learner, event.record)
            return
        if event.found is not None:
            self.seen(event.found)
        self.progress(event.stage, event.done, event.total)

    def progress(self, stage: Stage, done: int, total: int | None) -> None:
        """Record the progress of a stage."""
        now = time.monotonic()
        begins = stage != self.state.stage
        if begins:
            self._marks = [(now, done)]
            self.state = replace(self.state, rate=None, left=None)
            self.live |= {"preview": None}
        rate, left = self._speed(now, done, total)
        self.state = replace(self.state, stage=stage, done=done, total=total, rate=rate, left=left)
        if begins or now - self._last_state >= STATE_SECONDS:
            self._last_state = now
            self.job.write(self.state)

    def _speed(self, now: float, done: int, total: int | None) -> tuple[float | None, float | None]:
        """Return items per second over the last seconds, and the remaining seconds."""
        self._marks.append((now, done))
        while len(self._marks) > 2 and now - self._marks[1][0] > RATE_SECONDS:
            self._marks.pop(0)
        began, before = self._marks[0]
        if now - began < 0.2 or done <= before:
            return self.state.rate, self.state.left
        rate = (done - before) / (now - began)
        return rate, None if total is None else max(0.0, (total - done) / rate)

    def step(self, learner: Learner, record: Record) -> None:
        """Show a training step."""
        self.progress("training", learner.done, learner.total)
        if not self._is_due():
            return
        began = time.monotonic()
        trial = learner.trials[record.trial]
        self.live |= {
            "trial": {
                "number": record.trial + 1,
                "of": len(learner.plan),
                "kind": record.kind,
                "seed": record.seed,
                "best": record.step > learner.trial_steps or len(learner.plan) == 1,
            },
            "objective": finite(record.objective),
            "rank": finite(record.rank),
            "features": record.features,
            "kernels": kernels_uri(trial.net),
            "preview": self._preview(learner, trial),
        }
        self._write_live(began)

    def _preview(self, learner: Learner, trial: Trial) -> dict[str, Any]:
        """Return the current results of the network on the same frames."""
        piece = learner.footage.pieces[0]
        rows = slice(0, min(PREVIEW_FRAMES, len(piece)))
        preview = self._named(learner.footage.names[piece.source])
        preview["frames"] = piece.clip.index[rows].tolist()
        net, was_training = trial.net, trial.net.training
        net.eval()  # does not change the statistics of the layers
        try:
            with torch.no_grad():
                if isinstance(net, Locator) and isinstance(trial, ClipTrial):
                    values, masks = describe(net, net(trial.read(piece, rows)))
                    preview |= {"places": _rounded(values).tolist()}
                    preview |= {"outlines": mask_outlines(masks)}
                else:
                    assert isinstance(net, Encoder)
                    frames = (piece.clip.frames[rows].float() / 255).to(trial.config.device)
                    preview["codes"] = _rounded(net.embed(frames).cpu().numpy()).tolist()
                    if piece.clip.crops is not None:
                        preview["crops"] = _rounded(piece.clip.crops[rows].numpy()).tolist()
        finally:
            net.train(was_training)
        return preview

    def seen(self, part: Answer) -> None:
        """Show results for frames that were just processed."""
        if not self._is_due():
            return
        began = time.monotonic()
        rows = slice(max(0, len(part.index) - PREVIEW_FRAMES), None)
        preview = self._named(part.sequence)
        preview["frames"] = part.index[rows].tolist()
        values = _rounded(part.values[rows]).tolist()
        preview["places" if part.columns == TRACK else "codes"] = values
        if part.masks is not None:
            preview["outlines"] = mask_outlines(part.masks[rows], part.box)
        if part.crops is not None:
            preview["crops"] = _rounded(part.crops[rows]).tolist()
        self.live["preview"] = preview
        self._write_live(began)

    def _named(self, sequence: str) -> dict[str, Any]:
        empty: dict[str, Any] = {"outlines": [], "places": [], "codes": None, "crops": None}
        return {"source": self.ids.get(sequence), "sequence": sequence, "image": None} | empty

    def _is_due(self) -> bool:
        return time.monotonic() >= self._next_live

    def _write_live(self, began: float) -> None:
        state = self.state
        now = {"stage": state.stage, "done": state.done, "total": state.total}
        write_quickly(
            self.job.folder / LIVE, self.live | now | {"rate": state.rate, "left": state.left}
        )
        spent = time.monotonic() - began
        self._next_live = time.monotonic() + max(LIVE_SECONDS, spent / LIVE_SHARE)
