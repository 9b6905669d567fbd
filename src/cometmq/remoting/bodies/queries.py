"""A group's subscription (345), and units of a consume queue (321).

Source: remoting specification 5.10.
"""

from __future__ import annotations

from dataclasses import dataclass

from cometmq.remoting.bodies.body import (
    Body,
    body_codec,
    boolean,
    int32,
    int64,
    optional_list_of,
    optional_nested,
    optional_text,
    text,
)
from cometmq.remoting.bodies.heartbeat import SubscriptionData

__all__ = ["ConsumeQueueData", "QueryConsumeQueueResponseBody", "QuerySubscriptionResponseBody"]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuerySubscriptionResponseBody(Body):
    """A group's subscription to a topic; without one where it has none."""

    group: str = text("group")
    topic: str = text("topic")
    subscription: SubscriptionData | None = optional_nested("subscriptionData", SubscriptionData)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeQueueData(Body):
    """One unit of a consume queue, and what the asking group's filter makes of it."""

    physic_offset: int = int64("physicOffset")
    physic_size: int = int32("physicSize")
    tags_code: int = int64("tagsCode")
    extend_data_json: str | None = optional_text("extendDataJson")
    bit_map: str | None = optional_text("bitMap")
    eval: bool = boolean("eval")
    msg: str | None = optional_text("msg")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryConsumeQueueResponseBody(Body):
    """A piece of a consume queue."""

    subscription: SubscriptionData | None = optional_nested("subscriptionData", SubscriptionData)
    filter_data: str | None = optional_text("filterData")
    queue_data: tuple[ConsumeQueueData, ...] | None = optional_list_of("queueData", body_codec(ConsumeQueueData))
    max_queue_index: int = int64("maxQueueIndex")
    min_queue_index: int = int64("minQueueIndex")
