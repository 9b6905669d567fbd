"""``subscriptionGroup.json``: the consumer groups of a store."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import ClassVar, cast

from cometmq.errors import InvalidArgument
from cometmq.store_config.data_version import DataVersion, wall_clock_ms
from cometmq.store_config.fastjson import JsonObject, JsonValue, bean
from cometmq.store_config.fields import Fields
from cometmq.store_config.file_ops import SYSTEM_FILE_OPS, FileOps
from cometmq.store_config.managed import ManagedFile
from cometmq.store_config.names import is_light_queue, validate_group
from cometmq.store_config.subscription_group_config import SubscriptionGroupConfig

__all__ = ["SYSTEM_GROUPS", "SubscriptionGroups"]

SYSTEM_GROUPS: tuple[SubscriptionGroupConfig, ...] = tuple(
    SubscriptionGroupConfig(group_name=name)
    for name in (
        "TOOLS_CONSUMER",
        "FILTERSRV_CONSUMER",
        "SELF_TEST_C_GROUP",
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_PULL",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_OWNER",
        "CID_RMQ_SYS_TRANS",
    )
)
"""The groups that a broker makes at its start. A stored entry of the same name wins."""

_KNOWN = ("dataVersion", "forbiddenTable", "subscriptionGroupTable")
_FORBIDDEN_BITS = 31


class SubscriptionGroups(ManagedFile):
    """The consumer groups of a store. Threads and processes: see :class:`ManagedFile`."""

    file_name: ClassVar[str] = "subscriptionGroup.json"

    def __init__(
        self,
        folder: Path,
        *,
        system: Iterable[SubscriptionGroupConfig] = (),
        light_queues: bool = False,
        file_ops: FileOps = SYSTEM_FILE_OPS,
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        """Start with the system groups alone.

        Args:
            folder: the store's ``config`` folder.
            system: groups that are there before the file is read (:data:`SYSTEM_GROUPS`); stored ones win.
            light_queues: True where the broker has ``enableLmq``: names with ``%LMQ%`` are groups without an entry.
            file_ops: the file operations to use.
            now_ms: the clock for the data version.
        """
        super().__init__(folder, file_ops=file_ops, now_ms=now_ms)
        self._system = {group.group_name: group for group in system}
        self._light_queues = light_queues
        self._reset()

    def _reset(self) -> None:
        self._table = dict(self._system)
        self._forbidden: dict[str, dict[str, int]] = {}
        self._version = DataVersion.first(self._now_ms())
        self._unknown: JsonObject = {}

    def _decode(self, fields: Fields) -> Callable[[], None]:
        stored = {
            name: SubscriptionGroupConfig.decode(Fields(value, path), name=name)
            for name, value, path in fields.items("subscriptionGroupTable")
        }
        forbidden = {group: Fields(value, path).as_int32s() for group, value, path in fields.items("forbiddenTable")}
        version = DataVersion.decode(fields.fields("dataVersion"), now_ms=self._now_ms())
        unknown = fields.others(_KNOWN)

        def take_over() -> None:
            self._table = {**stored, **{name: group for name, group in self._system.items() if name not in stored}}
            self._forbidden = forbidden
            self._version = version
            self._unknown = unknown

        return take_over

    def _encode(self) -> JsonObject:
        table: JsonObject = {name: group.encode() for name, group in self._table.items()}
        forbidden: JsonObject = {group: cast(JsonObject, dict(masks)) for group, masks in self._forbidden.items()}
        known: dict[str, JsonValue] = {
            "dataVersion": self._version.encode(),
            "forbiddenTable": forbidden,
            "subscriptionGroupTable": table,
        }
        return bean(known, self._unknown)

    @property
    def data_version(self) -> DataVersion:
        """The version of the content."""
        with self._lock:
            return self._version

    def get(self, group: str) -> SubscriptionGroupConfig | None:
        """Return a group, or None where there is none. With light queues every ``%LMQ%`` name is a group."""
        with self._lock:
            found = self._table.get(group)
        if found is None and self._light_queues and is_light_queue(group):
            return SubscriptionGroupConfig(group_name=group)
        return found

    def __contains__(self, group: str) -> bool:
        """Tell whether :meth:`get` finds the group."""
        return self.get(group) is not None

    def __len__(self) -> int:
        """Return the number of groups with an entry."""
        with self._lock:
            return len(self._table)

    def all(self) -> tuple[SubscriptionGroupConfig, ...]:
        """Return every group with an entry, in the file's order."""
        with self._lock:
            return tuple(self._table.values())

    def put(self, group: SubscriptionGroupConfig) -> SubscriptionGroupConfig | None:
        """Store a group as it is, new or in place of another, and count the change. Returns the entry before.

        Raises:
            InvalidArgument: the name is not allowed, or names a light queue, which has no entry.
        """
        validate_group(group.group_name)
        if self._light_queues and is_light_queue(group.group_name):
            raise InvalidArgument(f"{group.group_name} is a light queue; those have no entry")
        with self._lock:
            before = self._table.get(group.group_name)
            self._table[group.group_name] = group
            self._count_change()
            return before

    def get_or_create(self, group: str) -> SubscriptionGroupConfig:
        """Return the group, made with the defaults where it is not there.

        Raises:
            InvalidArgument: as :meth:`put`, only where the group has to be made.
        """
        with self._lock:
            found = self.get(group)
            if found is None:
                found = SubscriptionGroupConfig(group_name=group)
                self.put(found)
            return found

    def remove(self, group: str) -> SubscriptionGroupConfig | None:
        """Remove a group's entry and what is forbidden to it. Returns the entry, or None where there was none."""
        with self._lock:
            removed = self._table.pop(group, None)
            forbidden = self._forbidden.pop(group, None)
            if removed is not None or forbidden is not None:
                self._count_change()
            return removed

    def forbidden_mask(self, group: str, topic: str) -> int:
        """Return the bits of actions forbidden to the group on the topic; 0 allows all. Bit 0 is consuming."""
        with self._lock:
            return max(self._forbidden.get(group, {}).get(topic, 0), 0)

    def set_forbidden(self, group: str, topic: str, bit: int, *, forbidden: bool) -> None:
        """Forbid or allow one action. Unlike upstream, allowing the last one keeps the group's other topics.

        Raises:
            InvalidArgument: ``bit`` is not from 0 to 30.
        """
        if not 0 <= bit < _FORBIDDEN_BITS:
            raise InvalidArgument(f"bit {bit} is outside 0 to {_FORBIDDEN_BITS - 1}")
        with self._lock:
            before = self.forbidden_mask(group, topic)
            mask = before | 1 << bit if forbidden else before & ~(1 << bit)
            if mask == before:
                return
            masks = self._forbidden.setdefault(group, {})
            if mask:
                masks[topic] = mask
            else:
                del masks[topic]
                if not masks:
                    del self._forbidden[group]
            self._count_change()

    def _count_change(self) -> None:
        self._version = self._version.next(self._now_ms())
        self._changed = True
