"""A client's heartbeat: itself and its subscriptions, every 30 seconds (code 34).

Source: remoting specification 2.7, 5.5, 5.6.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from cometmq.remoting.bodies.body import (
    INT32,
    TEXT,
    Body,
    body_codec,
    boolean,
    enumeration,
    int32,
    int64,
    list_of,
    optional_nested,
    optional_text,
    text,
)

__all__ = [
    "CheckClientRequestBody",
    "ConsumeFromWhere",
    "ConsumeType",
    "ConsumerData",
    "HeartbeatData",
    "MessageModel",
    "ProducerData",
    "SubscriptionData",
]


class ConsumeType(enum.Enum):
    """How a group gets its messages."""

    CONSUME_ACTIVELY = "PULL"
    CONSUME_PASSIVELY = "PUSH"
    CONSUME_POP = "POP"


class MessageModel(enum.Enum):
    """Whether the members of a group share the messages or each gets all of them."""

    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"


class ConsumeFromWhere(enum.Enum):
    """Where a group without progress begins. The last three are deprecated upstream."""

    CONSUME_FROM_LAST_OFFSET = 0
    CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = 1
    CONSUME_FROM_MIN_OFFSET = 2
    CONSUME_FROM_MAX_OFFSET = 3
    CONSUME_FROM_FIRST_OFFSET = 4
    CONSUME_FROM_TIMESTAMP = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionData(Body):
    """One topic that a group subscribes to.

    Attributes:
        topic: the topic.
        sub_string: the expression: ``*``, or tags joined by ``||``, or SQL92.
        tags: the tags of a TAG expression.
        codes: their hash codes, as Java's ``String.hashCode`` gives them.
        sub_version: when the subscription was made, milliseconds; a newer one wins.
        expression_type: ``TAG`` or ``SQL92``; None counts as TAG.
        class_filter_mode: True for the class filters of old versions.
    """

    topic: str = text("topic")
    sub_string: str = text("subString")
    tags: tuple[str, ...] = list_of("tagsSet", TEXT)
    codes: tuple[int, ...] = list_of("codeSet", INT32)
    sub_version: int = int64("subVersion")
    expression_type: str | None = optional_text("expressionType")
    class_filter_mode: bool = boolean("classFilterMode")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerData(Body):
    """One consumer group of a client."""

    group_name: str = text("groupName")
    consume_type: ConsumeType = enumeration("consumeType", ConsumeType.CONSUME_PASSIVELY)
    message_model: MessageModel = enumeration("messageModel", MessageModel.CLUSTERING)
    consume_from_where: ConsumeFromWhere = enumeration("consumeFromWhere", ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET)
    subscriptions: tuple[SubscriptionData, ...] = list_of("subscriptionDataSet", body_codec(SubscriptionData))
    unit_mode: bool = boolean("unitMode")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerData(Body):
    """One producer group of a client."""

    group_name: str = text("groupName")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatData(Body):
    """A heartbeat.

    Attributes:
        client_id: the client, unique in the cluster.
        producers: its producer groups.
        consumers: its consumer groups.
        fingerprint: 0 for a heartbeat of the first version; else a number that changes with the subscriptions.
        without_sub: True where the subscriptions are left out: those known stay as they are.
    """

    client_id: str = text("clientID")
    producers: tuple[ProducerData, ...] = list_of("producerDataSet", body_codec(ProducerData))
    consumers: tuple[ConsumerData, ...] = list_of("consumerDataSet", body_codec(ConsumerData))
    fingerprint: int = int32("heartbeatFingerprint")
    without_sub: bool = boolean("withoutSub")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckClientRequestBody(Body):
    """Code 46: may this client subscribe with this expression?"""

    client_id: str = text("clientId")
    group: str = text("group")
    namespace: str | None = optional_text("namespace")
    subscription: SubscriptionData | None = optional_nested("subscriptionData", SubscriptionData)
