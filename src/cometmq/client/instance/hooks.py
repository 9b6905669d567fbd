"""Interceptors: plain functions that see messages before and after they are sent and consumed.

They are for tracing, metering and signing. Their exceptions are logged and change nothing for the message. They run
where the message is: before a send in the sender's thread, after it on the producer's loop, around a listener in its
worker.

Source: consumption specification 1.17, 2.6 (upstream's SendMessageHook and ConsumeMessageHook).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from cometmq._engine import ReceivedMessage
    from cometmq.client.send.outgoing import OutgoingMessage
    from cometmq.client.send.sending import SendResult
    from cometmq.remoting.bodies.message_queue import MessageQueue

__all__ = ["ConsumeContext", "Interceptor", "ReturnType", "SendContext", "run_hooks"]

_LOG = logging.getLogger("cometmq.client")

C = TypeVar("C")


@dataclass(slots=True, kw_only=True)
class SendContext:
    """One message, or one batch, on its way out.

    Attributes:
        group: the producer group.
        topic: the topic.
        messages: what is sent; several in a batch. Their bodies are as the caller gave them.
        unique_ids: their ids.
        queue: the queue of the first attempt, or None before it.
        address: the broker's ``host:port``, or None while it is not known.
        began_ms: milliseconds since 1970.
        elapsed_ms: how long it took with all attempts; after the send.
        result: what the broker said, after a send that was acknowledged.
        error: why it was given up, after one that was not.
        data: for the interceptors: what is put here before is there after.
    """

    group: str
    topic: str
    messages: Sequence[OutgoingMessage]
    unique_ids: Sequence[str]
    queue: MessageQueue | None
    address: str | None
    began_ms: int
    elapsed_ms: float = 0.0
    result: SendResult | None = None
    error: BaseException | None = None
    data: dict[str, Any] = field(default_factory=dict)


class ReturnType(IntEnum):
    """How a call of a listener ended, with upstream's numbers (ConsumeReturnType)."""

    SUCCESS = 0
    TIME_OUT = 1
    """It took longer than the consume time-out."""
    EXCEPTION = 2
    RETURN_NULL = 3
    """It answered nothing that can be an answer."""
    FAILED = 4
    """The messages are to be tried again."""


@dataclass(slots=True, kw_only=True)
class ConsumeContext:
    """The messages and the queue of one call of a listener.

    Attributes:
        group: the consumer group.
        queue: the queue.
        messages: the messages.
        began_ms: milliseconds since 1970.
        elapsed_ms: how long the listener took; after it.
        is_success: True where all were consumed; after it.
        return_type: how it ended; after it.
        data: for the interceptors: what is put here before is there after.
    """

    group: str
    queue: MessageQueue
    messages: Sequence[ReceivedMessage]
    began_ms: int
    elapsed_ms: float = 0.0
    is_success: bool = False
    return_type: ReturnType = ReturnType.SUCCESS
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interceptor:
    """Up to four functions; those that are None are not called.

    Attributes:
        before_send, after_send: called with a :class:`SendContext`, the same one both times.
        before_consume, after_consume: called with a :class:`ConsumeContext`.
    """

    before_send: Callable[[SendContext], object] | None = None
    after_send: Callable[[SendContext], object] | None = None
    before_consume: Callable[[ConsumeContext], object] | None = None
    after_consume: Callable[[ConsumeContext], object] | None = None


def run_hooks(hooks: Iterable[Callable[[C], object]], context: C) -> None:
    """Call each function; log what one raises, and go on."""
    for hook in hooks:
        try:
            hook(context)
        except BaseException as error:  # noqa: PERF203 - it is the user's: logged, and the message goes on
            if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                raise
            _LOG.warning("the interceptor %r raised; the message goes on", hook, exc_info=True)
