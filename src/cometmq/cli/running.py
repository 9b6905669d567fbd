"""A command that runs until a signal stops it.

The first SIGTERM, SIGHUP or Ctrl-C begins a clean stop; under ``nohup`` SIGHUP stays ignored. Later signals do not
cut it short: service managers, ``timeout`` and impatient people send several. Only a signal that comes
``_FORCE_AFTER_S`` after the first interrupts a stop that hangs.

Threads: signals are handled in the main thread.
"""

from __future__ import annotations

import atexit
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from cometmq._stop_flag import StopFlag
from cometmq.cli.terminal import is_hangup_ignored

__all__ = ["Stopping", "descriptors_for_clients", "stopping_by_signals"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LOOK_S = 1.0
_FORCE_AFTER_S = 10.0
_DESCRIPTORS = 65_536
"""Enough for 20,000 connections and a large store; a process that asks for more is given no better service."""


def _say(text: str) -> None:
    """Write a line to stderr from a signal handler, which may have interrupted a write to it."""
    with suppress(OSError, ValueError, AttributeError):
        os.write(sys.stderr.fileno(), f"cometmq: {text}\n".encode())


@contextmanager
def descriptors_for_clients() -> Iterator[None]:
    """Raise the process's own limit of descriptors while the block runs, as far as it may: shells begin with 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(_DESCRIPTORS, hard)
    is_short = soft != resource.RLIM_INFINITY and soft < most
    if is_short:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    try:
        yield
    finally:
        if is_short:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _ignore_signals() -> None:
    """Ignore signals from now on: an interpreter that exits restores their default action, which is to kill."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


class Stopping:
    """A stop that signals ask for."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        """Nothing has asked for it yet."""
        self._wanted = StopFlag()
        self._now_s = now_s
        self._since_s = 0.0

    @property
    def is_wanted(self) -> bool:
        """True once a signal asked for the stop."""
        return self._wanted.is_set()

    def want(self, number: int | None = None, frame: FrameType | None = None) -> None:
        """Handle a signal: begin the stop, or interrupt one that has hung for ``_FORCE_AFTER_S``.

        Raises:
            KeyboardInterrupt: the stop has hung for that long.
        """
        if not self._wanted.is_set():
            self._since_s = self._now_s()
            self._wanted.set()
            return
        left_s = self._since_s + _FORCE_AFTER_S - self._now_s()
        if left_s > 0:
            _say(f"already stopping; a signal after {left_s:.0f} s forces the exit")
            return
        _say("forcing the exit: the store recovers when it is opened next")
        raise KeyboardInterrupt

    def wait(self) -> None:
        """Return when a signal has asked for the stop."""
        # The kernel may deliver a signal to another thread, as after SIGCONT. The handler still runs in this thread,
        # but only once it wakes.
        while not self._wanted.wait(_LOOK_S):
            pass


@contextmanager
def stopping_by_signals() -> Iterator[Stopping]:
    """Have SIGTERM, SIGINT and SIGHUP ask for the stop; outside the main thread nothing is handled.

    SIGHUP is not handled where the process was started with it ignored, as ``nohup`` does.
    The handlers stay after a stop that a signal began, and once the interpreter exits, signals are ignored: one that
    arrives late must not turn a clean stop into a failure.
    """
    stopping = Stopping()
    if threading.current_thread() is not threading.main_thread():
        yield stopping
        return
    heard = [number for number in _SIGNALS if number != signal.SIGHUP or not is_hangup_ignored()]
    before = {number: signal.signal(number, stopping.want) for number in heard}
    try:
        yield stopping
    finally:
        if stopping.is_wanted:
            atexit.register(_ignore_signals)
        else:
            for number, handler in before.items():
                signal.signal(number, handler)
