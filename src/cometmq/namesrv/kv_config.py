"""The name server's key-value store, ``kvConfig.json``: texts under keys in namespaces; all that it keeps on disk.

The file is upstream's: a Java name server reads ours and we read its. It is written durably before a change is
answered.

Threads: any (see :class:`ManagedFile`).
Source:  remoting specification 2.11.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, cast

from cometmq.errors import LimitReached
from cometmq.store_config.fastjson import JsonObject, Layout
from cometmq.store_config.fields import Fields
from cometmq.store_config.file_ops import SYSTEM_FILE_OPS, FileOps
from cometmq.store_config.managed import ManagedFile

__all__ = ["DEFAULT_LIMITS", "ORDER_TOPIC_CONFIG", "KVConfig", "KVLimits"]

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"
"""Namespace of topics whose order spans queues: topic to ``broker:queues`` joined by ``;``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KVLimits:
    """Limits of the stored values. A change beyond them is refused."""

    entries: int = 50_000
    name_chars: int = 1_024
    """Length of a namespace or key."""
    value_chars: int = 65_536
    total_chars: int = 16 << 20
    """Length of all names and values: the file is written whole."""


DEFAULT_LIMITS = KVLimits()


class KVConfig(ManagedFile):
    """The namespaces. Without a file they are in memory alone."""

    file_name: ClassVar[str] = "kvConfig.json"
    layout = Layout.COMPACT

    def __init__(
        self, path: Path | None, *, limits: KVLimits = DEFAULT_LIMITS, file_ops: FileOps = SYSTEM_FILE_OPS
    ) -> None:
        """Start empty; :meth:`load` reads the file.

        Args:
            path: the file, upstream's ``kvConfig.json``; None to keep nothing on disk.
            limits: limits of the stored values.
            file_ops: the file operations to use.
        """
        place = path if path is not None else Path(self.file_name)
        # A folder that is missing at the start may be created; one that goes missing later was moved.
        makes_root = not place.parent.parent.is_dir()
        super().__init__(place.parent, file_name=place.name, makes_root=makes_root, file_ops=file_ops)
        self._in_memory = path is None
        self._limits = limits
        self._reset()

    def _reset(self) -> None:
        self._namespaces: dict[str, dict[str, str]] = {}
        self._chars = 0

    def _decode(self, fields: Fields) -> Callable[[], None]:
        table = fields.fields("configTable")
        namespaces = {} if table is None else {str(name): table.texts(name) for name in table.names()}

        def take_over() -> None:
            self._namespaces = namespaces
            self._chars = sum(
                len(name) + len(key) + len(value) for name, keys in namespaces.items() for key, value in keys.items()
            )

        return take_over

    def _snapshot(self) -> Callable[[], JsonObject]:
        table = cast(JsonObject, {name: dict(keys) for name, keys in self._namespaces.items()})
        return lambda: {"configTable": table}

    @property
    def is_in_memory(self) -> bool:
        """True where nothing is kept on disk."""
        return self._in_memory

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a key, durably.

        Raises:
            LimitReached: a limit would be passed; nothing was changed.
            StorageError: the file could not be written; the change holds in memory and is written with the next one.
        """
        self.change(namespace, key, value)
        self._write()

    def change(self, namespace: str, key: str, value: str) -> None:
        """Set a key in memory; :meth:`persist` writes it, together with other changes.

        Raises:
            LimitReached: a limit would be passed; nothing was changed.
        """
        with self._lock:
            self._check(namespace, key, value)
            keys = self._namespaces.setdefault(namespace, {})
            if keys.get(key) == value:
                return
            self._chars += self._growth(namespace, key, value)
            keys[key] = value
            self._changed = True

    def _growth(self, namespace: str, key: str, value: str) -> int:
        before = self._namespaces.get(namespace, {}).get(key)
        return len(value) - len(before) if before is not None else len(namespace) + len(key) + len(value)

    def _check(self, namespace: str, key: str, value: str) -> None:
        if max(len(namespace), len(key)) > self._limits.name_chars:
            raise LimitReached(f"a namespace or key has more than {self._limits.name_chars} characters")
        if len(value) > self._limits.value_chars:
            raise LimitReached(f"the value of {key[:40]} has more than {self._limits.value_chars} characters")
        if self._chars + self._growth(namespace, key, value) > self._limits.total_chars:
            raise LimitReached(
                f"this name server keeps {self._limits.total_chars} characters of keys and values at most"
            )
        # A namespace outlives its keys, and counts as one.
        count = len(self._namespaces) + sum(map(len, self._namespaces.values()))
        new = (namespace not in self._namespaces) + (key not in self._namespaces.get(namespace, {}))
        if new and count + new > self._limits.entries:
            raise LimitReached(f"this name server keeps {self._limits.entries} keys and namespaces at most")

    def delete(self, namespace: str, key: str) -> None:
        """Remove a key, durably; its namespace stays, empty, as upstream's does.

        Raises:
            StorageError: as :meth:`put`.
        """
        if self.remove(namespace, key):
            self._write()

    def remove(self, namespace: str, key: str) -> bool:
        """Remove a key in memory; :meth:`persist` writes that. Returns False where there was none."""
        with self._lock:
            value = self._namespaces.get(namespace, {}).pop(key, None)
            if value is None:
                return False
            self._chars -= len(namespace) + len(key) + len(value)
            self._changed = True
            return True

    def _write(self) -> None:
        if not self._in_memory:
            self.persist()

    def get(self, namespace: str, key: str) -> str | None:
        """Return a value, or None."""
        with self._lock:
            return self._namespaces.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> Mapping[str, str] | None:
        """Return the keys of a namespace, none for one that lost them all; None where there never was one."""
        with self._lock:
            keys = self._namespaces.get(namespace)
            return None if keys is None else dict(keys)
