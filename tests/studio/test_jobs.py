"""Jobs: queued, learned in a process of their own, stopped, resumed, deleted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.command import start_code
from tests.films import ball
from tests.servers import served
from ullayers.errors import Error
from ullayers.studio import worker
from ullayers.studio.editing import correct, outlines_of
from ullayers.studio.files import Workspace
from ullayers.studio.jobs import Job, Jobs, JobState, Request
from ullayers.studio.studio import Studio
from ullayers.tracks.reading import read_tracks
from ullayers.video.demo_films import write_scene
from ullayers.video.files.writing import VideoWriter
from ullayers.video.sources import Source, read_all

PATIENCE = 120.0  # seconds
FRAMES = 48  # of the video
STEPS = 6  # of each trial and of training: enough to stop it in the middle


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scene(tmp_path_factory.mktemp("scene"), frames=FRAMES)


def wait_for(job: Job, *states: str, stage: str | None = None) -> JobState:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        state = job.state
        if state.state in states and (stage is None or state.stage == stage):
            return state
        assert state.state not in ("failed", "done") or state.state in states, state
        time.sleep(0.05)
    raise AssertionError(f"{job.state} after {PATIENCE} seconds")


def fork_worker(command: list[str], **_: Any) -> SimpleNamespace:
    """Start the process of a job without importing torch again."""
    module, *arguments = command[2:]
    code = f"import runpy\nrunpy.run_module({module!r}, run_name='__main__')"
    return SimpleNamespace(wait=start_code(code, *arguments).communicate)


def run_here(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Do what the process of a job does, in this one, which has everything imported."""
    with monkeypatch.context() as patch:
        patch.setattr("ullayers.studio.worker.NICE", 0)
        patch.setattr("ullayers.studio.worker.signal.signal", lambda *_: None)
        worker.main([str(job.workspace.folder), job.name])


@pytest.mark.usefixtures("full_reports")
def test_a_run_is_stopped_killed_resumed_and_ends_like_ul_learn(
    tmp_path: Path, scene: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One run through all stages: no work is repeated, and nothing is lost."""
    forking = SimpleNamespace(Popen=fork_worker, DEVNULL=subprocess.DEVNULL)
    monkeypatch.setattr("ullayers.studio.jobs.subprocess", forking)
    studio = Studio(Workspace.open(tmp_path / "studio"), [str(scene)])
    [entry] = studio.library.entries()
    job = studio.add_run({"sources": [entry.id], "objects": 1, "steps": STEPS})
    assert job.state.state == "queued"
    assert studio.jobs.start_next()
    other = studio.add_run({"sources": [entry.id], "task": "orient"})
    assert not studio.jobs.start_next()  # one at a time
    wait_for(job, "running", stage="training")
    with pytest.raises(Error, match="stop it first"):
        job.delete()
    job.stop()
    wait_for(job, "stopped")
    assert (job.run / "checkpoint" / "state.json").exists()

    other.delete()
    job.resume()
    assert studio.jobs.start_next()
    done = (job.run / "metrics.jsonl").read_text().splitlines()
    assert done
    state = wait_for(job, "running", stage="reading")
    assert state.pid is not None
    os.kill(state.pid, signal.SIGKILL)  # as a power failure would
    wait_for(job, "interrupted")

    job.resume()
    run_here(job, monkeypatch)  # what `start_next` starts in a process of its own
    wait_for(job, "done")
    after = (job.run / "metrics.jsonl").read_text().splitlines()
    assert after[: len(done)] == done
    assert len(after) > len(done)
    assert {"tracks.csv", "report.html", "overlay.mp4", "summary.json"} <= set(os.listdir(job.run))
    live = json.loads((job.folder / "live.json").read_text())
    assert live["kernels"].startswith("data:image/png")
    preview = live["preview"]
    assert preview["source"] == entry.id
    assert len(preview["frames"]) == len(preview["outlines"]) == len(preview["places"]) > 0
    details = studio.details(job.name)
    assert details["state"] == "done"
    assert details["trusted"] is not None
    [sequence] = details["sequences"]
    assert (sequence["source"], sequence["first"], sequence["last"]) == (entry.id, 0, FRAMES - 1)
    outlines = outlines_of(job.run, sequence["name"], 0, FRAMES - 1)
    assert len(outlines) > FRAMES / 2
    check_overlay(studio, job)
    check_relearning(studio, job)
    job.delete()
    assert not job.run.exists()
    assert not job.folder.exists()


def check_overlay(studio: Studio, job: Job) -> None:
    """An overlay of some frames has these frames, in the size of the whole overlay."""
    [path] = studio.export(job.name, {"format": "overlay", "first": 10, "last": 29})
    some, whole = (
        Source("some", str(path), "video"),
        Source("all", f"{job.run}/overlay.mp4", "video"),
    )
    assert len(read_all(some).index) == 20
    assert (some.probe().height, some.probe().width) == (whole.probe().height, whole.probe().width)


def check_relearning(studio: Studio, job: Job) -> None:
    """A run that learns from corrections is queued with the videos of the other one."""
    with pytest.raises(Error, match="no corrections"):
        studio.relearn(job.name)
    name = studio.details(job.name)["sequences"][0]["name"]
    move = {"op": "move", "sequence": name, "object": 1, "frame": 20, "x": 30.0, "y": 40.0}
    correct(job.run, move)
    taught = studio.relearn(job.name)
    assert taught.request.parent == job.name
    assert taught.request.inputs == job.request.inputs
    assert taught.request.sources == job.request.sources
    taught.delete()


def test_failures_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = Jobs(Workspace.open(tmp_path / "studio"))
    job = jobs.add(Request(name="gone", inputs=[str(tmp_path / "gone.mp4")]))
    run_here(job, monkeypatch)
    state = job.state
    assert state.state == "failed"
    assert state.error == f"{tmp_path / 'gone.mp4'}: does not exist; check the spelling"


def test_a_job_is_stopped_while_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process imports for seconds before it can report anything."""
    process = SimpleNamespace(wait=lambda: 0)
    monkeypatch.setattr("ullayers.studio.jobs.subprocess.Popen", lambda *_, **__: process)
    jobs = Jobs(Workspace.open(tmp_path / "studio"))
    job = jobs.add(Request(name="first", inputs=[str(tmp_path / "gone.mp4")]))
    assert jobs.start_next()
    job.stop()
    wait_for(job, "stopping")
    run_here(job, monkeypatch)
    wait_for(job, "stopped")

    job.resume()
    assert jobs.start_next()
    wait_for(job, "running")  # it was asked to stop before, not now


def test_a_stream_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A camera that is reached through an address; afterwards its sender is off."""
    pictures, _ = ball(FRAMES, 48, 64)
    with VideoWriter(tmp_path / "ball.mkv", fps=10) as video:  # which can be read while it comes
        for picture in pictures:
            video.write(picture)
    with served(tmp_path) as address:
        studio = Studio(Workspace.open(tmp_path / "studio"), [f"{address}/ball.mkv"])
        [entry] = studio.library.entries()
        assert entry.describe()["kind"] == "live"
        with pytest.raises(Error, match="no frames to go back to"):
            studio.jpeg(entry.id, 0, None)
        job = studio.add_run({"sources": [entry.id], "kind": "watch", "objects": 1})
        run_here(job, monkeypatch)
        assert job.state.state == "done", job.state
        [track] = read_tracks(job.run / "tracks.csv")
        assert len(track.frame) == FRAMES
        assert outlines_of(job.run, track.sequence, 0, FRAMES - 1)
    job = studio.add_run({"sources": [entry.id], "kind": "watch"})
    run_here(job, monkeypatch)
    assert job.state.state == "failed"
    assert "cannot be read" in (job.state.error or "")
    assert "\n" not in (job.state.error or "")


def test_a_camera_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(Error, match=r"no such camera; ls /dev/video\* lists the cameras"):
        Studio(Workspace.open(tmp_path / "studio"), ["/dev/video99"])


def test_processes_that_end_are_reaped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def note(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        started.append(popen([sys.executable, "-S", "-c", "pass"], **options))
        return started[0]

    popen = subprocess.Popen
    monkeypatch.setattr("ullayers.studio.jobs.subprocess.Popen", note)
    jobs = Jobs(Workspace.open(tmp_path / "studio"))
    jobs.add(Request(name="short"))
    assert jobs.start_next()
    end = time.monotonic() + PATIENCE
    while started[0].returncode is None:  # set when the process is reaped, which nobody asks for
        assert time.monotonic() < end
        time.sleep(0.01)


def test_damaged_jobs_do_not_stop_the_others(client: TestClient, studio: Studio) -> None:
    for name, content in {"a": "[" * 10_000, "b": '{"name": 1}', "c": "\0"}.items():
        (studio.workspace.jobs / name).mkdir()
        (studio.workspace.jobs / name / "request.json").write_text(content)
    runs = client.get("/api/state").json()["runs"]
    assert [(run["id"], run["state"]) for run in runs] == [
        (name, "failed") for name in ("a", "b", "c")
    ]
    assert client.delete("/api/runs/a").status_code == 204


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"sources": []},
        {"sources": ["unknown"]},
        {"task": "fly"},
        {"objects": 0},
        {"objects": "many"},
        {"outputs": 1000},
        {"steps": 0},
        {"start": 5, "end": 2},
        {"start": float("inf")},
        {"inputs": ["/etc/passwd"]},
        {"parent_folder": "/etc"},
        {"kind": "camera"},
        {"kind": "watch", "task": "features"},
    ],
)
def test_bad_requests(client: TestClient, studio: Studio, request_: dict[str, Any]) -> None:
    [entry] = studio.library.entries()
    content = {"sources": [entry.id]} | request_ if request_ else {}
    answer = client.post("/api/runs", content=json.dumps(content))
    assert answer.status_code == 400
    assert answer.json()["error"]
    assert studio.jobs.all() == []


@pytest.mark.parametrize("content", ["", "[]", "[" * 10_000, "{", "x" * 2**21])
def test_bad_json(client: TestClient, content: str) -> None:
    assert client.post("/api/runs", content=content).status_code == 400
