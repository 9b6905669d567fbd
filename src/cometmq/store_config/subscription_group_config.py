"""One consumer group's configuration as ``subscriptionGroup.json`` has it, and its retry policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import cast

from cometmq.store_config.fastjson import JsonKey, JsonObject, JsonValue, bean
from cometmq.store_config.fields import INT64_MAX, INT64_MIN, Fields, as_int

__all__ = ["ExponentialRetry", "RetryPolicy", "SimpleSubscription", "SubscriptionGroupConfig"]

_SECOND_MS, _MINUTE_MS, _HOUR_MS = 1_000, 60_000, 3_600_000
DEFAULT_RETRY_DELAYS_MS: tuple[int, ...] = (
    *(seconds * _SECOND_MS for seconds in (1, 5, 10, 30)),
    *(minutes * _MINUTE_MS for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)),
    *(hours * _HOUR_MS for hours in (1, 2)),
)
"""The delay levels of a broker, which a customized policy without delays of its own uses."""

_RETRIES_COUNTED_MAX = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialRetry:
    """Delays that grow by a factor.

    Attributes:
        initial_ms: first delay.
        max_ms: longest delay.
        multiplier: factor from one delay to the next.
        unknown: members that this version of CometMQ does not know.
    """

    initial_ms: int = 5 * _SECOND_MS
    max_ms: int = 2 * _HOUR_MS
    multiplier: int = 2
    unknown: Mapping[JsonKey, JsonValue] = field(default_factory=dict, compare=False)

    @staticmethod
    def decode(fields: Fields) -> ExponentialRetry:
        """Read ``exponentialRetryPolicy``."""
        return ExponentialRetry(
            initial_ms=fields.int64("initial", 5 * _SECOND_MS),
            max_ms=fields.int64("max", 2 * _HOUR_MS),
            multiplier=fields.int64("multiplier", 2),
            unknown=fields.others(("initial", "max", "multiplier")),
        )

    def encode(self) -> JsonObject:
        """Return the members as upstream writes them."""
        return bean({"initial": self.initial_ms, "max": self.max_ms, "multiplier": self.multiplier}, self.unknown)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """When a message that failed is delivered again.

    Attributes:
        type: ``CUSTOMIZED`` or ``EXPONENTIAL``; another text is kept and acts as the default policy.
        customized_ms: the delays of a customized policy, or None for the broker's levels.
        exponential: the exponential policy, or None.
        unknown: members that this version of CometMQ does not know.
    """

    type: str = "CUSTOMIZED"
    customized_ms: tuple[int, ...] | None = None
    exponential: ExponentialRetry | None = None
    unknown: Mapping[JsonKey, JsonValue] = field(default_factory=dict, compare=False)

    def delay_ms(self, reconsume_times: int) -> int:
        """Return the delay before the next delivery of a message that was redelivered this many times."""
        times = max(reconsume_times, 0)
        if self.type == "EXPONENTIAL" and self.exponential is not None:
            factor: int = self.exponential.multiplier ** min(times, _RETRIES_COUNTED_MAX)
            return min(self.exponential.max_ms, self.exponential.initial_ms * factor)
        delays = (self.customized_ms if self.type == "CUSTOMIZED" else None) or DEFAULT_RETRY_DELAYS_MS
        # A first retry waits for the third delay, as when retries were delay levels.
        return delays[min(times + 2, len(delays) - 1)]

    @staticmethod
    def decode(fields: Fields | None) -> RetryPolicy:
        """Read ``groupRetryPolicy``."""
        if fields is None:
            return RetryPolicy()
        exponential = fields.fields("exponentialRetryPolicy")
        return RetryPolicy(
            type=fields.text("type", "CUSTOMIZED"),
            customized_ms=_customized(fields.fields("customizedRetryPolicy")),
            exponential=None if exponential is None else ExponentialRetry.decode(exponential),
            unknown=fields.others(("type", "customizedRetryPolicy", "exponentialRetryPolicy")),
        )

    def encode(self) -> JsonObject:
        """Return the members as upstream writes them."""
        customized: JsonObject | None = None
        if self.customized_ms is not None:
            customized = {"next": cast("list[JsonValue]", list(self.customized_ms))}
        known: dict[str, JsonValue] = {
            "customizedRetryPolicy": customized,
            "exponentialRetryPolicy": None if self.exponential is None else self.exponential.encode(),
            "type": self.type,
        }
        return bean(known, self.unknown)


def _customized(fields: Fields | None) -> tuple[int, ...] | None:
    if fields is None:
        return None
    delays = fields.array("next")
    if delays is None:
        return DEFAULT_RETRY_DELAYS_MS
    place = fields.member("next")
    return tuple(as_int(delay, minimum=INT64_MIN, maximum=INT64_MAX, member=place) for delay in delays)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimpleSubscription:
    """A subscription that the group is bound to.

    Attributes:
        topic: the topic.
        expression_type: ``TAG`` or ``SQL92``.
        expression: the filter.
        version: its version.
        unknown: members that this version of CometMQ does not know.
    """

    topic: str
    expression_type: str
    expression: str
    version: int
    unknown: Mapping[JsonKey, JsonValue] = field(default_factory=dict, compare=False)

    @staticmethod
    def decode(fields: Fields) -> SimpleSubscription:
        """Read one entry of ``subscriptionDataSet``."""
        return SimpleSubscription(
            topic=fields.text("topic", ""),
            expression_type=fields.text("expressionType", "TAG"),
            expression=fields.text("expression", "*"),
            version=fields.int64("version", 0),
            unknown=fields.others(("topic", "expressionType", "expression", "version")),
        )

    def encode(self) -> JsonObject:
        """Return the members as upstream writes them."""
        known: dict[str, JsonValue] = {
            "expression": self.expression,
            "expressionType": self.expression_type,
            "topic": self.topic,
            "version": self.version,
        }
        return bean(known, self.unknown)


_KNOWN = (
    "attributes",
    "brokerId",
    "consumeBroadcastEnable",
    "consumeEnable",
    "consumeFromMinEnable",
    "consumeMessageOrderly",
    "consumeTimeoutMinute",
    "groupName",
    "groupRetryPolicy",
    "groupSysFlag",
    "notifyConsumerIdsChangedEnable",
    "retryMaxTimes",
    "retryQueueNums",
    "subscriptionDataSet",
    "whichBrokerWhenConsumeSlowly",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionGroupConfig:
    """A consumer group. Immutable: change it with ``dataclasses.replace`` and :meth:`SubscriptionGroups.put`.

    Attributes:
        group_name: the name.
        consume_enable: False stops the group.
        consume_from_min_enable: whether a new group may begin at the oldest message.
        consume_broadcast_enable: whether broadcasting is allowed.
        consume_message_orderly: True for a group that pops in order.
        retry_queue_nums: queues of the retry topic.
        retry_max_times: redeliveries before a message goes to the dead letters.
        group_retry_policy: when a failed message is redelivered.
        broker_id: broker that the group reads from.
        which_broker_when_consume_slowly: broker to read from when the group lags.
        notify_consumer_ids_changed_enable: whether members hear of each other's coming and going.
        group_sys_flag: bits of unit mode.
        consume_timeout_minutes: how long a push consumer may take for a message.
        subscription_data_set: subscriptions that the group is bound to, or None for any.
        attributes: attributes, keys without prefix. Do not change it in place.
        unknown: members that this version of CometMQ does not know; kept when the file is written again.
    """

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    group_retry_policy: RetryPolicy = field(default_factory=RetryPolicy)
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minutes: int = 15
    subscription_data_set: tuple[SimpleSubscription, ...] | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)
    unknown: Mapping[JsonKey, JsonValue] = field(default_factory=dict, compare=False)

    @staticmethod
    def decode(fields: Fields, *, name: str) -> SubscriptionGroupConfig:
        """Read one entry of ``subscriptionGroupTable``; ``name`` is its key."""
        return SubscriptionGroupConfig(
            group_name=fields.text("groupName", name),
            consume_enable=fields.boolean("consumeEnable", True),
            consume_from_min_enable=fields.boolean("consumeFromMinEnable", True),
            consume_broadcast_enable=fields.boolean("consumeBroadcastEnable", True),
            consume_message_orderly=fields.boolean("consumeMessageOrderly", False),
            retry_queue_nums=fields.int32("retryQueueNums", 1),
            retry_max_times=fields.int32("retryMaxTimes", 16),
            group_retry_policy=RetryPolicy.decode(fields.fields("groupRetryPolicy")),
            broker_id=fields.int64("brokerId", 0),
            which_broker_when_consume_slowly=fields.int64("whichBrokerWhenConsumeSlowly", 1),
            notify_consumer_ids_changed_enable=fields.boolean("notifyConsumerIdsChangedEnable", True),
            group_sys_flag=fields.int32("groupSysFlag", 0),
            consume_timeout_minutes=fields.int32("consumeTimeoutMinute", 15),
            subscription_data_set=_subscriptions(fields),
            attributes=fields.texts("attributes"),
            unknown=fields.others(_KNOWN),
        )

    def without_unknown(self) -> SubscriptionGroupConfig:
        """Return the same group without the members that this version does not know, at every level."""
        policy = self.group_retry_policy
        exponential = None if policy.exponential is None else replace(policy.exponential, unknown={})
        bound = self.subscription_data_set
        return replace(
            self,
            group_retry_policy=replace(policy, exponential=exponential, unknown={}),
            subscription_data_set=None if bound is None else tuple(replace(one, unknown={}) for one in bound),
            unknown={},
        )

    def encode(self) -> JsonObject:
        """Return the entry as upstream's 5.3 line writes it."""
        subscriptions: list[JsonValue] | None = None
        if self.subscription_data_set is not None:
            subscriptions = [subscription.encode() for subscription in self.subscription_data_set]
        known: dict[str, JsonValue] = {
            "attributes": cast(JsonObject, dict(self.attributes)),
            "brokerId": self.broker_id,
            "consumeBroadcastEnable": self.consume_broadcast_enable,
            "consumeEnable": self.consume_enable,
            "consumeFromMinEnable": self.consume_from_min_enable,
            "consumeMessageOrderly": self.consume_message_orderly,
            "consumeTimeoutMinute": self.consume_timeout_minutes,
            "groupName": self.group_name,
            "groupRetryPolicy": self.group_retry_policy.encode(),
            "groupSysFlag": self.group_sys_flag,
            "notifyConsumerIdsChangedEnable": self.notify_consumer_ids_changed_enable,
            "retryMaxTimes": self.retry_max_times,
            "retryQueueNums": self.retry_queue_nums,
            "subscriptionDataSet": subscriptions,
            "whichBrokerWhenConsumeSlowly": self.which_broker_when_consume_slowly,
        }
        return bean(known, self.unknown)


def _subscriptions(fields: Fields) -> tuple[SimpleSubscription, ...] | None:
    entries = fields.array("subscriptionDataSet")
    if entries is None:
        return None
    place = fields.member("subscriptionDataSet")
    return tuple(SimpleSubscription.decode(Fields(entry, f"{place}[{i}]")) for i, entry in enumerate(entries))
