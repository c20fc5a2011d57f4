"""`ul export`: the written network computes what the run computes, and mistakes are refused."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

import ullayers as ul
from tests.command import UlCommand, check_refused
from tests.films import BALL, Pixels, ball, write_ball
from tests.learning.short_runs import CODES, learn
from tests.real_data import DATA
from ullayers.run.apply import answers
from ullayers.run.network import LUMA, Preprocess, network_graph, write_onnx
from ullayers.run.plan import Plan, load_plan
from ullayers.run.watcher import Watcher
from ullayers.video.region import MaskRegion, Rectangle
from ullayers.video.sources import Reading, find_sources, read_all

MOUSE = Path(DATA, "tracktor", "videos", "mouse_video.mp4")
Outputs = dict[str, NDArray[Any]]


def opened(file: Path) -> Callable[..., Outputs]:
    """Return a function that runs an ONNX file in ONNX Runtime."""
    import onnxruntime

    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def compute(**inputs: NDArray[Any]) -> Outputs:
        return dict(zip(names, session.run(None, inputs), strict=True))

    return compute


def frames_of(video: str) -> Pixels:
    """(time, 3, height, width) at the size of the video."""
    return read_all(find_sources([video])[0], Reading()).frames.numpy()


def median(frames: Pixels) -> Pixels:
    middle: Pixels = np.median(frames, axis=0).astype(np.uint8)
    return middle


@pytest.fixture(scope="module")
def locator(place: Path) -> Plan:
    return load_plan(place / "run", "cpu")


@pytest.fixture(scope="module")
def onnx_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("onnx") / "locate.onnx"


@pytest.fixture(scope="module")
def located(locator: Plan, onnx_file: Path) -> Callable[..., Outputs]:
    write_onnx(locator, onnx_file)
    return opened(onnx_file)


@pytest.fixture(scope="module")
def film(place: Path) -> Pixels:
    return frames_of(str(place / "ball.mp4"))


def test_onnx_locates_as_the_network_does(
    locator: Plan, located: Callable[..., Outputs], film: Pixels
) -> None:
    behind = median(film)
    found = located(frames=film, backdrop=behind)
    expected = network_graph(locator).module(torch.from_numpy(film), torch.from_numpy(behind))
    for values, same in zip(found.values(), expected, strict=True):
        np.testing.assert_allclose(values, same.detach(), atol=1e-4)
    # The frames of `ul apply`, resized by OpenCV and rounded to whole levels.
    assert locator.net is not None
    small = [shrunk(picture, (12, 16)) for picture in (*film, behind)]
    foreground = torch.stack(small[:-1]) - small[-1]
    np.testing.assert_allclose(
        found["centroid"], locator.net(foreground).centroid.detach(), atol=0.01
    )


def shrunk(picture: Pixels, size: tuple[int, int]) -> Tensor:
    planes = [cv2.resize(plane, size[::-1], interpolation=cv2.INTER_AREA) for plane in picture]
    return torch.from_numpy(np.stack(planes)) / 255


def test_onnx_accepts_any_size_and_a_frame_without_foreground(
    locator: Plan, located: Callable[..., Outputs]
) -> None:
    frames = ball(5, 90, 120)[0].transpose(0, 3, 1, 2).copy()
    for number in (1, 5):
        found = located(frames=frames[:number], backdrop=frames[0])
        assert found["mask"].shape == (number, 12, 16)
        assert all(np.isfinite(values).all() for values in found.values())
        expected = network_graph(locator).module(*map(torch.from_numpy, (frames, frames[0])))
        for values, same in zip(found.values(), expected, strict=True):
            np.testing.assert_allclose(values, same[:number].detach(), atol=1e-4)
    assert found["confidence"][0] < 0.5  # nothing moves


def test_watching_continues_from_its_state(tmp_path: Path) -> None:
    video = write_ball(tmp_path / "ball.mp4", 40, 48, 64)
    roi = Rectangle(10, 8, 48, 36)
    for _ in ul.watch(video, roi=roi, folder=tmp_path / "run"):
        pass
    run = load_plan(tmp_path / "run", "cpu")
    write_onnx(run, tmp_path / "watch.onnx")
    compute = opened(tmp_path / "watch.onnx")
    watcher = Watcher(run.config, 3, (36, 48))
    watcher.net.load_state_dict(run.net.state_dict())  # type: ignore[union-attr]
    watcher.learning = False
    watcher.net.eval()
    backdrop, count = np.zeros((3, 36, 48), np.float32), np.array(0)
    for frame in frames_of(video):
        values, mask = watcher.see(torch.from_numpy(frame[:, 8:44, 10:58].copy()))
        found = compute(frame=frame, backdrop=backdrop, count=count)
        backdrop, count = found["next_backdrop"], found["next_count"]
        [place] = roi.fit(48, 64).place(np.array([values[:2]]))
        np.testing.assert_allclose(found["centroid"], place, atol=1e-4)
        np.testing.assert_allclose(found["confidence"], values[2], atol=1e-4)
        assert mask is not None
        np.testing.assert_allclose(255 * found["mask"], mask, atol=0.51)
    assert count == 40


@pytest.mark.usefixtures("located")
def test_files_do_not_contain_paths(onnx_file: Path) -> None:
    import onnx

    content = onnx_file.read_bytes()
    assert b".py" not in content
    onnx.checker.check_model(onnx.load_from_string(content), full_check=True)


@pytest.mark.parametrize("grey", [False, True])
def test_preprocessing_resizes_by_area(grey: bool) -> None:
    frames = ball(2, 54, 70)[0].transpose(0, 3, 1, 2).copy()
    small = 255 * Preprocess((12, 16), grey)(torch.from_numpy(frames))
    expected = 255 * torch.stack([shrunk(frame, (12, 16)) for frame in frames])
    if grey:
        expected = torch.einsum("tchw,c->thw", expected, torch.tensor(LUMA))[:, None]
    assert (small - expected).abs().max() <= 0.51  # OpenCV rounds to whole levels


def test_positions_in_a_region_are_those_in_the_frame(locator: Plan, film: Pixels) -> None:
    inside = np.zeros(BALL, bool)
    inside[5:27, 6:36] = True
    inside[5:9, 6:10] = False
    frames = torch.from_numpy(film)
    inputs = frames, torch.from_numpy(median(film))
    for roi in (Rectangle(6, 5, 30, 22), MaskRegion.from_array(inside)):
        cut = roi.fit(*BALL)
        part = replace(locator, reading=replace(locator.reading, roi=roi))
        graph = network_graph(part)
        _, found, _ = graph.module(*inputs)
        pictures = [
            torch.from_numpy(cut.fill(cut.crop(x.permute(1, 2, 0).numpy()))).permute(2, 0, 1)
            for x in (*frames, inputs[1])
        ]
        _, within, _ = network_graph(locator).module(torch.stack(pictures[:-1]), pictures[-1])
        np.testing.assert_allclose(found.detach(), cut.place(within.detach().numpy()), atol=1e-5)
        assert len(graph.dynamic["frames"]) == (3 if isinstance(roi, Rectangle) else 1)


@pytest.mark.data
def test_real_frames_at_their_own_size(locator: Plan, located: Callable[..., Outputs]) -> None:
    frames = read_all(find_sources([str(MOUSE)])[0], Reading(stride=100, max_frames=8)).frames
    behind = frames.median(0).values
    found = located(frames=frames.numpy(), backdrop=behind.numpy())
    for values, same in zip(
        found.values(), network_graph(locator).module(frames, behind), strict=True
    ):
        np.testing.assert_allclose(values, same.detach(), atol=1e-4)


def test_command_writes_codes_as_ul_apply(
    place: Path, tmp_path: Path, film: Pixels, here: UlCommand
) -> None:
    run = learn(str(place / "ball.mp4"), tmp_path / "codes", CODES, follow=False)
    both = ["--onnx", tmp_path / "net.onnx", "--torch-export", tmp_path / "net.pt2"]
    code, out, errors = here("export", run.folder, *both)
    assert (code, errors) == (0, "")
    assert out == f"wrote {tmp_path / 'net.onnx'}\nwrote {tmp_path / 'net.pt2'}\n"
    check_refused(here("export", run.folder, *both), "net.onnx", "--force")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["codes", "net.onnx", "net.pt2"]

    graph = network_graph(load_plan(run.folder, "cpu")).module
    frames = torch.from_numpy(film)
    found = opened(tmp_path / "net.onnx")(frames=film)["code"]
    np.testing.assert_allclose(found, graph(frames).detach(), atol=1e-4)
    [applied] = answers(run, find_sources(run.inputs)[0])
    # FFmpeg resizes brightness and colour of the frames of `ul apply` separately.
    assert all(np.corrcoef(found.T, applied.values.T)[[0, 1], [2, 3]] > 0.99)

    network = torch.export.load(tmp_path / "net.pt2").module()
    for some in (frames, frames[:1], frames[:, :, :30, :50]):
        torch.testing.assert_close(network(some), graph(some), atol=1e-5, rtol=0)


def test_a_run_that_follows_takes_crops(place: Path, tmp_path: Path, here: UlCommand) -> None:
    run = learn(str(place / "ball.mp4"), tmp_path / "codes", CODES, follow=True)
    _, out, _ = here("export", run.folder, "--torch-export", tmp_path / "net.pt2")
    assert "square crops" in out
    [applied] = answers(run, find_sources(run.inputs)[0])
    [piece] = run.pieces[find_sources(run.inputs)[0], run.reading_of(find_sources(run.inputs)[0])]
    network = torch.export.load(tmp_path / "net.pt2").module()
    found = network(piece.clip.frames).detach()  # nothing is resized
    np.testing.assert_allclose(found, applied.values, atol=1e-4)


def test_mistakes_are_refused(place: Path, tmp_path: Path, here: UlCommand) -> None:
    run, file = place / "run", tmp_path / "net.onnx"
    check_refused(here("export", run), "--onnx FILE or --torch-export FILE")
    check_refused(here("export", tmp_path, "--onnx", file), "is not a run")
    check_refused(here("export", run, "--onnx", tmp_path / "no" / "net"), "folder does not exist")
    check_refused(here("export", run, "--onnx", tmp_path), "is a folder")
    own = run / "config.json"
    check_refused(here("export", run, "--onnx", own, "--force"), "is a file of the run")
    check_refused(here("export", run, "--onnx", file, "--torch-export", file), "given twice")
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_has_not_ended_is_refused(place: Path, tmp_path: Path, here: UlCommand) -> None:
    (tmp_path / "run").mkdir()
    config = (place / "run" / "config.json").read_text()
    (tmp_path / "run" / "config.json").write_text(config.split('"result"')[0] + '"result": {}}')
    refused = here("export", tmp_path / "run", "--onnx", tmp_path / "net.onnx")
    check_refused(refused, "training has not finished", "--resume")


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_missing_packages_are_named(
    place: Path, tmp_path: Path, here: UlCommand, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    refused = here("export", place / "run", "--onnx", tmp_path / "net.onnx")
    check_refused(refused, package, "pip install 'ullayers[onnx]'")
    assert list(tmp_path.iterdir()) == []
