"""Keeps messages hidden from others for as long as somebody works on them.

A message that is kept gets another invisible time when half of its own is over, again and again, until it is let go,
or until it has been kept for so long that its worker counts as hanging. Where the broker does not know it any more, or
cannot be reached in time, it is redelivered.

Invariant: each message has at most one change in progress, and letting it go waits for that: an acknowledgement by the
handle before would finish nothing.

Threads: the client's loop. Source: consumption specification 4.10.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from cometmq.errors import Error, StaleHandle

if TYPE_CHECKING:
    from cometmq._engine import ReceivedMessage

__all__ = ["Extender"]

_AGAIN_S = 1.0
"""How soon a change is tried again that failed."""

_log = logging.getLogger(__name__)


class _Kept:
    """A message, the timer that will extend it, and until when."""

    __slots__ = ("change", "end_s", "invisible_ms", "message", "timer")

    def __init__(self, message: ReceivedMessage, invisible_ms: int, end_s: float) -> None:
        self.message = message
        self.invisible_ms = invisible_ms
        self.end_s = end_s
        self.timer: asyncio.TimerHandle | None = None
        self.change: asyncio.Task[None] | None = None


class Extender:
    """The messages of one consumer that are worked on."""

    def __init__(
        self,
        change: Callable[[ReceivedMessage, int], Awaitable[object]],
        *,
        longest_s: float,
    ) -> None:
        """Keep nothing yet; on the loop.

        Args:
            change: gives a message another invisible time, milliseconds.
            longest_s: for how long a message is kept at most.
        """
        self._change = change
        self._longest_s = longest_s
        self._loop = asyncio.get_running_loop()
        self._kept: dict[int, _Kept] = {}
        self._trouble: type[Error] | None = None
        """Last error logged; cleared on success: each is tried again every second."""

    def is_kept(self, message: ReceivedMessage) -> bool:
        """Whether a message is kept hidden."""
        return id(message) in self._kept

    def keep(self, message: ReceivedMessage, *, invisible_ms: int, left_ms: float) -> None:
        """Keep a message hidden from now on.

        Args:
            message: the message.
            invisible_ms: for how long each time.
            left_ms: how much is left of the time that it has.
        """
        if id(message) in self._kept:
            return
        kept = self._kept[id(message)] = _Kept(message, invisible_ms, self._loop.time() + self._longest_s)
        self._later(kept, max(0.0, min(left_ms, invisible_ms) - invisible_ms / 2) / 1000)

    async def let_go(self, messages: Iterable[ReceivedMessage]) -> list[ReceivedMessage]:
        """Keep messages no longer; return those that were kept until now, when no change of them is under way."""
        gone = [kept for message in messages if (kept := self._kept.pop(id(message), None)) is not None]
        for kept in gone:
            if kept.timer is not None:
                kept.timer.cancel()
        changes = [kept.change for kept in gone if kept.change is not None]
        if changes:
            await asyncio.gather(*changes, return_exceptions=True)
        return [kept.message for kept in gone]

    async def close(self) -> None:
        """Keep nothing any more."""
        await self.let_go([kept.message for kept in self._kept.values()])

    def _later(self, kept: _Kept, delay_s: float) -> None:
        kept.timer = self._loop.call_later(delay_s, self._begin, kept)

    def _begin(self, kept: _Kept) -> None:
        kept.timer = None
        if self._loop.time() >= kept.end_s:
            self._forget(kept)
            _log.warning("%s has been worked on for %d s and is hidden no longer", kept.message, self._longest_s)
            return
        kept.change = self._loop.create_task(self._extend(kept))

    async def _extend(self, kept: _Kept) -> None:
        delay_s = kept.invisible_ms / 2000
        try:
            await self._change(kept.message, kept.invisible_ms)
        except StaleHandle as error:
            self._forget(kept)
            _log.warning("%s cannot be hidden any longer: %s", kept.message, error)
            return
        except Error as error:
            level = logging.DEBUG if self._trouble is type(error) else logging.WARNING
            self._trouble = type(error)
            _log.log(level, "%s could not be hidden for longer yet: %s", kept.message, error)
            delay_s = min(delay_s, _AGAIN_S)
        else:
            self._trouble = None
        kept.change = None
        if self._is_current(kept):
            self._later(kept, delay_s)

    def _is_current(self, kept: _Kept) -> bool:
        """Whether it was not released; the same message may be held again since."""
        return self._kept.get(id(kept.message)) is kept

    def _forget(self, kept: _Kept) -> None:
        if self._is_current(kept):
            del self._kept[id(kept.message)]
