"""Reports and model cards: what a run found, read from its folder and its inputs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from ullayers import __version__
from ullayers.errors import Error
from ullayers.files import replacing
from ullayers.learning.networks import Encoder, Locator
from ullayers.report.charts import valid_records
from ullayers.report.overlay import display_size
from ullayers.report.page import Contents, Sample, write_report
from ullayers.run.apply import first_piece
from ullayers.run.folder import CARD, CARD_START, is_own_card, is_run, read_config
from ullayers.run.plan import Plan, csv_name, sources_of
from ullayers.run.summary import (
    Exported,
    distrust_reasons,
    found_share,
    is_folded,
    is_trusted_ring,
    run_title,
    trained_frames,
    training_frames,
    trust_sentence,
)
from ullayers.tracks.behaviour import Scene, measure_scenes, write_behaviour
from ullayers.tracks.corrections import read_corrected
from ullayers.tracks.formats.write import plan_files, write_files
from ullayers.tracks.reading import Track, read_crossings
from ullayers.tracks.table import SURE, TRACK, Answer, open_table
from ullayers.tracks.tracked_video import TrackedVideo, on_frames
from ullayers.video.access import FrameAccess
from ullayers.video.camera.following import SIDE
from ullayers.video.sources import Info, Reading, Source, VideoError

SAMPLES = 8  # frames to show


SHOWN_SEQUENCES = 20


TASKS = {
    "locate": "the position and the mask of the moving object in each frame",
    "orient": "a code of each frame that follows the orientation of the object",
    "features": "the slowest features of each frame, slowest first",
}


# Characters that Markdown and the Hub interpret within a line: links (even without brackets), HTML,
# emphasis, code, formulas, :emoji:, cell borders. Other characters are plain text.
SPECIAL = r"[\\`*_\[\]<>#!|&~$@]|:(?! )|(?<=[wW]{3})\."


# Task names of the Hub.
PIPELINES = {
    "locate": "image-segmentation",
    "orient": "image-feature-extraction",
    "features": "image-feature-extraction",
}


USES = {
    "locate": """\
# foreground: frames minus the scene without the object, (time, {shape}), frames in 0..1
found = net(foreground)
found.centroid, net.confidence(found), net.picture(found)  # positions in 0..1, masks""",
    "orient": "code = net.code(frames)  # frames: (time, {shape}) in 0..1",
    "features": "code = net.code(frames)  # frames: (time, {shape}) in 0..1",
}


def report_run(
    run: Plan,
    sources: Sequence[Source],
    done: Exported,
    *,
    scores: Sequence[tuple[str, str]] = (),
    scenes: Sequence[Scene] = (),
) -> None:
    """Write report.html into the run folder.

    Args:
        run: A finished run.
        sources: Sources it was applied to.
        done: Results of `export`.
        scores: Comparison with the ground truth, if there is one.
        scenes: Measures of the objects in tracks.csv.
    """
    contents = contents_of(run, sources, done)
    contents = replace(
        contents,
        scores=list(scores),
        scenes=list(scenes),
        crossings=read_crossings(run.folder / "crossings.csv"),
    )
    write_report(run.folder / "report.html", contents)


def contents_of(run: Plan, sources: Sequence[Source], done: Exported) -> Contents:
    """Return the contents of the report of a run, without measures of objects.

    Args:
        run: A finished run.
        sources: Sources it was applied to.
        done: Results of the run.
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
        samples=_samples(sources, done),
        kernels=_kernels(run),
        maps=maps,
        maps_picture=picture,
        facts=_facts(run, done),
        details=_details(run, done, records),
        warnings=reasons,
        trust=None if reasons else trust_sentence(run, done),
        zones=run.zones,
        mm_per_pixel=run.mm_per_pixel,
    )


def _shown_records(run: Plan) -> list[dict[str, Any]]:
    """Return the training records; J of too few held-out frames is left out."""
    records = valid_records(run.records())
    if run.outcome.held_out_objective is not None:
        return records
    return [{**record, "held_out": None} for record in records]


def _settings(run: Plan, sources: Sequence[Source]) -> dict[str, Any]:
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


def _facts(run: Plan, done: Exported) -> list[tuple[str, str]]:
    """Return what was found: in how many frames, how many objects, how far they went."""
    facts = []
    if (share := found_share(run, done)) is not None:
        facts.append(("of the frames with the object", f"{share:.1%}"))
    facts.append(("frames", f"{done.totals.frames:,}"))
    facts.append(("sequence" if len(done.answers) == 1 else "sequences", f"{len(done.answers):,}"))
    if run.config.task == "locate":
        objects = [entry["objects"] for entry in done.sequences]
        most = f"up to {max(objects):,}" if len(set(objects)) > 1 else f"{objects[0]:,}"
        facts.append(("object" if most == "1" else "objects", most))
        facts += _motion_facts(done)
        facts.append(("camera", "moving" if run.outcome.camera else "in one place"))
    elif is_trusted_ring(run, done):
        facts.append(("shape of the code", "closed ring"))
    return facts


def _motion_facts(done: Exported) -> list[tuple[str, str]]:
    """Return distance and speed, if there is one sequence with one object."""
    [first, *rest] = done.sequences
    if rest or first.get("distance_px") is None:
        return []
    distance, speed = first["distance_px"], first["median_speed_px_per_s"]
    return [("distance", f"{distance:,.0f} px"), ("median speed", f"{speed:,.3g} px/s")]


def _details(run: Plan, done: Exported, records: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return numbers of the training."""
    details = [
        ("training frames", f"{training_frames(run):,}"),
        ("held-out frames", f"{run.outcome.held_out_frames or 0:,}"),
        ("evaluation J", _format_objective(run.outcome.objective)),
    ]
    if run.outcome.held_out_objective is not None:
        details.append(("J on held-out frames", _format_objective(run.outcome.held_out_objective)))
    if is_folded(run):
        details.append(("shape of the code", "folded"))
    details += _training_facts(records, run.outcome.trial or 0)
    details.append(("long-term mean", run.kind))
    if run.teaching is not None:
        details.append(("corrections learned from", f"{run.teaching.corrections:,}"))
    if run.config.task == "locate":
        confidence = np.concatenate([answer.values[:, 2] for answer in done.answers])
        details.append(("median confidence", f"{np.median(confidence):.2f}"))
    return details


def _format_objective(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f}".replace("-", "\N{MINUS SIGN}")


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


def _samples(sources: Sequence[Source], done: Exported) -> list[Sample]:
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
            samples += _read_samples(source, answer, masks, each, every)
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
    count: int,
    every: int,
) -> list[Sample]:
    """Read frames again, for a sequence without kept frames."""
    if masks:  # only some masks were kept, all at multiples of one number
        step = max(1, sorted(masks)[1] if len(masks) > 1 else 1)
        every = max(step, every // step * step)
    rows = list(range(every, len(answer.index), every))[:count] or [0]
    read = _read_frames(source, answer, rows)
    return [_sample(answer, row, picture, masks) for row, picture in read]


def _read_frames(source: Source, answer: Answer, rows: list[int]) -> Iterator[tuple[int, Tensor]]:
    """Yield the frames of some rows."""
    times = np.full(answer.index[-1] + 1, np.nan)
    times[answer.index] = answer.seconds
    with suppress(VideoError):  # if some frames cannot be read, others can
        size = display_size(source.probe())
        with FrameAccess(source, times) as frames:
            for row in rows:
                yield row, frames.render(int(answer.index[row]), size)


def _kernels(run: Plan) -> dict[str, NDArray[np.float32]]:
    """Return the weights of the convolutional layers."""
    assert run.net is not None
    if isinstance(run.net, Encoder):
        convs: list[nn.Module] = list(run.net.convs)
    else:
        convs = [run.net.conv1, run.net.conv2]
    return {f"conv{i}": _array(conv.weight) for i, conv in enumerate(convs, 1)}  # type: ignore[arg-type]


def _maps(
    run: Plan, sources: Sequence[Source]
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


def write_corrected_report(run: Plan, path: Path) -> None:
    """Write the report of a run with its corrections, and a note about them.

    Args:
        run: A finished run with the task locate.
        path: The file to write.

    Raises:
        RunError: The results cannot be read.
        Error: A correction is invalid, or there are no objects.
        VideoError: A video of the run no longer exists.
    """
    if not (run.folder / "metrics.jsonl").exists():
        raise Error(f"{run.folder}: was written by ul watch; reports are for runs of ul learn")
    videos, corrections = read_corrected(run.folder)
    videos = [video for video in videos if video.tracks]
    if not videos:
        raise Error(f"{run.folder}: has no objects, so there is nothing to report")
    done = Exported()
    for video in videos:
        done.add(_answer(video), {}, Info(video.width, video.height, video.fps, video.count))
    contents = contents_of(run, _sources_of(run, videos), done)
    sizes = {video.name: (video.width, video.height) for video in videos}
    count = len(corrections.applied)
    contents = replace(
        contents,
        title=f"{contents.title} (corrected)" if count else contents.title,
        scenes=measure_scenes([track for video in videos for track in video.tracks], sizes),
        crossings=[crossing for video in videos for crossing in video.crossings],
        corrections=count,
    )
    write_report(path, contents)


def _sources_of(run: Plan, videos: Sequence[TrackedVideo]) -> list[Source]:
    """Return the source of each video."""
    sources = {source.name: source for source in sources_of(run)}
    for video in videos:
        if video.name not in sources:
            raise Error(
                f"{run.folder}: the video {video.name} no longer exists, "
                "so there is nothing to report"
            )
    return [sources[video.name] for video in videos]


def _answer(video: TrackedVideo) -> Answer:
    """Return one row per frame, of the object with most rows, and the rows of all objects."""
    tracks = video.tracks
    rows = _rows(tracks, video)
    assert rows.objects is not None
    order = np.lexsort([rows.objects, rows.index])  # by frame, then by object
    frames = video.frames
    main = max(tracks, key=lambda track: len(track.frame))
    time = np.interp(frames, rows.index[order], rows.seconds[order])
    values = on_frames(main, _rows([main], video).values, frames)
    values[:, 2] = np.nan_to_num(values[:, 2])  # no position: no confidence
    several = rows.rows(order) if len(tracks) > 1 else None
    return Answer(video.name, frames, time, TRACK, values, size=rows.size, several=several)


def _rows(tracks: Sequence[Track], video: TrackedVideo) -> Answer:
    def column(name: str) -> Any:
        return np.concatenate([getattr(track, name) for track in tracks])

    objects = np.repeat([track.object for track in tracks], [len(t.frame) for t in tracks])
    values = np.stack([column(name) for name in TRACK], 1)
    size = video.width, video.height
    return Answer(
        video.name, column("frame"), column("time"), TRACK, values, size=size, objects=objects
    )


def write_corrected(
    folder: Path,
    out: Path,
    *,
    sequence: str | None = None,
    first: int | None = None,
    last: int | None = None,
) -> list[Path]:
    """Write corrected tracks, crossings and behaviour as CSV.

    Zones and millimetres are those of the run. `ul apply` does not store them, so its folders have
    neither.

    Args:
        folder: Folder of `ul learn` or `ul apply`.
        out: An existing folder.
        sequence: Write only this video; None for all.
        first: First frame to write; None for the beginning.
        last: Last frame to write; None for the end.

    Returns:
        The files written; existing files of these names are replaced.

    Raises:
        RunError: The results cannot be read, or have no objects.
        Error: A correction is invalid, or the requested part is empty.
    """
    files = plan_files(folder, "csv", out, sequence=sequence, first=first, last=last)
    write_files("csv", files)
    videos = [video for file in files for video in file.videos]
    scenes = measure_scenes(
        [track for video in videos for track in video.tracks],
        {video.name: (video.width, video.height) for video in videos},
    )
    run = read_config(folder) if is_run(folder) else None
    zones, mm_per_pixel = (None, None) if run is None else (run.zones, run.mm_per_pixel)
    written = [path for file in files for path in file.paths]
    return written + write_behaviour(out, scenes, zones, mm_per_pixel)


def write_card(run: Plan, exported: Exported) -> None:
    """Write README.md into the run folder.

    Args:
        run: A finished run.
        exported: Results of `export`.
    """
    results = [_table(["", ""], _figures(run, exported)), *_trust(run, exported)]
    _write(run, f"trained {_supervision(run)} by `ul learn`", results, _sequences(exported))


def write_watch_card(run: Plan) -> None:
    """Write README.md into the folder of `watch`, unless the user has put one there."""
    if not is_own_card(run.folder):
        return
    result = run.outcome
    rows = [("Task", run.config.task), *_watched_figures(run)]
    names = [(escaped(name), _number(result.frames, ",")) for name in result.sources]
    _write(
        run,
        "trained without labels, while frames arrived, by `ul watch`",
        [_table(["", ""], rows)],
        _table(["Source", "Frames"], names),
    )


def _watched_figures(run: Plan) -> list[Sequence[str]]:
    result = run.outcome
    rows = [
        ("Frames", _number(result.frames, ",")),
        ("J of the last training step, lower is better", _number(result.objective, ".2f")),
        ("Seed", _number(result.seed, "d")),
    ]
    if run.config.task == "locate" and result.frames:
        share = f"{sure_frames(run) / result.frames:.1%} of the frames"
        rows.insert(1, ("Object found (confidence of at least 0.5)", share))
    return list(rows)


def sure_frames(run: Plan) -> int:
    """Return the number of frames in which an object was found with sufficient confidence."""
    path = run.folder / csv_name(run)
    _, parts = open_table(path, ["confidence"], ["frame", "confidence"])
    sure = [part["frame"][part["confidence"] >= SURE] for part in parts]
    return len(np.unique(np.concatenate(sure))) if sure else 0


def _write(run: Plan, how: str, results: Sequence[str], data: str) -> None:
    parts = [
        _front_matter(run),
        f"# {escaped(run_title(run))}",
        f"A network for video, {how} of ullayers {__version__}. "
        f"Its result is {TASKS[run.config.task]}.",
        "## Results",
        *results,
        "## Data",
        data,
        "## How to use it",
        _usage(run),
    ]
    with replacing(run.folder / CARD) as file:
        file.write("\n\n".join(parts) + "\n")


def _supervision(run: Plan) -> str:
    if run.teaching is None:
        return "without labels"
    count = run.teaching.corrections
    return f"with the UL layers and {count} user correction{'s' * (count != 1)}"


def escaped(text: str) -> str:
    r"""Escape text, such as a file name, so that Markdown shows it unchanged.

    >>> print(escaped("day 1: a_[b](c)|<d>.mp4"))
    day 1: a\_\[b\](c)\|\<d\>.mp4
    """
    printable = "".join(character if character.isprintable() else " " for character in text)
    return re.sub(SPECIAL, r"\\\g<0>", " ".join(printable.split()))


def _front_matter(run: Plan) -> str:
    task = run.config.task
    tags = ["unsupervised-learning", "slow-feature-analysis", "video", task]
    lines = [f"pipeline_tag: {PIPELINES[task]}", "tags:", *(f"- {tag}" for tag in tags), "---"]
    return CARD_START.decode() + "\n".join(lines)


def _figures(run: Plan, exported: Exported) -> list[Sequence[str]]:
    result, share = run.outcome, found_share(run, exported)
    rows = [
        ("Task", run.config.task),
        ("Frames", f"{exported.totals.frames:,}"),
        ("Trained on", trained_frames(run)),
        ("J of the evaluation, lower is better", _number(result.objective, ".2f")),
        ("J before training", _number(result.start, ".2f")),
        ("Trusted", "no" if distrust_reasons(run, exported) else "yes"),
        ("Training steps", _number(result.steps, ",")),
        ("Seed", _number(result.seed, "d")),
    ]
    if share is not None:
        rows.insert(3, ("Object found (confidence of at least 0.5)", f"{share:.1%} of the frames"))
    return list(rows)


def _trust(run: Plan, exported: Exported) -> list[str]:
    reasons = distrust_reasons(run, exported)
    if not reasons:
        return []
    return [
        "Check these results before you use them:",
        "\n".join(f"- {r}" for r in reasons),
    ]


def _sequences(exported: Exported) -> str:
    pairs = list(zip(exported.answers, exported.infos, strict=True))
    rows = [
        (
            escaped(answer.sequence),
            f"{len(answer.index):,}",
            f"{info.width} x {info.height}",
            _number(info.rate, ".3g"),
        )
        for answer, info in pairs[:SHOWN_SEQUENCES]
    ]
    table = _table(["Sequence", "Frames", "Size", "Frames per second"], rows)
    more = len(pairs) - len(rows)
    return f"{table}\n\n{more} more are in summary.json." if more > 0 else table


def _usage(run: Plan) -> str:
    size = (SIDE, SIDE) if run.reading.follow else run.reading.size or ()
    shape = ", ".join(map(str, (run.reading.channels, *size)))
    use = USES[run.config.task].format(shape=shape)
    if run.reading.follow:
        use += ", square crops around the object"
    return f"""\
Apply it to another video (`RUN` is this folder):

    ul apply RUN video.mp4 --out found

The network alone, without reading video:

```python
import ullayers as ul

net = ul.from_pretrained("RUN")
{use}
```

`ul export RUN --onnx FILE` writes it for other programs."""


def _number(value: float | None, form: str) -> str:
    return "unknown" if value is None else format(value, form)


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
