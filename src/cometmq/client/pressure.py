"""Back-pressure for sends that nobody waits for: at most so many under way, and at most so many bytes of bodies.

Who finds no room waits in a fair line. The one at its head is let in by whoever leaves; a message longer than all the
room there is goes alone.

Thread safety: any thread. Source: consumption specification 2.8.
"""

from __future__ import annotations

from collections import deque
from threading import Lock

from cometmq.errors import LimitReached

__all__ = ["BackPressure"]


class BackPressure:
    """Counts what is under way."""

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        """Nothing is under way."""
        self._messages_left = messages_max
        self._bytes_max = bytes_max
        self._bytes_left = bytes_max
        self._lock = Lock()
        # Who waits: the bytes that are wanted, and a lock that is let go when they are there.
        self._line: deque[tuple[int, Lock]] = deque()

    def _needed(self, body_bytes: int) -> int:
        return min(max(body_bytes, 1), self._bytes_max)

    def enter(self, body_bytes: int, *, timeout_s: float) -> int:
        """Wait for room for a body; return the bytes to give back with :meth:`leave`.

        Raises:
            LimitReached: there was none in time.
        """
        needed = self._needed(body_bytes)
        with self._lock:
            if not self._line and self._messages_left > 0 and needed <= self._bytes_left:
                self._messages_left -= 1
                self._bytes_left -= needed
                return needed
            gate = Lock()
            gate.acquire()
            entry = (needed, gate)
            self._line.append(entry)
        try:
            if gate.acquire(timeout=max(timeout_s, 0.0)):
                return needed
        except BaseException:  # Ctrl-C; what was let in meanwhile goes again
            if not self._step_out(entry):
                self.leave(needed)
            raise
        if self._step_out(entry):
            raise LimitReached(
                f"no room for a message within {timeout_s * 1000:.0f} ms: as many are under way as "
                "back_pressure_for_async_send_num and back_pressure_for_async_send_size_bytes allow"
            )
        return needed

    def _step_out(self, entry: tuple[int, Lock]) -> bool:
        """Wait no longer; False where the entry was let in before."""
        with self._lock:
            if entry not in self._line:
                return False
            self._line.remove(entry)
            self._admit()
            return True

    def leave(self, needed: int) -> None:
        """Give room back, and let in who has waited longest."""
        with self._lock:
            self._messages_left += 1
            self._bytes_left += needed
            self._admit()

    def _admit(self) -> None:
        while self._line and self._messages_left > 0 and self._line[0][0] <= self._bytes_left:
            needed, gate = self._line.popleft()
            self._messages_left -= 1
            self._bytes_left -= needed
            gate.release()

    def __repr__(self) -> str:
        """Tell what is left."""
        return f"BackPressure({self._messages_left} messages, {self._bytes_left} bytes left, {len(self._line)} wait)"
