"""The order of a simple consumer's messages: those behind an unfinished message of their queue are given back.

It owns the messages that loops have received and nobody has acknowledged, and the requests that give messages back.
Without ``orderly`` nothing is kept here, and nothing is given back.

Invariant: nobody gets a message from the consumer while an earlier one of its queue is unfinished or was given back.
The later message is given back, too, and its broker redelivers both in order.

Threads: the client's loop, but for :meth:`QueueOrder.is_postponed`. Source: consumption specification 4.4, 4.10.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from cometmq.client.pop.held_messages import is_behind
from cometmq.errors import Error

if TYPE_CHECKING:
    from cometmq._engine import ReceivedMessage
    from cometmq.client.pop.pop_extending import Extender

__all__ = ["QueueOrder"]

_log = logging.getLogger(__name__)


class QueueOrder:
    """The order of one consumer."""

    def __init__(
        self,
        extender: Extender,
        set_invisible: Callable[[ReceivedMessage, int], Awaitable[object]],
        *,
        group: str,
        orderly: bool,
    ) -> None:
        """Keep nothing yet.

        Args:
            extender: the messages that are kept hidden.
            set_invisible: changes the invisible time of a message, milliseconds.
            group: for the log.
            orderly: whether messages come in order.
        """
        self._extender = extender
        self._set_invisible = set_invisible
        self._group = group
        self._orderly = orderly
        self._unfinished: dict[int, ReceivedMessage] = {}
        """Messages of loops that nobody has acknowledged."""
        self._returns: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def began(self, messages: Iterable[ReceivedMessage]) -> None:
        """Take note of the messages that a loop has received."""
        if self._orderly:
            self._unfinished.update((id(message), message) for message in messages)

    def forget(self, messages: Iterable[ReceivedMessage]) -> None:
        """Take note of messages that are finished, or that their loop has left."""
        for message in messages:
            self._unfinished.pop(id(message), None)

    def is_postponed(self, message: ReceivedMessage) -> bool:
        """Return whether a loop's current message is redelivered, so that later ones of its queue must not pass it.

        It was given back, extended, or kept hidden for too long. Any thread.
        """
        return id(message) in self._unfinished and not self._extender.is_kept(message)

    def give_back_behind(self, message: ReceivedMessage, waiting: deque[ReceivedMessage]) -> None:
        """Give back the later messages of a message's queue: its broker redelivers them after it."""
        if self._orderly and waiting:
            later = [one for one in waiting if is_behind(one, message)]
            others = [one for one in waiting if not is_behind(one, message)]
            waiting.clear()
            waiting.extend(others)
            self.give_back(later)

    def unseen(self, messages: Iterable[ReceivedMessage], current: ReceivedMessage | None) -> list[ReceivedMessage]:
        """Return the messages of a loop that the next caller may get.

        Args:
            messages: those that the loop has not seen.
            current: the message that it was at; None for none.
        """
        unseen = deque(messages)
        self.forget(unseen)
        if current is not None and id(current) in self._unfinished:
            self.give_back_behind(current, unseen)
        return list(unseen)

    # --- Giving back --------------------------------------------------------------------------------------------------

    def give_back(self, messages: Sequence[ReceivedMessage]) -> None:
        """Make messages visible again, in a task."""
        self.forget(messages)
        if messages and not self._is_closed:
            task = asyncio.ensure_future(self._make_visible(messages))
            self._returns.add(task)
            task.add_done_callback(self._returns.discard)

    async def _make_visible(self, messages: Sequence[ReceivedMessage]) -> None:
        await self._extender.let_go(messages)
        for message in messages:
            await self._make_one_visible(message)

    async def _make_one_visible(self, message: ReceivedMessage) -> None:
        try:
            await self._set_invisible(message, 0)
        except Error as error:
            _log.debug("group %s: %s is redelivered when its time is over: %s", self._group, message, error)

    async def close(self) -> None:
        """Give back nothing more, and wait for the requests that have begun."""
        self._is_closed = True
        await asyncio.gather(*self._returns, return_exceptions=True)
