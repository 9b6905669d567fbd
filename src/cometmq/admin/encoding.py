"""Messages on their way out: what a sender says, and how it stands in a request.

Source: remoting specification 2.2, 4.1 to 4.6.
"""

from __future__ import annotations

import itertools
import os
import socket
import struct
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from cometmq._engine import encode_properties
from cometmq.admin.servers import request
from cometmq.errors import InvalidArgument, MessageTooLarge
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import Command
from cometmq.store_config.names import DLQ_PREFIX, RETRY_PREFIX, TOPIC_CHARS_MAX

__all__ = [
    "BATCH_OVERHEAD_BYTES",
    "BODY_BYTES_MAX",
    "Encoded",
    "OutgoingMessage",
    "UniqueIds",
    "batch_request",
    "can_be_batched",
    "encode_message",
    "single_request",
]

BODY_BYTES_MAX = 4 << 20
"""What brokers take by default, of a message and of a whole batch: upstream's ``maxMessageSize``."""

BATCH_OVERHEAD_BYTES = 22
"""What each message of a batch takes beyond body and properties."""

_PROPERTY_BYTES_MAX = 32_767
_PROPERTY_ROOM_BYTES = 512  # the broker adds some of its own
_TEMPLATE_TOPIC = "TBW102"
_TEMPLATE_QUEUES = 4
_HEAD = struct.Struct(">iiiii")
_LENGTH = struct.Struct(">H")
_DELAY_LEVEL_MAX = 1_000  # how many there are is the broker's setting


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """A message to be sent.

    Attributes:
        body: its bytes.
        tags: its tag, or None.
        keys: its keys, several with blanks between, or None.
        properties: further names and values.
        delay_level: 1 for the broker's first delay (1 second by default) and so on; 0 for none.
        sharding_key: messages with the same one go to the same queue, in order.
        queue_id: the queue, where neither the sharding key nor the sender shall choose.
    """

    body: bytes
    tags: str | None = None
    keys: str | None = None
    properties: Mapping[str, str] | None = None
    delay_level: int = 0
    sharding_key: str | None = None
    queue_id: int | None = None


@dataclass(frozen=True, slots=True)
class Encoded:
    """A message as it stands in a batch, and what of it stands in a request of its own.

    Attributes:
        body: its bytes.
        properties: its properties in the stored form, without a unique id.
        is_delayed: True where it cannot be part of a batch.
        batch_bytes: what it takes in one.
    """

    body: bytes
    properties: bytes
    is_delayed: bool
    batch_bytes: int


def encode_message(message: OutgoingMessage) -> Encoded:
    """Check a message and encode its properties.

    Raises:
        InvalidArgument: a text that no property can hold, or a delay level that cannot be.
        MessageTooLarge: its properties are too long.
    """
    text = ""
    pairs = 0
    if message.tags:
        text += f"TAGS\x01{message.tags}\x02"
        pairs += 1
    if message.keys:
        text += f"KEYS\x01{message.keys}\x02"
        pairs += 1
    if message.sharding_key:
        text += f"__SHARDINGKEY\x01{message.sharding_key}\x02"
        pairs += 1
    if message.delay_level:
        if not 0 < message.delay_level <= _DELAY_LEVEL_MAX:
            raise InvalidArgument(f"delay_level is {message.delay_level}; levels begin with 1")
        text += f"DELAY\x01{message.delay_level}\x02"
        pairs += 1
    if text.count("\x01") != pairs or text.count("\x02") != pairs:
        raise InvalidArgument("tags, keys and sharding key must not hold \\x01 or \\x02, which divide properties")
    properties = text.encode()
    if message.properties:
        properties += encode_properties(message.properties)
    if len(properties) > _PROPERTY_BYTES_MAX - _PROPERTY_ROOM_BYTES:
        raise MessageTooLarge(
            f"the properties take {len(properties):,} bytes; at most {_PROPERTY_BYTES_MAX - _PROPERTY_ROOM_BYTES:,}"
        )
    batch_bytes = BATCH_OVERHEAD_BYTES + len(message.body) + len(properties)
    return Encoded(message.body, properties, message.delay_level != 0, batch_bytes)


def can_be_batched(topic: str) -> bool:
    """Tell whether brokers take batches for a topic: not for retry topics, and not for a name over 127 characters."""
    return len(topic) <= TOPIC_CHARS_MAX and not topic.startswith((RETRY_PREFIX, DLQ_PREFIX))


class UniqueIds:
    """Makes unique message ids as upstream's clients do.

    They are made of the address, the process, when it began, the time in the month, and a counter.
    """

    def __init__(self) -> None:
        """Look the machine's address and the process up."""
        head = _address() + struct.pack(">HI", os.getpid() & 0xFFFF, time.monotonic_ns() >> 8 & 0xFFFFFFFF)
        self._head = head.hex().upper()
        self._counter = itertools.count()
        self._month_begins_ms = 0
        self._month_ends_ms = 0

    def next(self, now_ms: int) -> str:
        """Return another one; ``now_ms`` is milliseconds since 1970."""
        if not self._month_begins_ms <= now_ms < self._month_ends_ms:
            begins = datetime.fromtimestamp(now_ms / 1000).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
            december = begins.month == 12
            ends = begins.replace(year=begins.year + december, month=1 if december else begins.month + 1)
            self._month_begins_ms = int(begins.timestamp() * 1000)
            self._month_ends_ms = int(ends.timestamp() * 1000)
        return f"{self._head}{now_ms - self._month_begins_ms:08X}{next(self._counter) & 0xFFFF:04X}"


def _address() -> bytes:
    """The machine's own IPv4 address; that of the loopback where it cannot be found out."""
    try:
        return socket.inet_aton(socket.gethostbyname(socket.gethostname()))
    except OSError:
        return socket.inet_aton("127.0.0.1")


def _header(
    code: int, topic: str, queue_id: int, group: str, now_ms: int, properties: bytes, body: bytes, *, batch: bool
) -> Command:
    return request(
        code,
        body=body,
        a=group,
        b=topic,
        c=_TEMPLATE_TOPIC,
        d=_TEMPLATE_QUEUES,
        e=queue_id,
        f=0,
        g=now_ms,
        h=0,
        i=properties.decode(),
        j=0,
        k=False,
        m=batch,
    )


def single_request(message: Encoded, *, topic: str, queue_id: int, group: str, unique_id: str, now_ms: int) -> Command:
    """Return the request that sends one message (310)."""
    properties = message.properties + f"UNIQ_KEY\x01{unique_id}\x02WAIT\x01true\x02".encode()
    return _header(RequestCode.SEND_MESSAGE_V2, topic, queue_id, group, now_ms, properties, message.body, batch=False)


def batch_request(
    messages: Iterable[Encoded], *, topic: str, queue_id: int, group: str, unique_id: str, now_ms: int
) -> Command:
    """Return the request that sends several messages at once (320).

    A broker stores the batch's unique id with each of them, also where they bring one of their own: they bring none.
    """
    pieces: list[bytes] = []
    for message in messages:
        body, properties = message.body, message.properties
        pieces += (_HEAD.pack(message.batch_bytes, 0, 0, 0, len(body)), body, _LENGTH.pack(len(properties)), properties)
    own = f"UNIQ_KEY\x01{unique_id}\x02WAIT\x01true\x02".encode()
    return _header(RequestCode.SEND_BATCH_MESSAGE, topic, queue_id, group, now_ms, own, b"".join(pieces), batch=True)
