"""``delayOffset.json``: how far each delay level has been delivered.

The key is the level, from 1; the value the next queue offset in queue ``level - 1`` of ``SCHEDULE_TOPIC_XXXX``. The
delivery clamps it into the queue's bounds at the start (spec 9.3).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, cast

from cometmq.errors import InvalidArgument
from cometmq.store_config.fastjson import JsonObject, JsonValue
from cometmq.store_config.fields import INT32_MAX, INT64_MAX, Fields
from cometmq.store_config.versioned import VersionedFile

__all__ = ["DelayOffsets"]


class DelayOffsets(VersionedFile):
    """Progress of the delay levels. Threads and processes: see :class:`ManagedFile`."""

    file_name: ClassVar[str] = "delayOffset.json"
    _known: ClassVar[tuple[str, ...]] = ("offsetTable",)
    _default_step: ClassVar[int] = 200
    """``delayOffsetUpdateVersionStep``."""

    def _clear(self) -> None:
        self._table: dict[int, int] = {}

    def _decode_members(self, fields: Fields) -> Callable[[], None]:
        table = fields.integers("offsetTable")

        def take_over() -> None:
            self._table = table

        return take_over

    def _member_snapshot(self) -> Callable[[], dict[str, JsonValue]]:
        table = cast(JsonObject, dict(self._table))
        return lambda: {"offsetTable": table}

    def get(self, level: int) -> int | None:
        """Return the next queue offset of a level, or None where it was never looked at."""
        with self._lock:
            return self._table.get(level)

    def all(self) -> dict[int, int]:
        """Return every level's next queue offset."""
        with self._lock:
            return dict(self._table)

    def merge(self, offsets: Mapping[int, int], *, versions: int) -> None:
        """Take over progress that was collected elsewhere; the data version moves by ``versions``.

        Raises:
            InvalidArgument: as :meth:`set`; nothing was taken over.
        """
        for level, offset in offsets.items():
            _check(level, offset)
        with self._lock:
            if any(self._table.get(level) != offset for level, offset in offsets.items()) or versions:
                self._table.update(offsets)
                self._advance(versions)

    def set(self, level: int, offset: int) -> None:
        """Set a level's next queue offset, in memory.

        Raises:
            InvalidArgument: a level below 1 or an offset outside an int64.
        """
        _check(level, offset)
        with self._lock:
            self._table[level] = offset
            self._count_change()


def _check(level: int, offset: int) -> None:
    if not 1 <= level <= INT32_MAX:
        raise InvalidArgument(f"delay level {level} is outside 1 to {INT32_MAX}")
    if not 0 <= offset <= INT64_MAX:
        raise InvalidArgument(f"offset {offset} is outside 0 to {INT64_MAX}")
