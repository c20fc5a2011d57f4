"""From a finished run to its report: pictures, kernels, maps and numbers worth showing."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
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
from ullayers.output.export import Exported, reading_to_show
from ullayers.output.report import Contents, Sample, write_report
from ullayers.video.reader import Source, VideoError
from ullayers.video.single_frames import frames_at

SAMPLES = 8


def report_run(
    run: Run,
    sources: Sequence[Source],
    done: Exported,
    *,
    stride: int = 1,
    scores: Sequence[tuple[str, str]] = (),
) -> None:
    """Write report.html into the run's folder.

    Args:
        run: a run that has ended.
        sources: what it was applied to.
        done: what was found there.
        stride: with which it was looked at.
        scores: against a truth, if there is one.
    """
    maps, picture = _maps(run, sources)
    records = run.records()
    contents = Contents(
        title=_title(run),
        config=_shown_config(run),
        records=records,
        winner=run.outcome.trial or 0,
        answers=done.answers,
        samples=_samples(sources, done, stride),
        kernels=_kernels(run),
        maps=maps,
        maps_picture=picture,
        facts=_facts(run, done, records),
        scores=list(scores),
    )
    write_report(run.folder / "report.html", contents)


def _title(run: Run) -> str:
    what = {
        "locate": "Where it is",
        "orient": "Which way it is turned",
        "features": "Slow features",
    }
    names = run.outcome.sources
    return f"{what[run.config.task]}: {names[0]}" + (
        f" and {len(names) - 1} more" if len(names) > 1 else ""
    )


def _shown_config(run: Run) -> dict[str, Any]:
    """The settings in words."""
    reading, learning, (height, width) = run.reading, vars(run.config), run.reading.size or (0, 0)
    read = {
        "size": f"{width} x {height} pixels",
        "colour": not reading.grey,
        "follows what moves": reading.follow,
        "frames": "all" if reading.stride == 1 else f"one in {reading.stride}",
        "of the first": "all" if run.max_frames is None else run.max_frames,
    }
    words = {
        "outputs": "x and y" if run.config.task == "locate" else run.config.outputs,
        "long_mean": run.config.long_mean or f"{run.kind}, chosen by J",
        "local": run.config.local or "off",
        "tolerance": run.config.tolerance or "off",
    }
    if run.config.optimizer != "sgd":
        learning = {name: value for name, value in learning.items() if name != "momentum"}
    return {
        "inputs": ", ".join(os.path.basename(path) for path in run.inputs),
        "reading": read,
        "learning": {
            name.replace("_", " "): value for name, value in {**learning, **words}.items()
        },
    }


def _facts(run: Run, done: Exported, records: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    frames = sum(len(answer.index) for answer in done.answers)
    last = [record for record in records if record["trial"] == run.outcome.trial][-1]
    facts = [
        ("frames", f"{frames:,}"),
        ("sequence" if len(done.answers) == 1 else "sequences", f"{len(done.answers):,}"),
        ("J on clips for judging", f"{run.outcome.objective:.2f}"),
        ("network outputs in use", f"{last['rank']:.1f} of {last['features']}"),
        ("long-term mean", run.kind),
        ("learned in", f"{records[-1]['seconds']:.0f} s"),
    ]
    if run.config.task == "locate":
        sure = np.concatenate([answer.values[:, 2] for answer in done.answers])
        facts.append(("median confidence", f"{np.median(sure):.2f}"))
        facts.append(("camera", "moves, compensated" if run.outcome.camera else "static"))
    return facts


def _samples(sources: Sequence[Source], done: Exported, stride: int) -> list[Sample]:
    """Frames evenly spread over sequences and time, with what was found in them."""
    named = {source.name: source for source in sources}
    chosen = np.linspace(0, len(done.answers) - 1, min(SAMPLES, len(done.answers))).round()
    each = -(-SAMPLES // len(chosen))
    samples = []
    for number, i in enumerate(chosen.astype(int), 1):
        answer, masks = done.answers[i], done.masks[i]
        # One frame of each of many sequences, from another moment each time.
        share = number / (len(chosen) + 1) if each == 1 else 1 / (each + 1)
        every = max(1, int(share * len(answer.index)))
        samples += _of_source(named[answer.sequence], answer, masks, stride, each, every)
    return samples[: 2 * SAMPLES]


def _of_source(
    source: Source, answer: Answer, masks: dict[int, NDArray[np.uint8]], stride: int, count: int,
    every: int,
) -> list[Sample]:  # fmt: skip
    if masks:  # only some masks were kept, all at multiples of one number
        step = max(1, sorted(masks)[1] if len(masks) > 1 else 1)
        every = max(step, every // step * step)
    rows = list(range(every, len(answer.index), every))[:count] or [0]  # the first tells least
    samples = []
    for row, picture in _pictures(source, answer, stride, rows):
        frame = picture.expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy()
        mask = masks[row] / np.float32(255) if row in masks else None
        seconds, values = float(answer.seconds[row]), answer.values[row]
        samples.append(Sample(answer.sequence, seconds, frame, mask, values))
    return samples


def _pictures(
    source: Source, answer: Answer, stride: int, rows: list[int]
) -> Iterator[tuple[int, Tensor]]:
    """The frames of some rows, evenly spaced, at a size to look at."""
    every = stride * max(rows[0], 1)
    reading = reading_to_show(source, every, len(rows) + 1)
    with suppress(VideoError):  # of pictures that cannot be read, some others can
        assert reading.size is not None
        times = [float(answer.seconds[row]) for row in rows]
        found = frames_at(source, times, reading.size, most=every)
        if found is not None:
            yield from zip(rows, found, strict=True)
            return
        with closing(source.clips(1, reading, ahead=1)) as clips:
            for clip in clips:
                row = int(np.searchsorted(answer.index, int(clip.index[0])))
                if row in rows:
                    yield row, clip.frames[0]
                if row >= rows[-1]:  # of a broken source no more can be read
                    return


def _kernels(run: Run) -> dict[str, NDArray[np.float32]]:
    assert run.net is not None
    if isinstance(run.net, Encoder):
        named: list[tuple[str, nn.Module]] = [
            (f"conv{i + 1}", conv) for i, conv in enumerate(run.net.convs)
        ]
    else:
        named = [("conv1", run.net.conv1), ("conv2", run.net.conv2)]
    return {name: _array(module.weight) for name, module in named}  # type: ignore[arg-type]


def _maps(
    run: Run, sources: Sequence[Source]
) -> tuple[dict[str, NDArray[np.float32]], NDArray[np.uint8]]:
    """Every layer's response to the surest frame of the first stretch, and that frame."""
    piece = first_piece(run, sources[0])
    assert run.net is not None
    row = len(piece) // 2
    with torch.no_grad():
        if isinstance(run.net, Locator):
            seen = piece.foreground().to(run.config.device)
            row = int(run.net.confidence(run.net(seen)).argmax())
        else:
            seen = (piece.clip.frames.float() / 255).to(run.config.device)
        maps = {name: _array(value[0]) for name, value in run.net.maps(seen[row : row + 1]).items()}
    picture = piece.clip.frames[row : row + 1].float().expand(-1, 3, -1, -1)
    larger = F.interpolate(picture, scale_factor=4, mode="bilinear")
    return maps, larger[0].permute(1, 2, 0).round().byte().numpy()


def _array(tensor: Tensor) -> NDArray[np.float32]:
    array: NDArray[np.float32] = tensor.detach().float().cpu().numpy()
    return array
