"""A consumer of a group in an embedded store: messages from where the group stands, and commits."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from cometmq._engine import Message, Reader
from cometmq.errors import InvalidArgument, WrongType
from cometmq.store.options import INT32_MAX, StartFrom, Time, in_range, time_ms, timeout_ms

if TYPE_CHECKING:
    from cometmq._engine import Selector
    from cometmq.store.store import Store

__all__ = ["Consumer"]

Position = dict[tuple[str, int], int]


class Consumer:
    """Messages for a consumer group. Made by :meth:`Store.consumer`; a context manager and an iterator.

    Iterating hands out messages from the group's progress on, several queues merged in the order of storing.
    :meth:`commit` stores the progress; without it, the next consumer of the group sees the same messages
    again: at least once, in order within each queue. Closing commits nothing.

    Thread safety: one thread at a time.
    """

    def __init__(
        self,
        store: Store,
        group: str,
        topics: tuple[str, ...],
        *,
        tags: tuple[str, ...],
        where: Selector | None,
        queue_ids: tuple[int, ...] | None,
        start: StartFrom | Literal["earliest", "latest"] | Time,
        follow: bool,
        timeout_s: float | None,
    ) -> None:
        """Use :meth:`Store.consumer`."""
        if not topics:
            raise InvalidArgument("a consumer needs a topic")
        self.group = group
        self.topics = topics
        self._store = store
        self._queue_ids = queue_ids
        self._tags = tags
        self._where = where
        self._follow = follow
        self._timeout_ms = timeout_ms(timeout_s)
        self._closed = False
        # Claimed by an object of its own, so that the book of claims does not keep the consumer alive.
        self._claim = object()
        store._group_book.claim(self._claim, group, topics, queue_ids)
        try:
            if not store._read_only:
                with store.handle.hold():
                    store._group_book.require(group)
            self._committed: Position = {}
            self._reader = self._open(self._begin(start))
        except BaseException:
            store._group_book.release(self._claim)
            raise

    def _begin(self, start: StartFrom | Literal["earliest", "latest"] | Time) -> Position:
        """Where to begin in each queue that exists; those that come later begin at their first message."""
        policy = _start_policy(start)
        begin: Position = {}
        for topic in self.topics:
            progress = self._store._group_book.progress(self.group, topic)
            for queue in self._store.queues(topic):
                if self._queue_ids is not None and queue.queue_id not in self._queue_ids:
                    continue
                key = (topic, queue.queue_id)
                offset = progress.get(queue.queue_id)
                if offset is not None:
                    self._committed[key] = offset
                elif policy is StartFrom.EARLIEST:
                    offset = queue.min_offset
                elif policy is StartFrom.LATEST:
                    offset = queue.max_offset
                else:
                    offset = self._store.offset_at(topic, queue.queue_id, policy)
                # Below the minimum the messages have expired; beyond the maximum a power loss took what was consumed.
                begin[key] = min(max(offset, queue.min_offset), queue.max_offset)
        return begin

    def _open(self, begin: Position) -> Reader:
        return Reader(
            self._store.handle,
            topics=self.topics,
            queue_ids=self._queue_ids or (),
            tags=self._tags,
            where=self._where,
            starts=begin,
            may_be_missing=True,
            follow=self._follow,
            timeout_ms=self._timeout_ms,
            called=f"consumer of the group {self.group!r}",
        )

    # --- Messages

    def __iter__(self) -> Iterator[Message]:
        """Iterate; may be taken up again after it stopped."""
        return self._reader

    def __next__(self) -> Message:
        """Return the next message."""
        return next(self._reader)

    def fetch(self, max_messages: int = 512, *, timeout_s: float | None = 0.0) -> list[Message]:
        """Return up to ``max_messages`` messages.

        Args:
            max_messages: most messages.
            timeout_s: how long to wait for the first; None for ever.

        Returns:
            The messages; none when nothing came.
        """
        return self._reader.fetch(in_range(max_messages, "max_messages", 1, INT32_MAX), timeout_ms(timeout_s))

    @property
    def reader(self) -> Reader:
        """The reader behind it, until the next :meth:`seek`."""
        return self._reader

    # --- Progress

    def positions(self) -> Position:
        """Return the next offset of each queue behind the messages handed out, which :meth:`commit` would store."""
        return self._reader.positions()

    def committed(self) -> Position:
        """Return what this consumer, or the group before it, has committed."""
        return dict(self._committed)

    def commit(self, message: Message | None = None) -> None:
        """Store the group's progress. When it returns, it survives this process; with ``flush="sync"`` it is on disk.

        With ``flush="async"`` a power loss takes the commits of the last moments, as it takes messages.

        Args:
            message: commit its queue up to and with this message. None: every queue, up to and with the message handed
                out last.

        Costs some microseconds, and with ``flush="sync"`` a sync, which commits of several threads share: commit per
        batch, not per message.

        Raises:
            StorageError: it could not be written; the progress before stands.
            StoreLocked: the store was opened to read, and a RocketMQ broker holds it: commit over the wire.
        """
        if message is None:
            positions = self._reader.positions()
        else:
            if not isinstance(message, Message):
                raise WrongType(f"message must be a message of this consumer or None, not {type(message).__name__}")
            positions = {(message.topic, message.queue_id): message.queue_offset + 1}
            if message.topic not in self.topics:
                raise InvalidArgument(f"the message is of the topic {message.topic}, which this consumer does not read")
        changed = {key: offset for key, offset in positions.items() if self._committed.get(key) != offset}
        if changed:
            self._store._commit_progress(self.group, changed)
            self._committed |= changed

    def seek(self, topic: str, queue: int, offset: int) -> None:
        """Continue at an offset of a queue. Other queues continue behind what was handed out. Nothing is committed.

        Raises:
            InvalidArgument: the consumer does not read this queue, or the offset is negative.
            TopicNotFound: the topic has no such queue.
            OffsetOutOfRange: the offset is behind the queue's end.
        """
        positions = self._reader.positions()
        if topic not in self.topics or (self._queue_ids is not None and queue not in self._queue_ids):
            raise InvalidArgument(f"this consumer does not read queue {queue} of {topic!r}")
        self._store.handle.refresh()
        self._store._check_offset(topic, queue, offset)
        self._reopen(positions | {(topic, queue): offset})

    def seek_time(self, time: Time) -> None:
        """Go on at a time, in every queue. Nothing is committed."""
        positions = self._reader.positions()
        at = time_ms(time)
        self._reopen({(topic, queue): self._store.offset_at(topic, queue, at) for topic, queue in positions})

    def _reopen(self, begin: Position) -> None:
        reader = self._open(begin)
        self._reader.close()
        self._reader = reader

    # --- Life

    @property
    def closed(self) -> bool:
        """True after :meth:`close`."""
        return self._closed

    def close(self) -> None:
        """Let the group's queues go. Nothing is committed. Calling it again does nothing."""
        if not self._closed:
            self._closed = True
            self._reader.close()
            self._store._group_book.release(self._claim)

    def __enter__(self) -> Consumer:
        """Return the consumer itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def __del__(self) -> None:
        """Let the group's queues go where close() was forgotten."""
        if not getattr(self, "_closed", True):
            self._closed = True
            self._store._group_book.release(self._claim)

    def __repr__(self) -> str:
        """Say group and topics."""
        return f"<Consumer {self.group!r} of {', '.join(self.topics)}{' closed' if self._closed else ''}>"


def _start_policy(start: StartFrom | Literal["earliest", "latest"] | Time) -> StartFrom | int:
    if isinstance(start, str):
        try:
            return StartFrom(start)
        except ValueError:
            raise InvalidArgument(f'start is "earliest", "latest" or a time, not {start!r}') from None
    return start if isinstance(start, StartFrom) else time_ms(start)
