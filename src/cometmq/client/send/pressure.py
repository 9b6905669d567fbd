"""Back-pressure for sends that nobody waits for: at most so many under way, and at most so many bytes of bodies.

Sends without room wait in a fair line: a thread blocks, and a loop is called back. A send that leaves lets in the one
at its head; a message longer than all the room there is goes alone.

Thread safety: any thread. Source: consumption specification 2.8.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Lock

from cometmq.errors import LimitReached

__all__ = ["BackPressure", "PlaceInLine", "no_room"]


class PlaceInLine:
    """A send that waits for room.

    Attributes:
        needed: the bytes that are wanted, to be given back with :meth:`BackPressure.leave`.
    """

    __slots__ = ("let_in", "needed")

    def __init__(self, needed: int, let_in: Callable[[], object]) -> None:
        """Keep what is wanted, and what is called when it is there."""
        self.needed = needed
        self.let_in = let_in


class BackPressure:
    """Counts what is under way."""

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        """Nothing is under way."""
        self._messages_left = messages_max
        self._bytes_max = bytes_max
        self._bytes_left = bytes_max
        self._lock = Lock()
        self._line: deque[PlaceInLine] = deque()

    def enter(self, body_bytes: int, *, timeout_s: float) -> int:
        """Wait for room for a body; return the bytes to give back with :meth:`leave`.

        Raises:
            LimitReached: there was none in time.
        """
        gate = Lock()
        gate.acquire()
        place = self.stand_in_line(body_bytes, gate.release)
        try:
            if gate.acquire(timeout=max(timeout_s, 0.0)):
                return place.needed
        except BaseException:  # Ctrl-C; a send that was let in meanwhile leaves again
            if not self.step_out(place):
                self.leave(place.needed)
            raise
        if self.step_out(place):
            raise no_room(timeout_s)
        return place.needed

    def stand_in_line(self, body_bytes: int, let_in: Callable[[], object]) -> PlaceInLine:
        """Have ``let_in()`` called once when there is room for a body, at once where there is.

        It is called by the thread that made room, or by this one, with the line held: it only passes the word on.
        """
        place = PlaceInLine(min(max(body_bytes, 1), self._bytes_max), let_in)
        with self._lock:
            self._line.append(place)
            self._admit()
        return place

    def step_out(self, place: PlaceInLine) -> bool:
        """Wait no longer; False where it was let in before."""
        with self._lock:
            if place not in self._line:
                return False
            self._line.remove(place)
            self._admit()
            return True

    def leave(self, needed: int) -> None:
        """Give room back, and let in those that waited longest."""
        with self._lock:
            self._messages_left += 1
            self._bytes_left += needed
            self._admit()

    def _admit(self) -> None:
        while self._line and self._messages_left > 0 and self._line[0].needed <= self._bytes_left:
            place = self._line.popleft()
            self._messages_left -= 1
            self._bytes_left -= place.needed
            place.let_in()

    def __repr__(self) -> str:
        """Return the room left."""
        return f"BackPressure({self._messages_left} messages, {self._bytes_left} bytes left, {len(self._line)} wait)"


def no_room(waited_s: float) -> LimitReached:
    """Make the error of who waited for room in vain."""
    when = f"within {waited_s * 1000:.0f} ms" if waited_s > 0 else "now, and on the event loop nobody waits for it"
    return LimitReached(
        f"no room for a message {when}: as many are under way as back_pressure_for_async_send_num and "
        "back_pressure_for_async_send_size_bytes allow"
    )
