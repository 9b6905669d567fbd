"""Stored progress against what the queues hold: an offset past a queue's end is set back to it.

Every opening for writing does so, before anything is appended, also where no broker is started: once a queue has grown
past such an offset, nothing distinguishes it from a good one.

Progress becomes durable behind the log that it covers. It can still be ahead: after ``repair --cut``, under a journal
that the kernel wrote before the log (``flush="async"``), with files that were copied or edited, and where a commit was
left in the hand-off folder by a reader of messages that a power loss took. A group that stays ahead would skip every
message up to there.

A queue that does not exist holds nothing, and begins at 0: progress in it is set back to 0, and kept, so that the
group does not count as new and starts at the queue's first message. Progress of a broadcasting group belongs to its
clients and is left alone.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from cometmq.store_config.built_in_topics import SCHEDULE_TOPIC
from cometmq.store_config.config_file import storage_error
from cometmq.store_config.consumer_offsets import ConsumerOffsets
from cometmq.store_config.delay_offsets import DelayOffsets
from cometmq.store_config.errors import ConfigError
from cometmq.store_config.managed import ManagedFile
from cometmq.store_config.order_info import OrderedQueue, OrderInfo

__all__ = ["QueueEnd", "bound_broker_files", "bound_progress", "bounded_offset"]

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


# --- Other offsets of a broker

_TIMER_TOPIC = "rmq_sys_wheel_timer"
_TIMER_OFFSETS = struct.Struct(">qq")
_TIMER_OFFSETS_AT = 16
"""Offsets in ``config/timercheck`` up to which the wheel holds the timer queue, here and at a master.

``csrc/broker/timer/cmq_timer_check.c`` writes the file.
"""
_TIMER_SUM = slice(64, 72)
"""The name of the checksum there; without it the offsets are believed."""


def bound_broker_files(folder: Path, end_of: QueueEnd) -> None:
    """Set back, durably, a broker's progress in a ``config`` folder: delay levels, ordered batches, timers.

    Raises:
        StorageError: a file could not be written.
    """
    _bound_delays(DelayOffsets(folder), end_of)
    _bound_ordered(OrderInfo(folder), end_of)
    _bound_timers(folder / "timercheck", end_of)


def _can_be_read(file: ManagedFile) -> bool:
    """Load a file; the broker reports one that cannot be used, and refuses to start."""
    try:
        file.load()
    except ConfigError:
        return False
    return True


def _bound_delays(table: DelayOffsets, end_of: QueueEnd) -> None:
    if not _can_be_read(table):
        return
    for level, offset in table.all().items():
        end = end_of(SCHEDULE_TOPIC, level - 1) if level >= 1 else offset
        if offset > end:
            _log.warning(
                "progress of delay level %d is past the end of its queue: set back from %d to %d", level, offset, end
            )
            # The mark beside it, which says what was delivered behind it, is of other progress then, and not used.
            table.merge({level: end}, versions=0)
    table.persist()


def _bound_ordered(info: OrderInfo, end_of: QueueEnd) -> None:
    if not _can_be_read(info):
        return
    queues = info.all()
    bounded = [_bounded_batch(queue, end_of(queue.topic, queue.queue_id)) for queue in queues]
    if bounded != queues:
        info.replace(queue for queue in bounded if queue.batch.offsets)
        info.persist()


def _bounded_batch(queue: OrderedQueue, end: int) -> OrderedQueue:
    """Return a batch without messages past the queue's end: others will follow there."""
    offsets = tuple(offset for offset in queue.batch.offsets if offset < end)
    if len(offsets) == len(queue.batch.offsets):
        return queue
    _log.warning(
        "ordered batch of group %s in topic %s, queue %d is past the queue's end at %d: %d of its %d messages stay",
        queue.group,
        queue.topic,
        queue.queue_id,
        end,
        len(offsets),
        len(queue.batch.offsets),
    )
    acked = queue.batch.acked & ((1 << len(offsets)) - 1)
    return queue._replace(batch=replace(queue.batch, offsets=offsets, acked=acked))


def _bound_timers(path: Path, end_of: QueueEnd) -> None:
    try:
        with path.open("r+b", buffering=0) as file:
            known = bytearray(os.pread(file.fileno(), _TIMER_SUM.stop, 0))
            if len(known) < _TIMER_OFFSETS_AT + _TIMER_OFFSETS.size:
                return
            offsets = _TIMER_OFFSETS.unpack_from(known, _TIMER_OFFSETS_AT)
            end = end_of(_TIMER_TOPIC, 0)
            if max(offsets) <= end:
                return
            _log.warning("progress of timers is past the end of their queue: set back from %d to %d", max(offsets), end)
            # In one sector: there whole, or not at all.
            _TIMER_OFFSETS.pack_into(known, _TIMER_OFFSETS_AT, *(min(offset, end) for offset in offsets))
            known[_TIMER_SUM] = bytes(len(known[_TIMER_SUM]))
            os.pwrite(file.fileno(), known, 0)
            os.fsync(file.fileno())
    except FileNotFoundError:
        return
    except OSError as error:
        raise storage_error(error, f"cannot write {path}") from error
