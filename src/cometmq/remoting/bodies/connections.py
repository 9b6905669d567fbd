"""Connected clients: codes 38, 203, 204 and 328.

Source: remoting specification 5.6.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cometmq.remoting.bodies.body import (
    TEXT,
    Body,
    ListCodec,
    body_codec,
    enumeration,
    int32,
    int64,
    list_of,
    map_of,
    text,
)
from cometmq.remoting.bodies.heartbeat import ConsumeFromWhere, ConsumeType, MessageModel, SubscriptionData

__all__ = [
    "Connection",
    "ConsumerConnection",
    "GetConsumerListByGroupResponseBody",
    "ProducerConnection",
    "ProducerInfo",
    "ProducerTableInfo",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection(Body):
    """One client. ``language`` is the name of a :class:`cometmq.remoting.command.Language`."""

    client_id: str = text("clientId")
    client_address: str = text("clientAddr")
    language: str = text("language", "JAVA")
    version: int = int32("version")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConnection(Body):
    """The members of a consumer group, and their subscriptions."""

    connections: tuple[Connection, ...] = list_of("connectionSet", body_codec(Connection))
    subscriptions: Mapping[str, SubscriptionData] = map_of("subscriptionTable", TEXT, body_codec(SubscriptionData))
    consume_type: ConsumeType = enumeration("consumeType", ConsumeType.CONSUME_PASSIVELY)
    message_model: MessageModel = enumeration("messageModel", MessageModel.CLUSTERING)
    consume_from_where: ConsumeFromWhere = enumeration("consumeFromWhere", ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConnection(Body):
    """The members of a producer group."""

    connections: tuple[Connection, ...] = list_of("connectionSet", body_codec(Connection))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerInfo(Body):
    """One client of a producer group."""

    client_id: str = text("clientId")
    remote_ip: str = text("remoteIP")
    language: str = text("language", "JAVA")
    version: int = int32("version")
    last_update_timestamp_ms: int = int64("lastUpdateTimestamp")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerTableInfo(Body):
    """All producer groups of a broker."""

    groups: Mapping[str, tuple[ProducerInfo, ...]] = map_of("data", TEXT, ListCodec(body_codec(ProducerInfo)))


@dataclass(frozen=True, slots=True, kw_only=True)
class GetConsumerListByGroupResponseBody(Body):
    """The client ids of a consumer group."""

    consumer_ids: tuple[str, ...] = list_of("consumerIdList", TEXT)
