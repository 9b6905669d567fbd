"""Stores for tests of the Python surface: small files, so that a test makes several of each in a moment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cometmq

__all__ = ["SMALL", "open_small"]

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
