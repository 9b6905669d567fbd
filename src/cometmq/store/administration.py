"""The calls about topics, groups and the store itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cometmq._engine import StoreHandle, restore_removed
from cometmq.errors import InvalidArgument, NotFound, OffsetOutOfRange, StoreClosed, WrongType
from cometmq.store.handoff_client import HANDOFF_TIMEOUT_S
from cometmq.store.handoff_files import CallWork, CommitWork, new_work_id
from cometmq.store.options import (
    INT32_MAX,
    INT64_MAX,
    GroupProgress,
    QueueInfo,
    StoreInfo,
    StoreOpening,
    TopicInfo,
    a_text,
    in_range,
)
from cometmq.store.reading import Reading
from cometmq.store.removed import RestoreReport
from cometmq.store.topic_book import READ_WRITE, TopicBook, check_perm, check_queues, topic_exists
from cometmq.store.topic_calls import Books, create_topic, delete_topic
from cometmq.store_config.names import is_light_queue, is_system_topic, retry_topic, validate_group
from cometmq.store_config.topic_config import TopicConfig

__all__ = ["Administration", "topic_info"]


class Administration(Reading):
    """The calls about topics, groups and the store itself."""

    # --- Consumer groups

    def groups(self) -> list[str]:
        """Return the names of all consumer groups."""
        return self._group_book.names()

    def progress(self, group: str | None = None, topic: str | None = None) -> list[GroupProgress]:
        """Return how far groups are, in which topic and queue."""
        for name_of, given in (("group", group), ("topic", topic)):
            if given is not None:
                a_text(given, name_of)
        found = []
        for (name, of_topic), queues in self._group_book.all_progress().items():
            if group in (None, name) and topic in (None, of_topic):
                for queue_id, offset in sorted(queues.items()):
                    queue = self._handle.queue(of_topic, queue_id)
                    lag = 0 if queue is None else max(queue[2] - max(offset, queue[1]), 0)
                    found.append(GroupProgress(group=name, topic=of_topic, queue_id=queue_id, offset=offset, lag=lag))
        return found

    def set_progress(self, group: str, topic: str, queue: int, offset: int) -> None:
        """Set a group's next offset to consume; also back. Not while a consumer of the group is open.

        Raises:
            TopicNotFound: there is no such topic or queue.
            OffsetOutOfRange: the offset is behind the queue's end.
        """
        validate_group(group)
        self.commit_progress(group, {(topic, queue): offset})

    def commit_progress(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Store a group's progress in (topic, queue) pairs, as :meth:`Consumer.commit`. A reader hands it on.

        Raises:
            TopicNotFound: there is no such topic or queue.
            OffsetOutOfRange: an offset is behind its queue's end.
        """
        validate_group(group)
        if not isinstance(offsets, Mapping):
            raise WrongType(f"offsets must be a dict {{(topic, queue): offset}}, not {type(offsets).__name__}")
        self._handle.refresh()
        for place, offset in offsets.items():
            if not isinstance(place, tuple) or len(place) != 2:
                raise WrongType(f"offsets has the key {place!r:.60}: it must be a pair (topic, queue)")
            topic, queue = place
            if topic == retry_topic(group) and offset == 0:
                in_range(queue, "queue", 0, INT32_MAX)  # its first message makes the topic
            else:
                self._check_offset(topic, queue, offset)
        self._commit_progress(group, offsets)

    def _check_offset(self, topic: str, queue: int, offset: int) -> None:
        """Refuse an offset that no consumer can have in a queue.

        Raises:
            TopicNotFound: there is no such topic or queue.
            OffsetOutOfRange: the offset is behind the queue's end.
            InvalidArgument: the offset is negative.
        """
        self._require_topic(topic)
        end = self.queue(topic, queue).max_offset
        if in_range(offset, "offset", 0, INT64_MAX) > end:
            raise OffsetOutOfRange(
                f"offset {offset:,} is behind the end of {topic}/{queue}: the next message gets offset {end:,}",
                offset=offset,
            )

    def _commit_progress(
        self,
        group: str,
        offsets: Mapping[tuple[str, int], int],
        *,
        expected: Mapping[tuple[str, int], int] | None = None,
    ) -> None:
        """Store progress whose offsets the caller has checked; ``expected``: only where the progress is this one."""
        writer = self._appender()
        if writer is not None and writer is not self:
            try:
                writer._commit_progress(group, offsets, expected=expected)
            except StoreClosed as error:
                self._check_moved(error)
            else:
                return
        if self._client is not None:
            if expected is not None:
                self._group_book.check_progress(group, offsets, expected)
            work = CommitWork(
                work_id=new_work_id(),
                group=group,
                offsets=[(topic, queue_id, offset) for (topic, queue_id), offset in offsets.items()],
                expected=None if expected is None else [expected.get(place) for place in offsets],
            )
            self._client.leave_commit(work)
            return
        with self._handle.hold():
            self._group_book.require(group)
            self._group_book.commit(group, offsets, expected=expected)

    def delete_group(self, group: str) -> None:
        """Forget a group and its progress, durably.

        Raises:
            NotFound: nothing is known of it.
        """
        a_text(group, "group")
        if self._role is not None:
            known = self.is_writer or group in self.groups()
            if known:
                self._call_writer("delete_group", group=group)
        else:
            book = self._writer(self._group_book)
            with self._handle.hold():
                known = book.forget_group(group)
        if not known:
            raise NotFound(f"there is no consumer group {group!r}")

    def _call_writer(self, call: str, **arguments: Any) -> None:
        """Have the writer of a shared store make a call, here or in another process."""
        writer = self._appender()
        if writer is not None:
            try:
                getattr(writer, call)(**arguments)
            except StoreClosed as error:
                self._check_moved(error)
            else:
                return
        if self._client is not None:
            self._client.call(CallWork(work_id=new_work_id(), call=call, arguments=arguments), HANDOFF_TIMEOUT_S)

    # --- Topics

    def topics(self, *, system: bool = False) -> list[str]:
        """Return the names of all topics; RocketMQ's own only with ``system``."""
        return [name for name in self._topic_names() if system or not is_system_topic(name)]

    def topic(self, name: str) -> TopicInfo:
        """Return what is known of a topic.

        Raises:
            TopicNotFound: there is none.
            CorruptRecord: there is none before the place where a view's log is damaged.
        """
        config = self._topic_book.find(a_text(name, "name"))
        queues = self.queues(name)
        if config is None and not queues:
            self._handle.check_end()  # it may have begun behind damage
            raise self._no_topic(name)
        return topic_info(name, config, queues)

    def queues(self, topic: str | None = None) -> list[QueueInfo]:
        """Return every queue of a topic, or of all, that ever had a message, by topic and number."""
        found = [
            QueueInfo(name, queue_id, low, high, is_batch)
            for name, queue_id, is_batch, low, high in self._handle.queues(
                None if topic is None else a_text(topic, "topic")
            )
        ]
        return sorted(found, key=lambda queue: (queue.topic, queue.queue_id))

    def create_topic(
        self,
        name: str,
        *,
        queues: int = 1,
        perm: int = READ_WRITE,
        batch: bool = False,
        attributes: Mapping[str, str] | None = None,
        exist_ok: bool = False,
    ) -> TopicInfo:
        """Make a topic, durably.

        Args:
            name: as :meth:`append`.
            queues: number of queues, 1 to 65,536.
            perm: upstream's bits: 4 read, 2 write.
            batch: keep inner batches (``queue.type=BatchCQ``), as RocketMQ 5 does for batches in one record.
            attributes: upstream's topic attributes.
            exist_ok: fine when it is there already; it stays as it is.

        Raises:
            InvalidTopic, InvalidArgument: something cannot be used, or the topic is there.
        """
        book = self._topic_book if self._role is not None else self._writer(self._topic_book)
        if attributes is not None and not isinstance(attributes, Mapping):
            raise WrongType(f"attributes must be a dict of texts, not {type(attributes).__name__}")
        changes = {a_text(key, "an attribute's name"): a_text(value, key) for key, value in (attributes or {}).items()}
        check_perm(perm)
        if self._role is not None:
            TopicBook.check_new(name, queues)
            if book.find(name) is None:
                self._call_writer(
                    "create_topic",
                    name=name,
                    queues=queues,
                    perm=perm,
                    batch=batch,
                    attributes=changes,
                    exist_ok=True,  # another process may be making it too
                )
            elif not exist_ok:
                raise topic_exists(name)
            return self.topic(name)
        with self._handle.hold():
            create_topic(
                self._books(),
                name,
                queues=queues,
                perm=perm,
                batch=batch,
                attributes=changes,
                exist_ok=exist_ok,
            )
            return self.topic(name)

    def _books(self) -> Books:
        return Books(self._handle, self._topic_book, self._group_book)

    def set_topic_queues(self, name: str, queues: int) -> TopicInfo:
        """Change the number of a topic's queues, durably. Messages in queues that fall away can still be read."""
        if self._role is not None:
            check_queues(queues)
            self._require_topic(name)
            self._call_writer("set_topic_queues", name=name, queues=queues)
            return self.topic(name)
        book = self._writer(self._topic_book)
        with self._handle.hold():
            book.resize(a_text(name, "name"), queues)
            return self.topic(name)

    def delete_topic(self, name: str) -> None:
        """Forget a topic, its queues and the groups' progress in it, durably.

        Its records stay in the log until they expire; only their ids and physical offsets still find them. Do not
        append to the topic meanwhile: such a message may bring it back.

        Raises:
            TopicNotFound: there is none.
        """
        if self._role is not None:
            self._require_topic(name)
            self._call_writer("delete_topic", name=name)
            return
        self._writer(self._topic_book)
        with self._handle.hold():
            self._require_topic(name)
            delete_topic(self._books(), name)

    # --- The store itself

    def info(self) -> StoreInfo:
        """Return the state of the store."""
        writer = self._appender()
        if writer is not None and writer is not self:
            try:
                return writer.info()
            except StoreClosed as error:
                self._check_moved(error)
        state = self._handle.info()
        return StoreInfo(
            path=self.path,
            read_only=self.read_only,
            flush=None if self._read_only else self.flush_mode,
            fenced=state["fenced"],
            disk_full=state["disk_full"],
            writer_alive=state["writer_alive"] or not self._read_only,
            writer_is_ours=state["writer_is_ours"] or not self._read_only,
            log_min=state["log_min"],
            log_end=state["log_end"],
            flushed=None if self._read_only else state["flushed"],
            segment_bytes=state["segment_bytes"],
            queue_file_bytes=state["queue_file_bytes"],
            batch_file_bytes=state["batch_file_bytes"],
            ext_file_bytes=state["ext_file_bytes"],
            index_slots=state["index_slots"],
            index_entries=state["index_entries"],
            earliest_timestamp_ms=self._handle.earliest_ms(),
            latest_timestamp_ms=state["store_timestamp_ms"] or None,
            queue_count=state["queue_count"],
        )

    def opening(self) -> StoreOpening:
        """Return the state in which opening found the store: left unclean or not, bytes that recovery read and cut.

        With mode "auto" the writer's, while it is here.
        """
        writer = self._appender()
        if writer is not None and writer is not self:
            try:
                return writer.opening()
            except StoreClosed as error:
                self._check_moved(error)
        return StoreOpening(**self._handle.opening())

    def restore_removed(self, name: str, *, again: bool = False) -> RestoreReport:
        """Append whole records that recovery or a repair cut off the log again, as new messages of their queues.

        They get new offsets and a new store time; all else is theirs. Records of deleted topics are left out. An
        interrupted call may be repeated; the messages that it appended are then stored twice.

        Args:
            name: the folder under ``cometmq/removed``.
            again: also where the folder was restored before.

        Raises:
            NotFound: there is no such folder, or no part of a log in it.
            InvalidArgument: the name is none.
            ReadOnlyStore: the store was opened to read.
        """
        writer = self._appender()
        if writer is not None and writer is not self:
            try:
                return writer.restore_removed(name, again=again)
            except StoreClosed as error:
                self._check_moved(error)
        handle = self._writer(self._handle)
        a_text(name, "name")

        def wants(topic: str, queue_id: int) -> bool:
            return is_system_topic(topic) or is_light_queue(topic) or self._topic_book.find(topic) is not None

        return RestoreReport(name=name, **restore_removed(handle, name, wants, again=again))

    @property
    def handle(self) -> StoreHandle:
        """The engine's handle: for tools that look at units and records."""
        return self._handle

    def maintain(self) -> None:
        """Do what the background does, once: flushes that are due, a durable point, retention, handed-off work.

        With mode "auto" it takes the writer's role first, where nobody has it; where another process has it, there is
        nothing to do.
        """
        if self._role is not None:
            with self._handle.hold():
                self._role.look()
            self._keep_view()
            writer = self._role.writer
            if writer is not None:
                try:
                    writer.maintain()
                except StoreClosed as error:
                    self._check_moved(error)
            return
        self._writer(self._handle).maintain()
        self._keep_progress()
        self.apply_handoffs()

    def expire(self) -> int:
        """Delete commit log files that the retention says are due, at any hour; returns how many.

        Raises:
            InvalidArgument: the store was opened without a retention, so nothing is ever due.
        """
        writer = self._appender()
        if writer is not None and writer is not self:
            try:
                return writer.expire()
            except StoreClosed as error:
                self._check_moved(error)
        handle = self._writer(self._handle)
        if self._plan.retention is None:
            raise InvalidArgument(
                "the store was opened without a retention: nothing is due; give retention=Retention(...)"
            )
        return handle.expire()


def topic_info(name: str, config: TopicConfig | None, queues: Sequence[QueueInfo]) -> TopicInfo:
    """Return what a topic's entry in ``topics.json``, if it has one, and its queues say of it."""
    used = max((queue.queue_id + 1 for queue in queues), default=0)
    return TopicInfo(
        name=name,
        write_queues=used if config is None else config.write_queue_nums,
        read_queues=used if config is None else config.read_queue_nums,
        perm=READ_WRITE if config is None else int(config.perm),
        is_batch=any(queue.is_batch for queue in queues)
        or (config is not None and config.attributes.get("queue.type") == "BatchCQ"),
        is_system=is_system_topic(name),
        is_configured=config is not None,
        attributes={} if config is None else dict(config.attributes),
        queues=tuple(queues),
    )
