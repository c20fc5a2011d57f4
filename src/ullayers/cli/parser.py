"""Parser of the command line: commands, their options and help texts."""

from __future__ import annotations

import argparse
import os
import re
from typing import Any, NoReturn

from ullayers import __version__
from ullayers.cli.options import (
    add_command,
    add_config_option,
    add_general_options,
    add_measure_options,
    add_objects_option,
    add_out_option,
    add_part_options,
    add_reading_options,
    add_skip_bad_option,
    path,
    seconds,
    whole_number,
)
from ullayers.cli.result_parsers import add_export, add_score, add_studio

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
MASKS_HELP = """Also write a PNG file with the mask of each frame: black and white or, with several
objects, a palette image whose pixel values are object numbers."""
MAX_FRAMES_HELP = """Use only the first N frames of each input, from --start on, including those
that --stride skips. (default: all)"""

MOVED = {"reproduce": "python -m experiments", "bench": "python -m experiments.bench"}

TRAINING_SETTINGS = (
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
    add_export(commands)
    add_score(commands)
    add_studio(commands)
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
    add_general_options(parser, resume="Continue a demo that was stopped.")


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
    add_out_option(parser, "run", "RUN")
    parser.add_argument(
        "--corrections",
        type=path,
        metavar="RUN",
        help="Train again on the inputs of RUN with its settings, and with the positions corrected "
        "by the user (corrections.json in RUN). RUN is not changed.",
    )
    add_config_option(parser, "task")
    add_objects_option(parser, "auto")
    parser.add_argument("--masks", action="store_true", help=MASKS_HELP)
    add_skip_bad_option(parser)
    reading = add_reading_options(
        parser,
        stride="Train on every Nth frame; the table always has all frames. (default: about "
        "six frames per second of each input, or all frames of a short one)",
        max_frames=MAX_FRAMES_HELP,
    )
    reading.add_argument(
        "--follow",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="For orient and features: crop frames to a square around the moving object. Frames "
        "are then read at --size 128. (default: for orient, if the object covers less than half "
        "of the frame)",
    )
    add_measure_options(parser)
    _add_training_options(parser, "steps", "restarts", "long_mean")
    add_general_options(
        parser,
        resume="Continue the run in --out with its own inputs and options. For a finished "
        "run, only missing files are written, and new --zones or --mm-per-pixel are applied.",
    )


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
  ul apply run 'archive/**/*.mp4' --out found --skip-bad --ray""",
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
    parser.add_argument("--max-frames", type=whole_number, metavar="N", help=MAX_FRAMES_HELP)
    add_part_options(parser, roi="that of the run")
    add_objects_option(parser, "as for the run")
    masks = parser.add_mutually_exclusive_group()
    masks.add_argument("--masks", action="store_true", help=MASKS_HELP)
    masks.add_argument(
        "--soft-masks",
        action="store_true",
        help="The same with soft edges: grey values, 128 at the outline of the object. Not "
        "available for several objects.",
    )
    parser.add_argument(
        "--overlay", action="store_true", help="Also draw the result onto the video: overlay.mp4."
    )
    add_skip_bad_option(parser)
    parser.add_argument(
        "--ray",
        nargs="?",
        const="local",
        metavar="ADDRESS",
        help="Distribute the videos over a Ray cluster (HOST:PORT, ray://HOST:PORT, or auto); "
        "without an address, over the CPUs of this machine. Writes the same table, and Parquet "
        "files. "
        "Needs pip install 'ullayers[ray]'.",
    )
    add_measure_options(parser)
    add_general_options(parser, resume="Keep finished sequences and process the others.")


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
    add_config_option(
        parser,
        "task",
        choices=("locate", "orient"),
        text="What to learn. locate: position and mask of the moving object; orient: a code for "
        "the way it faces.",
    )
    add_objects_option(parser, "auto; 1: the main one, without the column object")
    add_reading_options(
        parser,
        stride="Use every Nth frame only. (default: 1)",
        max_frames="Stop after N frames, including those that --stride skips. With --resume, after "
        "N more.",
    )
    _add_training_options(parser)
    add_general_options(
        parser,
        resume="Continue from the last checkpoint in --out. A file or folder continues after the "
        "last frame used.",
    )


def _add_training_options(parser: argparse.ArgumentParser, *first: str) -> None:
    group = parser.add_argument_group("training")
    for name in (*first, *TRAINING_SETTINGS):
        add_config_option(group, name)
