"""Stop signals: never lost, never in the middle of an import, and everything is put back."""

from __future__ import annotations

import gc
import signal
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from tests.command import run_code
from ullayers.run.stopping import quiet_writer_threads, stop_at_checks, stop_with_interrupt
from ullayers.video.sources import find_sources


@pytest.fixture(autouse=True)
def _default_handlers() -> Iterator[None]:
    """Tests that run in the background ignore SIGINT."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


def test_a_thread_that_computes_does_not_abort_the_process() -> None:
    code = """
import torch
import ullayers.cli.main as command
import ullayers.video.parallel as ahead

ahead.PATIENCE = 0.01

def endless():
    yield 1
    values = torch.ones(1500, 1500)
    while True:
        values = values @ values

def stopped():
    items = ahead.read_ahead(endless(), most=2)
    next(items)
    items.close()
    assert ahead.is_reading()
    return 130

command.main = stopped
command.run()
"""
    assert run_code(code) == (130, "", "")


class Thing:
    pass


class SignalWhenDeleted:
    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        signal.raise_signal(self.number)


def signal_in_weakref_callback(number: int) -> None:
    """Python drops the exception that the handler raises there."""
    thing = Thing()
    watcher = weakref.ref(thing, lambda _: signal.raise_signal(number))
    del thing
    assert watcher() is None


def wait_for_interrupt() -> None:
    """Go on with other work for longer than a signal may take."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        time.sleep(0.001)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_a_weakref_callback_is_not_lost(
    number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def lose_signal_and_go_on() -> None:
        with stop_with_interrupt():
            signal_in_weakref_callback(number)
            wait_for_interrupt()

    with pytest.raises(KeyboardInterrupt):
        lose_signal_and_go_on()
    assert capsys.readouterr().err == ""


def test_a_signal_in_del_is_not_lost(capsys: pytest.CaptureFixture[str]) -> None:
    def lose_signals_and_go_on() -> None:
        with stop_with_interrupt():
            SignalWhenDeleted(signal.SIGINT)
            cycle: list[object] = [SignalWhenDeleted(signal.SIGINT)]
            cycle.append(cycle)
            del cycle
            gc.collect()
            wait_for_interrupt()

    with pytest.raises(KeyboardInterrupt):
        lose_signals_and_go_on()
    assert capsys.readouterr().err == ""


def test_the_second_signal_is_not_lost_either() -> None:
    def send_twice_and_go_on() -> None:
        with stop_with_interrupt(), stop_at_checks() as stop:
            signal.raise_signal(signal.SIGINT)
            assert stop.is_set
            SignalWhenDeleted(signal.SIGINT)
            wait_for_interrupt()

    with pytest.raises(KeyboardInterrupt):
        send_twice_and_go_on()


def test_the_first_signal_waits_for_a_check() -> None:
    with stop_with_interrupt(), stop_at_checks() as stop:
        stop.check()
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            stop.check()


def test_a_signal_after_the_last_check_is_not_lost() -> None:
    def signal_after_the_last_check() -> None:
        with stop_with_interrupt(), stop_at_checks() as stop:
            stop.check()
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        signal_after_the_last_check()


def test_a_signal_waits_for_the_end_of_an_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_module.py").write_text(
        "import signal\nsignal.raise_signal(signal.SIGINT)\nwhole = True\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    def import_and_go_on() -> None:
        with stop_with_interrupt():
            assert import_module("slow_module").whole
            wait_for_interrupt()

    with pytest.raises(KeyboardInterrupt):
        import_and_go_on()
    del sys.modules["slow_module"]


def test_other_lost_exceptions_are_still_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def __del__(self) -> None:
            raise RuntimeError("broken")

    seen: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda lost: seen.append(str(lost.exc_value)))
    with stop_with_interrupt():
        Broken()
    assert seen == ["broken"]


def test_everything_is_put_back() -> None:
    def state() -> list[object]:
        handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        return [*handlers, sys.unraisablehook, threading.excepthook]

    before = state()
    with stop_with_interrupt(), stop_at_checks(), quiet_writer_threads():
        assert all(now is not then for now, then in zip(state(), before, strict=True))
    assert state() == before
    with pytest.raises(RuntimeError), stop_with_interrupt(), quiet_writer_threads():
        raise RuntimeError
    assert state() == before


def test_ignored_signals_stay_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with stop_with_interrupt(), stop_at_checks() as stop:
        signal.raise_signal(signal.SIGINT)
        assert not stop.is_set
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_a_pending_signal_ends_with_the_command() -> None:
    """What is sent again must not reach the program that has called the command."""
    reached: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: reached.append(number))
    with stop_with_interrupt():
        signal_in_weakref_callback(signal.SIGINT)
    time.sleep(0.2)
    assert reached == []


@pytest.mark.parametrize(("error", "shown"), [(OSError, False), (RuntimeError, True)])
def test_only_write_errors_of_threads_are_hidden(
    error: type[Exception], shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise error

    seen: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", seen.append)
    with quiet_writer_threads():
        thread = threading.Thread(target=fail)
        thread.start()
        thread.join()
    assert bool(seen) == shown


def test_an_interrupt_while_a_reader_starts_leaves_no_thread(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that outlives the command aborts the process at its end."""
    started: list[threading.Thread] = []
    start = threading.Thread.start

    def interrupted_start(thread: threading.Thread) -> None:
        start(thread)
        started.append(thread)
        raise KeyboardInterrupt

    [source] = find_sources([str(place / "ball.mp4")])
    monkeypatch.setattr(threading.Thread, "start", interrupted_start)
    with pytest.raises(KeyboardInterrupt):
        next(source.clips(1))
    assert [thread.is_alive() for thread in started] == [False]
