"""The base of the typed files under ``config/``: load over defaults, change under a lock, persist when changed.

Threads: any thread may call any method of a manager; each call is atomic. Records handed out are immutable.
Processes: as :mod:`cometmq.store_config.config_file` says; one writer, any number of readers that load again.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from cometmq.store_config.config_file import ConfigFile, Fingerprint, Loaded, Origin
from cometmq.store_config.data_version import wall_clock_ms
from cometmq.store_config.fastjson import JsonObject, JsonValue, Layout
from cometmq.store_config.fields import Fields
from cometmq.store_config.file_ops import SYSTEM_FILE_OPS, FileOps

__all__ = ["ManagedFile"]


class ManagedFile(ABC):
    """One file and its decoded content, which a subclass keeps in attributes of its own."""

    file_name: ClassVar[str]
    layout: Layout = Layout.PRETTY

    def __init__(
        self,
        folder: Path,
        *,
        file_name: str | None = None,
        makes_root: bool = False,
        file_ops: FileOps = SYSTEM_FILE_OPS,
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        """Start with the defaults. Nothing is read before :meth:`load`.

        Args:
            folder: the store's ``config`` folder.
            file_name: another name than the class's own.
            makes_root: create also the folder above ``folder``. False for a store: if it is missing, it was moved.
            file_ops: the file operations to use.
            now_ms: the clock for data versions.
        """
        self._lock = threading.RLock()
        self._writing = threading.Lock()  # taken before _lock where both are
        self._now_ms = now_ms
        root = None if makes_root else folder.parent
        self._file = ConfigFile(folder / (file_name or self.file_name), root=root, file_ops=file_ops)
        self._changed = False

    @property
    def path(self) -> Path:
        """The file."""
        return self._file.path

    @property
    def fingerprint(self) -> Fingerprint:
        """CRC-32 and length of the bytes loaded or written last; zeros without a file."""
        return self._file.fingerprint

    @property
    def changed(self) -> bool:
        """True when the content differs from what the main file is known to hold."""
        with self._lock:
            return self._changed

    def load(self) -> Loaded[None]:
        """Read the file, or its ``.bak``, over the defaults. Unsaved changes are lost.

        Returns:
            Where the content came from, and why the main file was passed over if it was.

        Raises:
            ConfigError: the file cannot be used and neither can its ``.bak``. The content stays as it was.
            StorageError: a file is there but cannot be read.
        """
        with self._writing, self._lock:
            loaded = self._file.load(self._decode_whole)
            if loaded.content is None:
                self._reset()
            else:
                loaded.content()
            # Content that came from the .bak should become the main file again.
            self._changed = loaded.origin is Origin.BACKUP
            return Loaded(None, loaded.origin, loaded.main_problem, loaded.kept_as, loaded.absent)

    def _decode_whole(self, value: JsonValue) -> Callable[[], None]:
        """Decode into a function that takes the content over, so that a bad file changes nothing."""
        if value is None:
            return self._reset
        return self._decode(Fields(value))

    @abstractmethod
    def _decode(self, fields: Fields) -> Callable[[], None]:
        """Check the whole content; return the function that makes it the manager's."""

    @abstractmethod
    def _reset(self) -> None:
        """Go back to the defaults."""

    @abstractmethod
    def _snapshot(self) -> Callable[[], JsonObject]:
        """Take the content, with the lock held; the function that is returned encodes it, without the lock.

        It returns the content as upstream's 5.3 line writes it, in containers that nothing else holds.
        """

    def encode(self) -> JsonObject:
        """Return the content as upstream's 5.3 line writes it. Changing the result changes nothing here."""
        with self._lock:
            encode = self._snapshot()
        return encode()

    def persist(self, *, only_if_changed: bool = True, cover: Callable[[], None] | None = None) -> bool:
        """Write the content durably; the content before stays as ``.bak``.

        Args:
            only_if_changed: write nothing where the file has the content.
            cover: called after the content was taken and before anything is written: makes durable what the content
                rests on.

        Returns:
            True when the file was written.

        Raises:
            StorageError: it could not be written, or covered. The old file is whole, the change is still in memory.
        """
        # Without the content's lock the content is encoded and the disk is waited for, so that no look-up waits.
        with self._writing:
            with self._lock:
                if only_if_changed and not self._changed:
                    return False
                encode = self._snapshot()
                self._changed = False
            try:
                if cover is not None:
                    cover()
                self._file.persist(encode(), layout=self.layout)
            except BaseException:
                with self._lock:
                    self._changed = True
                raise
            return True
