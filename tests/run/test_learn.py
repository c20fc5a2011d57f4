"""`ul.learn` and `Run`: the same results as the command, as data frames and typed values."""

from __future__ import annotations

import inspect
import json
import shutil
import signal
import typing
from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch

import ullayers as ul
import ullayers.video.files.decoding as decoding
from tests.command import UlCommand
from tests.films import ball, files_in, write_film
from ullayers.errors import Error
from ullayers.learning.checkpoint import write_tensors
from ullayers.learning.config import Config, Options, default_of, setting
from ullayers.run import learn as facade
from ullayers.run import pipeline
from ullayers.run.learn import Run, learn, load_run
from ullayers.run.pipeline import Event
from ullayers.run.progress import Bars
from ullayers.video.demo_films import write_scene

SHORT: dict[str, Any] = {"steps": 3, "restarts": 1, "size": 24, "quiet": True}
SAME = ("model.safetensors", "tracks.csv", "behaviour.csv", "zones.csv", "config.json")
ZONES = {"left": [(2, 2), (60, 2), (60, 90), (2, 90)]}


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with scene.mp4 and truth.csv."""
    folder = tmp_path_factory.mktemp("scene")
    write_scene(folder, frames=60)
    return folder


@pytest.fixture(scope="module")
def run(scene: Path) -> Run:
    return learn(scene / "scene.mp4", out=scene / "run", zones=ZONES, mm_per_pixel=0.5, **SHORT)


def test_every_option_of_the_command_is_an_argument_with_the_same_default() -> None:
    parameters = dict(inspect.signature(learn).parameters)
    del parameters["inputs"]
    options = {each.name: each for each in (*fields(Options), *fields(Config))}
    assert parameters.keys() == options.keys()
    hints = typing.get_type_hints(learn)
    for name, parameter in parameters.items():
        owner = Config if name in Config.__dataclass_fields__ else Options
        expected, kind = default_of(name), typing.get_type_hints(owner)[name]
        if setting(name).if_none == "auto":
            expected, kind = "auto", int | typing.Literal["auto"]
        assert parameter.default == expected, name
        assert set(typing.get_args(hints[name])) == set(typing.get_args(kind)), name
        assert parameter.kind is inspect.Parameter.KEYWORD_ONLY
        assert f"\n        {name}: " in str(inspect.getdoc(learn)).replace("\n    ", "\n        ")


def test_the_names_of_the_package() -> None:
    assert (ul.learn, ul.load_run, ul.Run) == (learn, load_run, Run)
    assert issubclass(Error, ul.Error)
    assert "learn" in dir(ul)


def test_the_run_is_that_of_the_command(
    run: Run, scene: Path, tmp_path: Path, here: UlCommand
) -> None:
    zones = tmp_path / "zones.json"
    zones.write_text(json.dumps({"zones": ZONES}))
    options = ("--steps", "3", "--restarts", "1", "--size", "24", "--quiet")
    measures = ("--zones", zones, "--mm-per-pixel", "0.5")
    said = here("learn", scene / "scene.mp4", "--out", tmp_path / "run", *options, *measures)
    assert said[:2] == (0, "")
    assert results_in(run.folder) == results_in(tmp_path / "run")
    for name in SAME:
        assert (run.folder / name).read_bytes() == (tmp_path / "run" / name).read_bytes(), name


def results_in(folder: Path) -> set[str]:
    return {name for name in files_in(folder) if not name.startswith("tensorboard")}


def test_tables_are_data_frames(run: Run) -> None:
    tracks = run.tracks
    assert isinstance(tracks, pandas.DataFrame)
    assert {"sequence", "frame", "time", "x", "y", "confidence", "x_px", "y_px"} <= set(tracks)
    assert len(tracks) == 60
    assert tracks["frame"].dtype == np.int64
    assert set(tracks["sequence"]) == {"scene"}
    assert len(run.behaviour) == 1
    assert list(run.zones["zone"]) == ["left"]
    assert len(run.crossings) == 0
    assert "confidence" in run.crossings
    assert run.tracks is tracks  # read once
    with pytest.raises(Error, match=r"tracks, not codes"):
        _ = run.codes


def test_summary_and_settings_are_typed(run: Run) -> None:
    assert run.summary.task == "locate"
    assert run.summary.frames == 60
    assert isinstance(run.summary.trusted, bool)
    assert run.summary.trusted == (not run.summary.reasons)
    assert run.summary.sequences[0].name == "scene"
    assert run.summary.sequences[0].width == 160
    assert run.config.steps == 3
    assert run.report == run.folder / "report.html"
    assert run.overlay == run.folder / "overlay.mp4"
    assert isinstance(run.network, torch.nn.Module)
    assert not run.network.training


def test_damaged_summaries_say_so(run: Run, tmp_path: Path) -> None:
    shutil.copytree(run.folder, tmp_path / "run")
    path = tmp_path / "run" / "summary.json"
    for text in ("{}", "[" * 10**5, '{"task": "locate", "frames": NaN}', '{"task": 5}', "\udc80"):
        path.write_text(text, errors="surrogatepass")
        with pytest.raises(Error, match=r"summary.json is damaged") as error:
            _ = load_run(tmp_path / "run").summary
        assert "\n" not in str(error.value)
    path.unlink()
    with pytest.raises(Error, match=r"has no summary.json"):
        _ = load_run(tmp_path / "run").summary


def test_a_finished_run_can_be_loaded_and_applied(run: Run, scene: Path, tmp_path: Path) -> None:
    loaded = load_run(str(run.folder))
    assert loaded.tracks.equals(run.tracks)
    film = shutil.copy(scene / "scene.mp4", tmp_path / "tuesday.mp4")
    found = loaded.apply(film, quiet=True)
    assert found.folder == run.folder.parent / "run-tuesday"
    assert len(found.tracks) == 60
    assert found.tracks["x"].equals(run.tracks["x"])
    assert (found.report, found.overlay) == (None, None)
    assert found.config == run.config
    assert not found.network.training
    again = load_run(found.folder)
    assert again.tracks.equals(found.tracks)
    with pytest.raises(Error, match="is not a run"):
        _ = again.network
    with pytest.raises(Error, match="is not empty"):
        loaded.apply(film, quiet=True)
    other = loaded.apply([film], out=tmp_path / "other", stride=2, overlay=True, quiet=True)
    assert len(other.tracks) == 30
    assert other.overlay == tmp_path / "other" / "overlay.mp4"


def test_scores_are_typed(run: Run, scene: Path) -> None:
    pytest.importorskip("motmetrics")
    truth = pandas.read_csv(scene / "truth.csv")
    pixels = truth.assign(x=truth["x"] * 160, y=truth["y"] * 120)
    pixels[["frame", "x", "y"]].to_csv(scene / "pixels.csv", index=False)
    score = run.score(scene / "pixels.csv")
    assert score.frames == 60
    assert 0 <= score.found <= 1
    assert score.median_distance_px is not None


def test_tracks_and_networks_can_be_exported(run: Run, tmp_path: Path) -> None:
    path = run.export("csv", tmp_path / "tracks.csv")
    assert path == tmp_path / "tracks.csv"
    assert len(pandas.read_csv(path)) == len(run.tracks)
    assert run.export("napari") == run.folder / "export" / "scene.napari.csv"
    with pytest.raises(Error, match="exists"):
        run.export("csv", path)
    with pytest.raises(Error, match="file of the run"):
        run.export("csv", run.folder / "tracks.csv", force=True)
    with pytest.raises(Error, match="one of csv, "):
        run.export("excel", path)  # type: ignore[arg-type]


def test_a_notebook_shows_a_frame_and_the_summary(run: Run) -> None:
    html = run._repr_html_()
    assert "<img src='data:image/png;base64," in html
    assert "60 frames" in html
    assert "report.html" in html
    assert repr(run) == f"Run({str(run.folder)!r})"


@pytest.mark.parametrize("when", ["a step", "the last step", "saving the network"])
def test_ctrl_c_stops_and_the_run_resumes_to_the_same_bytes(
    run: Run, scene: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    class InterruptedBars(Bars):
        def show(self, event: Event) -> None:
            super().show(event)
            last = event.record is not None and event.done == event.total
            if last if when == "the last step" else event.record is not None and event.done == 2:
                signal.raise_signal(signal.SIGINT)

    def write_interrupted(path: Path, tensors: dict[str, torch.Tensor]) -> None:
        signal.raise_signal(signal.SIGINT)
        write_tensors(path, tensors)

    options: dict[str, Any] = {"out": tmp_path / "run", "zones": ZONES, "mm_per_pixel": 0.5}
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        if when == "saving the network":
            monkeypatch.setattr(pipeline, "write_tensors", write_interrupted)
        else:
            monkeypatch.setattr(facade, "Bars", InterruptedBars)
        with pytest.raises(KeyboardInterrupt):
            learn(scene / "scene.mp4", **options, **SHORT)
        monkeypatch.undo()
    finally:
        signal.signal(signal.SIGINT, previous)
    saved = when == "saving the network"
    assert (tmp_path / "run" / "model.safetensors").exists() == saved
    assert not (tmp_path / "run" / "tracks.csv").exists()
    done = learn(out=tmp_path / "run", resume=True, quiet=True)
    for name in SAME:
        assert (done.folder / name).read_bytes() == (run.folder / name).read_bytes(), name
    again = learn(scene / "scene.mp4", out=tmp_path / "run", resume=True, quiet=True)
    assert again.tracks.equals(run.tracks)


def test_codes_are_a_data_frame(tmp_path: Path) -> None:
    film = write_film(tmp_path / "a.mp4", ball(40)[0])
    run = learn(film, out=tmp_path / "run", task="features", outputs=3, **SHORT)
    assert list(run.codes.columns)[-3:] == ["y0", "y1", "y2"]
    assert len(run.codes) == 40
    for name in ("tracks", "behaviour", "zones", "crossings"):
        with pytest.raises(Error, match=r"codes, not"):
            getattr(run, name)
    assert "data:image/png" in run._repr_html_()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"task": "orient", "objects": 2}, "--objects is for --task locate"),
        ({"steps": 0}, "expected steps of at least 1, got 0"),
        ({"stride": 0}, "expected stride of at least 1"),
        ({"size": (4, 64)}, "expected sides of at least 8"),
        ({"start": 5, "end": 2}, "is not after"),
        ({"roi": (1, 2, 3)}, "expected roi as X, Y, width and height"),
        ({"roi": "no.png"}, "no.png"),
        ({"zones": {"a": [(0, 0), (1, 1)]}}, "zone 'a'"),
        ({"resume": True}, "is not a run"),
        ({"corrections": "run", "steps": 3}, "leave --steps out"),
        ({"objects": "many"}, "expected objects of type int"),
    ],
)
def test_bad_options_are_errors_that_the_user_can_fix(
    scene: Path, tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    inputs = [] if {"resume", "corrections"} & options.keys() else [str(scene / "scene.mp4")]
    with pytest.raises(Error, match=words):
        learn(inputs, out=tmp_path / "out", quiet=True, **options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("task", ["locate", "orient"])
def test_a_frame_is_decoded_at_most_twice(
    tmp_path: Path, task: typing.Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once to train and once for the results; overlay and report use the same frames."""
    film = write_film(tmp_path / "long.mp4", ball(150)[0])
    decoded: list[int | None] = []
    real = decoding._decode_packet

    def count(*arguments: typing.Any) -> Any:
        frames = real(*arguments)
        decoded.extend(frame.pts for frame in frames)
        return frames

    monkeypatch.setattr(decoding, "_decode_packet", count)
    run = learn(
        film, out=tmp_path / "run", task=task, follow=None if task == "locate" else True, **SHORT
    )
    assert run.overlay is not None
    assert run.report is not None
    counts = Counter(decoded)
    del counts[0]  # also decoded for the size of the frames
    assert set(counts.values()) == {2}
