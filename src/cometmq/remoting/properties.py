"""Makes room among a message's properties for those of its next try.

A stored message has at most 32,767 bytes of properties. One that is nearly full of them could not be sent back, sent
again or given up, since each of these adds some; its queue's progress would stop there for good. So the longest ones of
its sender go, and the log names them. Properties that brokers and clients need stay.

Threads: any; nothing is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["PROPERTIES_BYTES_MAX", "PROPERTIES_ROOM_BYTES", "properties_that_fit"]

PROPERTIES_BYTES_MAX: Final = 32_767
PROPERTIES_ROOM_BYTES: Final = 512
"""For what brokers add themselves, as the topic behind a delay."""

_NEEDED: Final = frozenset(
    {"DELAY", "MAX_RECONSUME_TIMES", "ORIGIN_MESSAGE_ID", "RECONSUME_TIME", "RETRY_TOPIC", "UNIQ_KEY", "WAIT"}
)
_LAST: Final = frozenset({"KEYS", "TAGS", "__SHARDINGKEY"})
"""Senders' properties that more than a listener reads: they go only where nothing else is left."""


def properties_that_fit(properties: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Drop the longest properties until the rest fit; return the rest and the names of the dropped ones."""
    kept = dict(properties)
    sizes = {name: len(name.encode()) + len(value.encode()) + 2 for name, value in kept.items()}
    over = sum(sizes.values()) - (PROPERTIES_BYTES_MAX - PROPERTIES_ROOM_BYTES)
    gone: list[str] = []
    for name in sorted(sizes.keys() - _NEEDED, key=lambda name: (name in _LAST, -sizes[name])):
        if over <= 0:
            break
        over -= sizes[name]
        gone.append(name)
        del kept[name]
    return kept, gone
