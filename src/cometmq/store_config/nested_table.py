"""Tables of tables: two names lead to an entry. The base of order info and request modes, which differ in entries."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from cometmq.store_config.fastjson import JsonObject, bean
from cometmq.store_config.fields import Fields
from cometmq.store_config.file_ops import SYSTEM_FILE_OPS, FileOps
from cometmq.store_config.managed import ManagedFile

__all__ = ["NestedTable"]

K = TypeVar("K", str, int)
E = TypeVar("E")


class NestedTable(ManagedFile, Generic[K, E]):
    """One such table; other members of the file are kept. Threads and processes: see :class:`ManagedFile`."""

    _table_member: ClassVar[str]
    """The file's member that holds the table."""

    def __init__(self, folder: Path, *, file_ops: FileOps = SYSTEM_FILE_OPS) -> None:
        """Start empty.

        Args:
            folder: the store's ``config`` folder.
            file_ops: the file operations to use.
        """
        super().__init__(folder, file_ops=file_ops)
        self._reset()

    # --- Entries

    @staticmethod
    @abstractmethod
    def _decode_key(name: str, path: str) -> K:
        """Return the second name; ``path`` says where the file has it."""

    @staticmethod
    @abstractmethod
    def _decode_entry(fields: Fields) -> E:
        """Return the entry that the file has."""

    @staticmethod
    @abstractmethod
    def _encode_entry(name: str, key: K, entry: E) -> JsonObject:
        """Return what the file gets for an entry under both its names."""

    # --- The file

    def _reset(self) -> None:
        self._table: dict[str, dict[K, E]] = {}
        self._unknown: JsonObject = {}

    def _decode(self, fields: Fields) -> Callable[[], None]:
        table: dict[str, dict[K, E]] = {}
        names = fields.fields(self._table_member)
        if names is not None:
            for name in names.names():
                table[str(name)] = {
                    self._decode_key(key, path): self._decode_entry(Fields(value, path))
                    for key, value, path in names.items(name)
                }
        unknown = fields.others((self._table_member,))

        def take_over() -> None:
            self._table = table
            self._unknown = unknown

        return take_over

    def _snapshot(self) -> Callable[[], JsonObject]:
        table: JsonObject = {
            name: {key: self._encode_entry(name, key, entry) for key, entry in entries.items()}
            for name, entries in self._table.items()
        }
        unknown = self._unknown
        return lambda: bean({self._table_member: table}, unknown)
