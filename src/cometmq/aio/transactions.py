"""The producer of transactional messages for asyncio: that of :mod:`cometmq.client`, on the caller's own loop.

::

    async def check(message):
        return TransactionState.COMMIT if await is_booked(message.unique_id) else TransactionState.ROLLBACK

    async with TransactionProducer("orders-api", checker=check, name_servers="127.0.0.1:9876") as producer:
        await producer.send_in_transaction("orders", b"...", local=book)
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from cometmq.aio.producer import Producer
from cometmq.client.arguments import check_executor
from cometmq.client.instance.hooks import Interceptor
from cometmq.client.send.outgoing import OutgoingMessage, message_of
from cometmq.client.send.queue_selection import QueueSelector
from cometmq.client.send.send_engine import SendEngine
from cometmq.client.send.transactions import Checker, TransactionResult, TransactionState
from cometmq.client.transaction_producer import callable_checker, check_local
from cometmq.remoting.bodies.message_queue import MessageQueue

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from typing_extensions import Unpack

    from cometmq._engine import SendResult
    from cometmq.client.send.producer_settings import ProducerOptions

__all__ = ["TransactionProducer"]


class TransactionProducer(Producer):
    """Sends messages that consumers see when their sender's local transaction has committed; and ordinary ones.

    Methods have the arguments and errors of :class:`cometmq.client.transaction_producer.TransactionProducer`'s. A
    checker is an ``async def`` function, which runs on the loop, or a plain one, which runs in a thread.
    """

    def __init__(
        self,
        group: str,
        *,
        checker: Checker,
        name_servers: str | Iterable[str] | None = None,
        executor: Executor | None = None,
        interceptors: Iterable[Interceptor] = (),
        **options: Unpack[ProducerOptions],
    ) -> None:
        """Connect to nobody yet."""
        super().__init__(group, name_servers=name_servers, interceptors=interceptors, **options)
        self._checker = callable_checker(checker)
        check_executor(executor)
        self._executor = executor

    def _opened(self) -> Coroutine[Any, Any, SendEngine]:
        return SendEngine.open(
            self.settings, interceptors=self._interceptors, checker=self._checker, executor=self._executor
        )

    def __repr__(self) -> str:
        """Return group and state."""
        return f"<aio.TransactionProducer {self.settings.group} {self.state.value}>"

    async def send_in_transaction(
        self,
        topic: str | OutgoingMessage,
        body: bytes | None = None,
        *,
        local: Callable[[SendResult], TransactionState | Awaitable[TransactionState | None] | None],
        tags: str | None = None,
        keys: str | None = None,
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        arg: Any = None,
        timeout_ms: int | None = None,
    ) -> TransactionResult:
        """Send a message, run the local transaction, and have the message delivered, or not, as that ended.

        ``local`` is an ``async def`` function, or a plain one, which runs on the loop and must not block. Cancelled
        within it, the outcome is UNKNOWN.
        """
        check_local(local)
        message = message_of(topic, body, tags, keys, properties, 0, sharding_key)
        engine = self._running()
        sent = await engine.begin_transaction(message, queue=queue, selector=selector, arg=arg, timeout_ms=timeout_ms)
        with engine.deciding(message, sent) as decision:
            if decision.is_open:
                outcome = local(sent)
                decision.outcome = await outcome if inspect.isawaitable(outcome) else outcome
        return TransactionResult(sent, decision.state)
