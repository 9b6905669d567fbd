"""A consumer's report on itself (307), and how it took one message (309).

Source: remoting specification 5.9.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from cometmq.remoting.bodies.body import (
    TEXT,
    Body,
    body_codec,
    boolean,
    double,
    enumeration,
    int32,
    int64,
    list_of,
    map_of,
    optional_int64,
    optional_text,
)
from cometmq.remoting.bodies.heartbeat import SubscriptionData
from cometmq.remoting.bodies.message_queue import MESSAGE_QUEUE, MessageQueue

__all__ = [
    "ConsumeMessageDirectlyResult",
    "ConsumeResult",
    "ConsumeStatus",
    "ConsumerRunningInfo",
    "PopProcessQueueInfo",
    "ProcessQueueInfo",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessQueueInfo(Body):
    """A consumer's share of one queue's messages. ``dropped`` is ``droped`` on the wire."""

    commit_offset: int = int64("commitOffset")
    cached_msg_min_offset: int = int64("cachedMsgMinOffset")
    cached_msg_max_offset: int = int64("cachedMsgMaxOffset")
    cached_msg_count: int = int32("cachedMsgCount")
    cached_msg_size_mib: int = int32("cachedMsgSizeInMiB")
    transaction_msg_min_offset: int = int64("transactionMsgMinOffset")
    transaction_msg_max_offset: int = int64("transactionMsgMaxOffset")
    transaction_msg_count: int = int32("transactionMsgCount")
    locked: bool = boolean("locked")
    try_unlock_times: int = int64("tryUnlockTimes")
    last_lock_timestamp_ms: int = int64("lastLockTimestamp")
    dropped: bool = boolean("droped")
    last_pull_timestamp_ms: int = int64("lastPullTimestamp")
    last_consume_timestamp_ms: int = int64("lastConsumeTimestamp")


@dataclass(frozen=True, slots=True, kw_only=True)
class PopProcessQueueInfo(Body):
    """A POP consumer's share of one queue's messages.

    Attributes:
        wait_ack_count: messages.
        dropped: the queue was given up.
        last_pop_timestamp_ms: when it popped last; of what a simple consumer holds, when the newest came.
        oldest_pop_timestamp_ms: when the oldest of them came; only simple consumers of CometMQ report it.
    """

    wait_ack_count: int = int32("waitAckCount")
    dropped: bool = boolean("droped")
    last_pop_timestamp_ms: int = int64("lastPopTimestamp")
    oldest_pop_timestamp_ms: int | None = optional_int64("oldestPopTimestamp")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeStatus(Body):
    """A consumer's rates of one topic: milliseconds per pull and per call of the listener, and per second."""

    pull_rt_ms: float = double("pullRT")
    pull_tps: float = double("pullTPS")
    consume_rt_ms: float = double("consumeRT")
    consume_ok_tps: float = double("consumeOKTPS")
    consume_failed_tps: float = double("consumeFailedTPS")
    consume_failed_messages: int = int64("consumeFailedMsgs")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerRunningInfo(Body):
    """A consumer from inside."""

    properties: Mapping[str, str] = map_of("properties", TEXT, TEXT)
    subscriptions: tuple[SubscriptionData, ...] = list_of("subscriptionSet", body_codec(SubscriptionData))
    queues: Mapping[MessageQueue, ProcessQueueInfo] = map_of("mqTable", MESSAGE_QUEUE, body_codec(ProcessQueueInfo))
    pop_queues: Mapping[MessageQueue, PopProcessQueueInfo] = map_of(
        "mqPopTable", MESSAGE_QUEUE, body_codec(PopProcessQueueInfo)
    )
    statuses: Mapping[str, ConsumeStatus] = map_of("statusTable", TEXT, body_codec(ConsumeStatus))
    user_consumer_info: Mapping[str, str] = map_of("userConsumerInfo", TEXT, TEXT)
    jstack: str | None = optional_text("jstack")


class ConsumeResult(enum.Enum):
    """How a listener took a message, in upstream's order."""

    CR_SUCCESS = 0
    CR_LATER = 1
    CR_ROLLBACK = 2
    CR_COMMIT = 3
    CR_THROW_EXCEPTION = 4
    CR_RETURN_NULL = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeMessageDirectlyResult(Body):
    """How a consumer took the one message."""

    order: bool = boolean("order")
    auto_commit: bool = boolean("autoCommit", True)
    consume_result: ConsumeResult = enumeration("consumeResult", ConsumeResult.CR_SUCCESS)
    remark: str | None = optional_text("remark")
    spent_time_ms: int = int64("spentTimeMills")
