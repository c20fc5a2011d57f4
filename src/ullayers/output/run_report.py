"""Collecting the contents of the report of a finished run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from ullayers.learn.apply import first_piece
from ullayers.learn.models import Encoder, Locator
from ullayers.learn.results import Answer
from ullayers.learn.runs import Run
from ullayers.output.behaviour import Scene
from ullayers.output.crossing_table import read_crossings
from ullayers.output.display import display_size
from ullayers.output.exported import Exported
from ullayers.output.report import Contents, Sample, write_report
from ullayers.output.summary import (
    distrust_reasons,
    is_folded,
    is_trusted_ring,
    run_title,
    training_frames,
    trust_sentence,
)
from ullayers.output.training_charts import valid_records
from ullayers.video.reader import Reading, Source, VideoError
from ullayers.video.single_frames import frames_at

SAMPLES = 8  # frames to show


def report_run(
    run: Run,
    sources: Sequence[Source],
    done: Exported,
    *,
    stride: int = 1,
    scores: Sequence[tuple[str, str]] = (),
    scenes: Sequence[Scene] = (),
) -> None:
    """Write report.html into the run folder.

    Args:
        run: A finished run.
        sources: Sources it was applied to.
        done: Results of `export`.
        stride: The stride of the export.
        scores: Comparison with the ground truth, if there is one.
        scenes: Measures of the objects in tracks.csv.
    """
    contents = contents_of(run, sources, done, stride=stride)
    contents = replace(
        contents,
        scores=list(scores),
        scenes=list(scenes),
        crossings=read_crossings(run.folder / "crossings.csv"),
    )
    write_report(run.folder / "report.html", contents)


def contents_of(
    run: Run, sources: Sequence[Source], done: Exported, *, stride: int = 1
) -> Contents:
    """Return the contents of the report of a run, without measures of objects.

    Args:
        run: A finished run.
        sources: Sources it was applied to.
        done: Results of the run.
        stride: The stride of the export.
    """
    maps, picture = _maps(run, sources)
    records = _shown_records(run)
    reasons = distrust_reasons(run, done)
    return Contents(
        title=run_title(run),
        config=_settings(run, sources),
        records=records,
        winner=run.outcome.trial or 0,
        answers=done.answers,
        infos=done.infos,
        samples=_samples(sources, done, stride),
        kernels=_kernels(run),
        maps=maps,
        maps_picture=picture,
        facts=_facts(run, done, records),
        warnings=reasons,
        trust=None if reasons else trust_sentence(run, done),
        zones=run.zones,
        mm_per_pixel=run.mm_per_pixel,
    )


def _shown_records(run: Run) -> list[dict[str, Any]]:
    """Return the training records; J of too few held-out frames is left out."""
    records = valid_records(run.records())
    if run.outcome.held_out_objective is not None:
        return records
    return [{**record, "held_out": None} for record in records]


def _settings(run: Run, sources: Sequence[Source]) -> dict[str, Any]:
    """Return all settings, with readable names and values."""
    height, width = run.reading.size or (0, 0)
    reading = {
        "size": f"{width} x {height} pixels",
        "colour": not run.reading.grey,
        "crop around motion": run.reading.follow,
        "region of interest": "whole frame" if run.reading.roi is None else str(run.reading.roi),
        "time range": _format_range(run.reading),
        "frames": _kept_frames({run.reading_of(source).stride for source in sources}),
        "frames per source": "all" if run.max_frames is None else f"the first {run.max_frames}",
    }
    learning = vars(run.config) | {
        "outputs": "x and y" if run.config.task == "locate" else run.config.outputs,
        "long_mean": run.config.long_mean or f"{run.kind}, chosen by J",
        "objects": run.config.objects or "auto",
        "local": run.config.local or "off",
        "tolerance": run.config.tolerance or "off",
    }
    if run.config.optimizer != "sgd":
        del learning["momentum"]
    measures = {"zones": run.zones and list(run.zones.zones), "mm per pixel": run.mm_per_pixel}
    return {
        "inputs": ", ".join(os.path.basename(path) for path in run.inputs),
        "reading": reading,
        "measures": {name: value for name, value in measures.items() if value is not None},
        "learning": {name.replace("_", " "): value for name, value in learning.items()},
    }


def _format_range(reading: Reading) -> str:
    """Return the selected time range, in seconds.

    >>> _format_range(Reading(start=1.5)), _format_range(Reading(end=60))
    ('from 1.5 s', 'up to 60 s')
    """
    if not reading.start:
        return "all" if reading.end is None else f"up to {reading.end:g} s"
    return f"from {reading.start:g} s" + ("" if reading.end is None else f" to {reading.end:g} s")


def _kept_frames(strides: set[int]) -> str:
    """Describe which frames of the sources were read.

    >>> _kept_frames({1}), _kept_frames({5}), _kept_frames({4, 5}), _kept_frames({1, 5})
    ('all', 'one in 5', 'one in 4 to 5', 'all of short sources, else one in 5')
    """
    thinned = sorted(strides - {1})
    if not thinned:
        return "all"
    among = f"{thinned[0]} to {thinned[-1]}" if len(thinned) > 1 else str(thinned[0])
    return f"all of short sources, else one in {among}" if 1 in strides else f"one in {among}"


def _facts(run: Run, done: Exported, records: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    facts = [
        ("frames", f"{done.totals.frames:,}"),
        ("sequence" if len(done.answers) == 1 else "sequences", f"{len(done.answers):,}"),
        ("training frames", f"{training_frames(run):,}"),
        ("held-out frames", f"{run.outcome.held_out_frames or 0:,}"),
        ("evaluation J", _format_objective(run.outcome.objective)),
        *_held_out_facts(run, done),
        *_training_facts(records, run.outcome.trial or 0),
        ("long-term mean", run.kind),
    ]
    if run.teaching is not None:
        facts.append(("corrections learned from", f"{run.teaching.corrections:,}"))
    if run.config.task == "locate":
        confidence = np.concatenate([answer.values[:, 2] for answer in done.answers])
        facts.append(("median confidence", f"{np.median(confidence):.2f}"))
        facts.append(("camera", "moving" if run.outcome.camera else "in one place"))
    return facts


def _format_objective(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f}".replace("-", "\N{MINUS SIGN}")


def _held_out_facts(run: Run, done: Exported) -> list[tuple[str, str]]:
    """Return J on held-out frames and the shape of a code."""
    facts = []
    if run.outcome.held_out_objective is not None:
        facts.append(("J on held-out frames", _format_objective(run.outcome.held_out_objective)))
    if is_folded(run):
        facts.append(("shape of the code", "folded"))
    elif is_trusted_ring(run, done):
        facts.append(("shape of the code", "closed ring"))
    return facts


def _training_facts(records: Sequence[dict[str, Any]], winner: int) -> list[tuple[str, str]]:
    """Return the effective rank and the training time, as far as they were recorded."""
    facts = []
    ranks = [record for record in records if record["trial"] == winner]
    if ranks and ranks[-1].get("rank") is not None and ranks[-1].get("features") is not None:
        rank, features = ranks[-1]["rank"], ranks[-1]["features"]
        facts.append(("effective rank", f"{rank:.1f} of {features}"))
    if records and records[-1].get("seconds") is not None:
        facts.append(("training time", f"{records[-1]['seconds']:.0f} s"))
    return facts


def _samples(sources: Sequence[Source], done: Exported, stride: int) -> list[Sample]:
    """Return evenly spaced frames over sequences and time, with their results."""
    by_name = {source.name: source for source in sources}
    count = len(done.answers)
    chosen = np.linspace(0, count - 1, min(SAMPLES, count)).round().astype(int)
    each = -(-SAMPLES // len(chosen))
    samples = []
    for number, i in enumerate(chosen, 1):
        answer, masks = done.answers[i], done.masks[i]
        # With many sequences: one frame each, from a different part of each sequence.
        share = number / (len(chosen) + 1) if each == 1 else 1 / (each + 1)
        every = max(1, int(share * len(answer.index)))
        frames = done.frames_to_show.get(answer.sequence, {})
        if frames:
            rows = _choose_rows(frames, len(answer.index), each, every)
            samples += [_sample(answer, row, frames[row], masks) for row in rows]
        else:
            source = by_name[answer.sequence]
            samples += _read_samples(source, answer, masks, stride, each, every)
    return samples[: 2 * SAMPLES]


def _choose_rows(frames: Mapping[int, Tensor], total: int, count: int, every: int) -> list[int]:
    """Choose up to `count` of the kept frames, about `every` rows apart.

    The first frame is avoided, because a moving object has not moved yet.

    >>> _choose_rows({row: torch.empty(0) for row in range(0, 40, 4)}, 40, 3, 10)
    [8, 20, 28]
    """
    kept = np.array(sorted(frames))
    wanted = range(every, total, every)[:count]
    nearest = [int(kept[np.abs(kept - row).argmin()]) for row in wanted]
    later = [row for row in dict.fromkeys(nearest) if row > 0]
    return later or [int(kept[0])]


def _sample(
    answer: Answer, row: int, picture: Tensor, masks: Mapping[int, NDArray[np.uint8]]
) -> Sample:
    frame = picture.expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy()
    mask = masks[row] / np.float32(255) if row in masks else None
    crop = None if answer.crops is None else answer.crops[row]
    seconds = float(answer.seconds[row])
    return Sample(answer.sequence, seconds, frame, mask, answer.values[row], answer.box, crop)


def _read_samples(
    source: Source,
    answer: Answer,
    masks: dict[int, NDArray[np.uint8]],
    stride: int,
    count: int,
    every: int,
) -> list[Sample]:
    """Read frames again, for a sequence without kept frames."""
    if masks:  # only some masks were kept, all at multiples of one number
        step = max(1, sorted(masks)[1] if len(masks) > 1 else 1)
        every = max(step, every // step * step)
    rows = list(range(every, len(answer.index), every))[:count] or [0]
    read = _read_frames(source, answer, stride, rows)
    return [_sample(answer, row, picture, masks) for row, picture in read]


def _read_frames(
    source: Source, answer: Answer, stride: int, rows: list[int]
) -> Iterator[tuple[int, Tensor]]:
    """Yield the frames of some evenly spaced rows."""
    every = stride * max(rows[0], 1)
    with suppress(VideoError):  # if some frames cannot be read, others can
        size = display_size(source.probe())
        seconds = [float(answer.seconds[row]) for row in rows]
        found = frames_at(source, seconds, size, most=every)
        if found is not None:
            yield from zip(rows, found, strict=True)
            return
        start = float(answer.seconds[0]) if answer.index[0] else 0.0
        reading = Reading(size=size, start=start, stride=every, max_frames=len(rows) + 1)
        with closing(source.clips(1, reading, ahead=1)) as clips:
            for clip in clips:
                row = int(np.searchsorted(answer.index, int(clip.index[0])))
                if row in rows:
                    yield row, clip.frames[0]
                if row >= rows[-1]:  # later frames may be damaged
                    return


def _kernels(run: Run) -> dict[str, NDArray[np.float32]]:
    """Return the weights of the convolutional layers."""
    assert run.net is not None
    if isinstance(run.net, Encoder):
        convs: list[nn.Module] = list(run.net.convs)
    else:
        convs = [run.net.conv1, run.net.conv2]
    return {f"conv{i}": _array(conv.weight) for i, conv in enumerate(convs, 1)}  # type: ignore[arg-type]


def _maps(
    run: Run, sources: Sequence[Source]
) -> tuple[dict[str, NDArray[np.float32]], NDArray[np.uint8]]:
    """Return the outputs of all layers for one frame of the first source, and that frame.

    For `locate` it is the frame with the highest confidence, otherwise one from the middle.
    """
    piece = first_piece(run, sources[0])
    assert run.net is not None
    row = len(piece) // 2
    with torch.no_grad():
        if isinstance(run.net, Locator):
            inputs = piece.foreground().to(run.config.device)
            row = int(run.net.confidence(run.net(inputs)).argmax())
        else:
            inputs = (piece.clip.frames.float() / 255).to(run.config.device)
        responses = run.net.maps(inputs[row : row + 1])
    picture = piece.clip.frames[row : row + 1].float().expand(-1, 3, -1, -1)
    larger = F.interpolate(picture, scale_factor=4, mode="bilinear")
    maps = {name: _array(response[0]) for name, response in responses.items()}
    return maps, larger[0].permute(1, 2, 0).round().byte().numpy()


def _array(tensor: Tensor) -> NDArray[np.float32]:
    array: NDArray[np.float32] = tensor.detach().float().cpu().numpy()
    return array
