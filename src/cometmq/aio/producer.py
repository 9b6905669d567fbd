"""The producer for asyncio: that of :mod:`cometmq.client`, on the caller's own loop.

::

    async with Producer("orders-api", name_servers="127.0.0.1:9876") as producer:
        await producer.send("orders", b"...", tags="paid", keys="o-17")

A loop that is blocked sends nothing, heartbeats too: brokers drop a producer after 120 s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from cometmq._async_only import AsyncOnly
from cometmq.client.arguments import close_timeout, several
from cometmq.client.instance.awaited_replies import ReplyFuture
from cometmq.client.instance.hooks import Interceptor, interceptors_of
from cometmq.client.instance.own_loop import OwnLoop
from cometmq.client.instance.service_state import ServiceState, not_startable, require_running
from cometmq.client.send.outgoing import OutgoingMessage, message_of
from cometmq.client.send.producer_settings import ProducerSettings
from cometmq.client.send.queue_selection import QueueSelector
from cometmq.client.send.send_engine import SendEngine
from cometmq.client.send.sending import SendFuture, SendResult
from cometmq.client.send.sending_many import MANY_UNDER_WAY, SendWindow, many
from cometmq.client.settings import settings_of
from cometmq.errors import Error
from cometmq.remoting.bodies.message_queue import MessageQueue

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from cometmq._engine import ReceivedMessage
    from cometmq.client.send.producer_settings import ProducerOptions

__all__ = ["Producer"]


class Producer(AsyncOnly):
    """Sends messages; every method has the arguments and errors of :class:`cometmq.client.producer.Producer`'s.

    Threads: that of its loop, which is the one that :meth:`start` runs on.
    """

    def __init__(
        self,
        group: str,
        *,
        name_servers: str | Iterable[str] | None = None,
        interceptors: Iterable[Interceptor] = (),
        **options: Unpack[ProducerOptions],
    ) -> None:
        """Connect to nobody yet."""
        self.settings = settings_of(ProducerSettings, dict(options), name_servers=name_servers, group=group)
        self._interceptors = interceptors_of("AsyncProducer", interceptors)
        self._own_loop = OwnLoop("producer")
        self._engine: SendEngine | None = None

    def __repr__(self) -> str:
        """Return group and state."""
        return f"<aio.Producer {self.settings.group} {self.state.value}>"

    # --- Life ---------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> ServiceState:
        """Whether it runs."""
        return ServiceState.CREATE_JUST if self._engine is None else self._engine.state

    async def start(self) -> Self:
        """Start it on the running loop."""
        self._own_loop.require()
        if self._engine is not None:
            raise not_startable(f"producer group {self.settings.group}", self._engine.state)
        self._engine = await self._opened()
        self._own_loop.bind()
        return self

    def _opened(self) -> Coroutine[Any, Any, SendEngine]:
        """Return what opens the engine."""
        return SendEngine.open(self.settings, interceptors=self._interceptors)

    async def close(self, *, timeout_ms: int | None = None) -> None:
        """Send what waits, wait until all sends have ended, and leave; nothing where it does not run.

        Args:
            timeout_ms: how long that may take. A warning names the sends that are given up then; None waits for all.
        """
        self._own_loop.require()
        close_timeout(timeout_ms)
        if self._engine is not None:
            await self._engine.close(timeout_ms=timeout_ms)
            self._own_loop.release()

    async def __aenter__(self) -> Self:
        """Start it."""
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close it."""
        await self.close()

    def _running(self) -> SendEngine:
        self._own_loop.require()
        if self._engine is None:
            require_running(f"producer group {self.settings.group}", ServiceState.CREATE_JUST)
        assert self._engine is not None
        return self._engine

    # --- Sending ------------------------------------------------------------------------------------------------------

    async def send(
        self,
        topic: str | OutgoingMessage,
        body: bytes | None = None,
        *,
        tags: str | None = None,
        keys: str | None = None,
        properties: Mapping[str, str] | None = None,
        delay_level: int = 0,
        delay_ms: int | None = None,
        deliver_at_ms: int | None = None,
        sharding_key: str | None = None,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        arg: Any = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send a message and wait until the broker has it."""
        if delay_ms is not None or deliver_at_ms is not None:
            topic = message_of(topic, body, tags, keys, properties, delay_level, sharding_key, delay_ms, deliver_at_ms)
            body = tags = keys = properties = sharding_key = None
            delay_level = 0
        return await self._running().send_given(
            topic, body, tags, keys, properties, delay_level, sharding_key, queue, selector, arg, timeout_ms, True
        )

    def send_async(
        self,
        topic: str | OutgoingMessage,
        body: bytes | None = None,
        *,
        tags: str | None = None,
        keys: str | None = None,
        properties: Mapping[str, str] | None = None,
        delay_level: int = 0,
        delay_ms: int | None = None,
        deliver_at_ms: int | None = None,
        sharding_key: str | None = None,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        arg: Any = None,
        timeout_ms: int | None = None,
    ) -> SendFuture:
        """Send a message; the result can be awaited, now, later or never.

        Where ``enable_backpressure_for_async_mode`` is set and there is no room, it fails at once instead of blocking
        the loop.
        """
        if delay_ms is not None or deliver_at_ms is not None:
            topic = message_of(topic, body, tags, keys, properties, delay_level, sharding_key, delay_ms, deliver_at_ms)
            body = tags = keys = properties = sharding_key = None
            delay_level = 0
        return self._running().send_given(
            topic, body, tags, keys, properties, delay_level, sharding_key, queue, selector, arg, timeout_ms, False
        )

    def send_oneway(
        self,
        topic: str | OutgoingMessage,
        body: bytes | None = None,
        *,
        tags: str | None = None,
        keys: str | None = None,
        properties: Mapping[str, str] | None = None,
        delay_level: int = 0,
        delay_ms: int | None = None,
        deliver_at_ms: int | None = None,
        sharding_key: str | None = None,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        arg: Any = None,
    ) -> None:
        """Send a message one-way: there is no confirmation that it arrives."""
        message = message_of(topic, body, tags, keys, properties, delay_level, sharding_key, delay_ms, deliver_at_ms)
        self._running().send_oneway(message, queue=queue, selector=selector, arg=arg)

    async def send_batch(
        self,
        messages: Iterable[OutgoingMessage],
        *,
        topic: str | None = None,
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send messages of one topic in one request, which is stored whole or not at all, and wait."""
        batch = several("send_batch", messages, OutgoingMessage, "messages: OutgoingMessage(body)")
        return await self._running().send_batch(batch, topic=topic, queue=queue, is_awaited=True, timeout_ms=timeout_ms)

    async def send_many(
        self, messages: Iterable[OutgoingMessage | bytes], *, topic: str | None = None, under_way: int = MANY_UNDER_WAY
    ) -> Sequence[SendResult]:
        """Send messages, or bodies, one by one without waiting for each, and wait for all."""
        window = SendWindow(self._running(), topic=topic, under_way=under_way)
        results: list[SendResult] = []
        try:
            for message in many(messages):
                if due := window.due():
                    results += [await future for future in due]
                    window.forget(len(due))
                window.send(message)
            results += [await future for future in window.begun]
        except Error:
            await asyncio.gather(*window.begun, return_exceptions=True)
            raise
        return results

    # --- Request and reply --------------------------------------------------------------------------------------------

    async def request(
        self,
        topic: str | OutgoingMessage,
        body: bytes | None = None,
        *,
        tags: str | None = None,
        keys: str | None = None,
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        arg: Any = None,
        timeout_ms: int | None = None,
    ) -> ReceivedMessage:
        """Send a message, and wait for the reply of a consumer. A cancelled request leaves no wait behind."""
        message = message_of(topic, body, tags, keys, properties, 0, sharding_key)
        engine = self._running()
        reply = engine.request(message, queue=queue, selector=selector, arg=arg, timeout_ms=timeout_ms)
        try:
            return await reply
        except asyncio.CancelledError:
            engine.forget(reply)
            raise

    def request_async(
        self,
        topic: str | OutgoingMessage,
        body: bytes | None = None,
        *,
        tags: str | None = None,
        keys: str | None = None,
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        arg: Any = None,
        timeout_ms: int | None = None,
    ) -> ReplyFuture:
        """Send a message; its reply can be awaited, now, later or never."""
        message = message_of(topic, body, tags, keys, properties, 0, sharding_key)
        return self._running().request(message, queue=queue, selector=selector, arg=arg, timeout_ms=timeout_ms)

    async def reply_to(
        self,
        request: ReceivedMessage,
        body: bytes,
        *,
        tags: str | None = None,
        keys: str | None = None,
        properties: Mapping[str, str] | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send the reply to a request, and wait until the requester has it."""
        engine = self._running()
        return await engine.reply(request, body, tags=tags, keys=keys, properties=properties, timeout_ms=timeout_ms)

    async def flush(self) -> None:
        """Wait until everything that was sent before has ended, well or not."""
        await self._running().drain()
