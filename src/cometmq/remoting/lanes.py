"""Work that takes longer than a control thread may give it, in a few threads that connections share fairly.

    handler -> Caller.apart(work) -> [Lanes] -> a thread -> the handler goes on

A connection has one piece of work running, or a few, and the others waiting in their order; connections take turns.
So a client that asks for a thousand expensive things delays itself, and another client's expensive request waits for
at most one piece of work per thread.

Work of a connection that is gone is dropped where it waits; where it runs, it ends at its next :func:`stop_if_gone`.

Owns:      the threads, and the work that waits for them.
Limits:    the threads; pieces of work that wait for one connection. One more is refused with code 2.
Invariant: pieces of one connection begin in the order in which they came; where one runs at a time they end in it, too.
Threads:   the event loop's; the work itself runs in threads named ``cometmq-lane``.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar, final

from cometmq.remoting.answers import Refusal
from cometmq.remoting.codes import ResponseCode

__all__ = [
    "LANE_THREADS",
    "LANE_WAITING_MAX",
    "STORE_AT_ONCE",
    "STORE_THREADS",
    "STORE_WAITING_MAX",
    "Lanes",
    "stop_if_gone",
]

LANE_THREADS: Final = 2
"""Threads for looks that take long; a connection has one of them."""
STORE_THREADS: Final = 8
"""Threads that wait for the disk; a connection has four of them."""
STORE_AT_ONCE: Final = 4
STORE_WAITING_MAX: Final = 1_000
LANE_WAITING_MAX: Final = 100
"""Pieces of work of one connection that wait or run."""

T = TypeVar("T")


class _Work:
    """One piece of work and its waiter; ``gone``: there is none any more."""

    __slots__ = ("call", "done", "gone")

    def __init__(self, call: Callable[[], Any], done: asyncio.Future[Any]) -> None:
        self.call = call
        self.done = done
        self.gone = False

    def run(self) -> Any:
        """Do it, in a lane's thread."""
        _current.work = self
        try:
            return self.call()
        finally:
            _current.work = None


class _Current(threading.local):
    """The work of each thread."""

    work: _Work | None = None


_current: Final = _Current()


def stop_if_gone() -> None:
    """Called by long looks between two steps: ends the work where its connection is gone. Nothing in other threads.

    Raises:
        Refusal: the connection is gone; nobody sees the answer.
    """
    work = _current.work
    if work is not None and work.gone:
        raise Refusal(ResponseCode.SYSTEM_BUSY, "the client is gone")


@final
class Lanes:
    """The lanes of one server."""

    def __init__(self, *, threads: int, at_once: int = 1, waiting_max: int = LANE_WAITING_MAX) -> None:
        """No thread is started before there is work.

        Args:
            threads: how many pieces of work run at the same time.
            at_once: of them, how many of one connection.
            waiting_max: pieces of one connection that wait or run.
        """
        self._threads = threads
        self._at_once = at_once
        self._waiting_max = waiting_max
        self._pool: ThreadPoolExecutor | None = None
        self._lanes: dict[int, deque[_Work]] = {}
        self._counts: dict[int, int] = {}
        self._turns: deque[int] = deque()
        self._running_of: dict[int, set[_Work]] = {}
        self._lined_up: set[int] = set()
        self._running = 0

    def is_busy(self, conn: int) -> bool:
        """Return whether a connection has work that its handlers do not know to have ended."""
        return conn in self._counts

    def run(self, conn: int, call: Callable[[], T]) -> Coroutine[Any, Any, T]:
        """Call a function in a thread when it is the connection's turn; return what it returns.

        It has its place in the lane at once, not when it is awaited first: requests that come meanwhile are behind it.

        Raises:
            Refusal: too much work of the connection waits.
            Exception: from the function.
        """
        count = self._counts.get(conn, 0)
        if count >= self._waiting_max:
            raise Refusal(
                ResponseCode.SYSTEM_BUSY,
                f"[OVERLOAD]system busy: {count} requests of this connection are being worked on; wait for answers",
            )
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._counts[conn] = count + 1
        self._lanes.setdefault(conn, deque()).append(_Work(call, done))
        self._take_turn(conn)
        self._begin()
        return self._result(conn, done)

    async def _result(self, conn: int, done: asyncio.Future[T]) -> T:
        try:
            return await done
        finally:
            self._counts[conn] -= 1
            if not self._counts[conn]:
                del self._counts[conn]

    def forget(self, conn: int) -> None:
        """Drop what waits for a connection that is gone, and have its looks that run end at their next step."""
        for work in self._lanes.get(conn, ()):
            work.done.cancel()
        for work in self._running_of.get(conn, ()):
            work.gone = True

    def close(self) -> None:
        """Begin nothing more; the threads end with the work that runs."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def join(self) -> None:
        """Wait for the threads, from another thread than the event loop's."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)

    def _take_turn(self, conn: int) -> None:
        """Line a connection up, once for each piece of work that may begin."""
        lane = self._lanes.get(conn)
        while lane and lane[0].done.done():
            lane.popleft()
        if not lane:
            self._lanes.pop(conn, None)
        elif len(self._running_of.get(conn, ())) < self._at_once and conn not in self._lined_up:
            self._lined_up.add(conn)
            self._turns.append(conn)

    def _begin(self) -> None:
        """Start work while there is a thread for it."""
        while self._turns and self._running < self._threads:
            conn = self._turns.popleft()
            self._lined_up.discard(conn)
            lane = self._lanes.get(conn)
            while lane and lane[0].done.done():
                lane.popleft()
            if not lane:
                self._lanes.pop(conn, None)
                continue
            work = lane.popleft()
            self._running_of.setdefault(conn, set()).add(work)
            self._take_turn(conn)
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="cometmq-lane")
            self._running += 1
            end_on_loop = partial(_call_on, asyncio.get_running_loop(), self._ended, conn, work)
            self._pool.submit(work.run).add_done_callback(end_on_loop)

    def _ended(self, conn: int, work: _Work, ended: Future[Any]) -> None:
        self._running -= 1
        if ended.cancelled():
            work.done.cancel()
        elif not work.done.done():
            error = ended.exception()
            if error is not None:
                work.done.set_exception(error)
            else:
                work.done.set_result(ended.result())
        self._running_of[conn].discard(work)
        if not self._running_of[conn]:
            del self._running_of[conn]
        self._take_turn(conn)
        self._begin()


def _call_on(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *arguments: Any) -> None:
    try:
        loop.call_soon_threadsafe(call, *arguments)
    except RuntimeError:
        # The loop was closed: nobody waits any more.
        return
