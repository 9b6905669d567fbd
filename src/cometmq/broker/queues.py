"""Looking into queues as upstream's administration does: bounds and times, with its values for what is not there.

Threads: any. A look at a message's time reads the log, which may wait for the disk. Looks into many queues that run for
a connection end when it is gone.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from cometmq._engine import Message
from cometmq.errors import CorruptRecord, NotFound, OffsetOutOfRange
from cometmq.remoting.lanes import stop_if_gone

__all__ = ["Bounds", "QueueStore", "Queues"]

_NOT_READABLE = (NotFound, OffsetOutOfRange, CorruptRecord)


class QueueStore(Protocol):
    """The needed part of a store; the engine's ``StoreHandle`` has it."""

    def queue(self, topic: str, queue_id: int) -> tuple[bool, int, int] | None:
        """Return whether it holds inner batches, its minimum and its maximum."""

    def read_offset(self, topic: str, queue_id: int, offset: int) -> Message:
        """Return a message."""

    def offset_at(self, topic: str, queue_id: int, time_ms: int, upper: bool = False) -> int:
        """Return the first offset stored at or after a time."""


class Bounds(NamedTuple):
    """A queue's readable offsets, from ``low`` up to but not including ``high``."""

    low: int
    high: int


class Queues:
    """All queues of a store."""

    def __init__(self, store: QueueStore) -> None:
        """``store`` is the store that is served."""
        self._store = store

    def exists(self, topic: str, queue_id: int) -> bool:
        """Return whether the queue ever had a message."""
        return self._found(topic, queue_id) is not None

    def _found(self, topic: str, queue_id: int) -> tuple[bool, int, int] | None:
        stop_if_gone()
        return self._store.queue(topic, queue_id)

    def bounds(self, topic: str, queue_id: int) -> Bounds:
        """Return a queue's bounds; both 0 for one that never had a message."""
        found = self._found(topic, queue_id)
        return Bounds(0, 0) if found is None else Bounds(found[1], found[2])

    def stored_ms(self, topic: str, queue_id: int, offset: int) -> int:
        """Return when a message was stored; -1 without one at the offset."""
        low, high = self.bounds(topic, queue_id)
        if not low <= offset < high:
            return -1
        try:
            return self._store.read_offset(topic, queue_id, offset).store_timestamp_ms
        except _NOT_READABLE:
            return -1

    def earliest_ms(self, topic: str, queue_id: int) -> int:
        """Return when a queue's oldest message was stored; -1 where it has none."""
        return self.stored_ms(topic, queue_id, self.bounds(topic, queue_id).low)

    def latest_ms(self, topic: str, queue_id: int) -> int:
        """Return when a queue's newest message was stored; -1 where it has none."""
        return self.stored_ms(topic, queue_id, self.bounds(topic, queue_id).high - 1)

    def offset_at(self, topic: str, queue_id: int, time_ms: int) -> int:
        """Return the first offset stored at or after a time; the maximum for a negative time, 0 without a queue."""
        if time_ms < 0:
            return self.bounds(topic, queue_id).high
        return self._store.offset_at(topic, queue_id, time_ms) if self.exists(topic, queue_id) else 0
