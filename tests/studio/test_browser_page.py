"""The page itself in a real browser: keyboard, phones, themes, names, contrast, hostile text."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.studio.browser import NARROW, NEXT_PAINT, LocalServer, OpenTab, Server, Tab
from tests.studio.numbered import OBJECTS, write_run

HOSTILE = '<img src=x onerror="window.injected=1"><script>window.injected=1</script>'
PANELS = ("library", "time", "watch", "objects", "export")
TABS = ("watch", "objects", "export")
NAMED = {
    *("button", "link", "textbox", "searchbox", "spinbutton", "combobox", "checkbox", "radio"),
    *("slider", "tab", "tabpanel", "img", "image", "meter", "progressbar", "dialog", "navigation"),
}

# Everything that can be used now, each with a number of its own.
USABLE = """() =>
  [...document.querySelectorAll("a[href], button, input, select, summary, [tabindex]")]
  .filter((e) => e.checkVisibility() && !e.disabled && e.tabIndex >= 0)
  .filter((e) => e.type !== "radio" || e.checked)
  .map((e, place) => (e.dataset.place = place))"""
FOCUSED = """() => {
  const e = document.activeElement;
  if (e === document.body) return null;
  const style = getComputedStyle(e);
  const ring = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0;
  return {place: Number(e.dataset.place ?? -1), ring, text: e.outerHTML.slice(0, 90)};
}"""

# Texts that are shown, with their contrast to the first opaque background behind them.
CONTRASTS = """() => {
  const channels = (text) => {
    const numbers = text.match(/[\\d.]+/g).map(Number);
    return text.startsWith("color(") ? [...numbers.slice(0, 3).map((v) => 255 * v), numbers[3] ?? 1]
      : [...numbers.slice(0, 3), numbers[3] ?? 1];
  };
  const over = ([r, g, b, a], below) =>
    [r, g, b].map((value, i) => a * value + (1 - a) * below[i]);
  const background = (e) => {
    if (!e) return [255, 255, 255];
    const own = channels(getComputedStyle(e).backgroundColor);
    return own[3] === 1 ? own.slice(0, 3) : over(own, background(e.parentElement));
  };
  const opacity = (e) => (e ? getComputedStyle(e).opacity * opacity(e.parentElement) : 1);
  const luminance = (colour) => {
    const [r, g, b] = colour.map((v) => v / 255)
      .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = [];
  for (const e of document.querySelectorAll("body *")) {
    const text = [...e.childNodes].map((n) => (n.nodeType === 3 ? n.data.trim() : "")).join("");
    if (!text || !e.checkVisibility({opacityProperty: true})) continue;
    if (e.closest(":disabled, [aria-disabled=true], option, noscript, .skip")) continue;
    const style = getComputedStyle(e);
    const below = background(e);
    const colour = channels(style.color);
    const ink = over([...colour.slice(0, 3), colour[3] * opacity(e)], below);
    const [low, high] = [luminance(ink), luminance(below)].sort((a, b) => a - b);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    found.push({text, ratio: (high + 0.05) / (low + 0.05), least: large ? 3 : 4.5});
  }
  return found;
}"""

# Controls that cannot be reached with a finger: beside the screen, or below something else.
OUT_OF_REACH = """() => {
  const bad = [];
  for (const e of document.querySelectorAll("a[href], button, input, select, summary")) {
    if (!e.checkVisibility() || e.disabled || e.closest(".skip")) continue;
    e.scrollIntoView({block: "center", inline: "center"});
    const box = (e.closest("label") ?? e).getBoundingClientRect();
    const [x, y] = [box.left + box.width / 2, box.top + box.height / 2];
    const hit = document.elementFromPoint(x, y);
    const own = hit && (e.contains(hit) || e.closest("label")?.contains(hit) || hit.contains(e));
    if (!own || box.left < -1 || box.right > innerWidth + 1)
      bad.push([e.outerHTML.slice(0, 100), x, y, hit?.outerHTML.slice(0, 60)]);
  }
  return bad;
}"""


def check_names(tab: Tab) -> None:
    """Everything that a screen reader meets has a name."""
    session = tab.page.context.new_cdp_session(tab.page)
    nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    nameless = [
        node["role"]["value"]
        for node in nodes
        if not node["ignored"]
        and node["role"]["value"] in NAMED
        and not node.get("name", {}).get("value", "").strip()
    ]
    assert nameless == []
    assert len(nodes) > 50


def check_contrast(tab: Tab) -> None:
    """All visible text has the contrast that WCAG 2 requires for level AA."""
    texts = tab.get(CONTRASTS)
    assert len(texts) > 10
    assert [entry for entry in texts if entry["ratio"] < entry["least"]] == []


def test_everything_works_without_a_mouse(gallery: Server, open_tab: OpenTab) -> None:
    tab = open_tab(gallery)
    tab.page.keyboard.press("Tab")
    assert "Skip to the player" in tab.get(FOCUSED)["text"]
    runs = tab.part("run").filter(has_text="plain").locator("button.item")
    for _ in range(40):
        if runs.evaluate("(e) => e === document.activeElement"):
            break
        tab.press("Tab")
    tab.press("Enter")
    tab.wait("ulStudio.objects.length > 0 && ulStudio.ready")
    for name in TABS:
        check_tab_order(tab, name)

    tab.get("document.activeElement.blur()")
    tab.press("?")
    help_ = tab.page.get_by_role("dialog", name="Keyboard")
    assert help_.is_visible()
    shown = help_.locator("dt").all_inner_texts()
    assert len(shown) >= 20
    check_names(tab)
    check_contrast(tab)
    tab.press("ArrowRight", "Escape")
    assert not help_.is_visible()
    assert tab.studio("frame") == 0  # keys do not reach the page below a dialog
    tab.press("ArrowRight")
    tab.wait_for_frame(1)


def check_tab_order(tab: Tab, name: str) -> None:
    """Tab reaches everything that can be used, in order, and shows where it is."""
    tab.part(f"tab-{name}").focus()
    now = TABS.index(name)
    if name != "watch":
        tab.part(f"tab-{TABS[now - 1]}").focus()
        tab.press("ArrowRight")  # as in any list of tabs
    assert tab.part(f"tab-{name}").get_attribute("aria-selected") == "true"
    count = len(tab.get(USABLE))
    tab.get("document.querySelector('.skip').focus()")
    reached = []
    for _ in range(count + 5):
        focus = tab.get(FOCUSED)
        if focus is None:
            break
        assert focus["ring"], focus
        reached.append(focus["place"])
        tab.press("Tab")
    assert reached == sorted(reached)
    assert set(range(count)) <= set(reached)


def test_a_phone(gallery: Server, open_tab: OpenTab) -> None:
    tab = open_tab(gallery, narrow=True)
    check_narrow(tab)
    tab.part("panel-time").tap()
    assert tab.page.get_by_text("Time lines of position").is_visible()
    tab.part("panel-library").tap()
    tab.part("run").filter(has_text="plain").locator("button.item").tap()
    tab.wait(f"ulStudio.objects.length === {OBJECTS} && ulStudio.ready")
    for name in PANELS:
        tab.part(f"panel-{name}").tap()
        check_narrow(tab)
    tab.part("mark-first").tap()
    tab.part("step-forward").tap()
    tab.part("mark-last").tap()
    assert tab.studio("range") == [0, 1]
    check_narrow(tab)
    tab.part("panel-objects").tap()
    tab.part("object-1").tap()
    tab.part("object-2").tap()  # without a shift key, a second tap adds
    assert tab.studio("picked") == [1, 2]
    assert tab.part("correct-swap").is_enabled()
    tab.part("panel-library").tap()
    tab.part("source").first.locator("button.item").tap()
    tab.wait("ulStudio.open.kind === 'source' && ulStudio.ready")
    assert tab.part("learn").is_visible()
    check_narrow(tab)


ORDER = """async (runs) => {
  const {inOrder} = await import("/js/library.js");
  return inOrder(runs.map(([state, created]) => ({state, created}))).map((run) => run.created);
}"""


def test_runs_that_wait_stand_in_a_queue(gallery: Server, open_tab: OpenTab) -> None:
    tab = open_tab(gallery)
    runs = [("done", 1), ("stopped", 2), ("queued", 3), ("running", 4), ("queued", 5)]
    assert tab.get(ORDER, runs) == [4, 3, 5, 2, 1]


def check_narrow(tab: Tab) -> None:
    """Nothing scrolls sideways, and every control can be touched."""
    sides = "[document.documentElement.scrollWidth, document.body.scrollWidth, innerWidth]"
    assert tab.get(sides) == [NARROW[0]] * 3
    transport = "document.querySelector('#transport')"
    assert tab.get(f"{transport}.scrollWidth <= {transport}.clientWidth")
    assert tab.get(OUT_OF_REACH) == []


# The least contrast of the colours of 32 objects with the paper that charts are drawn on.
LINE_CONTRAST = """async () => {
  const {chartColour, PAPER, screenPalette} = await import("/js/colours.js");
  const luminance = (colour) => {
    const [r, g, b] = colour.map((v) => v / 255)
      .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const paper = ({card}) => [1, 3, 5].map((place) => parseInt(card.slice(place, place + 2), 16));
  const ratio = (object, palette) => {
    const both = [luminance(chartColour(object, palette)), luminance(paper(palette))];
    const [low, high] = both.sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const objects = Array.from({length: 32}, (_, place) => place + 1);
  return Math.min(...[PAPER, screenPalette()].flatMap((p) => objects.map((o) => ratio(o, p))));
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_names_and_contrast(gallery: Server, open_tab: OpenTab, scheme: str) -> None:
    tab = open_tab(gallery, color_scheme=scheme)
    check_contrast(tab)
    tab.open_run("plain")
    assert tab.get(LINE_CONTRAST) >= 3
    tab.part("object-1").dispatch_event("click")
    tab.press("i")
    for name in TABS:
        tab.part(f"tab-{name}").click()
        check_names(tab)
        check_contrast(tab)
    tab.part("source").first.locator("button.item").click()
    tab.part("learn").wait_for()
    tab.page.get_by_text("More settings").click()
    check_names(tab)
    check_contrast(tab)
    background = tab.get("getComputedStyle(document.body).backgroundColor")
    tab.part("theme").click()
    assert tab.get("getComputedStyle(document.body).backgroundColor") != background
    tab.page.reload()  # the choice is kept
    tab.wait("ulStudio.ready")
    assert tab.get("getComputedStyle(document.body).backgroundColor") != background


# Brightness of the strip below the picture, where nothing is marked.
STRIP = """() => {
  const canvas = document.querySelector(".overview canvas");
  const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d");
  copy.drawImage(canvas, 0, 0);
  return copy.getImageData(canvas.width / 2, canvas.height / 2, 1, 1).data[0];
}"""


def test_canvases_follow_the_theme(gallery: Server, open_tab: OpenTab) -> None:
    tab = open_tab(gallery, color_scheme="light")
    tab.part("source").first.locator("button.item").click()
    tab.wait_for_frame(0)
    tab.get(NEXT_PAINT)
    assert tab.get(STRIP) > 150
    tab.part("theme").click()
    tab.get(NEXT_PAINT)
    assert tab.get(STRIP) < 100


def test_nothing_moves_that_need_not(gallery: Server, open_tab: OpenTab) -> None:
    tab = open_tab(gallery, reduced_motion="reduce")
    tab.open_run("plain")
    tab.part("tab-objects").click()
    durations = "document.getAnimations().map((e) => e.effect.getComputedTiming().activeDuration)"
    assert [duration for duration in tab.get(durations) if duration > 1] == []  # ms


def test_a_broken_file_gives_one_line(gallery: Server, open_tab: OpenTab) -> None:
    tab = open_tab(gallery)
    tab.allowed += ("status of 400",)
    tab.upload("broken.mp4", b"this is not a video" * 1000)
    tab.wait("document.querySelectorAll('[data-testid=uploading] .bad').length === 1")
    [sentence] = tab.texts("[data-testid=uploading] .bad")
    assert sentence.startswith("cannot be read as a video")  # below its name
    assert tab.toast() == f"broken.mp4: {sentence}"
    assert "\n" not in sentence
    assert str(gallery.folder) not in sentence
    assert list((gallery.folder / "uploads").iterdir()) == []
    tab.part("uploading").get_by_role("button", name="Close").click()
    assert tab.part("uploading").count() == 0
    tab.open_run("plain")  # the page still works


@pytest.fixture
def hostile(tmp_path: Path, numbered: Path) -> Iterator[Server]:
    """A run of which every text that a file can hold is markup."""
    name = HOSTILE.replace("/", "\u2215")  # a file name has no slash
    video = Path(shutil.copy(numbered, tmp_path / f"{name}.mp4"))
    run = write_run(tmp_path / name, video, reason=HOSTILE, sequence=name)
    server = LocalServer(tmp_path / "studio", run)
    yield server
    server.kill()


def test_text_of_files_stays_text(hostile: Server, open_tab: OpenTab, tmp_path: Path) -> None:
    tab = open_tab(hostile)
    tab.wait("ulStudio.objects.length > 0 && ulStudio.ready")
    seen: list[str] = []
    for name in TABS:
        tab.part(f"tab-{name}").click()
        seen.append(tab.page.locator("body").inner_text())
    assert tab.part("title").inner_text().startswith("<img src=x")
    assert HOSTILE in seen[0]  # the reason
    [video] = tmp_path.glob("*.mp4")
    tab.upload(video.name, video.read_bytes())
    tab.wait("document.querySelectorAll('[data-testid=source]').length === 2")
    [kept] = (hostile.folder / "uploads").iterdir()
    assert not set(kept.name) & set('<>"/')
    assert tab.get("window.injected") is None
    assert tab.get("document.querySelectorAll('img[src=x], script:not([src])').length") == 0
