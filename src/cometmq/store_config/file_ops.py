"""The few file operations that writing a configuration file needs, as a parameter.

:class:`ConfigFile` does all of its input and output through :class:`FileOps`, so that a test can stop after any single
operation, lose what was not synced, or let one fail. :data:`SYSTEM_FILE_OPS` is the real one.

Threads: any. The operations have no state.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Protocol

__all__ = ["SYSTEM_FILE_OPS", "FileOps", "SystemFileOps"]


class FileOps(Protocol):
    """Operations on whole files. Every failure is an OSError."""

    def read(self, path: Path, *, bytes_max: int) -> bytes | None:
        """Return the whole file, or None when it does not exist. A file over ``bytes_max`` is an OSError."""
        ...

    def write_synced(self, path: Path, data: bytes) -> None:
        """Create or empty the file, write ``data`` and fsync it. A crash inside leaves any prefix, or other bytes."""
        ...

    def rename(self, source: Path, target: Path) -> None:
        """Rename atomically, replacing ``target``. Durable after the folder's next :meth:`sync_folder`."""
        ...

    def remove(self, path: Path) -> None:
        """Remove a file if it exists. Durable after the folder's next :meth:`sync_folder`."""
        ...

    def sync_folder(self, folder: Path) -> None:
        """Make the names in ``folder`` durable."""
        ...

    def make_folder(self, folder: Path, *, root: Path | None = None) -> None:
        """Create the folder and its parents, durably. Nothing happens when it is there.

        Args:
            folder: the folder.
            root: the folder's store, which must exist: if the store was moved, its old path is not created again.
        """
        ...


def _open_plain(path: str, flags: int) -> int:
    """Open a plain file: a link at the end of the path is not followed, and a FIFO is not waited for."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is not a plain file", path)


class SystemFileOps:
    """The operating system's files."""

    def read(self, path: Path, *, bytes_max: int) -> bytes | None:
        """See :meth:`FileOps.read`."""
        try:
            with open(path, "rb", opener=_open_plain) as file:
                data = file.read(bytes_max + 1)
        except FileNotFoundError:
            return None
        if len(data) > bytes_max:
            raise OSError(f"{path} is larger than {bytes_max} bytes")
        return data

    def write_synced(self, path: Path, data: bytes) -> None:
        """See :meth:`FileOps.write_synced`."""
        # Synced through the descriptor that wrote: one opened later may not report a failed write-back.
        with open(path, "wb", buffering=0, opener=_open_plain) as file:
            left = memoryview(data)
            while left:
                left = left[file.write(left) :]
            os.fsync(file.fileno())

    def rename(self, source: Path, target: Path) -> None:
        """See :meth:`FileOps.rename`."""
        source.replace(target)

    def remove(self, path: Path) -> None:
        """See :meth:`FileOps.remove`."""
        path.unlink(missing_ok=True)

    def sync_folder(self, folder: Path) -> None:
        """See :meth:`FileOps.sync_folder`."""
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def make_folder(self, folder: Path, *, root: Path | None = None) -> None:
        """See :meth:`FileOps.make_folder`."""
        if folder.is_dir():
            return
        if root is not None and not root.is_dir():
            raise FileNotFoundError(errno.ENOENT, "the store's folder was moved or deleted; put it back", str(root))
        self.make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        self.sync_folder(folder.parent)


SYSTEM_FILE_OPS = SystemFileOps()
