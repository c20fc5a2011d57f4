"""What a run does: its inputs and settings, from the options of `ul.learn` or from its folder.

`plan` makes a new run or loads one to continue; `load_plan` loads a finished one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ullayers.errors import Error, RunError
from ullayers.files import sweep, write_json
from ullayers.learning.checkpoint import read_tensors, write_tensors
from ullayers.learning.config import (
    DEFAULT_SIZE,
    Config,
    Options,
    PathText,
    ZoneMap,
    choose_device,
    option_name,
)
from ullayers.learning.footage import LongMean, Piece, natural_reading, open_sources
from ullayers.learning.networks import Locator, Model, weights
from ullayers.learning.student import Student
from ullayers.learning.survey import Survey, covers_little
from ullayers.learning.teaching import Place, Teaching
from ullayers.learning.trials import build
from ullayers.locate.paths import ObjectPath
from ullayers.locate.recording.windows import STILL_SIDE, StillRecording
from ullayers.locate.scene.still import StillScene
from ullayers.run.folder import (
    CARD,
    RUN_NAMES,
    ReadingEntry,
    RunResult,
    check_apart,
    check_free,
    check_links,
    check_not_replaced,
    check_settings,
    check_size,
    read_config,
    read_metrics,
)
from ullayers.tracks.behaviour import Zones, check_measures, read_zones
from ullayers.tracks.corrections import CorrectedRows, corrected_rows, read_corrections
from ullayers.tracks.masks import OUTLINES, remove_if_damaged
from ullayers.tracks.tracked_video import TrackedVideo, read_videos
from ullayers.video.camera.following import SIDE
from ullayers.video.clips import kept_frames
from ullayers.video.files.images import read_mask
from ullayers.video.files.opening import absolute_path
from ullayers.video.region import MaskRegion, Rectangle, Region
from ullayers.video.sources import Info, Reading, Source, VideoError

OUTPUT_BIAS = "full.bias"  # of an encoder, one value per output
FOLLOW_SIZE = 128  # pixels of the longer side of training frames cropped to the object
SCENES_FILE = "scenes.safetensors"
KEYS = ("backdrop", "noise", "bands", "threshold", "clear")
MAX_SCENES = 16  # kept in a run, each of up to 2 MB
MAX_SCENE_PIXELS = 2**20
MEASURES = ("behaviour.csv", "zones.csv")


def check_region(
    roi: Region | None, sources: Sequence[Source], infos: Sequence[Info], *, skip_bad: bool
) -> None:
    """Refuse a region of interest that does not fit into the frames of a source.

    Args:
        roi: The region; None for whole frames.
        sources: Sources to read.
        infos: Their headers.
        skip_bad: Check the first source only; others are left out when they are read.

    Raises:
        VideoError: The region does not fit.
    """
    reading = Reading(roi=roi)
    for source, info in list(zip(sources, infos, strict=True))[: 1 if skip_bad else None]:
        try:
            reading.cut(source.path, info.height, info.width)
        except VideoError as error:
            raise error.with_skip_hint(len(sources)) from None


def small_size(
    size: int | tuple[int, int], info: Info, roi: Region | None = None
) -> tuple[int, int]:
    """Return the (height, width) of training frames.

    Args:
        size: The longer side, or both.
        info: Header of the first source.
        roi: Part of the frames that is used; None for all of them.

    Raises:
        RunError: The size is too large.
    """
    reading = Reading(longest=size, roi=roi) if isinstance(size, int) else Reading(size=size)
    shape = reading.target(info.height, info.width)
    check_size(shape)
    return shape


@dataclass
class Plan:
    """A run folder and its contents.

    Attributes:
        folder: The folder.
        inputs: Paths that were given.
        config: Settings, resolved.
        reading: How the videos are read for learning; see `reading_of`.
        max_frames: Number of frames to use from each source, before a stride, counted from the
            start of `reading`.
        skip_bad: Whether unreadable inputs are left out.
        result: Outcome of training; None until it has finished.
        net: The network; None until training has finished.
        bad: Inputs that were left out, with their errors.
        masks: Whether each mask is written as an image.
        zones: Zones in which the time of objects is measured; None for none.
        mm_per_pixel: Size of a pixel in millimetres; None to measure in pixels only.
        fresh: Whether training starts from the beginning, regardless of the content of the folder.
        natural: Whether each source has its own stride, chosen from its header.
        pieces: Frames by source and reading, if training has just read and kept all of them.
        beginning: The first frames of the first source, if training has just read them.
        surveys: Surveys by source and reading, if training has just taken them.
        teaching: Corrections of an earlier run to train with; None for none.
    """

    folder: Path
    inputs: list[str]
    config: Config
    reading: Reading
    max_frames: int | None = None
    skip_bad: bool = False
    result: RunResult | None = None
    net: Model | None = None
    bad: dict[str, str] = field(default_factory=dict)
    masks: bool = False
    zones: Zones | None = None
    mm_per_pixel: float | None = None
    fresh: bool = False
    natural: bool = False
    pieces: dict[tuple[Source, Reading], list[Piece]] = field(default_factory=dict)
    beginning: Piece | None = None
    surveys: dict[tuple[Source, Reading], Survey] = field(default_factory=dict)
    teaching: Teaching | None = None

    @property
    def outcome(self) -> RunResult:
        """The result of a finished run.

        Raises:
            RunError: Training has not finished.
        """
        if self.result is None:
            raise RunError(f"{self.folder}: training has not finished; continue with --resume")
        return self.result

    @property
    def kind(self) -> LongMean:
        """The reference mean for long-term variation that won."""
        return self.outcome.kind

    @property
    def finished(self) -> bool:
        """Whether training has finished and all files of `ul learn` exist."""
        return self.net is not None and not self.missing()

    def reading_of(self, source: Source) -> Reading:
        """Return how a source is read for training."""
        return natural_reading(self.reading, source.probe()) if self.natural else self.reading

    @property
    def stride(self) -> int | None:
        """The stride of all sources; None if each has its own."""
        return None if self.natural else self.reading.stride

    @property
    def watched(self) -> bool:
        """Whether the run was written by `ul watch`, which keeps no metrics.jsonl."""
        return not (self.folder / "metrics.jsonl").exists()

    def missing(self) -> list[str]:
        """Return the names of results of `ul learn` that are missing in the folder.

        A table that was started again counts as missing.
        """
        table = csv_name(self)
        names = [table, "summary.json", "overlay.mp4", "report.html", CARD]
        names += ["masks"] * self.masks
        names += ["behaviour.csv", "outlines.sqlite"] * (self.config.task == "locate")
        names += ["zones.csv"] * (self.zones is not None)
        begun = any(self.folder.glob(f"{Path(table).stem}.partial.*"))
        return [
            name for name in names if not (self.folder / name).exists() or (name == table and begun)
        ]

    def write_config(self) -> None:
        """Write config.json."""
        content = {
            "inputs": self.inputs,
            "skip_bad": self.skip_bad,
            "masks": self.masks,
            "zones": None if self.zones is None else asdict(self.zones),
            "mm_per_pixel": self.mm_per_pixel,
            "reading": asdict(ReadingEntry.of(self.reading, self.stride, self.max_frames)),
            "semi_supervised": None if self.teaching is None else asdict(self.teaching),
            "learn": asdict(self.config),
            "result": {} if self.result is None else asdict(self.result),
        }
        write_json(self.folder / "config.json", content)

    def records(self) -> list[dict[str, Any]]:
        """Return the entries of metrics.jsonl.

        Raises:
            RunError: The file is damaged, or has no step of the trial that won.
        """
        records = read_metrics(self.folder)
        result = self.result
        if result is None:
            return records
        if result.objective is None or result.frames is None:
            raise RunError(
                f"{self.folder}: the result in its config.json is incomplete; "
                "learn again with --force"
            )
        if not any(record["trial"] == result.trial for record in records):
            raise RunError(
                f"{self.folder}: its metrics.jsonl has no step of trial {result.trial}, which won; "
                "learn again with --force"
            )
        return records


def csv_name(run: Plan) -> str:
    """Return the name of the table that a run writes."""
    return "tracks.csv" if run.config.task == "locate" else "codes.csv"


def plan(
    inputs: Sequence[str], given: Mapping[str, Any], say: Callable[[str], None] = lambda text: None
) -> tuple[Plan, list[Source]]:
    """Plan a new run, or load the one to continue, from the options of `ul.learn`.

    Args:
        inputs: Video files, folders, patterns; may be empty to continue a run.
        given: The options that the user has given. Others have their defaults or, to continue a
            run, those of the run.
        say: Called with notes for the user.

    Returns:
        The run and its sources; no sources if nothing is left to do.

    Raises:
        RunError: A folder cannot be used.
        Error: An option is invalid, or differs from that of the run to continue.
    """
    own = {name: value for name, value in given.items() if name not in Config.__dataclass_fields__}
    options = Options(**own)
    if options.resume:
        return _continued(inputs, options, given, say)
    if options.corrections is not None:
        _check_corrections_alone(inputs, given)
        return plan_relearning(
            Path(options.corrections),
            options.out,
            device=given.get("device"),
            force=options.force,
        )
    if not inputs:
        raise Error("give a video file, a folder or a pattern to learn from")
    check_not_replaced(options.out, options.roi, options.zones)
    return plan_run(
        inputs,
        options.out,
        given_config(given),
        size=options.size,
        stride=options.stride,
        max_frames=options.max_frames,
        grey=options.grey,
        follow=options.follow,
        start=options.start,
        end=options.end,
        roi=load_region(options.roi),
        skip_bad=options.skip_bad,
        masks=options.masks,
        zones=load_zones(options.zones),
        mm_per_pixel=options.mm_per_pixel,
        force=options.force,
    )


def given_config(given: Mapping[str, Any]) -> Config:
    """Return the settings among the given options, with defaults for the others."""
    config = Config(**{name: given[name] for name in Config.__dataclass_fields__ if name in given})
    if config.objects is not None and config.task != "locate":
        raise Error(f"--objects is for --task locate; leave it out for {config.task}")
    if config.device != "auto":
        check_device(config.device)
    return config


def load_region(roi: PathText | Sequence[int] | Region | None) -> Region | None:
    """Return a region of interest: a rectangle, or a mask image, which is read."""
    if isinstance(roi, str | os.PathLike):
        return read_mask(os.fspath(roi))
    if roi is None or isinstance(roi, Rectangle | MaskRegion):
        return roi
    if len(roi) != 4 or not all(isinstance(value, Integral) for value in roi):
        raise Error(f"expected roi as X, Y, width and height in pixels, got {roi}")
    return Rectangle(*roi)


def load_zones(zones: PathText | ZoneMap | Zones | None) -> Zones | None:
    """Return zones from a file, or from corners in pixels."""
    if isinstance(zones, str | os.PathLike):
        return read_zones(zones)
    if zones is None or isinstance(zones, Zones):
        return zones
    corners = {name: [(float(x), float(y)) for x, y in each] for name, each in zones.items()}
    return Zones(corners)


def _continued(
    inputs: Sequence[str],
    options: Options,
    given: Mapping[str, Any],
    say: Callable[[str], None],
) -> tuple[Plan, list[Source]]:
    """Load a run, and refuse options that differ from its own."""
    if options.corrections is not None:
        raise Error("--resume continues with the corrections of the run; leave them out")
    run = load_plan(options.out, given.get("device"))
    if run.watched:
        raise Error(f"{options.out}: was written by ul watch; continue it with ul watch --resume")
    run.skip_bad |= options.skip_bad
    run.masks |= options.masks
    if inputs and absolute(inputs) != run.inputs:
        raise Error(f"this run learns from {' '.join(run.inputs)}; leave the inputs out")
    check_same_options(given, run, lambda: sources_of(run)[0].probe())
    _apply_new_measures(options, run)
    outlines = run.folder / OUTLINES
    if remove_if_damaged(outlines):
        say(f"{outlines}: was damaged, and is written again")
    sweep(run.folder)
    return run, [] if run.finished else sources_of(run)


def check_same_options(given: Mapping[str, Any], run: Plan, probe: Callable[[], Info]) -> None:
    """Refuse options that differ from those of the run to resume; they would have no effect.

    Args:
        given: The options that the user has given.
        run: The run to resume.
        probe: Returns the size of the first input, which turns --size into height and width.
    """
    own = {
        **vars(run.reading),
        **vars(run.config),
        "stride": run.stride,
        "max_frames": run.max_frames,
    }
    for name, value in given.items():
        if name not in own or name == "device":  # a run may continue on another device
            continue
        if name == "roi":
            value = load_region(value)
        if name == "size" and isinstance(value, int):
            value = small_size(value, probe(), run.reading.roi)
        if value != own[name]:
            raise Error(
                f"this run has {_described(name, own[name])}; leave {option_name(name)} out, or "
                "start again with --force"
            )


def _described(name: str, value: Any) -> str:
    option = option_name(name)
    if value is None or value is False:
        return f"no {option}"
    if value is True:
        return option
    shown = value
    if isinstance(value, tuple):
        shown = "x".join(map(str, value))
    elif isinstance(value, float):
        shown = f"{value:g}"
    return f"{option} {shown}"


def _check_corrections_alone(inputs: Sequence[str], given: Mapping[str, Any]) -> None:
    """Refuse inputs and settings with --corrections, which uses those of the corrected run."""
    allowed = {"out", "corrections", "device", "quiet", "force"}
    others = [*inputs, *(option_name(name) for name in given if name not in allowed)]
    if others:
        raise Error(
            f"--corrections uses the inputs and settings of the run that was corrected; leave "
            f"{others[0]} out"
        )


def _apply_new_measures(options: Options, run: Plan) -> None:
    """Apply new zones or a new pixel size; files that depend on them then count as missing."""
    before = run.zones, run.mm_per_pixel
    zones = load_zones(options.zones) or run.zones
    mm_per_pixel = options.mm_per_pixel or run.mm_per_pixel
    if (zones, mm_per_pixel) == before:
        return
    sources = sources_of(run)
    infos = [source.probe() for source in sources]
    check_measures(run.config.task, zones, mm_per_pixel, sources, infos)
    run.zones, run.mm_per_pixel = zones, mm_per_pixel
    run.write_config()
    for name in (*MEASURES, "report.html"):
        (run.folder / name).unlink(missing_ok=True)


def has_progress(run: Plan) -> bool:
    """Return whether `resume` would find work of this run, not of an earlier one."""
    if run.fresh:
        return False
    return run.net is not None or (run.folder / "checkpoint" / "state.json").exists()


def plan_run(
    inputs: Sequence[str],
    folder: str | os.PathLike[str],
    config: Config,
    *,
    size: int | tuple[int, int] | None = None,
    stride: int | None = None,
    max_frames: int | None = None,
    grey: bool = False,
    follow: bool | None = None,
    start: float = 0.0,
    end: float | None = None,
    roi: Region | None = None,
    skip_bad: bool = False,
    masks: bool = False,
    zones: Zones | None = None,
    mm_per_pixel: float | None = None,
    force: bool = False,
) -> tuple[Plan, list[Source]]:
    """Inspect the inputs and choose all settings that depend on them; write nothing yet.

    Args:
        inputs: Video files, folders, patterns.
        folder: Folder of the run.
        config: Settings.
        size: Size of the training frames: the longer side, or (height, width). All sources are
            resized to the size of the first one. The images of a folder may differ in size only if
            both sides are given. None is 64, or 128 with `follow`.
        stride: Learn from every `stride`-th frame; None takes about six per second of each source,
            or all frames if it is short.
        max_frames: Number of frames to use from each source, from `start` on.
        grey: Learn without colour.
        follow: Learn a code of a square around the moving object instead of the whole frame. None
            does so for `orient` if the object covers less than half of the frame.
        start: Use frames of each source from this time on, in seconds.
        end: Use frames before this time; None for no limit.
        roi: Use only this part of the frames; None for all of them.
        skip_bad: Leave out unreadable inputs.
        masks: Write each mask as an image.
        zones: Measure the time of objects in these zones.
        mm_per_pixel: Size of a pixel; None measures in pixels only.
        force: Replace an existing run.

    Returns:
        The run and its sources.
    """
    _check_options(config, masks=masks, follow=follow)
    sources, infos, bad = open_sources(inputs, skip_bad=skip_bad)
    check_free(folder, force, RUN_NAMES)
    check_apart(folder, sources)
    check_region(roi, sources, infos, skip_bad=skip_bad)
    check_measures(config.task, zones, mm_per_pixel, sources, infos)
    shape = small_size(size or (FOLLOW_SIZE if follow else DEFAULT_SIZE), infos[0], roi)
    reading = Reading(
        size=shape,
        grey=grey,
        start=start,
        end=end,
        stride=stride or 1,
        max_frames=kept_frames(max_frames, stride or 1),
        roi=roi,
        mixed=isinstance(size, tuple),
        follow=bool(follow),
    )
    if follow is None and config.task == "orient" and covers_little(sources, reading):
        shape = small_size(size or FOLLOW_SIZE, infos[0], roi)
        reading = replace(reading, size=shape, follow=True)
    run = Plan(
        folder=Path(folder),
        inputs=absolute(inputs),
        config=config,
        reading=reading,
        max_frames=max_frames,
        skip_bad=skip_bad,
        bad=bad,
        masks=masks,
        zones=zones,
        mm_per_pixel=mm_per_pixel,
        fresh=True,
        natural=stride is None,
    )
    return run, sources


def _check_options(config: Config, *, masks: bool, follow: bool | None) -> None:
    if masks and config.task != "locate":
        raise RunError(f"--task {config.task} has no masks; leave out --masks")
    if follow and config.task == "locate":
        raise RunError("--follow is for --task orient and features; locate uses the whole frame")
    if config.outputs != 2 and config.task == "locate":
        raise RunError("--outputs is for --task orient and features; locate has two, x and y")
    check_settings(config)


def absolute(inputs: Sequence[str]) -> list[str]:
    """Return inputs as absolute paths."""
    return [absolute_path(os.path.expanduser(path)) for path in inputs]


def sources_of(run: Plan) -> list[Source]:
    """Return the sources of a run to be resumed.

    Raises:
        RunError: The inputs have changed, or a link leads out of the run folder.
    """
    check_links(run.folder)
    sources, _, bad = open_sources(run.inputs, skip_bad=run.skip_bad)
    run.bad |= bad
    if run.result is not None and [source.name for source in sources] != run.result.sources:
        raise RunError(
            f"{run.folder}: its inputs have changed since it was learned; use ul apply for others"
        )
    return sources


def plan_relearning(
    folder: Path,
    out: str | os.PathLike[str],
    *,
    device: str | None = None,
    force: bool = False,
) -> tuple[Plan, list[Source]]:
    """Plan a new run from the inputs, settings and corrections of a run; nothing is written yet.

    `work` trains it and writes its results.

    Args:
        folder: Folder of the corrected run; it is not changed.
        out: Folder of the new run.
        device: Device to train on, or "auto"; None for that of the run.
        force: Replace an existing run in `out`.

    Returns:
        The new run and its sources.

    Raises:
        RunError: The run cannot be used, or has no corrections to train with.
        Error: A correction is invalid.
    """
    run = load_plan(folder, device)
    if run.config.task != "locate" or run.watched:
        raise RunError(f"{folder}: expected a run of ul learn --task locate")
    _ = run.outcome  # raises an error if training has not finished
    teaching = read_teaching(folder)
    if os.path.realpath(out) == os.path.realpath(folder):
        raise RunError(f"{out}: is the run that was corrected; give another folder with --out")
    sources = sources_of(run)
    check_free(out, force, RUN_NAMES)
    check_apart(out, sources)
    planned = replace(
        run,
        folder=Path(out),
        config=replace(run.config, objects=1),  # other objects have been deleted
        result=None,
        net=None,
        fresh=True,
        pieces={},
        teaching=teaching,
    )
    return planned, sources


def read_teaching(folder: Path) -> Teaching:
    """Return the corrections of a results folder that can be used for training.

    These are moved positions and empty frames.

    Raises:
        RunError: There are no such corrections, or there are several objects.
        Error: A correction is invalid.
    """
    corrections = read_corrections(folder)
    videos = read_videos(folder)
    rows = corrected_rows(videos, corrections)
    for video in videos:
        numbers = rows[video.name].number if video.name in rows else _numbers(video)
        if len(np.unique(numbers[numbers > 0])) > 1:
            raise RunError(
                f"{folder}: {video.name} has several objects, and one can be learned from "
                "corrections; delete the others, or learn with --objects 1"
            )
    places = {name: _places(rows[name]) for name in sorted(rows)}
    places = {name: each for name, each in places.items() if each}
    if not places:
        raise RunError(
            f"{folder}: has no corrections to learn from; move an object, or mark frames in which "
            "there is nothing"
        )
    return Teaching(os.path.abspath(folder), len(corrections.applied), places)


def _numbers(video: TrackedVideo) -> NDArray[np.int64]:
    return np.array([track.object for track in video.tracks], np.int64)


def _places(rows: CorrectedRows) -> list[Place]:
    """Return the corrected frames of a sequence, in ascending order."""
    told = np.flatnonzero(rows.placed & (rows.number > 0))
    told = told[np.argsort(rows.frame[told])]
    scaled = rows.places(told) / (rows.video.width, rows.video.height)
    return [
        (frame, None, None) if np.isnan(x) else (frame, x, y)
        for frame, (x, y) in zip(rows.frame[told].tolist(), scaled.tolist(), strict=True)
    ]


def check_device(name: str) -> None:
    """Raise RunError if PyTorch cannot use a device here."""
    try:
        torch.zeros(1, device=name).item()
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as error:
        raise RunError(f"device {name!r} cannot be used here; try --device cpu") from error


def load_plan(folder: str | os.PathLike[str], device: str | None = None) -> Plan:
    """Load a run folder, and its network if training has finished.

    Args:
        folder: Folder of the run.
        device: Device of the network, or "auto"; None for the one it was trained on.

    Raises:
        RunError: The folder is not a run, or is damaged.
    """
    place = Path(folder)
    entries = read_config(place)
    try:
        reading = entries.reading.reading()
    except (ValueError, ZeroDivisionError) as error:
        raise RunError(f"{folder}: its config.json is damaged ({error}); learn again") from error
    run = Plan(
        folder=place,
        inputs=entries.inputs,
        config=entries.learn,
        reading=reading,
        max_frames=entries.reading.max_frames,
        skip_bad=entries.skip_bad,
        result=entries.result,
        masks=entries.masks,
        zones=entries.zones,
        mm_per_pixel=entries.mm_per_pixel,
        natural=entries.reading.stride is None,
        teaching=entries.semi_supervised,
    )
    run.config = replace(run.config, device=choose_device(device or run.config.device))
    check_device(run.config.device)
    if run.result is not None:
        run.net = _load_net(run)
    return run


def fresh_net(run: Plan, outputs: int | None = None) -> Model:
    """Return the network before training; `outputs` as in `build`."""
    return _build(run, outputs).to(run.config.device).eval()


def _build(run: Plan, outputs: int | None = None, student: bool = False) -> Model:
    size = (SIDE, SIDE) if run.reading.follow else run.reading.size
    assert size is not None
    net = build(run.config, run.kind, run.reading.channels, size, outputs)
    if student and isinstance(net, Locator):
        net.student = Student()
    return net


def _load_net(run: Plan) -> Model:
    saved = read_tensors(run.folder / "model.safetensors")
    outputs = max(1, saved[OUTPUT_BIAS].numel()) if OUTPUT_BIAS in saved else None
    has_student = any(key.startswith("student.") for key in saved)
    with torch.device("meta"):  # shapes without memory, however large they are in config.json
        expected = weights(_build(run, outputs, has_student))
    shapes = [{key: value.shape for key, value in tensors.items()} for tensors in (saved, expected)]
    if shapes[0] != shapes[1]:
        raise RunError(
            f"{run.folder}: its model.safetensors does not belong to its config.json; learn again"
        )
    if not all(map(_is_finite, saved.values())):
        raise RunError(
            f"{run.folder}: its model.safetensors is damaged: weights are NaN or infinite; "
            "learn again with --force"
        )
    net = _build(run, outputs, has_student)
    net.load_state_dict(saved, strict=False)
    return net.to(run.config.device).eval()


def _is_finite(weight: Tensor) -> bool:
    """Return whether all values are finite numbers in the precision of the network."""
    return weight.is_floating_point() and bool(weight.float().isfinite().all())


def keep_scene(folder: Path, name: str, recording: StillRecording) -> None:
    """Add the scene of a source to those of a run, up to a limit.

    Args:
        folder: Folder of the run.
        name: Name of the source.
        recording: From `open_recording`.
    """
    path = folder / SCENES_FILE
    tensors = _read(path)
    names = {key.rpartition("/")[0] for key in tensors}
    if name not in names and len(names) >= MAX_SCENES:
        return
    scene = recording.scene
    kept = {
        "backdrop": torch.from_numpy(scene.backdrop).round().byte(),
        "noise": torch.from_numpy(scene.noise).half(),
        "bands": torch.tensor(scene.bands),
        "threshold": torch.tensor(recording.threshold),
        "clear": torch.tensor(recording.path.clear),
    }
    write_tensors(path, tensors | {f"{name}/{key}": value for key, value in kept.items()})


def read_scenes(folder: Path) -> list[StillRecording]:
    """Return the scenes of a run, ready to find objects in frames of their size.

    Raises:
        RunError: The file is damaged.
    """
    path = folder / SCENES_FILE
    tensors = _read(path)
    names = sorted({key.rpartition("/")[0] for key in tensors})
    try:
        return [_recording(tensors, name) for name in names]
    except (KeyError, RuntimeError, ValueError) as error:
        raise _damaged(path) from error


def _read(path: Path) -> dict[str, Tensor]:
    if not os.path.lexists(path):
        return {}
    try:
        return read_tensors(path)
    except RunError as error:
        raise _damaged(path) from error


def _damaged(path: Path) -> RunError:
    return RunError(f"{path}: is damaged; delete it (only short clips need it)")


def _recording(tensors: dict[str, Tensor], name: str) -> StillRecording:
    backdrop, noise, bands, threshold, clear = (tensors[f"{name}/{key}"] for key in KEYS)
    if backdrop.shape != (*noise.shape, 3) or not 0 < noise.numel() <= MAX_SCENE_PIXELS:
        limit = f"at most {MAX_SCENE_PIXELS} pixels"
        raise ValueError(f"expected a backdrop of {limit}, got {backdrop.shape}")
    if backdrop.dtype != torch.uint8 or noise.dtype != torch.float16:
        raise ValueError(f"expected uint8 and float16, got {backdrop.dtype} and {noise.dtype}")
    numbers = torch.stack([noise.min().float(), noise.max().float(), threshold, clear])
    if not bool((numbers.isfinite() & (numbers > 0)).all()):
        raise ValueError(f"expected finite, positive numbers, got {numbers.tolist()}")
    scene = StillScene(backdrop.float().numpy(), noise.float().numpy(), bool(bands))
    return StillRecording(scene, float(threshold), ObjectPath(STILL_SIDE, float(clear)))
