"""Parts of a store of RocketMQ 5.4 and newer that CometMQ does not read: timers and transactions in RocksDB, snapshots.

Messages of such a store are read like those of any other. But a broker that serves it would lose the timers that are
pending there, or deliver them a second time, and would never finish its transactions.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from cometmq.errors import NotAStore

__all__ = ["refuse_newer_parts", "unread_parts"]

_FOLDER = "rocksdbstore"
_FAMILIES = {
    b"timer": "timers (timerRocksDBEnable)",
    b"trans": "transactions (transRocksDBEnable)",
}
"""Column families by name; the default one has index entries, which the log has as well."""
_TAIL_BYTES = 65_536
"""The end of a table file, where its properties are."""
_SNAPSHOT = re.compile(r"timerwheel\.\d+")


def _families_of(table: Path) -> set[bytes]:
    """Return the names of the column families that the properties at the end of a table file may mean."""
    with table.open("rb") as file:
        file.seek(max(os.fstat(file.fileno()).st_size - _TAIL_BYTES, 0))
        end = file.read()
    properties = end[max(end.rfind(b"rocksdb.block.based.table"), 0) :]
    return {name for name in _FAMILIES if b"name" + name in properties}


def unread_parts(root: Path) -> list[str]:
    """Return descriptions of what a broker of the store would miss: none for a store without such parts."""
    found: list[str] = []
    try:
        names = sorted(entry.name for entry in root.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return found
    snapshots = [name for name in names if _SNAPSHOT.fullmatch(name)]
    if snapshots:
        found.append(f"{root / snapshots[-1]} is a snapshot of the timer wheel (timerWheelSnapshotFlush)")
    folder = root / _FOLDER
    if _FOLDER not in names or not folder.is_dir():
        return found
    files = sorted(folder.iterdir())
    families = set().union(*(_families_of(file) for file in files if file.suffix == ".sst"))
    if any(file.suffix == ".log" and file.stat().st_size > 0 for file in files):
        found.append(f"{folder} was not closed, and may have timers and transactions")
    elif families:
        found.append(f"{folder} has {' and '.join(_FAMILIES[name] for name in sorted(families))}")
    return found


def refuse_newer_parts(root: Path) -> None:
    """Refuse to serve a store that has such parts.

    Raises:
        NotAStore: it has; the text names them.
    """
    parts = unread_parts(root)
    if parts:
        raise NotAStore(
            f"{'; '.join(parts)}: CometMQ does not read it, and would lose what is pending there. Let its RocketMQ "
            "broker run until nothing is pending, stop it, and move these files away"
        )
