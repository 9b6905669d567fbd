"""A push consumer's decisions on its pulls: whether one may be sent, its request, and when the next is due.

Every process queue has exactly one pull that waits, is under way, or is answered at this moment. Here is which gate it
meets and how long it then waits; the engine sends it. No clock and no sockets.

Source: consumption specification 1.8.
"""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass
from typing import Final

from cometmq.client.group.process_queue import ProcessQueue
from cometmq.remoting.bodies.heartbeat import MessageModel
from cometmq.remoting.codes import ResponseCode

__all__ = [
    "FLOW_CONTROL_DELAY_MS",
    "PAUSED_DELAY_MS",
    "REFUSED_DELAY_MS",
    "FlowCounters",
    "Gate",
    "PullFlag",
    "PullLimits",
    "PullStatus",
    "commit_to_send",
    "delay_after_error_ms",
    "delay_at_gate_ms",
    "next_gate",
    "pull_flags",
    "pull_status",
    "share_of_topic",
]

PAUSED_DELAY_MS: Final = 1_000
FLOW_CONTROL_DELAY_MS: Final = 50
REFUSED_DELAY_MS: Final = 20
"""How long a pull waits that a broker refused because it has too much to do (code 215)."""

_MIB = 1 << 20
_WARN_EVERY = 1_000


class Gate(enum.Enum):
    """The gates of a pull before it is sent, in the order in which they are checked."""

    DROPPED = "the queue was given up"
    NOT_RUNNING = "the consumer does not run"
    PAUSED = "the consumer is suspended"
    TOO_MANY = "too many messages of the queue wait"
    TOO_LARGE = "too many bytes of the queue wait"
    TOO_WIDE = "the offsets of unfinished messages lie too far apart"
    NOT_LOCKED = "the broker has not given the lock of the queue"
    FIRST_LOCKED = "the lock came; where to begin must be asked again"
    NOT_SUBSCRIBED = "the topic is not subscribed"
    OPEN = "the pull may be sent"


@dataclass(slots=True, kw_only=True)
class PullLimits:
    """How much of one queue may wait. Changes when a topic's limits are shared among another number of queues."""

    messages: int = 1_000
    size_mib: int = 100
    span: int = 2_000


def next_gate(
    held: ProcessQueue,
    limits: PullLimits,
    *,
    running: bool,
    paused: bool,
    orderly: bool,
    previously_locked: bool,
    subscribed: bool,
    now_ms: int,
) -> Gate:
    """Return the first gate that is closed to the pull of a queue, or ``OPEN``; note that a pull was due.

    Args:
        held: the queue's messages; its ``last_pull_ms`` is set.
        limits: how much may wait; reaching a limit is allowed, passing it is not.
        running, paused: the consumer's state.
        orderly: the consumer has an orderly listener: the lock counts, the span does not.
        previously_locked: the queue had its lock at an earlier pull.
        subscribed: the topic has a subscription.
        now_ms: milliseconds since 1970.
    """
    if held.dropped:
        return Gate.DROPPED
    held.last_pull_ms = now_ms
    if not running:
        return Gate.NOT_RUNNING
    if paused:
        return Gate.PAUSED
    if held.count > limits.messages:
        return Gate.TOO_MANY
    if held.size_bytes // _MIB > limits.size_mib:
        return Gate.TOO_LARGE
    if orderly:
        if not held.locked:
            return Gate.NOT_LOCKED
        if not previously_locked:
            return Gate.FIRST_LOCKED
    elif held.max_span > limits.span:
        return Gate.TOO_WIDE
    return Gate.OPEN if subscribed else Gate.NOT_SUBSCRIBED


def delay_at_gate_ms(gate: Gate, *, exception_delay_ms: int) -> int:
    """Return how long a pull waits at a closed gate.

    Args:
        gate: any but ``DROPPED`` and ``OPEN``.
        exception_delay_ms: the setting ``pull_time_delay_when_exception_ms``.
    """
    if gate is Gate.PAUSED:
        return PAUSED_DELAY_MS
    if gate in (Gate.TOO_MANY, Gate.TOO_LARGE, Gate.TOO_WIDE):
        return FLOW_CONTROL_DELAY_MS
    return exception_delay_ms


def share_of_topic(topic_limit: int, queues: int) -> int:
    """Return a queue's share of a limit that is set for a topic, among all queues that the consumer has."""
    return max(1, topic_limit // queues)


class FlowCounters:
    """How often pulls waited because too much was held, for people to see. One warning in a thousand is due."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        """Nothing waited yet."""
        self._counts: Counter[Gate] = Counter()

    def note(self, gate: Gate) -> bool:
        """Count a closed gate; True when a warning is due."""
        count = self._counts[gate]
        self._counts[gate] = count + 1
        return count % _WARN_EVERY == 0

    @property
    def by_count(self) -> int:
        """Pulls that waited because of too many messages."""
        return self._counts[Gate.TOO_MANY]

    @property
    def by_size(self) -> int:
        """Pulls that waited because of too many bytes."""
        return self._counts[Gate.TOO_LARGE]

    @property
    def by_span(self) -> int:
        """Pulls that waited because of offsets too far apart."""
        return self._counts[Gate.TOO_WIDE]

    def __repr__(self) -> str:
        """Show the three numbers."""
        return f"FlowCounters(by_count={self.by_count}, by_size={self.by_size}, by_span={self.by_span})"


# --- Fields of a pull -------------------------------------------------------------------------------------------------


class PullFlag(enum.IntFlag):
    """Bits of a pull's ``sysFlag``."""

    COMMIT_OFFSET = 1
    SUSPEND = 2
    SUBSCRIPTION = 4
    CLASS_FILTER = 8
    LITE = 16


_COMMIT, _SUSPEND, _SUBSCRIPTION, _CLASS, _LITE = map(int, PullFlag)


def pull_flags(
    *,
    commit: bool = False,
    suspend: bool = False,
    subscription: bool = False,
    class_filter: bool = False,
    lite: bool = False,
) -> int:
    """Return the ``sysFlag`` of a pull.

    Args:
        commit: the request's commit offset counts.
        suspend: the broker may hold the request.
        subscription: the request carries its subscription.
        class_filter: the subscription is one of the class filters of old versions.
        lite: the request is code 361.
    """
    # Plain numbers: or-ing members of an IntFlag takes ten times as long, and every pull asks.
    return commit * _COMMIT + suspend * _SUSPEND + subscription * _SUBSCRIPTION + class_filter * _CLASS + lite * _LITE


def commit_to_send(model: MessageModel, memory_offset: int, *, from_slave: bool) -> tuple[int, bool]:
    """Return the offset that a push consumer's pull commits, and whether it counts. Slaves commit nothing.

    Args:
        model: members that each get all messages commit none to the broker.
        memory_offset: the offset store's offset in memory, -1 for none.
        from_slave: the pull goes to a slave.
    """
    if model is MessageModel.BROADCASTING:
        return 0, False
    return memory_offset, memory_offset > 0 and not from_slave


# --- Meaning of an answer ---------------------------------------------------------------------------------------------


class PullStatus(enum.Enum):
    """A broker's result of a pull. Any other code is a refusal."""

    FOUND = ResponseCode.SUCCESS
    NO_NEW_MESSAGE = ResponseCode.PULL_NOT_FOUND
    NO_MATCHED_MESSAGE = ResponseCode.PULL_RETRY_IMMEDIATELY
    OFFSET_ILLEGAL = ResponseCode.PULL_OFFSET_MOVED


_STATUSES: Final = {int(status.value): status for status in PullStatus}


def pull_status(code: int) -> PullStatus | None:
    """Return what an answer's code means, or None where the broker refused."""
    return _STATUSES.get(code)


def delay_after_error_ms(code: int | None, *, exception_delay_ms: int) -> int:
    """Return how long a pull waits that failed.

    Args:
        code: the broker's, or None where no answer came.
        exception_delay_ms: the setting ``pull_time_delay_when_exception_ms``.
    """
    return REFUSED_DELAY_MS if code == ResponseCode.FLOW_CONTROL else exception_delay_ms
