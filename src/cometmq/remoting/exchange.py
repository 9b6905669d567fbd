"""The client's end of one connection, without the connection: bytes in, answers and requests out.

Numbers requests, matches answers with their waiters, cuts received bytes into frames. A response whose request nobody
waits for any more (it came too late) is counted and dropped; a request of the server is handed out.

Invariant: a number is given to one waiting request at a time; every length is compared with its limit before it is
           used; after :meth:`Exchange.end` nobody waits.
Threads:   one at a time; callers that share it hold a lock.
Source:    remoting specification 1.1, 1.2.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from cometmq.errors import LimitReached, MalformedCommand
from cometmq.remoting.command import FRAME_BYTES_MAX, Command

__all__ = ["WAITING_MAX", "Answered", "Asked", "Exchange"]

W = TypeVar("W")

WAITING_MAX = 65_536
"""Requests of one connection that may wait for their answers at a time."""

FRAME_S_MAX = 30.0
"""Seconds within which a frame that began has to be there, as at a server."""

_LENGTH_BYTES = 4
_FRAME_BYTES_MIN = 8
_OPAQUE_END = 2**31


@dataclass(frozen=True, slots=True)
class Answered(Generic[W]):
    """An answer has come.

    Attributes:
        waiting: the waiter given to :meth:`Exchange.begin`.
        answer: the answer.
    """

    waiting: W
    answer: Command


@dataclass(frozen=True, slots=True)
class Asked:
    """The server wants something of us."""

    request: Command


class Exchange(Generic[W]):
    """The state of one connection. ``W`` is the type that stands for an answer's waiter."""

    def __init__(
        self,
        *,
        waiting_max: int = WAITING_MAX,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with an empty connection.

        Args:
            waiting_max: requests that may wait at a time.
            frame_bytes_max: longest frame taken, with its length word.
            clock: seconds that never go back.
        """
        self._clock = clock
        self._frame_began_s: float | None = None
        self._waiting: dict[int, W] = {}
        self._waiting_max = waiting_max
        self._frame_bytes_max = frame_bytes_max
        self._next_opaque = 0
        self._buffer = bytearray()
        self.received_bytes = 0
        self.dropped_answers = 0

    @property
    def waiting_count(self) -> int:
        """Number of requests that wait for their answers."""
        return len(self._waiting)

    def begin(self, request: Command, waiting: W) -> tuple[int, bytes]:
        """Number a request and record the waiter for its answer.

        Returns:
            The number, for :meth:`cancel`, and the frame to be sent.

        Raises:
            LimitReached: too many requests wait already.
            InvalidArgument: the request does not fit a frame.
        """
        if len(self._waiting) >= self._waiting_max:
            raise LimitReached(f"{self._waiting_max} requests of this connection wait for their answers already")
        opaque = self._free_opaque()
        frame = request.with_opaque(opaque).encode()
        self._waiting[opaque] = waiting
        return opaque, frame

    def oneway(self, request: Command) -> bytes:
        """Return the frame of a request that gets no answer."""
        return request.as_oneway().with_opaque(self._free_opaque()).encode()

    def _free_opaque(self) -> int:
        # Numbers repeat after 2^31 requests: one that still waits is skipped.
        while self._next_opaque in self._waiting:
            self._next_opaque = (self._next_opaque + 1) % _OPAQUE_END
        opaque = self._next_opaque
        self._next_opaque = (opaque + 1) % _OPAQUE_END
        return opaque

    def cancel(self, opaque: int) -> None:
        """Wait no longer for an answer; one that comes yet is dropped."""
        self._waiting.pop(opaque, None)

    def receive(self, data: bytes) -> list[Answered[W] | Asked]:
        """Take bytes as they arrive; return what they complete, in order.

        Raises:
            MalformedCommand: the bytes are not a frame; the connection cannot be read further and must be closed.
        """
        self.received_bytes += len(data)
        self._buffer += data
        events: list[Answered[W] | Asked] = []
        at = 0
        while True:
            frame_bytes = self._frame_bytes(at)
            if frame_bytes is None or len(self._buffer) - at < frame_bytes:
                break
            event = self._event(Command.decode(bytes(self._buffer[at : at + frame_bytes])))
            if event is not None:
                events.append(event)
            at += frame_bytes
        del self._buffer[:at]
        if not self._buffer:
            self._frame_began_s = None
        elif at > 0 or self._frame_began_s is None:
            self._frame_began_s = self._clock()
        return events

    def is_dead(self, received_before: int) -> bool:
        """Return whether the other side is to be taken for dead by a request that timed out.

        It is stuck if nothing has come since, or if the frame being received began :data:`FRAME_S_MAX` ago: a peer that
        has lost a byte of its frames would otherwise leave every further request unanswered.

        Args:
            received_before: :attr:`received_bytes` when the request was sent.
        """
        began_s = self._frame_began_s
        is_stuck = began_s is not None and self._clock() - began_s >= FRAME_S_MAX
        return is_stuck or self.received_bytes == received_before

    def _frame_bytes(self, at: int) -> int | None:
        """Return the length of the frame that begins there, or None while that is not known."""
        if len(self._buffer) - at < _LENGTH_BYTES:
            return None
        frame_bytes = _LENGTH_BYTES + int.from_bytes(self._buffer[at : at + _LENGTH_BYTES], "big")
        if not _FRAME_BYTES_MIN <= frame_bytes <= self._frame_bytes_max:
            raise MalformedCommand(
                f"a frame says that it has {frame_bytes} bytes, outside {_FRAME_BYTES_MIN} to {self._frame_bytes_max}"
            )
        return frame_bytes

    def _event(self, command: Command) -> Answered[W] | Asked | None:
        if not command.is_response:
            return Asked(command)
        if command.opaque not in self._waiting:
            self.dropped_answers += 1
            return None
        return Answered(self._waiting.pop(command.opaque), command)

    def end(self) -> list[W]:
        """Note that the connection is gone; return who still waited."""
        waiting = list(self._waiting.values())
        self._waiting.clear()
        self._buffer.clear()
        return waiting
