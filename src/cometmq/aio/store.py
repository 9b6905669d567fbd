"""AsyncStore: a thin shell around the synchronous store."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import cometmq.store
from cometmq._async_only import AsyncOnly
from cometmq._engine import AppendManyResult, AppendResult, Message, StoreHandle
from cometmq.aio.readers import AsyncConsumer, AsyncHandedOff, AsyncReader, OpeningConsumer
from cometmq.aio.scans import AsyncScan
from cometmq.aio.store_transaction import AsyncTransaction
from cometmq.aio.waiting import CommitTurns, DurableWaiter, MoreWaiter
from cometmq.errors import NotEntered, StoreClosed, WrongType
from cometmq.store import (
    FlushMode,
    GroupProgress,
    QueueInfo,
    StartFrom,
    Store,
    StoreInfo,
    StoreOpening,
    TopicInfo,
)
from cometmq.store.options import INT64_MAX, Time, in_range, timeout_ms
from cometmq.store.removed import RestoreReport
from cometmq.store.topic_book import READ_WRITE

if TYPE_CHECKING:
    import pyarrow

    from cometmq._types import ArrowSchemaLike, Bodies, Body, Keys, Numbers, Properties, Values
    from cometmq.arrow import Cursor

__all__ = ["AsyncStore", "open"]

T = TypeVar("T")


def open(path: str | os.PathLike[str], **options: Any) -> AsyncStore:
    """Return a store to be entered with ``async with``; the options are :func:`cometmq.open`'s.

    Entering it raises the errors of :func:`cometmq.open`.
    """
    return AsyncStore(partial(cometmq.store.open, path, **options))


def _append(topic: str, body: Body, store: Store, **options: Any) -> AppendResult:
    return store.append(topic, body, **options)


class AsyncStore(AsyncOnly):
    """A store for asyncio. Use it from one event loop; the :class:`Store` behind it may be shared with threads.

    It has every method of :class:`cometmq.Store`, with the same arguments, results and errors. Calls that may wait, for
    the disk, a lock or another process, are awaited. Plain are :meth:`read` and :meth:`follow`, whose iterators do the
    waiting (``async for``), and facts known at opening: the properties, and :meth:`opening`. :meth:`consumer` is
    entered with ``async with``, or awaited.
    """

    def __init__(self, opener: Callable[[], Store]) -> None:
        """Use :func:`open`, or :meth:`wrap` for a store that is open already."""
        self._opener = opener
        self._store: Store | None = None
        self._owned = True

    def __repr__(self) -> str:
        """Return the store's path and state."""
        return f"<AsyncStore {'not entered' if self._store is None else repr(self._store)}>"

    @classmethod
    def wrap(cls, store: Store) -> AsyncStore:
        """Return the asyncio view of an open store. Leaving it does not close the store."""
        if not isinstance(store, Store):
            raise WrongType(f"store must be a cometmq.Store, not {type(store).__name__} ({store!r:.60})")
        wrapped = cls(lambda: store)
        wrapped._take(store)
        wrapped._owned = False
        return wrapped

    def _take(self, store: Store) -> None:
        self._store = store
        self._durable = DurableWaiter(store.handle)
        self._more = MoreWaiter(store)
        self._turns = CommitTurns()

    @property
    def store(self) -> Store:
        """The synchronous store."""
        if self._store is None:
            raise NotEntered("enter the store first: async with cometmq.aio.open(...) as store")
        return self._store

    async def _commit_together(self, function: Callable[..., T], *arguments: Any) -> T:
        """Commit a transaction in a thread. Under asynchronous flush it holds the writer lock while it syncs."""
        if self.flush_mode is FlushMode.SYNC:
            return await self._call(function, *arguments)
        return await self._turns.commit(function, *arguments)

    async def _call(self, function: Callable[..., T], *arguments: Any, **options: Any) -> T:
        return await asyncio.to_thread(function, *arguments, **options)

    # --- Life

    @property
    def path(self) -> Path:
        """The directory."""
        return self.store.path

    @property
    def read_only(self) -> bool:
        """True for mode "r"."""
        return self.store.read_only

    @property
    def is_writer(self) -> bool:
        """True for mode "a", and for mode "auto" while this process is the writer."""
        return self.store.is_writer

    @property
    def flush_mode(self) -> FlushMode:
        """When this handle's appends are acknowledged, as :attr:`Store.flush_mode`."""
        return self.store.flush_mode

    @property
    def handle(self) -> StoreHandle:
        """The engine's handle: for tools that look at units and records."""
        return self.store.handle

    @property
    def closed(self) -> bool:
        """True after :meth:`close`."""
        return self.store.closed

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
            await self._call(self._store.close)

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
        wait: bool = True,
    ) -> AppendResult:
        """Append a message, as :meth:`Store.append`; many at a time share one sync of the disk."""
        message = partial(
            _append,
            topic,
            body,
            tags=tags,
            keys=keys,
            properties=properties,
            queue=queue,
            flag=flag,
            born_timestamp_ms=born_timestamp_ms,
        )
        appender = self._quick_appender(topic)
        if appender is None:
            return await self._call(message, self.store, wait=wait)
        try:
            if self._turns.is_free:
                result = message(appender, wait=False)
            else:
                async with self._turns.turn():
                    result = message(appender, wait=False)
        except StoreClosed:
            if self.closed:
                raise
            return await self._call(message, self.store, wait=wait)  # the writer's role moved
        if (wait or appender is not self.store) and self.flush_mode is FlushMode.SYNC:
            await self._durable_of(appender).wait(result.end)
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
        wait: bool = True,
    ) -> AppendManyResult:
        """Append messages of one topic, as :meth:`Store.append_many`."""
        return await self._call(
            self.store.append_many,
            topic,
            bodies,
            tags=tags,
            keys=keys,
            properties=properties,
            queue=queue,
            flag=flag,
            born_timestamps_ms=born_timestamps_ms,
            wait=wait,
        )

    def transaction(self) -> AsyncTransaction:
        """Begin a transaction, for ``async with``; see :meth:`Store.transaction`."""
        return AsyncTransaction(self)

    def _quick_appender(self, topic: str) -> Store | None:
        """Return the store to append to on the loop, or None: a topic's first append, and the hand-off, wait."""
        appender = self.store._appender()
        return appender if appender is not None and appender._has_target(topic) else None

    def _durable_of(self, appender: Store) -> DurableWaiter:
        """Return the waiter for a store's disk; with mode "auto", that of the writer's role while it is here."""
        if self._durable.handle is not appender.handle:
            self._durable = DurableWaiter(appender.handle)
        return self._durable

    async def wait_durable(self, end: int) -> None:
        """Wait until everything up to the physical offset ``end`` can be read, as :meth:`Store.wait_durable`."""
        end = in_range(end, "end", 0, INT64_MAX)
        if self.store._role is None:
            await self._durable.wait(end)

    async def flush(self) -> None:
        """Make everything that was appended durable, in any flush mode."""
        await self._call(self.store.flush)

    async def hand_off(
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
    ) -> AsyncHandedOff:
        """Leave messages to the store's writer, as :meth:`Store.hand_off`."""
        handed = await self._call(
            self.store.hand_off,
            topic,
            bodies,
            tags=tags,
            keys=keys,
            properties=properties,
            queue=queue,
            flag=flag,
            born_timestamps_ms=born_timestamps_ms,
        )
        return AsyncHandedOff(handed)

    async def apply_handoffs(self) -> int:
        """Append and commit what other processes left, as :meth:`Store.apply_handoffs`."""
        return await self._call(self.store.apply_handoffs)

    # --- Read

    def read(
        self,
        topic: str | Iterable[str] | None = None,
        *,
        tags: str | Iterable[str] | None = None,
        queues: Iterable[int] | None = None,
        start: int | None = None,
        end: int | None = None,
        start_time: Time | None = None,
        end_time: Time | None = None,
        backwards: bool = False,
        follow: bool = False,
        timeout_s: float | None = None,
        unwrap: bool = True,
        where: str | None = None,
    ) -> AsyncReader:
        """Iterate with ``async for``; the arguments are :meth:`Store.read`'s."""
        timeout_ms(timeout_s)  # that it is one
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
            where=where,
        )
        return AsyncReader(reader, self._more, follow=follow, timeout_s=timeout_s)

    def follow(
        self,
        topic: str | Iterable[str] | None = None,
        *,
        tags: str | Iterable[str] | None = None,
        queues: Iterable[int] | None = None,
        timeout_s: float | None = None,
        where: str | None = None,
    ) -> AsyncReader:
        """Iterate over the messages that come from now on; the arguments are :meth:`Store.follow`'s."""
        timeout_ms(timeout_s)  # that it is one
        reader = self.store.follow(topic, tags=tags, queues=queues, where=where)
        return AsyncReader(reader, self._more, follow=True, timeout_s=timeout_s)

    def scan(
        self,
        topic: str | Iterable[str] | None = None,
        *,
        columns: Iterable[str] | None = None,
        tags: str | Iterable[str] | None = None,
        where: str | None = None,
        keys: str | Iterable[str] | None = None,
        queues: Iterable[int] | None = None,
        group: str | None = None,
        start: int | Cursor | Mapping[int, int] | Mapping[tuple[str, int], int] | None = None,
        end: int | None = None,
        start_time: Time | None = None,
        end_time: Time | None = None,
        limit: int | None = None,
        follow: bool = False,
        timeout_s: float | None = None,
        body: Literal["view", "binary"] = "view",
        compressed: Literal["decompress", "raw"] = "decompress",
        schema: pyarrow.Schema | ArrowSchemaLike | Mapping[str, object] | str | None = None,
        body_format: Literal["json", "csv"] = "json",
        on_bad_body: Literal["null", "fail"] | None = None,
        strict: bool = False,
        error_column: str | None = None,
        on_corrupt: Literal["fail", "skip"] = "fail",
        on_loss: Literal["fail", "skip"] = "fail",
        check_crc: bool = False,
        batch_rows: int = 8192,
        batch_bytes: int = 4 << 20,
    ) -> AsyncScan:
        """Return messages as Arrow columns, for ``async for``; the arguments are :meth:`Store.scan`'s."""
        scan = self.store.scan(
            topic,
            columns=columns,
            tags=tags,
            where=where,
            keys=keys,
            queues=queues,
            group=group,
            start=start,
            end=end,
            start_time=start_time,
            end_time=end_time,
            limit=limit,
            follow=follow,
            timeout_s=timeout_s,
            body=body,
            compressed=compressed,
            schema=schema,
            body_format=body_format,
            on_bad_body=on_bad_body,
            strict=strict,
            error_column=error_column,
            on_corrupt=on_corrupt,
            on_loss=on_loss,
            check_crc=check_crc,
            batch_rows=batch_rows,
            batch_bytes=batch_bytes,
        )
        return AsyncScan(self.store, scan, self._more, timeout_s=timeout_s)

    async def get(self, topic: str, queue: int, offset: int) -> Message:
        """Return the message at a queue offset, as :meth:`Store.get`."""
        return await self._call(self.store.get, topic, queue, offset)

    async def get_by_id(self, message_id: str) -> Message:
        """Return the message with an offset message id, as :meth:`Store.get_by_id`."""
        return await self._call(self.store.get_by_id, message_id)

    async def find(
        self,
        topic: str,
        key: str | None = None,
        *,
        tag: str | None = None,
        start_time: Time | None = None,
        end_time: Time | None = None,
        limit: int | None = None,
    ) -> list[Message]:
        """Return the messages that have a key or a tag, newest first, all at once; otherwise as :meth:`Store.find`."""

        def call() -> list[Message]:
            return list(self.store.find(topic, key, tag=tag, start_time=start_time, end_time=end_time, limit=limit))

        return await self._call(call)

    async def find_unique(self, topic: str, unique_id: str) -> Message | None:
        """Return the message with a unique id, as :meth:`Store.find_unique`."""
        return await self._call(self.store.find_unique, topic, unique_id)

    async def get_physical(self, physical_offset: int) -> Message:
        """Return the message whose record begins there, as :meth:`Store.get_physical`."""
        return await self._call(self.store.get_physical, physical_offset)

    async def offset_at(self, topic: str, queue: int, time: Time, *, last: bool = False) -> int:
        """Return the queue offset of a time, as :meth:`Store.offset_at`."""
        return await self._call(self.store.offset_at, topic, queue, time, last=last)

    async def wait(self, seen_end: int, *, timeout_s: float | None = None) -> bool:
        """Wait until messages beyond ``seen_end`` can be read, as :meth:`Store.wait`; False when the time is over."""
        timeout_ms(timeout_s)  # that it is one
        return await self._more.wait(max(in_range(seen_end, "seen_end", -INT64_MAX, INT64_MAX), 0), timeout_s)

    # --- Topics and queues

    async def topics(self, *, system: bool = False) -> list[str]:
        """Return the names of all topics; RocketMQ's own only with ``system``."""
        return await self._call(self.store.topics, system=system)

    async def topic(self, name: str) -> TopicInfo:
        """Return what is known of a topic, as :meth:`Store.topic`."""
        return await self._call(self.store.topic, name)

    async def queues(self, topic: str | None = None) -> list[QueueInfo]:
        """Return every queue of a topic, or of all, as :meth:`Store.queues`."""
        return await self._call(self.store.queues, topic)

    async def queue(self, topic: str, queue: int = 0) -> QueueInfo:
        """Return one queue, as :meth:`Store.queue`."""
        return await self._call(self.store.queue, topic, queue)

    async def min_offset(self, topic: str, queue: int = 0) -> int:
        """Return the first queue offset that can be read."""
        return await self._call(self.store.min_offset, topic, queue)

    async def max_offset(self, topic: str, queue: int = 0) -> int:
        """Return the queue offset that the next message will get."""
        return await self._call(self.store.max_offset, topic, queue)

    async def create_topic(
        self,
        name: str,
        *,
        queues: int = 1,
        perm: int = READ_WRITE,
        batch: bool = False,
        attributes: Mapping[str, str] | None = None,
        exist_ok: bool = False,
    ) -> TopicInfo:
        """Make a topic, durably, as :meth:`Store.create_topic`."""
        return await self._call(
            self.store.create_topic,
            name,
            queues=queues,
            perm=perm,
            batch=batch,
            attributes=attributes,
            exist_ok=exist_ok,
        )

    async def set_topic_queues(self, name: str, queues: int) -> TopicInfo:
        """Change the number of a topic's queues, durably, as :meth:`Store.set_topic_queues`."""
        return await self._call(self.store.set_topic_queues, name, queues)

    async def delete_topic(self, name: str) -> None:
        """Forget a topic, durably, as :meth:`Store.delete_topic`."""
        await self._call(self.store.delete_topic, name)

    # --- Consumer groups

    def consumer(
        self,
        group: str,
        topic: str | Iterable[str],
        *,
        tags: str | Iterable[str] | None = None,
        queues: Iterable[int] | None = None,
        start: StartFrom | Literal["earliest", "latest"] | Time = StartFrom.EARLIEST,
        follow: bool = False,
        timeout_s: float | None = None,
        where: str | None = None,
    ) -> OpeningConsumer:
        """Open a consumer of a group; the arguments are :meth:`Store.consumer`'s.

        ``async with store.consumer("group", "orders", follow=True) as consumer: ...``, or ``await`` it and close it
        yourself.
        """
        timeout_ms(timeout_s)  # that it is one
        call = partial(self.store.consumer, group, topic, tags=tags, queues=queues, start=start, where=where)

        async def opened() -> AsyncConsumer:
            consumer = await self._call(call)
            return AsyncConsumer(consumer, self._more, follow=follow, timeout_s=timeout_s)

        return OpeningConsumer(opened)

    async def groups(self) -> list[str]:
        """Return the names of all consumer groups."""
        return await self._call(self.store.groups)

    async def progress(self, group: str | None = None, topic: str | None = None) -> list[GroupProgress]:
        """Return how far groups are, in which topic and queue."""
        return await self._call(self.store.progress, group, topic)

    async def set_progress(self, group: str, topic: str, queue: int, offset: int) -> None:
        """Set a group's next offset to consume, durably, as :meth:`Store.set_progress`."""
        await self._call(self.store.set_progress, group, topic, queue, offset)

    async def commit_progress(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Store a group's progress in (topic, queue) pairs, durably, as :meth:`Store.commit_progress`."""
        await self._call(self.store.commit_progress, group, offsets)

    async def delete_group(self, group: str) -> None:
        """Forget a group and its progress, durably, as :meth:`Store.delete_group`."""
        await self._call(self.store.delete_group, group)

    # --- The store itself

    async def info(self) -> StoreInfo:
        """Return the state of the store."""
        return await self._call(self.store.info)

    def opening(self) -> StoreOpening:
        """Return what opening the store found, as :meth:`Store.opening`."""
        return self.store.opening()

    async def restore_removed(self, name: str, *, again: bool = False) -> RestoreReport:
        """Append whole records that were cut off the log again, as :meth:`Store.restore_removed`."""
        return await self._call(lambda: self.store.restore_removed(name, again=again))

    async def maintain(self) -> None:
        """Do what the background does, once, as :meth:`Store.maintain`."""
        await self._call(self.store.maintain)

    async def expire(self) -> int:
        """Delete commit log files that the retention says are due, as :meth:`Store.expire`."""
        return await self._call(self.store.expire)
