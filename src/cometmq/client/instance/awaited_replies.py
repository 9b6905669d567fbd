"""The replies that a client instance waits for, by correlation id, and the brokers' pushes that bring them (326).

A request waits here from before it is sent until its reply comes, its send fails or its time is over: whichever comes
first completes its future, once. A reply that nobody waits for is acknowledged all the same, or its replier would send
it again.

Threads: the loop's; a future may be used from any. Source: specification of transactions and filters 2.1.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import struct
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable, Generator
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from cometmq.client.instance.namespaces import without_namespace
from cometmq.errors import CorruptRecord, InvalidArgument, MalformedCommand, ReplyTimeout
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.members import Members

if TYPE_CHECKING:
    from cometmq._engine import ReceivedMessage

__all__ = ["AwaitedReplies", "ReplyFuture", "reply_of_push"]

_MAGIC = 0xDAA320A7
_HEAD = struct.Struct(">iIIiiqqi")
_COMPRESSION_MASK = 0x701
_BORN_IPV6, _STORE_IPV6 = 0x10, 0x20
_IPV4_BYTES = 4
_SHORT_MAX, _BYTE_MAX = 0x7FFF, 0x7F

_log = logging.getLogger(__name__)

if TYPE_CHECKING:
    _Future = concurrent.futures.Future[ReceivedMessage]
else:
    _Future = concurrent.futures.Future


class ReplyFuture(_Future):
    """The reply to a request, to come: a :class:`concurrent.futures.Future` that can be awaited, and not cancelled.

    Callbacks run on the producer's loop and must not block.
    """

    def __init__(self, require_other_thread: Callable[[], None]) -> None:
        """``require_other_thread`` raises on the loop, where nobody can wait for it."""
        super().__init__()
        self._require_other_thread = require_other_thread
        self.set_running_or_notify_cancel()

    def result(self, timeout: float | None = None) -> ReceivedMessage:
        """Return the reply; waits for it, ``timeout`` seconds at most.

        Raises:
            ReplyTimeout: none came in the request's time.
            Error: the request could not be sent.
            concurrent.futures.TimeoutError: ``timeout`` is over.
            ClientStateError: the caller is the loop, which would wait for itself.
        """
        if not self.done():
            self._require_other_thread()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error that :meth:`result` raises, or None after a reply."""
        if not self.done():
            self._require_other_thread()
        return super().exception(timeout)

    def __await__(self) -> Generator[Any, None, ReceivedMessage]:
        """Wait for the reply in a coroutine."""
        return asyncio.wrap_future(self).__await__()


@dataclass(slots=True, eq=False)
class _Waiting:
    """A request without a reply yet.

    Attributes:
        future: brings the reply.
        topic: the request's topic, as on the wire.
        timer: ends its time.
        is_stored: whether a broker has acknowledged it.
    """

    future: ReplyFuture
    topic: str
    timer: TimerHandle
    is_stored: bool = False


class AwaitedReplies:
    """The requests of one client instance that wait for their replies."""

    def __init__(
        self, loop: AbstractEventLoop, *, client_id: str, namespace: str | None, now_ms: Callable[[], int]
    ) -> None:
        """Wait for nothing yet.

        Args:
            loop: completes the futures.
            client_id: begins every line of the log.
            namespace: the prefix of topics that users do not see.
            now_ms: the wall clock.
        """
        self._loop = loop
        self._client_id = client_id
        self._namespace = namespace
        self._now_ms = now_ms
        self._waiting: dict[str, _Waiting] = {}

    def __repr__(self) -> str:
        """Return how many wait."""
        return f"AwaitedReplies({self._client_id}, {len(self._waiting)} wait)"

    def expect(self, correlation_id: str, future: ReplyFuture, *, topic: str, timeout_ms: int) -> None:
        """Complete a future with the reply of this id, or with :class:`ReplyTimeout` when its time is over."""
        timer = self._loop.call_later(timeout_ms / 1000, self._is_late, correlation_id, timeout_ms)
        self._waiting[correlation_id] = _Waiting(future, topic, timer)

    def sent(self, correlation_id: str, error: BaseException | None) -> None:
        """Note how the send of a request ended; a failed one ends the waiting."""
        if error is not None:
            self.fail(correlation_id, error)
        elif (waiting := self._waiting.get(correlation_id)) is not None:
            waiting.is_stored = True

    def fail(self, correlation_id: str, error: BaseException) -> None:
        """End the waiting for a reply; nothing where it has ended."""
        waiting = self._waiting.pop(correlation_id, None)
        if waiting is not None:
            waiting.timer.cancel()
            waiting.future.set_exception(error)

    def _is_late(self, correlation_id: str, timeout_ms: int) -> None:
        waiting = self._waiting[correlation_id]
        topic = without_namespace(self._namespace, waiting.topic)
        fate = "the request is stored" if waiting.is_stored else "the request was not acknowledged either"
        self.fail(
            correlation_id,
            ReplyTimeout(
                f"no reply to the request to topic {topic} came within {timeout_ms:,} ms; {fate}. Check that a "
                "consumer of the topic replies, or allow more time (timeout_ms)",
                topic=topic,
                correlation_id=correlation_id,
                is_stored=waiting.is_stored,
            ),
        )

    def take(self, address: str, command: Command) -> Command:
        """Take a reply that a broker pushes; return the acknowledgement."""
        try:
            reply = reply_of_push(command, now_ms=self._now_ms(), namespace=self._namespace)
        except (MalformedCommand, CorruptRecord, InvalidArgument) as error:
            _log.warning("%s: %s pushed a reply that cannot be read: %s", self._client_id, address, error)
            return command.response(ResponseCode.SYSTEM_ERROR, remark="process reply message fail")
        correlation_id = reply.properties.get("CORRELATION_ID", "")
        waiting = self._waiting.pop(correlation_id, None)
        if waiting is None:
            _log.info("%s: no request waits for the reply %s from %s", self._client_id, correlation_id, address)
        else:
            waiting.timer.cancel()
            waiting.future.set_result(reply)
        return command.response(ResponseCode.SUCCESS)


def reply_of_push(command: Command, *, now_ms: int, namespace: str | None = None) -> ReceivedMessage:
    """Return the message that a push (326) carries, with the property ``ARRIVE_TIME``.

    Raises:
        MalformedCommand: a member is missing, or is not what it must be.
        InvalidArgument: no record can hold the message.
        CorruptRecord: it cannot be read.
    """
    from cometmq import _engine

    members = Members(command.fields)
    topic, properties = members.required("topic").encode(), members.text("properties", "")
    separator = "" if not properties or properties.endswith("\x02") else "\x02"
    stored = f"{properties}{separator}ARRIVE_TIME\x01{now_ms}\x02".encode()
    if len(topic) > _BYTE_MAX or len(stored) > _SHORT_MAX:
        raise InvalidArgument(f"a topic of {len(topic)} bytes, and properties of {len(stored)}: too long for a message")
    born, born_is_ipv6 = _host(members.text("bornHost", ""))
    store, store_is_ipv6 = _host(members.text("storeHost", ""))
    sys_flag = members.required_int32("sysFlag") & _COMPRESSION_MASK
    sys_flag |= (_BORN_IPV6 if born_is_ipv6 else 0) | (_STORE_IPV6 if store_is_ipv6 else 0)
    rest = b"".join(
        (
            struct.pack(">q", members.required_int64("bornTimestamp")),
            born,
            struct.pack(">q", members.required_int64("storeTimestamp")),
            store,
            struct.pack(">iqi", members.int32("reconsumeTimes", 0), 0, len(command.body)),
            command.body,
            struct.pack(">B", len(topic)),
            topic,
            struct.pack(">H", len(stored)),
            stored,
        )
    )
    queue_id, flag = members.required_int32("queueId"), members.required_int32("flag")
    head = _HEAD.pack(_HEAD.size + len(rest), _MAGIC, _engine.crc31(command.body), queue_id, flag, 0, 0, sys_flag)
    messages = _engine.decode_pulled(
        head + rest,
        broker_name="",
        topic=without_namespace(namespace, topic.decode()),
        queue_id=queue_id,
        namespace=namespace,
    ).messages
    if len(messages) != 1:
        raise CorruptRecord("the reply's body cannot be read")
    return messages[0]


def _host(text: str) -> tuple[bytes, bool]:
    """Return a host as records have it, and whether it is one of IPv6; zeros for one that has no numeric address.

    Java's brokers write ``name/address:port``, the name often empty.
    """
    host, _, port = text.rpartition("/")[2].rpartition(":")
    try:
        packed = ip_address(host.strip("[]")).packed
        return packed + struct.pack(">i", int(port)), len(packed) > _IPV4_BYTES
    except (ValueError, struct.error):
        return bytes(_IPV4_BYTES + 4), False
