"""A consumer's decisions on pops: the request, the meaning of an answer, the delay of a failed message.

Plain functions; no clock and no sockets. Source: consumption specification 1.18, 4.7, 4.10; remoting specification 2.5,
5.11.
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from cometmq.client.pop.pop_handles import PopHandle, PopTimes, pop_retry_topic
from cometmq.remoting.bodies.acks import BatchAck, BatchAckMessageRequestBody, BitSet
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.members import Members, request

if TYPE_CHECKING:
    from cometmq.remoting.bodies.heartbeat import SubscriptionData
    from cometmq.remoting.bodies.message_queue import MessageQueue

__all__ = [
    "ACKS_PER_REQUEST_MAX",
    "ALL_QUEUES",
    "INVISIBLE_MS_MAX",
    "INVISIBLE_MS_MIN",
    "MESSAGES_PER_POP_MAX",
    "PopStatus",
    "ack_request",
    "batch_ack_requests",
    "fits_batch",
    "invisible_after_failure_ms",
    "invisible_request",
    "invisible_when_tried_out_ms",
    "notification_request",
    "pop_request",
    "pop_status",
    "popped_times",
    "usual_invisible_ms",
]

ALL_QUEUES: Final = -1
"""The queue id of a pop from all of a broker's queues."""
MESSAGES_PER_POP_MAX: Final = 32
"""Brokers refuse requests for more."""
ACKS_PER_REQUEST_MAX: Final = 1_024
INVISIBLE_MS_MIN: Final = 5_000
INVISIBLE_MS_MAX: Final = 300_000
"""Outside these a push consumer takes the usual time."""

_USUAL_INVISIBLE_MS = 60_000
_BITS_PER_ACK_MAX = 4_096
_BACK_OFF_S = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)


class PopStatus(enum.Enum):
    """A broker's result of a pop. Any other code is a refusal."""

    FOUND = ResponseCode.SUCCESS
    NO_NEW_MESSAGE = ResponseCode.PULL_NOT_FOUND
    POLLING_TIMEOUT = ResponseCode.POLLING_TIMEOUT
    POLLING_FULL = ResponseCode.POLLING_FULL


_STATUSES: Final = {int(status.value): status for status in PopStatus}


def pop_status(code: int) -> PopStatus | None:
    """Return what an answer's code means, or None where the broker refused."""
    return _STATUSES.get(code)


def usual_invisible_ms(setting_ms: int) -> int:
    """Return how long a push consumer hides what it pops."""
    return setting_ms if INVISIBLE_MS_MIN <= setting_ms <= INVISIBLE_MS_MAX else _USUAL_INVISIBLE_MS


# --- Requests ---------------------------------------------------------------------------------------------------------


def pop_request(
    queue: MessageQueue,
    subscription: SubscriptionData,
    *,
    group: str,
    max_messages: int,
    invisible_ms: int,
    poll_ms: int,
    from_first: bool,
    attempt_id: str | None = None,
) -> Command:
    """Return the request that takes messages (code 200050).

    Args:
        queue: topic, broker and queue; :data:`ALL_QUEUES` for all of the broker.
        subscription: selects its messages.
        group: the group.
        max_messages: most messages, up to :data:`MESSAGES_PER_POP_MAX`.
        invisible_ms: how long others do not get them.
        poll_ms: how long the broker may hold the request; 0 for not at all.
        from_first: where a group without progress begins: at a queue's first message, or at its end.
        attempt_id: pop in order; a repeated id makes the broker repeat a lost answer. None: pop in any order.
    """
    return request(
        RequestCode.POP_MESSAGE,
        consumerGroup=group,
        topic=queue.topic,
        queueId=queue.queue_id,
        maxMsgNums=max_messages,
        invisibleTime=invisible_ms,
        pollTime=poll_ms,
        bornTime=0,  # the broker's own clock counts: with ours, one that goes wrong would end every hold at once
        initMode=0 if from_first else 1,
        expType=subscription.expression_type,
        exp=subscription.sub_string,
        order=attempt_id is not None,
        attemptId=attempt_id,
        bname=queue.broker_name,
    )


def notification_request(queue: MessageQueue, *, group: str, poll_ms: int, orderly: bool = False) -> Command:
    """Return the question whether there is something to pop (code 200054), which takes nothing."""
    return request(
        RequestCode.NOTIFICATION,
        consumerGroup=group,
        topic=queue.topic,
        queueId=queue.queue_id,
        pollTime=poll_ms,
        bornTime=0,
        order=orderly,
        bname=queue.broker_name,
    )


def popped_times(answer: Command) -> PopTimes:
    """Return what an answer to a pop or to a change of the invisible time says of its messages.

    Raises:
        MalformedCommand: something is missing.
    """
    members = Members(answer.fields)
    return PopTimes(
        pop_ms=members.required_int64("popTime"),
        invisible_ms=members.required_int64("invisibleTime"),
        revive_queue_id=members.required_int32("reviveQid"),
    )


def ack_request(handle: PopHandle, *, group: str, topic: str) -> Command:
    """Return the request that finishes a message (code 200051).

    Args:
        handle: the message's.
        group: the group.
        topic: the topic that was popped.
    """
    return _about(RequestCode.ACK_MESSAGE, handle, group, topic)


def invisible_request(handle: PopHandle, *, group: str, topic: str, invisible_ms: int) -> Command:
    """Return the request that gives a message another time (code 200053); as :func:`ack_request`."""
    return _about(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, handle, group, topic, invisible_ms=invisible_ms)


def _about(code: RequestCode, handle: PopHandle, group: str, topic: str, *, invisible_ms: int | None = None) -> Command:
    return request(
        code,
        consumerGroup=group,
        topic=pop_retry_topic(group, topic, handle.kind),
        queueId=handle.queue_id,
        offset=handle.queue_offset,
        extraInfo=str(handle),
        invisibleTime=invisible_ms,
        bname=handle.broker_name,
    )


def fits_batch(handle: PopHandle) -> bool:
    """Whether a message can be finished together with others of its pop: batches say so by sets of near numbers."""
    return 0 <= handle.queue_offset - handle.start_offset < _BITS_PER_ACK_MAX


def batch_ack_requests(handles: Iterable[tuple[PopHandle, str]], *, group: str, broker_name: str) -> Iterator[Command]:
    """Return the requests that finish many messages of one broker (code 200151).

    Args:
        handles: each message's, which :func:`fits_batch`, and the topic that was popped.
        group: the group.
        broker_name: the broker of all of them.
    """
    sets: dict[tuple[str, int, int, int, int, int], int] = {}
    of_set: dict[tuple[str, int, int, int, int, int], PopHandle] = {}
    for handle, topic in handles:
        times = handle.times
        key = topic, handle.kind, handle.queue_id, handle.start_offset, times.pop_ms, times.revive_queue_id
        of_set.setdefault(key, handle)
        sets[key] = sets.get(key, 0) | 1 << handle.queue_offset - handle.start_offset
    entries = [
        BatchAck(
            consumer_group=group,
            topic=key[0],
            retry=f"{one.kind:d}",
            start_offset=one.start_offset,
            queue_id=one.queue_id,
            revive_queue_id=one.times.revive_queue_id,
            pop_time_ms=one.times.pop_ms,
            invisible_time_ms=one.times.invisible_ms,
            acknowledged=BitSet(sets[key]),
        )
        for key, one in of_set.items()
    ]
    for begin in range(0, len(entries), ACKS_PER_REQUEST_MAX):
        some = tuple(entries[begin : begin + ACKS_PER_REQUEST_MAX])
        body = BatchAckMessageRequestBody(broker_name=broker_name, acks=some)
        yield request(RequestCode.BATCH_ACK_MESSAGE, body=body.to_json())


# --- Failures ---------------------------------------------------------------------------------------------------------


def invisible_after_failure_ms(delay_level: int, reconsume_times: int) -> int:
    """Return how long a message stays hidden that its listener did not take.

    Args:
        delay_level: the listener's choice; 0 for a time that grows with each try.
        reconsume_times: how often it was tried again before.
    """
    level = delay_level or reconsume_times
    return _BACK_OFF_S[min(level, len(_BACK_OFF_S) - 1)] * 1_000


def invisible_when_tried_out_ms(age_ms: int) -> int | None:
    """Return how long a message stays hidden that was tried often enough; None gives it up.

    Args:
        age_ms: how long ago it was born.
    """
    if age_ms > 2 * _BACK_OFF_S[-1] * 1_000:
        return None
    level = bisect_right(_BACK_OFF_S, age_ms / 1_000)
    return _BACK_OFF_S[min(level, len(_BACK_OFF_S) - 1)] * 1_000
