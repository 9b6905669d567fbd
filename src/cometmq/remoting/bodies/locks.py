"""Locks of queues for orderly consumers: codes 41 and 42.

Source: remoting specification 2.7, 5.7.
"""

from __future__ import annotations

from dataclasses import dataclass

from cometmq.remoting.bodies.body import Body, boolean, list_of, text
from cometmq.remoting.bodies.message_queue import MESSAGE_QUEUE, MessageQueue

__all__ = ["LockBatchRequestBody", "LockBatchResponseBody", "UnlockBatchRequestBody"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LockBatchRequestBody(Body):
    """Which queues a client wants for itself."""

    consumer_group: str = text("consumerGroup")
    client_id: str = text("clientId")
    queues: tuple[MessageQueue, ...] = list_of("mqSet", MESSAGE_QUEUE)
    only_this_broker: bool = boolean("onlyThisBroker")


@dataclass(frozen=True, slots=True, kw_only=True)
class LockBatchResponseBody(Body):
    """Those of them that it has now."""

    locked_queues: tuple[MessageQueue, ...] = list_of("lockOKMQSet", MESSAGE_QUEUE)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnlockBatchRequestBody(Body):
    """Which queues a client gives up."""

    consumer_group: str = text("consumerGroup")
    client_id: str = text("clientId")
    queues: tuple[MessageQueue, ...] = list_of("mqSet", MESSAGE_QUEUE)
    only_this_broker: bool = boolean("onlyThisBroker")
