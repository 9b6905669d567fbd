"""Where topics and brokers are: codes 105, 106, 217 and 901.

Source: remoting specification 5.2, 5.3, 5.10.
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
    body_codec,
    boolean,
    int32,
    int64,
    list_of,
    map_of,
    optional_map_of,
    optional_nested,
    optional_text,
    text,
)
from cometmq.store_config.fastjson import JsonKey, JsonObject, JsonValue, Layout, encode

__all__ = [
    "STANDARD_JSON_VERSION",
    "TOPIC_QUEUE_MAPPING_INFO",
    "BrokerData",
    "BrokerMemberGroup",
    "ClusterInfo",
    "GetBrokerMemberGroupResponseBody",
    "QueueData",
    "TopicQueueMappingInfo",
    "TopicRouteData",
]

STANDARD_JSON_VERSION = 401
"""Version of a request (4.9.4) from which a route is answered in standard JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueData(Body):
    """A topic's queues at one broker."""

    broker_name: str = text("brokerName")
    read_queue_nums: int = int32("readQueueNums")
    write_queue_nums: int = int32("writeQueueNums")
    perm: int = int32("perm")
    topic_sys_flag: int = int32("topicSysFlag")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerData(Body):
    """A master and its slaves: one broker name.

    Attributes:
        cluster: the cluster's name.
        broker_name: the name that they share.
        broker_addresses: broker id to ``host:port``; id 0 is the master.
        zone_name: the zone, where one was given at registration.
        enable_acting_master: True where a slave may stand in for a lost master.
    """

    cluster: str | None = optional_text("cluster")
    broker_name: str = text("brokerName")
    broker_addresses: Mapping[int, str] = map_of("brokerAddrs", INT64, TEXT)
    zone_name: str | None = optional_text("zoneName")
    enable_acting_master: bool = boolean("enableActingMaster")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicQueueMappingInfo(Body):
    """One broker's part of a static topic's mapping."""

    topic: str = text("topic")
    scope: str | None = optional_text("scope")
    total_queues: int = int32("totalQueues")
    broker_name: str = text("bname")
    epoch: int = int64("epoch")
    dirty: bool = boolean("dirty")
    current_ids: Mapping[int, int] | None = optional_map_of("currIdMap", INT32, INT32)


TOPIC_QUEUE_MAPPING_INFO = body_codec(TopicQueueMappingInfo)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRouteData(Body):
    """A topic's route.

    Attributes:
        queue_datas: its queues, by broker.
        broker_datas: those brokers.
        filter_servers: a left-over of old versions: broker address to addresses.
        order_topic_conf: ``broker:queues`` joined by ``;`` for a topic whose order spans queues.
        queue_mappings: broker name to its part of a static topic.
    """

    queue_datas: tuple[QueueData, ...] = list_of("queueDatas", body_codec(QueueData))
    broker_datas: tuple[BrokerData, ...] = list_of("brokerDatas", body_codec(BrokerData))
    filter_servers: Mapping[str, tuple[str, ...]] = map_of("filterServerTable", TEXT, ListCodec(TEXT))
    order_topic_conf: str | None = optional_text("orderTopicConf")
    queue_mappings: Mapping[str, TopicQueueMappingInfo] | None = optional_map_of(
        "topicQueueMappingByBroker", TEXT, TOPIC_QUEUE_MAPPING_INFO
    )

    def to_standard_json(self) -> bytes:
        """Return the form for clients from 4.9.4 on: every key quoted, ASCII alone, maps sorted by key."""
        return encode(_sorted_maps(self.encode()), layout=Layout.BROWSER)


def _sorted_maps(value: JsonValue) -> JsonValue:
    """Sort the keys of all objects; those of beans are sorted already."""
    if isinstance(value, dict):
        members: JsonObject = {}
        for key in sorted(value, key=_key_order):
            members[key] = _sorted_maps(value[key])
        return members
    return [_sorted_maps(item) for item in value] if isinstance(value, list) else value


def _key_order(key: JsonKey) -> tuple[int, str]:
    return (key, "") if isinstance(key, int) else (0, key)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterInfo(Body):
    """All brokers that a name server knows, by name, and which of them make a cluster.

    Attributes:
        brokers: broker name to its living addresses.
        clusters: cluster to its broker names.
        lost: brokers that went without unregistering, by name, with their last address. A name server of CometMQ adds
            the member where there are any; upstream's never does, and its decoders pass over it.
    """

    brokers: Mapping[str, BrokerData] = map_of("brokerAddrTable", TEXT, body_codec(BrokerData))
    clusters: Mapping[str, tuple[str, ...]] = map_of("clusterAddrTable", TEXT, ListCodec(TEXT))
    lost: Mapping[str, BrokerData] | None = optional_map_of("cometmqLostBrokers", TEXT, body_codec(BrokerData))


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerMemberGroup(Body):
    """The members of one broker name."""

    cluster: str = text("cluster")
    broker_name: str = text("brokerName")
    broker_addresses: Mapping[int, str] = map_of("brokerAddrs", INT64, TEXT)


@dataclass(frozen=True, slots=True, kw_only=True)
class GetBrokerMemberGroupResponseBody(Body):
    """The answer to 901."""

    group: BrokerMemberGroup | None = optional_nested("brokerMemberGroup", BrokerMemberGroup)
