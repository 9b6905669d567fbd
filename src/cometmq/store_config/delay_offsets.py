"""``delayOffset.json``: how far each delay level has been delivered.

The key is the level, from 1; the value the next queue offset in queue ``level - 1`` of ``SCHEDULE_TOPIC_XXXX``. Whoever
delivers clamps it into the queue's bounds at the start (spec 9.3).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, cast

from cometmq.errors import InvalidArgument
from cometmq.store_config.data_version import DataVersion, wall_clock_ms
from cometmq.store_config.fastjson import JsonObject, bean
from cometmq.store_config.fields import INT32_MAX, INT64_MAX, Fields
from cometmq.store_config.file_ops import SYSTEM_FILE_OPS, FileOps
from cometmq.store_config.managed import ManagedFile

__all__ = ["DelayOffsets"]


class DelayOffsets(ManagedFile):
    """Progress of the delay levels. Threads and processes: see :class:`ManagedFile`."""

    file_name: ClassVar[str] = "delayOffset.json"

    def __init__(
        self,
        folder: Path,
        *,
        version_step: int = 200,
        file_ops: FileOps = SYSTEM_FILE_OPS,
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        """Start empty.

        Args:
            folder: the store's ``config`` folder.
            version_step: updates per change of the data version (``delayOffsetUpdateVersionStep``).
            file_ops: the file operations to use.
            now_ms: the clock for the data version.
        """
        super().__init__(folder, file_ops=file_ops, now_ms=now_ms)
        self._version_step = version_step
        self._updates = 0
        self._reset()

    def _reset(self) -> None:
        self._table: dict[int, int] = {}
        self._version = DataVersion.first(self._now_ms())
        self._unknown: JsonObject = {}

    def _decode(self, fields: Fields) -> Callable[[], None]:
        table = fields.integers("offsetTable")
        version = DataVersion.decode(fields.fields("dataVersion"), now_ms=self._now_ms())
        unknown = fields.others(("dataVersion", "offsetTable"))

        def take_over() -> None:
            self._table = table
            self._version = version
            self._unknown = unknown

        return take_over

    def _encode(self) -> JsonObject:
        table = cast(JsonObject, dict(self._table))
        return bean({"dataVersion": self._version.encode(), "offsetTable": table}, self._unknown)

    @property
    def data_version(self) -> DataVersion:
        """The version of the content."""
        with self._lock:
            return self._version

    def get(self, level: int) -> int | None:
        """Return the next queue offset of a level, or None where it was never looked at."""
        with self._lock:
            return self._table.get(level)

    def all(self) -> dict[int, int]:
        """Return every level's next queue offset."""
        with self._lock:
            return dict(self._table)

    def set(self, level: int, offset: int) -> None:
        """Set a level's next queue offset, in memory.

        Raises:
            InvalidArgument: a level below 1 or an offset outside an int64.
        """
        if not 1 <= level <= INT32_MAX:
            raise InvalidArgument(f"delay level {level} is outside 1 to {INT32_MAX}")
        if not 0 <= offset <= INT64_MAX:
            raise InvalidArgument(f"offset {offset} is outside 0 to {INT64_MAX}")
        with self._lock:
            self._table[level] = offset
            self._changed = True
            self._updates += 1
            if self._updates % self._version_step == 0:
                self._version = self._version.next(self._now_ms())
