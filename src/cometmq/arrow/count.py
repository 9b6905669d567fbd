"""Which offsets a scan covers, by arithmetic on the queues' ends: nothing is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from cometmq.store_config.names import is_light_queue

if TYPE_CHECKING:
    from cometmq._engine import StoreHandle
    from cometmq.arrow.scan import Query

__all__ = ["offsets_of"]


def offsets_of(handle: StoreHandle, query: Query) -> Iterator[tuple[str, int, int, int]]:
    """Yield (topic, queue, start, end) of every queue that a query reads; ``start`` may reach ``end``.

    Other filters (tags, keys, times) are not looked at.
    """
    handle.refresh()
    if query.ranges is not None:
        for topic, queue_id, start, end in query.ranges:
            queue = handle.queue(topic, queue_id)
            if queue is not None:
                yield topic, queue_id, max(start, queue[1]), min(end, queue[2])
        return
    if query.topics:
        queues = [queue for topic in query.topics for queue in handle.queues(topic)]
    else:
        # Messages of a light queue are in their own topic's queue too.
        queues = [queue for queue in handle.queues() if not is_light_queue(queue[0])]
    for topic, queue_id, _, low, high in queues:
        if not query.queue_ids or queue_id in query.queue_ids:
            start = low if query.start is None else max(low, query.start)
            end = high if query.end is None else min(high, query.end)
            yield topic, queue_id, start, end
