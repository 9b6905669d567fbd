"""From ranges of queues to Spark partitions: split and put together by bytes, never per row.

A Python partition costs Spark some 30 ms, however small. So small queues share a task, and a large one is divided.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from cometmq.spark.offsets import QueueKey

__all__ = ["QueueRange", "plan_partitions"]

_SMALLEST_PARTITION_BYTES = 16 << 20
_SLACK = 0.125
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class QueueRange:
    """Messages of one queue: from ``start`` to before ``end``; ``broker`` is empty in a store."""

    topic: str
    queue_id: int
    start: int
    end: int
    broker: str = ""

    @classmethod
    def of(cls, key: QueueKey, start: int, end: int) -> QueueRange:
        """Return a range of a queue."""
        return cls(key.topic, key.queue_id, start, end, key.broker)

    @property
    def key(self) -> QueueKey:
        """The queue."""
        return QueueKey(self.topic, self.queue_id, self.broker)

    @property
    def rows(self) -> int:
        """Number of offsets."""
        return self.end - self.start


def plan_partitions(
    ranges: Sequence[QueueRange],
    row_bytes: Callable[[QueueRange], float],
    *,
    max_bytes: int,
    min_partitions: int | None,
    cores: int | None = None,
) -> list[tuple[QueueRange, ...]]:
    """Deal ranges out to tasks.

    Args:
        ranges: the ranges to read; empty ones are left out.
        row_bytes: mean bytes of a message in a range.
        max_bytes: most bytes of a task, but for single messages.
        min_partitions: at least so many tasks, where there are so many messages; None: as many as cores, unless tasks
            would become small.
        cores: cores to keep busy; None: this machine's.

    Returns:
        The ranges of each task, in the order of ``ranges``. Every offset is in exactly one.
    """
    sized = [(one, max(row_bytes(one), 1.0)) for one in ranges if one.rows > 0]
    if not sized:
        return []
    total = sum(one.rows * each for one, each in sized)
    wanted, slack = min_partitions, 0.0
    if wanted is None:
        wanted, slack = min(cores or os.cpu_count() or 1, max(1, int(total // _SMALLEST_PARTITION_BYTES))), _SLACK
    return _deal(sized, total, max(wanted, math.ceil(total * (1 + 2 * slack) / max_bytes)), slack)


def _deal(
    sized: Sequence[tuple[QueueRange, float]], total: float, count: int, slack: float
) -> list[tuple[QueueRange, ...]]:
    """Cut the bytes of all ranges, laid end to end, at ``count`` equal steps, or at a range's end that is near.

    Args:
        sized: ranges that are not empty, and the bytes of a row of each.
        total: bytes of all of them.
        count: tasks wanted.
        slack: share of a step that counts as near.
    """
    tasks: list[tuple[QueueRange, ...]] = []
    current: list[QueueRange] = []
    at, step = 0.0, total / count
    near = step * max(slack, _ROUNDING)
    for one, each in sized:
        rest = one
        while rest.rows:
            boundary = step * (len(tasks) + 1)
            if at >= boundary and not current:
                boundary = at + each  # single messages larger than a step have used up several of them
            end = at + rest.rows * each
            if boundary - at <= near and current and len(tasks) + 1 < count:
                tasks.append(tuple(current))
                current = []
            elif end <= boundary + near:
                current.append(rest)
                at = end
                break
            else:
                cut = rest.start + max(int((boundary - at) / each + _ROUNDING), 1)
                tasks.append((*current, replace(rest, end=cut)))
                at += (cut - rest.start) * each
                rest, current = replace(rest, start=cut), []
    if current:
        tasks.append(tuple(current))
    return tasks
