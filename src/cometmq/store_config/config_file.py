"""One configuration file and its ``.bak``: loaded as upstream does, written so that no crash loses a generation.

Load, as upstream's ConfigManager: the file; where it is missing, empty, or cannot be decoded, ``<name>.bak``; where
that is missing or empty too, nothing, and the caller goes on with its defaults; where ``.bak`` cannot be decoded, an
error that names another readable copy, if there is one, and the command to start with it. Differences, all on the
careful side: loading deletes nothing (upstream deletes the bad file) and reports what it passed over; a file of blanks
alone or of invalid UTF-8 counts as one that cannot be decoded (upstream takes the first for an empty configuration and
puts U+FFFD into the second).

Persist, each step durable before the next begins::

    1  write <name>.tmp, fsync it          crash: the file is the old one
       read it back                        not the same bytes, or not decodable: an error, the file is the old one
    2  rename <name> to <name>.bak         crash: no file, .bak is the old one, load falls back to it
    3  fsync the folder
    4  rename <name>.tmp to <name>         crash: the new one, or as after 3
    5  fsync the folder                    from here on the new one

So the next load finds the old text or the new one whole, and once persist has returned, the new one; ``.bak`` is always
the generation before. A file that was found damaged does not become ``.bak`` (the good one there would be lost with
it): step 2 keeps it as ``<name>.broken`` for its editor. A ``.tmp`` left by a crash is ignored, as upstream
ignores the ``.tmp`` of its 4.x line; upstream looks at neither.

Processes: only the holder of the store's ``lock`` may persist; any process may load, also meanwhile.
Threads: any; calls on one ConfigFile wait for each other.
"""

from __future__ import annotations

import enum
import errno
import threading
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Generic, TypeVar

from cometmq.errors import DiskFull, PermissionDenied, StorageError
from cometmq.store_config.errors import ConfigError
from cometmq.store_config.fastjson import JsonValue, Layout, encode, loads
from cometmq.store_config.file_ops import SYSTEM_FILE_OPS, FileOps

__all__ = ["NO_FILE", "ConfigFile", "Fingerprint", "Loaded", "Origin", "storage_error"]

T = TypeVar("T")

Fingerprint = tuple[int, int]
"""CRC-32 and length of a file's bytes."""
NO_FILE: Fingerprint = (0, 0)

_BYTES_MAX = 512 * 1024 * 1024
"""Largest file read; the same as the reader's limit of characters."""


_DECODED_BYTES_MAX = 1024 * 1024


class Origin(enum.Enum):
    """Which file a content came from."""

    MAIN = "main"
    BACKUP = "backup"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Loaded(Generic[T]):
    """The result of a load.

    Attributes:
        content: the decoded content; None where neither file holds any (``origin`` NONE): go on with the defaults.
        origin: the file it came from.
        main_problem: why the main file was passed over, or None when it was used, missing or empty. Report it.
        kept_as: name under which the next persist keeps a damaged main file; None without one.
        absent: which file is empty, or missing although it has a ``.bak``; None where the main file was used, or
            neither is there, as at a first start.
    """

    content: T | None
    origin: Origin
    main_problem: ConfigError | None = None
    kept_as: str | None = None
    absent: str | None = None

    @property
    def warning(self) -> str | None:
        """A sentence for the user where the main file was passed over, or its content is lost, else None."""
        used = "its .bak was used" if self.origin is Origin.BACKUP else "there is no .bak, so the defaults were used"
        if self.main_problem is None:
            return None if self.absent is None else f"{self.absent}; {used}"
        return f"{self.main_problem}; {used}; the next write keeps the damaged file as {self.kept_as}"


class _MainFile(enum.Enum):
    """The known state of the main file on disk."""

    UNKNOWN = "not looked at"
    ABSENT = "missing or empty"
    GOOD = "decoded or written here"
    DAMAGED = "cannot be decoded"


class ConfigFile:
    """The pair ``<name>`` and ``<name>.bak``. See the module's text for the rules."""

    def __init__(
        self,
        path: Path,
        *,
        root: Path | None = None,
        file_ops: FileOps = SYSTEM_FILE_OPS,
        bytes_max: int = _BYTES_MAX,
    ) -> None:
        """Nothing is read or created yet.

        Args:
            path: the main file; its folder is created by the first persist.
            root: the file's store, which a persist does not create; None for a file without a store.
            file_ops: the file operations to use.
            bytes_max: largest file that a load accepts.
        """
        self.path = path
        self.backup_path = path.with_name(path.name + ".bak")
        self._new_path = path.with_name(path.name + ".tmp")
        self._broken_path = path.with_name(path.name + ".broken")
        self._root = root
        self._ops = file_ops
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._main = _MainFile.UNKNOWN
        self.fingerprint = NO_FILE
        """Of the bytes that the last load used or the last persist wrote."""

    def load(self, decode: Callable[[JsonValue], T]) -> Loaded[T]:
        """Read and decode the file, or its ``.bak``.

        Args:
            decode: makes the content from the parsed text; raises ConfigError when that cannot be done.

        Raises:
            ConfigError: the file is unusable and ``.bak`` cannot be decoded.
            StorageError: a file is there but cannot be read. No fallback is tried, since the file may be sound.
        """
        with self._lock:
            data = self._read(self.path)
            if not data:
                self._main = _MainFile.ABSENT
                return self._load_backup(decode, None, is_empty=data is not None)
            try:
                content = _decode(data, self.path, decode)
            except ConfigError as problem:
                self._main = _MainFile.DAMAGED
                return self._load_backup(decode, problem)
            self._main = _MainFile.GOOD
            self.fingerprint = _fingerprint(data)
            return Loaded(content, Origin.MAIN)

    def _load_backup(
        self, decode: Callable[[JsonValue], T], main_problem: ConfigError | None, *, is_empty: bool = False
    ) -> Loaded[T]:
        data = self._read(self.backup_path)
        kept_as = None if main_problem is None else self._broken_path.name
        if not data:
            self.fingerprint = NO_FILE
            return Loaded(None, Origin.NONE, main_problem, kept_as, f"{self.path} is empty" if is_empty else None)
        try:
            content = _decode(data, self.backup_path, decode)
        except ConfigError as problem:
            raise self._unusable(decode, main_problem, problem) from problem
        self.fingerprint = _fingerprint(data)
        absent = None if main_problem is not None else f"{self.path} is {'empty' if is_empty else 'missing'}"
        return Loaded(content, Origin.BACKUP, main_problem, kept_as, absent)

    def _unusable(
        self, decode: Callable[[JsonValue], T], main_problem: ConfigError | None, backup_problem: ConfigError
    ) -> ConfigError:
        """Return the error of a start without a readable generation: the cause, and the files to start with."""
        start_empty = f"rm -f {quote(str(self.path))} {quote(str(self.backup_path))}"
        advice = f"To start with the defaults: {start_empty}"
        for copy in (self._new_path, self._broken_path):
            data = self._read(copy)
            if not data:
                continue
            try:
                _decode(data, copy, decode)
            except ConfigError:
                continue
            advice = f"{copy.name} can be read. To start with it: cp {quote(str(copy))} {quote(str(self.path))}"
            break
        problems = "; ".join(problem.message for problem in (main_problem, backup_problem) if problem is not None)
        backup_problem.message = f"{problems}. {advice}"
        backup_problem.args = (backup_problem.message,)
        return backup_problem

    def persist(self, value: JsonValue, *, layout: Layout = Layout.PRETTY) -> None:
        """Make ``value`` the file's content, durably, and keep the one before as ``.bak``.

        Raises:
            InvalidArgument: the value has no form in JSON, or is beyond the reader's limits. Nothing was written.
            StorageError: a step failed (DiskFull or PermissionDenied where that is why). The old content, or the new
                one where only the last step failed, is still there whole, and the same call may be tried again.
        """
        data = encode(value, layout=layout)
        with self._lock:
            try:
                self._persist(data)
            except OSError as error:
                raise storage_error(error, f"cannot write {self.path}") from error
            self.fingerprint = _fingerprint(data)

    def _read_back(self, data: bytes) -> None:
        """Refuse to replace a good generation by one that the next start could not read."""
        written = self._ops.read(self._new_path, bytes_max=self._bytes_max)
        if written != data:
            raise StorageError(f"{self._new_path} does not read back as it was written; {self.path} stays as it was")
        # Beyond this size decoding costs more than a periodic write should; the writer checks the same limits.
        if len(data) <= _DECODED_BYTES_MAX:
            try:
                loads(data)
            except ConfigError as error:
                raise StorageError(f"{error.in_file(self._new_path)}; {self.path} stays as it was") from error

    def _persist(self, data: bytes) -> None:
        folder = self.path.parent
        self._ops.make_folder(folder, root=self._root)
        self._ops.write_synced(self._new_path, data)
        self._read_back(data)
        # If anything fails from here on, the next persist looks at the folder itself.
        known, self._main = self._main, _MainFile.UNKNOWN
        if known is _MainFile.UNKNOWN:
            known = _classify(self._ops.read(self.path, bytes_max=self._bytes_max))
        if known is not _MainFile.ABSENT:
            self._ops.rename(self.path, self.backup_path if known is _MainFile.GOOD else self._broken_path)
            self._ops.sync_folder(folder)
        self._ops.rename(self._new_path, self.path)
        self._ops.sync_folder(folder)
        self._main = _MainFile.GOOD

    def _read(self, path: Path) -> bytes | None:
        try:
            return self._ops.read(path, bytes_max=self._bytes_max)
        except OSError as error:
            raise storage_error(error, f"cannot read {path}") from error


def _decode(data: bytes, path: Path, decode: Callable[[JsonValue], T]) -> T:
    try:
        return decode(loads(data))
    except ConfigError as error:
        raise error.in_file(path) from error


def _fingerprint(data: bytes) -> Fingerprint:
    return zlib.crc32(data), len(data)


def _classify(data: bytes | None) -> _MainFile:
    """Judge a file by its syntax alone, for a persist without a load before it."""
    if not data:
        return _MainFile.ABSENT
    try:
        loads(data)
    except ConfigError:
        return _MainFile.DAMAGED
    return _MainFile.GOOD


def storage_error(error: OSError, action: str) -> StorageError:
    """Turn an OSError into the family's own, with what was being done."""
    kind = StorageError
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        kind = DiskFull
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        kind = PermissionDenied
    return kind(f"{action}: {error.strerror or error}", errno=error.errno)
