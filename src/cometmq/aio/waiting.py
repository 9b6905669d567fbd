"""Waiting without blocking the event loop: for the disk, and for new messages."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from cometmq._engine import StoreHandle
from cometmq.errors import Error, StoreClosed

if TYPE_CHECKING:
    from cometmq.store import Store

__all__ = ["CommitTurns", "DurableWaiter", "MoreWaiter"]

T = TypeVar("T")

_SLICE_MS = 100


class DurableWaiter:
    """Awaits the disk for many appends at once: one thread of the executor waits for the furthest of them."""

    def __init__(self, handle: StoreHandle) -> None:
        """Nothing waits yet. For one event loop."""
        self.handle = handle
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None

    async def wait(self, end: int) -> None:
        """Return when everything up to ``end`` is on disk."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((end, future))
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        await future

    async def _run(self) -> None:
        try:
            while self._waiting:
                # Appends of this turn of the loop get their chance to be in the group.
                await asyncio.sleep(0)
                furthest = max(end for end, _ in self._waiting)
                failure: BaseException | None = None
                try:
                    await asyncio.to_thread(self.handle.wait_durable, furthest)
                except (Error, ValueError, TypeError, OverflowError) as error:
                    failure = error
                self._finish(furthest, failure)
        finally:
            self._task = None

    def _finish(self, end: int, failure: BaseException | None) -> None:
        done = [future for until, future in self._waiting if until <= end]
        self._waiting = [(until, future) for until, future in self._waiting if until > end]
        for future in done:
            if future.done():
                continue
            if failure is None:
                future.set_result(None)
            else:
                future.set_exception(failure)


class CommitTurns:
    """Turns of commits that hold the store's writer lock while they wait for the disk, and of appends on the loop.

    Without a turn, an append on the loop would block the loop while it waits for that lock. Turns come in order.
    """

    def __init__(self) -> None:
        """No turn is in use. For one event loop."""
        self._lock = asyncio.Lock()
        self._users = 0
        self._commits: set[asyncio.Task[Any]] = set()

    @property
    def is_free(self) -> bool:
        """Whether no turn is in use or awaited."""
        return self._users == 0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn; it lasts as long as the ``with`` block."""
        self._users += 1
        try:
            async with self._lock:
                yield
        finally:
            self._users -= 1

    async def commit(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function in a thread, in a turn that lasts until it returns, even if the caller is cancelled."""

        async def called() -> T:
            async with self.turn():
                return await asyncio.to_thread(function, *arguments)

        task = asyncio.create_task(called())
        self._commits.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._commits.discard(task)
        if not task.cancelled():
            task.exception()  # a caller that was cancelled does not fetch it


class MoreWaiter:
    """Awaits new messages for any number of readers with one thread, which lives while somebody waits."""

    def __init__(self, store: Store) -> None:
        """Begin without waiters. Any event loop may wait. A shared store may replace its view's handle."""
        self._store = store
        self._lock = threading.Lock()
        self._waiting: dict[asyncio.Future[bool], tuple[asyncio.AbstractEventLoop, int, StoreHandle]] = {}
        self._running = False

    async def wait(self, seen_end: int, timeout_s: float | None) -> bool:
        """Wait until more than ``seen_end`` can be read; False when the time is over.

        Raises:
            StoreClosed: the store was closed meanwhile.
        """
        handle = self._store.handle
        if handle.wait_more(seen_end, 0):
            return True
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        with self._lock:
            self._waiting[future] = (loop, seen_end, handle)
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="cometmq-aio", daemon=True).start()
        try:
            return await asyncio.wait_for(future, timeout_s)
        except asyncio.TimeoutError:
            return False
        finally:
            with self._lock:
                self._waiting.pop(future, None)

    def _run(self) -> None:
        """The thread: wait in slices, so that it ends soon after the last waiter has gone."""
        while True:
            with self._lock:
                if not self._waiting:
                    self._running = False
                    return
                seen_end = min(seen for _, seen, _ in self._waiting.values())
            failure: Error | None = None
            end, handle = seen_end, self._store.handle
            try:
                if handle.wait_more(seen_end, _SLICE_MS):
                    end = max(handle.confirmed_end, seen_end + 1)
            except Error as error:
                failure = error
            self._wake(end, failure, handle)

    def _wake(self, end: int, failure: Error | None, handle: StoreHandle) -> None:
        ready: list[tuple[asyncio.Future[bool], asyncio.AbstractEventLoop, Error | None]] = []
        with self._lock:
            for future, (loop, seen, view) in self._waiting.items():
                if view is not handle:  # its offsets need not be those of the view of now
                    ready.append((future, loop, StoreClosed("the view of the store has ended: read again")))
                elif seen < end or failure is not None:
                    ready.append((future, loop, failure))
            for future, _, _ in ready:
                del self._waiting[future]
        for future, loop, error in ready:
            # A loop that was closed while one of its readers waited cannot be woken.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(_resolve, future, error)


def _resolve(future: asyncio.Future[bool], failure: Error | None) -> None:
    if future.done():
        return
    if failure is None:
        future.set_result(True)
    else:
        future.set_exception(failure)
