"""The event loop behind the blocking producers and consumers: one per process, in a daemon thread, made when needed.

A caller hands it a coroutine and waits. Ctrl-C, or whatever else ends the wait, cancels the work; so nothing goes on
for nobody. After a fork the child gets a loop of its own when it makes a client; clients of the parent's refuse to
work there.

Threads: any but the loop's own, unless a method says otherwise.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from cometmq.errors import ClientStateError, ForkedClient

__all__ = ["THREAD_NAME", "Background", "ClientLoop", "background"]

THREAD_NAME = "cometmq-client"

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Background:
    """An event loop that runs in a thread of its own, from its making on until the process ends.

    Attributes:
        loop: the loop.
    """

    def __init__(self) -> None:
        """Start the thread; the loop turns when this returns."""
        self._pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        turning = threading.Event()
        self.loop.call_soon(turning.set)
        self._thread = threading.Thread(target=self._turn, name=THREAD_NAME, daemon=True)
        self._thread.start()
        turning.wait()

    def _turn(self) -> None:
        asyncio.set_event_loop(self.loop)
        while True:
            self._turn_until_thrown_out()

    def _turn_until_thrown_out(self) -> None:
        try:
            self.loop.run_forever()
        except (KeyboardInterrupt, SystemExit):
            # asyncio lets these through; somebody's callback must not stop every client of the process.
            _log.exception("a callback tried to end the client's event loop")

    @property
    def is_own_thread(self) -> bool:
        """True where the caller runs on the loop. Any thread."""
        return threading.current_thread() is self._thread

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and return what it returns; raise what it raises.

        An exception that ends the wait here, as Ctrl-C does, cancels the coroutine, waits until it has ended, and is
        raised; a second one does not wait.

        Raises:
            ForkedClient: the loop belongs to the process of which this one is a fork.
            ClientStateError: the caller runs on the loop itself and would wait for ever.
        """
        try:
            self._require_usable()
        except BaseException:  # Ctrl-C, too: nobody begins it any more
            work.close()
            raise
        ended = threading.Event()
        tasks: list[asyncio.Task[T]] = []

        def begin() -> None:
            task = self.loop.create_task(work)
            task.add_done_callback(lambda _: ended.set())
            tasks.append(task)

        def cancel() -> None:
            if tasks:
                tasks[0].cancel()
            else:  # Ctrl-C came before the loop had been asked to begin
                work.close()
                ended.set()

        try:
            self.loop.call_soon_threadsafe(begin)
            ended.wait()
        except BaseException:
            self.loop.call_soon_threadsafe(cancel)
            ended.wait()
            raise
        return tasks[0].result()

    def call(self, function: Callable[[], object]) -> None:
        """Let the loop call a function soon; what it raises goes to the loop's exception handler.

        Raises:
            ForkedClient: the loop belongs to the process of which this one is a fork.
        """
        self._require_own_process()
        self.loop.call_soon_threadsafe(function)

    def _require_usable(self) -> None:
        self._require_own_process()
        if self.is_own_thread:
            raise ClientStateError(
                "a blocking call was made on the client's own event loop, as in a callback or an async listener, and "
                "would wait for itself: make it in a thread, or use cometmq.aio"
            )

    def _require_own_process(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedClient(
                f"the client belongs to process {self._pid}, of which this one is a fork: make and start producers and "
                "consumers after the fork"
            )


class ClientLoop:
    """The loop of one client: its process's when it first needs one, and that one from then on.

    So a client that was made before a fork and not used yet works in the child, and one that was used refuses there.
    Threads: as :class:`Background`.
    """

    def __init__(self) -> None:
        """None is needed yet."""
        self._taken: Background | None = None

    def _own(self) -> Background:
        if self._taken is None:
            self._taken = background()
        return self._taken

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there, as :meth:`Background.run`."""
        return self._own().run(work)

    def call(self, function: Callable[[], object]) -> None:
        """Let it call a function soon, as :meth:`Background.call`."""
        self._own().call(function)


_lock = threading.Lock()
_current: Background | None = None


def background() -> Background:
    """Return this process's background loop; made by the first call. Any thread."""
    global _current
    with _lock:
        if _current is None:
            _current = Background()
        return _current


def _forget_parents() -> None:
    """Leave the parent's loop alone: its thread does not exist here, and its lock may be held for ever."""
    global _current, _lock
    _lock = threading.Lock()
    _current = None


os.register_at_fork(after_in_child=_forget_parents)
