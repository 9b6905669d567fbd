"""Resets of a group's offsets, and the offsets that clients hold: codes 220 to 223.

Source: remoting specification 5.11, 1.6.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cometmq.remoting.bodies.body import (
    INT64,
    TEXT,
    Body,
    MapCodec,
    body_codec,
    int32,
    int64,
    list_of,
    map_of,
    text,
)
from cometmq.remoting.bodies.message_queue import MESSAGE_QUEUE, MessageQueue

__all__ = ["GetConsumerStatusBody", "QueueOffset", "ResetOffsetBody", "ResetOffsetBodyForC"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetOffsetBody(Body):
    """New offsets by queue."""

    offsets: Mapping[MessageQueue, int] = map_of("offsetTable", MESSAGE_QUEUE, INT64)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOffset(Body):
    """One queue and its new offset."""

    topic: str = text("topic")
    broker_name: str = text("brokerName")
    queue_id: int = int32("queueId")
    offset: int = int64("offset")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetOffsetBodyForC(Body):
    """The same as a list, for clients of language CPP, which cannot read objects as keys."""

    offsets: tuple[QueueOffset, ...] = list_of("offsetTable", body_codec(QueueOffset))


@dataclass(frozen=True, slots=True, kw_only=True)
class GetConsumerStatusBody(Body):
    """Offsets that clients hold: of the one that was asked, and of each client that a broker asked."""

    queues: Mapping[MessageQueue, int] = map_of("messageQueueTable", MESSAGE_QUEUE, INT64)
    clients: Mapping[str, Mapping[MessageQueue, int]] = map_of("consumerTable", TEXT, MapCodec(MESSAGE_QUEUE, INT64))
