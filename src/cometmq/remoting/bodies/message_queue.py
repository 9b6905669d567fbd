"""A queue's name on the wire, alone and as the key of a map."""

from __future__ import annotations

from dataclasses import dataclass

from cometmq.remoting.bodies.body import Body, KeyCodec, body_codec, int32, text

__all__ = ["MESSAGE_QUEUE", "MessageQueue"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageQueue(Body):
    """One queue of a topic at one broker.

    Attributes:
        topic: the topic.
        broker_name: the broker's name, which a master and its slaves share.
        queue_id: the queue, from 0; -1 stands for all queues of the broker in an assignment for POP.
    """

    topic: str = text("topic")
    broker_name: str = text("brokerName")
    queue_id: int = int32("queueId")


MESSAGE_QUEUE: KeyCodec[MessageQueue] = body_codec(MessageQueue)
