"""Records of upstream's message trace, and their form in trace messages.

A trace message holds records, each ended by byte 2, with fields divided by byte 1. :func:`decode_trace` reads those of
all client versions and passes over what it does not know.

Thread safety: any thread. Source: consumption specification 1.17; specification of transactions and filters 4.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from cometmq.remoting.members import flag_text

__all__ = [
    "TRACE_TOPIC",
    "EndTransactionTrace",
    "PubTrace",
    "RecallTrace",
    "SubAfterTrace",
    "SubBeforeTrace",
    "TraceRecord",
    "decode_trace",
    "encode_trace",
    "records_of",
]

TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
"""The topic of trace messages where no other is set."""

if TYPE_CHECKING:
    from cometmq._engine import Message

_FIELD = "\x01"
_END = "\x02"
_NO_MARKS = {1: " ", 2: " "}
_ABSENT = "null"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PubTrace:
    """A message was sent.

    Attributes:
        timestamp_ms: when the send began, milliseconds since 1970.
        region_id: the broker's region.
        group, topic, message_id, tags, keys: the producer group and the message; the id is its unique one.
        store_host: the broker, ``host:port``.
        body_bytes: length of the body.
        cost_ms: how long it took.
        message_type: 0 normal, 1 half of a transaction, 2 committed, 3 held back, 4 ordered.
        offset_message_id: the broker's id, or None in the form of old clients.
        is_success: True where it was stored as safely as asked.
        client_host: the client's address, where the client says it.
    """

    timestamp_ms: int
    region_id: str
    group: str
    topic: str
    message_id: str
    tags: str
    keys: str
    store_host: str
    body_bytes: int
    cost_ms: int
    message_type: int
    offset_message_id: str | None
    is_success: bool
    client_host: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SubBeforeTrace:
    """A message is given to a listener.

    Attributes:
        timestamp_ms: when, milliseconds since 1970.
        region_id: the broker's region.
        group: the consumer group.
        request_id: pairs this with the record of the end.
        message_id, keys: the message.
        retry_times: how often it was tried before.
    """

    timestamp_ms: int
    region_id: str
    group: str
    request_id: str
    message_id: str
    retry_times: int
    keys: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SubAfterTrace:
    """A listener is done with a message.

    Attributes:
        request_id: that of the beginning.
        message_id, keys: the message.
        cost_ms: how long it took, shared among the messages of the call.
        is_success: True where it was consumed.
        context_code: how the call ended: 0 well, 1 over the time, 2 by an exception, 3 without an answer, 4 failed.
        timestamp_ms, group: when and who; None in the form of old clients.
    """

    request_id: str
    message_id: str
    cost_ms: int
    is_success: bool
    keys: str
    context_code: int
    timestamp_ms: int | None = None
    group: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransactionTrace:
    """A transaction's outcome was sent to its broker. Recorded before the broker has answered.

    Attributes:
        timestamp_ms: when, milliseconds since 1970.
        region_id, group, topic, message_id, tags, keys, store_host: as of the message's sending.
        message_type: 2, committed, whatever the outcome; upstream writes no other.
        transaction_id: the transaction's id.
        state: ``COMMIT_MESSAGE``, ``ROLLBACK_MESSAGE`` or ``UNKNOW``.
        is_from_check: True where the broker had asked for it.
    """

    timestamp_ms: int
    region_id: str
    group: str
    topic: str
    message_id: str
    tags: str
    keys: str
    store_host: str
    message_type: int
    transaction_id: str
    state: str
    is_from_check: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallTrace:
    """A message that was held back was recalled.

    Attributes:
        timestamp_ms: when, milliseconds since 1970.
        region_id, group, topic, message_id: the recalling group and the message.
        is_success: whether the broker recalled it.
    """

    timestamp_ms: int
    region_id: str
    group: str
    topic: str
    message_id: str
    is_success: bool


TraceRecord: TypeAlias = PubTrace | SubBeforeTrace | SubAfterTrace | EndTransactionTrace | RecallTrace


# --- The form ---------------------------------------------------------------------------------------------------------


def encode_trace(record: TraceRecord) -> str:
    """Return a record as it stands in a trace message, with its end.

    An absent value is written as ``null``, as by upstream's client: upstream's reader drops empty fields at the end of
    a record, and then fails for the whole message.
    """
    values = _WRITERS[type(record)](record)
    return _FIELD.join(str(value).translate(_NO_MARKS) for value in values) + _END


def _pub_fields(record: PubTrace) -> tuple[object, ...]:
    return (
        "Pub",
        record.timestamp_ms,
        record.region_id,
        record.group,
        record.topic,
        record.message_id,
        record.tags or _ABSENT,
        record.keys or _ABSENT,
        record.store_host,
        record.body_bytes,
        record.cost_ms,
        record.message_type,
        record.offset_message_id or _ABSENT,
        flag_text(record.is_success),
    )


def _sub_before_fields(record: SubBeforeTrace) -> tuple[object, ...]:
    return (
        "SubBefore",
        record.timestamp_ms,
        record.region_id,
        record.group,
        record.request_id,
        record.message_id,
        record.retry_times,
        record.keys or _ABSENT,
    )


def _sub_after_fields(record: SubAfterTrace) -> tuple[object, ...]:
    own = (
        "SubAfter",
        record.request_id,
        record.message_id,
        record.cost_ms,
        flag_text(record.is_success),
        record.keys or _ABSENT,
        record.context_code,
    )
    return (*own, record.timestamp_ms or 0, record.group) if record.group else own


def _end_transaction_fields(record: EndTransactionTrace) -> tuple[object, ...]:
    return (
        "EndTransaction",
        record.timestamp_ms,
        record.region_id,
        record.group,
        record.topic,
        record.message_id,
        record.tags or _ABSENT,
        record.keys or _ABSENT,
        record.store_host,
        record.message_type,
        record.transaction_id or _ABSENT,
        record.state,
        flag_text(record.is_from_check),
    )


def _recall_fields(record: RecallTrace) -> tuple[object, ...]:
    return (
        "Recall",
        record.timestamp_ms,
        record.region_id,
        record.group,
        record.topic,
        record.message_id,
        flag_text(record.is_success),
    )


_WRITERS: dict[type, Callable[[Any], tuple[object, ...]]] = {
    PubTrace: _pub_fields,
    SubBeforeTrace: _sub_before_fields,
    SubAfterTrace: _sub_after_fields,
    EndTransactionTrace: _end_transaction_fields,
    RecallTrace: _recall_fields,
}


def decode_trace(text: str) -> list[TraceRecord]:
    """Return the records of a trace message that we know; others, and broken ones, are passed over."""
    found: list[TraceRecord] = []
    for part in text.split(_END):
        fields = part.split(_FIELD)
        read = _READERS.get(fields[0])
        if read is None:
            continue
        try:
            found.append(read(fields))
        except (IndexError, ValueError):
            _log.debug("a trace record that is none was passed over: %.80r", part)
    return found


def _read_pub(fields: list[str]) -> PubTrace:
    # 13 fields: no id of the broker's; from 15 on the last is the client's host.
    has_offset_id = len(fields) >= 14
    return PubTrace(
        timestamp_ms=int(fields[1]),
        region_id=fields[2],
        group=fields[3],
        topic=fields[4],
        message_id=fields[5],
        tags=_text(fields[6]),
        keys=_text(fields[7]),
        store_host=fields[8],
        body_bytes=int(fields[9]),
        cost_ms=int(fields[10]),
        message_type=int(fields[11]),
        offset_message_id=(_text(fields[12]) or None) if has_offset_id else None,
        is_success=fields[13 if has_offset_id else 12] == "true",
        client_host=fields[-1] if len(fields) >= 15 else None,
    )


def _read_sub_before(fields: list[str]) -> SubBeforeTrace:
    return SubBeforeTrace(
        timestamp_ms=int(fields[1]),
        region_id=fields[2],
        group=fields[3],
        request_id=fields[4],
        message_id=fields[5],
        retry_times=int(fields[6]),
        keys=_text(fields[7]),
    )


def _read_sub_after(fields: list[str]) -> SubAfterTrace:
    return SubAfterTrace(
        request_id=fields[1],
        message_id=fields[2],
        cost_ms=int(fields[3]),
        is_success=fields[4] == "true",
        keys=_text(fields[5]),
        context_code=int(fields[6]) if len(fields) >= 7 else 0,
        timestamp_ms=int(fields[7]) if len(fields) >= 9 else None,
        group=fields[8] if len(fields) >= 9 else None,
    )


def _read_end_transaction(fields: list[str]) -> EndTransactionTrace:
    return EndTransactionTrace(
        timestamp_ms=int(fields[1]),
        region_id=fields[2],
        group=fields[3],
        topic=fields[4],
        message_id=fields[5],
        tags=_text(fields[6]),
        keys=_text(fields[7]),
        store_host=fields[8],
        message_type=int(fields[9]),
        transaction_id=_text(fields[10]),
        state=fields[11],
        is_from_check=fields[12] == "true",
    )


def _read_recall(fields: list[str]) -> RecallTrace:
    return RecallTrace(
        timestamp_ms=int(fields[1]),
        region_id=fields[2],
        group=fields[3],
        topic=fields[4],
        message_id=fields[5],
        is_success=fields[6] == "true",
    )


def _text(field: str) -> str:
    return "" if field == _ABSENT else field


_READERS: dict[str, Callable[[list[str]], TraceRecord]] = {
    "Pub": _read_pub,
    "SubBefore": _read_sub_before,
    "SubAfter": _read_sub_after,
    "EndTransaction": _read_end_transaction,
    "Recall": _read_recall,
}


# --- Reading ----------------------------------------------------------------------------------------------------------


def records_of(unique_id: str, messages: Iterable[Message]) -> tuple[TraceRecord, ...]:
    """Return the records of one message among those of trace messages, in order of time.

    A record of a send without a client's address gets that of the trace message's sender, as upstream shows it. Java
    writes one record for a batch, with the ids of all its messages.
    """
    found: list[TraceRecord] = []
    for message in messages:
        for record in decode_trace(message.body_bytes.decode("utf-8", "replace")):
            if unique_id not in record.message_id.split(","):
                continue
            if isinstance(record, PubTrace) and record.client_host is None:
                record = replace(record, client_host=message.born_host[0])
            found.append(record)
    began_ms = {one.request_id: one.timestamp_ms for one in found if isinstance(one, SubBeforeTrace)}

    def time_of(record: TraceRecord) -> int:
        if isinstance(record, SubAfterTrace) and record.timestamp_ms is None:
            return began_ms.get(record.request_id, 0) + record.cost_ms
        return record.timestamp_ms or 0

    return tuple(sorted(found, key=time_of))
