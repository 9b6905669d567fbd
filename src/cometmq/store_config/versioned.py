"""Files with a data version: the base of those of topics, groups and offsets.

Members that we do not know, since a newer upstream wrote them, are kept and written again.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from cometmq.store_config.data_version import DataVersion, wall_clock_ms
from cometmq.store_config.fastjson import JsonObject, JsonValue, bean
from cometmq.store_config.fields import Fields
from cometmq.store_config.file_ops import SYSTEM_FILE_OPS, FileOps
from cometmq.store_config.managed import ManagedFile

__all__ = ["VersionedFile"]

_VERSION = "dataVersion"


class VersionedFile(ManagedFile):
    """One such file. Threads and processes: see :class:`ManagedFile`."""

    _known: ClassVar[tuple[str, ...]]
    """The members that the subclass keeps."""
    _default_step: ClassVar[int] = 1

    def __init__(
        self,
        folder: Path,
        *,
        version_step: int | None = None,
        file_ops: FileOps = SYSTEM_FILE_OPS,
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        """Start with the defaults.

        Args:
            folder: the store's ``config`` folder.
            version_step: counted changes per change of the data version; None: upstream's default.
            file_ops: the file operations to use.
            now_ms: the clock for the data version.
        """
        super().__init__(folder, file_ops=file_ops, now_ms=now_ms)
        self._version_step = self._default_step if version_step is None else version_step
        self._changes = 0
        self._reset()

    _version: DataVersion

    @property
    def data_version(self) -> DataVersion:
        """The version of the content."""
        with self._lock:
            return self._version

    def touch(self) -> None:
        """Count a change of something that is sent together with the content."""
        with self._lock:
            self._count_change()

    def _advance(self, steps: int) -> None:
        """Note a change that counts for so many versions, with the lock held."""
        self._changed = True
        if steps > 0:
            newer = self._version.next(self._now_ms())
            self._version = replace(newer, counter=newer.counter + steps - 1)

    @abstractmethod
    def _clear(self) -> None:
        """Make the members the defaults."""

    @abstractmethod
    def _decode_members(self, fields: Fields) -> Callable[[], None]:
        """Check the members; return the function that makes them the content."""

    @abstractmethod
    def _member_snapshot(self) -> Callable[[], dict[str, JsonValue]]:
        """As :meth:`_snapshot`, of the members alone."""

    def _reset(self) -> None:
        self._clear()
        self._version = DataVersion.first(self._now_ms())
        self._unknown: JsonObject = {}

    def _decode(self, fields: Fields) -> Callable[[], None]:
        take_members = self._decode_members(fields)
        version = DataVersion.decode(fields.fields(_VERSION), now_ms=self._now_ms())
        unknown = fields.others((_VERSION, *self._known))

        def take_over() -> None:
            take_members()
            self._version = version
            self._unknown = unknown

        return take_over

    def _snapshot(self) -> Callable[[], JsonObject]:
        version, members, unknown = self._version, self._member_snapshot(), self._unknown
        return lambda: bean({_VERSION: version.encode(), **members()}, unknown)

    def _count_change(self) -> None:
        """Note that the content changed, with the lock held."""
        self._changed = True
        self._changes += 1
        if self._changes % self._version_step == 0:
            self._version = self._version.next(self._now_ms())
