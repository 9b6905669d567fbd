"""Many sends in order, of which only so many are under way: which ones are to be waited for, and when.

Decisions alone; the surfaces do the waiting. Thread safety: one thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING

from cometmq.client.arguments import whole_number
from cometmq.errors import WrongType

if TYPE_CHECKING:
    from cometmq.client.send.outgoing import OutgoingMessage
    from cometmq.client.send.send_engine import SendEngine
    from cometmq.client.send.sending import SendFuture

__all__ = ["MANY_UNDER_WAY", "SendWindow", "many"]

MANY_UNDER_WAY = 1_000
"""How many sends are under way where nobody says another number."""


def many(messages: Iterable[OutgoingMessage | bytes]) -> Iterable[OutgoingMessage | bytes]:
    """Return what :meth:`send_many` was given.

    Raises:
        WrongType: it is one body, or not an iterable.
    """
    given: object = messages
    if isinstance(given, (bytes, bytearray, memoryview, str)) or not isinstance(given, Iterable):
        raise WrongType(f"messages is one {type(given).__name__}; give a list of messages or bodies, or call send")
    return messages


class SendWindow:
    """The sends that were begun and whose results nobody has taken yet, oldest first."""

    def __init__(self, engine: SendEngine, *, topic: str | None, under_way: int) -> None:
        """Nothing was begun.

        Args:
            engine: sends.
            topic: where to, where the messages do not say.
            under_way: most sends that are begun and not waited for.

        Raises:
            InvalidArgument: there would be none.
        """
        whole_number("under_way", under_way, minimum=1)
        self._engine = engine
        self._topic = topic
        self._under_way = under_way
        self.begun: deque[SendFuture] = deque()

    def send(self, message: OutgoingMessage | bytes) -> None:
        """Begin another one.

        Raises:
            InvalidArgument, InvalidTopic, MessageTooLarge, ClientStateError: as the engine's.
        """
        self.begun.append(self._engine.send_item(message, self._topic))

    def due(self) -> list[SendFuture]:
        """Return those to be waited for before another one is begun: none while there is room, then half of them.

        Half, so that the waiter is woken once for many: the last of them is best waited for first.
        """
        return list(islice(self.begun, (self._under_way + 1) // 2)) if len(self.begun) >= self._under_way else []

    def forget(self, count: int) -> None:
        """The results of the oldest were taken."""
        for _ in range(count):
            self.begun.popleft()

    def __repr__(self) -> str:
        """Return how many were begun."""
        return f"SendWindow({len(self.begun)} of {self._under_way})"
