"""Outgoing messages: their fields, the checks, and their form in a request or a batch.

Properties are encoded once, when a message is taken; its unique id and ``WAIT`` are put behind them. Nothing here knows
of queues, brokers or retries.

Source: remoting specification 2.2, 4.1 to 4.6; consumption specification 2.3, 2.7, 2.11.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cometmq._engine import OutgoingMessage, check_tag, encode_properties
from cometmq._seconds import check_milliseconds
from cometmq.client.arguments import whole_number
from cometmq.errors import InvalidArgument, InvalidTopic, MessageTooLarge
from cometmq.remoting.codes import ResponseCode
from cometmq.store_config.names import DLQ_PREFIX, RETRY_PREFIX, TOPIC_CHARS_MAX, may_send_to, validate_topic

__all__ = [
    "BATCH_OVERHEAD_BYTES",
    "BODY_BYTES_MAX",
    "DELAYS",
    "REPLY_PROPERTIES",
    "SPECIAL_PROPERTIES",
    "STATUS_OF",
    "TEMPLATE_QUEUES",
    "TEMPLATE_TOPIC",
    "Encoded",
    "OutgoingMessage",
    "SendStatus",
    "batch_body",
    "can_be_batched",
    "check_body",
    "check_topic",
    "encode_message",
    "is_plain",
    "message_of",
    "own_properties",
    "stored_properties",
]

BODY_BYTES_MAX = 4 << 20
"""The largest message or batch that brokers take by default: upstream's ``maxMessageSize``."""

BATCH_OVERHEAD_BYTES = 22
"""Bytes of each message of a batch beyond body and properties."""

TEMPLATE_TOPIC = "TBW102"
"""The topic after which brokers make one that is sent to and is not there."""
TEMPLATE_QUEUES = 4

_PROPERTY_BYTES_MAX = 32_767
_PROPERTY_ROOM_BYTES = 512  # the broker adds some of its own
_HEAD = struct.Struct(">iiiii")
_LENGTH = struct.Struct(">H")
_DELAY_LEVEL_MAX = 18  # upstream's default; a broker takes a higher level for its highest
DELAYS = frozenset({"DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"})
"""Properties of messages that are held back."""
_LIGHT_QUEUES = "INNER_MULTI_DISPATCH"

REPLY_PROPERTIES: Mapping[str, str] = {"MSG_TYPE": "reply"}
"""The mark of a reply to a request, which goes out under a code of its own."""

SPECIAL_PROPERTIES = DELAYS | {
    *REPLY_PROPERTIES,
    *("TAGS", "KEYS", "WAIT", "UNIQ_KEY", "TRAN_MSG", "RECONSUME_TIME", "MAX_RECONSUME_TIMES"),
    _LIGHT_QUEUES,
}
"""Names of properties that a client refuses, or sends the message another way for."""


class SendStatus(enum.Enum):
    """A broker's promise for a message that it stored."""

    SEND_OK = "SEND_OK"
    """As its settings say: on disk under synchronous flush, in the page cache otherwise."""
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    """Stored; it was not on disk in time."""
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    """Stored; the slave did not have it in time."""
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"
    """Stored; no slave has it."""


STATUS_OF: Mapping[int, SendStatus] = {
    ResponseCode.SUCCESS: SendStatus.SEND_OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: SendStatus.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: SendStatus.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: SendStatus.SLAVE_NOT_AVAILABLE,
}
"""The codes that say that a message was stored. Any other one is a refusal."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A message as it stands in a batch, and what of it stands in a request of its own.

    Attributes:
        body: its bytes.
        properties: its properties in the stored form, without a unique id.
        is_delayed: True where it cannot be part of a batch.
        batch_bytes: its size in a batch.
        flag: the sender's own number.
    """

    body: bytes
    properties: bytes
    is_delayed: bool
    batch_bytes: int
    flag: int = 0


def encode_message(message: OutgoingMessage) -> Encoded:
    """Check a message and encode its properties.

    Raises:
        InvalidArgument, MessageTooLarge: as :func:`stored_properties`.
    """
    properties, is_delayed = stored_properties(message)
    batch_bytes = BATCH_OVERHEAD_BYTES + len(message.body) + len(properties)
    return Encoded(message.body, properties, is_delayed, batch_bytes, message.flag)


def stored_properties(message: OutgoingMessage, *, is_again: bool = False) -> tuple[bytes, bool]:
    """Return what a message says besides its body, in the stored form, and whether it is to be held back.

    Args:
        message: the message.
        is_again: it was stored before, by whomever, and is sent again as it is: no subscription need name its tag.

    Raises:
        InvalidArgument: a text that no property can hold, a tag that no subscription can name, or a delay that cannot
            be.
        MessageTooLarge: they are too long.
    """
    tags, keys, sharding_key = message.tags, message.keys, message.sharding_key
    properties: Any = message.properties
    texts: tuple[tuple[str, object], ...] = (("tags", tags), ("keys", keys), ("sharding_key", sharding_key))
    for name, value in texts:
        if value is not None and not isinstance(value, str):
            several = "; several keys are one text with blanks between" if name == "keys" else ""
            raise InvalidArgument(f"{name} is text, not {type(value).__name__}{several}")
    if properties is not None and not isinstance(properties, Mapping):
        raise InvalidArgument(f"properties are names and values, a mapping, not {type(properties).__name__}")
    text = ""
    pairs = 0
    if tags:
        text = f"TAGS\x01{tags}\x02"
        pairs = 1
    if keys:
        text += f"KEYS\x01{keys}\x02"
        pairs += 1
    if sharding_key:
        text += f"__SHARDINGKEY\x01{sharding_key}\x02"
        pairs += 1
    is_delayed = False
    if message.delay_level or message.delay_ms is not None or message.deliver_at_ms is not None:
        text += _delay_property(message.delay_level, message.delay_ms, message.deliver_at_ms)
        pairs += 1
        is_delayed = True
    if text.count("\x01") != pairs or text.count("\x02") != pairs:
        raise InvalidArgument("tags, keys and sharding key must not hold \\x01 or \\x02, which divide properties")
    try:
        stored = text.encode()
    except UnicodeError as error:
        raise InvalidArgument(f"tags, keys and sharding key must be text that UTF-8 can hold: {error}") from error
    if tags and not is_again:
        check_tag(tags)
    if properties:
        if "/" in properties.get(_LIGHT_QUEUES, ""):
            raise InvalidArgument(f"the property {_LIGHT_QUEUES} names light queues, and their names have no '/'")
        if "WAIT" in properties and "UNIQ_KEY" not in properties:
            raise InvalidArgument("give WAIT as the message's wait_stored, not among the properties")
        stored += encode_properties(properties)
        is_delayed = is_delayed or not DELAYS.isdisjoint(properties)
    if len(stored) > _PROPERTY_BYTES_MAX - _PROPERTY_ROOM_BYTES:
        raise MessageTooLarge(
            f"the properties take {len(stored):,} bytes; at most {_PROPERTY_BYTES_MAX - _PROPERTY_ROOM_BYTES:,}"
        )
    return stored, is_delayed


def _delay_property(delay_level: Any, delay_ms: int | None, deliver_at_ms: int | None) -> str:
    if sum(one is not None for one in (delay_level or None, delay_ms, deliver_at_ms)) > 1:
        raise InvalidArgument("a message is held back by delay_level, delay_ms or deliver_at_ms; give one of them")
    if delay_level:
        if not isinstance(delay_level, int) or not 0 < delay_level <= _DELAY_LEVEL_MAX:
            raise InvalidArgument(
                f"delay_level is {delay_level!r}; expected 1 (1 s) to {_DELAY_LEVEL_MAX} (2 h): a broker takes a "
                "higher level for its highest. Give delay_ms for any other time, or properties={'DELAY': ...} where "
                "the broker's messageDelayLevel has more levels"
            )
        return f"DELAY\x01{delay_level}\x02"
    if delay_ms is not None:
        return f"TIMER_DELAY_MS\x01{whole_number('delay_ms', delay_ms)}\x02"
    moment = check_milliseconds("deliver_at_ms", whole_number("deliver_at_ms", deliver_at_ms, minimum=None))
    return f"TIMER_DELIVER_MS\x01{moment}\x02"


def message_of(
    topic: str | OutgoingMessage,
    body: bytes | None,
    tags: str | None,
    keys: str | None,
    properties: Mapping[str, str] | None,
    delay_level: int,
    sharding_key: str | None,
    delay_ms: int | None = None,
    deliver_at_ms: int | None = None,
) -> OutgoingMessage:
    """Return the message that the arguments of a send are: a message, or a topic and what it is made of.

    Raises:
        InvalidArgument: they are both, or neither.
    """
    if isinstance(topic, OutgoingMessage):
        others = (body, tags, keys, properties, sharding_key, delay_ms, deliver_at_ms)
        if not delay_level and all(other is None for other in others):
            return topic
        raise InvalidArgument("give a message, or a topic and what the message is made of; not both")
    if isinstance(body, OutgoingMessage):
        raise InvalidArgument("a message brings its own topic: send(OutgoingMessage(body, topic=...))")
    given: object = topic
    if not isinstance(given, str):
        raise InvalidArgument(f"a topic is text, not {type(given).__name__}: send(topic, body)")
    if body is None:
        raise InvalidArgument("a message has a body: send(topic, body)")
    return OutgoingMessage(
        body,
        tags,
        keys,
        properties,
        delay_level,
        sharding_key,
        topic=topic,
        delay_ms=delay_ms,
        deliver_at_ms=deliver_at_ms,
    )


def is_plain(message: OutgoingMessage) -> bool:
    """Return whether a message is body, tags, keys, sharding key and properties, and nothing besides."""
    return (
        message.queue_id is None
        and not message.delay_level
        and message.delay_ms is None
        and message.deliver_at_ms is None
        and not message.flag
        and message.wait_stored
    )


def own_properties(unique_id: str, *, wait_stored: bool = True) -> bytes:
    """Return the properties that every request has, in the stored form."""
    return f"UNIQ_KEY\x01{unique_id}\x02WAIT\x01{'true' if wait_stored else 'false'}\x02".encode()


def check_topic(topic: str) -> str:
    """Return a topic that a client may send to.

    Raises:
        InvalidTopic: upstream would refuse the name, or it is one of the system's own that take nothing from clients.
    """
    validate_topic(topic)
    if not may_send_to(topic):
        raise InvalidTopic(f"the topic {topic} is the broker's own; clients cannot send to it")
    return topic


def check_body(body: object, *, max_bytes: int) -> bytes:
    """Return the body of a message as bytes.

    Raises:
        InvalidArgument: it is not bytes, or is empty.
        MessageTooLarge: it is longer than ``max_bytes``, the producer's ``max_message_size_bytes``.
    """
    if type(body) is not bytes:
        if isinstance(body, str) or not isinstance(body, (bytes, bytearray, memoryview)):
            raise InvalidArgument(f"a body is bytes, not {type(body).__name__}; encode a text first: text.encode()")
        body = bytes(body)
    if not body:
        raise InvalidArgument("the body is empty; brokers refuse such a message")
    if len(body) > max_bytes:
        raise MessageTooLarge(
            f"the body has {len(body):,} bytes; max_message_size_bytes is {max_bytes:,}. Split the message, or raise "
            "the limit here and at the brokers (maxMessageSize)"
        )
    return body


def can_be_batched(topic: str) -> bool:
    """Return whether brokers take batches for a topic: not for retry topics, and not for a name over 127 characters."""
    return len(topic) <= TOPIC_CHARS_MAX and not topic.startswith((RETRY_PREFIX, DLQ_PREFIX))


def batch_body(records: Iterable[tuple[bytes, bytes, int]]) -> bytes:
    """Return the body of a batch: one record after the other, each of (body, properties, flag)."""
    pieces: list[bytes] = []
    for body, properties, flag in records:
        size = BATCH_OVERHEAD_BYTES + len(body) + len(properties)
        pieces += (_HEAD.pack(size, 0, 0, flag, len(body)), body, _LENGTH.pack(len(properties)), properties)
    return b"".join(pieces)
