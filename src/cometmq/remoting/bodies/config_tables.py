"""Topics, groups, offsets and their tables as bodies: codes 17 to 21, 43, 45, 103, 200, 201, 225, 351 to 353.

The records themselves are those of ``cometmq.store_config``: a topic is the same on disk and on the wire.

Source: remoting specification 5.8, 5.10.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from cometmq.remoting.bodies.body import (
    INT32,
    INT64,
    TEXT,
    Body,
    Codec,
    MapCodec,
    boolean,
    foreign,
    json_object,
    list_of,
    map_of,
    optional_text,
    text,
    value_of,
)
from cometmq.remoting.bodies.routes import TOPIC_QUEUE_MAPPING_INFO, TopicQueueMappingInfo
from cometmq.store_config.data_version import DataVersion
from cometmq.store_config.fastjson import JsonKey, JsonObject, JsonValue
from cometmq.store_config.fields import Fields
from cometmq.store_config.subscription_group_config import SubscriptionGroupConfig
from cometmq.store_config.topic_config import TopicConfig

__all__ = [
    "DATA_VERSION",
    "TOPIC_CONFIG",
    "ConsumerOffsetSerializeWrapper",
    "CreateTopicListRequestBody",
    "DelayOffsetSerializeWrapper",
    "GroupForbidden",
    "GroupList",
    "KVTable",
    "SubscriptionGroupList",
    "SubscriptionGroupWrapper",
    "TopicConfigAndMappingSerializeWrapper",
    "TopicConfigAndQueueMapping",
    "TopicConfigSerializeWrapper",
    "TopicList",
    "decode_data_version",
    "decode_subscription_group",
    "decode_topic",
]


def _version(fields: Fields, _: JsonKey) -> DataVersion:
    return DataVersion.decode(fields, now_ms=0)


def _topic(fields: Fields, name: JsonKey) -> TopicConfig:
    # An element of a list has a number for a name; the topic's own is inside.
    return TopicConfig.decode(fields, name=name if isinstance(name, str) else "")


def _group(fields: Fields, name: JsonKey) -> SubscriptionGroupConfig:
    return SubscriptionGroupConfig.decode(fields, name=name if isinstance(name, str) else "")


DATA_VERSION: Codec[DataVersion] = foreign(_version, DataVersion.encode)
TOPIC_CONFIG: Codec[TopicConfig] = foreign(_topic, TopicConfig.encode)
SUBSCRIPTION_GROUP: Codec[SubscriptionGroupConfig] = foreign(_group, SubscriptionGroupConfig.encode)


@dataclass(frozen=True, slots=True, kw_only=True)
class KVTable(Body):
    """Texts under names: a broker's runtime information (28), and a name server's namespaces (219)."""

    table: Mapping[str, str] = map_of("table", TEXT, TEXT)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicList(Body):
    """Names of topics."""

    topics: tuple[str, ...] = list_of("topicList", TEXT)
    broker_address: str | None = optional_text("brokerAddr")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupList(Body):
    """Names of groups."""

    groups: tuple[str, ...] = list_of("groupList", TEXT)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfigSerializeWrapper(Body):
    """All topics of a broker, as 4.9 sends them."""

    topics: Mapping[str, TopicConfig] = map_of("topicConfigTable", TEXT, TOPIC_CONFIG)
    data_version: DataVersion = value_of("dataVersion", DATA_VERSION, DataVersion())


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfigAndMappingSerializeWrapper(Body):
    """All topics of a broker, as 5.x sends them.

    The mappings of static topics stand beside them: the part that a name server passes on, and the details, which are
    kept unchanged.
    """

    topics: Mapping[str, TopicConfig] = map_of("topicConfigTable", TEXT, TOPIC_CONFIG)
    data_version: DataVersion = value_of("dataVersion", DATA_VERSION, DataVersion())
    mapping_data_version: DataVersion = value_of("mappingDataVersion", DATA_VERSION, DataVersion())
    queue_mappings: Mapping[str, TopicQueueMappingInfo] = map_of(
        "topicQueueMappingInfoMap", TEXT, TOPIC_QUEUE_MAPPING_INFO
    )
    queue_mapping_details: JsonObject = json_object("topicQueueMappingDetailMap")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfigAndQueueMapping(Body):
    """One topic (code 351). On the wire the topic's members stand beside the mapping's."""

    topic: TopicConfig
    mapping: JsonValue = None

    @classmethod
    def decode(cls, fields: Fields) -> TopicConfigAndQueueMapping:
        """Read the topic and the members beside it."""
        topic = TopicConfig.decode(fields, name="")
        return TopicConfigAndQueueMapping(topic=topic, mapping=fields.value("mappingDetail"))

    def encode(self) -> JsonObject:
        """Return the topic's members and the mapping, if there is one."""
        members = self.topic.encode()
        members.pop("mappingDetail", None)
        if self.mapping is not None:
            members["mappingDetail"] = self.mapping
        return {name: members[name] for name in sorted(members, key=str)}


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopicListRequestBody(Body):
    """Topics to make (18)."""

    topics: tuple[TopicConfig, ...] = list_of("topicConfigList", TOPIC_CONFIG)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionGroupWrapper(Body):
    """All consumer groups of a broker (201)."""

    groups: Mapping[str, SubscriptionGroupConfig] = map_of("subscriptionGroupTable", TEXT, SUBSCRIPTION_GROUP)
    forbidden: Mapping[str, Mapping[str, int]] = map_of("forbiddenTable", TEXT, MapCodec(TEXT, INT32))
    data_version: DataVersion = value_of("dataVersion", DATA_VERSION, DataVersion())


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionGroupList(Body):
    """Groups to make (225)."""

    groups: tuple[SubscriptionGroupConfig, ...] = list_of("groupConfigList", SUBSCRIPTION_GROUP)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupForbidden(Body):
    """Whether a group may read a topic (353)."""

    topic: str = text("topic")
    group: str = text("group")
    readable: bool = boolean("readable", True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOffsetSerializeWrapper(Body):
    """Progress of all groups (43): ``topic@group`` to queue id to offset."""

    offsets: Mapping[str, Mapping[int, int]] = map_of("offsetTable", TEXT, MapCodec(INT32, INT64))
    data_version: DataVersion = value_of("dataVersion", DATA_VERSION, DataVersion())


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayOffsetSerializeWrapper(Body):
    """Progress of the delay levels (45)."""

    offsets: Mapping[int, int] = map_of("offsetTable", INT32, INT64)
    data_version: DataVersion | None = value_of("dataVersion", cast("Codec[DataVersion | None]", DATA_VERSION), None)


def decode_topic(fields: Fields) -> TopicConfig:
    """Read a body that is one topic; for :func:`cometmq.remoting.bodies.body.decode_body`."""
    return TopicConfig.decode(fields, name="")


def decode_subscription_group(fields: Fields) -> SubscriptionGroupConfig:
    """Read a body that is one group (200, 352); for :func:`cometmq.remoting.bodies.body.decode_body`."""
    return SubscriptionGroupConfig.decode(fields, name="")


def decode_data_version(fields: Fields) -> DataVersion:
    """Read a body that is one data version (322); for :func:`cometmq.remoting.bodies.body.decode_body`."""
    return DataVersion.decode(fields, now_ms=0)
