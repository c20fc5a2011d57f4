"""Written videos can be read back, and appear only when complete."""

from __future__ import annotations

import os
from pathlib import Path

import av
import pytest
import torch

from tests.video.samples import Pixels, level, pattern, read
from ullayers.video.clips import VideoError
from ullayers.video.files.writing import VideoWriter


@pytest.mark.parametrize("codec", ["libx264", "mpeg4"])
def test_written_and_read_back(tmp_path: Path, codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if codec == "mpeg4":
        monkeypatch.setattr(av, "codecs_available", {"mpeg4"})
    with VideoWriter(tmp_path / "a.mp4", fps=12.5) as writer:
        for number in range(20):
            picture = pattern(number, 47, 63)
            writer.write(picture if number % 2 else torch.from_numpy(picture).permute(2, 0, 1))
    clip = read(str(tmp_path / "a.mp4"))
    assert clip.frames.shape == (20, 3, 48, 64)
    assert level(clip) == list(range(20))
    torch.testing.assert_close(clip.seconds, torch.arange(20).double() / 12.5)
    assert os.listdir(tmp_path) == ["a.mp4"]


def fill(target: Path, frames: list[Pixels]) -> None:
    with VideoWriter(target) as writer:
        for frame in frames:
            writer.write(frame)
        assert len(os.listdir(target.parent)) == 2  # the old file and the unfinished one
        raise RuntimeError("stop")


def test_nothing_half_written(tmp_path: Path) -> None:
    target = tmp_path / "a.mp4"
    target.write_text("old")
    with pytest.raises(RuntimeError, match="stop"):
        fill(target, [pattern(number) for number in range(70)])
    with pytest.raises(ValueError, match=r"of shape \(48, 64, 3\)"):
        fill(target, [pattern(0), pattern(0, 20, 20)])
    with pytest.raises(RuntimeError, match="at once"), VideoWriter(target):
        raise RuntimeError("at once")
    with pytest.raises(VideoError, match="no frame was written"), VideoWriter(target):
        pass
    with pytest.raises(ValueError, match="uint8 RGB"), VideoWriter(target) as writer:
        writer.write(torch.zeros(3, 4, 4))
    assert os.listdir(tmp_path) == ["a.mp4"]
    assert target.read_text() == "old"
    with pytest.raises(VideoError, match="folder does not exist"):
        VideoWriter(tmp_path / "none/a.mp4")
    with pytest.raises(ValueError, match="frames per second, got 0"):
        VideoWriter(target, fps=0)
