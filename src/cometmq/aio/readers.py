"""AsyncReader, AsyncConsumer, AsyncHandedOff: results of calls of an AsyncStore."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from types import TracebackType
from typing import Any, NoReturn

from cometmq._async_only import AsyncOnly
from cometmq._engine import AppendManyResult, Message, Reader
from cometmq.aio.waiting import MoreWaiter
from cometmq.errors import NotEntered, StoreBusy
from cometmq.store import Consumer, HandedOff
from cometmq.store.options import Time

__all__ = ["AsyncConsumer", "AsyncHandedOff", "AsyncReader", "OpeningConsumer"]

_FETCH = 512
_NOT_OPEN = (
    "the consumer is not open yet: async with store.consumer(...) as consumer, or consumer = await store.consumer(...)"
)


class _Turn:
    """Lets one task at a time fetch: of two, each would wait for messages that the other takes."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._is_taken = False

    def __enter__(self) -> None:
        if self._is_taken:
            raise StoreBusy(f"another task is fetching from this {self._name}; give each task one of its own")
        self._is_taken = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_taken = False


class AsyncReader(AsyncOnly):
    """Messages for ``async for``; see :class:`cometmq.Reader`. One task at a time: another's call is ``StoreBusy``."""

    def __init__(
        self, reader: Reader, more: MoreWaiter, *, follow: bool, timeout_s: float | None, turn: _Turn | None = None
    ) -> None:
        """Use :meth:`AsyncStore.read`."""
        self._reader = reader
        self._turn = _Turn("reader") if turn is None else turn
        self._more = more
        self._follow = follow
        self._timeout_s = timeout_s

    def __repr__(self) -> str:
        """Return whether it is open, at its end or closed."""
        return repr(self._reader).replace("Reader", "AsyncReader", 1).replace("iterate over it", "use async for", 1)

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
        with self._turn:
            return await self._fetch_alone(max_messages, timeout_s)

    async def _fetch_alone(self, max_messages: int, timeout_s: float | None) -> list[Message]:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            messages = self._reader.fetch(max_messages, 0)
            if messages or self._reader.ended:
                return messages
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return messages
            await self._more.wait(self._reader.seen_end, left)

    @property
    def ended(self) -> bool:
        """True when everything that was asked for was read: nothing can follow."""
        return self._reader.ended

    @property
    def seen_end(self) -> int:
        """Physical offset up to which the reader has looked, for :meth:`AsyncStore.wait`."""
        return self._reader.seen_end

    def positions(self) -> dict[tuple[str, int], int]:
        """Return the next offset of each queue behind what was handed out, as :meth:`cometmq.Reader.positions`."""
        return self._reader.positions()

    @property
    def closed(self) -> bool:
        """True after :meth:`close` of the reader or of its store."""
        return self._reader.closed

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


class AsyncConsumer(AsyncOnly):
    """Messages for a consumer group, for ``async for``; see :class:`cometmq.Consumer`.

    One task at a time: a fetch while another task fetches is ``StoreBusy``.
    """

    def __init__(self, consumer: Consumer, more: MoreWaiter, *, follow: bool, timeout_s: float | None) -> None:
        """Use :meth:`AsyncStore.consumer`."""
        self.consumer = consumer
        self._turn = _Turn("consumer")
        self._more = more
        self._follow = follow
        self._timeout_s = timeout_s

    def __repr__(self) -> str:
        """Return its group and topics, and whether it is closed."""
        return repr(self.consumer).replace("Consumer", "AsyncConsumer", 1)

    @property
    def group(self) -> str:
        """The consumer group."""
        return self.consumer.group

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics."""
        return self.consumer.topics

    @property
    def reader(self) -> AsyncReader:
        """The reader behind it, until the next :meth:`seek`."""
        return AsyncReader(
            self.consumer.reader, self._more, follow=self._follow, timeout_s=self._timeout_s, turn=self._turn
        )

    def __aiter__(self) -> AsyncIterator[Message]:
        """Iterate; may be taken up again after it stopped."""
        return self

    async def __anext__(self) -> Message:
        """Return the next message."""
        return await self.reader.__anext__()

    async def fetch(self, max_messages: int = _FETCH, *, timeout_s: float | None = 0.0) -> list[Message]:
        """Return up to ``max_messages`` messages; waits up to ``timeout_s`` for the first (None: for ever)."""
        return await self.reader.fetch(max_messages, timeout_s=timeout_s)

    def positions(self) -> dict[tuple[str, int], int]:
        """Return what :meth:`commit` would store."""
        return self.consumer.positions()

    def committed(self) -> dict[tuple[str, int], int]:
        """Return what this consumer, or the group before it, has committed."""
        return self.consumer.committed()

    async def commit(self, message: Message | None = None) -> None:
        """Store the group's progress, durably, as :meth:`cometmq.Consumer.commit`."""
        await asyncio.to_thread(self.consumer.commit, message)

    async def seek(self, topic: str, queue: int, offset: int) -> None:
        """Go on at an offset of a queue, as :meth:`cometmq.Consumer.seek`."""
        await asyncio.to_thread(self.consumer.seek, topic, queue, offset)

    async def seek_time(self, time: Time) -> None:
        """Go on at a time, in every queue, as :meth:`cometmq.Consumer.seek_time`."""
        await asyncio.to_thread(self.consumer.seek_time, time)

    @property
    def closed(self) -> bool:
        """True after :meth:`close`."""
        return self.consumer.closed

    def close(self) -> None:
        """Let the group's queues go. Nothing is committed."""
        self.consumer.close()

    async def __aenter__(self) -> AsyncConsumer:
        """Return the consumer itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close; nothing is committed."""
        self.close()


class OpeningConsumer(AsyncOnly):
    """The result of :meth:`AsyncStore.consumer`: ``async with`` opens and closes the consumer, ``await`` opens it."""

    def __init__(self, opener: Callable[[], Awaitable[AsyncConsumer]]) -> None:
        """Nothing is opened yet."""
        self._opener = opener
        self._consumer: AsyncConsumer | None = None

    def __await__(self) -> Generator[Any, None, AsyncConsumer]:
        """Open the consumer and return it."""
        return self._opener().__await__()

    async def __aenter__(self) -> AsyncConsumer:
        """Open the consumer and return it."""
        self._consumer = await self._opener()
        return self._consumer

    def __aiter__(self) -> NoReturn:
        """Refuse: the consumer is not open.

        Raises:
            NotEntered: always.
        """
        raise NotEntered(_NOT_OPEN)

    def __getattr__(self, name: str) -> NoReturn:
        """Refuse a consumer's methods and attributes: it is not open.

        Raises:
            NotEntered: it is one of :class:`AsyncConsumer`'s.
            AttributeError: it is not.
        """
        if name.startswith("_") or not hasattr(AsyncConsumer, name):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        raise NotEntered(_NOT_OPEN)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the consumer; nothing is committed."""
        if self._consumer is not None:
            self._consumer.close()


class AsyncHandedOff:
    """Messages that were left for the store's writer; see :class:`cometmq.HandedOff`."""

    def __init__(self, handed: HandedOff) -> None:
        """Use :meth:`AsyncStore.hand_off`."""
        self.handed_off = handed

    @property
    def work_id(self) -> str:
        """Id of the work."""
        return self.handed_off.work_id

    @property
    def count(self) -> int:
        """Number of messages."""
        return self.handed_off.count

    @property
    def applied(self) -> bool:
        """True when the writer has appended the messages, or put them aside."""
        return self.handed_off.applied

    async def wait(self, timeout_s: float | None = None) -> AppendManyResult:
        """Wait until the writer has appended the messages, as :meth:`cometmq.HandedOff.wait`."""
        return await asyncio.to_thread(self.handed_off.wait, timeout_s)

    def __repr__(self) -> str:
        """Say what was left, and whether it still waits."""
        return repr(self.handed_off).replace("HandedOff", "AsyncHandedOff", 1)
