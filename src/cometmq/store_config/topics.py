"""``topics.json``: the topics of a store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from cometmq.errors import InvalidArgument, TopicNotFound
from cometmq.store_config.data_version import DataVersion, wall_clock_ms
from cometmq.store_config.fastjson import JsonObject, bean
from cometmq.store_config.fields import INT32_MAX, Fields
from cometmq.store_config.file_ops import SYSTEM_FILE_OPS, FileOps
from cometmq.store_config.managed import ManagedFile
from cometmq.store_config.names import is_light_queue, validate_topic
from cometmq.store_config.topic_config import Perm, TopicConfig, alter_attributes

__all__ = ["Topics"]

_KNOWN = ("dataVersion", "topicConfigTable")


class Topics(ManagedFile):
    """The topics of a store, over the system topics given. Threads and processes: see :class:`ManagedFile`."""

    file_name: ClassVar[str] = "topics.json"

    def __init__(
        self,
        folder: Path,
        *,
        system: Iterable[TopicConfig] = (),
        light_queues: bool = False,
        file_ops: FileOps = SYSTEM_FILE_OPS,
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        """Start with the system topics alone.

        Args:
            folder: the store's ``config`` folder.
            system: topics that are there before the file is read (:func:`system_topics`); stored ones win.
            light_queues: True where the broker has ``enableLmq``: names with ``%LMQ%`` are topics without an entry.
            file_ops: the file operations to use.
            now_ms: the clock for the data version.
        """
        super().__init__(folder, file_ops=file_ops, now_ms=now_ms)
        self._system = {topic.topic_name: topic for topic in system}
        self._light_queues = light_queues
        self._reset()

    def _reset(self) -> None:
        self._table = dict(self._system)
        self._version = DataVersion.first(self._now_ms())
        self._unknown: JsonObject = {}

    def _decode(self, fields: Fields) -> Callable[[], None]:
        stored = {
            name: TopicConfig.decode(Fields(value, path), name=name)
            for name, value, path in fields.items("topicConfigTable")
        }
        version = DataVersion.decode(fields.fields("dataVersion"), now_ms=self._now_ms())
        unknown = fields.others(_KNOWN)

        def take_over() -> None:
            # The stored order comes first, so that a file read and written again stays as it was.
            self._table = {**stored, **{name: topic for name, topic in self._system.items() if name not in stored}}
            self._version = version
            self._unknown = unknown

        return take_over

    def _encode(self) -> JsonObject:
        table: JsonObject = {name: topic.encode() for name, topic in self._table.items()}
        return bean({"dataVersion": self._version.encode(), "topicConfigTable": table}, self._unknown)

    @property
    def data_version(self) -> DataVersion:
        """The version of the content."""
        with self._lock:
            return self._version

    def get(self, topic: str) -> TopicConfig | None:
        """Return a topic, or None where there is none. With light queues every ``%LMQ%`` name is a topic."""
        with self._lock:
            found = self._table.get(topic)
        if found is None and self._light_queues and is_light_queue(topic):
            return TopicConfig(topic_name=topic, read_queue_nums=1, write_queue_nums=1)
        return found

    def __contains__(self, topic: str) -> bool:
        """Tell whether :meth:`get` finds the topic."""
        return self.get(topic) is not None

    def __len__(self) -> int:
        """Return the number of topics with an entry."""
        with self._lock:
            return len(self._table)

    def all(self) -> tuple[TopicConfig, ...]:
        """Return every topic with an entry, in the file's order."""
        with self._lock:
            return tuple(self._table.values())

    def put(self, topic: TopicConfig) -> TopicConfig | None:
        """Store a topic as it is, new or in place of another, and count the change.

        Returns:
            The entry before, or None.

        Raises:
            InvalidTopic: the name is not allowed.
            InvalidArgument: a number of queues below 0 or beyond an int32, or a light queue, which has no entry.
        """
        validate_topic(topic.topic_name)
        for name, value in (("read", topic.read_queue_nums), ("write", topic.write_queue_nums)):
            if not 0 <= value <= INT32_MAX:
                raise InvalidArgument(f"{topic.topic_name}: {value} {name} queues; 0 to {INT32_MAX} are allowed")
        if self._light_queues and is_light_queue(topic.topic_name):
            raise InvalidArgument(f"{topic.topic_name} is a light queue; those have no entry in topics.json")
        with self._lock:
            before = self._table.get(topic.topic_name)
            self._table[topic.topic_name] = topic
            self._count_change()
            return before

    def get_or_create(self, topic: str, *, queue_nums: int, perm: int = Perm.READ | Perm.WRITE) -> TopicConfig:
        """Return the topic, made with this many read and write queues where it is not there.

        Raises:
            InvalidTopic, InvalidArgument: as :meth:`put`, only where the topic has to be made.
        """
        with self._lock:
            found = self.get(topic)
            if found is None:
                found = TopicConfig(
                    topic_name=topic, read_queue_nums=queue_nums, write_queue_nums=queue_nums, perm=perm
                )
                self.put(found)
            return found

    def alter(self, topic: str, changes: Mapping[str, str]) -> TopicConfig:
        """Change attributes of a topic (``+name``, ``-name``; see :func:`alter_attributes`) and return the new entry.

        Raises:
            TopicNotFound: there is no such entry.
            InvalidArgument: a change is not allowed; nothing was changed.
        """
        with self._lock:
            found = self._table.get(topic)
            if found is None:
                raise TopicNotFound(f"there is no topic {topic}", topic=topic)
            altered = replace(found, attributes=alter_attributes(found.attributes, changes))
            self._table[topic] = altered
            self._count_change()
            return altered

    def remove(self, topic: str) -> TopicConfig | None:
        """Remove a topic's entry and return it, or None where there was none. A system topic is back after a load."""
        with self._lock:
            removed = self._table.pop(topic, None)
            if removed is not None:
                self._count_change()
            return removed

    def _count_change(self) -> None:
        self._version = self._version.next(self._now_ms())
        self._changed = True
