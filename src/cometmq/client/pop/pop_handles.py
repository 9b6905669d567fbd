"""Handles of popped messages, and the texts of a POP's answer that they are made of.

A handle says by which pop a message was taken, until when it is hidden from others, and where it lies; a broker needs
it to take an acknowledgement. Messages of a normal topic come without: the client makes their handles from the answer's
``startOffsetInfo`` and ``msgOffsetInfo``. Those of a retry topic carry theirs, in a property that any sender may have
set, so that a handle in it counts only where it is of this pop. A message that no handle can be made for is left out,
and redelivered when its time is over; the others of the answer are handed out.

Threads: any; nothing is kept. Source: consumption specification 4.5.2; remoting specification 2.5.
"""

from __future__ import annotations

import enum
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from cometmq.errors import InvalidArgument, MalformedCommand
from cometmq.store_config.fields import INT32_MAX, INT64_MAX
from cometmq.store_config.names import RETRY_PREFIX

if TYPE_CHECKING:
    from cometmq._engine import ReceivedMessage

__all__ = [
    "PopHandle",
    "PopTimes",
    "TopicKind",
    "pop_retry_topic",
    "read_message_offsets",
    "read_starts",
    "set_handles",
    "set_order_counts",
]

_log = logging.getLogger(__name__)

HANDLE_CHARS_MAX: Final = 512

_DIGITS = re.compile(r"[0-9]{1,19}")
_HEAD_FIELDS = 7
_HEADS_KEPT = 1_024

QueueKey = tuple[int, int]
"""Kind of topic and queue id."""


class TopicKind(enum.IntEnum):
    """Where a popped message is stored; the values are those of the wire."""

    NORMAL = 0
    RETRY_V1 = 1
    RETRY_V2 = 2


_RETRY_MARKS = {TopicKind.RETRY_V1: "_", TopicKind.RETRY_V2: "+"}


def pop_retry_topic(group: str, topic: str, kind: TopicKind) -> str:
    """Return the topic that messages of this kind are stored under, as brokers know it.

    Args:
        group: the group, with its namespace.
        topic: the topic that is popped, with its namespace.
        kind: ``NORMAL`` gives the topic itself.
    """
    mark = _RETRY_MARKS.get(kind)
    return topic if mark is None else f"{RETRY_PREFIX}{group}{mark}{topic}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PopTimes:
    """The fields that all messages of a pop share.

    Attributes:
        pop_ms: when the broker gave them out, milliseconds since 1970 by its clock.
        invisible_ms: for how long nobody else gets them.
        revive_queue_id: where the broker keeps account of them.
    """

    pop_ms: int
    invisible_ms: int
    revive_queue_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PopHandle:
    """A handle, read. ``str()`` gives its text.

    Attributes:
        start_offset: the first offset of its batch in the queue.
        times: when it was popped, and for how long.
        kind: the kind of topic that it lies under.
        broker_name: its broker.
        queue_id: its queue under that topic.
        queue_offset: its place there.
    """

    start_offset: int
    times: PopTimes
    kind: TopicKind
    broker_name: str
    queue_id: int
    queue_offset: int

    @staticmethod
    def parse(text: str, *, queue_offset: int | None = None) -> PopHandle:
        """Read a handle.

        Args:
            text: the handle.
            queue_offset: the message's, for a handle that ends before it.

        Raises:
            InvalidArgument: it is not one.
        """
        if len(text) > HANDLE_CHARS_MAX:
            raise InvalidArgument(f"a handle of {len(text)} characters; none has more than {HANDLE_CHARS_MAX}")
        head, _, offset = text.rpartition(" ")
        if queue_offset is not None and text.count(" ") == _HEAD_FIELDS - 1:
            head, offset = text, str(queue_offset)
        start_offset, times, kind, broker_name, queue_id = _parse_head(head)
        return PopHandle(
            start_offset=start_offset,
            times=times,
            kind=kind,
            broker_name=broker_name,
            queue_id=queue_id,
            queue_offset=_handle_number(text, offset, INT64_MAX),
        )

    @property
    def head(self) -> str:
        """The text without the queue offset at its end."""
        times = self.times
        return (
            f"{self.start_offset} {times.pop_ms} {times.invisible_ms} {times.revive_queue_id} {self.kind:d} "
            f"{self.broker_name} {self.queue_id}"
        )

    def __str__(self) -> str:
        """Return the handle's text."""
        return f"{self.head} {self.queue_offset}"

    def renewed(self, times: PopTimes) -> PopHandle:
        """Return what takes its place when the message stays hidden for another time: a batch of its own."""
        return replace(self, start_offset=self.queue_offset, times=times)


@lru_cache(maxsize=_HEADS_KEPT)
def _parse_head(head: str) -> tuple[int, PopTimes, TopicKind, str, int]:
    """Return what the handles of a batch have in common; most are asked for once for each of its messages."""
    parts = head.split(" ")
    if len(parts) != _HEAD_FIELDS:
        raise InvalidArgument(f"a handle has {_HEAD_FIELDS} parts before its offset, and not {len(parts)}: {head!r}")
    start, pop_ms, invisible_ms, revive, kind, broker_name, queue_id = parts
    if not broker_name:
        raise InvalidArgument(f"the handle {head!r} names no broker")
    times = PopTimes(
        pop_ms=_handle_number(head, pop_ms, INT64_MAX),
        invisible_ms=_handle_number(head, invisible_ms, INT64_MAX),
        revive_queue_id=_handle_number(head, revive, INT32_MAX),
    )
    return (
        _handle_number(head, start, INT64_MAX),
        times,
        TopicKind(_handle_number(head, kind, max(TopicKind))),
        broker_name,
        _handle_number(head, queue_id, INT32_MAX),
    )


def _number(text: str, maximum: int) -> int | None:
    if _DIGITS.fullmatch(text) is None:
        return None
    number = int(text)
    return number if number <= maximum else None


def _handle_number(handle: str, text: str, maximum: int) -> int:
    number = _number(text, maximum)
    if number is None:
        raise InvalidArgument(f"the handle {handle!r} has {text[:40]!r} where a number from 0 to {maximum} belongs")
    return number


# --- Fields of an answer ----------------------------------------------------------------------------------------------


def read_starts(text: str) -> dict[QueueKey, int]:
    """Return the first offset of each queue's batch, of a ``startOffsetInfo``.

    Raises:
        MalformedCommand: it is none, or names a queue twice.
    """
    return {key: _info_number("startOffsetInfo", value, INT64_MAX) for key, value in _entries("startOffsetInfo", text)}


def read_message_offsets(text: str) -> dict[QueueKey, list[int]]:
    """Return the offsets of each queue's messages, of a ``msgOffsetInfo``.

    Raises:
        MalformedCommand: it is none, or names a queue twice.
    """
    return {
        key: [_info_number("msgOffsetInfo", offset, INT64_MAX) for offset in value.split(",")]
        for key, value in _entries("msgOffsetInfo", text)
    }


def _entries(member: str, text: str) -> Iterator[tuple[QueueKey, str]]:
    seen: set[QueueKey] = set()
    for entry in text.split(";") if text else ():
        parts = entry.split(" ")
        if len(parts) != 3:
            raise MalformedCommand(f"{member} has an entry of {len(parts)} parts: {entry[:40]!r}", member=member)
        key = _info_number(member, parts[0], max(TopicKind)), _info_number(member, parts[1], INT32_MAX)
        if key in seen:
            raise MalformedCommand(f"{member} names queue {key[1]} of topic kind {key[0]} twice", member=member)
        seen.add(key)
        yield key, parts[2]


def _info_number(member: str, text: str, maximum: int) -> int:
    number = _number(text, maximum)
    if number is None:
        raise MalformedCommand(f"{member} has {text[:40]!r} where a number from 0 to {maximum} belongs", member=member)
    return number


def set_handles(
    messages: Sequence[ReceivedMessage],
    times: PopTimes,
    *,
    broker_name: str,
    starts: str | None,
    message_offsets: str | None,
) -> list[ReceivedMessage]:
    """Give the messages of a POP's answer their handles, queues and offsets; return those that have one now.

    Args:
        messages: all of them, as they were decoded.
        times: the answer's.
        broker_name: the broker that returned them.
        starts: the answer's ``startOffsetInfo``; None makes each queue's first message its start, as old brokers do.
        message_offsets: the answer's ``msgOffsetInfo``; of each queue the i-th entry is that of its i-th message.

    Raises:
        MalformedCommand: the texts cannot be read.
    """
    from cometmq._engine import popped_places, set_popped

    places = _Places(times, broker_name, starts=starts, message_offsets=message_offsets)
    by_queue: dict[QueueKey, list[ReceivedMessage]] = {}
    lost: list[ReceivedMessage] = []
    for message, (kind, queue_id, text) in zip(messages, popped_places(list(messages)), strict=True):
        carried = None if text is None else places.carried(text, message.queue_offset)
        if carried is not None:
            set_popped([message], carried.head, carried.queue_id, [carried.queue_offset])
        else:
            by_queue.setdefault((kind, queue_id), []).append(message)
    for key, some in by_queue.items():
        some.sort(key=_queue_offset)
        offsets = places.offsets(key, some)
        if offsets is not None:
            set_popped(some, places.head(key, offsets[0]), key[1], offsets)
            continue
        for message in some:
            found = places.key_of(key, message.queue_offset)
            if found is None:
                lost.append(message)
            else:
                head = places.head(found, message.queue_offset)
                set_popped([message], head, found[1], [message.queue_offset])
    if lost:
        _log.warning(
            "the answer of %s lacks receipt handles for %d of its %d messages, such as %s: they are redelivered",
            broker_name,
            len(lost),
            len(messages),
            lost[0],
        )
        gone = set(map(id, lost))
        return [message for message in messages if id(message) not in gone]
    return list(messages)


def set_order_counts(messages: Iterable[ReceivedMessage], text: str | None) -> None:
    """Set the redelivery counts of an ordered pop's ``orderCountInfo``: a message's own, else that of its queue.

    Raises:
        MalformedCommand: the text cannot be read.
    """
    from cometmq._engine import set_reconsume_times

    if not text:
        return
    counts: dict[tuple[str, str], int] = {}
    for entry in text.split(";"):
        kind, _, rest = entry.partition(" ")
        place, _, count = rest.partition(" ")
        counts[kind, place] = _info_number("orderCountInfo", count, INT32_MAX)
    for message in messages:
        handle = PopHandle.parse(message.pop_handle or "")
        kind, queue_id = f"{handle.kind:d}", handle.queue_id
        times = counts.get((kind, f"qo{queue_id}%{handle.queue_offset}"), counts.get((kind, f"{queue_id}"), 0))
        if times:
            set_reconsume_times(message, times)


class _Places:
    """The places of an answer's messages, as the answer states them."""

    def __init__(self, times: PopTimes, broker_name: str, *, starts: str | None, message_offsets: str | None) -> None:
        self._times = times
        self._broker_name = broker_name
        self._starts = None if starts is None else read_starts(starts)
        self._offsets = read_message_offsets(message_offsets or "")

    def carried(self, text: str, queue_offset: int) -> PopHandle | None:
        """Return the handle that a message carries; None where it is not of this pop."""
        try:
            handle = PopHandle.parse(text, queue_offset=queue_offset)
        except InvalidArgument:
            return None
        is_ours = handle.times.pop_ms == self._times.pop_ms and handle.broker_name == self._broker_name
        return handle if is_ours and handle.start_offset <= handle.queue_offset else None

    def offsets(self, key: QueueKey, some: Sequence[ReceivedMessage]) -> list[int] | None:
        """Return the offsets of a queue's messages; None where the answer names others."""
        if self._starts is None:
            return [message.queue_offset for message in some]
        offsets = self._offsets.get(key, [])
        return offsets if key in self._starts and len(offsets) == len(some) else None

    def key_of(self, key: QueueKey, queue_offset: int) -> QueueKey | None:
        """Return the queue in which the answer names an offset, first that of ``key``.

        Messages of a retry topic come under the name of their own.
        """
        for kind in (key[0], *TopicKind):
            if queue_offset in self._offsets.get((kind, key[1]), ()) and (kind, key[1]) in (self._starts or ()):
                return kind, key[1]
        return None

    def head(self, key: QueueKey, first_offset: int) -> str:
        """Return the head of the handles of a queue's messages."""
        return PopHandle(
            start_offset=first_offset if self._starts is None else self._starts[key],
            times=self._times,
            kind=TopicKind(key[0]),
            broker_name=self._broker_name,
            queue_id=key[1],
            queue_offset=0,
        ).head


def _queue_offset(message: ReceivedMessage) -> int:
    return message.queue_offset
