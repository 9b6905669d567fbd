"""Statistics of topics, groups and brokers: codes 202, 208, 303, 308, 315 and 317.

Source: remoting specification 5.8.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cometmq.remoting.bodies.body import (
    INT32,
    INT64,
    TEXT,
    Body,
    ListCodec,
    MapCodec,
    body_codec,
    double,
    int64,
    list_of,
    map_of,
    nested,
    optional_nested,
    optional_text,
)
from cometmq.remoting.bodies.message_queue import MESSAGE_QUEUE, MessageQueue

__all__ = [
    "BrokerStatsData",
    "BrokerStatsItem",
    "ConsumeStats",
    "ConsumeStatsList",
    "OffsetWrapper",
    "QueryConsumeTimeSpanBody",
    "QueryCorrectionOffsetBody",
    "QueueTimeSpan",
    "TopicOffset",
    "TopicStatsTable",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOffset(Body):
    """The ends of one queue, and the store time of its last message; 0 for an empty queue."""

    min_offset: int = int64("minOffset")
    max_offset: int = int64("maxOffset")
    last_update_timestamp_ms: int = int64("lastUpdateTimestamp")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStatsTable(Body):
    """A topic's queues (202)."""

    offsets: Mapping[MessageQueue, TopicOffset] = map_of("offsetTable", MESSAGE_QUEUE, body_codec(TopicOffset))
    topic_put_tps: float = double("topicPutTps")


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetWrapper(Body):
    """A group's place in one queue.

    Attributes:
        broker_offset: end of the queue.
        consumer_offset: the group's committed offset.
        pull_offset: up to where it pulled; 0 from 4.9.
        last_timestamp_ms: store time of the message before the committed offset; 0 without one.
    """

    broker_offset: int = int64("brokerOffset")
    consumer_offset: int = int64("consumerOffset")
    pull_offset: int = int64("pullOffset")
    last_timestamp_ms: int = int64("lastTimestamp")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeStats(Body):
    """A group's progress (208)."""

    offsets: Mapping[MessageQueue, OffsetWrapper] = map_of("offsetTable", MESSAGE_QUEUE, body_codec(OffsetWrapper))
    consume_tps: float = double("consumeTps")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeStatsList(Body):
    """Progress of all groups of a broker (317): one map per group, from its name to its topics."""

    groups: tuple[Mapping[str, tuple[ConsumeStats, ...]], ...] = list_of(
        "consumeStatsList", MapCodec(TEXT, ListCodec(body_codec(ConsumeStats)))
    )
    broker_address: str | None = optional_text("brokerAddr")
    total_diff: int = int64("totalDiff")
    total_inflight_diff: int = int64("totalInflightDiff")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStatsItem(Body):
    """One window: sum, per second, and average of one call."""

    sum: int = int64("sum")
    tps: float = double("tps")
    average_per_call: float = double("avgpt")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStatsData(Body):
    """One statistic of a broker (315)."""

    minute: BrokerStatsItem = nested("statsMinute", BrokerStatsItem())
    hour: BrokerStatsItem = nested("statsHour", BrokerStatsItem())
    day: BrokerStatsItem = nested("statsDay", BrokerStatsItem())


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueTimeSpan(Body):
    """Store times in one queue; the texts are the same as ``yyyy-MM-dd#HH:mm:ss:SSS``."""

    queue: MessageQueue | None = optional_nested("messageQueue", MessageQueue)
    min_timestamp_ms: int = int64("minTimeStamp")
    min_timestamp_text: str | None = optional_text("minTimeStampStr")
    max_timestamp_ms: int = int64("maxTimeStamp")
    max_timestamp_text: str | None = optional_text("maxTimeStampStr")
    consume_timestamp_ms: int = int64("consumeTimeStamp")
    consume_timestamp_text: str | None = optional_text("consumeTimeStampStr")
    delay_ms: int = int64("delayTime")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryConsumeTimeSpanBody(Body):
    """Store times in all queues of a topic (303)."""

    spans: tuple[QueueTimeSpan, ...] = list_of("consumeTimeSpanSet", body_codec(QueueTimeSpan))


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryCorrectionOffsetBody(Body):
    """Queue id to the least offset of the other groups (308)."""

    offsets: Mapping[int, int] = map_of("correctionOffsets", INT32, INT64)
