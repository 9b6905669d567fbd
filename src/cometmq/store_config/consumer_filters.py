"""``consumerFilter.json``: the SQL92 expressions that groups subscribe with, by topic and group.

``dead`` is derived, and ignored on reading. A file whose Bloom data are of other settings is dropped whole, as upstream
drops it: bits of other sizes mean nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from cometmq.store_config.fastjson import JsonObject, JsonValue, bean
from cometmq.store_config.fields import Fields
from cometmq.store_config.file_ops import SYSTEM_FILE_OPS, FileOps
from cometmq.store_config.managed import ManagedFile

__all__ = ["ConsumerFilter", "ConsumerFilters"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerFilter:
    """An expression that a group subscribes to a topic with.

    Attributes:
        topic, group: the names.
        expression, expression_type: the text, and SQL92.
        client_version: the subscription's version, milliseconds; a newer one wins.
        born_ms: when the expression came.
        dead_ms: when its last member left it; 0: never.
        bits, positions: the size of the Bloom filter, and the expression's places in it.
    """

    topic: str
    group: str
    expression: str
    expression_type: str = "SQL92"
    client_version: int = 0
    born_ms: int = 0
    dead_ms: int = 0
    bits: int = 0
    positions: tuple[int, ...] = ()

    @property
    def is_dead(self) -> bool:
        """Whether nobody subscribes with it any more."""
        return self.dead_ms >= self.born_ms


class ConsumerFilters(ManagedFile):
    """All of them. Threads and processes: see :class:`ManagedFile`."""

    file_name: ClassVar[str] = "consumerFilter.json"

    def __init__(self, folder: Path, *, bits: int, places: int, file_ops: FileOps = SYSTEM_FILE_OPS) -> None:
        """Start empty; ``bits`` and ``places`` of the Bloom filter as the settings make it."""
        super().__init__(folder, file_ops=file_ops)
        self._size = (bits, places)
        self._reset()

    def _reset(self) -> None:
        self._table: dict[str, dict[str, ConsumerFilter]] = {}
        self._chars = 0
        self._unknown: JsonObject = {}

    def _decode(self, fields: Fields) -> Callable[[], None]:
        table: dict[str, dict[str, ConsumerFilter]] = {}
        topics = fields.fields("filterDataByTopic")
        for topic in [] if topics is None else topics.names():
            of_topic = topics.fields(topic) if topics is not None else None
            groups = None if of_topic is None else of_topic.fields("groupFilterData")
            for group in [] if groups is None else groups.names():
                entry = None if groups is None else groups.fields(group)
                if entry is not None:
                    table.setdefault(str(topic), {})[str(group)] = _decode_filter(str(topic), str(group), entry)
        if any((one.bits, len(one.positions)) != self._size for groups in table.values() for one in groups.values()):
            table = {}
        unknown = fields.others(("filterDataByTopic",))

        def take_over() -> None:
            self._table = table
            self._chars = sum(len(one.expression) for groups in table.values() for one in groups.values())
            self._unknown = unknown

        return take_over

    def _snapshot(self) -> Callable[[], JsonObject]:
        topics: JsonObject = {
            topic: bean(
                {"groupFilterData": {group: _encode_filter(one) for group, one in groups.items()}, "topic": topic}
            )
            for topic, groups in self._table.items()
        }
        unknown = self._unknown
        return lambda: bean({"filterDataByTopic": topics}, unknown)

    @property
    def chars(self) -> int:
        """Characters of all expressions."""
        with self._lock:
            return self._chars

    def get(self, topic: str, group: str) -> ConsumerFilter | None:
        """Return a group's filter of a topic, dead or alive; None where there is none."""
        with self._lock:
            return self._table.get(topic, {}).get(group)

    def put(self, one: ConsumerFilter) -> None:
        """Add a filter, or replace it."""
        with self._lock:
            groups = self._table.setdefault(one.topic, {})
            old = groups.get(one.group)
            self._chars += len(one.expression) - (0 if old is None else len(old.expression))
            groups[one.group] = one
            self._changed = True

    def remove(self, topic: str, group: str) -> None:
        """Forget a filter."""
        with self._lock:
            old = self._table.get(topic, {}).pop(group, None)
            if old is not None:
                self._chars -= len(old.expression)
                self._changed = True
            if not self._table.get(topic, {"": None}):
                del self._table[topic]

    def remove_same(self, one: ConsumerFilter) -> None:
        """Forget a filter, unless it changed meanwhile."""
        with self._lock:
            if self._table.get(one.topic, {}).get(one.group) is one:
                self.remove(one.topic, one.group)

    def of_group(self, group: str) -> list[ConsumerFilter]:
        """Return a group's filters."""
        with self._lock:
            return [groups[group] for groups in self._table.values() if group in groups]

    def bury(self, one: ConsumerFilter, now_ms: int) -> None:
        """Note that nobody subscribes with a filter any more."""
        self.put(replace(one, dead_ms=now_ms))

    def __iter__(self) -> Iterator[ConsumerFilter]:
        """All filters."""
        with self._lock:
            return iter([one for groups in self._table.values() for one in groups.values()])


def _decode_filter(topic: str, group: str, fields: Fields) -> ConsumerFilter:
    bloom = fields.fields("bloomFilterData")
    return ConsumerFilter(
        topic=topic,
        group=group,
        expression=fields.text("expression", ""),
        expression_type=fields.text("expressionType", "SQL92"),
        client_version=fields.int64("clientVersion", 0),
        born_ms=fields.int64("bornTime", 0),
        dead_ms=fields.int64("deadTime", 0),
        bits=0 if bloom is None else bloom.int32("bitNum", 0),
        positions=() if bloom is None else tuple(place for place in bloom.array("bitPos") or () if type(place) is int),
    )


def _encode_filter(one: ConsumerFilter) -> JsonValue:
    positions: list[JsonValue] = list(one.positions)  # an int[] in Java: written in one line
    return bean(
        {
            "bloomFilterData": bean({"bitNum": one.bits, "bitPos": positions}),
            "bornTime": one.born_ms,
            "clientVersion": one.client_version,
            "consumerGroup": one.group,
            "dead": one.is_dead,
            "deadTime": one.dead_ms,
            "expression": one.expression,
            "expressionType": one.expression_type,
            "topic": one.topic,
        }
    )
