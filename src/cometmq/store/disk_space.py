"""The use of a disk as ``df`` prints it, and as retention's ratios (``cmq_disk_used_ratio`` in the engine) mean it.

Blocks that the file system reserves for root count neither as used nor as available.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

__all__ = ["DiskSpace", "disk_space"]


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """The space of one disk, in bytes.

    Attributes:
        total: its size, reserved space included.
        used: bytes in use.
        available: bytes that a process without privileges may still take.
    """

    total: int
    used: int
    available: int

    @property
    def used_ratio(self) -> float:
        """Used share of the space that is not reserved, 0 to 1."""
        whole = self.used + self.available
        return self.used / whole if whole else 0.0

    def left_below(self, ratio: float) -> int:
        """Return how many bytes can be taken before the used ratio exceeds ``ratio``."""
        return max(min(self.available, int(ratio * (self.used + self.available)) - self.used), 0)


def disk_space(folder: Path) -> DiskSpace:
    """Return the space of the disk that holds a folder.

    Raises:
        OSError: the folder is not there.
    """
    disk = os.statvfs(folder)
    return DiskSpace(
        total=disk.f_blocks * disk.f_frsize,
        used=(disk.f_blocks - disk.f_bfree) * disk.f_frsize,
        available=disk.f_bavail * disk.f_frsize,
    )
