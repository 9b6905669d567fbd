"""``consumerOrderInfo.json``: the batch that each queue of a group popping in order has out.

The key is ``topic@group``, then the queue id. A batch's offsets are the first one and the differences to it; values of
single messages are keyed by their offsets. Names of one or two letters are upstream's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, cast

from cometmq.store_config.consumer_offsets import offset_key
from cometmq.store_config.errors import ConfigValueError
from cometmq.store_config.fastjson import JavaList, JsonObject, JsonValue
from cometmq.store_config.fields import INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, Fields, as_int
from cometmq.store_config.nested_table import NestedTable

__all__ = ["ORDERED_BATCH_MAX", "OrderInfo", "OrderedBatch", "OrderedQueue"]

ORDERED_BATCH_MAX = 64
"""Messages of a batch; upstream has one bit for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderedBatch:
    """The batch popped from a queue last.

    Attributes:
        attempt: the pop's id, by which its client gets the same again; None: it gave none.
        pop_ms: when it was popped.
        invisible_ms: for how long; 0 where that was not said.
        used_ms: when the queue was popped last, by the broker's clock.
        acked: bit i is set when message i was consumed.
        offsets: of its messages, rising.
        visible_ms: offset to when the message is visible again, where that was changed; None: nowhere.
        times: offset to how often the message was delivered before, where it was; None: there was no batch before.
    """

    attempt: str | None = None
    pop_ms: int = 0
    invisible_ms: int = 0
    used_ms: int = 0
    acked: int = 0
    offsets: tuple[int, ...] = ()
    visible_ms: Mapping[int, int] | None = None
    times: Mapping[int, int] | None = None


class OrderedQueue(NamedTuple):
    """A queue of a group with its batch."""

    group: str
    topic: str
    queue_id: int
    batch: OrderedBatch


class OrderInfo(NestedTable[int, OrderedBatch]):
    """All batches. Threads and processes: see :class:`ManagedFile`."""

    file_name: ClassVar[str] = "consumerOrderInfo.json"

    _table_member: ClassVar[str] = "table"

    @staticmethod
    def _decode_key(name: str, path: str) -> int:
        return as_int(name, minimum=INT32_MIN, maximum=INT32_MAX, member=f"key of {path}")

    @staticmethod
    def _decode_entry(fields: Fields) -> OrderedBatch:
        return _batch(fields)

    @staticmethod
    def _encode_entry(name: str, key: int, entry: OrderedBatch) -> JsonObject:
        return _encode_batch(entry)

    def all(self) -> list[OrderedQueue]:
        """Return every batch that has messages, of keys that name a topic and a group."""
        with self._lock:
            found = []
            for key, queues in self._table.items():
                topic, separator, group = key.partition("@")
                if not separator or not topic or not group or "@" in group:
                    continue
                found += [OrderedQueue(group, topic, queue, batch) for queue, batch in queues.items() if batch.offsets]
            return found

    def replace(self, queues: Iterable[OrderedQueue]) -> None:
        """Make these the content, in memory; :meth:`persist` makes it durable."""
        table: dict[str, dict[int, OrderedBatch]] = {}
        for group, topic, queue_id, batch in queues:
            table.setdefault(offset_key(group, topic), {})[queue_id] = batch
        with self._lock:
            self._changed = self._changed or table != self._table
            self._table = table


def _int64(value: JsonValue, member: str) -> int:
    return as_int(value, minimum=INT64_MIN, maximum=INT64_MAX, member=member)


def _batch(fields: Fields) -> OrderedBatch:
    return OrderedBatch(
        attempt=fields.text("a", "") or None,
        pop_ms=fields.int64("popTime", 0),
        invisible_ms=max(fields.int64("i", 0), 0),
        used_ms=fields.int64("l", 0),
        acked=fields.int64("cm", 0) & (1 << ORDERED_BATCH_MAX) - 1,
        offsets=_offsets(fields),
        visible_ms=_by_offset(fields, "ot", INT64_MAX),
        times=_by_offset(fields, "oc", INT32_MAX),
    )


def _offsets(fields: Fields) -> tuple[int, ...]:
    found = [_int64(value, fields.member("o")) for value in fields.array("o") or []]
    if len(found) > ORDERED_BATCH_MAX:
        raise ConfigValueError(f"{len(found)} messages; {ORDERED_BATCH_MAX} is the most", member=fields.member("o"))
    offsets = tuple(found[:1] + [found[0] + difference for difference in found[1:]])
    is_rising = all(before < offset for before, offset in zip((-1, *offsets), offsets, strict=False))
    if not is_rising or (offsets and offsets[-1] >= INT64_MAX):
        raise ConfigValueError("offsets that do not rise from 0", member=fields.member("o"))
    return offsets


def _by_offset(fields: Fields, name: str, maximum: int) -> Mapping[int, int] | None:
    if not fields.has(name):
        return None
    return {
        _int64(offset, f"key of {path}"): as_int(value, minimum=0, maximum=maximum, member=path)
        for offset, value, path in fields.items(name)
    }


def _encode_batch(batch: OrderedBatch) -> JsonObject:
    first = batch.offsets[:1]
    sign = 1 << ORDERED_BATCH_MAX - 1
    members: dict[str, JsonValue] = {
        "a": batch.attempt,
        "cm": (batch.acked ^ sign) - sign,
        "i": batch.invisible_ms or None,
        "l": batch.used_ms,
        "o": JavaList([*first, *(offset - first[0] for offset in batch.offsets[1:])]),
        "oc": None if batch.times is None else cast(JsonObject, dict(batch.times)),
        "ot": None if batch.visible_ms is None else cast(JsonObject, dict(batch.visible_ms)),
        "popTime": batch.pop_ms,
    }
    return {name: value for name, value in members.items() if value is not None}
