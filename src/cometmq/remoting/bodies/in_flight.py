"""A group's messages in flight: code 31005, one of CometMQ's own. Apache RocketMQ has nothing like it.

Source: decision 0016.
"""

from __future__ import annotations

from dataclasses import dataclass

from cometmq.remoting.bodies.body import Body, body_codec, int32, int64, list_of, text

__all__ = ["GroupInFlightBody", "QueueInFlightEntry"]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueInFlightEntry(Body):
    """One queue of a topic that the group has progress in.

    Attributes:
        topic, queue_id: the queue; messages that came back lie in a retry topic.
        broker_offset: end of the queue.
        consumer_offset: the group's committed offset; -1: none.
        next_offset: where its next pop begins; of a queue that is pulled the committed offset.
        in_flight: messages that were popped and are neither acknowledged nor back.
        oldest_ms: for how long the oldest of them has been; -1 without one.
        overdue_ms: for how long the first of them could have been back; 0 where none could.
    """

    topic: str = text("topic")
    queue_id: int = int32("queueId")
    broker_offset: int = int64("brokerOffset")
    consumer_offset: int = int64("consumerOffset")
    next_offset: int = int64("nextOffset")
    in_flight: int = int64("inFlight")
    oldest_ms: int = int64("oldest")
    overdue_ms: int = int64("overdue")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupInFlightBody(Body):
    """A group at one broker.

    Attributes:
        queues: its queues, in order.
        revive_lag_ms: for how long the first checkpoint of any group that the revive has read could have been revived.
        revive_unread: records, of any group, that the revive has not read yet.
    """

    queues: tuple[QueueInFlightEntry, ...] = list_of("queues", body_codec(QueueInFlightEntry))
    revive_lag_ms: int = int64("reviveLag")
    revive_unread: int = int64("reviveUnread")
