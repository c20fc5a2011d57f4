"""Small videos and image folders whose frames show their own numbers."""

from __future__ import annotations

import threading
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from PIL import Image

from ullayers.video.clips import Clip, Reading
from ullayers.video.sources import find_sources, read_all

Pixels = np.ndarray[Any, np.dtype[np.uint8]]


def pattern(number: int, height: int = 48, width: int = 64) -> Pixels:
    """A grey level that encodes the frame's number, and a bright square at the top left."""
    picture = np.full((height, width, 3), 20 + 3 * number, np.uint8)
    picture[: height // 4, : width // 4] = (250, 30, 30)
    return picture


def level(clip: Clip) -> list[int]:
    """The numbers that `pattern` has drawn, read back from the bottom right corners."""
    corner = clip.frames[:, :, -4:, -4:].double().mean((1, 2, 3))
    return [round((float(value) - 20) / 3) for value in corner]


def write_video(
    path: Path,
    count: int = 30,
    codec: str = "libx264",
    size: tuple[int, int] = (48, 64),
    pts: list[int] | None = None,
    pix_fmt: str = "yuv420p",
    **options: str,
) -> str:
    with av.open(str(path), "w", options=options) as container:
        stream: Any = container.add_stream(codec, rate=25)
        stream.height, stream.width = size
        stream.pix_fmt = pix_fmt
        if codec == "mpeg4":  # its default rate loses the levels that number the frames
            stream.options = {"flags": "+qscale", "global_quality": "236"}
        if pts:
            stream.time_base = stream.codec_context.time_base = Fraction(1, 1000)
        for number in range(count):
            frame = av.VideoFrame.from_ndarray(pattern(number, *size))
            if pts:
                frame.pts, frame.time_base = pts[number], Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return str(path)


def write_noise(path: Path, **options: str) -> str:
    """Frames that do not compress, so that a cut in bytes is a cut in frames."""
    random = np.random.default_rng(0)
    with av.open(str(path), "w", options=options) as container:
        stream: Any = container.add_stream("libx264", rate=25)
        stream.height, stream.width, stream.pix_fmt = 48, 64, "yuv420p"
        for _ in range(60):
            noise = random.integers(0, 255, (48, 64, 3), dtype=np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(noise)))
        container.mux(stream.encode())
    return str(path)


def write_images(folder: Path, count: int = 12, suffix: str = "png") -> str:
    folder.mkdir(parents=True)
    for number in range(count):
        Image.fromarray(pattern(number)).save(folder / f"img{number}.{suffix}")
    return str(folder)


def text_file(path: Path) -> None:
    path.write_text("some text, not a video\n" * 100)


def cut(path: str, share: float) -> None:
    data = Path(path).read_bytes()
    Path(path).write_bytes(data[: int(len(data) * share)])


def read(path: str, **how: Any) -> Clip:
    [source] = find_sources([path])
    return read_all(source, Reading(**how))


def readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("ullayers-")]
