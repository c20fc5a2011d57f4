"""What each stage of locating brings: the same frames, with one stage more in each row.

    python -m experiments.studies.locate_ablation [--only walk davis ...] [--json FILE]

ULLAYERS_DATA names the folder of the data sets. Rows without a network need no training; the last
ones train a network with `ul learn`'s defaults and one seed. The truth is used to score only.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import cv2
import numpy as np
from numpy.typing import NDArray

from experiments.baselines import random_weights
from experiments.studies.plain_command.data_sets import SETS, DataSet, Film
from experiments.studies.plain_command.scores import Masks, Track
from ullayers.learning.config import Config
from ullayers.learning.footage import cut
from ullayers.learning.networks import Locator
from ullayers.learning.survey import open_recording, outline_reading, to_pixels
from ullayers.locate.flow import Floats, Frames
from ullayers.locate.moving import segment
from ullayers.locate.moving.evidence import motion_evidence
from ullayers.locate.moving.segment import CellChain, cell_chain, cell_means, cell_side
from ullayers.locate.outline import edge_outline
from ullayers.locate.paths import fill_gaps
from ullayers.locate.recording.seen import SeenRecording
from ullayers.locate.recording.windows import StillRecording
from ullayers.run.apply import WINDOW_BYTES, WINDOW_FRAMES, attend
from ullayers.run.folder import RunResult
from ullayers.run.pipeline import learn_run
from ullayers.run.plan import Plan, plan_run
from ullayers.tracks.masks import EDGE
from ullayers.video.sources import Clip, Reading, Source, find_sources

MOUSE_EVERY = 20  # of the windows of the longest recording, one in this many is used
CENTRE = 0.5  # of the frame: the position where nothing was found
UNTRAINED = "+ network, random weights"
TRAINED = "+ network, trained with the UL cost"
LOCAL = "+ local UL layers (`--local 0.03`)"
STILL = "+ scene of a still camera"
COLUMNS = {
    "walk": {"r of x": "walk, r", "r of x, worst scene": "worst"},
    "halves": {"r of x": "second halves, r", "r of x, worst scene": "worst"},
    "pillow": {
        "median distance, of the frame": "pillow, distance",
        "motion explained by free flight": "free flight",
    },
    "demo": {"median distance, % of the width": "demo, %"},
    "mouse": {"median distance, % of the width": "mouse, %"},
    "davis": {"IoU of masks": "DAVIS, IoU", "frames found": "centre on object"},
}

Scores = dict[str, dict[str, float]]  # row, name of the score


def remember_last(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of frames that repeats its last result for the same arguments."""
    kept: list[tuple[Frames, tuple[Any, ...], Any]] = []

    def call(frames: Frames, *rest: Any) -> Any:
        if not (kept and kept[0][1] == rest and np.array_equal(kept[0][0], frames)):
            kept[:] = [(frames, rest, function(frames, *rest))]
        return kept[0][2]

    return call


# Rows share the evidence and the chain of a window.
evidence_once = remember_last(motion_evidence)
chain_once = remember_last(cell_chain)


class Found(NamedTuple):
    """Frame numbers, positions and masks that a row finds in a window."""

    numbers: NDArray[np.int64]
    positions: NDArray[np.float64]
    masks: NDArray[np.bool_]


@dataclass(frozen=True)
class Window:
    """Evidence in the cells of a window of frames, and their chain."""

    frames: Frames
    flow: Floats
    deviation: Floats
    recent: Floats
    both: Floats
    chain: CellChain

    @classmethod
    def measure(cls, frames: Frames) -> Window:
        """Compute what all rows share."""
        small = segment.resized(frames, segment.ANALYSIS_SIDE)
        cell = cell_side(*small.shape[1:3])
        found = evidence_once(small)
        return cls(
            frames,
            flow=cell_means(found.flow, cell),
            deviation=cell_means(found.deviation, cell),
            recent=cell_means(found.recent, cell),
            both=cell_means(found.combined, cell),
            chain=chain_once(small, cell, 0),
        )

    @property
    def strength(self) -> Floats:
        """The evidence after consensus, as in `segment_motion`."""
        product: Floats = np.sqrt(self.both * self.chain.walk(self.both))
        return product

    def outline(self, chance: Floats) -> NDArray[np.bool_]:
        """Return masks of all cells whose chance is above one half."""
        each = zip(self.frames, chance, chance > 0.5, strict=True)
        return np.stack([edge_outline(*one) for one in each]) >= EDGE

    def above_threshold(self, strength: Floats) -> NDArray[np.bool_]:
        """Return masks of all cells above Otsu's threshold."""
        return self.outline((strength > _threshold(strength)).astype(np.float32))

    def reached(self) -> NDArray[np.bool_]:
        """Return masks of all cells from which the chain reaches an object."""
        threshold = _threshold(self.strength)
        low, high = segment.BACKGROUND * threshold, segment.OBJECT * threshold
        return self.outline(self.chain.reach(self.strength, low, high))

    def one_object(self) -> NDArray[np.bool_]:
        """Return masks of one object, from the first hypothesis."""
        with patch.object(segment, "CLEAR_GAIN", np.inf):
            return self.chosen_by_j()

    def chosen_by_j(self) -> NDArray[np.bool_]:
        """Return masks of one object, from the hypothesis that J prefers."""
        with patch.object(segment, "refine", lambda colours, strength, chance: chance):
            return self.refined()

    def refined(self) -> NDArray[np.bool_]:
        """Return masks of one object as `ul` finds them without a network."""
        return segment.segment_motion(self.frames).masks


def _threshold(strength: Floats) -> float:
    return max(segment.otsu_threshold(strength), segment.MIN_EVIDENCE)


STAGES: dict[str, Callable[[Window], NDArray[np.bool_]]] = {
    "flow alone": lambda window: window.above_threshold(window.flow),
    "deviation from the mosaic alone": lambda window: window.above_threshold(window.deviation),
    "deviation from neighbouring frames alone": lambda window: window.above_threshold(
        window.recent
    ),
    "flow, neighbouring frames, rigid motion": lambda window: window.above_threshold(window.both),
    "+ consensus": lambda window: window.above_threshold(window.strength),
    "+ chance to reach an object": Window.reached,
    "+ path of one object": Window.one_object,
    "+ hypothesis chosen by J": Window.chosen_by_j,
    "+ colours and shape": Window.refined,
}
ROWS = [*STAGES, STILL, UNTRAINED, TRAINED, LOCAL]


def main() -> None:
    arguments = parse()
    data = Path(os.environ["ULLAYERS_DATA"])
    scores: dict[str, Scores] = {}
    if arguments.json and arguments.json.exists():
        scores = json.loads(arguments.json.read_text(encoding="utf-8"))
    with (
        patch.object(segment, "motion_evidence", evidence_once),
        patch.object(segment, "cell_chain", chain_once),
    ):
        for name in arguments.only:
            scores[name] = score_set(
                SETS[name](data, arguments.out), learned_from(name, data, arguments.out)
            )
            if arguments.json:
                arguments.json.write_text(json.dumps(scores, indent=2), encoding="utf-8")
    print(table(scores))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m experiments.studies.locate_ablation")
    parser.add_argument("--only", nargs="+", choices=COLUMNS, default=list(COLUMNS), metavar="NAME")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="add the scores to those in a file"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("experiments/out/locate_ablation"),
        metavar="DIR",
        help="prepared inputs (default: experiments/out/locate_ablation)",
    )
    arguments = parser.parse_args()
    if "ULLAYERS_DATA" not in os.environ:
        parser.error("set ULLAYERS_DATA to the folder of the data sets")
    return arguments


def learned_from(name: str, data: Path, place: Path) -> Callable[[Film], Path]:
    """Return what the network for a film is trained on."""
    if name == "davis":  # every film alone
        return lambda film: film.source
    [source] = SETS["halves" if name == "walk" else name](data, place).inputs
    return lambda film: source


def score_set(data_set: DataSet, learned_from: Callable[[Film], Path]) -> Scores:
    every = MOUSE_EVERY if data_set.name == "mouse" else 1
    tracks: dict[str, list[Track]] = {row: [] for row in ROWS}
    overlaps: dict[str, list[float]] = {row: [] for row in ROWS}
    for film in data_set.films:
        for row, found in locate_film(film, networks(learned_from(film)), every).items():
            tracks[row].append(Track(found.numbers, found.positions, np.ones(len(found.numbers))))
            if isinstance(film.truth, Masks):
                overlaps[row].append(mean_overlap(found.masks, film.truth.masks))
    truths = [film.truth for film in data_set.films]
    scores = {row: data_set.score(truths, tracks[row]) for row in ROWS}
    for row, values in overlaps.items():
        if values:
            scores[row]["IoU of masks"] = float(np.mean(values))
    return scores


def locate_film(film: Film, runs: dict[str, Plan], every: int) -> dict[str, Found]:
    """Return what every row finds in a film."""
    [source] = find_sources([str(film.source)])
    reading = outline_reading(source.probe(), Reading())
    recording = open_recording(source, reading)
    assert not isinstance(recording, SeenRecording), "there is no network"
    recordings = {row: copy.deepcopy(recording) for row in (STILL, *runs)}
    parts: dict[str, list[Found]] = {row: [] for row in ROWS}
    for clip in windows(source, reading, every):
        frames = to_pixels(clip.frames)
        window = Window.measure(frames)
        masks = {row: stage(window) for row, stage in STAGES.items()}
        if isinstance(recording, StillRecording):
            masks[STILL] = recordings[STILL].segment(frames).masks
        else:
            masks[STILL] = masks[list(STAGES)[-1]]
        for row, some in masks.items():
            parts[row].append(located(clip, some))
        for row, run in runs.items():
            assert isinstance(run.net, Locator)
            seen = attend(run.net, clip, run, recordings[row])
            found = recordings[row].segment(frames, seen.mask.numpy())
            parts[row].append(located(clip, found.masks, seen.centroid.double().numpy()))
    return {
        row: Found(*map(np.concatenate, zip(*some, strict=True))) for row, some in parts.items()
    }


def windows(source: Source, reading: Reading, every: int) -> Iterator[Clip]:
    for number, clip in enumerate(cut(source, reading, WINDOW_FRAMES, WINDOW_BYTES)):
        if number % every == 0:
            yield clip


def located(
    clip: Clip, masks: NDArray[np.bool_], unknown: NDArray[np.float64] | float = CENTRE
) -> Found:
    places = fill_gaps(segment.centroids(masks))
    return Found(clip.index.numpy(), np.where(np.isnan(places), unknown, places), masks)


def mean_overlap(masks: NDArray[np.bool_], true: NDArray[np.bool_]) -> float:
    """Return the mean intersection over union; the masks may be a pixel smaller than the truth."""
    size = true.shape[:0:-1]
    images = (
        cv2.resize(mask.astype(np.uint8), size, interpolation=cv2.INTER_NEAREST) for mask in masks
    )
    found = np.stack(list(images)).astype(bool)
    both, either = (found & true).sum((1, 2)), (found | true).sum((1, 2))
    return float(np.mean(np.where(either > 0, both / np.maximum(either, 1), 1.0)))


@cache
def networks(learn_from: Path) -> dict[str, Plan]:
    """Return runs with an untrained network and with trained ones, by row."""
    configs = {UNTRAINED: Config(), TRAINED: Config(), LOCAL: Config(local=0.03)}
    return {row: network(learn_from, config, row != UNTRAINED) for row, config in configs.items()}


def network(learn_from: Path, config: Config, trained: bool) -> Plan:
    with tempfile.TemporaryDirectory() as place:
        run, sources = plan_run([str(learn_from)], f"{place}/run", config)
        if trained:
            for _ in learn_run(run, sources):
                pass
            return run
    resolved = config.resolved(many=len(sources) > 1)
    assert run.reading.size is not None
    net = random_weights(resolved, "clip", run.reading.channels, run.reading.size)
    return replace(run, config=resolved, net=net, result=RunResult(kind="clip"))


def table(scores: dict[str, Scores]) -> str:
    """Return a Markdown table of all sets that were scored."""
    shown = [(name, score) for name in COLUMNS if name in scores for score in COLUMNS[name]]
    titles = ["", *(COLUMNS[name][score] for name, score in shown)]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for row in ROWS:
        values = [scores[name][row][score] for name, score in shown]
        cells = [f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}" for value in values]
        lines.append(f"| {' | '.join([row, *cells])} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
