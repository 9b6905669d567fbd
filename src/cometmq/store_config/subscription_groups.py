"""``subscriptionGroup.json``: the consumer groups of a store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar, cast

from cometmq.errors import InvalidArgument
from cometmq.store_config.fastjson import JsonObject, JsonValue
from cometmq.store_config.fields import Fields
from cometmq.store_config.named_table import NamedTable
from cometmq.store_config.names import validate_used_group
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

_FORBIDDEN_BITS = 31


class SubscriptionGroups(NamedTable[SubscriptionGroupConfig]):
    """The consumer groups of a store, over the system groups given (:data:`SYSTEM_GROUPS`).

    Threads and processes: see :class:`ManagedFile`.
    """

    file_name: ClassVar[str] = "subscriptionGroup.json"
    _known: ClassVar[tuple[str, ...]] = ("forbiddenTable", "subscriptionGroupTable")
    _table_member: ClassVar[str] = "subscriptionGroupTable"

    @staticmethod
    def _name_of(entry: SubscriptionGroupConfig) -> str:
        return entry.group_name

    @staticmethod
    def _decode_entry(fields: Fields, name: str) -> SubscriptionGroupConfig:
        return replace(SubscriptionGroupConfig.decode(fields, name=name), group_name=name)

    @staticmethod
    def _encode_entry(entry: SubscriptionGroupConfig) -> JsonValue:
        return entry.encode()

    @staticmethod
    def _light_entry(name: str) -> SubscriptionGroupConfig:
        return SubscriptionGroupConfig(group_name=name)

    @staticmethod
    def _check(entry: SubscriptionGroupConfig) -> None:
        validate_used_group(entry.group_name)

    def _clear(self) -> None:
        super()._clear()
        self._forbidden: dict[str, dict[str, int]] = {}

    def _decode_members(self, fields: Fields) -> Callable[[], None]:
        take_table = super()._decode_members(fields)
        forbidden = {group: Fields(value, path).as_int32s() for group, value, path in fields.items("forbiddenTable")}

        def take_over() -> None:
            take_table()
            self._forbidden = forbidden

        return take_over

    def _member_snapshot(self) -> Callable[[], dict[str, JsonValue]]:
        table = super()._member_snapshot()
        forbidden: JsonObject = {group: cast(JsonObject, dict(masks)) for group, masks in self._forbidden.items()}
        return lambda: {**table(), "forbiddenTable": forbidden}

    def get_or_create(self, group: str) -> SubscriptionGroupConfig:
        """Return the group, made with the defaults where it is not there.

        Raises:
            InvalidArgument: as :meth:`put`, only where the group has to be made.
        """
        return self._get_or_put(group, lambda: SubscriptionGroupConfig(group_name=group))

    def remove(self, name: str) -> SubscriptionGroupConfig | None:
        """Remove a group's entry and its forbidden topics. Returns the entry, or None."""
        with self._lock:
            removed = self._table.pop(name, None)
            forbidden = self._forbidden.pop(name, None)
            if removed is not None or forbidden is not None:
                self._count_change()
            return removed

    def forbidden_mask(self, group: str, topic: str) -> int:
        """Return the bits of actions forbidden to the group on the topic; 0 allows all. Bit 0 is consuming."""
        with self._lock:
            return max(self._forbidden.get(group, {}).get(topic, 0), 0)

    def forbidden_topics(self, group: str, bit: int) -> tuple[str, ...]:
        """Return the topics on which an action is forbidden to the group."""
        with self._lock:
            return tuple(
                topic for topic, mask in self._forbidden.get(group, {}).items() if mask > 0 and mask & 1 << bit
            )

    def forbidden_table(self) -> dict[str, dict[str, int]]:
        """Return everything that is forbidden: group to topic to bits."""
        with self._lock:
            return {group: dict(masks) for group, masks in self._forbidden.items()}

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
