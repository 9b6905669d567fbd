"""Queues of a push consumer that begin again at another offset: a broker resets them, or their offset does not exist.

Invariants: the queue is dropped and its new offset stored and frozen first, so that listeners that still run cannot
move it, and so that a next owner finds it; then it rests, is given up, and the next rebalance adds it as new. A reset
queue of any member that comes within 15 s of its reset begins at that offset.

Threads: the client's loop. Source: consumption specification 1.6.6, 1.16.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cometmq.client.group.offset_stores import OffsetStore
    from cometmq.client.group.process_queue import ProcessQueue
    from cometmq.client.group.rebalance import Rebalance
    from cometmq.remoting.bodies.message_queue import MessageQueue

__all__ = ["QueueResets"]

_RESET_REST_S: Final = 10.0
_RESET_COUNTS_S: Final = 15.0
"""A queue that comes so soon after its reset begins there: its last owner rested, too, and consumed nothing."""


class QueueResets:
    """Stops queues of one consumer, and has them begin elsewhere."""

    def __init__(
        self,
        rebalance: Rebalance,
        store: OffsetStore,
        *,
        persist: Callable[[MessageQueue], Awaitable[None]],
        release: Callable[[MessageQueue, ProcessQueue], Awaitable[bool]],
    ) -> None:
        """Reset nothing yet; on the loop.

        Args:
            rebalance: has the consumer's queues.
            store: has their offsets.
            persist: stores the offset of one queue.
            release: gives a queue up; False where its listener still works.
        """
        self._loop = asyncio.get_running_loop()
        self._rebalance = rebalance
        self._store = store
        self._persist = persist
        self._release = release
        self._resting = 0
        """Resets that are under way."""
        self._offsets: dict[MessageQueue, tuple[int, float]] = {}
        """The offsets of late resets, of any member's queues, and until when they count, by the loop's clock."""

    @property
    def is_resting(self) -> bool:
        """Whether a reset is under way: the consumer pulls nothing."""
        return self._resting > 0

    def offset_of(self, queue: MessageQueue) -> int | None:
        """Return the offset of a queue's last reset, as long as that counts."""
        offset, until_s = self._offsets.get(queue, (0, 0.0))
        return offset if self._loop.time() < until_s else None

    async def reset(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Stop these queues, store their offsets, rest 10 s, and give them up."""
        until_s = self._loop.time() + _RESET_COUNTS_S
        wanted = {queue: offset for queue, offset in offsets.items() if queue.topic == topic}
        self._offsets.update({queue: (offset, until_s) for queue, offset in wanted.items()})
        self._resting += 1
        try:
            mine = await self._stop(wanted)
            async with self._rebalance.between_rounds():  # which may have begun queues at what was stored before
                mine |= await self._stop(wanted)
            await asyncio.sleep(_RESET_REST_S)
            for held in mine:
                await self._give_up(held)
        finally:
            self._resting -= 1

    async def _stop(self, offsets: Mapping[MessageQueue, int]) -> set[ProcessQueue]:
        mine = {held for queue, held in self._rebalance.queues.items() if queue in offsets}
        for held in mine:
            held.dropped = True
            held.clear()
            await self._freeze(held, offsets[held.queue])
        return mine

    async def stop_at(self, held: ProcessQueue, offset: int) -> bool:
        """Store where a dropped queue is to begin again; return whether :meth:`give_up_after` is to follow."""
        if self.offset_of(held.queue) is not None:
            return False  # it is stored where that puts it, and rests
        await self._freeze(held, offset)
        return self._rebalance.queues.get(held.queue) is held

    async def give_up_after(self, held: ProcessQueue, rest_s: float) -> None:
        """Let a stopped queue rest, then give it up."""
        await asyncio.sleep(rest_s)
        await self._give_up(held)

    async def _freeze(self, held: ProcessQueue, offset: int) -> None:
        """Store where a dropped queue is to begin again, at once: it may change hands before its rest is over."""
        if self._rebalance.queues.get(held.queue) is held:
            self._store.update_and_freeze(held.queue, offset)
            await self._persist(held.queue)

    async def _give_up(self, held: ProcessQueue) -> None:
        queue = held.queue
        if self._rebalance.queues.get(queue) is not held:
            return
        if not await self._release(queue, held):
            self._rebalance.give_up_later(queue)  # its listener still works
        elif self._rebalance.queues.get(queue) is held:
            del self._rebalance.queues[queue]
