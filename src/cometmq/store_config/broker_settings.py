"""The settings that only a serving broker has, on top of those of its store: upstream's options, with its defaults.

They come from the same places as a store's (:mod:`cometmq.store_config.setting_sources`). Where CometMQ's broker
decides otherwise than upstream (by default it listens on loopback, and flushes synchronously),
``LoadedSettings.given`` says which settings were configured.
"""

# The calls in the defaults are dataclasses.field with metadata; the rule does not see through them.
# ruff: noqa: RUF009

from __future__ import annotations

from dataclasses import dataclass

from cometmq.store_config.request_modes import MessageRequestMode
from cometmq.store_config.setting_options import long_option, option, text_option
from cometmq.store_config.settings import StoreSettings

__all__ = ["BrokerSettings"]

_SECOND = 1_000
_READ_WRITE = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings(StoreSettings):
    """Every setting that CometMQ knows: the store's, and those of the broker that serves it."""

    # --- Listening
    bind_address: str | None = text_option("bindAddress", None, "address to listen on; default: the loopback")
    server_channel_max_idle_time_seconds: int = option(
        "serverChannelMaxIdleTimeSeconds", 120, "silence after which a connection is closed, s", minimum=1
    )
    connections_max: int = option(
        "connectionsMax", 20_000, "most connections; fewer where descriptors are few; ours, not upstream's", minimum=1
    )
    connections_per_address_max: int = option(
        "connectionsPerAddressMax", 0, "most connections of one address; 0: half of all; ours, not upstream's"
    )
    server_selector_threads: int = option(
        "serverSelectorThreads", 1, "threads that serve connections; upstream's default is 3", minimum=1, maximum=16
    )
    shutdown_wait_time_seconds: int = option("shutdownWaitTimeSeconds", 30, "longest wait for a clean stop, s")

    # --- Permissions
    broker_permission: int = option(
        "brokerPermission", _READ_WRITE, "allowed operations of clients: 4 read, 2 write, 6 both", maximum=7
    )
    recall_message_enable: bool = option("recallMessageEnable", False, "allow recall of timer messages")
    allow_recall_when_broker_not_writeable: bool = option(
        "allowRecallWhenBrokerNotWriteable", True, "recall where brokerPermission forbids writing"
    )
    reject_pull_consumer_enable: bool = option("rejectPullConsumerEnable", False, "refuse pull consumers")
    lite_pull_message_enable: bool = option("litePullMessageEnable", True, "allow lite pull consumers")
    validate_system_topic_when_update_topic: bool = option(
        "validateSystemTopicWhenUpdateTopic", True, "refuse topics with names of system topics"
    )
    clear_retry_topic_when_delete_topic: bool = option(
        "clearRetryTopicWhenDeleteTopic", True, "delete a topic's pop retry topics with it"
    )
    auto_create_topic_max: int = option(
        "autoCreateTopicMax", 100_000, "most topics that sends can create by use; ours, not upstream's"
    )
    auto_create_group_max: int = option(
        "autoCreateGroupMax", 100_000, "most groups that clients can create by use; ours, not upstream's"
    )

    # --- Staged writes: Spark's, exactly once
    staged_writes_enable: bool = option(
        "stagedWritesEnable",
        False,
        "accept staged writes: files of messages that are appended exactly once; ours, not upstream's",
    )
    staged_bytes_max: int = long_option(
        "stagedBytesMax",
        16 << 30,
        "most bytes of staged writes that are not appended yet; ours, not upstream's",
        minimum=1,
    )
    staged_jobs_max: int = option("stagedJobsMax", 64, "most staged writes at a time; ours, not upstream's", minimum=1)
    staged_job_expire_time_ms: int = option(
        "stagedJobExpireTime",
        86_400 * _SECOND,
        "silence after which a staged write is dropped, ms; ours, not upstream's",
        minimum=_SECOND,
        maximum=86_400 * _SECOND,
    )

    # --- Sending and pulling
    region_id: str = text_option("regionId", "DefaultRegion", "region in answers and messages")
    trace_on: bool = option("traceOn", True, "ask clients to trace messages")
    reject_transaction_message: bool = option("rejectTransactionMessage", False, "refuse transactional messages")
    store_reply_message_enable: bool = option(
        "storeReplyMessageEnable", True, "store replies to requests, besides pushing them to their requesters"
    )
    long_polling_enable: bool = option("longPollingEnable", True, "hold a pull until a message arrives")
    short_polling_time_ms: int = long_option(
        "shortPollingTimeMills", _SECOND, "how long a pull is held without longPollingEnable, ms", minimum=1
    )
    wait_time_in_send_queue_ms: int = long_option(
        "waitTimeMillsInSendQueue", 200, "a send that waited longer is refused", minimum=1
    )

    # --- Consumers
    notify_consumer_ids_changed_enable: bool = option(
        "notifyConsumerIdsChangedEnable", True, "notify consumers when members join or leave their group"
    )
    real_time_notify_consumer_change: bool = option(
        "realTimeNotifyConsumerChange", True, "notify consumers of changes in their group at once, not every 15 s"
    )
    channel_expired_timeout_ms: int = long_option(
        "channelExpiredTimeout", 120 * _SECOND, "silence after which a client counts as gone, ms", minimum=1
    )
    use_server_side_reset_offset: bool = option(
        "useServerSideResetOffset", True, "reset offsets in the broker instead of in the clients"
    )

    # --- Queues that the broker assigns
    server_load_balancer_enable: bool = option(
        "serverLoadBalancerEnable", True, "assign queues to members; else each member gets all"
    )
    default_message_request_mode: MessageRequestMode = option(
        "defaultMessageRequestMode", MessageRequestMode.PULL, "pull or pop, for groups without a mode of their own"
    )
    default_pop_share_queue_num: int = option(
        "defaultPopShareQueueNum",
        -1,
        "default number of members whose queues a member pops besides its own; -1: all",
        minimum=-1,
    )
    load_balance_poll_name_server_interval_ms: int = long_option(
        "loadBalancePollNameServerInterval",
        30 * _SECOND,
        "time between two requests for the routes of assigned topics, ms",
        minimum=1,
    )

    # --- Messages that are popped
    enable_pop_buffer_merge: bool = option("enablePopBufferMerge", False, "keep checkpoints of pops in memory first")
    pop_ck_stay_buffer_time_ms: int = option(
        "popCkStayBufferTime", 10 * _SECOND, "longest time of a checkpoint in memory, ms", minimum=1
    )
    pop_ck_stay_buffer_time_out_ms: int = option(
        "popCkStayBufferTimeOut",
        3 * _SECOND,
        "a checkpoint leaves memory this long before its invisible time ends, ms",
        minimum=1,
    )
    pop_ck_max_buffer_size: int = option("popCkMaxBufferSize", 200_000, "most checkpoints of pops in memory", minimum=1)
    pop_ck_offset_max_queue_size: int = option(
        "popCkOffsetMaxQueueSize", 20_000, "most checkpoints of pops in memory for one group and queue", minimum=1
    )
    enable_pop_message_threshold: bool = option(
        "enablePopMessageThreshold", False, "limit the unacknowledged messages of a group (popInflightMessageThreshold)"
    )
    pop_inflight_message_threshold: int = option(
        "popInflightMessageThreshold",
        10_000,
        "most unacknowledged messages of a group and queue; then its pops get nothing",
        minimum=1,
    )
    pop_from_retry_probability: int = option(
        "popFromRetryProbability", 20, "how many of 100 pops read the retry topic first", maximum=100
    )
    retrieve_message_from_pop_retry_topic_v1: bool = option(
        "retrieveMessageFromPopRetryTopicV1",
        True,
        "with enableRetryTopicV2, also read retry topics named %RETRY%group_topic",
    )
    init_pop_offset_by_check_msg_in_mem: bool = option(
        "initPopOffsetByCheckMsgInMem",
        True,
        "start a group that begins at the end at the first message of a queue whose messages are all recent",
    )
    max_pop_polling_size: int = option("maxPopPollingSize", 100_000, "most held pops of each network thread", minimum=1)
    pop_polling_size: int = option(
        "popPollingSize", 1_024, "most held pops of one group and queue on a network thread", minimum=1
    )
    skip_when_ck_re_put_reach_max_times: bool = option(
        "skipWhenCKRePutReachMaxTimes", False, "drop a message that could not be put into its retry topic 17 times"
    )

    # --- Name servers
    register_name_server_period_ms: int = option(
        "registerNameServerPeriod", 30 * _SECOND, "time between two registrations, ms; at least 10,000, at most 60,000"
    )
    register_broker_timeout_ms: int = option(
        "registerBrokerTimeoutMills", 24 * _SECOND, "longest wait for a name server's answer, ms", minimum=1
    )
    force_register: bool = option(
        "forceRegister", True, "register with all topics each time, whether they changed or not"
    )
