"""Parser of the command line: commands, their options and help texts."""

from __future__ import annotations

import argparse
import os
import re
from typing import Any, NoReturn

from ullayers import __version__
from ullayers.cli.options import (
    EVERY_FRAME,
    add_command,
    add_option,
    add_options,
    add_out_option,
    frame_range,
    part_number,
    path,
    pixels,
    seconds,
    whole_number,
)
from ullayers.tracks.formats.names import FORMATS

DESCRIPTION = """\
Learn from video without labels: where the moving object is, which way it faces,
or what changes slowly."""
EXAMPLES = """\
examples:
  ul demo                              try it on a synthetic video, in two minutes
  ul learn mouse.mp4 --out run         learn from a video; open run/report.html
  ul apply run other.mp4 --out found   use the result on another video
  ul watch 0                           learn live from the first camera
  ul studio mouse.mp4                  the same in a browser: learn, inspect, correct
  ul export run --format sleap         use the tracks in another program
  ul score run truth.csv               compare the tracks with true positions

`ul COMMAND --help` shows the options of a command."""

INPUTS_HELP = """Video files, folders of images (each folder is one sequence, sorted by name, 2
before 10), folders of such folders or of videos, quoted patterns such as 'day*/*.mp4' or
'archive/**/*.mp4', or URLs of videos such as s3://bucket/a.mp4, which may also be patterns."""

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

MOVED = {"reproduce": "python -m experiments", "bench": "python -m experiments.bench"}

WATCH_SETTINGS = (
    "outputs",
    "mu",
    "eps",
    "optimizer",
    "lr",
    "momentum",
    "weight_decay",
    "tolerance",
)


class Parser(argparse.ArgumentParser):
    """Argument parser that reports errors on one line."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Several numbers are no option either: --roi -5,0,64,48.
        self._negative_number_matcher = re.compile(r"-[\d.][\d.,]*$")

    def error(self, message: str) -> NoReturn:
        """Print the message and exit with code 2."""
        for name, program in MOVED.items():
            if message.startswith(f"argument COMMAND: invalid choice: {name!r}"):
                message = f"{name} is not installed any more; in the repository, run {program}"
        _, _, unknown = message.partition("unrecognized arguments: ")
        if any(os.path.exists(name) for name in unknown.split()):
            message += " (write ./-NAME for a file whose name begins with a dash)"
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def make_parser() -> Parser:
    """Return the parser; the name of the chosen command is in `command`."""
    parser = Parser(
        prog="ul",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"ullayers {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_demo(commands)
    _add_learn(commands)
    _add_apply(commands)
    _add_watch(commands)
    _add_export(commands)
    _add_score(commands)
    _add_studio(commands)
    return parser


def _add_demo(commands: Any) -> None:
    parser = add_command(
        commands,
        "demo",
        help="render a small video, learn from it, and score the result",
        description="""\
Render a video of a toy beetle that crawls over a cluttered table, with image
noise and a flickering lamp; learn from the pixels alone where the beetle is,
exactly as `ul learn` does; and compare with its true positions. Takes less than
two minutes. Open demo/run/report.html afterwards.""",
        examples="""\
  ul demo
  ul demo --out other --seed 1""",
    )
    add_out_option(parser, "demo", "DIR")
    add_options(parser, "general", resume={"text": "Continue a demo that was stopped."})


def _add_learn(commands: Any) -> None:
    parser = add_command(
        commands,
        "learn",
        help="learn from video; write a table, an overlay video and a report",
        description="""\
Train a network on the inputs and apply it to all their frames. Writes to --out:
  report.html   what was learned, and whether to trust it; open it first
  overlay.mp4   the result drawn onto the video
  tracks.csv    for --task locate: x, y (0 to 1, from the top left corner) and
                confidence in each frame, for each object if several move
  behaviour.csv for --task locate: distance, speed and more for each object
  codes.csv     for the other tasks: the code of each frame
  model.safetensors, config.json and more: the network, for `ul apply`""",
        examples="""\
  ul learn mouse.mp4 --out run
  ul learn 'day*/*.mp4' --skip-bad --out run
  ul learn heads/ --task orient --out turn
  ul learn day.mp4 --start 1:30 --end 12:00 --roi 100,50,640,480 --out arena
  ul learn --corrections run --out run2  train again, with corrections
  ul learn --resume --out run           continue a run that was stopped""",
    )
    parser.add_argument("inputs", nargs="*", type=path, metavar="INPUT", help=INPUTS_HELP)
    for title in ("", "reading", "measuring", "training", "general"):
        add_options(parser, title)


def _add_apply(commands: Any) -> None:
    parser = add_command(
        commands,
        "apply",
        help="apply a trained network to other video",
        description="""\
Apply the network of a run to new video and write tracks.csv or codes.csv, as
`ul learn` does, and behaviour.csv for tracks. Nothing is trained.""",
        examples="""\
  ul apply run tuesday.mp4 --out tuesday
  ul apply run videos/ --out found --overlay --skip-bad
  ul apply run day.mp4 --zones arena.json --mm-per-pixel 0.8 --out day
  ul apply run day.mp4 --start 1:00:00 --roi arena.png --out hour
  ul apply run 'archive/**/*.mp4' --out found --skip-bad --ray
  ul apply run videos/ --out found --part 3/20""",
    )
    parser.add_argument("run", type=path, metavar="RUN", help="Folder written by `ul learn`.")
    parser.add_argument("inputs", nargs="+", type=path, metavar="INPUT", help=INPUTS_HELP)
    add_out_option(parser, "applied", "DIR")
    parser.add_argument(
        "--stride",
        type=whole_number,
        default=1,
        metavar="N",
        help="Use every Nth frame only. (default: %(default)s)",
    )
    for name in ("max_frames", "start", "end"):
        add_option(parser, name)
    add_option(parser, "roi", default="that of the run")
    add_option(parser, "objects", default="as for the run")
    masks = parser.add_mutually_exclusive_group()
    add_option(masks, "masks")
    masks.add_argument(
        "--soft-masks",
        action="store_true",
        help="The same with soft edges: grey values, 128 at the outline of the object. Not "
        "available for several objects.",
    )
    parser.add_argument(
        "--overlay", action="store_true", help="Also draw the result onto the video: overlay.mp4."
    )
    add_option(parser, "skip_bad")
    parser.add_argument(
        "--ray",
        nargs="?",
        const="local",
        metavar="ADDRESS",
        help="Distribute the videos over a Ray cluster (HOST:PORT, ray://HOST:PORT, or auto); "
        "without an address, over the CPUs of this machine. The results are the same. "
        "Needs pip install 'ullayers[ray]'.",
    )
    parser.add_argument(
        "--part",
        type=part_number,
        metavar="K/N",
        help="Process only every Nth video, from the Kth on: start the same command with 1/N, 2/N, "
        "... on several machines that share --out. Whichever ends last joins the results; a "
        "command that was stopped is simply started again.",
    )
    add_options(parser, "measuring")
    resume = "Keep finished sequences and process the others."
    add_options(parser, "general", resume={"text": resume})


def _add_watch(commands: Any) -> None:
    parser = add_command(
        commands,
        "watch",
        help="learn while frames arrive, from a camera, a stream or a file",
        description="""\
Learn from each frame as it arrives, in constant memory, until the video ends or
you press Ctrl-C. Shows a live view on a terminal and prints CSV lines otherwise.""",
        examples="""\
  ul watch 0                              the first camera
  ul watch rtsp://door/hall --out hall    a network camera; save table and network
  ul watch 0 --objects 1                  the main object only, one row per frame
  ul watch day.mp4 > day.csv              a file
  ul watch 0 --roi 100,50,640,480         a part of the frames""",
    )
    parser.add_argument(
        "source",
        type=path,
        metavar="SOURCE",
        help="A camera (0, 1, /dev/video1), a URL, a video file or a folder of images.",
    )
    parser.add_argument(
        "--out", type=path, metavar="RUN", help="Save a table and the network in this folder."
    )
    parser.add_argument(
        "--every",
        type=seconds,
        default=60.0,
        metavar="S",
        help="Seconds between checkpoints in --out. (default: %(default)g)",
    )
    parser.add_argument("--lines", action="store_true", help="Print CSV lines even on a terminal.")
    add_option(
        parser,
        "task",
        choices=("locate", "orient"),
        text="What to learn. locate: position and mask of the moving object; orient: a code for "
        "the way it faces.",
    )
    add_option(parser, "objects", default="auto; 1: the main one, without the column object")
    reading = parser.add_argument_group("reading")
    for name in ("size", "start", "end", "roi", "grey"):
        add_option(reading, name)
    add_option(reading, "stride", text="Use every Nth frame only.", default="1")
    add_option(
        reading,
        "max_frames",
        text="Stop after N frames, including those that --stride skips. With --resume, after "
        "N more.",
    )
    training = parser.add_argument_group("training")
    for name in WATCH_SETTINGS:
        add_option(training, name)
    resume = (
        "Continue from the last checkpoint in --out. A file or folder continues after the last "
        "frame used."
    )
    add_options(parser, "general", resume={"text": resume})


def _add_export(commands: Any) -> None:
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


def _add_score(commands: Any) -> None:
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


def _add_studio(commands: Any) -> None:
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
