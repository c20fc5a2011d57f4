"""`ul export`: write the tracks or the network of a run for other programs, or its report."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

from ullayers.cli.options import EVERY_FRAME
from ullayers.errors import Error
from ullayers.files import check_inside
from ullayers.run.folder import check_files
from ullayers.run.network import write_onnx, write_torch_export
from ullayers.run.plan import Plan, load_plan
from ullayers.run.reports import write_corrected_report
from ullayers.tracks.corrections import read_corrections
from ullayers.tracks.formats.write import plan_files, write_files

# Content of the file given by each option.
WRITERS: dict[str, Callable[[Plan, Path], None]] = {
    "onnx": write_onnx,
    "torch_export": write_torch_export,
    "report": write_corrected_report,
}


def run(arguments: Namespace) -> None:
    """Write all requested files."""
    networks = {name: Path(file) for name in WRITERS if (file := getattr(arguments, name))}
    if not networks and arguments.format is None:
        raise Error(
            "choose what to write: --format NAME, --report FILE, --onnx FILE or --torch-export FILE"
        )
    if arguments.format is None:
        _check_tracks_only(arguments)
    lines: list[str] = []
    if arguments.format is not None:
        lines += _write_tracks(arguments)
    if networks:
        lines += _write_networks(arguments, networks)
    if lines and not arguments.quiet:
        print("\n".join(lines))


def _check_tracks_only(arguments: Namespace) -> None:
    """Refuse options that belong to --format without it."""
    if arguments.file is not None:
        raise Error("--out is the file of --format; give the format")
    if arguments.sequence is not None or arguments.frames != EVERY_FRAME:
        raise Error("--sequence and --frames select what --format writes; give the format")


def _write_tracks(arguments: Namespace) -> list[str]:
    """Write the tracks; returns lines that say so."""
    folder = Path(arguments.run)
    out = None if arguments.file is None else Path(arguments.file)
    first, last = arguments.frames
    files = plan_files(
        folder, arguments.format, out, sequence=arguments.sequence, first=first, last=last
    )
    if out is None:
        check_inside(folder, files[0].path.parent)
        files[0].path.parent.mkdir(exist_ok=True)
    paths = [path for file in files for path in file.paths]
    check_files(paths, (), folder, arguments.force)
    write_files(arguments.format, files)
    count = len(read_corrections(folder).applied)
    note = f" with {count} correction{'s' * (count != 1)}" if count else ""
    return [f"wrote {path}{note}" for path in paths]


def _write_networks(arguments: Namespace, wanted: dict[str, Path]) -> list[str]:
    exported = load_plan(arguments.run, "cpu")
    _ = exported.outcome  # raises an error if training has not finished
    check_files(list(wanted.values()), (), exported.folder, arguments.force)
    for name, file in wanted.items():
        WRITERS[name](exported, file)
    lines = [f"wrote {file}" for file in wanted.values()]
    is_network = bool(wanted.keys() - {"report"})
    if is_network and exported.reading.follow:
        lines.append("this run follows the object: its frames are square crops around the object")
    return lines
