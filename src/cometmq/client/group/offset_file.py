"""``offsets.json``: the progress of a broadcasting consumer on its own machine, in upstream's form.

The keys of its table are bare objects, ``{"brokerName":…,"queueId":…,"topic":…}:30``, as upstream's JSON library writes
them. How it is written so that no crash or full disk loses a generation, and what ``offsets.json.bak`` is for, says
:mod:`cometmq.store_config.config_file`.

Processes: members of a broadcasting group on one machine share the file where they share the client id, which is the
default. Each change reads what is there, lays its own queues over it and writes, under a lock of the file system; Java
clients take no such lock. Threads: any.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

from cometmq.client.group.subscriptions import queue_order
from cometmq.errors import InvalidArgument
from cometmq.remoting.bodies.body import INT64, MapCodec
from cometmq.remoting.bodies.message_queue import MESSAGE_QUEUE, MessageQueue
from cometmq.store_config.config_file import ConfigFile, storage_error
from cometmq.store_config.fastjson import JsonValue
from cometmq.store_config.fields import Fields
from cometmq.store_config.file_ops import SYSTEM_FILE_OPS, FileOps

__all__ = ["OffsetFile", "offset_path"]

_log = logging.getLogger(__name__)

_BYTES_MAX = 64 << 20
_MEMBER = "offsetTable"
_TABLE: MapCodec[MessageQueue, int] = MapCodec(MESSAGE_QUEUE, INT64)
_DEFAULT_FOLDER = ".rocketmq_offsets"


def offset_path(folder: Path | str | None, *, client_id: str, group: str) -> Path:
    """Return where a consumer's file lies.

    Args:
        folder: the folder of all such files; None for ``.rocketmq_offsets`` in the user's home.
        client_id: the client's id.
        group: its group.

    Raises:
        InvalidArgument: id or group cannot be the name of a folder.
    """
    for what, name in (("client id", client_id), ("group", group)):
        if not name or name in (".", "..") or "/" in name or "\0" in name:
            raise InvalidArgument(f"the {what} {name!r} cannot name the folder of the offset file: change it")
    base = Path.home() / _DEFAULT_FOLDER if folder is None else Path(folder)
    return base / client_id / group / "offsets.json"


class OffsetFile:
    """One such file and its ``.bak``."""

    def __init__(self, path: Path, *, file_ops: FileOps = SYSTEM_FILE_OPS) -> None:
        """Nothing is read or created yet.

        Args:
            path: the file; :func:`offset_path` has upstream's place for it.
            file_ops: the file operations to use.
        """
        self.path = path
        self._ops = file_ops
        self._file = ConfigFile(path, file_ops=file_ops, bytes_max=_BYTES_MAX)

    def read(self) -> dict[MessageQueue, int]:
        """Return the stored offsets, nothing without a file. A file that is damaged gives way to its ``.bak``.

        Raises:
            ConfigError: the file and its ``.bak`` are both damaged.
            StorageError: a file is there and cannot be read.
        """
        loaded = self._file.load(_decode)
        if loaded.warning is not None:
            _log.warning("%s", loaded.warning)
        return loaded.content or {}

    def merge(self, changes: Mapping[MessageQueue, int]) -> None:
        """Lay these offsets over what is stored, durably. Nothing is lost where it fails; try again.

        Raises:
            StorageError: a step failed (DiskFull or PermissionDenied where that is why).
            ConfigError: as :meth:`read`.
        """
        with self._locked():
            merged = {**self.read(), **changes}
            in_order = {queue: merged[queue] for queue in sorted(merged, key=queue_order)}
            self._file.persist({_MEMBER: _TABLE.write(in_order)})

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        path = self.path.with_name(self.path.name + ".lock")
        with contextlib.ExitStack() as stack:
            try:
                self._ops.make_folder(path.parent)
                file = stack.enter_context(path.open("ab"))
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError as error:
                raise storage_error(error, f"cannot lock {path}") from error
            yield


def _decode(value: JsonValue) -> dict[MessageQueue, int]:
    return dict(_TABLE.read(Fields(value), _MEMBER) or {})
