"""Image folders: pixel formats, orientation, sizes, images that cannot be used."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.video.samples import pattern, read, write_images
from ullayers.video.clips import VideoError
from ullayers.video.sources import find_sources


def test_pixel_formats(tmp_path: Path) -> None:
    grey = np.linspace(0, 65535, 48 * 64).reshape(48, 64).astype(np.uint16)
    Image.fromarray(grey).save(tmp_path / "1.png")
    Image.fromarray(pattern(1)).quantize(8).save(tmp_path / "2.png")
    clear = np.dstack([np.full((48, 64, 3), 200, np.uint8), np.zeros((48, 64), np.uint8)])
    clear[:, 32:, 3] = 255
    Image.fromarray(clear).save(tmp_path / "3.png")
    Image.fromarray(pattern(3)).convert("CMYK").save(tmp_path / "4.jpg")
    Image.fromarray(pattern(3)[:, :, 0] > 200).save(tmp_path / "5.tif")
    (tmp_path / "notes.txt").write_text("not an image")
    clip = read(str(tmp_path))
    assert clip.frames.shape == (5, 3, 48, 64)
    assert clip.frames[0, 0, -1, -1] == 255
    assert clip.frames[0, 0].double().mean() == pytest.approx(127.5, abs=0.5)
    assert clip.frames[1, :, -1, -1].tolist() == [23, 23, 23]
    assert clip.frames[2, :, 0, 0].tolist() == [0, 0, 0]
    assert clip.frames[2, :, 0, -1].tolist() == [200, 200, 200]
    assert set(clip.frames[4].unique().tolist()) == {0, 255}
    assert read(str(tmp_path), grey=True, size=(12, 16)).frames.shape == (5, 1, 12, 16)


@pytest.mark.parametrize("suffix", ["jpg", "png"])
def test_camera_orientation(tmp_path: Path, suffix: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held upright: turn the picture clockwise
    Image.fromarray(pattern(5)).save(tmp_path / f"1.{suffix}", exif=exif)
    clip = read(str(tmp_path))
    assert clip.frames.shape == (1, 3, 64, 48)
    assert clip.frames[0, 0, 4, -4] > 220  # the square went from the top left to the top right
    assert read(str(tmp_path), longest=32).frames.shape == (1, 3, 32, 24)
    info = find_sources([str(tmp_path)])[0].probe()
    assert (info.height, info.width) == (64, 48)


def test_images_of_two_sizes(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "a", 5)
    Image.new("RGB", (10, 20)).save(tmp_path / "a/img3.png")
    with pytest.raises(VideoError, match=r"img3.png: 10 x 20 pixels, but .*img0.png has 64 x 48"):
        read(folder)
    assert read(folder, size=(16, 16)).frames.shape == (5, 3, 16, 16)
    [source] = find_sources([folder])
    clips = source.clips(2)
    assert next(clips).index.tolist() == [0, 1]
    assert next(clips).index.tolist() == [2]
    with pytest.raises(VideoError, match="img3"):
        next(clips)


def test_bad_images(tmp_path: Path) -> None:
    page = Image.new("L", (4, 4))
    for name, message in {
        "a": "several pages",
        "b": "floating point",
        "c": "cannot be read",
    }.items():
        (tmp_path / name).mkdir()
        file = tmp_path / name / "1.tif"
        if name == "a":
            page.save(file, save_all=True, append_images=[page])
        elif name == "b":
            Image.fromarray(np.zeros((4, 4), np.float32)).save(file)
        else:
            file.write_text("not an image")
        with pytest.raises(VideoError, match=f"1.tif: .*{message}"):
            read(str(tmp_path / name))
