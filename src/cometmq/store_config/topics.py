"""``topics.json``: the topics of a store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from cometmq.errors import InvalidArgument, TopicNotFound
from cometmq.store_config.fastjson import JsonValue
from cometmq.store_config.fields import INT32_MAX, Fields
from cometmq.store_config.named_table import NamedTable
from cometmq.store_config.names import validate_made_topic
from cometmq.store_config.topic_config import Perm, TopicConfig, alter_attributes

__all__ = ["Topics"]


class Topics(NamedTable[TopicConfig]):
    """The topics of a store, over the system topics given (:func:`system_topics`).

    Threads and processes: see :class:`ManagedFile`.
    """

    file_name: ClassVar[str] = "topics.json"
    _known: ClassVar[tuple[str, ...]] = ("topicConfigTable",)
    _table_member: ClassVar[str] = "topicConfigTable"

    @staticmethod
    def _name_of(entry: TopicConfig) -> str:
        return entry.topic_name

    @staticmethod
    def _decode_entry(fields: Fields, name: str) -> TopicConfig:
        return replace(TopicConfig.decode(fields, name=name), topic_name=name)

    @staticmethod
    def _encode_entry(entry: TopicConfig) -> JsonValue:
        return entry.encode()

    @staticmethod
    def _light_entry(name: str) -> TopicConfig:
        return TopicConfig(topic_name=name, read_queue_nums=1, write_queue_nums=1)

    @staticmethod
    def _check(entry: TopicConfig) -> None:
        validate_made_topic(entry.topic_name)
        for name, value in (("read", entry.read_queue_nums), ("write", entry.write_queue_nums)):
            if not 0 <= value <= INT32_MAX:
                raise InvalidArgument(f"{entry.topic_name}: {value} {name} queues; 0 to {INT32_MAX} are allowed")

    def get_or_create(self, topic: str, *, queue_nums: int, perm: int = Perm.READ | Perm.WRITE) -> TopicConfig:
        """Return the topic, made with this many read and write queues where it is not there.

        Raises:
            InvalidTopic, InvalidArgument: as :meth:`put`, only where the topic has to be made.
        """
        return self._get_or_put(
            topic,
            lambda: TopicConfig(topic_name=topic, read_queue_nums=queue_nums, write_queue_nums=queue_nums, perm=perm),
        )

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
