"""Has a file changed? For files under ``config/`` that another process replaces."""

from __future__ import annotations

import time
from pathlib import Path

__all__ = ["FileStamp"]

_SETTLED_NS = 50_000_000
"""Two changes within the file system's clock tick have one time; so a file this young is read again."""


class FileStamp:
    """A file's stamp when last seen. Threads: any; at worst a file is read once more than needed."""

    def __init__(self, path: Path) -> None:
        """Look at the file, before it is read for the first time."""
        self._path = path
        self._seen = self._look()

    def _look(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.lstat()  # readers reject links, and a link to itself cannot be followed
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns

    def changed(self) -> bool:
        """Return whether the file must be read again. Call it before reading."""
        seen, now = self._seen, self._look()
        self._seen = now
        return now is None or now != seen or self._is_young(now[2])

    def _is_young(self, mtime_ns: int) -> bool:
        return time.time_ns() - mtime_ns < _SETTLED_NS
