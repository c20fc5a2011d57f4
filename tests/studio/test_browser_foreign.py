"""Other pages in a browser that has the studio open: they learn nothing and change nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.servers import served
from tests.studio.browser import REBOUND, OpenTab, Server

# Everything that a page can try with the address of the studio. The cookie goes along, as ports do
# not make another site.
ATTACK = """async ([studio, source]) => {
  const read = (path, options) => fetch(studio + path, {credentials: "include", ...options})
    .then(async (answer) => [answer.type, answer.status, await answer.text()], () => "refused");
  const load = (tag, path) => new Promise((done) => {
    const element = document.createElement(tag);
    element.onload = () => done("loaded");
    element.onerror = () => done("refused");
    element.src = studio + path;
    document.body.append(element);
  });
  const socket = new Promise((done) => {
    const opened = new WebSocket(studio.replace("http", "ws") + "ws");
    opened.onmessage = () => done("heard");
    opened.onclose = () => done("refused");
  });
  return {
    state: await read("api/state"),
    frame: await load("img", `api/sources/${source}/frame/0`),
    script: await load("script", "js/main.js"),
    socket: await socket,
  };
}"""
# Without reading the answer, a page may send this to any server.
CHANGE = """(studio) =>
  fetch(studio + "api/demo", {method: "POST", mode: "no-cors", credentials: "include"})
    .then(() => "sent", () => "refused")"""
FRAMED = """(studio) => new Promise((done) => {
  const frame = document.createElement("iframe");
  frame.src = studio;
  frame.onload = () => setTimeout(() => done(frame.contentWindow.length), 200);
  document.body.append(frame);
})"""


def test_other_pages_are_refused(gallery: Server, open_tab: OpenTab, tmp_path: Path) -> None:
    tab = open_tab(gallery)
    state: Any = tab.get("fetch('api/state').then((answer) => answer.json())")
    arguments = [tab.origin, state["sources"][0]["id"]]
    tab.allowed += ("import statement outside a module",)
    own = tab.get(ATTACK, arguments)  # the page itself can do all of it
    assert (own["frame"], own["script"], own["socket"]) == ("loaded", "loaded", "heard")

    (tmp_path / "index.html").write_text("<!doctype html><title>Other</title>")
    with served(tmp_path) as address:
        other = tab.page.context.new_page()
        other.goto(address)
        found = other.evaluate(ATTACK, arguments)
        assert set(found.values()) == {"refused"}
        assert other.evaluate(CHANGE, tab.origin) == "refused"
        other.evaluate(FRAMED, tab.origin)
        framed = [frame.url for frame in other.frames[1:]]
        assert framed == ["chrome-error://chromewebdata/"]  # frame-ancestors 'none'
        other.close()
    after: Any = tab.get("fetch('api/state').then((answer) => answer.json())")
    assert after == state  # no demo

    # A name that points at this computer is not the studio's.
    rebound = tab.page.context.new_page()
    answer = rebound.goto(gallery.address.replace("127.0.0.1", REBOUND))
    assert answer is not None
    assert answer.status == 421
    rebound.close()
