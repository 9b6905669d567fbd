"""The blocking producer of transactional messages, on CometMQ's brokers and Apache's.

::

    def check(message):
        return TransactionState.COMMIT if is_booked(message.unique_id) else TransactionState.ROLLBACK

    with TransactionProducer("orders-api", checker=check, name_servers="127.0.0.1:9876") as producer:
        producer.send_in_transaction("orders", b"...", local=lambda sent: book(sent.unique_id))

All logic is in :mod:`cometmq.client.send.transactions`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from cometmq.client.arguments import check_executor, hook_instance
from cometmq.client.instance.hooks import Interceptor
from cometmq.client.producer import Producer
from cometmq.client.send.outgoing import OutgoingMessage, message_of
from cometmq.client.send.queue_selection import QueueSelector
from cometmq.client.send.send_engine import SendEngine
from cometmq.client.send.transactions import Checker, TransactionResult, TransactionState
from cometmq.errors import InvalidArgument, WrongType
from cometmq.remoting.bodies.message_queue import MessageQueue

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from typing_extensions import Unpack

    from cometmq._engine import SendResult
    from cometmq.client.send.producer_settings import ProducerOptions

__all__ = ["TransactionProducer"]


class TransactionProducer(Producer):
    """Sends messages that consumers see when their sender's local transaction has committed; and ordinary ones.

    Threads: as for :class:`Producer`. A plain checker runs in a thread, one call at a time; an ``async def`` one on the
    background loop.
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
        """Connect to nobody yet.

        Args:
            group: the producer group. Brokers ask any of its members, so that all have the same checker.
            checker: gets a half message whose outcome its broker does not know, and returns it: the local transaction
                was interrupted, returned None or UNKNOWN, or its outcome was lost on the way. Brokers ask again while
                it is unknown, 15 times by default, once every 30 s. An exception counts as UNKNOWN.
            name_servers, interceptors, options: as for :class:`Producer`.
            executor: where a plain checker runs; it stays the user's.

        Raises:
            InvalidArgument: there is no such option, or the checker cannot be called,
                or one of them is a class.
        """
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
        return f"<TransactionProducer {self.settings.group} {self.state.value}>"

    def send_in_transaction(
        self,
        topic: str | OutgoingMessage,
        body: bytes | None = None,
        *,
        local: Callable[[SendResult], TransactionState | None],
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

        The message is stored first, where nobody sees it. An attempt without an answer may leave another one behind,
        whose outcome nobody sends: the broker asks the checker for it, by the same transaction id.

        Args:
            topic, body, tags, keys, properties, sharding_key, queue, selector, arg, timeout_ms: as :meth:`send`. The
                message cannot be held back.
            local: the local transaction, called in this thread. It gets where the message is stored, with the
                transaction's id (``unique_id``), and returns COMMIT, ROLLBACK or UNKNOWN; None is UNKNOWN. After an
                exception the outcome is UNKNOWN, and the exception is raised here.

        Returns:
            Where the half message is stored (``sent.queue_offset`` is its own: the delivered message has another),
            and the outcome that its broker was sent. A message that is less safe than asked (``sent.status``) is rolled
            back without ``local``.

        Raises:
            SendFailed, RouteNotFound: the message is not known to be stored; ``local`` was not called.
            InvalidArgument, InvalidTopic, MessageTooLarge, ClientStateError: as :meth:`send`.
            WrongType: ``local`` is not a plain function (nothing was stored), or it returned something else.
            BaseException: that of ``local``.
        """
        check_local(local)
        if inspect.iscoroutinefunction(local) or inspect.iscoroutinefunction(type(local).__call__):
            raise WrongType(f"local is {local!r}, an async function: use the producer of cometmq.aio")
        message = message_of(topic, body, tags, keys, properties, 0, sharding_key)
        engine = self._running()
        engine.attempts.require_other_thread()
        sent = engine.begin_transaction(
            message, queue=queue, selector=selector, arg=arg, timeout_ms=timeout_ms
        ).result()
        with engine.deciding(message, sent) as decision:
            if decision.is_open:
                decision.outcome = local(sent)
        return TransactionResult(sent, decision.state)


def callable_checker(checker: object) -> Checker:
    """Return a checker that was given.

    Raises:
        InvalidArgument: it is a class, or cannot be called.
    """
    hook_instance("checker", checker)
    if not callable(checker):
        raise InvalidArgument(f"checker is {checker!r}; give a function that takes a message")
    return checker


def check_local(local: object) -> None:
    """Check, before the half message is stored, that a local transaction can be called.

    Raises:
        InvalidArgument: it is a class.
        WrongType: it cannot.
    """
    hook_instance("local", local)
    if not callable(local):
        raise WrongType(f"local is {local!r}; give a function that takes a SendResult")
