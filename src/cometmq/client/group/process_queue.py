"""A consumer's messages of one queue: messages that wait, messages a listener has, and how far all are finished.

One process queue stands between the pulls of a queue and its listeners. It counts what it holds, for the gates before
a pull, and knows the smallest message that is not finished, for the offset that may be committed. Nothing here reads a
clock or waits; the one thread that owns the engine owns it too.

The messages lie in a table of the engine (:class:`cometmq._engine.MessageTable`): millions a second come and go.

Source: consumption specification 1.9.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from cometmq._engine import MessageTable
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.remoting.bodies.running_info import ProcessQueueInfo

__all__ = ["LOCK_LIVES_MS", "NOTHING", "PULL_IDLE_MS", "HeldMessage", "ProcessQueue"]

LOCK_LIVES_MS: Final = 30_000
"""A lock that was not renewed for longer than this counts as lost."""

PULL_IDLE_MS: Final = 120_000
"""A queue that was not pulled for longer than this is replaced by the next rebalance."""

NOTHING: Final = -1
"""Answer of :meth:`ProcessQueue.remove` and :meth:`ProcessQueue.commit` where no offset follows."""

_MIB = 1 << 20


class HeldMessage(Protocol):
    """The fields of a message that a process queue reads."""

    @property
    def queue_offset(self) -> int:
        """Its place in the queue."""

    @property
    def body_size(self) -> int:
        """Bytes of its stored body."""

    @property
    def max_offset(self) -> int:
        """End of the queue when it was pulled."""


class ProcessQueue(MessageTable):
    """The messages of one queue from the pull to the end of their listeners. For one thread.

    ``count`` messages with ``size_bytes`` of bodies are held; those that wait lie ``max_span`` offsets apart.

    Attributes:
        queue: whose messages these are.
        dropped: the queue belongs to this consumer no longer; nothing may be consumed or committed any more.
        locked: the broker gave this member the lock of an orderly queue.
        last_lock_ms: when it did last.
        last_pull_ms: when a pull was last due, 0 before the first.
        last_consume_ms: when a listener last took or finished messages.
        behind: how many messages the broker had beyond those of the last pull that reported it.
        consuming_now: a chain of listener calls runs for this orderly queue.
        listeners: listener calls that run at this moment for this orderly queue.
        try_unlock_times: how often the queue could not be given back because a listener was busy.
    """

    __slots__ = (
        "behind",
        "consuming_now",
        "dropped",
        "last_consume_ms",
        "last_lock_ms",
        "last_pull_ms",
        "listeners",
        "locked",
        "queue",
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
        self.behind = 0
        self.consuming_now = False
        self.listeners = 0
        self.try_unlock_times = 0

    def __repr__(self) -> str:
        """Name the queue and what is held."""
        state = "dropped" if self.dropped else "locked" if self.locked else "held"
        return (
            f"ProcessQueue({self.queue.topic!r}, {self.queue.broker_name!r}, {self.queue.queue_id}, {state}, "
            f"count={self.count}, span={self.max_span})"
        )

    # --- Messages that arrive -----------------------------------------------------------------------------------------

    def put(self, messages: Sequence[HeldMessage]) -> bool:
        """Take messages of one pull; True when a chain of orderly listener calls has to begin.

        A message that is held already is replaced and counts once.
        """
        if messages:
            self.put_all(messages)
            last = messages[-1]
            behind = last.max_offset - last.queue_offset
            if behind > 0:
                self.behind = behind
        if self.waiting and not self.consuming_now:
            self.consuming_now = True
            return True
        return False

    # --- A concurrent listener's messages -----------------------------------------------------------------------------

    def remove(self, messages: Sequence[HeldMessage], *, now_ms: int) -> int:
        """Take out what is finished; return the offset from which all is to do, or NOTHING when nothing was held."""
        self.last_consume_ms = now_ms
        return self.remove_all(messages)

    # --- An orderly listener's messages -------------------------------------------------------------------------------

    def take(self, count: int, *, now_ms: int) -> list[HeldMessage]:
        """Give up to ``count`` of the first messages to a listener; without any, the chain ends."""
        self.last_consume_ms = now_ms
        taken = self.take_first(count)
        if not taken:
            self.consuming_now = False
        return taken

    def commit(self, messages: Sequence[HeldMessage] | None = None) -> int:
        """Finish what a listener has, or only these of it; return the next offset, or NOTHING when it has nothing."""
        greatest = self.finish(messages)
        return NOTHING if greatest < 0 else greatest + 1

    def rollback(self) -> None:
        """Put back all that a listener has."""
        self.put_back()

    # --- For gates and timers -----------------------------------------------------------------------------------------

    def lock_expired(self, now_ms: int) -> bool:
        """Whether the broker may have given the lock to another member."""
        return now_ms - self.last_lock_ms > LOCK_LIVES_MS

    def pull_expired(self, now_ms: int) -> bool:
        """Whether the pulls of this queue have come to a stop. A queue whose first pull is not due yet has none."""
        return self.last_pull_ms != 0 and now_ms - self.last_pull_ms > PULL_IDLE_MS

    def info(self, *, commit_offset: int, wall_ahead_ms: int = 0) -> ProcessQueueInfo:
        """Return the figures that code 307 shows of this queue.

        Args:
            commit_offset: its progress.
            wall_ahead_ms: how far the wall clock is ahead of the one that the times here are of.
        """

        def wall_ms(time_ms: int) -> int:
            return time_ms + wall_ahead_ms if time_ms else 0

        cached_first, cached_last = self.waiting_bounds or (0, 0)
        taken_first, taken_last = self.taken_bounds or (0, 0)
        return ProcessQueueInfo(
            commit_offset=commit_offset,
            cached_msg_min_offset=cached_first,
            cached_msg_max_offset=cached_last,
            cached_msg_count=self.waiting,
            cached_msg_size_mib=self.size_bytes // _MIB,
            transaction_msg_min_offset=taken_first,
            transaction_msg_max_offset=taken_last,
            transaction_msg_count=self.count - self.waiting,
            locked=self.locked,
            try_unlock_times=self.try_unlock_times,
            last_lock_timestamp_ms=wall_ms(self.last_lock_ms),
            dropped=self.dropped,
            last_pull_timestamp_ms=wall_ms(self.last_pull_ms),
            last_consume_timestamp_ms=wall_ms(self.last_consume_ms),
        )
