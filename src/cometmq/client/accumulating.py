"""Accumulation: messages of a topic that follow each other closely become batches (upstream's ``autoBatch``).

Messages are bunched by topic, queue, tag and whether the broker is to wait. A bunch goes when it has grown beyond
``batch_max_bytes`` or its first message has waited long enough. What all bunches hold has a limit; beyond it, messages
go alone.

Decisions alone: no clock and no sockets. Thread safety: any thread.

Source: consumption specification 2.7.
"""

from __future__ import annotations

from threading import Lock
from typing import NamedTuple, TypeAlias

from cometmq.client.outgoing import BATCH_OVERHEAD_BYTES, OutgoingMessage
from cometmq.client.sending import SendFuture
from cometmq.remoting.bodies.message_queue import MessageQueue

__all__ = ["Accumulator", "Added", "Bunch", "BunchKey"]


class BunchKey(NamedTuple):
    """What messages of one bunch have in common."""

    topic: str
    queue: MessageQueue | None
    tags: str | None
    wait_stored: bool


_Record: TypeAlias = tuple[bytes, bytes, int]


class Bunch:
    """Messages that will be one batch.

    Attributes:
        key: what they have in common.
        messages: the messages.
        records: body, properties with the unique id, and flag of each.
        unique_ids: their ids.
        futures: what their senders hold.
        size_bytes: what they take in the batch.
        is_awaited: True where somebody waits for one of them.
    """

    __slots__ = ("futures", "is_awaited", "key", "messages", "records", "size_bytes", "unique_ids")

    def __init__(self, key: BunchKey) -> None:
        """There are none yet."""
        self.key = key
        self.messages: list[OutgoingMessage] = []
        self.records: list[_Record] = []
        self.unique_ids: list[str] = []
        self.futures: list[SendFuture] = []
        self.size_bytes = 0
        self.is_awaited = False

    def settle(self, batch: SendFuture) -> None:
        """Give each sender its part of what became of the batch."""
        error = batch.exception()
        if error is not None:
            for future in self.futures:
                future.set_error(error)
            return
        result = batch.result()
        for index, (future, unique_id) in enumerate(zip(self.futures, self.unique_ids, strict=True)):
            future.set_result(result.part(index, unique_id))

    def __repr__(self) -> str:
        """Tell how much it is."""
        return f"Bunch({self.key.topic}, {len(self.records)} messages, {self.size_bytes} bytes)"


class Added(NamedTuple):
    """What follows from a message that was added.

    Attributes:
        fresh: the bunch that it began, which is to go by the clock; or None.
        ready: bunches that go now.
    """

    fresh: Bunch | None
    ready: tuple[Bunch, ...]


class Accumulator:
    """The bunches that grow."""

    def __init__(self, *, batch_max_bytes: int, total_max_bytes: int, message_max_bytes: int) -> None:
        """Nothing waits.

        Args:
            batch_max_bytes: a bunch that has grown beyond this goes at once.
            total_max_bytes: most bytes that wait in all.
            message_max_bytes: longest batch that brokers take.
        """
        self._batch_max_bytes = batch_max_bytes
        self._total_max_bytes = total_max_bytes
        self._message_max_bytes = message_max_bytes
        self._bunches: dict[BunchKey, Bunch] = {}
        self._held_bytes = 0
        self._lock = Lock()

    def add(
        self,
        key: BunchKey,
        message: OutgoingMessage,
        record: _Record,
        unique_id: str,
        future: SendFuture,
        *,
        is_awaited: bool,
    ) -> Added | None:
        """Put a message into its bunch; return what goes now, or None where it has to go alone."""
        size = BATCH_OVERHEAD_BYTES + len(record[0]) + len(record[1])
        ready: tuple[Bunch, ...] = ()
        fresh: Bunch | None = None
        with self._lock:
            if size > self._batch_max_bytes or size > self._message_max_bytes:
                return None
            if self._held_bytes + size > self._total_max_bytes:
                return None
            bunch = self._bunches.get(key)
            if bunch is not None and bunch.size_bytes + size > self._message_max_bytes:
                ready = (self._pop(bunch),)
                bunch = None
            if bunch is None:
                bunch = fresh = self._bunches[key] = Bunch(key)
            bunch.messages.append(message)
            bunch.records.append(record)
            bunch.unique_ids.append(unique_id)
            bunch.futures.append(future)
            bunch.size_bytes += size
            bunch.is_awaited |= is_awaited
            self._held_bytes += size
            if bunch.size_bytes > self._batch_max_bytes:
                ready += (self._pop(bunch),)
                fresh = None
        return Added(fresh, ready)

    def take(self, bunch: Bunch) -> bool:
        """Tell whether a bunch, whose time has come, is still here; it is the caller's then."""
        with self._lock:
            if self._bunches.get(bunch.key) is not bunch:
                return False
            self._pop(bunch)
            return True

    def take_all(self) -> list[Bunch]:
        """Return all bunches that wait; they are the caller's."""
        with self._lock:
            return [self._pop(bunch) for bunch in list(self._bunches.values())]

    def _pop(self, bunch: Bunch) -> Bunch:
        del self._bunches[bunch.key]
        self._held_bytes -= bunch.size_bytes
        return bunch

    def __repr__(self) -> str:
        """Tell what waits."""
        return f"Accumulator({len(self._bunches)} bunches, {self._held_bytes} bytes)"
