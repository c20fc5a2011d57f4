"""The HTML report: its contents, prepared here, and its templates, which format them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import jinja2
import matplotlib
import numpy as np
from numpy.typing import NDArray

import ullayers.report.charts as charts
import ullayers.report.charts as training_charts
import ullayers.report.pictures as pictures
from ullayers.files import replacing
from ullayers.report.behaviour import behaviour_section, draw_scene
from ullayers.report.drawing import draw_crops, draw_track
from ullayers.tracks.behaviour import Scene, Zones
from ullayers.tracks.measures import WINDOW_SECONDS, is_ring, measure_motion
from ullayers.tracks.reading import Crossing
from ullayers.tracks.table import SURE, TRACK, Answer
from ullayers.video.region import Box
from ullayers.video.sources import Info

Pixels = NDArray[np.uint8]
Floats = NDArray[np.floating[Any]]
Section = dict[str, Any]
MAX_LAYERS = 6  # shown on the page
MAX_SEQUENCES = 6  # shown on the page
MAX_SAMPLES = 12
MAX_ROWS = 100  # of the table of sequences


def layers_section(
    kernels: Mapping[str, Floats], maps: Mapping[str, Floats], picture: Pixels | None
) -> Section | None:
    """Prepare the section of the layers; None if there is nothing to show.

    Args:
        kernels: Kernels of each layer, (outputs, inputs, height, width).
        maps: Responses of each layer, (channels, height, width).
        picture: The frame that the layers responded to; None for none.
    """
    kernels = {name: array for name, array in kernels.items() if array.size}
    maps = {name: array for name, array in maps.items() if array.size}
    names = list(dict.fromkeys([*kernels, *maps]))
    if not names:
        return None
    frame = picture if maps else None
    return {
        "frame": None if frame is None else pictures.photograph(pictures.fit_width(frame)),
        "has_kernels": bool(kernels),
        "has_maps": bool(maps),
        "layers": [_layer(name, kernels, maps) for name in names[:MAX_LAYERS]],
        "left_out": max(0, len(names) - MAX_LAYERS),
    }


def _layer(name: str, kernels: Mapping[str, Floats], maps: Mapping[str, Floats]) -> Section:
    layer: Section = {"name": name, "kernels": None, "maps": None}
    if name in kernels:
        layer["kernels"] = pictures.kernel_sheet(kernels[name])
        layer["kernels_caption"] = f"kernels: {_describe_kernels(kernels[name])}"
    if name in maps:
        layer["maps"] = pictures.map_sheet(maps[name])
        layer["maps_caption"] = f"responses: {_count(len(maps[name]), 'channel')}"
    return layer


def _describe_kernels(kernels: Floats) -> str:
    outputs = _count(kernels.shape[0], "output")
    inputs = _count(kernels.shape[1], "input")
    if 1 in kernels.shape[:2]:
        return f"{outputs}, {inputs}"
    if kernels.shape[0] < kernels.shape[1]:
        return f"{inputs} across, {outputs} down"
    return f"{outputs} across, {inputs} down"


def _count(total: int, noun: str) -> str:
    most = pictures.MAX_CHANNELS
    number = f"{most} of {total}" if total > most else str(total)
    return f"{number} {noun}" if total == 1 else f"{number} {noun}s"


@dataclass(frozen=True)
class Sample:
    """One frame to show.

    Attributes:
        sequence: Name of the source.
        seconds: Time of the frame.
        picture: (height, width, 3) uint8.
        mask: (height, width) in 0..1, of any size; None for a code.
        values: (columns,) results for this frame.
        box: Part of the picture that the mask covers; None for all of it.
        crop: Left, top, right and bottom of the part that was used, in 0..1 of the frame; None for
            all of it.

    Example:
        >>> Sample("a", 0.5, np.zeros((48, 64, 3), np.uint8), None, np.array([1.0, 0.0])).seconds
        0.5
    """

    sequence: str
    seconds: float
    picture: Pixels
    mask: Floats | None
    values: Floats
    box: Box | None = None
    crop: Floats | None = None


@dataclass(frozen=True)
class Contents:
    """Contents of a report; sections without content are left out.

    Attributes:
        title: Headline.
        config: Resolved configuration, flat or with one level of groups.
        records: Training records: trial, step, kind, seed, objective, rank, features, seconds,
            training, held_out. Incomplete or malformed records are ignored.
        winner: The trial that was kept.
        answers: Results for all frames of all sequences.
        samples: Frames to show.
        kernels: (out, in, height, width) weights by layer.
        maps: (channels, height, width) outputs of each layer for `maps_picture`.
        maps_picture: (height, width, 3) uint8.
        facts: What was found, as (name, value).
        details: Numbers of the training, as (name, value).
        warnings: Reasons not to trust the results; empty if they are trusted.
        trust: Reason to trust them, in a sentence; None if unknown.
        scores: Comparison with the ground truth as (name, value).
        infos: Frame size and frame rate of each of `answers`, for speeds in pixels; may be empty.
        scenes: Measures of all objects of each sequence.
        crossings: Crossings of objects.
        zones: Zones in the frame; None for none.
        mm_per_pixel: Size of a pixel; None if it is unknown.
        corrections: Number of user corrections included in the results.

    Example:
        >>> Contents("A pendulum", facts=[("frames", "10,000")]).facts
        [('frames', '10,000')]
    """

    title: str
    config: dict[str, Any] = field(default_factory=dict)
    records: list[dict[str, Any]] = field(default_factory=list)
    winner: int = 0
    answers: list[Answer] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    kernels: Mapping[str, Floats] = field(default_factory=dict)
    maps: Mapping[str, Floats] = field(default_factory=dict)
    maps_picture: Pixels | None = None
    facts: list[tuple[str, str]] = field(default_factory=list)
    details: list[tuple[str, str]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    trust: str | None = None
    scores: list[tuple[str, str]] = field(default_factory=list)
    infos: list[Info] = field(default_factory=list)
    scenes: list[Scene] = field(default_factory=list)
    crossings: list[Crossing] = field(default_factory=list)
    zones: Zones | None = None
    mm_per_pixel: float | None = None
    corrections: int = 0

    @property
    def is_track(self) -> bool:
        """Whether the results are positions and not codes."""
        return not self.answers or self.answers[0].columns == TRACK


def write_report(path: str | os.PathLike[str], contents: Contents) -> None:
    """Write the page atomically. It links to overlay.mp4 if the video is in the same folder.

    Args:
        path: The file to write.
        contents: What to show.

    Example:
        >>> import tempfile
        >>> places = np.random.default_rng(0).random((50, 3))
        >>> answer = Answer("a", np.arange(50), np.arange(50) / 25, TRACK, places)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_report(f"{folder}/report.html", Contents("Dots", answers=[answer]))
        ...     "<h1>Dots</h1>" in Path(folder, "report.html").read_text(encoding="utf-8")
        True
    """
    has_video = (Path(path).parent / "overlay.mp4").is_file()
    with matplotlib.rc_context(charts.STYLE):
        sections = _sections(contents, has_video)
    page = (
        _templates()
        .get_template("report.html")
        .render(
            title=contents.title,
            facts=contents.facts,
            details=contents.details,
            warnings=contents.warnings,
            trust=contents.trust,
            corrections=contents.corrections,
            scores=contents.scores,
            is_track=contents.is_track,
            threshold=SURE,
            smoothing_seconds=WINDOW_SECONDS,
            sections={name: section for name, section in sections.items() if section},
        )
    )
    with replacing(path) as file:
        file.write(page)


@cache
def _templates() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader("ullayers.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _sections(contents: Contents, has_video: bool) -> dict[str, Section | None]:
    """Prepare the sections of the page in order; None for those without content."""
    several = _is_several(contents)  # sections other than behaviour show a single object
    return {
        "video": {"file": "overlay.mp4"} if has_video else None,
        "samples": _samples(contents),
        "behaviour": _behaviour(contents),
        "time": None if several else _over_time(contents.answers),
        "speed": None if several else _speed(contents),
        "scatter": None if several else _scatter(contents),
        "sequences": _sequences(contents),
        "training": _training(training_charts.valid_records(contents.records), contents.winner),
        "kernels": layers_section(contents.kernels, contents.maps, contents.maps_picture),
        "config": _config(contents.config),
    }


def _is_several(contents: Contents) -> bool:
    return any(len(scene.tracks) > 1 for scene in contents.scenes)


def _behaviour(contents: Contents) -> Section | None:
    frames = {sample.sequence: sample.picture for sample in contents.samples}
    return behaviour_section(
        contents.scenes, contents.crossings, contents.zones, contents.mm_per_pixel, frames
    )


def _samples(contents: Contents) -> Section | None:
    shown = []
    several = {scene.sequence: scene for scene in contents.scenes if len(scene.tracks) > 1}
    for sample in contents.samples[:MAX_SAMPLES]:
        picture = pictures.fit_width(sample.picture)
        if sample.sequence in several:
            scene = several[sample.sequence]
            picture = draw_scene(picture, sample.seconds, scene, contents.crossings)
        elif contents.is_track:
            picture = _draw_result(picture, sample)
        elif sample.crop is not None:
            picture = draw_crops(picture[None], sample.crop[None])[0]
        code = "" if contents.is_track else _format_code(sample.values)
        caption = [sample.sequence, code, f"{sample.seconds:.2f} s"]
        shown.append({"picture": pictures.photograph(picture), "caption": caption})
    return {"samples": shown, "has_several": bool(several)} if shown else None


def _format_code(values: Floats) -> str:
    parts = [f"{value:.2f}".replace("-", "\N{MINUS SIGN}") for value in values[:3]]
    if len(values) > 3:
        parts.append("\N{HORIZONTAL ELLIPSIS}")
    return f"({', '.join(parts)})"


def _draw_result(picture: Pixels, sample: Sample) -> Pixels:
    """Draw mask and dot as in the video."""
    masks = None
    if sample.mask is not None:
        masks = np.nan_to_num(255 * sample.mask[None]).clip(0, 255).round().astype(np.uint8)
    values = np.asarray(sample.values, np.float64)[None]
    seconds = np.array([sample.seconds])
    index = np.zeros(1, np.int64)
    answer = Answer(sample.sequence, index, seconds, TRACK, values, masks, box=sample.box)
    return draw_track(picture[None], answer).squeeze(0)


def _over_time(answers: Sequence[Answer]) -> Section | None:
    sequences = charts.by_sequence(answers)
    shown = sequences[:MAX_SEQUENCES]
    if not shown:
        return None
    drawings = {answer.sequence: partial(charts.time_chart, answer) for answer in shown}
    return _panels(drawings) | {
        "columns": len(shown[0].columns),
        "has_ring": bool(is_ring(shown)),
        "max_curves": charts.MAX_CURVES,
        "left_out": len(sequences) - len(shown),
    }


def _panels(drawings: Mapping[str, Callable[[int], charts.Chart]]) -> Section:
    """Draw a chart for each sequence, for wide and for narrow pages.

    Args:
        drawings: By sequence, the function that draws its chart at a width.
    """
    in_pairs = len(drawings) % 2 == 0  # an odd number in two columns would leave a hole
    panels = [
        {
            "sequence": sequence,
            "wide": None if in_pairs else draw(charts.WIDE),
            "narrow": draw(charts.NARROW),
        }
        for sequence, draw in drawings.items()
    ]
    return {"panels": panels, "in_pairs": in_pairs}


def _speed(contents: Contents) -> Section | None:
    if not contents.is_track or not contents.infos:
        return None
    drawings = {}
    for answer, info in list(zip(contents.answers, contents.infos, strict=True))[:MAX_SEQUENCES]:
        motion = measure_motion(answer, info.width, info.height)
        if motion.distance is not None:
            drawings[answer.sequence] = partial(charts.speed_chart, motion, answer.sequence)
    left_out = max(0, len(contents.answers) - MAX_SEQUENCES)
    return _panels(drawings) | {"left_out": left_out} if drawings else None


def _sequences(contents: Contents) -> Section | None:
    """Prepare a table with a row for each sequence."""
    if not contents.infos:
        return None
    names = ["sequence", "frames", "frame size", "frames per second"]
    has_motion = contents.is_track and not _is_several(contents)
    if has_motion:
        names += ["distance (px)", "mean speed (px/s)", "median (px/s)", "95th percentile (px/s)"]
    pairs = list(zip(contents.answers, contents.infos, strict=True))
    rows = [_sequence_row(answer, info)[: len(names)] for answer, info in pairs[:MAX_ROWS]]
    left_out = len(pairs) - len(rows)
    return {"names": names, "rows": rows, "left_out": left_out, "has_motion": has_motion}


def _sequence_row(answer: Answer, info: Info) -> list[str]:
    size = f"{info.width} x {info.height}"
    rate = "unknown" if info.rate is None else f"{info.rate:.4g}"
    row = [answer.sequence, f"{len(answer.index):,}", size, rate]
    if answer.columns == TRACK:
        motion = measure_motion(answer, info.width, info.height)
        speeds = [motion.mean_speed, motion.speed_quantile(0.5), motion.speed_quantile(0.95)]
        row += [_format_pixels(value) for value in (motion.distance, *speeds)]
    return row


def _format_pixels(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _scatter(contents: Contents) -> Section | None:
    answers = [answer for answer in contents.answers if len(answer.values)]
    chart = charts.scatter_chart(answers, _aspect(contents)) if answers else None
    if chart is None:
        return None
    return {"chart": chart, "columns": len(answers[0].columns)}


def _aspect(contents: Contents) -> float:
    """Return height divided by width of the frames."""
    shown = [sample.picture for sample in contents.samples]
    if contents.maps_picture is not None:
        shown.append(contents.maps_picture)
    return shown[0].shape[0] / shown[0].shape[1] if shown else 1.0


def _training(records: Sequence[dict[str, Any]], winner: int) -> Section | None:
    if not records:
        return None
    return {
        "objective": training_charts.training_chart(records, winner, "objective", "J"),
        "rank": training_charts.training_chart(records, winner, "rank", "effective rank"),
        "held_out": training_charts.held_out_chart(records, winner),
        "trials": len({record["trial"] for record in records}),
        "kinds": len({str(record.get("kind")) for record in records}),
        "winner": winner,
    }


def _config(config: Mapping[str, Any]) -> Section | None:
    """Prepare one table of the single settings and one for each group."""
    groups = {"": {name: value for name, value in config.items() if not isinstance(value, dict)}}
    groups |= {str(name): value for name, value in config.items() if isinstance(value, dict)}
    tables = {
        name: {str(setting): _format_setting(value) for setting, value in rows.items()}
        for name, rows in groups.items()
        if rows
    }
    return {"tables": tables} if tables else None


def _format_setting(value: Any) -> str:
    if value is None:
        return "off"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(_format_setting, value))
    return str(value)
