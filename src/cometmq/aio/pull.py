"""The pull consumer for asyncio: that of :mod:`cometmq.client`, on the caller's own loop.

::

    async with PullConsumer("billing", name_servers="127.0.0.1:9876") as consumer:
        await consumer.subscribe("orders", "paid || refunded")
        async for message in consumer:
            await handle(message)

A loop that is blocked pulls nothing and sends no heartbeats; brokers drop a member after 120 s.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING

from cometmq._async_only import AsyncOnly
from cometmq.client.arguments import close_timeout, several
from cometmq.client.group.offset_stores import OwnOffsetStore
from cometmq.client.group.subscriptions import ALL, TAG
from cometmq.client.instance.hooks import Interceptor
from cometmq.client.instance.own_loop import OwnLoop
from cometmq.client.instance.service_state import ServiceState
from cometmq.client.pull.pull_ahead import Reader
from cometmq.client.pull.pull_engine import QUEUES, PullEngine
from cometmq.client.pull.pull_kernel import PullResult
from cometmq.client.pull_consumer import make_pull_engine
from cometmq.client.settings import PullSettings
from cometmq.remoting.bodies.message_queue import MessageQueue

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from cometmq._engine import ReceivedMessage
    from cometmq.client.settings import PullOptions

__all__ = ["PullConsumer"]


class PullConsumer(AsyncOnly):
    """Reads messages of a group when it is asked.

    Every method has the arguments and errors of :class:`cometmq.client.pull_consumer.PullConsumer`'s; its rules for
    threads hold for tasks here. Threads: that of its loop, which is the one that :meth:`start` runs on.
    """

    def __init__(
        self,
        group: str,
        *,
        name_servers: str | Iterable[str] | None = None,
        offset_store: OwnOffsetStore | None = None,
        interceptors: Iterable[Interceptor] = (),
        **options: Unpack[PullOptions],
    ) -> None:
        """Connect to nobody yet."""
        self._own_loop = OwnLoop("consumer")
        self._puller = make_pull_engine(
            group,
            name_servers=name_servers,
            offset_store=offset_store,
            interceptors=interceptors,
            options=dict(options),
        )

    def __repr__(self) -> str:
        """Return group, state and how many queues it has."""
        engine = self._puller
        return f"<aio.PullConsumer {engine.settings.group} {engine.state.value} queues={len(engine.assignment())}>"

    # --- Life ---------------------------------------------------------------------------------------------------------

    @property
    def settings(self) -> PullSettings:
        """Its settings."""
        return self._puller.settings

    @property
    def state(self) -> ServiceState:
        """Whether it runs."""
        return self._puller.state

    async def start(self) -> Self:
        """Start on the running loop."""
        await self._engine.start()
        self._own_loop.bind()
        return self

    async def close(self, *, commit: bool = True, timeout_ms: int | None = None) -> None:
        """Store the progress, leave the group and close.

        Args:
            commit: with ``auto_commit``, count all that was handed out as consumed.
            timeout_ms: longest time for the brokers; then a warning lists the abandoned work. None waits for each.
        """
        close_timeout(timeout_ms)
        self._give_back()
        await self._engine.close(commit=commit, timeout_ms=timeout_ms)
        self._own_loop.release()

    async def __aenter__(self) -> Self:
        """Start."""
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; after an exception the messages handed out last are not committed and are redelivered."""
        await self.close(commit=kind is None)

    @property
    def _engine(self) -> PullEngine:
        self._own_loop.require()
        return self._puller

    # --- Which queues -------------------------------------------------------------------------------------------------

    async def subscribe(self, topic: str, expression: str | None = ALL, *, expression_type: str = TAG) -> None:
        """Subscribe to a topic, before or after the start."""
        await self._engine.subscribe(topic, expression, expression_type=expression_type)

    async def unsubscribe(self, topic: str) -> None:
        """End the subscription to a topic."""
        await self._engine.unsubscribe(topic)

    async def assign(
        self, queues: Iterable[MessageQueue], expression: str | None = ALL, *, expression_type: str = TAG
    ) -> None:
        """Read exactly these queues instead of those before."""
        await self._engine.assign(queues, expression, expression_type=expression_type)

    def assignment(self) -> list[MessageQueue]:
        """Return the queues that this consumer reads now."""
        return self._engine.assignment()

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return all queues of a topic."""
        return await self._engine.queues(topic)

    def watch_queues(self, topic: str, callback: Callable[[str, Collection[MessageQueue]], object]) -> None:
        """Have ``callback(topic, queues)`` called where the topic's queues become others."""
        self._engine.watch_queues(topic, callback)

    # --- Messages -----------------------------------------------------------------------------------------------------

    async def poll(self, timeout_ms: int | None = None) -> list[ReceivedMessage]:
        """Return the messages of one pull; an empty list where none came in time."""
        return await self._engine.poll(timeout_ms)

    async def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        """Yield messages one by one until the consumer is closed; messages that a loop leaves go to the next or a poll.

        A message counts as consumed when the loop comes back for the next one, or at a :meth:`commit` of the loop's
        task.
        """
        reader = Reader()
        try:
            while self._engine.state is ServiceState.RUNNING:
                batch = await self._engine.take(None, reader=reader)
                if batch is None:
                    continue
                batch.is_received = True
                index = 0
                while (message := batch.message(index)) is not None:
                    reader.note_caller()
                    index += 1
                    batch.seen = index
                    yield message
                batch.is_done = True
        finally:
            reader.is_left = True

    def _give_back(self) -> None:
        self._engine.settle()

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        expression: str | None = ALL,
        expression_type: str = TAG,
        max_messages: int = 32,
        block: bool = False,
        timeout_ms: int | None = None,
    ) -> PullResult:
        """Pull one queue once, from an offset on."""
        return await self._engine.pull(
            queue,
            offset,
            expression=expression,
            expression_type=expression_type,
            max_messages=max_messages,
            block=block,
            timeout_ms=timeout_ms,
        )

    # --- Progress -----------------------------------------------------------------------------------------------------

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit and wait until the brokers have it."""
        self._give_back()
        await self._engine.commit(offsets, wait=True)

    async def commit_async(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit without waiting for the brokers."""
        self._give_back()
        await self._engine.commit(offsets, wait=False)

    async def send_back(self, message: ReceivedMessage, *, delay_level: int = 0) -> None:
        """Give a message back to its broker, which puts it on ``%RETRY%group`` after a delay, and on ``%DLQ%group``
        when it was given back ``max_reconsume_times`` times. Subscribe to ``%RETRY%group`` to get it again.

        Args:
            message: the failed message.
            delay_level: the delay's level; 0 for one that grows with each try, -1 for a dead letter now.

        Raises:
            InvalidArgument: the group's members each get every message.
            Error: neither its broker nor another took it.
        """
        await self._engine.send_back(message, delay_level=delay_level)

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's progress in a queue, None where it has none."""
        return await self._engine.committed(queue)

    def position(self, queue: MessageQueue) -> int | None:
        """Return the offset behind what was handed out of an assigned queue, None where nothing was yet."""
        self._give_back()
        return self._engine.position(queue)

    # --- Where to go on -----------------------------------------------------------------------------------------------

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue at an offset of an assigned queue; messages fetched ahead are dropped."""
        self._give_back()
        await self._engine.seek(queue, offset)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Go on at the queue's first message."""
        self._give_back()
        await self._engine.seek_to_begin(queue)

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Go on behind the queue's last message."""
        self._give_back()
        await self._engine.seek_to_end(queue)

    async def seek_to_time(self, queue: MessageQueue, timestamp_ms: int) -> None:
        """Go on at the first message that was stored at a time, milliseconds since 1970, or later."""
        self._give_back()
        await self._engine.seek_to_time(queue, timestamp_ms)

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Stop pulling these queues; messages already received are still handed out."""
        self._engine.pause(several("pause", queues, MessageQueue, QUEUES))

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Pull these queues again."""
        self._engine.resume(several("resume", queues, MessageQueue, QUEUES))

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the queue's first message."""
        return await self._engine.min_offset(queue)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset behind the queue's last message."""
        return await self._engine.max_offset(queue)

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message that was stored at a time, milliseconds since 1970, or later."""
        return await self._engine.search_offset(queue, timestamp_ms)
