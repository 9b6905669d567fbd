"""AsyncStore, AsyncReader, AsyncConsumer: thin shells around the synchronous ones."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import cometmq.store
from cometmq._engine import AppendManyResult, AppendResult, Message, Reader
from cometmq.aio.waiting import DurableWaiter, MoreWaiter
from cometmq.store import Consumer, FlushMode, StartFrom, Store, StoreInfo
from cometmq.store.options import Time

if TYPE_CHECKING:
    from cometmq._types import Bodies, Body, Keys, Numbers, Properties, Values

__all__ = ["AsyncConsumer", "AsyncReader", "AsyncStore", "open"]

T = TypeVar("T")

_FETCH = 512


def open(path: str | os.PathLike[str], **options: Any) -> AsyncStore:
    """Return a store to be entered with ``async with``; the options are :func:`cometmq.open`'s.

    Raises:
        As :func:`cometmq.open`, when it is entered.
    """
    return AsyncStore(partial(cometmq.store.open, path, **options))


class AsyncStore:
    """A store for asyncio. Use it from one event loop; the :class:`Store` behind it may be shared with threads."""

    def __init__(self, opener: Callable[[], Store]) -> None:
        """Use :func:`open`, or :meth:`wrap` for a store that is open already."""
        self._opener = opener
        self._store: Store | None = None
        self._owned = True

    @classmethod
    def wrap(cls, store: Store) -> AsyncStore:
        """Return the asyncio view of an open store. Leaving it does not close the store."""
        wrapped = cls(lambda: store)
        wrapped._take(store)
        wrapped._owned = False
        return wrapped

    def _take(self, store: Store) -> None:
        self._store = store
        self._durable = DurableWaiter(store.handle)
        self._more = MoreWaiter(store.handle)

    @property
    def store(self) -> Store:
        """The synchronous store: for calls that have no awaitable form here."""
        if self._store is None:
            raise RuntimeError("enter the store first: async with cometmq.aio.open(...) as store")
        return self._store

    async def __aenter__(self) -> AsyncStore:
        """Open, in the executor: recovery may take a while."""
        if self._store is None:
            self._take(await asyncio.to_thread(self._opener))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        await self.close()

    async def close(self) -> None:
        """Close the store, as :meth:`Store.close`; readers that wait end with StoreClosed."""
        if self._store is not None and self._owned:
            await asyncio.to_thread(self._store.close)

    # --- Append

    async def append(
        self,
        topic: str,
        body: Body,
        *,
        tags: str | bytes | None = None,
        keys: Keys = None,
        properties: Properties | None = None,
        queue: int | None = None,
        flag: int = 0,
        born_timestamp_ms: int = 0,
    ) -> AppendResult:
        """Append a message, as :meth:`Store.append`; many at a time share one sync of the disk."""
        call = partial(
            self.store.append,
            topic,
            body,
            tags=tags,
            keys=keys,
            properties=properties,
            queue=queue,
            flag=flag,
            born_timestamp_ms=born_timestamp_ms,
        )
        if not self._is_quick(topic):
            return await asyncio.to_thread(call)
        result = call(wait=False)
        await self._until_durable(result.end)
        return result

    async def append_many(
        self,
        topic: str,
        bodies: Bodies,
        *,
        tags: Values = None,
        keys: Values = None,
        properties: Properties | Sequence[Properties | None] | None = None,
        queue: int | Numbers | None = None,
        flag: int = 0,
        born_timestamps_ms: int | Numbers | None = None,
    ) -> AppendManyResult:
        """Append messages of one topic, as :meth:`Store.append_many`, in the executor."""
        return await asyncio.to_thread(
            self.store.append_many,
            topic,
            bodies,
            tags=tags,
            keys=keys,
            properties=properties,
            queue=queue,
            flag=flag,
            born_timestamps_ms=born_timestamps_ms,
        )

    def _is_quick(self, topic: str) -> bool:
        """A topic's first append writes topics.json, and a reader's goes to the hand-off."""
        return topic in self.store._targets

    async def _until_durable(self, end: int) -> None:
        if self.store.flush_mode is FlushMode.SYNC:
            await self._durable.wait(end)

    async def flush(self) -> None:
        """Make everything that was appended durable."""
        await asyncio.to_thread(self.store.flush)

    # --- Read

    def read(
        self,
        topic: str | Iterable[str] | None = None,
        *,
        tags: str | None = None,
        queues: Iterable[int] | None = None,
        start: int | None = None,
        end: int | None = None,
        start_time: Time | None = None,
        end_time: Time | None = None,
        backwards: bool = False,
        follow: bool = False,
        timeout_s: float | None = None,
        unwrap: bool = True,
    ) -> AsyncReader:
        """Iterate with ``async for``; the arguments are :meth:`Store.read`'s."""
        reader = self.store.read(
            topic,
            tags=tags,
            queues=queues,
            start=start,
            end=end,
            start_time=start_time,
            end_time=end_time,
            backwards=backwards,
            follow=follow,
            unwrap=unwrap,
        )
        return AsyncReader(reader, self._more, follow=follow, timeout_s=timeout_s)

    def follow(
        self,
        topic: str | Iterable[str] | None = None,
        *,
        tags: str | None = None,
        queues: Iterable[int] | None = None,
        timeout_s: float | None = None,
    ) -> AsyncReader:
        """Iterate over the messages that come from now on; the arguments are :meth:`Store.follow`'s."""
        reader = self.store.follow(topic, tags=tags, queues=queues)
        return AsyncReader(reader, self._more, follow=True, timeout_s=timeout_s)

    async def get(self, topic: str, queue: int, offset: int) -> Message:
        """Return the message at a queue offset, as :meth:`Store.get`."""
        return await self._call(self.store.get, topic, queue, offset)

    async def get_by_id(self, message_id: str) -> Message:
        """Return the message with an offset message id, as :meth:`Store.get_by_id`."""
        return await self._call(self.store.get_by_id, message_id)

    async def find(
        self,
        topic: str,
        key: str,
        *,
        start_time: Time | None = None,
        end_time: Time | None = None,
        limit: int = 64,
    ) -> list[Message]:
        """Return the messages that have a key, as :meth:`Store.find`."""
        call = partial(self.store.find, topic, key, start_time=start_time, end_time=end_time, limit=limit)
        return await self._call(call)

    async def find_unique(self, topic: str, unique_id: str) -> Message | None:
        """Return the message with a unique id, as :meth:`Store.find_unique`."""
        return await self._call(self.store.find_unique, topic, unique_id)

    async def info(self) -> StoreInfo:
        """Return the state of the store."""
        return await self._call(self.store.info)

    async def _call(self, function: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.to_thread(function, *arguments)

    # --- Consumer groups

    async def consumer(
        self,
        group: str,
        topic: str | Iterable[str],
        *,
        tags: str | None = None,
        queues: Iterable[int] | None = None,
        start: StartFrom | Literal["earliest", "latest"] | Time = StartFrom.EARLIEST,
        follow: bool = False,
        timeout_s: float | None = None,
    ) -> AsyncConsumer:
        """Open a consumer of a group; the arguments are :meth:`Store.consumer`'s.

        ``async with await store.consumer("group", "orders", follow=True) as consumer: ...``
        """
        call = partial(self.store.consumer, group, topic, tags=tags, queues=queues, start=start)
        consumer = await self._call(call)
        return AsyncConsumer(consumer, self._more, follow=follow, timeout_s=timeout_s)


class AsyncReader:
    """Messages for ``async for``. One task at a time."""

    def __init__(self, reader: Reader, more: MoreWaiter, *, follow: bool, timeout_s: float | None) -> None:
        """Use :meth:`AsyncStore.read`."""
        self._reader = reader
        self._more = more
        self._follow = follow
        self._timeout_s = timeout_s

    def __aiter__(self) -> AsyncIterator[Message]:
        """Iterate; may be taken up again after it stopped."""
        return self

    async def __anext__(self) -> Message:
        """Return the next message; stops at the end, or when nothing has come for ``timeout_s``."""
        messages = await self._fetch(1, self._timeout_s if self._follow else 0.0)
        if not messages:
            raise StopAsyncIteration
        return messages[0]

    async def fetch(self, max_messages: int = _FETCH, *, timeout_s: float | None = 0.0) -> list[Message]:
        """Return up to ``max_messages`` messages; waits up to ``timeout_s`` for the first (None: for ever)."""
        return await self._fetch(max_messages, timeout_s)

    async def _fetch(self, max_messages: int, timeout_s: float | None) -> list[Message]:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            messages = self._reader.fetch(max_messages, 0)
            if messages or self._reader.ended:
                return messages
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return messages
            await self._more.wait(self._reader.seen_end, left)

    def close(self) -> None:
        """Let go."""
        self._reader.close()

    async def __aenter__(self) -> AsyncReader:
        """Return the reader itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        self.close()


class AsyncConsumer:
    """Messages for a consumer group, for ``async for``; see :class:`cometmq.Consumer`. One task at a time."""

    def __init__(self, consumer: Consumer, more: MoreWaiter, *, follow: bool, timeout_s: float | None) -> None:
        """Use :meth:`AsyncStore.consumer`."""
        self.consumer = consumer
        self._more = more
        self._follow = follow
        self._timeout_s = timeout_s

    def _reader(self) -> AsyncReader:
        # The consumer's reader changes when it seeks.
        return AsyncReader(self.consumer.reader, self._more, follow=self._follow, timeout_s=self._timeout_s)

    def __aiter__(self) -> AsyncIterator[Message]:
        """Iterate; may be taken up again after it stopped."""
        return self

    async def __anext__(self) -> Message:
        """Return the next message."""
        return await self._reader().__anext__()

    async def fetch(self, max_messages: int = _FETCH, *, timeout_s: float | None = 0.0) -> list[Message]:
        """Return up to ``max_messages`` messages; waits up to ``timeout_s`` for the first (None: for ever)."""
        return await self._reader().fetch(max_messages, timeout_s=timeout_s)

    def positions(self) -> dict[tuple[str, int], int]:
        """Return what :meth:`commit` would store."""
        return self.consumer.positions()

    async def commit(self, message: Message | None = None) -> None:
        """Store the group's progress, durably, as :meth:`cometmq.Consumer.commit`."""
        await asyncio.to_thread(self.consumer.commit, message)

    async def __aenter__(self) -> AsyncConsumer:
        """Return the consumer itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close; nothing is committed."""
        self.consumer.close()
