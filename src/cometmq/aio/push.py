"""The push consumer for asyncio: that of :mod:`cometmq.client`, on the caller's own loop.

::

    consumer = PushConsumer("billing", name_servers="127.0.0.1:9876", listener=handle)
    await consumer.subscribe("orders", "paid || refunded")
    async with consumer:
        await stop.wait()

``async def`` listeners run on the loop, plain ones in threads, or in the executor that was given. A loop that is
blocked consumes nothing, and sends no heartbeats: brokers drop a member after 120 s.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Executor
from types import TracebackType
from typing import TYPE_CHECKING

from cometmq._async_only import AsyncOnly
from cometmq.client.arguments import whole_number
from cometmq.client.group.offset_stores import OwnOffsetStore
from cometmq.client.group.subscriptions import TAG
from cometmq.client.instance.hooks import Interceptor
from cometmq.client.instance.own_loop import OwnLoop
from cometmq.client.instance.service_state import ServiceState
from cometmq.client.push.push_engine import PushEngine, QueueListener
from cometmq.client.push.push_surface import PushSurface
from cometmq.store_config.names import validate_topic

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from cometmq.client.push.listeners import BatchListener, Listener
    from cometmq.client.settings import PushOptions
    from cometmq.remoting.bodies.message_queue import MessageQueue

__all__ = ["PushConsumer"]

_CLOSE_MS = 10_000


class PushConsumer(AsyncOnly, PushSurface):
    """Consumes topics as a member of a group.

    Methods have the arguments and errors of :class:`cometmq.client.push_consumer.PushConsumer`'s.

    Threads: that of its loop, which is the one that :meth:`start` runs on.
    """

    def __init__(
        self,
        group: str,
        *,
        name_servers: str | Iterable[str] | None = None,
        listener: Listener | None = None,
        batch_listener: BatchListener | None = None,
        orderly: bool = False,
        auto_commit: bool = True,
        executor: Executor | None = None,
        offset_store: OwnOffsetStore | None = None,
        interceptors: Iterable[Interceptor] = (),
        queue_listener: QueueListener | None = None,
        **options: Unpack[PushOptions],
    ) -> None:
        """Connect to nobody yet."""
        super().__init__(
            dict(options),
            group=group,
            name_servers=name_servers,
            listener=listener,
            batch_listener=batch_listener,
            orderly=orderly,
            auto_commit=auto_commit,
            executor=executor,
            offset_store=offset_store,
            interceptors=interceptors,
            queue_listener=queue_listener,
        )
        self._own_loop = OwnLoop("consumer")

    def __repr__(self) -> str:
        """Return group, state and topics."""
        return f"<aio.PushConsumer {self.settings.group} {self.state.value} topics={sorted(self._expressions)}>"

    async def subscribe(self, topic: str, expression: str | None = "*", *, expression_type: str = TAG) -> Self:
        """Subscribe to a topic; before the start or while it runs."""
        self._own_loop.require()
        self._note_subscription(topic, expression, expression_type)
        if self.state is ServiceState.RUNNING:
            await self._running().subscribe(topic, expression, expression_type=expression_type)
        return self

    async def unsubscribe(self, topic: str) -> None:
        """Give a topic up; messages that are here already are still consumed."""
        self._own_loop.require()
        validate_topic(topic)
        self._expressions.pop(topic, None)
        if self.state is ServiceState.RUNNING:
            self._running().unsubscribe(topic)

    async def start(self) -> Self:
        """Start to consume on the running loop."""
        self._own_loop.require()
        await self._open().start()
        self._own_loop.bind()
        return self

    def _running(self) -> PushEngine:
        self._own_loop.require()
        return super()._running()

    async def progress(self, topic: str) -> dict[MessageQueue, int]:
        """As :meth:`cometmq.client.PushConsumer.progress`."""
        return await self._running().progress(topic)

    async def suspend(self) -> None:
        """Stop pulling until :meth:`resume`; messages already received are consumed."""
        self._running().suspend()

    async def resume(self) -> None:
        """Pull again."""
        await self._running().resume()

    async def close(self, *, timeout_ms: int = _CLOSE_MS) -> None:
        """Stop pulling, let listeners finish what they have begun, commit, and leave the group.

        It is done to its end, also where the caller is cancelled; later calls wait for that. A listener that closes its
        own consumer does not wait: the close ends behind that call of it.
        """
        self._own_loop.require()
        whole_number("timeout_ms", timeout_ms)
        if self._engine is not None:
            await self._engine.close(timeout_ms=timeout_ms)
            self._own_loop.release()

    async def __aenter__(self) -> Self:
        """Start it, where that has not been done."""
        self._own_loop.require()
        return self if self.state is ServiceState.RUNNING else await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close it."""
        await self.close()
