"""Interceptors: plain functions that see messages before and after they are sent and consumed.

They are for tracing, metering and filtering. Their exceptions are logged and change nothing for the message. They run
where the message is: before a send in the sender's thread, after it on the producer's loop, around a listener in its
worker; filters on the consumer's loop.

Source: consumption specification 1.17, 2.6 (upstream's SendMessageHook, ConsumeMessageHook and FilterMessageHook).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypeVar

from cometmq.client.arguments import plain_hook
from cometmq.errors import InvalidArgument

if TYPE_CHECKING:
    from cometmq._engine import ReceivedMessage
    from cometmq.client.send.outgoing import OutgoingMessage
    from cometmq.client.send.sending import SendResult
    from cometmq.remoting.bodies.message_queue import MessageQueue

__all__ = [
    "ConsumeContext",
    "Interceptor",
    "MessageFilter",
    "ReturnType",
    "SendContext",
    "interceptors_of",
    "run_hooks",
]

_LOG = logging.getLogger("cometmq.client")

C = TypeVar("C")


@dataclass(slots=True, kw_only=True)
class SendContext:
    """One message, or one batch, on its way out.

    Attributes:
        group: the producer group.
        topic: the topic.
        messages: the messages; several in a batch. Their bodies are as the caller gave them.
        unique_ids: their ids.
        queue: the queue of the first attempt, or None before it.
        address: the broker's ``host:port``, or None while it is not known.
        began_ms: milliseconds since 1970.
        elapsed_ms: how long it took with all attempts; after the send.
        result: the broker's answer, after a send that was acknowledged.
        error: why it was given up, after one that was not.
        data: for the interceptors, which find here after the call the values that they put here before it.
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
        data: for the interceptors, which find here after the call the values that they put here before it.
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
    """Up to five plain functions; those that are None are not called.

    Attributes:
        keep_message: called with each message that a push or pull consumer receives, before anything else sees it.
            Where it returns False the message counts as consumed and reaches no listener and no loop. It runs on the
            consumer's loop, where it must not block.
        before_send, after_send: called with a :class:`SendContext`, the same one both times.
        before_consume, after_consume: called with a :class:`ConsumeContext`.
    """

    keep_message: Callable[[ReceivedMessage], object] | None = None
    before_send: Callable[[SendContext], object] | None = None
    after_send: Callable[[SendContext], object] | None = None
    before_consume: Callable[[ConsumeContext], object] | None = None
    after_consume: Callable[[ConsumeContext], object] | None = None

    def __post_init__(self) -> None:
        """Check the functions.

        Raises:
            InvalidArgument: one is a class, cannot be called, or is an ``async def``, which nobody would await.
        """
        for each in fields(self):
            hook = getattr(self, each.name)
            if hook is not None:
                plain_hook(f"Interceptor({each.name}=...)", hook)


def interceptors_of(call: str, given: object) -> tuple[Interceptor, ...]:
    """Return the interceptors that ``interceptors=`` was given.

    Raises:
        InvalidArgument: it is no list of them.
    """
    takes = "it takes interceptors=[Interceptor(...), ...]"
    if not isinstance(given, Iterable):
        raise InvalidArgument(f"{call}() was given {given!r:.100}: {takes}")
    found = tuple(given)
    for each in found:
        if not isinstance(each, Interceptor):
            raise InvalidArgument(f"{call}(interceptors=...) was given {each!r:.100}: {takes}")
    return found


def run_hooks(hooks: Iterable[Callable[[C], object]], context: C) -> None:
    """Call each function; log what one raises, and go on."""
    for hook in hooks:
        try:
            hook(context)
        except BaseException as error:  # noqa: BLE001, PERF203 - it is the user's: logged, and the message goes on
            _log_unless_interrupted(error, "the interceptor %r raised; the message goes on", hook)


def _log_unless_interrupted(error: BaseException, text: str, *arguments: object) -> None:
    """Log an exception of a hook; raise it where it is Ctrl-C in the main thread."""
    if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
        raise error
    _LOG.warning(text, *arguments, exc_info=True)


class MessageFilter:
    """The ``keep_message`` functions of one consumer's interceptors."""

    def __init__(self, interceptors: Iterable[Interceptor] = ()) -> None:
        """Take the functions of those that filter."""
        self._hooks = [one.keep_message for one in interceptors if one.keep_message is not None]

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self._hooks)

    def keeps(self, message: ReceivedMessage) -> bool:
        """Return whether all functions keep a message; one that raises keeps it."""
        for hook in self._hooks:
            try:
                if not hook(message):
                    return False
            except BaseException as error:  # noqa: BLE001, PERF203 - as above
                _log_unless_interrupted(error, "the filter %r raised; %s is kept", hook, message)
        return True
