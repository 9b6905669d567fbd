"""Messages as JSON objects: the output of ``--format json`` for stored ones, or written by hand.

Members that the object lacks are taken from the options of the command line. Members about the place and the time of a
stored message are ignored: a message that is sent again gets its own.

Threads: any.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from cometmq.client.send.outgoing import OutgoingMessage
from cometmq.errors import InvalidArgument

if TYPE_CHECKING:
    from cometmq.cli.records import RecordOptions

__all__ = ["whole_message"]

_OF_A_MESSAGE = frozenset(
    ("body", "body_encoding", "tags", "keys", "properties", "sharding_key", "queue", "delay_level")
)
_STORED = """
    topic broker_name queue_id queue_offset physical_offset record_bytes message_id unique_id store_timestamp_ms
    born_timestamp_ms store_host born_host flag sys_flag reconsume_times prepared_transaction_offset body_crc body_bytes
    body_problem
"""
_OF_A_STORED_ONE = frozenset(_STORED.split())
_SHARDING_KEY = "__SHARDINGKEY"
_SYSTEM = """
    1ST_POP_TIME ARRIVE_TIME BORN_TIMESTAMP BUYER_ID CHECK_IMMUNITY_TIME_IN_SECONDS CLUSTER CONSUME_START_TIME
    CORRECTION_FLAG CORRELATION_ID DELAY DLQ_ORIGIN_MESSAGE_ID DLQ_ORIGIN_TOPIC DUP_INFO EXTEND_UNIQ_INFO INNER_BASE
    INNER_MULTI_DISPATCH INNER_MULTI_QUEUE_OFFSET INNER_NUM INSTANCE_ID KEYS MAX_OFFSET MAX_RECONSUME_TIMES MIN_OFFSET
    MQ2_FLAG MSG_REGION MSG_TYPE ORIGIN_MESSAGE_ID PGROUP POP_CK POP_CK_OFFSET PROPERTY_FORWARD_QUEUE_ID PUSH_REPLY_TIME
    REAL_QID REAL_TOPIC RECONSUME_TIME REDIRECT REPLY_TO_CLIENT RETRY_TOPIC TAGS TIMER_DELAY_LEVEL TIMER_DELAY_MS
    TIMER_DELAY_SEC TIMER_DELIVER_MS TIMER_DEL_UNIQKEY TIMER_DEQUEUE_MS TIMER_ENQUEUE_MS TIMER_OUT_MS TIMER_ROLL_TIMES
    TRACE_ON TRANSACTION_CHECK_TIMES TRAN_MSG TRAN_PREPARED_QUEUE_OFFSET TRANSFER_FLAG TTL UNIQ_KEY WAIT __BORNHOST
    __SHARDINGKEY __transactionId__
"""
_OF_THE_SYSTEM = frozenset(_SYSTEM.split())
"""Properties in which clients and brokers pass on a message's state; its copy begins without them."""


def whole_message(values: dict[str, object], options: RecordOptions, *, where: str) -> OutgoingMessage:
    """Make a message of an object.

    Args:
        values: the object.
        options: say what the object does not.
        where: names the object in errors.

    Raises:
        InvalidArgument: a member does not belong to a message, or has the wrong type.
    """
    unknown = values.keys() - _OF_A_MESSAGE - _OF_A_STORED_ONE
    if unknown:
        raise InvalidArgument(
            f"{where}: unknown field {', '.join(sorted(unknown))}; known fields: {', '.join(sorted(_OF_A_MESSAGE))}"
        )
    stored = _texts_of(values.get("properties"), where)
    own = {name: text for name, text in stored.items() if name not in _OF_THE_SYSTEM}
    return OutgoingMessage(
        _body_of(values, where),
        _text_of(values, "tags", where) or options.tags,
        _keys_of(values.get("keys"), where) or options.keys,
        {**(options.properties or {}), **own} or None,
        _number_of(values, "delay_level", where) or options.delay_level,
        _text_of(values, "sharding_key", where) or stored.get(_SHARDING_KEY) or options.sharding_key,
        options.queue_id if values.get("queue") is None else _number_of(values, "queue", where),
        options.topic,
    )


def _body_of(values: dict[str, object], where: str) -> bytes:
    text, encoding = values.get("body"), values.get("body_encoding", "utf-8")
    if not isinstance(text, str):
        raise InvalidArgument(f"{where}: body must be a string; for bytes use base64 with body_encoding base64")
    try:
        if encoding == "utf-8":
            return text.encode()
        if encoding == "base64":
            return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise InvalidArgument(f"{where}: body is not valid {encoding}: {error}") from None
    raise InvalidArgument(f"{where}: body_encoding is {encoding!r}, expected utf-8 or base64")


def _text_of(values: dict[str, object], name: str, where: str) -> str | None:
    value = values.get(name)
    if value is None or isinstance(value, str):
        return value
    raise InvalidArgument(f"{where}: {name} is {value!r}, expected a string")


def _number_of(values: dict[str, object], name: str, where: str) -> int:
    value = values.get(name)
    if value is None:
        return 0
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise InvalidArgument(f"{where}: {name} is {value!r}, expected a number of at least 0")


def _keys_of(value: object, where: str) -> str | None:
    """Return keys as they are sent: given as a text with blanks between them, or as a list."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return " ".join(value)
    raise InvalidArgument(f"{where}: keys are {value!r}, expected a string or a list of strings")


def _texts_of(value: object, where: str) -> dict[str, str]:
    if value is None:
        return {}
    if isinstance(value, dict) and all(isinstance(one, str) for one in value.values()):
        return value
    raise InvalidArgument(f"{where}: properties are {value!r}, expected an object of strings")
