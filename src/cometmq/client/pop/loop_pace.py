"""How many messages a loop takes at a time: as many as it works off in a moment.

Messages that a loop has taken and not looked at yet are hidden from others. So it begins with one and takes twice as
many as long as they are done within :data:`MOMENT_S`; slow work is taken message by message, and the rest is left to
other members.
"""

from __future__ import annotations

__all__ = ["MOMENT_S", "LoopPace"]

MOMENT_S = 0.25


class LoopPace:
    """One loop's pace. Not for several threads."""

    def __init__(self, most: int) -> None:
        """Begin with one message; ``most`` is never passed."""
        self._most = most
        self._count = 1

    @property
    def count(self) -> int:
        """How many messages to take now, 1 or more."""
        return self._count

    def worked_off(self, count: int, *, taken_s: float) -> None:
        """Note that ``count`` messages were done in so many seconds. None at all changes nothing."""
        if count:
            fitting = int(count * MOMENT_S / taken_s) if taken_s > 0 else self._most
            self._count = max(1, min(fitting, 2 * count, self._most))
