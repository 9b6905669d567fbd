"""Logging of listeners that fail: each kind of failure once in full, then how often it happened again.

A listener that raises does so for many messages, thousands a second where it is quick, and one traceback for each
would bury the rest of the log. Kinds of failure are distinguished by the exception's type and the line that raised it,
or by the error in the answer. Each single failure is logged at DEBUG.

Threads: the client's loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from cometmq._plural import counted

if TYPE_CHECKING:
    from types import CodeType

    from cometmq._engine import ReceivedMessage
    from cometmq.client.push.listeners import Handled
    from cometmq.remoting.bodies.message_queue import MessageQueue

__all__ = ["TOLD_AGAIN_S", "ListenerFailures"]

TOLD_AGAIN_S: Final = 10.0
"""Interval between reports of a kind of failure that goes on."""
_KINDS_MAX: Final = 64
_TEXT_CHARS: Final = 200

_Kind: TypeAlias = "tuple[type[BaseException], CodeType | None, int] | str"

_log = logging.getLogger(__name__)


class ListenerFailures:
    """Logs the failures of one consumer's listener."""

    def __init__(self, group: str, *, consequence: str = "") -> None:
        """To be made on the loop.

        Args:
            group: the consumer group.
            consequence: the text on what follows a failure, if it is to be logged.
        """
        self._group = group
        self._consequence = f"; {consequence}" if consequence else ""
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        # Messages that failed since a kind was logged last, and their error.
        self._kinds: dict[_Kind, tuple[int, str]] = {}

    def __repr__(self) -> str:
        """Return how many kinds of failure there are at the moment."""
        return f"ListenerFailures({self._group}, {len(self._kinds)} kinds)"

    def note(self, queue: MessageQueue, part: Sequence[ReceivedMessage], handled: Handled) -> None:
        """Take the result of a call of the listener; nothing is logged without a problem."""
        if handled.problem is None:
            return
        error = handled.problem if isinstance(handled.problem, BaseException) else None
        text = repr(error) if error is not None else str(handled.problem)
        kind = _kind_of(handled.problem)
        count, _ = self._kinds.get(kind, (-1, ""))
        is_new = count < 0
        if is_new and len(self._kinds) >= _KINDS_MAX:
            self._log_again()
        self._kinds[kind] = (0 if is_new else count + len(part), text)
        _log.log(
            logging.WARNING if is_new else logging.DEBUG,
            "group %s: the listener failed with %s from offset %d of %s%s: %s",
            self._group,
            counted(len(part), "message"),
            part[0].queue_offset,
            queue,
            self._consequence,
            text,
            exc_info=error if is_new else None,
        )
        if self._timer is None:
            self._timer = self._loop.call_later(TOLD_AGAIN_S, self._due)

    def close(self) -> None:
        """Log failures that have not been logged, and forget all."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._log_again()
        self._kinds.clear()

    def _due(self) -> None:
        self._timer = None
        self._log_again()
        if self._kinds:
            self._timer = self._loop.call_later(TOLD_AGAIN_S, self._due)

    def _log_again(self) -> None:
        """Log how often each kind recurred; one that did not is logged in full the next time."""
        for kind, (count, text) in list(self._kinds.items()):
            if not count:
                del self._kinds[kind]
                continue
            short = text if len(text) <= _TEXT_CHARS else f"{text[:_TEXT_CHARS]}…"
            _log.warning(
                "group %s: the listener failed in the same way with %s more%s: %s%s",
                self._group,
                counted(count, "message"),
                self._consequence,
                short,
                _place_of(kind),
            )
            self._kinds[kind] = (0, text)


def _kind_of(problem: BaseException | str) -> _Kind:
    if isinstance(problem, str):
        return problem[-_TEXT_CHARS:]
    place = problem.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    return type(problem), None if place is None else place.tb_frame.f_code, -1 if place is None else place.tb_lineno


def _place_of(kind: _Kind) -> str:
    if isinstance(kind, str) or kind[1] is None:
        return ""
    return f" ({kind[1].co_filename}:{kind[2]})"
