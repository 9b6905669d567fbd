"""A group's messages in flight, queue by queue (31005), for ``cometmq group show``.

The loops count messages popped without order; for ordered pops the count follows from each queue's unfinished batch.

Threads: the event loop's; the looks run apart from it. Source: decision 0016.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cometmq.broker.offsets import BrokerOffsets
from cometmq.broker.plane import DataPlane, PoppedQueue
from cometmq.broker.queues import Queues
from cometmq.broker.topics import BrokerTopics
from cometmq.remoting.answers import Caller, Table, ok
from cometmq.remoting.bodies.in_flight import GroupInFlightBody, QueueInFlightEntry
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import Command
from cometmq.remoting.members import Members
from cometmq.store_config.order_info import OrderedBatch

__all__ = ["InFlight"]


class InFlight:
    """All that is in flight at one broker."""

    def __init__(
        self,
        *,
        plane: DataPlane,
        topics: BrokerTopics,
        offsets: BrokerOffsets,
        queues: Queues,
        now_ms: Callable[[], int],
    ) -> None:
        """Take the broker's parts, and its clock."""
        self._plane = plane
        self._topics = topics
        self._offsets = offsets
        self._queues = queues
        self._now_ms = now_ms

    def handlers(self) -> Table:
        """Return what this part serves."""
        return {RequestCode.GET_GROUP_IN_FLIGHT: self._show}

    async def _show(self, request: Command, caller: Caller) -> Command:
        group = Members(request.fields).required("consumerGroup")
        return ok(request, body=await caller.apart(lambda: self._body(group).to_json()))

    def _body(self, group: str) -> GroupInFlightBody:
        popped = {(queue.topic, queue.queue_id): queue for queue in self._plane.pops_in_flight(group)}
        batches = {
            (queue.topic, queue.queue_id): queue.batch
            for queue in self._plane.ordered_batches()
            if queue.group == group
        }
        keys = {
            (topic.topic_name, queue_id)
            for topic in map(self._topics.get, self._offsets.topics_of(group))
            if topic is not None
            for queue_id in range(topic.read_queue_nums)
        }
        counters = self._plane.counters()
        return GroupInFlightBody(
            queues=tuple(self._queue(group, key, popped, batches) for key in sorted(keys | popped.keys())),
            revive_lag_ms=counters.get("pop_revive_lag_ms_now", 0),
            revive_unread=counters.get("pop_revive_behind_now", 0),
        )

    def _queue(
        self,
        group: str,
        key: tuple[str, int],
        popped: Mapping[tuple[str, int], PoppedQueue],
        batches: Mapping[tuple[str, int], OrderedBatch],
    ) -> QueueInFlightEntry:
        topic, queue_id = key
        now_ms = self._now_ms()
        committed = self._plane.query_offset(group, topic, queue_id)
        begins = max(committed or 0, self._plane.pop_offset(group, topic, queue_id) or 0)
        out = popped.get(key)
        if out is None and key in batches:
            out, begins = _ordered(key, batches[key], begins, now_ms)
        return QueueInFlightEntry(
            topic=topic,
            queue_id=queue_id,
            broker_offset=self._queues.bounds(topic, queue_id).high,
            consumer_offset=-1 if committed is None else committed,
            next_offset=begins,
            in_flight=0 if out is None else out.messages,
            oldest_ms=-1 if out is None else max(now_ms - out.oldest_ms, 0),
            overdue_ms=0 if out is None else max(now_ms - out.due_ms, 0),
        )


def _ordered(key: tuple[str, int], batch: OrderedBatch, committed: int, now_ms: int) -> tuple[PoppedQueue | None, int]:
    """Return what of a batch is in flight, and where the queue goes on behind it.

    A batch whose time is over is not, as the next pop gives it out again; so nothing of one is ever overdue.
    """
    changed = batch.visible_ms or {}
    due_ms = [
        changed.get(offset, batch.pop_ms + batch.invisible_ms)
        for index, offset in enumerate(batch.offsets)
        if offset >= committed and not batch.acked >> index & 1
    ]
    if not any(due > now_ms for due in due_ms):
        return None, committed
    queue = PoppedQueue(*key, messages=len(due_ms), oldest_ms=batch.pop_ms, due_ms=max(due_ms))
    return queue, max(committed, batch.offsets[-1] + 1)
