"""Boxes and masks as COCO JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ullayers.files import replacing
from ullayers.tracks.tracked_video import BoxedObject, TrackedVideo, boxed_objects

CATEGORY = 1


def write_coco(videos: Sequence[TrackedVideo], path: Path) -> None:
    """Write one COCO file for all videos, with `video_id` of images and `track_id` of objects."""
    content: dict[str, list[dict[str, Any]]] = {
        "videos": [],
        "images": [],
        "annotations": [],
        "categories": [{"id": CATEGORY, "name": "object"}],
    }
    for number, video in enumerate(videos, 1):
        size = {"width": video.width, "height": video.height}
        content["videos"].append({"id": number, "name": video.name, **size})
        images: dict[int, int] = {}
        for frame in video.frames.tolist():
            images[frame] = len(content["images"]) + 1
            content["images"].append(
                {
                    "id": images[frame],
                    "video_id": number,
                    "frame_id": frame,
                    "file_name": f"{video.name}/{frame:06d}.jpg",
                    **size,
                }
            )
        for item in boxed_objects(video):
            identity = {"id": len(content["annotations"]) + 1, "image_id": images[item.frame]}
            content["annotations"].append(identity | _annotation(item))
    with replacing(path) as file:
        json.dump(content, file)


def _annotation(item: BoxedObject) -> dict[str, Any]:
    about = {
        "category_id": CATEGORY,
        "track_id": item.object,
        "bbox": item.box.tolist(),
        "area": float(item.box[2:].prod()) if np.isnan(item.area) else item.area,
        "score": item.confidence,
        "iscrowd": 0,
    }
    return about if item.mask is None else about | {"segmentation": run_lengths(item.mask)}


def run_lengths(mask: NDArray[np.bool_]) -> dict[str, list[int]]:
    """Return the uncompressed run-length encoding of COCO: column by column, zeros first.

    >>> run_lengths(np.array([[False, True], [True, True]]))
    {'size': [2, 2], 'counts': [1, 3]}
    """
    pixels = np.concatenate([[False], mask.ravel(order="F")])
    changes = np.flatnonzero(pixels[1:] != pixels[:-1])
    counts = np.diff(np.concatenate([[0], changes, [mask.size]]))
    return {"size": list(mask.shape), "counts": counts.tolist()}
