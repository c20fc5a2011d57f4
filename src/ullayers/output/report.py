"""One page that shows a run: `report.html`, whole in itself, to look at and to send on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from numpy.typing import NDArray

import ullayers.output.charts as charts
from ullayers.learn.results import SURE, TRACK, Answer
from ullayers.output.overlay import draw_track
from ullayers.video.atomic_files import replacing

Pixels = NDArray[np.uint8]
Floats = NDArray[np.floating[Any]]

PANELS, PICTURES, LAYERS = 6, 12, 6  # shown at most
MINUS = "\N{MINUS SIGN}"


@dataclass(frozen=True)
class Sample:
    """One frame to show.

    Attributes:
        sequence: name of its source.
        seconds: its time.
        picture: (height, width, 3) uint8.
        mask: (h, w) in 0..1; None if there is none.
        values: (columns,) what was found in it.

    Example:
        >>> Sample("a", 0.5, np.zeros((48, 64, 3), np.uint8), None, np.array([1.0, 0.0])).seconds
        0.5
    """

    sequence: str
    seconds: float
    picture: Pixels
    mask: Floats | None
    values: Floats


@dataclass(frozen=True)
class Contents:
    """What a report shows; whatever is empty is left out.

    Attributes:
        title: the headline.
        config: the resolved configuration, flat or with one level of groups.
        records: of training: trial, step, kind, seed, objective, rank, features, seconds.
        winner: the trial that was kept.
        answers: what was found in all frames of all sequences.
        samples: frames to show.
        kernels: (out, in, height, width) weights by layer.
        maps: (channels, height, width) responses to `maps_picture` by layer.
        maps_picture: (height, width, 3) uint8.
        facts: headline numbers with what they are of.
        scores: against a truth.

    Example:
        >>> Contents("A pendulum", facts=[("frames", "10,000")]).facts
        [('frames', '10,000')]
    """

    title: str
    config: dict[str, Any] = field(default_factory=dict)
    records: list[dict[str, Any]] = field(default_factory=list)
    winner: int = 0
    answers: list[Answer] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    kernels: Mapping[str, Floats] = field(default_factory=dict)
    maps: Mapping[str, Floats] = field(default_factory=dict)
    maps_picture: Pixels | None = None
    facts: list[tuple[str, str]] = field(default_factory=list)
    scores: list[tuple[str, str]] = field(default_factory=list)

    @property
    def tracks(self) -> bool:
        """Whether places were looked for, and not a code."""
        return not self.answers or self.answers[0].columns == TRACK


def write_report(path: str | os.PathLike[str], contents: Contents) -> None:
    """Write the page, whole or not at all. A file overlay.mp4 in its folder is linked to.

    Example:
        >>> import tempfile
        >>> places = np.random.default_rng(0).random((50, 3))
        >>> answer = Answer("a", np.arange(50), np.arange(50) / 25, TRACK, places)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_report(f"{folder}/report.html", Contents("Dots", answers=[answer]))
        ...     "<h1>Dots</h1>" in Path(folder, "report.html").read_text(encoding="utf-8")
        True
    """
    with matplotlib.rc_context(charts.STYLE):
        page = _page(contents, (Path(path).parent / "overlay.mp4").is_file())
    with replacing(path) as file:
        file.write(page)


def _page(contents: Contents, video: bool) -> str:
    sections = [
        ("video", "Watch it", VIDEO if video else ""),
        ("samples", "Sample frames", _samples(contents)),
        ("time", "Over time", _over_time(contents)),
        ("scatter", "All frames at once", _scatter(contents)),
        ("training", "How it was learned", _training(contents)),
        ("kernels", "What the layers look for", _layers(contents)),
        ("config", "Settings", _config(contents.config)),
    ]
    sections = [section for section in sections if section[2]]
    links = "".join(f'<a href="#{name}">{heading}</a>' for name, heading, _ in sections)
    body = "".join(
        f'<section id="{name}"><h2>{heading}</h2>{html}</section>'
        for name, heading, html in sections
    )
    title, truth = escape(contents.title), "<p class='over'>Against the truth</p>"
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLESHEET}</style></head><body><header>"
        f"<p class='over'>ullayers report</p><h1>{title}</h1>{_cards('facts', contents.facts)}"
        f"{truth * bool(contents.scores)}{_cards('scores', contents.scores)}"
        f"<nav>{links}</nav></header><main>{body}</main></body></html>\n"
    )


def _cards(kind: str, entries: list[tuple[str, str]]) -> str:
    cards = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in entries
    )
    return f'<dl class="cards {kind}">{cards}</dl>' if cards else ""


def _note(*sentences: str) -> str:
    return f"<p class='note'>{' '.join(filter(None, sentences))}</p>"


def _figure(picture: str, *caption: str) -> str:
    words = "".join(f"<span>{escape(part)}</span>" for part in caption if part)
    return f"<figure>{picture}<figcaption>{words}</figcaption></figure>"


def _samples(contents: Contents) -> str:
    figures = ""
    for sample in contents.samples[:PICTURES]:
        shown = _drawn(sample) if contents.tracks else charts.sized(sample.picture)
        code = "" if contents.tracks else _numbers(sample.values)
        figures += _figure(charts.picture(shown), sample.sequence, code, f"{sample.seconds:.2f} s")
    words = TRACK_SAMPLES if contents.tracks else CODE_SAMPLES
    return f"<div class='samples'>{figures}</div>{_note(words)}" if figures else ""


def _numbers(values: Floats) -> str:
    parts = [f"{value:.2f}".replace("-", MINUS) for value in values[:3]]
    parts += ["\N{HORIZONTAL ELLIPSIS}"] if len(values) > 3 else []
    return f"({', '.join(parts)})"


def _drawn(sample: Sample) -> Pixels:
    """The picture with mask and dot, as the video has them."""
    masks = None
    if sample.mask is not None:
        masks = np.nan_to_num(255 * sample.mask[None]).clip(0, 255).round().astype(np.uint8)
    values, when = np.asarray(sample.values, np.float64)[None], np.array([sample.seconds])
    answer = Answer(sample.sequence, np.zeros(1, np.int64), when, TRACK, values, masks)
    return draw_track(charts.sized(sample.picture)[None], answer).squeeze(0)


def _over_time(contents: Contents) -> str:
    sequences = charts.by_sequence(contents.answers)
    shown = sequences[:PANELS]
    if not shown:
        return ""
    widths = {"": charts.NARROW}
    if odd := len(shown) % 2:  # two beside each other would leave a hole
        widths = {" class='wide'": charts.WIDE, " class='narrow'": charts.NARROW}
    figures = "".join(
        _figure(
            "".join(charts.course(a, width, name) for name, width in widths.items()), a.sequence
        )
        for a in shown
    )
    d, most, left = len(shown[0].columns), charts.NUMBERS, len(sequences) - len(shown)
    return f"<div class='titled {'' if odd else 'pair'}'>{figures}</div>" + _note(
        TRACK_COURSE if contents.tracks else CODE_COURSE,
        f"The first {most} of its {d} numbers are drawn." if d > most else "",
        f"{left:,} more sequences are left out here." if left else "",
    )


def _scatter(contents: Contents) -> str:
    answers = [answer for answer in contents.answers if len(answer.values)]
    chart = charts.scatter(answers, _aspect(contents)) if answers else ""
    if not chart:
        return ""
    d = len(answers[0].columns)
    words = TRACK_SCATTER if contents.tracks else CODE_COUNTS if d == 1 else CODE_SCATTER
    first = f"These are the first two of {d} numbers." if d > 2 and not contents.tracks else ""
    return f"<div class='aside'>{_figure(chart)}{_note(words, first)}</div>"


def _aspect(contents: Contents) -> float:
    """Height by width of the pictures."""
    pictures = [sample.picture for sample in contents.samples]
    pictures += [] if contents.maps_picture is None else [contents.maps_picture]
    return pictures[0].shape[0] / pictures[0].shape[1] if pictures else 1.0


def _training(contents: Contents) -> str:
    if not contents.records:
        return ""
    trials = len({record["trial"] for record in contents.records})
    kinds = len({record.get("kind") for record in contents.records})
    objective = charts.training(contents.records, contents.winner, "objective", "J")
    rank = charts.training(contents.records, contents.winner, "rank", "effective rank")
    kept = (
        f"Training was started {trials} times, each from other random weights; the bold line is "
        f"trial {contents.winner}, which had the lowest J and was kept."
    )
    dashes = ABOUT_KINDS if kinds > 1 else ""
    cells = [
        _figure(objective) + _note(ABOUT_J, kept if trials > 1 else "", dashes)
        if objective
        else _note(NO_J),
        _figure(rank) + _note(ABOUT_RANK) if rank else _note("No effective rank was recorded."),
    ]
    return f"<div class='pair'>{''.join(f'<div>{cell}</div>' for cell in cells)}</div>"


def _layers(contents: Contents) -> str:
    names = list(dict.fromkeys([*contents.kernels, *contents.maps]))
    names = [n for n in names if _size(contents.kernels, n) or _size(contents.maps, n)]
    if not names:
        return ""
    rows = "".join(
        f"<h3>{escape(name)}</h3><div class='pair'>{_kernel(contents, name)}{_map(contents, name)}"
        "</div>"
        for name in names[:LAYERS]
    )
    words = _note(ABOUT_KERNELS if contents.kernels else "", ABOUT_MAPS if contents.maps else "")
    if contents.maps_picture is not None and contents.maps:
        seen = charts.picture(charts.sized(contents.maps_picture))
        words = f"<div class='aside seen'>{_figure(seen, 'the frame shown to it')}{words}</div>"
    left = len(names) - LAYERS
    return words + rows + (_note(f"{left} more layers are left out here.") if left > 0 else "")


def _size(arrays: Mapping[str, Floats], name: str) -> int:
    return int(arrays[name].size) if name in arrays else 0


def _kernel(contents: Contents, name: str) -> str:
    if not _size(contents.kernels, name):
        return ""
    kernels = contents.kernels[name]
    outputs, inputs = _count(len(kernels), "output"), _count(kernels.shape[1], "input")
    words = f"{outputs} across, {inputs} down"
    if len(kernels) < kernels.shape[1]:
        words = f"{inputs} across, {outputs} down"
    if 1 in kernels.shape[:2]:
        words = f"{outputs}, {inputs}"
    return _figure(charts.kernel_sheet(kernels), f"kernels: {words}")


def _map(contents: Contents, name: str) -> str:
    if not _size(contents.maps, name):
        return ""
    maps = contents.maps[name]
    return _figure(charts.map_sheet(maps), f"responses: {_count(len(maps), 'channel')}")


def _count(total: int, what: str) -> str:
    some = f"{charts.CHANNELS} of {total}" if total > charts.CHANNELS else str(total)
    return f"{some} {what}{'s' * (total != 1)}"


def _config(config: dict[str, Any]) -> str:
    """A table of the single settings and one for each group."""
    groups = {"": {name: value for name, value in config.items() if not isinstance(value, dict)}}
    groups |= {name: value for name, value in config.items() if isinstance(value, dict)}
    tables = ""
    for group, entries in groups.items():
        rows = "".join(
            f"<tr><th>{escape(str(name))}</th><td>{escape(_text(value))}</td></tr>"
            for name, value in entries.items()
        )
        title = f"<caption>{escape(str(group))}</caption>" if group else ""
        tables += f"<table>{title}{rows}</table>" if rows else ""
    words = "Every setting of this run, those that were filled in for you included."
    return f"<div class='tables'>{tables}</div>{_note(words)}" if tables else ""


def _text(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "off" if value is None else "yes" if value else "no"
    return ", ".join(map(_text, value)) if isinstance(value, list | tuple) else str(value)


VIDEO = """<div class='aside film'><video controls preload="metadata" src="overlay.mp4"></video>
<p class='note'>This plays overlay.mp4 from the folder this page is in: keep the two together when
you send them on. Everything else is inside the page.</p></div>"""
TRACK_SAMPLES = """The outline is where the mask is at half its height, the dot its centre; a pale
dot is an unsure one. In a good run they sit on the same thing in every frame."""
CODE_SAMPLES = """Frames from all over the video, with the code that the network gives them. Frames
that look alike should have codes that are close."""
TRACK_COURSE = f"""Where the object is: x runs from 0 at the left edge to 1 at the right, y from 0
at the top to 1 at the bottom, drawn downwards as in the picture. Lines are faint where the
confidence is below {SURE}."""
CODE_COURSE = """The numbers of the code. They were learned to change little from one frame to the
next and much over the whole video; what hurries or stands still tells little."""
TRACK_SCATTER = """Every dot is a frame: where the object was, in a field of the picture's shape.
Early frames are blue, late ones orange, unsure ones faint. Paths that many frames share are where
the object tends to go; a single clump means that it stayed, or that something that does not move
was found."""
CODE_SCATTER = """Every dot is a frame, early ones blue and late ones orange. Look for a shape: what
turns makes a ring, what goes to and fro makes an arc, what wanders fills an area. A straight line
means that the two numbers say the same."""
CODE_COUNTS = """How many frames have each value of the code. A code that tells frames apart is
spread out; one that has collapsed piles up in one place."""
ABOUT_J = """J is low when the answer changes little within moments and much over the long run. It
should fall and level off; where its zero lies has no
meaning."""
ABOUT_KINDS = """Solid lines measure the long run within each clip, dashed ones over all of the
footage."""
NO_J = """No finite J was recorded: nothing moved in the video, or training ended before its first
report."""
ABOUT_RANK = """The collapse meter: in how many independent directions the answer varies over the
long run more than within moments. Near the dashed line every feature says something of its own;
well below it some repeat others or say nothing."""
ABOUT_KERNELS = """The weights of each layer, blue below zero and red above, on one scale for the
whole layer: stripes look for edges, blobs for spots, speckle for nothing in particular."""
ABOUT_MAPS = """The responses say how strongly each channel answers to the frame shown here, from
dark to bright, each on a scale of its own; a flat one does not respond."""
STYLESHEET = """
:root{color-scheme:light dark;--page:#fbfaf7;--ink:#22262d;--soft:#686e79;--line:#e3dfd7;
--card:#fff;--mark:#0b8578}
@media(prefers-color-scheme:dark){:root{--page:#14171b;--ink:#e7e4de;--soft:#9ba2ad;--line:#2c3139;
--card:#1b1f25;--mark:#45d0bf}}
*{box-sizing:border-box}html{scroll-behavior:smooth}
body{margin:0 auto;max-width:1100px;padding:56px 30px 80px;background:var(--page);color:var(--ink);
font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
h1,h2{font-family:"Iowan Old Style","Palatino Linotype",Palatino,"URW Palladio L",Georgia,serif;
font-weight:600;line-height:1.15;overflow-wrap:anywhere;text-wrap:balance}
h1{font-size:clamp(30px,5.5vw,50px);margin:0 0 32px;letter-spacing:-.015em}
h2{font-size:27px;margin:0 0 22px}h3{font-size:15px;margin:34px 0 12px;font-family:ui-monospace,
Menlo,Consolas,monospace;font-weight:600}
.over{margin:0 0 10px;color:var(--mark);font-size:13px;font-weight:600;letter-spacing:.04em}
.cards{display:flex;flex-wrap:wrap;gap:12px;margin:0 0 26px}
.cards div{flex:1 1 146px;max-width:340px;background:var(--card);border:1px solid
var(--line);border-radius:10px;padding:13px 15px;display:flex;
flex-direction:column-reverse;justify-content:flex-end}
dt{color:var(--soft);font-size:13.5px;line-height:1.35}dd{margin:0 0 2px;font-size:22px;
font-weight:600;letter-spacing:-.01em;overflow-wrap:anywhere;font-variant-numeric:tabular-nums}
.scores div{border-left:3px solid var(--mark)}
nav{display:flex;flex-wrap:wrap;gap:4px 22px;padding:12px 0;border-top:1px solid var(--line);
border-bottom:1px solid var(--line);font-size:14.5px}a{color:var(--mark);text-decoration:none}
a:hover{text-decoration:underline}section{padding:52px 0 0}
figure{margin:0;min-width:0;display:flex;flex-direction:column}svg,img,video{display:block;width:100%;height:auto;border-radius:6px}
svg{overflow:visible;border-radius:0}svg text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,
"Helvetica Neue",Arial,sans-serif!important}video{background:#000;max-width:720px}
figcaption{display:flex;flex-wrap:wrap;gap:0 14px;justify-content:space-between;padding:6px 2px 0;
font-size:13.5px;color:var(--soft);overflow-wrap:anywhere;font-variant-numeric:tabular-nums}
figcaption:empty{display:none}.titled figcaption{order:-1;padding:0 0 6px;color:var(--ink);
font-weight:600}.titled figure+figure{margin-top:26px}.titled.pair figure{margin:0}
.note{max-width:68ch;margin:18px 0 0;color:var(--soft);font-size:15px}
.samples{display:grid;grid-template-columns:repeat(auto-fill,minmax(225px,1fr));gap:20px 16px}
.pair{display:grid;grid-template-columns:1fr 1fr;gap:34px 40px;align-items:start}
.aside{display:grid;grid-template-columns:520px 1fr;gap:20px 44px;align-items:center}
.aside .note{margin:0}.seen{grid-template-columns:300px 1fr}.film{grid-template-columns:640px 1fr}
.narrow{display:none}
.pixels{image-rendering:pixelated;border-radius:0}.scale{display:flex;gap:8px;align-items:center;
margin:10px 0 0;font-size:12.5px;font-variant-numeric:tabular-nums}.scale i{width:120px;height:8px}
.tables{columns:2;column-gap:40px}table{width:100%;border-collapse:collapse;font-size:14px;
break-inside:avoid;margin:0 0 20px}caption{text-align:left;font-weight:600;padding:0 0 4px}
th,td{text-align:left;padding:5px 0;border-bottom:1px solid var(--line);vertical-align:top}
th{font-weight:400;color:var(--soft);padding-right:18px;width:45%}td{overflow-wrap:anywhere;
font-variant-numeric:tabular-nums}
@media(max-width:820px){body{padding:32px 18px 56px}.pair,.aside{grid-template-columns:
1fr}
.tables{columns:1}.wide{display:none}.narrow{display:block}.cards div{flex-basis:
128px;max-width:none}dd{font-size:20px}.samples{grid-template-columns:
repeat(auto-fill,minmax(165px,1fr));gap:14px 10px}}
@media print{:root{--page:#fff;--ink:#000;--soft:#444;--line:#ccc;--card:#fff;--mark:#06655b}
body{padding:0;max-width:none;font-size:11pt}nav,#video{display:none}section{padding-top:24pt}
figure,table,.cards div{break-inside:avoid}h2,h3{break-after:avoid}}
"""
