"""Files under ``config/``, and settings.

=======================  ==========================================================================================
module                   holds
=======================  ==========================================================================================
``fastjson``             reader and writer of upstream's dialect of JSON
``config_file``          one file and its ``.bak``: loading with fall-back, crash-safe writing
``managed``              what the typed files have in common: load, change under a lock, persist
``topics``               ``topics.json`` (records in ``topic_config``, built-in ones in ``built_in_topics``)
``consumer_offsets``     ``consumerOffset.json`` and ``lmqConsumerOffset.json``
``subscription_groups``  ``subscriptionGroup.json`` (records in ``subscription_group_config``)
``delay_offsets``        ``delayOffset.json``
``documents``            all other files, kept as they are
``own_json``             reads the small files of CometMQ itself
``names``                which names of topics and groups are allowed
``settings``             the settings of a store, typed, with upstream's defaults; ``broker_settings`` those of serving
``setting_sources``      where they come from; ``broker_properties`` for a broker's own file
=======================  ==========================================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq._lazy import lazy_names

if TYPE_CHECKING:
    from cometmq.store_config.broker_properties import BrokerProperties, read_broker_properties
    from cometmq.store_config.broker_settings import BrokerSettings
    from cometmq.store_config.built_in_topics import system_topics
    from cometmq.store_config.config_file import ConfigFile, Loaded, Origin
    from cometmq.store_config.consumer_offsets import ConsumerOffsets, LightQueueOffsets
    from cometmq.store_config.data_version import DataVersion
    from cometmq.store_config.delay_offsets import DelayOffsets
    from cometmq.store_config.documents import DOCUMENTS, Document
    from cometmq.store_config.errors import (
        ConfigError,
        ConfigSyntaxError,
        ConfigValueError,
        SettingError,
        UnknownSetting,
    )
    from cometmq.store_config.names import validate_group, validate_topic
    from cometmq.store_config.setting_sources import LoadedSettings, load_settings
    from cometmq.store_config.settings import BrokerRole, FlushDiskType, IndexTags, StoreSettings, StoreType
    from cometmq.store_config.subscription_group_config import RetryPolicy, SubscriptionGroupConfig
    from cometmq.store_config.subscription_groups import SYSTEM_GROUPS, SubscriptionGroups
    from cometmq.store_config.topic_config import CleanupPolicy, MessageType, Perm, QueueType, TopicConfig
    from cometmq.store_config.topics import Topics

__all__ = [
    "DOCUMENTS",
    "SYSTEM_GROUPS",
    "BrokerProperties",
    "BrokerRole",
    "BrokerSettings",
    "CleanupPolicy",
    "ConfigError",
    "ConfigFile",
    "ConfigSyntaxError",
    "ConfigValueError",
    "ConsumerOffsets",
    "DataVersion",
    "DelayOffsets",
    "Document",
    "FlushDiskType",
    "IndexTags",
    "LightQueueOffsets",
    "Loaded",
    "LoadedSettings",
    "MessageType",
    "Origin",
    "Perm",
    "QueueType",
    "RetryPolicy",
    "SettingError",
    "StoreSettings",
    "StoreType",
    "SubscriptionGroupConfig",
    "SubscriptionGroups",
    "TopicConfig",
    "Topics",
    "UnknownSetting",
    "load_settings",
    "read_broker_properties",
    "system_topics",
    "validate_group",
    "validate_topic",
]

_PLACES = {
    "BrokerProperties": "cometmq.store_config.broker_properties",
    "BrokerRole": "cometmq.store_config.settings",
    "BrokerSettings": "cometmq.store_config.broker_settings",
    "CleanupPolicy": "cometmq.store_config.topic_config",
    "ConfigError": "cometmq.store_config.errors",
    "ConfigFile": "cometmq.store_config.config_file",
    "ConfigSyntaxError": "cometmq.store_config.errors",
    "ConfigValueError": "cometmq.store_config.errors",
    "ConsumerOffsets": "cometmq.store_config.consumer_offsets",
    "DOCUMENTS": "cometmq.store_config.documents",
    "DataVersion": "cometmq.store_config.data_version",
    "DelayOffsets": "cometmq.store_config.delay_offsets",
    "Document": "cometmq.store_config.documents",
    "FlushDiskType": "cometmq.store_config.settings",
    "IndexTags": "cometmq.store_config.settings",
    "LightQueueOffsets": "cometmq.store_config.consumer_offsets",
    "Loaded": "cometmq.store_config.config_file",
    "LoadedSettings": "cometmq.store_config.setting_sources",
    "MessageType": "cometmq.store_config.topic_config",
    "Origin": "cometmq.store_config.config_file",
    "Perm": "cometmq.store_config.topic_config",
    "QueueType": "cometmq.store_config.topic_config",
    "RetryPolicy": "cometmq.store_config.subscription_group_config",
    "SYSTEM_GROUPS": "cometmq.store_config.subscription_groups",
    "SettingError": "cometmq.store_config.errors",
    "StoreSettings": "cometmq.store_config.settings",
    "StoreType": "cometmq.store_config.settings",
    "SubscriptionGroupConfig": "cometmq.store_config.subscription_group_config",
    "SubscriptionGroups": "cometmq.store_config.subscription_groups",
    "TopicConfig": "cometmq.store_config.topic_config",
    "Topics": "cometmq.store_config.topics",
    "UnknownSetting": "cometmq.store_config.errors",
    "load_settings": "cometmq.store_config.setting_sources",
    "read_broker_properties": "cometmq.store_config.broker_properties",
    "system_topics": "cometmq.store_config.built_in_topics",
    "validate_group": "cometmq.store_config.names",
    "validate_topic": "cometmq.store_config.names",
}
"""Imported when they are first asked for: an embedded store needs few of them, and no settings of a broker."""

__getattr__, __dir__ = lazy_names(globals(), _PLACES)
