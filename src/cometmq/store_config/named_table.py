"""Tables of entries by name, over entries that the system has from the start: topics, and groups."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from cometmq.errors import InvalidArgument
from cometmq.store_config.data_version import wall_clock_ms
from cometmq.store_config.fastjson import JsonValue
from cometmq.store_config.fields import Fields
from cometmq.store_config.file_ops import SYSTEM_FILE_OPS, FileOps
from cometmq.store_config.names import is_light_queue
from cometmq.store_config.versioned import VersionedFile

__all__ = ["NamedTable"]

E = TypeVar("E")


class NamedTable(VersionedFile, Generic[E]):
    """One such table. Threads and processes: see :class:`ManagedFile`."""

    _table_member: ClassVar[str]
    """The file's member that holds the table."""

    def __init__(
        self,
        folder: Path,
        *,
        system: Iterable[E] = (),
        light_queues: bool = False,
        file_ops: FileOps = SYSTEM_FILE_OPS,
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        """Start with the system's entries alone.

        Args:
            folder: the store's ``config`` folder.
            system: entries that are there before the file is read; stored ones win.
            light_queues: True where the broker has ``enableLmq``: names with ``%LMQ%`` are there without an entry.
            file_ops: the file operations to use.
            now_ms: the clock for the data version.
        """
        self._system = {self._name_of(entry): entry for entry in system}
        self._light_queues = light_queues
        super().__init__(folder, file_ops=file_ops, now_ms=now_ms)

    # --- Entries

    @staticmethod
    @abstractmethod
    def _name_of(entry: E) -> str:
        """Return an entry's name."""

    @staticmethod
    @abstractmethod
    def _decode_entry(fields: Fields, name: str) -> E:
        """Return the entry that is stored under a name, with that name whatever it says itself: it is found by it."""

    @staticmethod
    @abstractmethod
    def _encode_entry(entry: E) -> JsonValue:
        """Return an entry as upstream writes it."""

    @staticmethod
    @abstractmethod
    def _light_entry(name: str) -> E:
        """Return what a light queue has in place of an entry."""

    @staticmethod
    @abstractmethod
    def _check(entry: E) -> None:
        """Refuse an entry that upstream would not read."""

    # --- The file

    def _clear(self) -> None:
        self._table = dict(self._system)

    def _decode_members(self, fields: Fields) -> Callable[[], None]:
        stored = {
            name: self._decode_entry(Fields(value, path), name)
            for name, value, path in fields.items(self._table_member)
        }

        def take_over() -> None:
            # The stored order comes first, so that a file read and written again stays as it was.
            self._table = {**stored, **{name: entry for name, entry in self._system.items() if name not in stored}}

        return take_over

    def _member_snapshot(self) -> Callable[[], dict[str, JsonValue]]:
        table = dict(self._table)  # its entries are immutable
        return lambda: {self._table_member: {name: self._encode_entry(entry) for name, entry in table.items()}}

    # --- Entries

    def get(self, name: str) -> E | None:
        """Return an entry, or None. With light queues every ``%LMQ%`` name has one."""
        with self._lock:
            found = self._table.get(name)
        if found is None and self._light_queues and is_light_queue(name):
            return self._light_entry(name)
        return found

    def __contains__(self, name: str) -> bool:
        """Return whether :meth:`get` finds the name."""
        return self.get(name) is not None

    def __len__(self) -> int:
        """Return the number of entries."""
        with self._lock:
            return len(self._table)

    def all(self) -> tuple[E, ...]:
        """Return every entry, in the file's order."""
        with self._lock:
            return tuple(self._table.values())

    def put(self, entry: E) -> E | None:
        """Store an entry as it is, new or in place of another, and count the change. Returns the entry before, or None.

        Raises:
            InvalidTopic, InvalidArgument: the name or another value is not allowed, or it names a light queue, which
                has no entry.
        """
        name = self._name_of(entry)
        self._check(entry)
        if self._light_queues and is_light_queue(name):
            raise InvalidArgument(f"{name} is a light queue; those have no entry in {self.file_name}")
        with self._lock:
            before = self._table.get(name)
            self._table[name] = entry
            self._count_change()
            return before

    def _get_or_put(self, name: str, make: Callable[[], E]) -> E:
        """Return an entry, made where it is not there."""
        with self._lock:
            found = self.get(name)
            if found is None:
                found = make()
                self.put(found)
            return found

    def remove(self, name: str) -> E | None:
        """Remove an entry and return it, or None where there was none. One of the system's is back after a load."""
        with self._lock:
            removed = self._table.pop(name, None)
            if removed is not None:
                self._count_change()
            return removed
