"""How much of what is new a micro-batch takes: Spark's read limits and our options as numbers of rows per queue."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cometmq.spark.offsets import Position, QueueKey

__all__ = ["limit_bytes", "limit_rows"]


def limit_rows(start: Position, end: Position, max_rows: int) -> Position:
    """Return an end at most ``max_rows`` behind ``start``, shared out in proportion to what waits.

    Every queue in which something waits advances by at least one, as long as the limit allows; where there are more
    such queues than rows, those come first whose turn it is, which depends on ``start`` alone. A limit of one or more
    always advances: else a stream up to "available now" would never end.
    """
    waiting = {key: end[key] - start.get(key, 0) for key in sorted(end) if end[key] > start.get(key, 0)}
    total = sum(waiting.values())
    if total <= max_rows:
        return dict(end)
    if len(waiting) >= max_rows:
        keys = list(waiting)
        turn = sum(start.values()) % len(keys)
        return _advanced(start, end, dict.fromkeys((keys[turn:] + keys[:turn])[:max_rows], 1))
    shares = {key: max(1, rows * max_rows // total) for key, rows in waiting.items()}
    return _advanced(start, end, _fit(shares, waiting, max_rows))


def _fit(shares: dict[QueueKey, int], waiting: Mapping[QueueKey, int], max_rows: int) -> dict[QueueKey, int]:
    """Bring the sum of the shares to ``max_rows``, beginning with the fullest queues."""
    spare = max_rows - sum(shares.values())
    for key in sorted(waiting, key=lambda one: (-waiting[one], one)):
        change = min(spare, waiting[key] - shares[key]) if spare > 0 else -min(-spare, shares[key] - 1)
        shares[key] += change
        spare -= change
        if spare == 0:
            break
    return shares


def limit_bytes(
    start: Position, end: Position, max_bytes: int, row_bytes: Callable[[QueueKey, int, int], float]
) -> Position:
    """Return an end about ``max_bytes`` behind ``start``, at least one row.

    Args:
        row_bytes: mean bytes of a message of a queue between two offsets.
    """
    waiting = {key: end[key] - start.get(key, 0) for key in sorted(end) if end[key] > start.get(key, 0)}
    each = {key: max(row_bytes(key, start.get(key, 0), end[key]), 1.0) for key in waiting}
    total = sum(rows * each[key] for key, rows in waiting.items())
    if total <= max_bytes:
        return dict(end)
    rows = int(sum(waiting.values()) * max_bytes / total)
    return limit_rows(start, end, max(rows, 1))


def _advanced(start: Position, end: Position, shares: Mapping[QueueKey, int]) -> Position:
    return {key: start.get(key, 0) + shares.get(key, 0) if end[key] > start.get(key, 0) else end[key] for key in end}
