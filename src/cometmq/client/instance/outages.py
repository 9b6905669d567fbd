"""Transient failures while a consumer runs, and their rate-limited logging.

Servers that are gone come back, and busy ones become free; consumers wait for them. Permanent refusals and mistakes of
the caller are not transient.

Threads: the client's loop.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from cometmq.errors import (
    BrokerError,
    BrokerNotFound,
    ConnectionLost,
    CorruptRecord,
    Error,
    LimitReached,
    MalformedBody,
    MalformedCommand,
    RequestTimeout,
    RouteNotFound,
)
from cometmq.remoting.codes import ResponseCode

if TYPE_CHECKING:
    from cometmq.remoting.bodies.message_queue import MessageQueue

__all__ = ["OutageLog", "is_refusal", "may_pass", "pause_s"]

_PAUSES_S: Final = (0.1, 0.2, 0.5, 1.0, 2.0)
_UNANSWERED: Final = (BrokerNotFound, ConnectionLost, RequestTimeout)
_MAY_PASS: Final = (*_UNANSWERED, CorruptRecord, LimitReached, MalformedBody, MalformedCommand, RouteNotFound)


_REFUSALS: Final = frozenset({ResponseCode.NO_PERMISSION, ResponseCode.SUBSCRIPTION_PARSE_FAILED})
_BEFORE_HEARTBEAT: Final = frozenset({ResponseCode.SUBSCRIPTION_NOT_EXIST})
_NO_FILTER: Final = "does not support consumer to filter message by"


def may_pass(error: Error) -> bool:
    """Whether an error can pass without a change of the program or a setting."""
    return error.retriable if isinstance(error, BrokerError) else isinstance(error, _MAY_PASS)


def is_refusal(error: Error) -> bool:
    """Whether a broker refuses reads until somebody changes a permission, its settings or the subscription."""
    return isinstance(error, BrokerError) and (
        error.code in _REFUSALS or (error.code == ResponseCode.SYSTEM_ERROR and _NO_FILTER in (error.remark or ""))
    )


def pause_s(tries: int) -> float:
    """Return how long to wait after so many tries that failed, 1 or more: longer each time, 2 s at most."""
    return _PAUSES_S[min(tries, len(_PAUSES_S)) - 1]


class OutageLog:
    """Sources that fail to give a group messages: brokers that do not answer, and queues that they refuse.

    Each is logged once when it fails, and once when it works again: it is tried many times meanwhile.
    """

    def __init__(self, log: logging.Logger, *, group: str) -> None:
        """Everything works.

        Args:
            log: the logger.
            group: the group.
        """
        self._log = log
        self._group = group
        self._failing: dict[str | MessageQueue, tuple[type[Error], bool] | None] = {}
        """Broker name, or queue, to its last logged error, and whether that was a refusal; None: a heartbeat is due."""

    def __bool__(self) -> bool:
        """Whether something fails."""
        return bool(self._failing)

    def fails(self, queue: MessageQueue, error: Error) -> None:
        """Record that a queue returned nothing; a queue id below 0 stands for all queues of the broker."""
        is_unanswered = isinstance(error, _UNANSWERED)
        key = queue.broker_name if is_unanswered else queue
        kind = (type(error), is_refusal(error))
        if key not in self._failing and isinstance(error, BrokerError) and error.code in _BEFORE_HEARTBEAT:
            # After a restart a broker learns the group with the next heartbeat; a second failure has another cause.
            self._failing[key] = None
            self._log.info("group %s: %s waits for a heartbeat: %s", self._group, _name(queue), error)
            return
        level, extra = (logging.ERROR, {"refusal": error}) if kind[1] else (logging.WARNING, None)
        if self._failing.get(key) == kind:
            level = logging.DEBUG
        self._failing[key] = kind
        what = f"broker {queue.broker_name}" if is_unanswered else _name(queue)
        self._log.log(level, "group %s: cannot read from %s; retrying: %s", self._group, what, error, extra=extra)

    def works(self, queue: MessageQueue) -> None:
        """Record that the queue's broker responded."""
        for key, what in ((queue.broker_name, f"broker {queue.broker_name}"), (queue, _name(queue))):
            if self._failing.pop(key, None) is not None:
                self._log.info("group %s: %s can be read again", self._group, what)


def _name(queue: MessageQueue) -> str:
    where = f"topic {queue.topic}" if queue.queue_id < 0 else f"queue {queue.queue_id} of {queue.topic}"
    return f"{where} at {queue.broker_name}"
