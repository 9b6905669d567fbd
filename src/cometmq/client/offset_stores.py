"""Where a consumer's progress is kept.

A store holds the next offset to consume of each queue in memory, and knows one place behind: the broker for members
that share the messages, a file for members that each get all. What is in memory is persisted every few seconds, when a
queue is given up and when the consumer closes, so after a crash some messages come again: at least once.

An offset that was frozen (:meth:`OffsetStore.update_and_freeze`) stays as it is until the queue is removed: what late
listeners report about a queue that was reset must not undo the reset.

Threads: the client's loop. Source: consumption specification 1.11.
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from typing import Protocol

from cometmq.remoting.bodies.message_queue import MessageQueue

__all__ = ["BAD_QUEUE", "NEVER_CONSUMED", "READ_FAILED", "OffsetStore", "ReadOffset"]

NEVER_CONSUMED = -1
"""The group has no progress in the queue."""
READ_FAILED = -2
"""Nobody knows: the place behind could not be asked."""
BAD_QUEUE = -3
"""There was no queue to ask about."""


class ReadOffset(enum.Enum):
    """From where an offset is read."""

    FROM_MEMORY = "memory"
    FROM_STORE = "store"
    MEMORY_FIRST_THEN_STORE = "memory, then store"


class OffsetStore(Protocol):
    """Progress of one group in one consumer. Offsets are the next to consume."""

    async def load(self) -> None:
        """Fill the memory from the place behind, where that is how the store works."""
        ...

    def update(self, queue: MessageQueue, offset: int, *, increase_only: bool) -> None:
        """Set the offset in memory; nothing happens where it is frozen, or where it would go back and must not."""
        ...

    def update_and_freeze(self, queue: MessageQueue, offset: int) -> None:
        """Set the offset in memory and keep it until :meth:`remove`."""
        ...

    async def read(self, queue: MessageQueue | None, kind: ReadOffset) -> int:
        """Return the offset, or :data:`NEVER_CONSUMED`, :data:`READ_FAILED` or :data:`BAD_QUEUE`."""
        ...

    def memory(self, queue: MessageQueue) -> int:
        """Return the offset in memory, or -1."""
        ...

    async def persist_all(self, queues: Collection[MessageQueue]) -> None:
        """Persist what is known of these queues. Nothing happens for an empty collection."""
        ...

    async def persist(self, queue: MessageQueue) -> None:
        """Persist what is known of one queue."""
        ...

    def remove(self, queue: MessageQueue) -> None:
        """Forget what memory knows of the queue."""
        ...

    def snapshot(self, topic: str | None) -> dict[MessageQueue, int]:
        """Return a copy of memory, of one topic or of all."""
        ...
