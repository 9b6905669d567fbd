"""Progress of the delay levels: ``delayOffset.json``, and a mark beside it that makes a crash deliver nothing twice.

Upstream writes the progress every ten seconds, so that a crash delivers up to ten seconds of delayed messages again.
The mark (``cometmq/delay.json``) says where the log ended when the progress held: messages delivered into the log
behind that place are not delivered again. Absent, damaged or of another progress, it is passed over, and delivery is at
least once as upstream's.

Threads: any; :meth:`BrokerDelays.persist` takes one after the other. Waits for the disk.
Source: store specification 9.1 to 9.3.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import cast

from cometmq._engine import crc31
from cometmq.broker.plane import DataPlane, DelayMark
from cometmq.errors import OffsetOutOfRange
from cometmq.remoting.answers import Caller, Table, ok
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import Command
from cometmq.store_config.config_file import storage_error
from cometmq.store_config.data_version import wall_clock_ms
from cometmq.store_config.delay_offsets import DelayOffsets
from cometmq.store_config.fastjson import JsonObject, Layout, encode
from cometmq.store_config.file_ops import SYSTEM_FILE_OPS, FileOps
from cometmq.store_config.own_json import loads_own

__all__ = ["BrokerDelays"]

_log = logging.getLogger("cometmq.broker.delays")

_MARK_FORMAT = 1
_MARK_BYTES_MAX = 1 << 20


class BrokerDelays:
    """The delay levels of one broker."""

    def __init__(
        self,
        root: Path,
        plane: DataPlane,
        *,
        file_ops: FileOps = SYSTEM_FILE_OPS,
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        """Read ``delayOffset.json``.

        Args:
            root: the store.
            plane: the loops, and the service that delivers.
            file_ops, now_ms: files and time.

        Raises:
            ConfigError: the file cannot be used, nor its ``.bak``.
        """
        self._table = DelayOffsets(root / "config", file_ops=file_ops, now_ms=now_ms)
        self._mark_path = root / "cometmq" / "delay.json"
        self._plane = plane
        self._ops = file_ops
        self._version = 0
        self._writing = threading.Lock()
        warning = self._table.load().warning
        if warning is not None:
            _log.error("damaged file passed over", extra={"error": warning})

    def start(self) -> None:
        """Set where each level goes on, and begin to deliver."""
        stored = self._table.all()
        for level, offset in stored.items():
            if level >= 1 and offset >= 0:
                self._plane.set_delay_progress(level, offset)
        mark = self._read_mark()
        if mark is not None and dict(mark.offsets) == stored:
            try:
                moved = self._plane.recover_delay(mark.log_end)
                if moved:
                    _log.info("delayed messages found delivered", extra={"count": moved})
            except OffsetOutOfRange:
                _log.info("delay mark is of another log, passed over")
        self._plane.start_delay()
        self._version = self._plane.delay_version()

    def stop(self) -> None:
        """End delivering, and write the progress down."""
        self._plane.stop_delay()
        self.persist()

    def persist(self) -> None:
        """Write the progress down where it changed, and the mark.

        Raises:
            StorageError: one could not be written; the next call tries again.
        """
        # The broker's end may meet the last run of its job; a mark belongs to the progress that was written with it.
        with self._writing:
            mark = self._plane.delay_mark()
            version = self._plane.delay_version()
            self._table.merge(mark.offsets, versions=version - self._version)
            self._version = version
            if self._table.persist():
                self._write_mark(DelayMark(mark.log_end, self._table.all()))

    def _write_mark(self, mark: DelayMark) -> None:
        content = {"format": _MARK_FORMAT, "log_end": mark.log_end, "offsets": dict(mark.offsets)}
        body = json.dumps(content, sort_keys=True).encode()
        new = self._mark_path.with_name(self._mark_path.name + ".tmp")
        try:
            self._ops.make_folder(self._mark_path.parent, root=self._mark_path.parent.parent)
            self._ops.write_synced(new, b"%08x %s\n" % (crc31(body), body))
            self._ops.rename(new, self._mark_path)
        except OSError as error:
            raise storage_error(error, f"cannot write {self._mark_path}") from error

    def _read_mark(self) -> DelayMark | None:
        try:
            data = self._ops.read(self._mark_path, bytes_max=_MARK_BYTES_MAX)
        except OSError as error:
            _log.warning("delay mark cannot be read", extra={"error": str(error)})
            return None
        if not data:
            return None
        crc, _, body = data.rstrip(b"\n").partition(b" ")
        try:
            content = loads_own(body)
            if int(crc, 16) == crc31(body) and content["format"] == _MARK_FORMAT:
                offsets = {int(level): int(offset) for level, offset in content["offsets"].items()}
                return DelayMark(int(content["log_end"]), offsets)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            extra = {"path": self._mark_path, "error": str(error)}
            _log.warning("delay mark is damaged, passed over", extra=extra)
            return None
        _log.info("delay mark is of another version or damaged, passed over")
        return None

    # --- Requests

    def handlers(self) -> Table:
        """Return what this part serves."""
        return {RequestCode.GET_ALL_DELAY_OFFSET: self._show}

    def _show(self, request: Command, caller: Caller) -> Command:
        # Not taken over into the table, which has what a mark held: that waits for the disk, and a look must not.
        now = cast("JsonObject", self._table.all() | dict(self._plane.delay_progress()))
        return ok(request, body=encode({**self._table.encode(), "offsetTable": now}, layout=Layout.COMPACT))
