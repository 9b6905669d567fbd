"""Which queue a message goes to: in turn, past a broker that just failed, or as a selector says.

Source: consumption specification 2.5, 2.6.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from cometmq._engine import java_hash
from cometmq.client.send.faults import FaultTable
from cometmq.errors import InvalidArgument
from cometmq.remoting.bodies.message_queue import MessageQueue

__all__ = ["QueueRing", "QueueSelector", "check_choice", "queue_by_hash", "queue_by_random"]

QueueSelector: TypeAlias = Callable[[Sequence[MessageQueue], Any], MessageQueue]
"""Takes the queues of a topic and the caller's argument, and returns one of them."""

_INDEX_MASK = 0x7FFF_FFFF


class QueueRing:
    """The queues of a topic that take messages, in turn from one that chance picks.

    Thread safety: any thread; all share one index, so that the queues are taken evenly however many threads send.
    """

    __slots__ = ("_index", "_one_broker", "queues")

    def __init__(self, queues: Sequence[MessageQueue], *, first: int | None = None) -> None:
        """``queues`` is not empty; ``first`` is the index to begin with, None for one by chance."""
        self.queues = tuple(queues)
        self._one_broker = len({queue.broker_name for queue in self.queues}) == 1
        self._index = itertools.count(random.getrandbits(31) if first is None else first)

    def next(self) -> MessageQueue:
        """Return the next queue."""
        queues = self.queues
        return queues[(next(self._index) & _INDEX_MASK) % len(queues)]

    def restart(self, *, first: int | None = None) -> None:
        """Go on from another index, one by chance where none is given."""
        self._index = itertools.count(random.getrandbits(31) if first is None else first)

    def select(self, *, not_broker: str | None = None) -> MessageQueue:
        """Return the next queue of another broker than ``not_broker``; of that one where there is no other."""
        if not_broker is None or self._one_broker:
            return self.next()
        return self._first(lambda queue: queue.broker_name != not_broker) or self.next()

    def select_healthy(self, faults: FaultTable, *, now_ms: int, not_broker: str | None = None) -> MessageQueue:
        """Return the next queue of a broker that is not passed over; else of one that can be reached; else the next."""
        if not_broker is not None:
            self.restart()

        def is_available(queue: MessageQueue) -> bool:
            return queue.broker_name != not_broker and faults.is_available(queue.broker_name, now_ms=now_ms)

        def is_reachable(queue: MessageQueue) -> bool:
            return queue.broker_name != not_broker and faults.is_reachable(queue.broker_name)

        return self._first(is_available) or self._first(is_reachable) or self.next()

    def _first(self, fits: Callable[[MessageQueue], bool]) -> MessageQueue | None:
        for _ in self.queues:
            queue = self.next()
            if fits(queue):
                return queue
        return None

    def __repr__(self) -> str:
        """Return the number of queues."""
        return f"QueueRing({len(self.queues)} queues)"


def queue_by_hash(queues: Sequence[MessageQueue], arg: Any) -> MessageQueue:
    """Return the queue that upstream's ``SelectMessageQueueByHash`` picks for a text or an integer.

    Raises:
        InvalidArgument: ``arg`` is neither; give ``str(arg)``.
    """
    if isinstance(arg, str):
        value = java_hash(arg)
    elif isinstance(arg, int) and not isinstance(arg, bool):
        value = _java_hash_of_int(arg)
    else:
        raise InvalidArgument(f"a queue is picked by hash of a str or an int, not {type(arg).__name__}: give str(…)")
    return queues[abs(value) % len(queues)]


def _java_hash_of_int(value: int) -> int:
    """Hash code of an Integer where it fits one, of a Long otherwise."""
    if -(1 << 31) <= value < 1 << 31:
        return value
    if not -(1 << 63) <= value < 1 << 63:
        raise InvalidArgument(f"{value} does not fit 64 bits; give str(…) of it")
    bits = value & (1 << 64) - 1
    folded = (bits ^ bits >> 32) & 0xFFFF_FFFF
    return folded - (1 << 32) if folded >> 31 else folded


def queue_by_random(queues: Sequence[MessageQueue], arg: Any) -> MessageQueue:
    """Return any queue; ``arg`` is not looked at."""
    return random.choice(queues)


def check_choice(queue: object, *, queues: Sequence[MessageQueue], topic: str) -> MessageQueue:
    """Return what a selector chose, when it is a queue of the topic.

    Raises:
        InvalidArgument: it is not one of those that the selector was given.
    """
    if not isinstance(queue, MessageQueue) or queue not in queues:
        raise InvalidArgument(
            f"the selector for topic {topic} returned {queue!r}; it must return one of the queues it is given"
        )
    return queue
