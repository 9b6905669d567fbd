"""The calls that look for messages and read them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from cometmq._engine import KeySearch, Message, Reader, StoreHandle, parse_message_id
from cometmq._plural import verb
from cometmq.errors import InvalidArgument, NotFound, TopicNotFound
from cometmq.store.batch_key_search import BatchKeySearch
from cometmq.store.core import StoreCore
from cometmq.store.options import (
    INT32_MAX,
    INT64_MAX,
    QueueInfo,
    Time,
    a_text,
    in_range,
    optional_selector,
    optional_time_ms,
    parse_tags,
    several,
    time_ms,
    timeout_ms,
)

__all__ = ["Reading", "tagged"]


def tagged(handle: StoreHandle, topic: str, tag: str, begin_ms: int, end_ms: int, *, unwrap: bool = True) -> Reader:
    """Return a reader of the messages with exactly this tag that were stored in [begin_ms, end_ms], newest first."""
    return Reader(
        handle,
        topics=(topic,),
        tags=(tag,),
        backwards=True,
        start_time_ms=begin_ms,
        end_time_ms=None if end_ms == INT64_MAX else end_ms + 1,
        unwrap=unwrap,
        may_be_missing=True,
    )


class Reading(StoreCore):
    """The calls that look for messages and read them."""

    def read(
        self,
        topic: str | Iterable[str] | None = None,
        *,
        tags: str | Iterable[str] | None = None,
        queues: Iterable[int] | None = None,
        start: int | None = None,
        end: int | None = None,
        start_time: Time | None = None,
        end_time: Time | None = None,
        backwards: bool = False,
        follow: bool = False,
        timeout_s: float | None = None,
        unwrap: bool = True,
        where: str | None = None,
    ) -> Reader:
        """Iterate over messages: ``for message in store.read("orders", tags="paid || shipped")``.

        Several queues and topics come merged in the order in which they were stored.

        Without a topic it gives what all topics have, RocketMQ's own included: the same messages as reading each of
        them. Records of a deleted topic, which stay in the log until they expire, are not among them, also when a topic
        of that name was made again.

        Args:
            topic: one topic, several, or None for all of them, also those that are made later.
            tags: only messages with one of these tags: ``"A || B"``, or a list of tags; None or ``"*"`` for all.
            queues: only these queues.
            start: queue offset to begin at. Only with one topic; so is ``end``.
            end: queue offset to end before.
            start_time: only messages stored at this time or later (milliseconds or datetime).
            end_time: only messages stored before this time.
            backwards: newest first.
            follow: at the end, wait for new messages instead of stopping.
            timeout_s: with ``follow``, stop when nothing has come for so long; None: never. Iteration may be taken up
                again afterwards.
            unwrap: an inner batch as its messages; False: as the one record that it is. With ``where``, it is returned
                if one of its messages matches, or if it is compressed.
            where: only messages whose properties match this SQL92 expression: ``"price > 10 AND region = 'eu'"``, as
                consumers of RocketMQ write them; None for all. Messages with values that do not compare do not match.

        Returns:
            An iterator; close it or use ``with`` to let go early. One thread at a time.

        Raises:
            TopicNotFound: there is no such topic.
            InvalidArgument: ``where`` is no such expression; the text has the place and the reason.
            LimitReached: ``where`` is too long or too deep.
            CorruptRecord: (while iterating) a damaged record; iterating on goes on behind it.
        """
        topics = self._checked_topics(topic)
        if (start is not None or end is not None) and len(topics) != 1:
            raise InvalidArgument("start and end are queue offsets: give one topic, or use start_time and end_time")
        if follow and backwards:
            raise InvalidArgument("follow waits for new messages: it cannot go backwards")
        for name, offset in (("start", start), ("end", end)):
            if offset is not None:
                in_range(offset, name, 0, INT64_MAX)
        return Reader(
            self._handle,
            topics=topics,
            queue_ids=self._checked_queues(topics, queues) or (),
            tags=parse_tags(tags),
            where=optional_selector(where),
            backwards=backwards,
            start=start,
            end=end,
            start_time_ms=optional_time_ms(start_time),
            end_time_ms=optional_time_ms(end_time),
            only_queued=not topics,
            follow=follow,
            timeout_ms=timeout_ms(timeout_s),
            unwrap=unwrap,
            may_be_missing=True,
        )

    def follow(
        self,
        topic: str | Iterable[str] | None = None,
        *,
        tags: str | Iterable[str] | None = None,
        queues: Iterable[int] | None = None,
        timeout_s: float | None = None,
        where: str | None = None,
    ) -> Reader:
        """Iterate over the messages that come from now on: :meth:`read` with ``follow``, without what is there already.

        Args:
            topic: one topic, several, or None for all of them, also those that are made later.
            tags: as :meth:`read`.
            queues: as :meth:`read`.
            timeout_s: stop when nothing has come for so long; None: never.
            where: as :meth:`read`.

        Raises:
            TopicNotFound: there is no such topic.
            InvalidArgument, LimitReached: ``where`` cannot be used.
        """
        topics = self._checked_topics(topic)
        chosen = self._checked_queues(topics, queues)
        self._handle.refresh()
        ends = {
            (name, queue_id): high
            for name, queue_id, _, _, high in self._handle.queues()
            if name in topics and (chosen is None or queue_id in chosen)
        }
        return Reader(
            self._handle,
            topics=topics,
            queue_ids=chosen or (),
            tags=parse_tags(tags),
            where=optional_selector(where),
            starts=ends if topics else None,
            start_physical=None if topics else self._handle.confirmed_end,
            only_queued=not topics,
            follow=True,
            timeout_ms=timeout_ms(timeout_s),
            may_be_missing=True,
        )

    def _checked_topics(self, topic: str | Iterable[str] | None) -> tuple[str, ...]:
        # A topic given twice is read, and counted, once.
        topics = () if topic is None else (topic,) if isinstance(topic, str) else several(topic, "topic", "topics")
        if topic is not None and not topics:
            raise InvalidArgument("no topic was given; None stands for all of them")
        for name in topics:
            self._require_topic(name)
        return topics

    def _checked_queues(self, topics: tuple[str, ...], queues: Iterable[int] | None) -> tuple[int, ...] | None:
        """Return the queues without repeats, or None for all; each is one of the topics'."""
        if queues is None:
            return None
        chosen = several(queues, "queues", "queue numbers")
        if not chosen or not topics:
            raise InvalidArgument("queues are the numbers of a topic's queues: give a topic, and at least one of them")
        for queue in chosen:
            if not any(self._has_queue(topic, queue) for topic in topics):
                names = f"the {'topic' if len(topics) == 1 else 'topics'} {' and '.join(topics)}"
                raise TopicNotFound(f"{names} {verb(len(topics), 'has', 'have')} no queue {queue}", topic=topics[0])
        return chosen

    def _has_queue(self, topic: str, queue: int) -> bool:
        if self._handle.queue(topic, in_range(queue, "an element of queues", 0, INT32_MAX)) is not None:
            return True
        config = self._topic_book.find(topic)
        return config is not None and queue < max(config.read_queue_nums, config.write_queue_nums)

    def get(self, topic: str, queue: int, offset: int) -> Message:
        """Return the message at a queue offset.

        Raises:
            TopicNotFound: no such topic or queue.
            OffsetOutOfRange: the offset is not in the queue.
        """
        in_range(offset, "offset", -1, INT64_MAX)
        return self._handle.read_offset(a_text(topic, "topic"), in_range(queue, "queue", 0, INT32_MAX), offset)

    def get_by_id(self, message_id: str) -> Message:
        """Return the message with an offset message id (``message.message_id``); of an inner batch, its record.

        Raises:
            NotFound: no such message in this store.
            InvalidArgument: no message id.
        """
        host, physical_offset = parse_message_id(a_text(message_id, "message_id"))
        message = self._handle.read_physical(physical_offset)
        if message.store_host != host:
            raise NotFound(f"the message {message_id} was stored by {host[0]}:{host[1]}, not here")
        return message

    def get_physical(self, physical_offset: int) -> Message:
        """Return the message whose record begins at a byte of the commit log; of an inner batch, its record.

        Raises:
            OffsetOutOfRange, CorruptRecord: no record begins there.
        """
        return self._handle.read_physical(in_range(physical_offset, "physical_offset", 0, INT64_MAX))

    def find(
        self,
        topic: str,
        key: str | None = None,
        *,
        tag: str | None = None,
        start_time: Time | None = None,
        end_time: Time | None = None,
        limit: int | None = None,
    ) -> Iterator[Message]:
        """Return an iterator over the messages of a topic that have a key (or that unique id) or a tag, newest first.

        It looks messages up as it goes, in constant memory, so a key with very many may be asked for. It gives what
        the store has now: messages appended later do not come, nor those of before the topic was deleted and made
        again. One thread at a time. In topics of inner batches (``queue.type=BatchCQ``) it reads every message, as the
        index knows no keys of messages inside batches.

        A tag is looked for in the queues, which have every message's, also where the index has no tags.

        Args:
            topic: topic.
            key: one key.
            tag: the tag, in place of a key.
            start_time: stored at this time or later.
            end_time: stored at this time or before.
            limit: most messages to give; None for all.

        Raises:
            TopicNotFound: there is no such topic.
            StoreClosed: (while iterating) the store was closed.
        """
        self._require_topic(topic)
        if key is not None and tag is not None:
            raise InvalidArgument("give a key or a tag, not both; read() has further filters")
        what, wanted = ("key", key) if tag is None else ("tag", tag)
        text = a_text(wanted, what)
        if not text:
            raise InvalidArgument(f"{what} is empty; read() returns all messages")
        if limit is not None:
            in_range(limit, "limit", 1, INT64_MAX)
        begin = 0 if start_time is None else time_ms(start_time)
        end = INT64_MAX if end_time is None else time_ms(end_time)
        if tag is not None:
            return itertools.islice(tagged(self._handle, topic, text, begin, end), limit)
        in_batches = any(is_batch for _, _, is_batch, _, _ in self._handle.queues(topic))
        most = 0 if limit is None or in_batches else limit
        search = KeySearch(self._handle, topic, text, begin_ms=begin, end_ms=end, limit=most, only_queued=True)
        if not in_batches:
            return search
        until = None if end == INT64_MAX else end + 1
        messages = self.read(topic, start_time=start_time, end_time=until, backwards=True)
        return BatchKeySearch(text, limit, messages, search)

    def find_unique(self, topic: str, unique_id: str) -> Message | None:
        """Return the newest message with a unique id (property ``UNIQ_KEY``), or None."""
        for message in self.find(topic, unique_id):
            if message.unique_id == unique_id:
                return message
        return None

    def offset_at(self, topic: str, queue: int, time: Time, *, last: bool = False) -> int:
        """Return the queue offset of the first message stored at a time or later.

        Args:
            topic: topic.
            queue: queue.
            time: milliseconds or datetime.
            last: the last message stored at that time or before, instead.

        Returns:
            The offset, within the queue's minimum and maximum.
        """
        return self._handle.offset_at(
            a_text(topic, "topic"), in_range(queue, "queue", 0, INT32_MAX), time_ms(time), last
        )

    def min_offset(self, topic: str, queue: int = 0) -> int:
        """Return the first queue offset that can be read."""
        return self.queue(topic, queue).min_offset

    def max_offset(self, topic: str, queue: int = 0) -> int:
        """Return the queue offset that the next message will get."""
        return self.queue(topic, queue).max_offset

    def queue(self, topic: str, queue: int = 0) -> QueueInfo:
        """Return one queue. A queue of a topic that had no message yet is empty.

        Raises:
            TopicNotFound: there is no such topic, or it has no such queue.
        """
        found = self._handle.queue(a_text(topic, "topic"), in_range(queue, "queue", 0, INT32_MAX))
        if found is not None:
            return QueueInfo(topic, queue, found[1], found[2], found[0])
        config = self._topic_book.find(topic)
        if config is None:
            raise self._no_topic(topic)
        if not 0 <= queue < max(config.read_queue_nums, config.write_queue_nums):
            raise TopicNotFound(f"the topic {topic!r} has no queue {queue}", topic=topic)
        return QueueInfo(topic, queue, 0, 0, config.attributes.get("queue.type") == "BatchCQ")

    def wait(self, seen_end: int, *, timeout_s: float | None = None) -> bool:
        """Wait until messages beyond the physical offset ``seen_end`` can be read; False when the time is over.

        With -1 any message will do.
        """
        seen_end = max(in_range(seen_end, "seen_end", -INT64_MAX, INT64_MAX), 0)
        return self._handle.wait_more(seen_end, timeout_ms(timeout_s))
