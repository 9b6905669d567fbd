"""Log lines about retention: the disk's levels, refused appends, deleted segments.

A level is logged once when it is crossed and once when the disk falls back below it.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TypeAlias

from cometmq.store.options import Retention

__all__ = ["Report", "RetentionLog"]

_log = logging.getLogger("cometmq.store")

Report: TypeAlias = tuple[float, int, bool, list[tuple[int, int, bool]], int]
"""As ``StoreHandle.take_retention_report`` returns it."""

_HOUR_MS = 3_600_000
_REFUSING = 3
"""The level above ``warning_ratio``."""


class RetentionLog:
    """Logs the reports of one store. For one thread."""

    def __init__(self, path: Path, retention: Retention | None) -> None:
        """Begin with a disk that has room."""
        self._path = path
        self.retention = retention
        self._level = 0
        self._refuses = False

    def note(self, report: Report) -> None:
        """Log the differences from the last report, and its deletions."""
        used_ratio, level, is_full, deletions, unlisted = report
        if self.retention is not None and level != self._level:
            self._log_levels(self.retention, used_ratio, level)
        self._log_deletions(deletions, unlisted)
        refuses = is_full or level >= _REFUSING
        if refuses != self._refuses:
            self._refuses = refuses
            if refuses:
                _log.warning("appends to %s are refused until its disk has space", self._path)
            else:
                _log.info("appends to %s are accepted again", self._path)

    def _log_levels(self, retention: Retention, used_ratio: float, level: int) -> None:
        names = (
            ("diskMaxUsedSpaceRatio", retention.max_used_ratio, "expired segments are deleted at any hour"),
            (
                "diskSpaceCleanForciblyRatio",
                retention.force_ratio,
                "the oldest segments are deleted whatever their age",
            ),
            ("diskSpaceWarningLevelRatio", retention.warning_ratio, "appends are refused"),
        )
        crossed = range(self._level, level) if level > self._level else range(self._level - 1, level - 1, -1)
        for at in crossed:
            name, ratio, effect = names[at]
            if ratio is None:
                continue
            if level > self._level:
                text = "the disk of %s is %.1f%% full, above %s (%.0f%%): %s"
                _log.warning(text, self._path, used_ratio * 100, name, ratio * 100, effect)
            else:
                text = "the disk of %s is %.1f%% full, no longer above %s (%.0f%%)"
                _log.info(text, self._path, used_ratio * 100, name, ratio * 100)
        self._level = level

    def _log_deletions(self, deletions: list[tuple[int, int, bool]], unlisted: int) -> None:
        for offset, age_ms, is_due in deletions:
            hours = age_ms / _HOUR_MS
            if is_due:
                text = "segment %020d of %s deleted, expired: its last write was %.1f h ago"
                _log.info(text, offset, self._path, hours)
            else:
                text = "segment %020d of %s deleted before it expired, as the disk is too full: "
                _log.warning(text + "its last write was %.1f h ago", offset, self._path, hours)
        if unlisted:
            _log.warning("%d more segments of %s deleted", unlisted, self._path)
