"""Bytes that recovery cut off the log and kept: ``cometmq/removed``; see ``csrc/store/recover/cmq_removed.h``."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cometmq._plural import counted
from cometmq.store_config.file_ops import SYSTEM_FILE_OPS

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["RemovedCut", "RestoreReport", "removed_cuts"]

_HEADER = struct.Struct(">QIIqqIIqqq56sII")
_MAGIC = 0x434D5152454D4F56
_VERSION = 1
_UNFINISHED = 1
_CUT_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedCut:
    """Whole records that recovery cut off the log and kept.

    Attributes:
        name: of the folder under ``cometmq/removed``: the UTC time of the cut.
        physical_offset: where the log was cut.
        records: whole records behind that place.
        removed_ms: time of the cut, in milliseconds since the epoch.
        reason: why the bytes at the cut were not a whole record.
        restored: the records were appended again.
    """

    name: str
    physical_offset: int
    records: int
    removed_ms: int
    reason: str
    restored: bool

    @property
    def text(self) -> str:
        """One sentence for people."""
        return (
            f"recovery cut {counted(self.records, 'whole record')} at physical offset {self.physical_offset:,} "
            f"({self.reason}) and kept them in cometmq/removed/{self.name}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreReport:
    """The result of restoring a folder under ``cometmq/removed``.

    Attributes:
        name: the folder.
        records: records that were appended again, at the ends of their queues.
        doubtful: records whose topic or properties may have lost a sector; left out.
        unfinished: records of transactions that were never committed; left out.
        refused: records that the store does not take …
        refusal: … and the last of these errors.
        already: the folder was restored before, and nothing was done.
    """

    name: str
    records: int
    doubtful: int
    unfinished: int
    refused: int
    refusal: str | None
    already: bool


def removed_cuts(store_path: Path) -> tuple[RemovedCut, ...]:
    """Return what recovery kept, oldest first. Folders that a repair left are not among them."""
    found = []
    for folder in sorted((store_path / "cometmq" / "removed").glob("*")):
        try:
            content = SYSTEM_FILE_OPS.read(folder / "cut", bytes_max=_CUT_BYTES_MAX) or b""
        except OSError:
            continue
        if len(content) < _HEADER.size or zlib.crc32(content[: _HEADER.size - 4]) != _HEADER.unpack_from(content)[-1]:
            continue
        magic, version, flags, offset, _, _, _, _, records, removed_ms, reason, _, _ = _HEADER.unpack_from(content)
        if magic != _MAGIC or version != _VERSION or flags & _UNFINISHED:
            continue
        found.append(
            RemovedCut(
                name=folder.name,
                physical_offset=offset,
                records=records,
                removed_ms=removed_ms,
                reason=reason.rstrip(b"\0").decode("utf-8", "replace"),
                restored=(folder / "restored").exists(),
            )
        )
    return tuple(found)
