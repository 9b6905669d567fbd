"""A simple consumer's unfinished messages, neither acknowledged nor given back: how many of each queue, since when.

A message counts from when it was received, however often its invisible time is extended, until it is acknowledged or
its invisible time is over. Messages themselves are not kept.

Threads: the client's loop. Source: consumption specification 4.10, 4.11; remoting specification 5.9.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from cometmq.client.pop.pop_handles import PopHandle
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.remoting.bodies.running_info import PopProcessQueueInfo

if TYPE_CHECKING:
    from cometmq._engine import ReceivedMessage

__all__ = ["HeldMessages", "is_behind"]

_SWEEP_AT_LEAST: Final = 1_024

_Place: TypeAlias = "tuple[str | None, str, int, int]"
"""Broker, topic that it is stored in, queue, offset: the same after each change of its invisible time."""


class HeldMessages:
    """One consumer's unfinished messages."""

    __slots__ = ("_held", "_sweep_at")

    def __init__(self) -> None:
        """Hold nothing."""
        self._held: dict[_Place, tuple[int, int]] = {}
        """Received at, hidden until: milliseconds by a clock that is never set."""
        self._sweep_at = _SWEEP_AT_LEAST

    def came(self, messages: Sequence[ReceivedMessage], *, now_ms: int) -> None:
        """Take note of what one pop brought."""
        if not messages:
            return
        until_ms = now_ms + PopHandle.parse(messages[0].pop_handle or "").times.invisible_ms
        for message in messages:
            self._held[_place(message)] = now_ms, until_ms
        self._sweep_if_many(now_ms)

    def hidden(self, message: ReceivedMessage, *, now_ms: int, invisible_ms: int) -> None:
        """Take note that a message is hidden for another time, from now on; 0 gives it back."""
        place = _place(message)
        since_ms, _ = self._held.pop(place, (now_ms, 0))
        if invisible_ms > 0:
            self._held[place] = since_ms, now_ms + invisible_ms
            self._sweep_if_many(now_ms)  # others may have received it

    def done(self, messages: Iterable[ReceivedMessage]) -> None:
        """Take note of what is acknowledged."""
        for message in messages:
            self._held.pop(_place(message), None)

    def has_earlier(self, message: ReceivedMessage, *, now_ms: int, but: Iterable[ReceivedMessage]) -> bool:
        """Return whether an earlier message of the same queue is held, other than ``but``."""
        behind = _place(message)
        others = {_place(one) for one in but}
        return any(
            _is_behind(behind, place) and until_ms > now_ms and place not in others
            for place, (_, until_ms) in self._held.items()
        )

    def infos(self, *, now_ms: int, wall_ahead_ms: int = 0) -> dict[MessageQueue, PopProcessQueueInfo]:
        """Return how much is held of each queue, and since when; of a queue of which nothing is, nothing.

        Args:
            now_ms: the time.
            wall_ahead_ms: how far the wall clock is ahead of it.
        """
        self._sweep(now_ms)
        received: dict[MessageQueue, list[int]] = {}
        for (broker_name, topic, queue_id, _), (since_ms, _) in self._held.items():
            queue = MessageQueue(topic=topic, broker_name=broker_name or "", queue_id=queue_id)
            received.setdefault(queue, []).append(since_ms)
        return {
            queue: PopProcessQueueInfo(
                wait_ack_count=len(times),
                last_pop_timestamp_ms=max(times) + wall_ahead_ms,
                oldest_pop_timestamp_ms=min(times) + wall_ahead_ms,
            )
            for queue, times in received.items()
        }

    def _sweep_if_many(self, now_ms: int) -> None:
        if len(self._held) >= self._sweep_at:
            self._sweep(now_ms)
            self._sweep_at = max(_SWEEP_AT_LEAST, 2 * len(self._held))

    def _sweep(self, now_ms: int) -> None:
        for place in [place for place, (_, until_ms) in self._held.items() if until_ms <= now_ms]:
            del self._held[place]


def is_behind(message: ReceivedMessage, other: ReceivedMessage) -> bool:
    """Return whether a message is later than another one of the same queue."""
    return _is_behind(_place(message), _place(other))


def _is_behind(place: _Place, other: _Place) -> bool:
    return place[:3] == other[:3] and place[3] > other[3]


def _place(message: ReceivedMessage) -> _Place:
    return message.broker_name, message.stored_topic, message.queue_id, message.queue_offset
