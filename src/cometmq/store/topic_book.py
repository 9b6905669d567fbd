"""The topics of a store: ``topics.json`` and a topic's state for appends.

Invariant: a topic is in ``topics.json``, durably, before its first message is in the log, so that a broker which later
starts on the directory knows it, with its number of queues.

Threads: any. Making a topic takes a lock; looking one up takes none.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from cometmq.errors import InvalidArgument, InvalidTopic, TopicNotFound, WrongType
from cometmq.store.file_stamp import FileStamp
from cometmq.store.options import in_range
from cometmq.store_config.names import is_light_queue, is_system_topic, may_send_to, validate_topic
from cometmq.store_config.topic_config import Perm, QueueType, TopicConfig, alter_attributes
from cometmq.store_config.topics import Topics

__all__ = [
    "QUEUES_MAX",
    "READ_WRITE",
    "TopicBook",
    "WriteTarget",
    "check_perm",
    "check_queues",
    "not_a_topic",
    "topic_exists",
]

_PERMS = "give 6 for read and write, 4 for read, 2 for write, 0 for neither (1 more: inherit)"

QUEUES_MAX = 65_536
"""Most queues of one topic that we make."""


class WriteTarget:
    """A topic's state for appends: how many queues, and whose turn it is."""

    __slots__ = ("queues", "turn")

    def __init__(self, queues: int) -> None:
        """Begin with queue 0."""
        self.queues = queues
        self.turn = 0

    def next_queue(self) -> int:
        """Return the queue for the next message. Two threads may get the same one, which does no harm."""
        if self.queues == 1:
            return 0
        queue = self.turn
        self.turn = (queue + 1) % self.queues
        return queue


class TopicBook:
    """All topics of one store."""

    def __init__(
        self,
        folder: Path,
        *,
        read_only: bool,
        light_queues: bool,
        default_queues: int,
        queue_count_of: Callable[[str], int],
    ) -> None:
        """Read ``topics.json``.

        Args:
            folder: the store's ``config`` folder.
            read_only: another process may write the file: it is read again whenever a topic is asked for.
            light_queues: names with ``%LMQ%`` are topics without an entry.
            default_queues: queues of a topic that its first append makes.
            queue_count_of: returns how many queues of a topic have messages (highest id + 1).
        """
        self._topics = Topics(folder, light_queues=light_queues)
        self._read_only = read_only
        self._default_queues = default_queues
        self._queue_count_of = queue_count_of
        self._making = threading.Lock()
        self.targets: dict[str, WriteTarget] = {}
        self.listener: Callable[[str], None] | None = None
        self._stamp = FileStamp(self._topics.path)
        self.problem = self._topics.load().warning

    @property
    def table(self) -> Topics:
        """The table itself, for a broker, which shares it. It calls :meth:`forget_target` for what it changes."""
        return self._topics

    def forget_target(self, topic: str) -> None:
        """Look the topic up again at its next append."""
        with self._making:
            self.targets.pop(topic, None)

    def _notify(self, topic: str) -> None:
        """Notify the listener (a broker that shares the table) of a topic that was made, changed or removed here."""
        if self.listener is not None:
            self.listener(topic)

    def configs(self) -> tuple[TopicConfig, ...]:
        """Return every topic that has an entry."""
        self._follow()
        return self._topics.all()

    def find(self, topic: str) -> TopicConfig | None:
        """Return a topic's entry, or None."""
        self._follow()
        return self._topics.get(topic)

    def _follow(self) -> None:
        if self._read_only and self._stamp.changed():
            self._topics.load()

    def batch_topics(self) -> list[str]:
        """Return the topics whose queues hold inner batches."""
        return [topic.topic_name for topic in self._topics.all() if topic.queue_type is QueueType.BATCH]

    def target(self, topic: str) -> WriteTarget:
        """Return what an append to ``topic`` needs, making the topic where it is new.

        Raises:
            InvalidTopic: RocketMQ would refuse the name, or senders may not use it.
            InvalidArgument: the topic takes no messages.
        """
        found = self.targets.get(topic)
        if found is not None:
            return found
        if not isinstance(topic, str):
            raise not_a_topic(topic)
        with self._making:
            config = self._topics.get(topic)
            if config is None:
                config = self._make(topic)
            if not may_send_to(topic):
                raise InvalidTopic(f"{topic} is RocketMQ's own; messages cannot be sent to it")
            if not config.is_writable:
                raise InvalidArgument(f"the topic {topic} takes no messages (perm is {config.perm}; 2 would be write)")
            target = WriteTarget(max(config.write_queue_nums, 1))
            self.targets[topic] = target
            return target

    def _make(self, topic: str) -> TopicConfig:
        validate_topic(topic)
        if not may_send_to(topic):
            raise InvalidTopic(f"{topic} is RocketMQ's own; messages cannot be sent to it")
        queues = max(self._default_queues, self._queue_count_of(topic))
        config = self._topics.get_or_create(topic, queue_nums=queues)
        self._persist_new(topic)
        self._notify(topic)
        return config

    def _persist_new(self, topic: str) -> None:
        """Write the table; a topic that could not be written is removed again."""
        try:
            self._topics.persist()
        except BaseException:
            self._topics.remove(topic)
            raise

    def create(
        self, topic: str, *, queues: int, perm: int, batch: bool, attributes: dict[str, str], exist_ok: bool
    ) -> None:
        """Make a topic, durably.

        Raises:
            InvalidTopic, InvalidArgument: the name, a number or an attribute cannot be used, or the topic is there
                already and ``exist_ok`` is False.
        """
        self.check_new(topic, queues)
        changes = {f"+{name}": value for name, value in attributes.items()}
        if batch:
            changes["+queue.type"] = QueueType.BATCH.value
        with self._making:
            if self._topics.get(topic) is not None:
                if exist_ok:
                    return
                raise topic_exists(topic)
            config = TopicConfig(
                topic_name=topic,
                read_queue_nums=queues,
                write_queue_nums=queues,
                perm=perm,
                attributes=alter_attributes(None, changes),
            )
            self._topics.put(config)
            self._persist_new(topic)
        self._notify(topic)

    @staticmethod
    def check_new(topic: str, queues: int) -> None:
        """Check the name and the queues of a topic that is to be made.

        Raises:
            InvalidTopic, InvalidArgument: it cannot be made so.
        """
        validate_topic(topic)
        if is_system_topic(topic):
            raise InvalidTopic(f"{topic} is RocketMQ's own name")
        if is_light_queue(topic):
            raise InvalidTopic(f"{topic} is the name of a light queue, which is made by its first message")
        check_queues(queues)

    def resize(self, topic: str, queues: int) -> None:
        """Change a topic's number of queues, durably. Queues that fall away keep their messages for readers."""
        check_queues(queues)
        with self._making:
            config = self._topics.get(topic)
            if config is None:
                raise TopicNotFound(f"there is no topic {topic!r}", topic=topic)
            self._topics.put(replace(config, read_queue_nums=queues, write_queue_nums=queues))
            self._topics.persist()
            self.targets.pop(topic, None)
        self._notify(topic)

    def remove(self, topic: str) -> bool:
        """Remove a topic's entry, durably; False where there was none."""
        with self._making:
            self.targets.pop(topic, None)
            removed = self._topics.remove(topic) is not None
            self._topics.persist()
        self._notify(topic)
        return removed


def not_a_topic(topic: object) -> WrongType:
    """Return the error for a topic that is not a text."""
    return WrongType(f"topic must be a str, not {type(topic).__name__} ({topic!r:.60})")


def topic_exists(topic: str) -> InvalidArgument:
    """Return the error for a new topic that is there already."""
    return InvalidArgument(f"the topic {topic} exists already; give exist_ok=True if that is fine")


def check_queues(queues: int) -> None:
    """Refuse a number of queues that no topic of ours may have."""
    in_range(queues, "queues", 1, QUEUES_MAX)


def check_perm(perm: int) -> None:
    """Refuse permissions that no topic of ours may have."""
    if isinstance(perm, bool) or not isinstance(perm, int):
        raise WrongType(f"perm must be an int, not {type(perm).__name__} ({perm!r}): {_PERMS}")
    if not 0 <= perm <= READ_WRITE | int(Perm.INHERIT):
        raise InvalidArgument(f"perm is {perm}: {_PERMS}")


READ_WRITE = int(Perm.READ | Perm.WRITE)
