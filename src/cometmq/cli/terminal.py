"""Output for people: progress on stderr when it is a terminal, sizes and times as text, JSON documents."""

from __future__ import annotations

import dataclasses
import enum
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

import typer

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

__all__ = [
    "Bar",
    "Interruption",
    "byte_progress",
    "bytes_text",
    "count_progress",
    "interruptible",
    "interrupting",
    "is_hangup_ignored",
    "open_standard_streams",
    "print_json",
    "row_progress",
    "safe_text",
    "time_text",
]

_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_AGAIN_S = 0.1


def open_standard_streams() -> None:
    """Give a process that was started without one of the standard streams (``>&-``) an empty one.

    Otherwise the next file that is opened, the store's perhaps, would get its number.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # It gets the lowest number that is free: the stream's own.
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))


class Bar(Protocol):
    """Something that shows how far a job is."""

    def __call__(self, done: int, total: int | None = None) -> None:
        """Show that so much is done, of so much if that is known."""


def bytes_text(count: int) -> str:
    """Return a number of bytes for people: ``1.5 MiB``."""
    size, unit = float(count), 0
    while size >= 1024 and unit + 1 < len(_BYTE_UNITS):
        size, unit = size / 1024, unit + 1
    return f"{size:,.1f} {_BYTE_UNITS[unit]}" if unit else f"{count} B"


def time_text(timestamp_ms: int | None, *, to_the_minute: bool = False) -> str:
    """Return a time for people, local, with milliseconds or without; "-" for None and for what no calendar has."""
    if timestamp_ms is None:
        return "-"
    try:
        text = datetime.fromtimestamp(timestamp_ms / 1000).astimezone().isoformat(sep=" ", timespec="milliseconds")
        return text[: 16 if to_the_minute else 23]
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms"


def safe_text(text: str) -> str:
    """Return text in one line that does nothing to a terminal: control characters are escaped."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def print_json(value: Any) -> None:
    """Print a dataclass or plain value as one JSON document."""
    typer.echo(json.dumps(_plain(value), indent=2, ensure_ascii=False))


def _progress(columns: Iterable[ProgressColumn]) -> Progress:
    from rich.console import Console
    from rich.progress import Progress

    # stdout is left alone: it may be a file.
    return Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False)


@contextmanager
def byte_progress(title: str) -> Iterator[Bar]:
    """Show bytes done with rate and time left, on stderr, if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda done, total=None: None
        return
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with _progress(columns) as progress:
        task = progress.add_task(title, total=None)
        yield lambda done, total=None: progress.update(task, completed=done, total=total)


@contextmanager
def count_progress(title: str, unit: str) -> Iterator[Bar]:
    """Show how many are done and how many a second, on stderr, if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda done, total=None: None
        return
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description} {task.completed:,.0f} " + unit),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
    )
    with _progress(columns) as progress:
        task = progress.add_task(title, total=None, rate="")

        def show(done: int, total: int | None = None) -> None:
            speed = progress.tasks[task].speed
            progress.update(task, completed=done, rate=f"{speed:,.0f}/s" if speed else "")

        yield show


@contextmanager
def row_progress(title: str) -> Iterator[Bar]:
    """Show messages done of so many, with rate and time left, on stderr, if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda done, total=None: None
        return
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f} of {task.fields[of]} messages"),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with _progress(columns) as progress:
        task = progress.add_task(title, total=None, rate="", of="?")

        def show(done: int, total: int | None = None) -> None:
            speed = progress.tasks[task].speed
            rate = f"{speed:,.0f}/s" if speed else ""
            progress.update(task, completed=done, total=total, rate=rate, of="?" if total is None else f"{total:,}")

        yield show


class Interruption:
    """A Ctrl-C that waits until nothing is lost by it."""

    def __init__(self) -> None:
        """None yet."""
        self._seen = False
        self._waiting = False
        self._ended = False

    def is_set(self) -> bool:
        """True after Ctrl-C or SIGHUP."""
        return self._seen

    def end(self) -> None:
        """Ignore further ones: the job is over, and only its last words are left."""
        self._ended = True

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Let Ctrl-C interrupt at once in here: nothing is under way but a wait."""
        self._waiting = True
        try:
            if self._seen:
                raise KeyboardInterrupt
            yield
        finally:
            self._waiting = False

    def note(self, number: int, frame: FrameType | None) -> None:
        """Take the signal; a second one interrupts wherever it comes, until :meth:`end`.

        A terminal that closes sends SIGHUP twice, by the shell and by the kernel: that is one wish.
        """
        if self._ended or (number == signal.SIGHUP and self._seen and not self._waiting):
            return
        is_second, self._seen = self._seen, True
        if is_second or self._waiting:
            raise KeyboardInterrupt


@contextmanager
def interrupting(stop: Callable[[], object]) -> Iterator[None]:
    """Call ``stop`` at Ctrl-C, from a thread of its own: C code that holds the main one lets no handler run."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours, signals = socket.socketpair()
    signals.setblocking(False)

    def watch() -> None:
        while True:
            try:
                number = ours.recv(1)
            except TimeoutError:  # it may have come just before there was something to stop
                stop()
                continue
            if not number:
                return
            if number[0] == signal.SIGINT:
                stop()
                ours.settimeout(_AGAIN_S)

    watcher = threading.Thread(target=watch, name="cometmq-ctrl-c", daemon=True)
    watcher.start()
    before = signal.set_wakeup_fd(signals.fileno(), warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        signals.close()
        watcher.join()
        ours.close()


def is_hangup_ignored() -> bool:
    """Return whether the process was started with SIGHUP ignored, as ``nohup`` does: it must stay so."""
    return signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """Record Ctrl-C and SIGHUP instead of raising, for jobs that check for it and stop cleanly."""
    interruption = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield interruption
        return
    heard = (signal.SIGINT,) if is_hangup_ignored() else (signal.SIGINT, signal.SIGHUP)
    before = {number: signal.signal(number, interruption.note) for number in heard}
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
