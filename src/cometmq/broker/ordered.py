"""Batches of queues popped in order: ``consumerOrderInfo.json``, read at the start and written every ten seconds.

The loops decide by their own table; this one follows it. Batches that nobody can pop any more are forgotten: those of
topics, groups and queues that are gone, and after a day without a pop.

Threads: any; :meth:`OrderedBatches.persist` takes one after the other. Waits for the disk.
Source: consumption specification 4.12; upstream's ConsumerOrderInfoManager.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from cometmq.broker.groups import BrokerGroups
from cometmq.broker.plane import DataPlane
from cometmq.broker.topics import BrokerTopics
from cometmq.errors import InvalidArgument
from cometmq.store_config.file_ops import SYSTEM_FILE_OPS, FileOps
from cometmq.store_config.order_info import OrderedQueue, OrderInfo

__all__ = ["OrderedBatches"]

_log = logging.getLogger("cometmq.broker.ordered")

_UNUSED_MS = 86_400_000
_LOOK_MS = 3_600_000
"""Pause between searches for unused batches while nothing changes."""


class OrderedBatches:
    """The ordered batches of one broker."""

    def __init__(
        self,
        folder: Path,
        *,
        plane: DataPlane,
        topics: BrokerTopics,
        groups: BrokerGroups,
        now_ms: Callable[[], int],
        file_ops: FileOps = SYSTEM_FILE_OPS,
    ) -> None:
        """Read the file.

        Args:
            folder: the store's ``config`` folder.
            plane: the loops.
            topics, groups: this broker's.
            now_ms: the clock.
            file_ops: the file operations to use.

        Raises:
            ConfigError: the file cannot be used, nor its ``.bak``.
        """
        self._info = OrderInfo(folder, file_ops=file_ops)
        self._plane = plane
        self._topics = topics
        self._groups = groups
        self._now_ms = now_ms
        self._writing = threading.Lock()
        self._version = -1
        self._look_ms = 0
        warning = self._info.load().warning
        if warning is not None:
            _log.warning("ordered batches not read as they were", extra={"error": warning})

    def start(self) -> None:
        """Give the loops what was written down."""
        for queue in self._info.all():
            self._pass_on(queue)

    def _pass_on(self, queue: OrderedQueue) -> None:
        """Give the loops one. One that cannot be is passed over: the others count."""
        try:
            self._plane.restore_ordered(queue)
        except InvalidArgument as error:
            extra = {"group": queue.group, "topic": queue.topic, "queue": queue.queue_id, "error": str(error)}
            _log.warning("ordered batch passed over", extra=extra)

    def persist(self) -> None:
        """Write the batches down where they changed.

        Raises:
            StorageError: they could not be written; the next call tries again.
        """
        with self._writing:
            version, now_ms = self._plane.ordered_version(), self._now_ms()
            if version != self._version or now_ms >= self._look_ms:
                self._info.replace(
                    [queue for queue in self._plane.ordered_batches() if not self._forget(queue, now_ms)]
                )
                self._version, self._look_ms = version, now_ms + _LOOK_MS
            # A batch names messages: they are durable before it.
            self._info.persist(cover=self._plane.flush)

    def _forget(self, queue: OrderedQueue, now_ms: int) -> bool:
        """Forget a batch if nobody can pop it any more; return whether it was forgotten."""
        topic = self._topics.get(queue.topic)
        is_there = topic is not None and queue.queue_id < topic.read_queue_nums
        if is_there and self._groups.get(queue.group) is not None and now_ms - queue.batch.used_ms <= _UNUSED_MS:
            return False
        self._plane.clear_ordered(queue.group, queue.topic, queue.queue_id)
        return True
