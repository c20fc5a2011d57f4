"""Videos in many formats, to be read from the middle."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.packet import Packet

FRAMES = 200
GOP = 50
# File names, codecs and their options; every file has B frames if its codec knows them.
SEEKABLE = {
    "closed.mp4": ("libx264", {"x264-params": f"keyint={GOP}:bframes=3:b-pyramid=normal"}),
    "open.mp4": ("libx264", {"x264-params": f"keyint={GOP}:bframes=3:open-gop=1"}),
    "open.mkv": ("libx264", {"x264-params": f"keyint={GOP}:bframes=3:open-gop=1"}),
    "stream.ts": ("libx264", {"x264-params": f"keyint={GOP}:bframes=3"}),
    "open_hevc.mp4": (
        "libx265",
        {"x265-params": f"keyint={GOP}:bframes=4:open-gop=1:log-level=none"},
    ),
    "old.mpg": ("mpeg2video", {"bf": "2", "g": str(GOP)}),
    "old.avi": ("mpeg4", {"g": str(GOP)}),
    "plain.webm": ("libvpx", {"g": str(GOP)}),
    "newer.webm": ("libvpx-vp9", {"g": str(GOP), "deadline": "realtime", "cpu-used": "8"}),
}
UNSEEKABLE = {
    "one_key_frame.mp4": ("libx264", {"x264-params": "keyint=infinite:bframes=3"}),
    "refresh.mp4": ("libx264", {"x264-params": f"keyint={GOP}:intra-refresh=1"}),
    "guessed_times.avi": ("libx264", {"x264-params": f"keyint={GOP}:bframes=3"}),
    "no_times.h264": ("libx264", {"x264-params": f"keyint={GOP}:bframes=3"}),
}
# Made from the packets of the others: frames that are not shown, an edit list that skips the first
# frames, a beginning that needs frames before it, and empty chunks.
CHANGED = {
    "hidden_frames.webm": FRAMES - 4,
    "edited.mp4": FRAMES - 20,
    "open_start.mkv": 3 * GOP,
    "empty_chunks.avi": FRAMES - 4,
}


def write_moving(path: Path, codec: str, options: dict[str, str], frames: int = FRAMES) -> str:
    """Write a square that moves over noise, in every frame elsewhere."""
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream(codec, rate=25)
        stream.height, stream.width, stream.pix_fmt = 48, 64, "yuv420p"
        stream.options = options
        ground = np.random.default_rng(0).integers(0, 255, (48, 64, 3), dtype=np.uint8)
        for number in range(frames):
            picture = ground.copy()
            picture[10:20, number % 50 : number % 50 + 10] = 250, 30, number
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture)))
        container.mux(stream.encode())
    return str(path)


def write_films(folder: Path) -> Path:
    """Write a file of each kind."""
    for name, (codec, options) in (SEEKABLE | UNSEEKABLE).items():
        write_moving(folder / name, codec, options)
    copy(folder / "plain.webm", folder / "hidden_frames.webm", _hide_some)
    edited = {"avoid_negative_ts": "disabled", "use_editlist": "1"}
    copy(folder / "closed.mp4", folder / "edited.mp4", _earlier, **edited)
    copy(folder / "open.mp4", folder / "open_start.mkv", _from_second_key_frame)
    copy(folder / "old.avi", folder / "empty_chunks.avi", _drop_some)
    return folder


def copy(
    path: Path, out: Path, change: Callable[[int, Packet[Any]], Packet[Any] | None], **options: str
) -> None:
    """Copy the packets of a video, some of them changed or left out."""
    with av.open(str(path)) as old, av.open(str(out), "w", options=options) as new:
        stream = new.add_stream_from_template(old.streams.video[0])
        for number, packet in enumerate(old.demux(old.streams.video[0])):
            changed = change(number, packet) if packet.size else None
            if changed is not None:
                changed.stream = stream
                new.mux(changed)


def _hide_some(number: int, packet: Packet[Any]) -> Packet[Any]:
    """Clear the bit that shows a VP8 frame in every fiftieth packet."""
    if number % GOP != 20:
        return packet
    content = bytes(packet)
    hidden = Packet(bytes([content[0] & ~0x10]) + content[1:])
    hidden.pts, hidden.dts, hidden.time_base = packet.pts, packet.dts, packet.time_base
    return hidden


def _drop_some(number: int, packet: Packet[Any]) -> Packet[Any] | None:
    return None if number % GOP == 20 else packet


def _earlier(number: int, packet: Packet[Any]) -> Packet[Any]:
    assert packet.time_base is not None
    shift = round(Fraction(20, 25) / packet.time_base)
    assert packet.pts is not None
    assert packet.dts is not None
    packet.pts -= shift
    packet.dts -= shift
    return packet


def _from_second_key_frame(number: int, packet: Packet[Any]) -> Packet[Any] | None:
    return packet if number >= GOP - 2 else None
