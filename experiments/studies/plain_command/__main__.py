"""Entry point: runs the data sets and prints a table; see the package."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from .command import CommandError, Finished, read_summary, read_tracks, ul, ul_or_fail
from .data_sets import SETS, DataSet, Film, prepared, walk_variants, write_empty_films
from .mog2 import best_of_mog2
from .scores import Masks, Track, all_errors, calibration

NOTHING = "nothing"
USER_ERROR = 2  # exit code of `ul`: here it says that nothing moves
GOALS = {"confident frames that are right": 0.95}  # the least that is acceptable

Scores = dict[str, float]
Row = dict[str, Any]


def main() -> None:
    arguments = parse()
    data = Path(os.environ["ULLAYERS_DATA"])
    inputs = arguments.out / "inputs"
    rows: list[Row] = []
    for data_set in chosen_sets(arguments, data, inputs):
        rows.append(run_seeds(data_set, arguments.out, arguments.seeds))
        if not data_set.name.startswith("walk, "):
            rows[-1]["mog2"] = cached_mog2(data_set, arguments.out / "mog2.json")
        report(rows[-1])
        save(arguments.json, rows)
    if NOTHING in arguments.only:
        rows.append(run_nothing(arguments.out, arguments.seeds))
        report(rows[-1])
        save(arguments.json, rows)
    print(table(rows))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m experiments.studies.plain_command")
    names = ", ".join([*SETS, NOTHING])
    parser.add_argument(
        "--only",
        nargs="+",
        default=[*SETS, NOTHING],
        metavar="NAME",
        help=f"some of {names}; davis/NAME for one of its sequences (default: all)",
    )
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="(default: 1)")
    parser.add_argument(
        "--invariance", action="store_true", help="also run changed versions of walk"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all scores to a file")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("experiments/out/plain_command"),
        metavar="DIR",
        help="inputs, run folders and the scores of MOG2 (default: experiments/out/plain_command)",
    )
    arguments = parser.parse_args()
    for name in arguments.only:
        if name.split("/")[0] not in (*SETS, NOTHING):
            parser.error(f"{name}: is not one of {names}")
    if "ULLAYERS_DATA" not in os.environ:
        parser.error("set ULLAYERS_DATA to the folder of the data sets")
    return arguments


def chosen_sets(arguments: argparse.Namespace, data: Path, inputs: Path) -> Iterator[DataSet]:
    for name in arguments.only:
        set_name, _, sequence = name.partition("/")
        if set_name == NOTHING:
            continue
        data_set = SETS[set_name](data, inputs)
        yield only_film(data_set, name, sequence) if sequence else data_set
    if arguments.invariance:
        yield from walk_variants(data, inputs)


def only_film(data_set: DataSet, name: str, sequence: str) -> DataSet:
    films = [film for film in data_set.films if film.name == sequence]
    if not films:
        raise SystemExit(f"{name}: there is no such sequence")
    return replace(data_set, name=name, films=films, inputs=[film.source for film in films])


def run_seeds(data_set: DataSet, out: Path, seeds: int) -> Row:
    runs = []
    for seed in range(seeds):
        place = out / "runs" / data_set.name.replace(" ", "_") / f"seed{seed}"
        try:
            runs.append(run(data_set, place, seed))
        except CommandError as error:
            return {"set": data_set.name, "failed": f"seed {seed}: {error}"}
    return {"set": data_set.name, "seeds": runs}


def run(data_set: DataSet, place: Path, seed: int) -> Row:
    """Run the command on every input, and score its tracks and masks."""
    tracks: dict[str, Track] = {}
    details: dict[str, Row] = {film.name: {} for film in data_set.films}
    finished: list[Finished] = []
    for source in data_set.inputs:
        folder = place / source.stem
        options = (*data_set.options, "--seed", str(seed))
        finished.append(ul_or_fail("learn", source, "--out", folder, *options))
        if data_set.apply_to:
            learned, folder = folder, place / "applied"
            finished.append(ul_or_fail("apply", learned, data_set.apply_to, "--out", folder))
        found = read_tracks(folder)
        tracks |= found
        if len(found) == 1:
            details[next(iter(found))]["seconds"] = finished[-1].seconds
        if "--masks" in data_set.options:
            for name, overlap in mean_overlaps(data_set.films, folder).items():
                details[name]["IoU of masks"] = overlap
    check_complete(data_set.films, tracks)
    scores = score_tracks(data_set, [tracks[film.name] for film in data_set.films])
    if "--masks" in data_set.options:
        overlaps = [detail["IoU of masks"] for detail in details.values()]
        scores["IoU of masks"] = float(np.mean(overlaps))
    for film in data_set.films:
        details[film.name] |= details_of(data_set, film, tracks[film.name])
    return {"scores": scores | costs(finished), "films": details}


def check_complete(films: list[Film], tracks: dict[str, Track]) -> None:
    """Fail unless every frame has a row; several objects need not be there all the time."""
    for film in films:
        track = tracks.get(film.name)
        rows = 0 if track is None else len(track.frames)
        if rows != len(film.truth) and (track is None or track.objects == 1):
            raise CommandError(f"{film.name}: expected {len(film.truth)} rows, got {rows}")


def score_tracks(data_set: DataSet, tracks: list[Track]) -> Scores:
    truths = [film.truth for film in data_set.films]
    confidence = np.concatenate([track.confidence for track in tracks])
    errors = all_errors(truths, tracks)
    return data_set.score(truths, tracks) | calibration(errors, confidence)


def details_of(data_set: DataSet, film: Film, track: Track) -> Row:
    if len(data_set.films) == 1 or data_set.name == "pillow":  # throws are too short
        return {}
    return score_tracks(replace(data_set, films=[film]), [track])


def mean_overlaps(films: list[Film], folder: Path) -> dict[str, float]:
    return {
        film.name: float(film.truth.overlaps(folder / "masks" / film.name).mean())
        for film in films
        if isinstance(film.truth, Masks) and (folder / "masks" / film.name).exists()
    }


def costs(finished: list[Finished]) -> Scores:
    return {
        "seconds": sum(one.seconds for one in finished),
        "CPU seconds": sum(one.cpu_seconds for one in finished),
        "peak memory, MiB": max(one.peak_mib for one in finished),
    }


def run_nothing(out: Path, seeds: int) -> Row:
    """Count the films without an object whose result is trusted."""

    def write(folder: Path) -> None:
        write_empty_films(folder)

    films = sorted(prepared(out / "inputs" / NOTHING, write).glob("*.mp4"))
    runs = []
    for seed in range(seeds):
        details: dict[str, Row] = {}
        for film in films:
            folder = out / "runs" / NOTHING / f"seed{seed}" / film.stem
            finished = ul("learn", film, "--out", folder, "--seed", str(seed))
            if finished.code not in (0, USER_ERROR):
                raise SystemExit(f"{film}: exit code {finished.code}\n{finished.output}")
            trusted = finished.code == 0 and bool(read_summary(folder)["trusted"])
            details[film.stem] = {"trusted": trusted, "exit code": finished.code}
        count = float(sum(detail["trusted"] for detail in details.values()))
        runs.append({"scores": {"films that are trusted": count}, "films": details})
    return {"set": NOTHING, "seeds": runs}


def cached_mog2(data_set: DataSet, cache: Path) -> Row:
    if data_set.name not in (known := read_cache(cache)):
        result = best_of_mog2(data_set)
        # Read again: another process may have written in the meantime.
        known = read_cache(cache) | {data_set.name: result}
        cache.write_text(json.dumps(known, indent=2), encoding="utf-8")
    return known[data_set.name]


def read_cache(cache: Path) -> dict[str, Row]:
    known: dict[str, Row] = {}
    if cache.exists():
        known = json.loads(cache.read_text(encoding="utf-8"))
    return known


def report(row: Row) -> None:
    """Print a row to stderr, in short, as soon as it is known."""
    print(*table([row]).splitlines()[2:], sep="\n", file=sys.stderr, flush=True)


def save(path: Path | None, rows: list[Row]) -> None:
    if path:
        path.write_text(json.dumps(rows, indent=2), encoding="utf-8")


def table(rows: list[Row]) -> str:
    """Return a Markdown table; values that miss their goal are bold."""
    lines = ["| set | score | ul learn | MOG2 at its best |", "|---|---|---|---|"]
    for row in rows:
        if "failed" in row:
            lines.append(f"| {row['set']} | failed: {row['failed']} | | |")
            continue
        for name in row["seeds"][0]["scores"]:
            values = [one["scores"][name] for one in row["seeds"]]
            baseline = row.get("mog2", {}).get("scores", {}).get(name)
            cells = [row["set"], name, cell(name, values), number(baseline)]
            lines.append(f"| {' | '.join(cells)} |")
    variants = [row for row in rows if row["set"].startswith("walk") and "seeds" in row]
    if len(variants) > 1:
        r = [np.mean([one["scores"]["r of x"] for one in row["seeds"]]) for row in variants]
        lines.append(f"| walk, all versions | largest difference in r of x | {np.ptp(r):.4f} | |")
    return "\n".join(lines)


def cell(name: str, values: list[float]) -> str:
    text = number(float(np.mean(values)))
    if len(values) > 1:
        text += f" ({number(min(values))} to {number(max(values))})"
    return f"**{text}**" if min(values) < GOALS.get(name, -np.inf) else text


def number(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


if __name__ == "__main__":
    main()
