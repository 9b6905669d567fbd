"""Names the request that holds a server's event loop: everything else that the loop serves waits meanwhile.

Each step of a handler is timed: a plain handler is one step, a coroutine one for each stretch between two waits. A step
of 100 ms or more is logged when it ends, with the request's code, its sender and the CPU time that the thread used: far
less than the whole means a busy machine, not a costly request. A step of a second is logged while it runs, with the
line of code that it is at, since it may never end.

Threads: steps are the event loop's; a thread of the watchdog's own looks once a second.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final, final

__all__ = ["HELD_MS", "Watchdog"]

_log = logging.getLogger("cometmq.remoting")

HELD_MS: Final = 100
_STUCK_NS: Final = 1_000_000_000
_LOOK_S: Final = 1.0
_NS_PER_MS: Final = 1_000_000
_FRAMES_SHOWN: Final = 3


@final
class Watchdog:
    """Watches one event loop."""

    def __init__(
        self, *, now_ns: Callable[[], int] = time.monotonic_ns, cpu_ns: Callable[[], int] = time.thread_time_ns
    ) -> None:
        """Nothing is watched before the first step.

        Args:
            now_ns: a clock that never steps back.
            cpu_ns: the CPU time of the thread that asks.
        """
        self._now_ns = now_ns
        self._cpu_ns = cpu_ns
        self._cpu_began_ns = 0
        self._step: tuple[int, int, str] | None = None  # since when, code, peer
        self._reported: tuple[int, int, str] | None = None
        self._thread_id = 0
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to look for steps that do not end."""
        self._thread = threading.Thread(target=self._run, name="cometmq-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._end.set()
        if self._thread is not None:
            self._thread.join()

    def begin(self, code: int, peer: str) -> None:
        """Note that a step begins. On the event loop."""
        self._thread_id = threading.get_ident()
        self._cpu_began_ns = self._cpu_ns()
        self._step = (self._now_ns(), code, peer)

    def end(self) -> None:
        """Note that it has ended."""
        step, self._step = self._step, None
        if step is None:
            return
        since_ns, code, peer = step
        held_ms = (self._now_ns() - since_ns) // _NS_PER_MS
        if held_ms >= HELD_MS:
            cpu_ms = (self._cpu_ns() - self._cpu_began_ns) // _NS_PER_MS
            _log.warning(
                "a request held the control thread", extra={"code": code, "peer": peer, "ms": held_ms, "cpu_ms": cpu_ms}
            )

    def steps(self, work: Coroutine[Any, Any, None], code: int, peer: str) -> Coroutine[Any, Any, None]:
        """Return the same coroutine, each of whose steps is watched."""
        return _Steps(self, work, code, peer)

    def look(self) -> None:
        """Log a step that has run for a second, once."""
        step = self._step
        if step is None or step is self._reported or self._now_ns() - step[0] < _STUCK_NS:
            return
        self._reported = step
        frame = sys._current_frames().get(self._thread_id)
        places = traceback.extract_stack(frame)[-_FRAMES_SHOWN:] if frame is not None else []
        at = " < ".join(f"{place.name} ({place.filename}:{place.lineno})" for place in reversed(places))
        _log.error(
            "a request has held the control thread for over a second",
            extra={"code": step[1], "peer": step[2], "at": at},
        )

    def _run(self) -> None:
        while not self._end.wait(_LOOK_S):
            self.look()


@final
class _Steps(Coroutine[Any, Any, None]):
    """A coroutine that reports its steps to the watchdog."""

    __slots__ = ("_code", "_peer", "_watchdog", "_work")

    def __init__(self, watchdog: Watchdog, work: Coroutine[Any, Any, None], code: int, peer: str) -> None:
        self._watchdog = watchdog
        self._work = work
        self._code = code
        self._peer = peer

    def send(self, value: Any) -> Any:
        self._watchdog.begin(self._code, self._peer)
        try:
            return self._work.send(value)
        finally:
            self._watchdog.end()

    def throw(self, kind: Any, error: Any = None, trace: Any = None, /) -> Any:
        self._watchdog.begin(self._code, self._peer)
        try:
            return self._work.throw(kind if error is None else error)
        finally:
            self._watchdog.end()

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, None]:
        return self._work.__await__()
