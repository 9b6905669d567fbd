"""The file in which settings that were changed at run time last: the one of ``--config``, as in upstream, or without
one ``cometmq/broker.properties`` in the store, which the next start without ``--config`` reads.

Only the changed settings' lines are written; comments and everything else stay. The new content goes into a temporary
file, is read back, decoded and compared, and replaces the old one by a rename, so that a crash leaves one of the two
whole. The file is read again for each change, since an operator may have edited it, and once more before the rename: an
edit that came meanwhile is kept. One in the microseconds between that and the rename is lost.

Threads: any; one change at a time (the caller's lock).
"""

from __future__ import annotations

import copy
import json
import os
import re
import secrets
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from cometmq.errors import InvalidArgument, StorageError
from cometmq.store_config.broker_properties import parse_broker_properties
from cometmq.store_config.config_file import storage_error
from cometmq.store_config.errors import SettingError
from cometmq.store_config.file_ops import SYSTEM_FILE_OPS, FileOps
from cometmq.store_config.java_properties import with_values
from cometmq.store_config.setting_names import OPTIONS, UPSTREAM_NAMES, find_setting
from cometmq.store_config.setting_options import SettingValue, setting_text
from cometmq.store_config.setting_sources import parse_toml

__all__ = ["SettingsFile", "edited_properties", "edited_toml"]

_BYTES_MAX = 16 * 1024 * 1024
_TRIES = 10
_TOML_HEADER = re.compile(r"\s*\[\s*([A-Za-z0-9_-]+)\s*\]\s*(?:#.*)?")
_TOML_VALUE = re.compile(
    r"""(\s*"?)([A-Za-z0-9_-]+)("?\s*=\s*)(?:true|false|[+-]?[0-9][0-9_]*|"[^"\\]*"|'[^']*')(\s*(?:\#.*)?)"""
)
_TOML_TABLES = ("", "store", "broker")
"""Where a ``cometmq.toml`` has a broker's settings; the first is the top."""


class SettingsFile:
    """Where one broker's changed settings last."""

    def __init__(self, path: Path, *, may_create: bool, file_ops: FileOps = SYSTEM_FILE_OPS) -> None:
        """Nothing is read or written yet.

        Args:
            path: a ``.properties`` file, or a ``.toml`` one.
            may_create: make it with the first change; else it must be there, with all that the operator wrote.
            file_ops: the file operations to use.
        """
        self.path = path
        self._may_create = may_create
        self._ops = file_ops

    def save(self, values: Mapping[str, SettingValue]) -> None:
        """Make the next start find these settings, by the names of their fields.

        Raises:
            StorageError: the file cannot be read or written, or is gone.
            InvalidArgument: it has a form in which a setting cannot be replaced safely. It stays as it is.
        """
        path = Path(os.path.realpath(self.path))  # of a link the target is replaced, and the link stays
        try:
            self._save(path, values)
        except StorageError:
            raise
        except OSError as error:
            raise storage_error(error, f"cannot write {path}") from error

    def _save(self, path: Path, values: Mapping[str, SettingValue]) -> None:
        for _ in range(_TRIES):
            if self._replace(path, values):
                self._ops.sync_folder(path.parent)
                return
        raise StorageError(f"cannot write {path}: it changes again and again; it stays as it is")

    def _replace(self, path: Path, values: Mapping[str, SettingValue]) -> bool:
        """Return False where the file changed meanwhile, and is as somebody else left it."""
        old = self._ops.read(path, bytes_max=_BYTES_MAX)
        if old is None and not self._may_create:
            raise StorageError(f"cannot write {path}: it is no longer there")
        edited = edited_toml if path.suffix == ".toml" else edited_properties
        data = edited(old or b"", values, path)
        # Of a name that nobody knows: two brokers may share the file, and nobody puts a link there.
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
        self._ops.make_folder(path.parent)
        try:
            _make_private(temporary)
            self._ops.write_synced(temporary, data)
            if old is not None:
                _take_owner_and_mode(path, temporary)
            if self._ops.read(temporary, bytes_max=_BYTES_MAX) != data:
                raise StorageError(f"{temporary} does not read back as it was written; {path} stays as it was")
            is_same = self._ops.read(path, bytes_max=_BYTES_MAX) == old
            if is_same:
                self._ops.rename(temporary, path)
            else:
                self._ops.remove(temporary)
        except BaseException:
            with suppress(OSError):
                self._ops.remove(temporary)
            raise
        return is_same


def _make_private(path: Path) -> None:
    """Make a file that only this user reads: settings may be secrets, and a crash may leave it."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))


def _take_owner_and_mode(old: Path, new: Path) -> None:
    info = old.stat()
    descriptor = os.open(new, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with suppress(PermissionError):  # it can be read by this process all the same
            os.fchown(descriptor, info.st_uid, info.st_gid)
        os.fchmod(descriptor, stat.S_IMODE(info.st_mode))
    finally:
        os.close(descriptor)


def edited_properties(data: bytes, values: Mapping[str, SettingValue], path: Path) -> bytes:
    """Return a ``broker.properties`` with other values.

    Raises:
        InvalidArgument: the file does not decode, or not to these values.
    """
    texts = {OPTIONS[field].upstream_name: setting_text(value) for field, value in values.items()}
    before = parse_broker_properties(data, source=str(path))
    edited = with_values(data, texts, setting_of=_upstream_name)
    after = parse_broker_properties(edited, source=str(path))
    wanted = {name: given.value for name, given in before.settings.items()} | dict(values)
    found = {name: given.value for name, given in after.settings.items()}
    if found != wanted or (after.unused, after.unknown) != (before.unused, before.unknown):
        raise _unsafe(path, values)
    return edited


def _upstream_name(key: str) -> str | None:
    field = UPSTREAM_NAMES.get(key)
    return None if field is None else OPTIONS[field].upstream_name


def edited_toml(data: bytes, values: Mapping[str, SettingValue], path: Path) -> bytes:
    """Return a ``cometmq.toml`` with other values.

    A setting that it does not have goes into its table ``[broker]``, or before its first table.

    Raises:
        InvalidArgument: the file does not decode, or not to these values.
    """
    wanted = copy.deepcopy(parse_toml(data, path))
    lines = data.decode("utf-8").split("\n")
    missing = dict(values)
    table = ""
    insert_at, insert_into = None, ""
    for number, line in enumerate(lines):
        header = _TOML_HEADER.fullmatch(line)
        if header is not None or line.lstrip().startswith("["):
            table = "" if header is None else header.group(1)
            if insert_at is None:
                insert_at = number
            if table == "broker":
                insert_at, insert_into = number + 1, table
            table = table or "[]"
            continue
        found = _TOML_VALUE.fullmatch(line) if table in _TOML_TABLES else None
        field = None if found is None else find_setting(found.group(2))
        if found is not None and field in missing:
            value = missing.pop(field)
            lines[number] = f"{found.group(1)}{found.group(2)}{found.group(3)}{_toml_text(value)}{found.group(4)}"
            _table(wanted, table)[found.group(2)] = _toml_value(value)
    added = {OPTIONS[field].upstream_name: value for field, value in missing.items()}
    at = len(lines) - 1 if insert_at is None and not lines[-1] else len(lines) if insert_at is None else insert_at
    lines[at:at] = [f"{name} = {_toml_text(value)}" for name, value in added.items()]
    _table(wanted, insert_into).update({name: _toml_value(value) for name, value in added.items()})
    edited = "\n".join(lines).encode("utf-8")
    try:
        is_as_wanted = parse_toml(edited, path) == wanted
    except SettingError:
        is_as_wanted = False
    if not is_as_wanted:
        raise _unsafe(path, values)
    return edited


def _table(content: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = content[name] if name else content
    return found


def _toml_value(value: SettingValue) -> object:
    return value if isinstance(value, int | bool) else setting_text(value)


def _toml_text(value: SettingValue) -> str:
    plain = _toml_value(value)
    return setting_text(plain) if isinstance(plain, int) else json.dumps(plain)


def _unsafe(path: Path, values: Mapping[str, SettingValue]) -> InvalidArgument:
    lines = ", ".join(f"{OPTIONS[field].upstream_name}={setting_text(value)}" for field, value in values.items())
    return InvalidArgument(f"cannot edit {path} safely: set {lines} there by hand")
