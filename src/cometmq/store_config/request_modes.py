"""``messageRequestMode.json``: which groups pop a topic, and which pull it.

A group that is not there for a topic does as the broker's ``defaultMessageRequestMode`` says. The order of topics and
groups is the file's; new ones come last. Upstream's order is that of its tables, and nobody may rely on it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from cometmq.store_config.errors import ConfigValueError
from cometmq.store_config.fastjson import JsonObject
from cometmq.store_config.fields import Fields
from cometmq.store_config.nested_table import NestedTable

__all__ = ["MessageRequestMode", "RequestMode", "RequestModes"]


class MessageRequestMode(enum.Enum):
    """How a client gets a queue's messages."""

    PULL = "PULL"
    POP = "POP"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMode:
    """How a group gets a topic's messages.

    Attributes:
        mode: by pulls, or by pops.
        pop_share_queue_num: with POP, whose queues a member pops besides its own: those of so many members behind it;
            0, a negative number, or one that reaches round: all queues.
    """

    mode: MessageRequestMode = MessageRequestMode.PULL
    pop_share_queue_num: int = 0


class RequestModes(NestedTable[str, RequestMode]):
    """All modes that were set. Threads and processes: see :class:`ManagedFile`."""

    file_name: ClassVar[str] = "messageRequestMode.json"

    _table_member: ClassVar[str] = "messageRequestModeMap"

    @staticmethod
    def _decode_key(name: str, path: str) -> str:
        return name

    @staticmethod
    def _decode_entry(fields: Fields) -> RequestMode:
        return _decode_mode(fields)

    @staticmethod
    def _encode_entry(name: str, key: str, entry: RequestMode) -> JsonObject:
        return _encode_mode(name, key, entry)

    def get(self, topic: str, group: str) -> RequestMode | None:
        """Return what was set for a group and a topic, or None."""
        with self._lock:
            return self._table.get(topic, {}).get(group)

    def put(self, topic: str, group: str, mode: RequestMode | None) -> RequestMode | None:
        """Set it, in memory; :meth:`persist` makes it durable. None takes it away.

        Returns:
            The mode set before, or None.
        """
        with self._lock:
            before = self._table.get(topic, {}).get(group)
            if mode is not None:
                self._table.setdefault(topic, {})[group] = mode
            elif before is not None:
                del self._table[topic][group]
                if not self._table[topic]:
                    del self._table[topic]
            self._changed = self._changed or before != mode
            return before

    def all(self) -> Mapping[str, Mapping[str, RequestMode]]:
        """Return everything that was set: topic to group to mode."""
        with self._lock:
            return {topic: dict(groups) for topic, groups in self._table.items()}


def _decode_mode(fields: Fields) -> RequestMode:
    name = fields.text("mode", MessageRequestMode.PULL.value)
    try:
        mode = MessageRequestMode(name)
    except ValueError:
        known = " or ".join(one.value for one in MessageRequestMode)
        raise ConfigValueError(f"expected {known}, found {name[:60]!r}", member=fields.member("mode")) from None
    return RequestMode(mode=mode, pop_share_queue_num=fields.int32("popShareQueueNum", 0))


def _encode_mode(topic: str, group: str, mode: RequestMode) -> JsonObject:
    return {
        "consumerGroup": group,
        "mode": mode.mode.value,
        "popShareQueueNum": mode.pop_share_queue_num,
        "topic": topic,
    }
