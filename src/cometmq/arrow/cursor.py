"""Cursors: how far scans have read in each queue, and the ranges between two of them.

A scan since last time reads a :class:`Delta`, which is pinned when the scan is made: each pass sees the same messages.
The delta collects how far the passes have come. ``docs/decisions/0032-scans-since-last-time.md`` has the reasons.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeGuard

from cometmq.arrow.columns import PLACE
from cometmq.arrow.count import offsets_of
from cometmq.arrow.libraries import library
from cometmq.errors import Error, InvalidArgument, StaleCursor, WrongType

if TYPE_CHECKING:
    import pyarrow

    from cometmq._engine import StoreHandle
    from cometmq.arrow.scan import Query

__all__ = [
    "Cursor",
    "Delta",
    "DeltaTracker",
    "Mark",
    "Place",
    "Tracker",
    "mark_of",
    "next_offsets",
    "plan_delta",
    "resume_offset",
]

Place: TypeAlias = tuple[str, int]
"""Topic and queue."""

Commit: TypeAlias = Callable[[Mapping[Place, int], Mapping[Place, int]], None]
"""Stores offsets for a group whose offsets before they are; raises where it has others."""

_VERSION = 1


class Mark(NamedTuple):
    """Identifies a message: its place in the log, and when it was stored, in milliseconds."""

    physical_offset: int
    stored_ms: int


def _not_a_cursor(text: str | bytes, reason: str) -> InvalidArgument:
    return InvalidArgument(f"this is not a cursor's JSON: {text!r:.60} ({reason})")


class Cursor:
    """How far each queue was read: the next offset of each. Immutable.

    ``Cursor()`` is the beginning of every queue. ``store.scan(topic, start=cursor)`` reads on from a cursor, and
    ``scan.cursor`` is the next one. Beside each offset it keeps the place and time of the message before, by which a
    topic that was deleted and made again is noticed.
    """

    __slots__ = ("_marks", "_offsets")

    def __init__(self, offsets: Mapping[Place, int] | None = None) -> None:
        """``offsets`` are next offsets by (topic, queue); other queues are read from their beginning."""
        found: dict[Place, int] = {}
        if offsets is not None and not isinstance(offsets, Mapping):
            raise WrongType(f"offsets must be a dict {{(topic, queue): offset}}, not {type(offsets).__name__}")
        for place, offset in (offsets or {}).items():
            if not (isinstance(place, tuple) and len(place) == 2 and isinstance(place[0], str) and _is_count(place[1])):
                raise WrongType(f"offsets contains the key {place!r:.60}: it must be a pair (topic, queue)")
            if not _is_count(offset):
                name = f"{place[0]}/{place[1]}"
                raise InvalidArgument(f"the offset of {name} is {offset!r:.60}; it must be an int from 0 to 2^63 - 1")
            found[place] = offset
        self._offsets = found
        self._marks: dict[Place, Mark] = {}

    @classmethod
    def marked(cls, offsets: Mapping[Place, int], marks: Mapping[Place, Mark]) -> Cursor:
        """Return a cursor with the marks of the messages before its offsets."""
        found = cls(offsets)
        found._marks = {place: mark for place, mark in marks.items() if place in offsets}
        return found

    @property
    def offsets(self) -> dict[Place, int]:
        """The next offset of each (topic, queue)."""
        return dict(self._offsets)

    @property
    def marks(self) -> dict[Place, Mark]:
        """The message before each offset, where it is known; the place and time 0 where it had expired."""
        return dict(self._marks)

    def to_json(self) -> str:
        """Return the cursor as JSON. Equal cursors give equal texts."""
        queues = {
            f"{topic}/{queue}": {"offset": offset, **({"after": list(mark)} if mark is not None else {})}
            for (topic, queue), offset in sorted(self._offsets.items())
            for mark in [self._marks.get((topic, queue))]
        }
        return json.dumps({"cometmq_cursor": _VERSION, "queues": queues}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> Cursor:
        """Return the cursor that :meth:`to_json` wrote.

        Raises:
            InvalidArgument: the text is not a cursor's.
        """
        if not isinstance(text, (str, bytes)):
            raise WrongType(f"text must be a cursor's JSON (str or bytes), not {type(text).__name__}")
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise _not_a_cursor(text, f"it is not JSON: {error}") from error
        try:
            version = document["cometmq_cursor"]
            if version != _VERSION:
                raise InvalidArgument(f"the cursor has the version {version!r}; this CometMQ knows {_VERSION}")
            offsets: dict[Place, int] = {}
            marks: dict[Place, Mark] = {}
            for name, entry in document["queues"].items():
                topic, _, queue = name.rpartition("/")
                place = (topic, int(queue))
                offsets[place] = entry["offset"]
                if "after" in entry:
                    marks[place] = _mark(*entry["after"])
            return cls.marked(offsets, marks)
        except InvalidArgument:
            raise
        except KeyError as error:
            raise _not_a_cursor(text, f"it has no field {error}") from error
        except (ValueError, TypeError, AttributeError) as error:
            raise _not_a_cursor(text, "a field has the wrong type") from error

    def __eq__(self, other: object) -> bool:
        """Compare offsets and marks."""
        return isinstance(other, Cursor) and (self._offsets, self._marks) == (other._offsets, other._marks)

    def __hash__(self) -> int:
        """Hash the offsets."""
        return hash(frozenset(self._offsets.items()))

    def __repr__(self) -> str:
        """Say the offsets."""
        found = ", ".join(f"{topic}/{queue}: {offset}" for (topic, queue), offset in sorted(self._offsets.items()))
        return f"<Cursor {found or 'at the beginning'}>"


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _mark(physical_offset: object, stored_ms: object) -> Mark:
    if not (_is_count(physical_offset) and isinstance(stored_ms, int) and -1 << 63 <= stored_ms < 1 << 63):
        raise ValueError("'after' is not a place in the log and a time in milliseconds")
    return Mark(physical_offset, stored_ms)


# --- The life of a queue


def mark_of(handle: StoreHandle, place: Place, offset: int) -> Mark | None:
    """Return the mark of the message before an offset, or None where none can be read there."""
    if offset <= 0:
        return None
    try:
        message = handle.read_offset(*place, offset - 1)
    except Error:
        return None  # a gap, damage, or it has expired
    return Mark(message.physical_offset, message.store_timestamp_ms)


_EXPIRED = Mark(0, 0)
"""The mark of a message that has expired: before all those of a topic that is made again."""


def _life_mark(handle: StoreHandle, place: Place, offset: int) -> Mark | None:
    """Return :func:`mark_of`; of an expired message, a mark that no message of a later life has."""
    mark = mark_of(handle, place, offset)
    if mark is None and offset > 0:
        queue = handle.queue(*place)
        if queue is not None and offset <= queue[1]:
            return _EXPIRED
    return mark


def resume_offset(
    position: int,
    low: int,
    high: int,
    *,
    stored_ms: int | None,
    is_same: Callable[[], bool],
    offset_at: Callable[[int], int],
) -> int | None:
    """Return the offset to continue at in a queue whose messages are not those that were read; None if they are.

    The queue was deleted and made again: all its messages are younger than the last one read. Or it was cut: those that
    are younger, if any, came since.

    Args:
        position: the next offset to read.
        low: the queue's first offset.
        high: its end.
        stored_ms: when the message before the position was stored, if that is known.
        is_same: asked where that message can be in the queue; True also where it cannot be read.
        offset_at: returns the offset of the first message that was stored at a time or later.
    """
    if position <= low:
        return None  # nothing was read, or the messages read have expired
    if position > high:
        if stored_ms is None:
            return high  # nothing distinguishes them
    elif stored_ms is None or is_same():
        return None
    if low == high:
        return high
    # In one millisecond with the mark there may be messages of both; where the first one is not older, all are new.
    first = offset_at(stored_ms)
    return min(low if first <= low else offset_at(stored_ms + 1), high)


# --- Ranges


class Delta:
    """The messages since a cursor, and how far they were read. Any thread."""

    def __init__(
        self,
        handle: StoreHandle,
        begin: Cursor,
        ranges: tuple[tuple[str, int, int, int], ...],
        ends: Mapping[Place, Mark],
        *,
        commit: Commit | None,
        committed: Mapping[Place, int],
    ) -> None:
        """Use :func:`plan_delta`."""
        self.begin = begin
        self.ranges = ranges
        self._handle = handle
        self._ends = ends
        self._commit = commit
        self._committed = dict(committed)
        self._reached: dict[Place, int] | None = None
        self._lock = threading.Lock()

    def reach(self, offsets: Mapping[Place, int]) -> None:
        """Note that messages up to these offsets were read, by a pass of any kind."""
        with self._lock:
            known = self._reached = self._reached or {}
            for place, offset in offsets.items():
                known[place] = max(offset, known.get(place, 0))

    @property
    def cursor(self) -> Cursor:
        """The cursor behind the messages that were read.

        Raises:
            InvalidArgument: no pass has read anything.
            StaleCursor: a topic was deleted and made again since the scan was made.
        """
        with self._lock:
            reached = None if self._reached is None else dict(self._reached)
        if reached is None:
            raise InvalidArgument(
                "nothing was read by this scan: iterate over its batches, or read it to its end by to_table(), "
                "to_pandas(), to_polars() or to_reader(); queries of libraries do not count"
            )
        offsets, marks = self.begin.offsets, self.begin.marks
        self._handle.refresh()
        for topic, queue_id, start, end in self.ranges:
            place = (topic, queue_id)
            offset = reached.get(place, start)
            if offset != start or place not in marks:
                # The mark first: if the queue has its life still then, the mark is of this life.
                mark = self._ends.get(place) if offset == end else _life_mark(self._handle, place, offset)
                self._check_life(place, end)
                offsets[place] = offset
                marks.pop(place, None)
                if mark is not None:
                    marks[place] = mark
        return Cursor.marked(offsets, marks)

    def _check_life(self, place: Place, end: int) -> None:
        known = self._ends.get(place)
        queue = self._handle.queue(*place)
        high = 0 if queue is None else queue[2]
        if high < end or (known is not None and mark_of(self._handle, place, end) not in (known, None)):
            raise StaleCursor(
                f"{place[0]}/{place[1]} was deleted and made again since this scan was made: its messages are not "
                "those that the scan was to read; make a new scan",
                topic=place[0],
                queue_id=place[1],
            )

    def commit(self) -> None:
        """Store the cursor as the group's progress."""
        if self._commit is None:
            raise InvalidArgument("this scan has no group to commit for: keep scan.cursor.to_json(), or give group=")
        offsets = self.cursor.offsets
        places = {(topic, queue_id) for topic, queue_id, _, _ in self.ranges}
        changed = {place: offsets[place] for place in places if self._committed.get(place) != offsets[place]}
        if changed:
            self._commit(changed, self._committed)
            self._committed |= changed


class Tracker(Protocol):
    """Follows how far a pass is."""

    def passed(self, offsets: Mapping[Place, int]) -> None:
        """A batch is handed out: the next offset of each of its queues."""

    def ended(self, *, limited: bool) -> None:
        """Nothing more comes: because the range ends, or because the scan's limit was reached."""


class DeltaTracker:
    """Tells a :class:`Delta` how far one pass is."""

    def __init__(self, delta: Delta, *, whole: bool) -> None:
        """``whole``: the pass counts when it has ended, since nobody knows which of its batches were used."""
        self._delta = delta
        self._whole = whole
        self._reached: dict[Place, int] = {}

    def passed(self, offsets: Mapping[Place, int]) -> None:
        """See :class:`Tracker`."""
        self._reached |= offsets
        if not self._whole:
            self._delta.reach(self._reached)

    def ended(self, *, limited: bool) -> None:
        """See :class:`Tracker`."""
        if not limited:
            self._reached = {(topic, queue_id): end for topic, queue_id, _, end in self._delta.ranges}
        self._delta.reach(self._reached)


def next_offsets(batch: pyarrow.RecordBatch) -> dict[Place, int]:
    """Return the offset behind the last row of each queue in a batch that has the columns :data:`PLACE`."""
    topic, queue_id, offset = (column.name for column in PLACE)
    table = library("pyarrow").Table.from_batches([batch.select([topic, queue_id, offset])])
    found: dict[str, list[Any]] = table.group_by([topic, queue_id]).aggregate([(offset, "max")]).to_pydict()
    return {
        (name, number): last + 1
        for name, number, last in zip(found[topic], found[queue_id], found[f"{offset}_max"], strict=True)
    }


def plan_delta(
    handle: StoreHandle,
    query: Query,
    begin: Cursor,
    *,
    called: str,
    skip_lost: bool,
    is_topic: Callable[[str], bool],
    commit: Commit | None = None,
) -> Delta:
    """Pin the messages of a query since a cursor.

    Args:
        handle: the store.
        query: topics, queues and ``end``; its ``start`` and ``ranges`` are not looked at.
        begin: the cursor.
        called: the cursor's name, for errors.
        skip_lost: go on behind messages that are not there any more; else they raise.
        is_topic: whether there is a topic of this name; the places of others are dropped.
        commit: stores the progress of a group, whose progress ``begin`` then is.

    Raises:
        StaleCursor: messages behind the cursor have expired, or are another queue's.
    """
    offsets, marks = begin.offsets, begin.marks
    ranges: list[tuple[str, int, int, int]] = []
    ends: dict[Place, Mark] = {}
    there: set[Place] = set()

    def lost(place: Place, text: str, at: int) -> None:
        if not skip_lost:
            raise StaleCursor(
                f'{place[0]}/{place[1]} {text}; on_loss="skip" continues at offset {at:,}',
                topic=place[0],
                queue_id=place[1],
            )

    for topic, queue_id, low, end in list(offsets_of(handle, query)):
        place = (topic, queue_id)
        there.add(place)
        queue = handle.queue(topic, queue_id)
        high = end if queue is None else queue[2]
        start = offsets.get(place, low)
        # The mark of the end first: if the cursor's mark still holds then, both are of one life of the queue.
        end_mark = _life_mark(handle, place, end)
        again = _resumed(handle, place, start, low, high, marks.get(place))
        if again is not None:
            lost(place, _other_messages(called, start, high), again)
            start = again
            marks.pop(place, None)
        elif start < low and place in offsets:
            lost(place, f"begins at offset {low:,} now: {low - start:,} messages behind {called} expired unread", low)
        if place in offsets:
            offsets[place] = start
        ranges.append((topic, queue_id, start, max(start, end)))
        if end_mark is not None and end >= start:
            ends[place] = end_mark
    for place, offset in begin.offsets.items():
        asked = not query.topics or place[0] in query.topics
        if asked and place not in there and (not query.queue_ids or place[1] in query.queue_ids):
            if offset and is_topic(place[0]):  # else it was deleted: among all topics, there is nothing to read of it
                lost(place, f"is empty: {called} has read it up to offset {offset:,}, so it was made again", 0)
            offsets.pop(place)
            marks.pop(place, None)
    return Delta(
        handle,
        Cursor.marked(offsets, marks),
        tuple(ranges),
        ends,
        commit=commit,
        committed=begin.offsets if commit is not None else {},
    )


def _resumed(handle: StoreHandle, place: Place, position: int, low: int, high: int, mark: Mark | None) -> int | None:
    return resume_offset(
        position,
        low,
        high,
        stored_ms=None if mark is None else mark.stored_ms,
        is_same=lambda: mark_of(handle, place, position) in (mark, None),
        offset_at=lambda time_ms: handle.offset_at(*place, time_ms, False),
    )


def _other_messages(called: str, position: int, high: int) -> str:
    if position > high:
        return (
            f"ends at offset {high:,}, and {called} has read it up to {position:,}: the topic was deleted and made "
            "again, or the store was cut"
        )
    return (
        f"has another message at offset {position - 1:,} than {called} has read: the topic was deleted and made again, "
        "or the store was cut"
    )
