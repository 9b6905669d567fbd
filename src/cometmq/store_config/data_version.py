"""The ``dataVersion`` member of most files: how often and when the content changed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from cometmq.store_config.fastjson import JsonKey, JsonObject, JsonValue, bean
from cometmq.store_config.fields import Fields

__all__ = ["DataVersion", "wall_clock_ms"]


def wall_clock_ms() -> int:
    """Milliseconds since the Unix epoch."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True, order=False)
class DataVersion:
    """A version of a file's content.

    Attributes:
        state_version: the master's epoch in controller mode, else 0. Not in files of the 4.x line.
        counter: number of changes.
        timestamp_ms: time of the last change.
        unknown: members that this version of CometMQ does not know; kept when the file is written again.
    """

    state_version: int = 0
    counter: int = 0
    timestamp_ms: int = 0
    unknown: Mapping[JsonKey, JsonValue] = field(default_factory=dict, compare=False)

    @staticmethod
    def first(now_ms: int) -> DataVersion:
        """Return the version of a content that never changed."""
        return DataVersion(timestamp_ms=now_ms)

    def next(self, now_ms: int, *, state_version: int = 0) -> DataVersion:
        """Return the version after one more change."""
        return replace(self, state_version=state_version, counter=self.counter + 1, timestamp_ms=now_ms)

    def is_newer_than(self, other: DataVersion) -> bool:
        """Compare as upstream does: state version, then counter, then time."""
        mine = (self.state_version, self.counter, self.timestamp_ms)
        return mine > (other.state_version, other.counter, other.timestamp_ms)

    @staticmethod
    def decode(fields: Fields | None, *, now_ms: int) -> DataVersion:
        """Read the member; where it is missing (4.x files) the content counts as never changed."""
        if fields is None:
            return DataVersion.first(now_ms)
        return DataVersion(
            state_version=fields.int64("stateVersion", 0),
            counter=fields.int64("counter", 0),
            timestamp_ms=fields.int64("timestamp", now_ms),
            unknown=fields.others(("stateVersion", "counter", "timestamp")),
        )

    def encode(self) -> JsonObject:
        """Return the members as upstream writes them."""
        known: dict[str, JsonValue] = {
            "counter": self.counter,
            "stateVersion": self.state_version,
            "timestamp": self.timestamp_ms,
        }
        return bean(known, self.unknown)
