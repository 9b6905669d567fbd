"""The outcome of a test does not depend on how full the disk is on which it runs.

Above 75 % a broker logs warnings and deletes expired segments at any hour, above 85 % it deletes segments that have
not expired, above 90 % it refuses appends. Brokers of tests begin at the highest ratio that can be set, unless the
ratios are their subject; on a disk fuller than that no test starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import cometmq
from cometmq.store.disk_space import disk_space

__all__ = ["ANY_DISK", "retention_on_request", "why_too_full"]

_USED_PERCENT_MAX = 95
"""The upper bound of the setting."""

ANY_DISK: Mapping[str, str] = {"COMETMQ_DISK_MAX_USED_SPACE_RATIO": str(_USED_PERCENT_MAX)}
"""An environment for a broker's settings; the other ratios are never below this one."""


def retention_on_request(hours: float) -> cometmq.Retention:
    """Return a retention under which only ``expire`` deletes segments, whatever the disk and the hour of the day."""
    return cometmq.Retention(reserved_hours=hours, delete_hours=(), max_used_ratio=1, force_ratio=1, warning_ratio=1)


def why_too_full(folder: Path) -> str | None:
    """Return a message if the disk of a folder is too full for tests."""
    used = disk_space(folder).used_ratio
    if used < _USED_PERCENT_MAX / 100:
        return None
    return (
        f"the disk of {folder} is {used:.1%} full, tests need it below {_USED_PERCENT_MAX}%: free space or set TMPDIR"
    )
