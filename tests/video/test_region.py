"""Regions of interest: what is read of them, and that nothing outside them matters."""

from __future__ import annotations

import struct
import threading
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import ullayers.video.camera.capture as capture
from tests.films import write_film, write_pictures
from tests.video.samples import read, write_video
from ullayers.video.camera.capture import read_camera
from ullayers.video.clips import Reading, VideoError
from ullayers.video.files.images import read_mask
from ullayers.video.region import MaskRegion, Rectangle, RegionError

HEIGHT, WIDTH = 48, 64


def disc(height: int = HEIGHT, width: int = WIDTH) -> MaskRegion:
    y, x = np.mgrid[:height, :width] + 0.5
    inside = np.hypot(x / width - 0.5, (y - height / 2) / width) < 0.3
    return MaskRegion.from_array(inside)


def noise(count: int = 6, height: int = HEIGHT, width: int = WIDTH) -> np.ndarray:
    """Frames of large blocks, which survive compression."""
    blocks = np.random.default_rng(0).integers(0, 255, (count, height // 8, width // 8, 3))
    frames: np.ndarray = blocks.repeat(8, 1).repeat(8, 2).astype(np.uint8)
    return frames


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.float() - b.float()).abs().max())


@pytest.mark.parametrize("box", [(0, 0, 64, 48), (16, 8, 32, 24), (7, 5, 33, 27), (55, 39, 9, 9)])
def test_a_rectangle_is_the_part_of_the_whole(tmp_path: Path, box: tuple[int, ...]) -> None:
    x, y, width, height = box
    film = write_film(tmp_path / "a.mp4", noise())
    pictures = write_pictures(tmp_path / "in", noise())
    for path in (film, pictures):
        for grey in (False, True):
            whole = read(path, grey=grey).frames
            part = read(path, grey=grey, roi=Rectangle(x, y, width, height)).frames
            expected = whole[:, :, y : y + height, x : x + width]
            assert part.shape == expected.shape
            # The colours of a video are stored for pairs of pixels: at an odd edge they move by
            # half a pixel.
            if path == pictures or grey:
                assert torch.equal(part, expected)
            else:
                assert (part.float() - expected.float()).abs().mean() < 12


def test_the_region_is_resized_and_not_the_frame(tmp_path: Path) -> None:
    for path, least in (
        (write_film(tmp_path / "a.mp4", noise()), 6.0),
        (write_pictures(tmp_path / "in", noise()), 1.0),
    ):
        small = read(path, roi=Rectangle(16, 8, 32, 32), longest=16).frames
        assert small.shape == (6, 3, 16, 16)
        sharp = read(path, roi=Rectangle(16, 8, 32, 32)).frames
        mean = torch.nn.functional.avg_pool2d(sharp.float(), 2)
        assert (small.float() - mean).abs().mean() <= least
        assert read(path, roi=Rectangle(16, 8, 32, 32), size=(10, 30)).frames.shape[2:] == (10, 30)


@pytest.mark.parametrize(
    ("matrix", "turns"), [((0, 1, -1, 0), -1), ((-1, 0, 0, -1), 2), ((0, -1, 1, 0), 1)]
)
def test_a_region_of_a_turned_video(
    tmp_path: Path, matrix: tuple[int, int, int, int], turns: int
) -> None:
    path = write_film(tmp_path / "a.mp4", noise())
    data = bytearray(Path(path).read_bytes())
    numbers = [value << 16 for value in matrix]
    place = data.index(b"tkhd") + 4 + 40
    struct.pack_into(">9i", data, place, *numbers[:2], 0, *numbers[2:], 0, 0, 0, 1 << 30)
    Path(path).write_bytes(data)
    whole = read(path, grey=True).frames
    for roi in (Rectangle(8, 16, 24, 32), Rectangle(0, 0, 8, 48 if turns == 2 else 64)):
        part = read(path, grey=True, roi=roi).frames
        expected = whole[:, :, roi.y : roi.y + roi.height, roi.x : roi.x + roi.width]
        assert torch.equal(part, expected)
        assert read(path, roi=roi).frames.shape[2:] == expected.shape[2:]


def test_frames_that_change_size_keep_the_region_of_the_first(tmp_path: Path) -> None:
    small = Path(write_video(tmp_path / "a.mjpeg", 3, "mjpeg", pix_fmt="yuvj420p"))
    large = Path(write_video(tmp_path / "b.mjpeg", 3, "mjpeg", (96, 128), pix_fmt="yuvj420p"))
    small.write_bytes(small.read_bytes() + large.read_bytes())
    frames = read(str(small), roi=Rectangle(0, 0, 16, 12)).frames
    assert frames.shape == (6, 3, 12, 16)
    assert difference(frames[0], frames[3]) < 60, "the red square of both"


@pytest.mark.parametrize("kind", ["video", "pictures"])
@pytest.mark.parametrize("grey", [False, True])
def test_what_moves_outside_a_mask_leaves_no_trace(tmp_path: Path, kind: str, grey: bool) -> None:
    frames = np.full((5, HEIGHT, WIDTH, 3), 90, np.uint8)
    region = disc()
    outside = ~region.inside
    # Two pixels off, as a video stores colours for pairs of pixels.
    far = outside.copy()
    for shift in range(-2, 3):
        for axis in (0, 1):
            far &= np.roll(outside, shift, axis)
    frames[:, far] = np.random.default_rng(0).integers(0, 255, (5, int(far.sum()), 3))
    if kind == "video":
        with_noise = write_video_exactly(tmp_path / "a.mkv", frames)
    else:
        with_noise = write_pictures(tmp_path / "in", frames)
    for size in ({}, {"longest": 20}):
        clip = read(with_noise, grey=grey, roi=region, **size)
        assert difference(clip.frames[:1], clip.frames) == 0
        assert clip.frames[:, :, 0, 0].max() == 0, "a corner of the box"
        middle = clip.frames[..., clip.frames.shape[2] // 2, clip.frames.shape[3] // 2]
        assert abs(middle.float() - 90).max() <= 2


def write_video_exactly(path: Path, frames: np.ndarray) -> str:
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("ffv1", rate=25)
        stream.height, stream.width, stream.pix_fmt = HEIGHT, WIDTH, "yuv444p"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame)))
        container.mux(stream.encode())
    return str(path)


def test_a_camera(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read through OpenCV, from a capture that gives the same frame again and again."""
    frame = noise(1)[0]

    class Capture:
        def isOpened(self) -> bool:
            return True

        def grab(self) -> bool:
            return True

        def retrieve(self) -> tuple[bool, np.ndarray]:
            return True, frame[..., ::-1].copy()

        def release(self) -> None:
            pass

    monkeypatch.setattr(capture.load_cv2(), "VideoCapture", lambda *_: Capture())
    reading = Reading(roi=Rectangle(16, 8, 32, 24), max_frames=2)
    for pixels, _, _ in read_camera("0", reading, threading.Event()):
        assert np.array_equal(pixels.permute(1, 2, 0), frame[8:32, 16:48])
    reading = Reading(roi=disc(), max_frames=1)
    [(pixels, _, _)] = read_camera("0", reading, threading.Event())
    cut = disc().fit(HEIGHT, WIDTH)
    assert np.array_equal(pixels.permute(1, 2, 0), cut.fill(cut.crop(frame)))
    assert len(list(read_camera("0", Reading(end=0.05), threading.Event()))) > 0, "and it ends"


@given(
    x=st.integers(0, 56), y=st.integers(0, 40), width=st.integers(8, 64), height=st.integers(8, 48)
)
def test_positions_of_a_region_are_those_of_the_frame(
    x: int, y: int, width: int, height: int
) -> None:
    roi = Rectangle(x, y, width, height)
    if x + width > WIDTH or y + height > HEIGHT:
        with pytest.raises(RegionError, match=f"--roi {roi} does not fit into its frames of 64 x"):
            roi.fit(HEIGHT, WIDTH)
        return
    cut = roi.fit(HEIGHT, WIDTH)
    places = cut.place(np.array([[0.0, 0.0], [1.0, 1.0]])) * (WIDTH, HEIGHT)
    np.testing.assert_allclose(places, [[x, y], [x + width, y + height]], atol=1e-9)
    assert (cut.whole() == 255).sum() == width * height


def test_masks_are_resized_to_the_frames() -> None:
    region = disc()
    for scale in (1, 2, 5):
        cut = region.fit(HEIGHT * scale, WIDTH * scale)
        whole = cut.whole() == 255
        share = region.inside.mean()
        assert abs(whole.mean() - share) < 0.01
        assert np.array_equal(whole[::scale, ::scale], region.inside)
    assert region.fit(241, 320).frame == (241, 320), "a rounded size"
    with pytest.raises(RegionError, match="give a mask of the same aspect ratio"):
        region.fit(48, 80)


def test_regions_that_make_no_sense() -> None:
    for box in ((-1, 0, 9, 9), (0, 0, 7, 9), (0, 0, 9, 0)):
        with pytest.raises(RegionError, match="expected X,Y,W,H"):
            Rectangle(*box)
    for inside in (np.zeros((48, 64), bool), np.eye(5, 64, dtype=bool)):
        with pytest.raises(RegionError, match="white region of at least 8 x 8 pixels"):
            MaskRegion.from_array(inside)
    with pytest.raises(RegionError, match="smaller than 8 pixels in its frames"):
        disc(480, 640).fit(9, 12)


def test_mask_pictures(tmp_path: Path) -> None:
    region = disc()
    levels = np.where(region.inside, np.uint8(255), np.uint8(0))
    for name, picture in (
        ("a.png", Image.fromarray(levels)),
        ("b.png", Image.fromarray(region.inside)),
        ("c.bmp", Image.fromarray(levels).convert("RGB")),
        ("d.jpg", Image.fromarray(levels)),
    ):
        picture.save(tmp_path / name)
        assert read_mask(str(tmp_path / name)) == region
    Image.new("L", (64, 48)).save(tmp_path / "black.png")
    (tmp_path / "text.png").write_text("no picture")
    for name, words in (
        ("black.png", "white region"),
        ("text.png", "cannot be read as an image"),
        ("missing.png", "is neither X,Y,W,H, such as 100,50,640,480, nor a file"),
    ):
        with pytest.raises(VideoError, match=words):
            read_mask(str(tmp_path / name))


def test_pictures_of_several_sizes_have_no_region(tmp_path: Path) -> None:
    path = write_pictures(tmp_path / "in", [noise(1)[0], noise(1, 96, 128)[0]])
    assert len(read(path, size=(8, 8)).index) == 2
    with pytest.raises(VideoError, match="make them the same size, or leave out --roi"):
        read(path, size=(8, 8), roi=Rectangle(0, 0, 9, 9))


def test_a_region_that_does_not_fit_names_the_file(tmp_path: Path) -> None:
    for path in (
        write_film(tmp_path / "a.mp4", noise()),
        write_pictures(tmp_path / "in", noise()),
    ):
        with pytest.raises(VideoError, match=f"{path}.*: --roi 60,0,9,9 does not fit"):
            read(path, roi=Rectangle(60, 0, 9, 9))
