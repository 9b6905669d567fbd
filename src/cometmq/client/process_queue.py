"""What a consumer holds of one queue: messages that wait, messages a listener has, and how far all are finished.

One process queue stands between the pulls of a queue and its listeners. It counts what it holds, for the gates before
a pull, and knows the smallest message that is not finished, for the offset that may be committed. Nothing here reads a
clock or waits; the one thread that owns the engine owns it too.

Invariant: ``count`` and ``size_bytes`` are those of ``cache`` and ``consuming``; an offset lies in one of them at most.

Source: consumption specification 1.9.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from operator import attrgetter
from typing import Final, Protocol

from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.remoting.bodies.running_info import ProcessQueueInfo

__all__ = ["LOCK_LIVES_MS", "NOTHING", "PULL_IDLE_MS", "UNLOCK_FORCED_MS", "HeldMessage", "ProcessQueue"]

LOCK_LIVES_MS: Final = 30_000
"""A lock that was not renewed for longer than this counts as lost."""

PULL_IDLE_MS: Final = 120_000
"""A queue that was not pulled for longer than this is made anew by the next rebalance."""

UNLOCK_FORCED_MS: Final = 20_000
"""A dropped queue is given back although a listener still has messages of it, this long after its last lock."""

NOTHING: Final = -1
"""Answer of :meth:`ProcessQueue.remove` and :meth:`ProcessQueue.commit` where no offset follows."""

_MIB = 1 << 20
_offset_of = attrgetter("queue_offset")
_size_of = attrgetter("body_size")


class HeldMessage(Protocol):
    """What a process queue reads of a message."""

    @property
    def queue_offset(self) -> int:
        """Its place in the queue."""

    @property
    def body_size(self) -> int:
        """Bytes of its stored body."""

    @property
    def max_offset(self) -> int:
        """End of the queue when it was pulled."""


class ProcessQueue:
    """The messages of one queue from the pull to the end of their listeners. For one thread.

    Attributes:
        queue: whose messages these are.
        dropped: the queue belongs to this consumer no longer; nothing may be consumed or committed any more.
        locked: the broker gave this member the lock of an orderly queue.
        last_lock_ms: when it did last.
        last_pull_ms: when a pull was last due, 0 before the first.
        last_consume_ms: when a listener last took or finished messages.
        count: messages held.
        size_bytes: bytes of their bodies.
        behind: how many messages the broker had beyond those of the last pull that told so.
        consuming_now: a chain of listener calls runs for this orderly queue.
        listeners: listener calls that run at this moment for this orderly queue.
        try_unlock_times: how often the queue could not be given back because a listener was busy.
    """

    __slots__ = (
        "_cache",
        "_consuming",
        "_offset_max",
        "_order",
        "behind",
        "consuming_now",
        "count",
        "dropped",
        "last_consume_ms",
        "last_lock_ms",
        "last_pull_ms",
        "listeners",
        "locked",
        "queue",
        "size_bytes",
        "try_unlock_times",
    )

    def __init__(self, queue: MessageQueue) -> None:
        """Hold nothing yet."""
        self.queue = queue
        self.dropped = False
        self.locked = False
        self.last_lock_ms = 0
        self.last_pull_ms = 0
        self.last_consume_ms = 0
        self.count = 0
        self.size_bytes = 0
        self.behind = 0
        self.consuming_now = False
        self.listeners = 0
        self.try_unlock_times = 0
        self._cache: dict[int, HeldMessage] = {}
        self._consuming: dict[int, HeldMessage] = {}
        self._offset_max = 0
        # The offsets of the cache, ascending. What was removed in the middle stays here until it is at an end: a
        # dictionary alone would walk over all its removed entries each time its first key is asked for.
        self._order: deque[int] = deque()

    def __repr__(self) -> str:
        """Name the queue and what is held."""
        state = "dropped" if self.dropped else "locked" if self.locked else "held"
        return (
            f"ProcessQueue({self.queue.topic!r}, {self.queue.broker_name!r}, {self.queue.queue_id}, {state}, "
            f"count={self.count}, span={self.max_span})"
        )

    # --- What comes in ------------------------------------------------------------------------------------------------

    def put(self, messages: Sequence[HeldMessage]) -> bool:
        """Take messages of one pull; True when a chain of orderly listener calls has to begin.

        A message that is held already is replaced and counts once.
        """
        if messages:
            offsets = list(map(_offset_of, messages))
            cache = self._cache
            if self._ascend(offsets):
                cache.update(zip(offsets, messages, strict=True))
                self._order.extend(offsets)
                self._offset_max = offsets[-1]
                self.count += len(offsets)
                self.size_bytes += sum(map(_size_of, messages))
            else:
                for offset, message in zip(offsets, messages, strict=True):
                    if offset not in cache:
                        self._offset_max = offset
                        self.count += 1
                        self.size_bytes += message.body_size
                    cache[offset] = message
                self._order = deque(sorted(cache))
            behind = messages[-1].max_offset - offsets[-1]
            if behind > 0:
                self.behind = behind
        if self._cache and not self.consuming_now:
            self.consuming_now = True
            return True
        return False

    def _ascend(self, offsets: list[int]) -> bool:
        """Whether these lie behind all that is here, in order, as those of a pull nearly always do."""
        last = self._order[-1] if self._order else NOTHING
        return offsets[0] > last and all(map(int.__lt__, offsets, offsets[1:]))

    # --- What a concurrent listener finished --------------------------------------------------------------------------

    def contains(self, message: HeldMessage) -> bool:
        """Whether the message still waits to be finished."""
        return message.queue_offset in self._cache

    def first(self) -> HeldMessage | None:
        """Return the message that holds the committed offset back."""
        self._trim()
        return self._cache[self._order[0]] if self._order else None

    def remove(self, messages: Sequence[HeldMessage], *, now_ms: int) -> int:
        """Take out what is finished; return the offset from which all is to do, or NOTHING when nothing was held."""
        self.last_consume_ms = now_ms
        cache = self._cache
        if not cache:
            return NOTHING
        removed = 0
        for message in messages:
            if cache.pop(message.queue_offset, None) is not None:
                removed += message.body_size
                self.count -= 1
        self.size_bytes = self.size_bytes - removed if self.count else 0
        self._trim()
        return self._order[0] if self._order else self._offset_max + 1

    def _trim(self) -> None:
        order = self._order
        cache = self._cache
        while order and order[0] not in cache:
            order.popleft()
        while order and order[-1] not in cache:
            order.pop()

    # --- What an orderly listener is given, and gives back ------------------------------------------------------------

    def take(self, count: int, *, now_ms: int) -> list[HeldMessage]:
        """Give up to ``count`` of the first messages to a listener; where there are none, the chain ends."""
        self.last_consume_ms = now_ms
        self._trim()
        taken: list[HeldMessage] = []
        while self._order and len(taken) < count:
            offset = self._order.popleft()
            message = self._cache.pop(offset, None)
            if message is not None:
                self._consuming[offset] = message
                taken.append(message)
        if not taken:
            self.consuming_now = False
        return taken

    def commit(self, messages: Sequence[HeldMessage] | None = None) -> int:
        """Finish what a listener has, or only these of it; return the next offset, or NOTHING when it has nothing."""
        consuming = self._consuming
        done = list(consuming) if messages is None else [o for o in map(_offset_of, messages) if o in consuming]
        if not done:
            return NOTHING
        for offset in done:
            self.size_bytes -= consuming.pop(offset).body_size
        self.count -= len(done)
        return max(done) + 1

    def rollback(self) -> None:
        """Put back all that a listener has."""
        self.put_back(list(self._consuming.values()))

    def put_back(self, messages: Sequence[HeldMessage]) -> None:
        """Put these of what a listener has back where they were."""
        for message in messages:
            if self._consuming.pop(message.queue_offset, None) is not None:
                self._cache[message.queue_offset] = message
        self._order = deque(sorted(self._cache))

    # --- What the gates and the timers ask ----------------------------------------------------------------------------

    @property
    def max_span(self) -> int:
        """Offsets between the first and the last message that wait."""
        self._trim()
        return self._order[-1] - self._order[0] if self._order else 0

    def lock_expired(self, now_ms: int) -> bool:
        """Whether the broker may have given the lock to another member."""
        return now_ms - self.last_lock_ms > LOCK_LIVES_MS

    def pull_expired(self, now_ms: int) -> bool:
        """Whether the pulls of this queue have come to a stop. A queue whose first pull is not due yet has none."""
        return self.last_pull_ms != 0 and now_ms - self.last_pull_ms > PULL_IDLE_MS

    def clear(self) -> None:
        """Forget every message."""
        self._cache.clear()
        self._consuming.clear()
        self._order.clear()
        self.count = 0
        self.size_bytes = 0
        self._offset_max = 0

    def info(self, *, commit_offset: int) -> ProcessQueueInfo:
        """Return the figures that code 307 shows of this queue."""
        self._trim()
        consuming = self._consuming
        return ProcessQueueInfo(
            commit_offset=commit_offset,
            cached_msg_min_offset=self._order[0] if self._order else 0,
            cached_msg_max_offset=self._order[-1] if self._order else 0,
            cached_msg_count=len(self._cache),
            cached_msg_size_mib=self.size_bytes // _MIB,
            transaction_msg_min_offset=min(consuming, default=0),
            transaction_msg_max_offset=max(consuming, default=0),
            transaction_msg_count=len(consuming),
            locked=self.locked,
            try_unlock_times=self.try_unlock_times,
            last_lock_timestamp_ms=self.last_lock_ms,
            dropped=self.dropped,
            last_pull_timestamp_ms=self.last_pull_ms,
            last_consume_timestamp_ms=self.last_consume_ms,
        )
