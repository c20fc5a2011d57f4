"""`ul.learn`, `ul.load_run` and `Run`: the whole job in one call, and its results."""

from __future__ import annotations

import base64
import html
import os
from collections.abc import Sequence
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import cv2
import numpy as np

from ullayers.errors import Error
from ullayers.files import check_inside
from ullayers.learning.config import (
    OPTIONS,
    Config,
    LongMean,
    Optimizer,
    PathText,
    Task,
    ZoneMap,
    default_of,
)
from ullayers.run import plan as plans
from ullayers.run.folder import check_files, check_not_replaced, is_run, locked, read_config
from ullayers.run.network import from_pretrained, write_onnx, write_torch_export
from ullayers.run.pipeline import apply_run, follow, work
from ullayers.run.progress import Bars
from ullayers.run.reports import write_corrected_report
from ullayers.run.summary import Summary, read_summary
from ullayers.tracks.behaviour import ZONE_COLUMNS, read_behaviour, read_zone_times
from ullayers.tracks.formats.names import EXPORT_FOLDER
from ullayers.tracks.formats.write import plan_files, write_files
from ullayers.tracks.scores import Score, score_folder
from ullayers.tracks.table import read_table
from ullayers.video.sources import Reading, find_sources

if TYPE_CHECKING:
    from pandas import DataFrame

    from ullayers.learning.networks import Model

Format = Literal[
    "csv",
    "movement",
    "sleap",
    "dlc",
    "mot",
    "coco",
    "nwb",
    "napari",
    "parquet",
    "report",
    "onnx",
    "torch_export",
]
NETWORK_NAMES = {"report": "report.html", "onnx": "network.onnx", "torch_export": "network.pt2"}
WRITERS = {"report": write_corrected_report, "onnx": write_onnx, "torch_export": write_torch_export}
PICTURE_SIDE = 320  # pixels of the longer side of the sample frame in a notebook
Inputs = PathText | Sequence[PathText]


def learn(
    inputs: Inputs = (),
    *,
    out: PathText = "run",
    task: Task = "locate",
    objects: int | Literal["auto"] = "auto",
    zones: PathText | ZoneMap | None = None,
    mm_per_pixel: float | None = None,
    masks: bool = False,
    skip_bad: bool = False,
    corrections: PathText | None = None,
    size: int | tuple[int, int] | None = None,
    stride: int | None = None,
    max_frames: int | None = None,
    start: float = 0.0,
    end: float | None = None,
    roi: PathText | tuple[int, int, int, int] | None = None,
    grey: bool = False,
    follow: bool | None = None,
    outputs: int = 2,
    steps: int | None = None,
    trial_steps: int | None = None,
    restarts: int = 2,
    long_mean: LongMean | None = None,
    batch: int = 4,
    clip: int = 32,
    mu: float = 0.5,
    eps: float = 1e-3,
    local: float | None = None,
    optimizer: Optimizer = "adamw",
    lr: float | None = None,
    momentum: float = 0.9,
    weight_decay: float = 0.01,
    tolerance: float = 0.0,
    seed: int = 0,
    device: str = "auto",
    quiet: bool = False,
    force: bool = False,
    resume: bool = False,
) -> Run:
    """Learn from video without labels, apply the network to all frames, and write a report.

    Ctrl-C stops between two steps; `ul.learn(out=..., resume=True)` continues, with the same
    results as without the interruption.

    Args:
        inputs: Video files, folders of images, folders of such folders or of videos, patterns such
            as "day*/*.mp4", or URLs; may be left out with `resume` and `corrections`.
        out: Folder to write to.
        task: What to learn. "locate": position and mask of the moving object; "orient": a code for
            the way it faces; "features": the slowest features of the whole frame.
        objects: Number of objects to track ("locate" only); "auto" finds it. Several objects need a
            camera that stays in one place.
        zones: Measure the time of each object in named polygons: a JSON file, or corners in pixels
            by name, such as {"nest": [(10, 10), (90, 10), (50, 80)]}.
        mm_per_pixel: Size of a pixel of the video in millimetres, for distances and speeds in mm.
        masks: Also write a PNG file with the mask of each frame.
        skip_bad: Skip unreadable inputs and list them, instead of stopping.
        corrections: Folder of a run that the user has corrected: train again on its inputs, with
            its settings and corrections.
        size: Frame size for training: the longer side, or (height, width); None for 64.
        stride: Train on every `stride`-th frame; None for about six frames per second of each
            input. Tables always have all frames.
        max_frames: Use only the first frames of each input, including those that `stride` skips.
        start: Use frames from this time on, in seconds.
        end: Use frames before this time only; None for all.
        roi: Use only this part of the frames: X, Y, width and height in pixels of the video, or a
            mask image, white inside and black outside.
        grey: Read frames without colour.
        follow: Crop frames to a square around the moving object ("orient" and "features"); None
            does so for "orient" if the object covers less than half of the frame.
        outputs: Length of the code ("orient" and "features").
        steps: Largest number of training steps of the best trial; None for 240, or 2000 for codes.
            Training stops earlier if J on held-out frames no longer falls.
        trial_steps: Training steps of each trial before the best one is chosen; None for 20, or 100
            for codes.
        restarts: Number of random seeds to try; the one with the lowest J is kept.
        long_mean: Reference mean for long-term variation: the mean of each "clip", or of the whole
            "stream"; None to choose.
        batch: Clips per step.
        clip: Frames per clip.
        mu: Short-term rate: weight of the newest frame in the short-term mean.
        eps: Long-term rate: like `mu`, but for long-term statistics. 0 < eps <= mu < 1.
        local: Weight of UL layers after hidden layers; None for none.
        optimizer: "adamw", or "sgd", the optimizer of the paper.
        lr: Learning rate; None for 0.003, 0.001 for codes, or 1e-5 with "sgd". Use a smaller one if
            training diverges.
        momentum: Momentum of SGD.
        weight_decay: Weight decay of the optimizer.
        tolerance: Stop early when J has improved by less than this over the last steps; 0 disables
            it.
        seed: Seed of all random numbers.
        device: Device that torch computes on, such as "cpu" or "cuda:1"; "auto" is cuda if there is
            one, cpu otherwise.
        quiet: Show no progress.
        force: Replace earlier results in `out`.
        resume: Continue the run in `out` with its own inputs and options. For a finished run, only
            missing files are written, and new `zones` or `mm_per_pixel` are applied.

    Returns:
        The run, with its tables, summary and network.

    Raises:
        Error: An input or an option cannot be used; the message says what to do.

    Example:
        >>> import tempfile, ullayers as ul
        >>> from ullayers.video.demo_films import write_scene
        >>> folder = tempfile.TemporaryDirectory()
        >>> video = write_scene(folder.name, frames=60)  # replace with your video
        >>> run = ul.learn(video, out=f"{folder.name}/run", steps=3, quiet=True)
        >>> len(run.tracks), run.summary.frames
        (60, 60)
        >>> folder.cleanup()
    """
    given = {
        name: value
        for name, value in locals().items()
        if name in OPTIONS and value is not default_of(name) and value != default_of(name)
    }
    if objects == "auto":
        del given["objects"]
    with locked(out):
        run, sources = plans.plan(_as_list(inputs), given)
        if not run.finished:
            with Bars(quiet) as bars:
                _follow(work(run, sources, resume=resume), bars.show)
    return Run(out)


_follow = follow  # an argument of `learn` has the same name


def load_run(folder: PathText) -> Run:
    """Return the run in a folder of `ul.learn`, `Run.apply`, `ul learn`, `ul apply` or `ul watch`.

    Raises:
        Error: The folder has no results.

    Example:
        >>> import tempfile, ullayers as ul
        >>> from ullayers.video.demo_films import write_scene
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     video = str(write_scene(folder, frames=30))
        ...     for found in ul.watch(video, size=32, folder=f"{folder}/run", objects=1):
        ...         pass
        ...     len(ul.load_run(f"{folder}/run").tracks)
        30
    """
    place = Path(folder)
    if not is_run(place) and not any((place / name).exists() for name in TABLES):
        read_config(place)  # says what is wrong with the folder
    return Run(place)


TABLES = ("tracks.csv", "codes.csv")


class Run:
    """The results of a run: tables, summary, files, and the trained network.

    Everything is read from the folder when it is first used.

    Args:
        folder: Folder with the results.
        trained: Folder of the run with the network; None for the same folder.

    Attributes:
        folder: Folder with the results.

    Example:
        >>> import tempfile, ullayers as ul
        >>> from ullayers.video.demo_films import write_scene
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     video = write_scene(folder, frames=60)
        ...     run = ul.learn(video, out=f"{folder}/run", steps=3, restarts=1, quiet=True)
        ...     len(run.tracks), run.config.steps, run.report.name, type(run.network).__name__
        (60, 3, 'report.html', 'Locator')
    """

    def __init__(self, folder: PathText, trained: Path | None = None) -> None:
        self.folder = Path(folder)
        self._trained = trained or self.folder

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    @cached_property
    def tracks(self) -> DataFrame:
        """Position, confidence and shape of each object in each frame, in the order of tracks.csv.

        x and y are in 0..1 of the frame from the top left corner, `x_px` and `y_px` in pixels.
        """
        self._check_has("tracks")
        return read_table(self.folder).tracks

    @cached_property
    def codes(self) -> DataFrame:
        """Code of each frame: y0, y1, ..."""
        self._check_has("codes")
        return read_table(self.folder).codes

    @cached_property
    def behaviour(self) -> DataFrame:
        """Distance, speed and more of each object."""
        self._check_has("behaviour")
        return read_behaviour(self.folder)

    @cached_property
    def zones(self) -> DataFrame:
        """Time of each object in each zone; without rows if there are no zones."""
        self._check_has("zones")
        if not (self.folder / "zones.csv").exists():
            from pandas import DataFrame

            return DataFrame(columns=list(ZONE_COLUMNS))
        return read_zone_times(self.folder)

    @cached_property
    def crossings(self) -> DataFrame:
        """Frames in which objects met, and how sure it is who is who afterwards."""
        self._check_has("crossings")
        return read_table(self.folder).crossings

    def _check_has(self, name: str) -> None:
        """Refuse a table of codes for a run with tracks, and the other way round."""
        has_codes = (self.folder / "codes.csv").exists()
        if has_codes != (name == "codes"):
            there, wanted = ("codes", name) if has_codes else ("tracks", name)
            raise Error(f"{self.folder}: has {there}, not {wanted}")

    @cached_property
    def summary(self) -> Summary:
        """What summary.json says: how much was found, and whether to trust it."""
        return read_summary(self.folder)

    @cached_property
    def config(self) -> Config:
        """The settings that the network was trained with."""
        return read_config(self._trained).learn

    @property
    def report(self) -> Path | None:
        """The report, a page to open in a browser; None if there is none."""
        return self._file("report.html")

    @property
    def overlay(self) -> Path | None:
        """The video with the results drawn onto it; None if there is none."""
        return self._file("overlay.mp4")

    def _file(self, name: str) -> Path | None:
        path = self.folder / name
        return path if path.exists() else None

    @cached_property
    def network(self) -> Model:
        """The trained `torch.nn.Module`, in eval mode on the CPU."""
        return from_pretrained(self._trained)

    def apply(
        self,
        inputs: Inputs,
        out: PathText | None = None,
        *,
        stride: int = 1,
        max_frames: int | None = None,
        start: float = 0.0,
        end: float | None = None,
        roi: PathText | tuple[int, int, int, int] | None = None,
        objects: int | Literal["auto"] | None = None,
        masks: bool = False,
        soft_masks: bool = False,
        overlay: bool = False,
        skip_bad: bool = False,
        zones: PathText | ZoneMap | None = None,
        mm_per_pixel: float | None = None,
        device: str = "auto",
        quiet: bool = False,
        force: bool = False,
        resume: bool = False,
    ) -> Run:
        """Apply the network to other video, as `ul apply` does; nothing is trained.

        Args:
            inputs: As in `ul.learn`.
            out: Folder to write to; None for one beside the run, named after the first input.
            stride: Use every `stride`-th frame only.
            max_frames: Use only the first frames of each input, including those that `stride`
                skips.
            start: Use frames from this time on, in seconds.
            end: Use frames before this time only; None for all.
            roi: Region of interest, as in `ul.learn`; None for that of the run.
            objects: Number of objects to track; None as for the run.
            masks: Also write a PNG file with the mask of each frame.
            soft_masks: The same with soft edges, for a single object.
            overlay: Also draw the result onto the video: overlay.mp4.
            skip_bad: Skip unreadable inputs and list them, instead of stopping.
            zones: Zones to measure, as in `ul.learn`.
            mm_per_pixel: Size of a pixel of the video in millimetres.
            device: Device that torch computes on.
            quiet: Show no progress.
            force: Replace earlier results in `out`.
            resume: Keep finished sequences in `out` and process the others.

        Returns:
            The results.

        Raises:
            Error: An input or an option cannot be used; the message says what to do.
        """
        paths = _as_list(inputs)
        if out is None:
            name = Path(paths[0]).stem if paths else ""
            out = self._trained.absolute().parent / f"{self._trained.absolute().name}-{name}"
        run = plans.load_plan(self._trained, device)
        check_not_replaced(out, roi, zones)
        with locked(out), Bars(quiet) as bars:
            events = apply_run(
                run,
                paths,
                Path(out),
                stride=stride,
                max_frames=max_frames,
                start=start,
                end=end,
                roi=plans.load_region(roi),
                objects=run.config.objects if objects is None else objects,
                masks=masks or soft_masks,
                soft=soft_masks,
                overlay=overlay,
                skip_bad=skip_bad,
                zones=plans.load_zones(zones),
                mm_per_pixel=mm_per_pixel,
                force=force,
                resume=resume,
            )
            follow(events, bars.show)
        return Run(out, self._trained)

    def score(
        self, truth: PathText, *, sequence: str | None = None, within: float | None = None
    ) -> Score:
        """Compare the tracks with true positions, as `ul score` does.

        Args:
            truth: True positions: a file of SLEAP, DeepLabCut or MOTChallenge, a CSV, a tracks.csv
                of another run, or a folder of masks.
            sequence: The video that the truth belongs to, if there are several.
            within: An object is found if it is at most this many pixels from its true position;
                None to choose by the size of the object.

        Raises:
            Error: The truth cannot be read or compared.
        """
        return score_folder(self.folder, Path(truth), sequence=sequence, within=within)

    def export(
        self,
        format: Format,
        path: PathText | None = None,
        *,
        sequence: str | None = None,
        first: int | None = None,
        last: int | None = None,
        force: bool = False,
    ) -> Path:
        """Write the tracks, the report or the network for other programs, as `ul export` does.

        Args:
            format: Name of the format; corrections of the user are applied.
            path: File to write; None for one in the folder `export` of the run.
            sequence: Write only the tracks of this video.
            first: First frame to write; None for the beginning.
            last: Last frame to write; None for the end.
            force: Replace an existing file.

        Returns:
            The file written; the first one, if the format needs a file for each video.

        Raises:
            Error: The file cannot be written.
        """
        return export_files(
            self.folder, format, path, sequence=sequence, first=first, last=last, force=force
        )[0]

    def _repr_html_(self) -> str:
        """Show a sample frame with its mask, the summary, and a link to the report."""
        parts = []
        if (picture := self._picture()) is not None:
            encoded = base64.b64encode(picture).decode()
            parts.append(f"<img src='data:image/png;base64,{encoded}'>")
        parts.append(f"<p>{html.escape(str(self.summary))}</p>")
        if self.report is not None:
            link = os.path.relpath(self.report)
            parts.append(f"<p><a href='{html.escape(link)}'>{html.escape(link)}</a></p>")
        return "".join(parts)

    def _picture(self) -> bytes | None:
        """Return a frame from the middle of the overlay as a PNG; None without an overlay."""
        if self.overlay is None:
            return None
        [source] = find_sources([str(self.overlay)])
        middle = (self.summary.frames // 2) / (source.probe().rate or 1.0)
        reading = Reading(longest=PICTURE_SIDE, start=middle, max_frames=1)
        with closing(source.clips(1, reading)) as clips:
            clip = next(clips, None)
        if clip is None:
            return None
        pixels = clip.frames[0].permute(1, 2, 0).numpy()[..., ::-1]
        return cv2.imencode(".png", np.ascontiguousarray(pixels))[1].tobytes()


def _as_list(inputs: Inputs) -> list[str]:
    if isinstance(inputs, str | os.PathLike):
        return [os.fspath(inputs)]
    return [os.fspath(each) for each in inputs]


def export_files(
    folder: Path,
    format: Format,
    path: PathText | None = None,
    *,
    sequence: str | None = None,
    first: int | None = None,
    last: int | None = None,
    force: bool = False,
) -> list[Path]:
    """Write tracks, a report or a network, and return the files; see `Run.export`.

    Raises:
        Error: The file cannot be written.
    """
    if format not in get_args(Format):
        raise Error(f"expected a format, one of {', '.join(get_args(Format))}, got {format!r}")
    out = None if path is None else Path(path)
    if out is None:
        check_inside(folder, folder / EXPORT_FOLDER)
        (folder / EXPORT_FOLDER).mkdir(exist_ok=True)
    if format in NETWORK_NAMES:
        file = out or folder / EXPORT_FOLDER / NETWORK_NAMES[format]
        check_files([file], (), folder, force)
        run = plans.load_plan(folder, "cpu")
        _ = run.outcome  # raises an error if training has not finished
        WRITERS[format](run, file)
        return [file]
    files = plan_files(folder, format, out, sequence=sequence, first=first, last=last)
    paths = [path for file in files for path in file.paths]
    check_files(paths, (), folder, force)
    write_files(format, files)
    return paths
