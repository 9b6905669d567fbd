"""The event loop behind the blocking producers and consumers: one per process, in a daemon thread, made when needed.

A caller hands it a coroutine and waits. Ctrl-C, or anything else that ends the wait, cancels the work; so no work goes
on without a waiter. After a fork the child gets a loop of its own when it makes a client; clients of the parent's
refuse to work there.

Threads: any but the loop's own, unless a method says otherwise.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from cometmq.errors import ClientStateError, ForkedClient

__all__ = ["THREAD_NAME", "Background", "ClientLoop", "background"]

THREAD_NAME = "cometmq-client"

T = TypeVar("T")

_log = logging.getLogger(__name__)


class _Waiting(Generic[T]):
    """One coroutine on the loop, and the thread that waits for its end.

    A plain lock, used once, is all that the thread waits on: an exception of a signal handler may come anywhere in it.
    Inside the locks of ``threading.Event`` it leaves one released that is not held, or held that is not released.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> None:
        self._loop = loop
        self._work = work
        self._task: asyncio.Task[T] | None = None
        self._results: list[T] = []
        self._error: BaseException | None = None
        self._is_over = False
        self.is_given_up = False
        self._end = threading.Lock()
        self._end.acquire()

    def begin(self) -> None:
        """Begin with the work; on the loop."""
        if self.is_given_up:
            self.cancel()
        elif not self._is_over:
            self._task = self._loop.create_task(self._work)
            self._task.add_done_callback(self._ended)

    def cancel(self) -> None:
        """End the work; on the loop."""
        if self._task is not None:
            self._task.cancel()
        elif not self._is_over:  # Ctrl-C came before the loop had been asked to begin
            self._work.close()
            self._notify()

    def _ended(self, task: asyncio.Task[T]) -> None:
        try:
            self._results.append(task.result())
        except BaseException as error:  # noqa: BLE001 - it is the waiting thread's
            self._error = error
        # The task dies here. In the other thread a signal might be handled in the middle of the callback of a weak
        # reference to it, where the interpreter drops what the handler raises: Ctrl-C would do nothing.
        self._task = None
        self._notify()

    def _notify(self) -> None:
        self._is_over = True
        self._end.release()

    def wait(self) -> None:
        """Wait until it has ended."""
        if not self._is_over:
            self._end.acquire()

    def result(self) -> T:
        """Return what the work returned; raise what it raised."""
        if self._error is None:
            return self._results[0]
        error, self._error = self._error, None
        try:
            raise error
        finally:
            del error  # its traceback has this frame


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
        waiting = _Waiting(self.loop, work)
        try:
            self.loop.call_soon_threadsafe(waiting.begin)
            waiting.wait()
        except BaseException:
            waiting.is_given_up = True  # before anything that a further exception could come into
            self.loop.call_soon_threadsafe(waiting.cancel)
            waiting.wait()
            raise
        return waiting.result()

    def call(self, function: Callable[[], object]) -> None:
        """Let the loop call a function soon; its exceptions go to the loop's exception handler.

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
