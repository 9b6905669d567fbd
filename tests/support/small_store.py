"""Stores for tests of the Python surface: small files, so that a test makes several of each in a moment."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import cometmq

__all__ = ["SMALL", "open_small", "pretend_newer", "spoil"]

SMALL: dict[str, object] = {
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 20 * 1000,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
    "maxMessageSize": 300_000,
}


def open_small(path: Path, **options: Any) -> cometmq.Store:
    """Open a store with small files; asynchronous flush unless asked otherwise, since few tests are about the disk."""
    return cometmq.open(path, **{"settings": SMALL, "flush": "async", **options})


def spoil(path: Path, topic: str, queue: int, offset: int) -> int:
    """Spoil a message's record in the log of a small store that nobody has open; returns its physical offset."""
    with open_small(path, mode="r") as store:
        physical = store.get(topic, queue, offset).physical_offset
    segment = 1 << 20
    with (path / "commitlog" / f"{physical - physical % segment:020d}").open("r+b") as file:
        file.seek(physical % segment + 4)
        file.write(b"\0\0\0\0")
    return physical


def pretend_newer(path: Path, *, older_may_use: bool) -> None:
    """Give a closed store's durable point a newer version (its layout: csrc/store/marks/cmq_durable_point.c)."""
    with (path / "cometmq" / "point").open("r+b") as file:
        for slot in (0, 4096):
            file.seek(slot)
            head = bytearray(file.read(24))
            (flags,) = struct.unpack_from(">I", head, 12)
            struct.pack_into(">II", head, 8, 99, flags | (0 if older_may_use else 16))
            file.seek(slot)
            file.write(head)
            file.seek(slot + 180)
            file.write(struct.pack(">I", zlib.crc32(head)))
