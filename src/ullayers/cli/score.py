"""`ul score`: compare tracks with true positions."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

from ullayers.cli.messages import say
from ullayers.files import write_json
from ullayers.run.folder import check_files
from ullayers.tracks.corrections import read_corrections
from ullayers.tracks.scores import score_folder


def run(arguments: Namespace) -> None:
    """Print the scores, and write them if requested."""
    file = None if arguments.file is None else Path(arguments.file)
    if file is not None:
        check_files([file], [arguments.truth], arguments.run, arguments.force)
    score = score_folder(
        Path(arguments.run),
        Path(arguments.truth),
        sequence=arguments.sequence,
        within=arguments.within,
    )
    scores = vars(score)
    print(json.dumps(scores, indent=2) if arguments.json else table(scores))
    if count := len(read_corrections(Path(arguments.run)).applied):
        say("score", f"the original tracks are scored; corrections are not used ({count})")
    if file is not None:
        write_json(file, scores)


def table(scores: dict[str, Any]) -> str:
    """Return scores as text, one line each, without undefined ones.

    >>> print(table({"sequence": "a", "rule": "IoU", "frames": 10, "objects": 10, "found": 0.9}))
    sequence              a
    an object is found    IoU
    frames compared       10
    true positions        10
    found                 90.0 %
    """
    lines = [
        ("sequence", scores["sequence"]),
        ("an object is found", scores["rule"]),
        ("frames compared", f"{scores['frames']:,}"),
        ("true positions", f"{scores['objects']:,}"),
        ("found", f"{100 * scores['found']:.1f} %"),
    ]
    for name, title in (("median", "median distance"), ("p90", "90 % are within")):
        if (distance := scores.get(f"{name}_distance_px")) is not None:
            share = 100 * scores[f"{name}_distance_width"]
            lines.append((title, f"{distance:.2f} px, {share:.2f} % of the width"))
    for name, title, form in (
        ("idf1", "IDF1", ".3f"),
        ("mota", "MOTA", ".3f"),
        ("switches", "identity switches", ","),
        ("misses", "misses", ","),
        ("false_positives", "false positives", ","),
        ("median_heading_error_deg", "median heading error", ".1f"),
        ("p90_heading_error_deg", "90 % turned within", ".1f"),
        ("mean_iou", "mean IoU of masks", ".3f"),
    ):
        if scores.get(name) is not None:
            unit = " degrees" if name.endswith("deg") else ""
            lines.append((title, f"{scores[name]:{form}}{unit}"))
    return "\n".join(f"{title:<20}  {value}" for title, value in lines)
