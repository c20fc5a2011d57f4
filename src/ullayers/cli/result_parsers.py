"""Parsers of the commands that use finished results: `ul export`, `ul score` and `ul studio`."""

from __future__ import annotations

from typing import Any

from ullayers.cli.options import (
    EVERY_FRAME,
    add_command,
    add_out_option,
    frame_range,
    path,
    pixels,
    whole_number,
)
from ullayers.tracks.formats.names import FORMATS

EXPORT = """\
Write tracks in the format of another program (--format):
  movement   netCDF of the package movement     sleap    .slp of SLEAP
  dlc        CSV of DeepLabCut                  nwb      NWB with ndx-pose
  mot        text of MOTChallenge: boxes        coco     COCO JSON: boxes, masks
  napari     CSV of a tracks layer              parquet  all columns
  csv        like tracks.csv
Corrections (corrections.json in RUN) are applied; tracks.csv is not changed.
docs/formats.md describes each format.

Or write the network of a run with its preprocessing (--onnx, --torch-export). It
takes uint8 RGB frames of any size, (time, 3, height, width), or one frame for
a run of `ul watch`:
  locate            frames, backdrop -> mask, centroid, confidence
  orient, features  frames -> code
  watch, locate     frame, backdrop, count -> mask, centroid, confidence,
                    next_backdrop, next_count
The backdrop is the scene without the object. The rest of `ul apply` (optical
flow, consensus over the video, outlines) is not in the file; see docs/pytorch.md."""

SCORE = """\
Compare tracks.csv with true positions. TRUTH is one of:
  .slp               SLEAP: the mean of the visible points of each instance
  .csv, .h5          DeepLabCut, one or several animals: the same
  .txt               MOTChallenge: boxes, frames from 1
  .csv               columns frame and x, y in pixels, or left, top, width, height;
                     optionally heading, and animal, object, person or id
  tracks.csv         of another run
  folder             masks, one PNG per frame, such as 000012.png
The comparison uses all processed frames of the truth; positions with a
confidence below 0.5 count as not found. docs/formats.md explains the scores."""


def add_export(commands: Any) -> None:
    """Add `ul export`.

    Args:
        commands: Commands of the main parser.
    """
    parser = add_command(
        commands,
        "export",
        help="write tracks or a network for other programs: SLEAP, DeepLabCut, ONNX, ...",
        description=EXPORT,
        examples="""\
  ul export run --format sleap
  ul export found --format mot --out mouse.txt
  ul export run --report corrected.html
  ul export run --onnx beetle.onnx
  ul export run --torch-export beetle.pt2""",
    )
    parser.add_argument(
        "run",
        type=path,
        metavar="RUN",
        help="Folder written by `ul learn`; for --format also by `ul apply`, for a network also "
        "by `ul watch`.",
    )
    parser.add_argument("--format", choices=FORMATS, help="Write the tracks in this format.")
    parser.add_argument(
        "--out",
        dest="file",
        type=path,
        metavar="FILE",
        help="File for --format, or an existing folder. If a format holds one video and there are "
        "several, their names are added to the name of the file. (default: named after the video, "
        "in RUN/export)",
    )
    parser.add_argument(
        "--sequence", type=path, metavar="NAME", help="Write only this video. (default: all)"
    )
    parser.add_argument(
        "--frames",
        type=frame_range,
        default=EVERY_FRAME,
        metavar="FIRST:LAST",
        help="Write only these frames, including both ends; either may be left out. (default: all)",
    )
    parser.add_argument(
        "--report",
        type=path,
        metavar="FILE",
        help="Write the report (HTML) again, with the corrections of RUN/corrections.json.",
    )
    parser.add_argument(
        "--onnx",
        type=path,
        metavar="FILE",
        help="Write an ONNX file and compare it with PyTorch (pip install 'ullayers[onnx]').",
    )
    parser.add_argument(
        "--torch-export", type=path, metavar="FILE", help="Write a file for torch.export.load."
    )
    parser.add_argument("--quiet", action="store_true", help="Do not list the files written.")
    parser.add_argument("--force", action="store_true", help="Replace existing files.")
    parser.set_defaults(out=None, resume=False)


def add_score(commands: Any) -> None:
    """Add `ul score`.

    Args:
        commands: Commands of the main parser.
    """
    parser = add_command(
        commands,
        "score",
        help="compare tracks with true positions: distances, IDF1, MOTA",
        description=SCORE,
        examples="""\
  ul score run truth.csv
  ul score run labels.slp --within 10
  ul score found gt.txt --sequence day2 --out score.json""",
    )
    parser.add_argument(
        "run", type=path, metavar="RUN", help="Folder written by `ul learn` or `ul apply`."
    )
    parser.add_argument("truth", type=path, metavar="TRUTH", help="True positions, as above.")
    parser.add_argument(
        "--sequence",
        type=path,
        metavar="NAME",
        help="The video that the truth belongs to, if RUN has several.",
    )
    parser.add_argument(
        "--within",
        type=pixels,
        metavar="PX",
        help="An object is found if it is at most this far from its true position. (default: boxes "
        "and masks must overlap with an IoU of at least 0.5 if both sides have them; otherwise "
        "half of the median body length, or 5 %% of the frame width if the length is unknown)",
    )
    parser.add_argument("--json", action="store_true", help="Print JSON instead of a table.")
    parser.add_argument(
        "--out", dest="file", type=path, metavar="FILE", help="Also write the scores as JSON."
    )
    parser.add_argument("--force", action="store_true", help="Replace an existing file.")
    parser.set_defaults(out=None, resume=False)


def add_studio(commands: Any) -> None:
    """Add `ul studio`."""
    parser = add_command(
        commands,
        "studio",
        help="learn, inspect, correct and export in a browser",
        description="""\
Serve a page on this computer: load videos, watch a network learn from them,
inspect the results frame by frame, correct them and export them. Prints the URL,
and opens it if there is a display. Training continues if the page is closed or
the server stops. All files are in --out.""",
        examples="""\
  ul studio                       start empty; upload videos on the page
  ul studio mouse.mp4 day2/       open videos and folders
  ul studio run                   inspect a finished run and correct it
  ul studio --host 0.0.0.0        allow other computers; they need the URL
                                  with its token""",
    )
    parser.add_argument(
        "inputs",
        nargs="*",
        type=path,
        metavar="VIDEO|FOLDER|RUN|CAMERA",
        help="Videos, folders of videos or images, run folders, and cameras of this computer.",
    )
    add_out_option(parser, "studio", "DIR")
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="Address to listen on. (default: %(default)s, this computer only)",
    )
    parser.add_argument(
        "--port",
        type=whole_number,
        metavar="N",
        help="Port to listen on. (default: the first free one from 8420 upwards)",
    )
    parser.add_argument(
        "--no-browser", action="store_true", help="Print the URL without opening it."
    )
    parser.add_argument("--quiet", action="store_true", help="Print nothing.")
