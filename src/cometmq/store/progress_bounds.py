"""Stored progress against what the queues hold: an offset past a queue's end is set back to it.

Progress becomes durable behind the log that it covers. It can still be ahead: after ``repair --cut``, under a journal
that the kernel wrote before the log (``flush="async"``), with files that were copied or edited, and where a commit was
left in the hand-off folder by a reader of messages that a power loss took. A group that stays ahead would skip every
message up to there.

A queue that does not exist holds nothing, and begins at 0: progress in it is set back to 0, and kept, so that the
group is no new one and starts at its first message. Progress of a broadcasting group belongs to its clients and is left
alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from cometmq.store_config.consumer_offsets import ConsumerOffsets

__all__ = ["QueueEnd", "bounded_offset", "bound_progress"]

_log = logging.getLogger("cometmq.progress")

QueueEnd = Callable[[str, int], int]
"""Returns a queue's maximum offset; 0 where there is no such queue."""


def bounded_offset(group: str, topic: str, queue_id: int, offset: int, end_of: QueueEnd) -> int:
    """Return the offset, or the queue's end where that is less, which is logged."""
    end = end_of(topic, queue_id)
    if offset <= end:
        return offset
    _log.warning(
        "progress of group %s in topic %s, queue %d is past the queue's end: set back from %d to %d",
        group,
        topic,
        queue_id,
        offset,
        end,
    )
    return end


def bound_progress(offsets: ConsumerOffsets, end_of: QueueEnd) -> int:
    """Set back all progress that is past its queue's end, in memory; returns how much was."""
    bounded = 0
    for group, topic, queue_id, offset in offsets.all():
        if not group or not topic or queue_id < 0 or offset <= 0:
            continue
        end = bounded_offset(group, topic, queue_id, offset, end_of)
        if end != offset:
            offsets.commit(group, topic, queue_id, end)
            bounded += 1
    return bounded
