"""One configuration file and its ``.bak``: loaded as upstream does, written so that no crash loses a generation.

Load, as upstream's ConfigManager: the file; where it is missing, empty, or cannot be decoded, ``<name>.bak``; where
that is missing or empty too, nothing, and the caller goes on with its defaults; where ``.bak`` cannot be decoded, an
error. Two differences, both on the careful side: loading deletes nothing (upstream deletes the bad file), and a file of
blanks alone or of invalid UTF-8 counts as one that cannot be decoded (upstream takes the first for an empty
configuration and puts U+FFFD into the second).

Persist, each step durable before the next begins::

    1  write <name>.tmp, fsync it          crash: the file is the old one
    2  rename <name> to <name>.bak         crash: no file, .bak is the old one, load falls back to it
    3  fsync the folder
    4  rename <name>.tmp to <name>         crash: the new one, or as after 3
    5  fsync the folder                    from here on the new one

So the next load finds the old text or the new one whole, and once persist has returned, the new one; ``.bak`` is always
the generation before. A file that was found damaged does not become ``.bak`` (the good one there would be lost with
it): step 2 keeps it as ``<name>.broken`` for whoever edited it. A ``.tmp`` left by a crash is ignored, as upstream
ignores the ``.tmp`` of its 4.x line; upstream looks at neither.

Processes: only the holder of the store's ``lock`` may persist; any process may load, also meanwhile.
Threads: any; calls on one ConfigFile wait for each other.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from cometmq.store_config.errors import ConfigError
from cometmq.store_config.fastjson import JsonValue, Layout, encode
from cometmq.store_config.file_ops import SYSTEM_FILE_OPS, FileOps

__all__ = ["ConfigFile", "Loaded", "Origin", "storage_error"]

T = TypeVar("T")

_BYTES_MAX = 512 * 1024 * 1024
"""Largest file read; the same as the reader's limit of characters."""


class Origin(enum.Enum):
    """Which of the two files a content came from."""

    MAIN = "main"
    BACKUP = "backup"


@dataclass(frozen=True, slots=True)
class Loaded(Generic[T]):
    """What a load found.

    Attributes:
        content: the decoded content.
        origin: the file it came from.
        main_problem: why the main file was passed over, or None when it was used or missing or empty.
    """

    content: T
    origin: Origin
    main_problem: ConfigError | None = None


class ConfigFile:
    """The pair ``<name>`` and ``<name>.bak``. See the module's text for the rules."""

    def __init__(self, path: Path, *, file_ops: FileOps = SYSTEM_FILE_OPS, bytes_max: int = _BYTES_MAX) -> None:
        """Nothing is read or created yet.

        Args:
            path: the main file; its folder is created by the first persist.
            file_ops: the file operations to use.
            bytes_max: largest file that a load accepts.
        """
        self.path = path
        self.backup_path = path.with_name(path.name + ".bak")
        self._new_path = path.with_name(path.name + ".tmp")
        self._broken_path = path.with_name(path.name + ".broken")
        self._ops = file_ops
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        # True when the main file holds a content that was decoded or written here, False when it was found damaged or
        # empty, None when it was not looked at yet.
        self._main_is_good: bool | None = None

    def load(self, decode: Callable[[JsonValue], T]) -> Loaded[T] | None:
        """Read and decode the file, or its ``.bak``.

        Args:
            decode: makes the content from the parsed text; raises ConfigError when it cannot be.

        Returns:
            The content, or None where neither file holds anything.

        Raises:
            ConfigError: the file is unusable and ``.bak`` cannot be decoded.
            StorageError: a file is there but cannot be read. No fallback is tried, since the file may be sound.
        """
        with self._lock:
            return self._load(decode)

    def _load(self, decode: Callable[[JsonValue], T]) -> Loaded[T] | None:
        problem: ConfigError | None = None
        data = self._read(self.path)
        self._main_is_good = False if data is not None else None
        if data:
            try:
                content = _decode(data, self.path, decode)
            except ConfigError as error:
                problem = error
            else:
                self._main_is_good = True
                return Loaded(content, Origin.MAIN)
        backup = self._read(self.backup_path)
        if not backup:
            if problem is not None:
                return self._nothing_but(problem)
            return None
        return Loaded(_decode(backup, self.backup_path, decode), Origin.BACKUP, problem)

    def _nothing_but(self, problem: ConfigError) -> None:
        """Upstream goes on with its defaults here, which would lose every topic without a word; we stop."""
        raise problem

    def persist(self, value: JsonValue, *, layout: Layout = Layout.PRETTY) -> None:
        """Make ``value`` the file's content, durably, and keep the one before as ``.bak``.

        Raises:
            StorageError: a step failed (DiskFull, PermissionDenied where that is why). The old content, or the new one
                where only the last step failed, is still there whole; the same call may be tried again.
        """
        data = encode(value, layout=layout)
        with self._lock:
            try:
                self._persist(data)
            except OSError as error:
                raise storage_error(error, f"cannot write {self.path}") from error

    def _persist(self, data: bytes) -> None:
        folder = self.path.parent
        self._ops.make_folder(folder)
        self._ops.write_synced(self._new_path, data)
        old = self._ops.read(self.path, bytes_max=self._bytes_max) if self._main_is_good is None else b""
        if old is not None:
            self._ops.rename(self.path, self._place_for_old(old))
            self._ops.sync_folder(folder)
        self._main_is_good = None
        self._ops.rename(self._new_path, self.path)
        self._main_is_good = True
        self._ops.sync_folder(folder)

    def _place_for_old(self, old: bytes) -> Path:
        good = _is_readable(old) if self._main_is_good is None else self._main_is_good
        return self.backup_path if good else self._broken_path

    def _read(self, path: Path) -> bytes | None:
        try:
            return self._ops.read(path, bytes_max=self._bytes_max)
        except OSError as error:
            raise storage_error(error, f"cannot read {path}") from error
