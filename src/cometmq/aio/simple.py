"""The simple consumer for asyncio: that of :mod:`cometmq.client`, on the caller's own loop.

::

    async with SimpleConsumer("billing", name_servers="127.0.0.1:9876") as consumer:
        await consumer.subscribe("orders", "paid || refunded")
        async for message in consumer:
            await book(message.body_bytes)

A loop that is blocked hides nothing for longer and sends no heartbeats; brokers drop a member after 120 s.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING

from cometmq._async_only import AsyncOnly
from cometmq.client.arguments import close_timeout
from cometmq.client.group.subscriptions import ALL, TAG
from cometmq.client.instance.own_loop import OwnLoop
from cometmq.client.instance.service_state import ServiceState
from cometmq.client.pop.simple_engine import SimpleEngine, popped_messages
from cometmq.client.pop.simple_settings import SimpleSettings
from cometmq.client.simple_consumer import SETTLE_S, make_simple_engine

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from cometmq._engine import ReceivedMessage
    from cometmq.client.pop.simple_settings import SimpleOptions

__all__ = ["SimpleConsumer"]


class SimpleConsumer(AsyncOnly):
    """Receives messages of a group when it is asked.

    Every method has the arguments and errors of :class:`cometmq.client.simple_consumer.SimpleConsumer`'s. Threads: that
    of its loop, which is the one that :meth:`start` runs on.
    """

    def __init__(
        self, group: str, *, name_servers: str | Iterable[str] | None = None, **options: Unpack[SimpleOptions]
    ) -> None:
        """Connect to nobody yet."""
        self._own_loop = OwnLoop("consumer")
        self._receiver = make_simple_engine(group, name_servers=name_servers, options=dict(options))

    def __repr__(self) -> str:
        """Return group, state and topics."""
        engine = self._receiver
        topics = sorted(engine.subscriptions)
        return f"<aio.SimpleConsumer {engine.settings.group} {engine.state.value} topics={topics}>"

    @property
    def settings(self) -> SimpleSettings:
        """Its settings."""
        return self._receiver.settings

    @property
    def state(self) -> ServiceState:
        """Whether it runs."""
        return self._receiver.state

    async def start(self) -> Self:
        """Start on the running loop."""
        await self._engine.start()
        self._own_loop.bind()
        return self

    async def close(self, *, timeout_ms: int | None = None) -> None:
        """Leave the group and close; received messages that were not acknowledged are redelivered.

        Args:
            timeout_ms: longest time for the brokers; then a warning lists the abandoned work. None waits for each.
        """
        close_timeout(timeout_ms)
        await self._engine.close(timeout_ms=timeout_ms)
        self._own_loop.release()

    async def __aenter__(self) -> Self:
        """Start."""
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        await self.close()

    @property
    def _engine(self) -> SimpleEngine:
        self._own_loop.require()
        return self._receiver

    async def subscribe(self, topic: str, expression: str | None = ALL, *, expression_type: str = TAG) -> None:
        """Subscribe to a topic, before or after the start."""
        await self._engine.subscribe(topic, expression, expression_type=expression_type)

    async def unsubscribe(self, topic: str) -> None:
        """End the subscription to a topic; its received messages can still be acknowledged."""
        await self._engine.unsubscribe(topic)

    async def receive(
        self, max_messages: int | None = None, *, invisible_s: float | None = None, wait_s: float | None = None
    ) -> list[ReceivedMessage]:
        """Return messages that nobody else has; an empty list where none came in time.

        If it is cancelled, messages that still arrive go to the next caller.
        """
        return await self._engine.receive(max_messages, invisible_s=invisible_s, wait_s=wait_s)

    async def ack(self, message: ReceivedMessage) -> None:
        """Say that a message is done: nobody gets it again."""
        await self._engine.ack([message])

    async def ack_many(self, messages: Iterable[ReceivedMessage]) -> None:
        """Say that messages are done, with one request for each broker where it knows that."""
        chosen = popped_messages(messages)
        if chosen:
            await self._engine.ack(chosen)

    async def extend(self, message: ReceivedMessage, *, invisible_s: float) -> str:
        """Hide a message for so long from now on, or with 0 give it back; return its new handle."""
        return await self._engine.extend(message, invisible_s=invisible_s)

    @asynccontextmanager
    async def handling(self, message: ReceivedMessage) -> AsyncIterator[ReceivedMessage]:
        """Keep a message hidden for as long as the block works on it, and acknowledge it at the block's end."""
        self._engine.keep([message])
        try:
            yield message
        except BaseException:
            await self._engine.let_go([message])
            raise
        await self.ack(message)

    async def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        """Give messages one by one until the consumer is closed; they are hidden and acknowledged as the loop goes on.

        Leaving the loop early lets go of what it has when the iterator is closed: ``contextlib.aclosing`` does so at
        once.
        """
        pace = self._engine.pace()
        while self._engine.state is ServiceState.RUNNING:
            waiting = deque(await self._engine.receive_kept(pace.count))
            taken, begun_s = len(waiting), time.monotonic()
            settled_s = begun_s
            current: ReceivedMessage | None = None
            try:
                while waiting:
                    current = waiting.popleft()
                    yield current
                    if waiting and self._engine.order.is_postponed(current):
                        self._engine.order.give_back_behind(current, waiting)
                    self._engine.note_handled(current)
                    current = None
                    if not waiting:
                        pace.worked_off(taken, taken_s=time.monotonic() - begun_s)
                    if time.monotonic() - settled_s > SETTLE_S:
                        await self._engine.settle()
                        settled_s = time.monotonic()
            finally:
                await self._engine.settle(rest=waiting, current=current)
