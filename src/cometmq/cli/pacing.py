"""The pace of a command with a rate limit: so many messages a second, evenly.

Threads: one per pace.
"""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Pace"]

_LEAST_SLEEP_S = 0.001
_CATCH_UP_S = 0.1


class Pace:
    """Lets one message after the other pass.

    It catches up after delays, by at most a tenth of a second's worth: a pause makes no burst.
    """

    def __init__(
        self,
        per_second: float | None,
        *,
        sleep: Callable[[float], object] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing has passed yet.

        Args:
            per_second: how many; None for no limit.
            sleep: waits so many seconds, or less.
            clock: seconds.
        """
        self._gap_s = 0.0 if per_second is None else 1 / per_second
        self._sleep = sleep
        self._clock = clock
        self._due_s = clock()

    def wait(self) -> None:
        """Return when the next message may pass."""
        if not self._gap_s:
            return
        now_s = self._clock()
        self._due_s = max(self._due_s, now_s - _CATCH_UP_S)
        if self._due_s - now_s >= _LEAST_SLEEP_S:
            self._sleep(self._due_s - now_s)
        self._due_s += self._gap_s
