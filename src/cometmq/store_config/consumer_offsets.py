"""``consumerOffset.json``: up to where each group has consumed each queue.

The key is ``topic@group``, the value a queue's **next offset to consume**. A key may have a second ``@``:
``topic@group@broadcast`` is a broker's summary of a broadcasting group. Such keys are kept and can be read with their
whole name; they belong to no group here, as upstream takes only keys with exactly one ``@`` for a group's progress.

Where a broker has ``enableLmq`` the file is ``lmqConsumerOffset.json`` and has one number per group of a light message
queue besides (:class:`LightQueueOffsets`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar, cast

from cometmq.errors import InvalidArgument
from cometmq.store_config.fastjson import JsonObject, JsonValue
from cometmq.store_config.fields import INT32_MAX, INT64_MAX, INT64_MIN, Fields, as_int
from cometmq.store_config.java_hash import hash_map_order
from cometmq.store_config.names import is_light_queue
from cometmq.store_config.versioned import VersionedFile

__all__ = ["BROADCAST_SUFFIX", "ConsumerOffsets", "LightQueueOffsets", "offset_key"]

_SEPARATOR = "@"
BROADCAST_SUFFIX = "@broadcast"

# Capacities of the tables in upstream's getGroupTopicMap; they decide the written order.
_GROUPS_CAPACITY = 128
_TOPICS_CAPACITY = 8


def offset_key(group: str, topic: str) -> str:
    """Return the table's key for a group's progress in a topic."""
    return f"{topic}{_SEPARATOR}{group}"


def _split(key: str) -> tuple[str, str] | None:
    """Return topic and group of a key with two parts, counted as by Java's split, which drops trailing empty ones."""
    parts = key.split(_SEPARATOR)
    while len(parts) > 1 and not parts[-1]:
        parts.pop()
    return (parts[0], parts[1]) if len(parts) == 2 else None


class ConsumerOffsets(VersionedFile):
    """Progress of all groups. Threads and processes: see :class:`ManagedFile`."""

    file_name: ClassVar[str] = "consumerOffset.json"
    _known: ClassVar[tuple[str, ...]] = ("groupTopicMap", "offsetTable")
    _default_step: ClassVar[int] = 500
    """``consumerOffsetUpdateVersionStep``."""

    def _clear(self) -> None:
        self._table: dict[str, dict[int, int]] = {}

    def _decode_members(self, fields: Fields) -> Callable[[], None]:
        table = {key: Fields(value, path).as_integers() for key, value, path in fields.items("offsetTable")}

        def take_over() -> None:
            self._table = table

        return take_over

    def _member_snapshot(self) -> Callable[[], dict[str, JsonValue]]:
        topics = self._group_topic_map()
        table: JsonObject = {key: cast(JsonObject, dict(queues)) for key, queues in self._table.items()}
        return lambda: {"groupTopicMap": topics, "offsetTable": table}

    def _group_topic_map(self) -> JsonObject:
        topics_of: dict[str, list[str]] = {}
        for key in self._table:
            parts = _split(key)
            if parts is not None:
                topics_of.setdefault(parts[1], []).append(parts[0])
        return {
            group: cast("list[JsonValue]", hash_map_order(topics_of[group], initial_capacity=_TOPICS_CAPACITY))
            for group in hash_map_order(topics_of, initial_capacity=_GROUPS_CAPACITY)
        }

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the next offset to consume, or None where the group never committed one for this queue."""
        with self._lock:
            return self._table.get(offset_key(group, topic), {}).get(queue_id)

    def queues(self, group: str, topic: str) -> dict[int, int]:
        """Return the next offset to consume of each queue that the group committed."""
        return self.by_key(offset_key(group, topic))

    def by_key(self, key: str) -> dict[int, int]:
        """Return the offsets under a whole key, such as ``topic@group@broadcast``; empty for an unknown key."""
        with self._lock:
            return dict(self._table.get(key, {}))

    def keys(self) -> tuple[str, ...]:
        """Return every key of the table, those with two ``@`` too."""
        with self._lock:
            return tuple(self._table)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> int | None:
        """Set the next offset to consume, in memory; :meth:`persist` makes it durable. Going back is allowed.

        Returns:
            The offset before, or None.

        Raises:
            InvalidArgument: a queue id or an offset outside its range, or a name that the key cannot hold.
        """
        key = _checked_key(group, topic, queue_id, offset)
        with self._lock:
            before = self._put(key, queue_id, offset)
            self._count_change()
            return before

    def _put(self, key: str, queue_id: int, offset: int) -> int | None:
        queues = self._table.setdefault(key, {})
        before = queues.get(queue_id)
        queues[queue_id] = offset
        return before

    def merge(self, changes: Iterable[tuple[str, str, int, int]], *, versions: int) -> None:
        """Take over progress that was collected elsewhere.

        Args:
            changes: group, topic, queue id and offset, oldest first; a queue id of -1 drops the group's whole progress
                in the topic.
            versions: how many versions the data version moves by.

        Raises:
            InvalidArgument: as :meth:`commit`; the entries before it are committed.
        """
        with self._lock:
            for group, topic, queue_id, offset in changes:
                if queue_id < 0:
                    self._drop(offset_key(group, topic))
                else:
                    self._put(_checked_key(group, topic, queue_id, offset), queue_id, offset)
                self._changed = True
            if versions:
                self._advance(versions)

    def _drop(self, key: str) -> None:
        self._table.pop(key, None)

    def all(self) -> list[tuple[str, str, int, int]]:
        """Return group, topic, queue id and offset of all progress of groups."""
        with self._lock:
            return [
                (pair[1], pair[0], queue_id, offset)
                for key, queues in self._table.items()
                if (pair := _split(key)) is not None
                for queue_id, offset in queues.items()
            ]

    def topics_of(self, group: str) -> tuple[str, ...]:
        """Return the topics in which the group has progress."""
        with self._lock:
            pairs = map(_split, self._table)
            return tuple(pair[0] for pair in pairs if pair is not None and pair[1] == group)

    def groups_of(self, topic: str) -> tuple[str, ...]:
        """Return the groups that have progress in the topic."""
        with self._lock:
            pairs = map(_split, self._table)
            return tuple(pair[1] for pair in pairs if pair is not None and pair[0] == topic)

    def remove_group(self, group: str) -> int:
        """Forget the group's progress in every topic. Returns the number of topics."""
        return self._remove(lambda topic, name: name == group)

    def remove_topic(self, topic: str) -> int:
        """Forget every group's progress in the topic. Returns the number of groups."""
        return self._remove(lambda name, group: name == topic)

    def _remove(self, matches: Callable[[str, str], bool]) -> int:
        with self._lock:
            doomed = [key for key in self._table if (pair := _split(key)) is not None and matches(*pair)]
            for key in doomed:
                del self._table[key]
            self._changed = self._changed or bool(doomed)
            return len(doomed)

    def clone(self, source_group: str, target_group: str, topic: str) -> bool:
        """Copy one group's progress in a topic to another. Returns False where there is none to copy."""
        with self._lock:
            queues = self._table.get(offset_key(source_group, topic))
            if queues is None:
                return False
            self._table[_checked_key(target_group, topic, 0, 0)] = dict(queues)
            self._changed = True
            return True


def _checked_key(group: str, topic: str, queue_id: int, offset: int) -> str:
    if not group or not topic or _SEPARATOR in group or _SEPARATOR in topic:
        raise InvalidArgument(f"a group ({group!r}) and a topic ({topic!r}) must not be empty or hold an '@'")
    if not 0 <= queue_id <= INT32_MAX:
        raise InvalidArgument(f"queue id {queue_id} is outside 0 to {INT32_MAX}")
    if not 0 <= offset <= INT64_MAX:
        raise InvalidArgument(f"offset {offset} is outside 0 to {INT64_MAX}")
    return offset_key(group, topic)


def _is_light(key: str) -> bool:
    parts = _split(key)
    return parts is not None and is_light_queue(parts[1])


class LightQueueOffsets(ConsumerOffsets):
    """``lmqConsumerOffset.json``: the same, and one offset per ``topic@group`` for groups of light queues.

    Groups whose name begins with ``%LMQ%`` have the single queue 0. Upstream does not read this file's data version;
    we do.
    """

    file_name: ClassVar[str] = "lmqConsumerOffset.json"
    _known: ClassVar[tuple[str, ...]] = (*ConsumerOffsets._known, "lmqOffsetTable")

    def _clear(self) -> None:
        super()._clear()
        self._light: dict[str, int] = {}

    def _decode_members(self, fields: Fields) -> Callable[[], None]:
        take_table = super()._decode_members(fields)
        light = {
            key: as_int(value, minimum=INT64_MIN, maximum=INT64_MAX, member=path)
            for key, value, path in fields.items("lmqOffsetTable")
        }

        def take_over() -> None:
            take_table()
            self._light = light

        return take_over

    def _member_snapshot(self) -> Callable[[], dict[str, JsonValue]]:
        members, light = super()._member_snapshot(), cast(JsonObject, dict(self._light))
        return lambda: {**members(), "lmqOffsetTable": light}

    @property
    def light_table(self) -> Mapping[str, int]:
        """A copy of the table of light queues: ``topic@group`` to next offset."""
        with self._lock:
            return dict(self._light)

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """See :meth:`ConsumerOffsets.get`; a light queue's group has one offset for all queue ids."""
        if not is_light_queue(group):
            return super().get(group, topic, queue_id)
        with self._lock:
            return self._light.get(offset_key(group, topic))

    def queues(self, group: str, topic: str) -> dict[int, int]:
        """See :meth:`ConsumerOffsets.queues`."""
        if not is_light_queue(group):
            return super().queues(group, topic)
        offset = self.get(group, topic, 0)
        return {} if offset is None else {0: offset}

    def _put(self, key: str, queue_id: int, offset: int) -> int | None:
        if not _is_light(key):
            return super()._put(key, queue_id, offset)
        before = self._light.get(key)
        self._light[key] = offset
        return before

    def _drop(self, key: str) -> None:
        super()._drop(key)
        self._light.pop(key, None)

    def all(self) -> list[tuple[str, str, int, int]]:
        """See :meth:`ConsumerOffsets.all`; a light queue has the id 0."""
        with self._lock:
            light = [
                (pair[1], pair[0], 0, offset)
                for key, offset in self._light.items()
                if (pair := _split(key)) is not None
            ]
            return super().all() + light

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> int | None:
        """See :meth:`ConsumerOffsets.commit`."""
        if not is_light_queue(group):
            return super().commit(group, topic, queue_id, offset)
        key = _checked_key(group, topic, queue_id, offset)
        with self._lock:
            before = self._light.get(key)
            self._light[key] = offset
            self._changed = True
            return before

    def remove_group(self, group: str) -> int:
        """See :meth:`ConsumerOffsets.remove_group`."""
        if not is_light_queue(group):
            return super().remove_group(group)
        with self._lock:
            doomed = [key for key in self._light if (pair := _split(key)) is not None and pair[1] == group]
            for key in doomed:
                del self._light[key]
            self._changed = self._changed or bool(doomed)
            return len(doomed)
