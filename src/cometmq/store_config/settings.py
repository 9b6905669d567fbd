"""The settings of a store and of the broker around it: upstream's options, typed, with upstream's defaults.

A field's name is upstream's in snake_case with the unit at its end; upstream's own name is in the field's metadata and
accepted everywhere a setting can be given (:mod:`cometmq.store_config.setting_sources`). The defaults are upstream's,
also where CometMQ's own entry points decide otherwise (by default ``cometmq.open`` flushes synchronously and deletes
nothing): ``LoadedSettings.given`` says which settings were configured.
"""

# The calls in the defaults are dataclasses.field with metadata; the rule does not see through them.
# ruff: noqa: RUF009

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path

from cometmq.store_config.setting_options import delay_levels_ms, hours, long_option, option, text_option

__all__ = ["BrokerRole", "FlushDiskType", "IndexTags", "StoreSettings", "StoreType"]

_KIB, _MIB, _GIB = 1024, 1024**2, 1024**3
_SECOND, _MINUTE, _HOUR = 1_000, 60_000, 3_600_000

_CONSUME_QUEUE_UNIT_BYTES = 20
_BATCH_UNIT_BYTES = 46
_INDEX_HEADER_BYTES, _INDEX_SLOT_BYTES, _INDEX_ENTRY_BYTES = 40, 4, 20


class FlushDiskType(enum.Enum):
    """When an append is acknowledged."""

    SYNC_FLUSH = "SYNC_FLUSH"
    ASYNC_FLUSH = "ASYNC_FLUSH"


class IndexTags(enum.Enum):
    """Whether the index gets the tags of messages, as RocketMQ's does since 5.4."""

    AS_FOUND = "AS_FOUND"
    ON = "ON"
    OFF = "OFF"


class BrokerRole(enum.Enum):
    """A broker's role in its group."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


class StoreType(enum.Enum):
    """Where the consume queues are kept."""

    DEFAULT = "default"
    ROCKSDB = "defaultRocksDB"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """Every option of a store that decides about its bytes or its behaviour, and those of the broker that touch it."""

    # --- Where things are
    store_path_root_dir: str | None = text_option("storePathRootDir", None, "directory of the store")
    store_path_commit_log: tuple[str, ...] = option(
        "storePathCommitLog", (), "folders of the commit log, separated by commas; default: commitlog in the store"
    )
    read_only_commit_log_store_paths: tuple[str, ...] = option(
        "readOnlyCommitLogStorePaths", (), "those of the folders that get no new files"
    )
    store_path_dledger_commit_log: str | None = text_option("storePathDLedgerCommitLog", None, "DLedger's log")
    store_path_epoch_file: str | None = text_option("storePathEpochFile", None, "the epoch file, if elsewhere")
    store_type: StoreType = option("storeType", StoreType.DEFAULT, "default: consume queues in files")

    # --- Sizes of files
    mapped_file_size_commit_log_bytes: int = option(
        "mappedFileSizeCommitLog",
        _GIB,
        "size of a commit log file, bytes",
        aliases=("mapedFileSizeCommitLog",),
        minimum=1,
    )
    mapped_file_size_consume_queue_bytes: int = option(
        "mappedFileSizeConsumeQueue",
        300_000 * _CONSUME_QUEUE_UNIT_BYTES,
        "size of a consume queue file, bytes; rounded up to whole units of 20",
        aliases=("mapedFileSizeConsumeQueue",),
        minimum=1,
    )
    mapped_file_size_consume_queue_ext_bytes: int = option(
        "mappedFileSizeConsumeQueueExt",
        48 * _MIB,
        "size of a consume queue extension file, bytes",
        aliases=("mapedFileSizeConsumeQueueExt",),
        minimum=1,
    )
    mapper_file_size_batch_consume_queue_bytes: int = option(
        "mapperFileSizeBatchConsumeQueue",
        300_000 * _BATCH_UNIT_BYTES,
        "size of a batch consume queue file, bytes",
        minimum=_BATCH_UNIT_BYTES,
        multiple_of=_BATCH_UNIT_BYTES,
    )
    mapped_file_size_timer_log_bytes: int = option(
        "mappedFileSizeTimerLog",
        100 * _MIB,
        "size of a timer log file, bytes",
        aliases=("mapedFileSizeTimerLog",),
        minimum=1,
    )
    max_hash_slot_num: int = option("maxHashSlotNum", 5_000_000, "hash slots of an index file", minimum=1)
    max_index_num: int = option("maxIndexNum", 20_000_000, "most entries of an index file", minimum=2)
    compaction_mapped_file_size_bytes: int = option(
        "compactionMappedFileSize", 100 * _MIB, "a compaction log file", minimum=1
    )
    compaction_cq_mapped_file_size_bytes: int = option(
        "compactionCqMappedFileSize", 10 * _MIB, "a compaction queue file", minimum=1
    )

    # --- Files written
    message_index_enable: bool = option("messageIndexEnable", True, "write the index for queries by key")
    message_index_tags: IndexTags = option(
        "messageIndexTags",
        IndexTags.AS_FOUND,
        "enter tags into the index, as RocketMQ does since 5.4: ON, OFF, or AS_FOUND: as its newest entries; ours, not "
        "upstream's",
    )
    enable_consume_queue_ext: bool = option("enableConsumeQueueExt", False, "write the extension of consume queues")
    bit_map_length_consume_queue_ext_bits: int = option(
        "bitMapLengthConsumeQueueExt", 64, "filter bits of an extension unit; overwritten by the filter's own"
    )
    enable_lmq: bool = option("enableLmq", False, "allow light message queues")
    enable_multi_dispatch: bool = option("enableMultiDispatch", False, "put a message into several queues")
    max_lmq_consume_queue_num: int = option("maxLmqConsumeQueueNum", 20_000, "most light message queues")
    enable_compaction: bool = option("enableCompaction", True, "compact topics that ask for it")
    enabled_append_prop_crc: bool = option(
        "enabledAppendPropCRC", False, "append a CRC over the whole record as a property"
    )
    force_verify_prop_crc: bool = option(
        "forceVerifyPropCRC", False, "check the CRC property of records instead of the body's CRC"
    )
    check_crc_on_recover: bool = option("checkCRCOnRecover", True, "check CRCs while recovering")
    auto_message_version_on_topic_len: bool = option(
        "autoMessageVersionOnTopicLen", True, "record version 2 for topics over 127 bytes"
    )
    max_message_size_bytes: int = option("maxMessageSize", 4 * _MIB, "largest message body, bytes", minimum=10)
    max_msgs_num_batch: int = option("maxMsgsNumBatch", 64, "most messages that a query by key returns")
    duplication_enable: bool = option("duplicationEnable", False, "recover from the consume queues' confirmed end")

    # --- Flush
    flush_disk_type: FlushDiskType = option(
        "flushDiskType",
        FlushDiskType.ASYNC_FLUSH,
        "SYNC_FLUSH: acknowledge when a message is on disk; ASYNC_FLUSH: at once",
    )
    sync_flush_timeout_ms: int = option("syncFlushTimeout", 5 * _SECOND, "longest wait of a send for its flush, ms")
    flush_interval_commit_log_ms: int = option("flushIntervalCommitLog", 500, "asynchronous flush of the log")
    flush_commit_log_timed: bool = option("flushCommitLogTimed", True, "sleep between flushes instead of waiting")
    flush_commit_log_least_pages: int = option("flushCommitLogLeastPages", 4, "least pages of 4 KiB to flush")
    flush_commit_log_thorough_interval_ms: int = option(
        "flushCommitLogThoroughInterval", 10 * _SECOND, "flush even a small amount this often"
    )
    flush_interval_consume_queue_ms: int = option("flushIntervalConsumeQueue", _SECOND, "flush of the queues")
    flush_consume_queue_least_pages: int = option("flushConsumeQueueLeastPages", 2, "least pages of 4 KiB to flush")
    flush_consume_queue_thorough_interval_ms: int = option(
        "flushConsumeQueueThoroughInterval", _MINUTE, "flush even a small amount this often"
    )
    commit_interval_commit_log_ms: int = option("commitIntervalCommitLog", 200, "transient pool to page cache")
    commit_commit_log_least_pages: int = option("commitCommitLogLeastPages", 4, "least pages to commit")
    transient_store_pool_enable: bool = option("transientStorePoolEnable", False, "append into buffers first")
    transient_store_pool_size: int = option("transientStorePoolSize", 5, "number of buffers")
    fast_fail_if_no_buffer_in_store_pool: bool = option("fastFailIfNoBufferInStorePool", False, "refuse, not wait")
    write_without_mmap: bool = option("writeWithoutMmap", False, "append through the descriptor")
    put_consume_queue_data_by_file_channel: bool = option(
        "putConsumeQueueDataByFileChannel", True, "write queue units through the descriptor"
    )
    warm_maped_file_enable: bool = option("warmMapedFileEnable", False, "touch every page of a new log file")
    flush_least_pages_when_warm_maped_file: int = option(
        "flushLeastPagesWhenWarmMapedFile", 4096, "pages between two flushes while warming"
    )
    use_reentrant_lock_when_put_message: bool = option("useReentrantLockWhenPutMessage", True, "a mutex for appends")
    topic_queue_lock_num: int = option("topicQueueLockNum", 32, "locks of queue offsets", minimum=1)
    os_page_cache_busy_time_out_ms: int = long_option(
        "osPageCacheBusyTimeOutMills", _SECOND, "an append longer than this means busy"
    )

    # --- Dispatch and recovery
    read_un_committed: bool = option("readUnCommitted", False, "dispatch beyond the confirmed end")
    recheck_reput_offset_from_cq: bool = option("recheckReputOffsetFromCq", False, "find the dispatch start in queues")
    enable_build_consume_queue_concurrently: bool = option(
        "enableBuildConsumeQueueConcurrently", False, "dispatch with several threads"
    )
    recover_concurrently: bool = option("recoverConcurrently", False, "recover queues with several threads")
    rocksdb_cq_double_write_enable: bool = option("rocksdbCQDoubleWriteEnable", False, "queues in files and RocksDB")

    # --- Retention
    file_reserved_time_hours: int = option("fileReservedTime", 72, "age at which log files expire, hours")
    delete_when_hours_of_day: str = text_option(
        "deleteWhen", "04", "hours of the day in which expired log files are deleted, separated by ;", check=hours
    )
    disk_max_used_space_ratio_percent: int = option(
        "diskMaxUsedSpaceRatio", 75, "disk use above which expired log files are deleted at any hour, percent"
    )
    disk_space_warning_level_ratio_percent: int = option(
        "diskSpaceWarningLevelRatio", 90, "disk use above which sends are refused, percent"
    )
    disk_space_clean_forcibly_ratio_percent: int = option(
        "diskSpaceCleanForciblyRatio", 85, "disk use above which log files of any age are deleted, percent"
    )
    clean_file_forcibly_enable: bool = option(
        "cleanFileForciblyEnable", True, "delete log files of any age on a full disk (diskSpaceCleanForciblyRatio)"
    )
    delete_file_batch_max: int = option("deleteFileBatchMax", 10, "most log files deleted in one round", minimum=1)
    clean_resource_interval_ms: int = option("cleanResourceInterval", 10 * _SECOND, "between two rounds", minimum=1)
    delete_commit_log_files_interval_ms: int = option("deleteCommitLogFilesInterval", 100, "between two log files")
    delete_consume_queue_files_interval_ms: int = option(
        "deleteConsumeQueueFilesInterval", 100, "pause after a queue that lost files"
    )
    destroy_maped_file_interval_forcibly_ms: int = option(
        "destroyMapedFileIntervalForcibly", 2 * _MINUTE, "longest wait for the readers of a deleted file"
    )
    redelete_hanged_file_interval_ms: int = option(
        "redeleteHangedFileInterval", 2 * _MINUTE, "between two tries at a file still in use"
    )
    replicas_per_disk_partition: int = option("replicasPerDiskPartition", 1, "stores on this partition", minimum=1)

    # --- Reading
    max_filter_message_size_bytes: int = option("maxFilterMessageSize", 16_000, "queue bytes scanned for a filter")
    max_transfer_bytes_on_message_in_memory: int = option(
        "maxTransferBytesOnMessageInMemory", 256 * _KIB, "most bytes of a pull from memory"
    )
    max_transfer_count_on_message_in_memory: int = option(
        "maxTransferCountOnMessageInMemory", 32, "most messages of a pull from memory"
    )
    max_transfer_bytes_on_message_in_disk: int = option(
        "maxTransferBytesOnMessageInDisk", 64 * _KIB, "most bytes of a pull from disk"
    )
    max_transfer_count_on_message_in_disk: int = option(
        "maxTransferCountOnMessageInDisk", 8, "most messages of a pull from disk"
    )
    access_message_in_memory_max_ratio_percent: int = option(
        "accessMessageInMemoryMaxRatio", 40, "percent of memory whose newest messages count as cached", maximum=100
    )
    travel_cq_file_num_when_get_message: int = option(
        "travelCqFileNumWhenGetMessage", 1, "queue files looked through for one answer", minimum=1
    )
    offset_check_in_slave: bool = option("offsetCheckInSlave", False, "correct a consumer's offset on a slave too")
    default_query_max_num: int = option("defaultQueryMaxNum", 32, "most messages of a query by key that names no limit")

    # --- Delays and timers
    message_delay_level: str = text_option(
        "messageDelayLevel",
        "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
        "delays of the levels 1, 2, …, such as 1s 5s 10s",
        check=delay_levels_ms,
    )
    flush_delay_offset_interval_ms: int = long_option(
        "flushDelayOffsetInterval", 10 * _SECOND, "time between two writes of delayOffset.json, ms", minimum=1
    )
    delay_offset_update_version_step: int = long_option(
        "delayOffsetUpdateVersionStep", 200, "updates per data version", minimum=1
    )
    enable_schedule_async_deliver: bool = option("enableScheduleAsyncDeliver", False, "deliver without waiting")
    timer_wheel_enable: bool = option("timerWheelEnable", True, "serve timer messages, and pops, which need them")
    timer_precision_ms: int = option("timerPrecisionMs", _SECOND, "precision of timer messages, ms", minimum=1)
    timer_roll_window_slots: int = option(
        "timerRollWindowSlot", 2 * 86_400, "slots of the timer wheel after which a message is put into the wheel again"
    )
    timer_flush_interval_ms: int = option(
        "timerFlushIntervalMs", _SECOND, "time between two flushes of the timer files, ms", minimum=1
    )
    timer_max_delay_seconds: int = option(
        "timerMaxDelaySec", 3 * 86_400, "longest delay of a timer message, s", minimum=1
    )
    timer_congest_num_each_slot: int = option(
        "timerCongestNumEachSlot", 2**31 - 1, "messages of a timer slot above which sends for it are refused", minimum=1
    )

    # --- Transactions
    transaction_timeout_ms: int = long_option(
        "transactionTimeOut", 6 * _SECOND, "age at which a half message is checked, ms", minimum=1
    )
    transaction_check_max: int = option(
        "transactionCheckMax", 15, "checks after which a half message is discarded", minimum=1
    )
    transaction_check_interval_ms: int = long_option(
        "transactionCheckInterval", 30 * _SECOND, "time between two rounds of checks, ms", minimum=1
    )
    transaction_op_msg_max_size_bytes: int = option(
        "transactionOpMsgMaxSize", 4096, "size at which an op record is written, bytes", minimum=1, maximum=1 << 20
    )
    transaction_op_batch_interval_ms: int = option(
        "transactionOpBatchInterval", 3 * _SECOND, "age at which an op record is written, ms", minimum=1
    )

    # --- Topics, groups, filters
    auto_create_topic_enable: bool = option("autoCreateTopicEnable", True, "create a topic on first use")
    auto_create_subscription_group: bool = option(
        "autoCreateSubscriptionGroup", True, "create a consumer group on first use"
    )
    default_topic_queue_nums: int = option(
        "defaultTopicQueueNums", 8, "queues of a topic that is created on first use", minimum=1
    )
    cluster_topic_enable: bool = option("clusterTopicEnable", True, "have a topic with the cluster's name")
    broker_topic_enable: bool = option("brokerTopicEnable", True, "have a topic with the broker's name")
    trace_topic_enable: bool = option("traceTopicEnable", False, "have a topic for message traces")
    msg_trace_topic_name: str = text_option(
        "msgTraceTopicName", "RMQ_SYS_TRACE_TOPIC", "name of the topic for message traces"
    )
    # Handles have 999 in place of the queue's number where messages are popped in order.
    revive_queue_num: int = option("reviveQueueNum", 8, "queues of the revive topic", minimum=1, maximum=999)
    enable_retry_topic_v2: bool = option("enableRetryTopicV2", False, "name pop retry topics %RETRY%group+topic")
    enable_split_metadata: bool = option("enableSplitMetadata", True, "send long tables to slaves in parts")
    split_metadata_size: int = option("splitMetadataSize", 2_000, "entries of a part", minimum=1)
    flush_consumer_offset_interval_ms: int = option(
        "flushConsumerOffsetInterval", 5 * _SECOND, "time between two writes of consumerOffset.json, ms", minimum=1
    )
    consumer_offset_update_version_step: int = long_option(
        "consumerOffsetUpdateVersionStep", 500, "commits per data version", minimum=1
    )
    enable_broadcast_offset_store: bool = option("enableBroadcastOffsetStore", True, "keep broadcasters' offsets")
    enable_property_filter: bool = option("enablePropertyFilter", False, "SQL92 subscriptions")
    enable_calc_filter_bit_map: bool = option("enableCalcFilterBitMap", False, "evaluate filters while dispatching")
    expect_consumer_num_use_filter: int = option("expectConsumerNumUseFilter", 32, "filters expected", minimum=1)
    max_error_rate_of_bloom_filter_percent: int = option(
        "maxErrorRateOfBloomFilter", 20, "false hits allowed", minimum=1, maximum=100
    )
    filter_data_clean_time_span_ms: int = long_option("filterDataCleanTimeSpan", 24 * _HOUR, "how long dead ones stay")
    filter_support_retry: bool = option("filterSupportRetry", False, "filter retried messages too")

    # --- The broker and its group
    broker_name: str | None = text_option("brokerName", None, "name of the broker")
    broker_cluster_name: str = text_option("brokerClusterName", "DefaultCluster", "name of the broker's cluster")
    broker_id: int = long_option("brokerId", 0, "id of the broker among those of its name; 0: the master", minimum=-1)
    broker_ip1: str | None = text_option(
        "brokerIP1", None, "address that clients connect to, in routes and message ids"
    )
    broker_ip2: str | None = text_option("brokerIP2", None, "address for slaves, as registered with name servers")
    listen_port: int = option("listenPort", 10911, "port to listen on", maximum=65_535)
    broker_role: BrokerRole = option("brokerRole", BrokerRole.ASYNC_MASTER, "role of the broker in its group")
    namesrv_addr: str | None = text_option("namesrvAddr", None, "addresses of name servers, separated by ;")
    slave_read_enable: bool = option("slaveReadEnable", False, "let slaves answer pulls")
    enable_slave_acting_master: bool = option("enableSlaveActingMaster", False, "a slave stands in for its master")
    enable_remote_escape: bool = option("enableRemoteEscape", False, "hand timers and transactions to other masters")
    enable_dleger_commit_log: bool = option("enableDLegerCommitLog", False, "use DLedger's log")
    ha_listen_port: int = option(
        "haListenPort", 0, "port for slaves, as registered with name servers; 0: listenPort + 1", maximum=65_535
    )
    ha_master_address: str | None = text_option("haMasterAddress", None, "where a slave finds its master")
    ha_send_heartbeat_interval_ms: int = option("haSendHeartbeatInterval", 5 * _SECOND, "between two heartbeats")
    ha_housekeeping_interval_ms: int = option("haHousekeepingInterval", 20 * _SECOND, "silence that ends a connection")
    ha_transfer_batch_size_bytes: int = option("haTransferBatchSize", 32 * _KIB, "most bytes of a transfer", minimum=1)
    ha_max_gap_not_in_sync_bytes: int = option(
        "haMaxGapNotInSync", 256 * _MIB, "lag of a slave still in sync", aliases=("haSlaveFallbehindMax",)
    )
    ha_max_time_slave_not_catchup_ms: int = long_option("haMaxTimeSlaveNotCatchup", 15 * _SECOND, "the same, in time")
    ha_flow_control_enable: bool = option("haFlowControlEnable", False, "limit transfers to slaves")
    max_ha_transfer_bytes_per_second: int = long_option("maxHaTransferByteInSecond", 100 * _MIB, "that limit")
    slave_timeout_ms: int = option("slaveTimeout", 3 * _SECOND, "wait for slaves under SYNC_MASTER")
    in_sync_replicas: int = option("inSyncReplicas", 1, "replicas that must have a message", minimum=1)
    min_in_sync_replicas: int = option("minInSyncReplicas", 1, "least of them when adjusted", minimum=1)
    all_ack_in_sync_state_set: bool = option("allAckInSyncStateSet", False, "every replica of the sync set")
    enable_auto_in_sync_replicas: bool = option("enableAutoInSyncReplicas", False, "adjust the number to who is there")

    # --- Derived values

    @property
    def consume_queue_file_bytes(self) -> int:
        """Size of a consume queue file: the setting rounded up to whole units of 20 bytes."""
        units = -(-self.mapped_file_size_consume_queue_bytes // _CONSUME_QUEUE_UNIT_BYTES)
        return units * _CONSUME_QUEUE_UNIT_BYTES

    @property
    def index_file_bytes(self) -> int:
        """Size of an index file."""
        slots = _INDEX_SLOT_BYTES * self.max_hash_slot_num
        return _INDEX_HEADER_BYTES + slots + _INDEX_ENTRY_BYTES * self.max_index_num

    @property
    def message_delay_levels_ms(self) -> tuple[int, ...]:
        """Delay of each level; level 1 is the first."""
        return delay_levels_ms(self.message_delay_level)

    @property
    def delete_hours_of_day(self) -> tuple[int, ...]:
        """Hours of the day, local time, in which old files go."""
        return hours(self.delete_when_hours_of_day)

    @property
    def disk_max_used_space_ratio(self) -> float:
        """Disk use that starts deletion, held between 10 % and 95 % as upstream does."""
        return _clamped(self.disk_max_used_space_ratio_percent, 10, 95)

    @property
    def disk_space_warning_level_ratio(self) -> float:
        """Disk use that stops appends, held between 35 % and 90 %."""
        return _clamped(self.disk_space_warning_level_ratio_percent, 35, 90)

    @property
    def disk_space_clean_forcibly_ratio(self) -> float:
        """Disk use at which files of any age are deleted, held between 30 % and 85 %."""
        return _clamped(self.disk_space_clean_forcibly_ratio_percent, 30, 85)

    def commit_log_paths(self, root: Path) -> tuple[Path, ...]:
        """Folders of the commit log: those of the setting, or ``commitlog`` in the store's root."""
        return tuple(Path(path) for path in self.store_path_commit_log) or (root / "commitlog",)


def _clamped(percent: int, least: int, most: int) -> float:
    return min(max(percent, least), most) / 100
