"""Files under ``config/``, and settings.

=======================  ==========================================================================================
module                   holds
=======================  ==========================================================================================
``fastjson``             reader and writer of upstream's dialect of JSON
``config_file``          one file and its ``.bak``: loading with fall-back, crash-safe writing
``managed``              what the typed files have in common: load, change under a lock, persist
``topics``               ``topics.json`` (records in ``topic_config``, built-in ones in ``system_topics``)
``consumer_offsets``     ``consumerOffset.json`` and ``lmqConsumerOffset.json``
``subscription_groups``  ``subscriptionGroup.json`` (records in ``subscription_group_config``)
``delay_offsets``        ``delayOffset.json``
``documents``            all other files, kept as they are
``names``                which names of topics and groups are allowed
``settings``             the settings of a store, typed, with upstream's defaults; ``broker_settings`` those of serving
``setting_sources``      where they come from; ``broker_properties`` for a broker's own file
=======================  ==========================================================================================
"""

from __future__ import annotations

from cometmq.store_config.broker_properties import BrokerProperties, read_broker_properties
from cometmq.store_config.broker_settings import BrokerSettings
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
from cometmq.store_config.settings import BrokerRole, FlushDiskType, StoreSettings, StoreType
from cometmq.store_config.subscription_group_config import RetryPolicy, SubscriptionGroupConfig
from cometmq.store_config.subscription_groups import SYSTEM_GROUPS, SubscriptionGroups
from cometmq.store_config.system_topics import system_topics
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
