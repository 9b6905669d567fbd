"""The effect of each of upstream's settings on a CometMQ broker: as upstream's, refused for some values, or none.

A setting has its effect unless it is in one of the two tables here. Where a value asks for something that this broker
does not do, and nobody would notice before it matters (a second replica, access control), it is refused. The others are
harmless: they tune or switch on something that CometMQ does not have, or that is fixed; a broker that gets one names it
when it starts.

``docs/settings.md`` is made from this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address

from cometmq.errors import InvalidArgument
from cometmq.store_config.setting_options import setting_text

__all__ = ["HARMLESS", "REFUSALS", "Condition", "Refusal", "refuse_settings", "settings_without_effect"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """Values of another setting, without which a refusal does not apply.

    Attributes:
        name: upstream's name.
        text: the condition in words, for the docs.
        is_met: whether a value, as text, is one of them; empty where nobody gave the setting.
    """

    name: str
    text: str
    is_met: Callable[[str], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Values of one setting that are refused.

    Attributes:
        name: upstream's name.
        values: the refused values in words, for the docs.
        is_refused: whether a value, as text, is one of them.
        reason: the missing function, and the remedy.
        has_effect: other values have their effect; else they are harmless.
        only_with: values of another setting, without which no value is refused.
    """

    name: str
    values: str
    is_refused: Callable[[str], bool]
    reason: str
    has_effect: bool = False
    only_with: Condition | None = None


def _true(value: str) -> bool:
    return value.lower() == "true"


def _one_of(*values: str) -> Callable[[str], bool]:
    return lambda value: value.lower() in values


def _below(limit: int) -> Callable[[str], bool]:
    return lambda value: value.lstrip("+-").isdecimal() and int(value) < limit


def _is_numeric(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _needs_a_look_up(addresses: str) -> bool:
    """Return whether a list of addresses is empty, or has a host that is a name."""
    parts = [part.strip().removeprefix("http://") for part in addresses.replace(",", ";").split(";")]
    hosts = [part.rpartition(":")[0].strip("[]") for part in parts if part]
    return not hosts or not all(_is_numeric(host) for host in hosts)


def _no_credentials(name: str) -> Refusal:
    reason = (
        "CometMQ does not check credentials yet, and would let everybody do everything. Leave the setting out, and "
        "keep the broker where only those reach it who may"
    )
    return Refusal(name=name, values="true", is_refused=_true, reason=reason)


_NO_TLS = "CometMQ does not serve TLS. Leave the setting out, and put a TLS proxy in front of the broker"
_ONE_COPY = "CometMQ has no replicas, so SEND_OK would promise a second copy that does not exist. Use ASYNC_MASTER"

REFUSALS: tuple[Refusal, ...] = (
    Refusal(
        name="brokerRole",
        values="SLAVE",
        is_refused=_one_of("slave"),
        reason="a CometMQ broker is always a master. Use ASYNC_MASTER",
    ),
    Refusal(
        name="brokerRole",
        values="SYNC_MASTER",
        is_refused=_one_of("sync_master"),
        reason=_ONE_COPY,
    ),
    Refusal(
        name="brokerId",
        values="other than 0",
        is_refused=lambda value: value != "0",
        reason="a CometMQ broker is always a master, whose id is 0",
        has_effect=True,
    ),
    Refusal(
        name="storeType",
        values="defaultRocksDB",
        is_refused=_one_of("defaultrocksdb"),
        reason="CometMQ keeps consume queues in files. Use default",
        has_effect=True,
    ),
    Refusal(
        name="enableDLegerCommitLog",
        values="true",
        is_refused=_true,
        reason="CometMQ does not keep DLedger's log",
        has_effect=True,
    ),
    Refusal(
        name="enableControllerMode",
        values="true",
        is_refused=_true,
        reason="CometMQ has no replicas for a controller to elect. Leave the setting out",
    ),
    Refusal(
        name="rocksdbCQDoubleWriteEnable",
        values="true",
        is_refused=_true,
        reason="CometMQ does not copy consume queues to RocksDB. Leave the setting out",
    ),
    Refusal(
        name="readOnlyCommitLogStorePaths",
        values="any folder",
        is_refused=bool,
        reason="CometMQ puts new files into all folders of storePathCommitLog. Leave both folder lists at one folder",
    ),
    Refusal(
        name="flushIntervalCommitLog",
        values="below 500",
        is_refused=_below(500),
        reason="with ASYNC_FLUSH CometMQ flushes every 500 ms. Use flushDiskType=SYNC_FLUSH to lose less",
        only_with=Condition(
            name="flushDiskType",
            text="with `flushDiskType=ASYNC_FLUSH`",
            is_met=_one_of("async_flush"),
        ),
    ),
    Refusal(
        name="messageStorePlugIn",
        values="any class",
        is_refused=bool,
        reason="CometMQ loads no Java plug-ins. Leave the setting out",
    ),
    Refusal(
        name="metricsExporterType",
        values="other than DISABLE",
        is_refused=lambda value: value.lower() not in ("disable", "0", ""),
        reason="CometMQ exports no OpenTelemetry metrics. Leave it out, and watch `cometmq cluster status --json`",
    ),
    Refusal(
        name="fetchNamesrvAddrByAddressServer",
        values="true",
        is_refused=_true,
        reason="CometMQ asks no address server, and would register nowhere. Give namesrvAddr",
    ),
    Refusal(
        name="fetchNameSrvAddrByDnsLookup",
        values="true",
        is_refused=_true,
        reason="CometMQ takes each name of namesrvAddr for one server. Give all addresses in namesrvAddr",
        only_with=Condition(
            name="namesrvAddr",
            text="where `namesrvAddr` has a name, or is missing",
            is_met=_needs_a_look_up,
        ),
    ),
    _no_credentials("aclEnable"),
    _no_credentials("authenticationEnabled"),
    _no_credentials("authorizationEnabled"),
    Refusal(name="useTLS", values="true", is_refused=_true, reason=_NO_TLS),
    Refusal(name="tls.enable", values="true", is_refused=_true, reason=_NO_TLS),
    Refusal(
        name="tls.server.mode",
        values="enforcing",
        is_refused=_one_of("enforcing"),
        reason=_NO_TLS,
    ),
    Refusal(
        name="popConsumerKVServiceEnable",
        values="true",
        is_refused=_true,
        reason=(
            "CometMQ keeps what is popped in the log, and cannot read the RocksDB store of a broker that has it. Let "
            "that broker write its records into the log (mqadmin exportPopRecord), then leave the setting out"
        ),
    ),
    Refusal(
        name="timerRocksDBEnable",
        values="true",
        is_refused=_true,
        reason="CometMQ keeps timers in the timer wheel. Leave the setting out",
    ),
    Refusal(
        name="timerWheelSnapshotFlush",
        values="true",
        is_refused=_true,
        reason="CometMQ writes the timer wheel in place. Leave the setting out",
    ),
    Refusal(
        name="transRocksDBEnable",
        values="true",
        is_refused=_true,
        reason="CometMQ keeps no transactions in RocksDB. Leave the setting out",
    ),
)
"""The first that applies is raised."""

_TLS = "TLS, which CometMQ does not serve"

_HARMLESS: Mapping[str, str] = {
    "threads, queues and buffers of the Java broker; CometMQ's loops need none of them": """
        ackMessageThreadPoolNums ackThreadPoolQueueCapacity adminBrokerThreadPoolNums
        adminBrokerThreadPoolQueueCapacity asyncSendEnable batchDispatchRequestThreadPoolNums
        clientAsyncSemaphoreValue clientCallbackExecutorThreads clientChannelMaxIdleTimeSeconds
        clientCloseSocketIfTimeout clientManageThreadPoolNums clientManagerThreadPoolQueueCapacity
        clientOnewaySemaphoreValue clientPooledByteBufAllocatorEnable clientSocketRcvBufSize clientSocketSndBufSize
        clientWorkerThreads connectTimeoutMillis consumerManageThreadPoolNums consumerManagerThreadPoolQueueCapacity
        disableCallbackExecutor disableNettyWorkerGroup dispatchCqCacheNum dispatchCqThreads dispatchFromSenderThread
        enableDetailStat enableFastChannelEventProcess enableNetWorkFlowControl enableReconnectForGoAway
        endTransactionPoolQueueCapacity endTransactionThreadPoolNums forwardTimeout heartbeatThreadPoolNums
        heartbeatThreadPoolQueueCapacity highSpeedMode litePullMessageThreadPoolNums litePullThreadPoolQueueCapacity
        loadBalanceProcessorThreadPoolNums loadBalanceThreadPoolQueueCapacity lockInStrictMode
        maxAsyncPutMessageRequests maxReconnectIntervalTimeSeconds processReplyMessageThreadPoolNums
        pullMessageThreadPoolNums pullThreadPoolQueueCapacity putMessageFutureThreadPoolNums putMessageTimeout
        putThreadPoolQueueCapacity queryMessageThreadPoolNums queryThreadPoolQueueCapacity
        recoverThreadPoolNums replyThreadPoolQueueCapacity scanAvailableNameSrv sendMessageThreadPoolNums
        sendThreadPoolQueueCapacity serverAsyncSemaphoreValue serverCallbackExecutorThreads
        serverNettyWorkerGroupEnable serverOnewaySemaphoreValue serverPooledByteBufAllocatorEnable
        serverSocketBacklog serverSocketRcvBufSize serverSocketSndBufSize serverWorkerThreads socksProxyConfig
        spinLockCollisionRetreatOptimalDegree timerGetMessageThreadNum timerPutMessageThreadNum topicQueueLockNum
        transferMsgByHeap useABSLock useEpollNativeSelector useReentrantLockWhenPutMessage
        waitTimeMillsInAckQueue waitTimeMillsInAdminBrokerQueue waitTimeMillsInHeartbeatQueue
        waitTimeMillsInLitePullQueue waitTimeMillsInPullQueue waitTimeMillsInSendQueue
        waitTimeMillsInTransactionQueue writeBufferHighWaterMark writeBufferLowWaterMark brokerFastFailureEnable
        osPageCacheBusyTimeOutMills enableRegisterProducer""",
    "how and when files are written, mapped and deleted; CometMQ's engine decides it": """
        appendAckAsync appendCkAsync autoMessageVersionOnTopicLen bitMapLengthConsumeQueueExt checkCRCOnRecover
        cleanResourceInterval cleanSwapedMapInterval commitCommitLogLeastPages commitCommitLogThoroughInterval
        commitIntervalCommitLog commitLogForceSwapMapInterval commitLogSwapMapInterval
        commitLogSwapMapReserveFileNum correctLogicMinOffsetForceInterval correctLogicMinOffsetSleepInterval
        dataReadAheadEnable debugLockEnable deleteCommitLogFilesInterval deleteConsumeQueueFilesInterval
        destroyMapedFileIntervalForcibly diskFallRecorded duplicationEnable enableAcceleratedRecovery
        enableAsyncReput enableBuildConsumeQueueConcurrently enableLogConsumeQueueRepeatedlyBuildWhenRecover
        enableRunningFlagsInFlush fastFailIfNoBufferInStorePool flushCommitLogLeastPages
        flushCommitLogThoroughInterval flushCommitLogTimed flushConsumeQueueLeastPages
        flushConsumeQueueThoroughInterval flushIntervalConsumeQueue flushLeastPagesWhenWarmMapedFile
        logicQueueForceSwapMapInterval logicQueueSwapMapInterval logicQueueSwapMapReserveFileNum
        logicalDiskSpaceCleanForciblyThreshold mappedFileSwapEnable maxBatchDeleteFilesNum maxChecksumRange
        maxRecoveryCommitlogFiles messageIndexSafe putConsumeQueueDataByFileChannel putMsgIndexHightWater
        readUnCommitted recheckReputOffsetFromCq recoverConcurrently redeleteHangedFileInterval
        searchBcqByCacheEnable storePathBrokerIdentity transientStorePoolEnable transientStorePoolSize
        checkCommitLogOffsetOnRecover commitLogRecoverMaxNum sharedByteBufferNum timerWheelSnapshotIntervalMs
        travelCqFileNumWhenGetMessage wakeCommitWhenPutMessage wakeFlushWhenPutMessage warmMapedFileEnable
        writeWithoutMmap accessMessageInMemoryHotRatio maxFilterMessageSize
        flushConsumerOffsetHistoryInterval isolateLogEnable consumerOffsetUpdateVersionStep
        delayOffsetUpdateVersionStep replicasPerDiskPartition""",
    "slaves, controllers and broker groups; a CometMQ broker stands alone": """
        allAckInSyncStateSet asyncLearner brokerElectionPriority brokerHeartbeatInterval brokerNotActiveTimeoutMillis
        channelNotActiveInterval checkSyncStateSetPeriod cleanOfflineBrokerInterval compatibleWithOldNameSrv
        controllerAddr controllerHeartBeatTimeoutMills dLegerGroup dLegerPeers dLegerSelfId enableAutoInSyncReplicas
        enableRemoteEscape enableSlaveActingMaster enableSplitMetadata fetchControllerAddrByDnsLookup
        haFlowControlEnable haHousekeepingInterval haMasterAddress haMaxGapNotInSync haMaxTimeSlaveNotCatchup
        haSendHeartbeatInterval haTransferBatchSize inBrokerContainer inSyncReplicas maxHaTransferByteInSecond
        maxSlaveResendLength minInSyncReplicas offsetCheckInSlave preferredLeaderId sendHeartbeatTimeoutMillis
        skipPreOnline slaveReadEnable slaveTimeout splitMetadataSize startAcceptSendRequestTimeStamp
        storePathDLedgerCommitLog storePathEpochFile syncBrokerMemberGroupPeriod syncBrokerMetadataPeriod
        syncControllerMetadataPeriod syncFromLastFile syncMasterFlushOffsetWhenStartup totalReplicas""",
    "registration: CometMQ sends all topics, uncompressed, to every address of namesrvAddr": """
        compressedRegister enableSingleTopicRegister enableSplitRegistration fetchNamesrvAddrInterval
        rmqAddressServerDomain rmqAddressServerSubGroup splitRegistrationSize updateNameServerAddrPeriod""",
    "metrics, statistics and logs of the Java broker": """
        accountStatsEnable accountStatsPrintZeroValues autoDeleteUnusedStats commercialBaseCount commercialBigCount
        commercialEnable commercialSizePerMsg commercialTimerCount commercialTransCount enableConnectionMetrics
        enableLagAndDlqMetrics enableLmqStats enableMessageStoreMetrics enableNotifyBeforePopCalculateLag enablePopLog
        enablePopMetrics enableRemotingMetrics enableRequestMetrics enableRocksDBLog enableScheduleMessageStats
        enableStatsMetrics enableTransactionMetrics estimateAccumulation maxStatsIdleTimeInMinutes
        metricGrpcExporterIntervalInMills metricGrpcExporterTimeOutInMills metricLoggingExporterIntervalInMills
        metricsExportBatchMaxDataPoints metricsGrpcExporterHeader metricsGrpcExporterTarget metricsInDelta metricsLabel
        metricsOtelCardinalityLimit
        metricsPromExporterHost metricsPromExporterPort popConsumerKVServiceLog printChannelGroups
        printChannelGroupsMinNum sampleCountThreshold sampleSteps timerEnableCheckMetrics timerMetricSmallThreshold
        timerProgressLogIntervalMs transactionMetricFlushInterval""",
    "access control, which CometMQ does not have": """
        aclCacheExpiredSecond aclCacheMaxNum aclCacheRefreshSecond authConfigPath authenticationMetadataProvider
        authenticationProvider authenticationStrategy authenticationWhitelist authorizationMetadataProvider
        authorizationProvider authorizationStrategy authorizationWhitelist initAuthenticationUser
        innerClientAuthenticationCredentials migrateAuthFromV1Enabled statefulAuthenticationCacheExpiredSecond
        statefulAuthenticationCacheMaxNum statefulAuthorizationCacheExpiredSecond statefulAuthorizationCacheMaxNum
        userCacheExpiredSecond userCacheMaxNum userCacheRefreshSecond""",
    "administration: only a fixed list of settings can change at run time": """
        configBlackList configManagerVersion configName""",
    "RocksDB, which CometMQ does not use": """
        bottomMostCompressionTypeForConsumeQueueStore cleanRocksDBDirtyCQIntervalMin combineAssignOffsetCQType
        combineCQEnableCheckSelf combineCQLoadingCQTypes combineCQMaxExtraSearchCommitLogFiles combineCQPreferCQType
        memTableFlushIntervalMs popConsumerFSServiceInit popConsumerKVServiceInit realTimePersistRocksDBConfig
        rocksdbCompressionType rocksdbFlushWalFrequency rocksdbWalFileRollingThreshold statRocksDBCQIntervalSec
        combineCQUseRocksdbForLmq indexFileReadEnable indexFileWriteEnable indexRocksDBEnable
        iteratorWhenUseRocksdbConsumeQueue maxRocksDBIndexQueryDays persistConsumerOffsetIncrementally
        timerRecallToTimeWheelEnable timerRecallToTimelineEnable timerReputServiceCorePoolSize
        timerReputServiceMaxPoolSize timerReputServiceQueueCapacity timerRocksDBPrecisionMs
        timerRocksDBRollIntervalHours timerRocksDBRollMaxTps timerRocksDBRollRangeHours timerRocksDBStopScan
        timerRocksDBTimeExpiredMaxTps transWriteOriginTransHalfEnable transactionCheckRocksdbCoreThreads
        transactionCheckRocksdbMaxThreads transactionCheckRocksdbQueueCapacity useSeparateStorePathForRocksdbCQ
        useSingleRocksDBForAllConfigs""",
    "lite topics of 5.5, which CometMQ does not have": """
        enableLiteEventMode enableLitePopLog liteEventCheckInterval liteEventFullDispatchDelayTime
        liteEventFullDispatchDelayTimeForWildcardGroup liteLagCountMetricsEnable liteLagLatencyCollectEnable
        liteLagLatencyMetricsEnable liteLagLatencyTopK liteSubscriptionCheckInterval
        liteSubscriptionCheckTimeoutMills liteTtlCheckInterval maxClientEventCount maxLiteSubscriptionCount
        minLiteTTl""",
    "bits of SQL92 filters in the queues' extension: every message is looked at by its properties": """
        enableCalcFilterBitMap""",
    "filter servers of old releases": "filterServerNums",
    "filters of retry topics, which clients subscribe to by tag": "filterSupportRetry",
    "compaction; topics that ask for it are refused": """
        compactionCqMappedFileSize compactionMappedFileSize compactionScheduleInternal compactionThreadNum
        enableCompaction maxOffsetMapSize""",
    "reading old data slowly, which CometMQ does not do": """
        cgColdReadThreshold coldCtrStrategyEnable coldDataFlowControlEnable coldDataScanEnable
        consumerFallbehindThreshold disableConsumeIfConsumerReadSlowly globalColdReadThreshold
        timerColdDataCheckIntervalMs usePIDColdCtrStrategy""",
    "POP, timers and delays: pace and batches are fixed, and failures are retried": """
        enableNotifyAfterPopOrderLockRelease enablePopBatchAck enableScheduleAsyncDeliver enableSkipLongAwaitingAck
        appendTopicForTimerDeleteKey maxMessageFilterNumForNotification popFromRetryProbabilityForPriority
        popReviveConcurrency popReviveSkipIfGroupAbsent priorityOrderAsc useMessageFilterForNotification
        useSeparateRetryQueue popLongPollingForceNotifyInterval popPollingMapExpireTimeSeconds popPollingMapSize
        popResponseReturnActualRetryTopic popReviveMaxAttemptTimes popReviveMaxReturnSizePerRead reviveAckWaitMs
        reviveInterval reviveMaxSlow reviveScanTime scheduleAsyncDeliverMaxPendingLimit
        scheduleAsyncDeliverMaxResendNum2Blocked timerEnableRetryUntilSuccess timerInterceptDelayLevel
        timerSkipUnknownError timerStopEnqueue maxDelayTime""",
    "functions that CometMQ does not have, or always has": """
        broadcastOffsetExpireMaxSecond broadcastOffsetExpireSecond clusterName disappearTimeAfterStart enableBatchPush
        enableBroadcastOffsetStore enableCleanExpiredOffset enableCreateSysGroup enableMixedMessageType
        enableMultiDispatch enableShutdownGracefully maxConsumeQueueScan maxTopicLength pullBatchMaxMessageCount
        brokerConfigPath enableLmqQuota rocketmqHome subscriptionExpiredTimeout useStaticSubscription""",
    _TLS: """
        tls.client.authServer tls.client.certPath tls.client.keyPassword tls.client.keyPath
        tls.client.trustCertPath tls.config.file tls.server.authClient tls.server.certPath tls.server.keyPassword
        tls.server.keyPath tls.server.need.client.auth tls.server.trustCertPath tls.test.mode.enable""",
}

HARMLESS: Mapping[str, str] = {name: reason for reason, names in _HARMLESS.items() for name in names.split()}
"""Settings without effect, by upstream's name, with the subject that they belong to."""

_HARMLESS_VALUES: Mapping[tuple[str, str], str] = {("tls.server.mode", "permissive"): _TLS}
"""Values that ask for something that is not here but do without it, of settings of which other values are refused."""


def _text(value: object) -> str:
    text = setting_text(value).strip()
    return "" if text == "null" else text  # as a Java broker lists a setting without a value


def refuse_settings(given: Mapping[str, object]) -> None:
    """Refuse settings that ask for something that a CometMQ broker does not do.

    Args:
        given: upstream's names and the values that somebody gave; defaults are never refused.

    Raises:
        InvalidArgument: the text names the setting, its value and the fix.
    """
    for refusal in REFUSALS:
        if refusal.name not in given:
            continue
        condition = refusal.only_with
        if condition is not None and not condition.is_met(_text(given.get(condition.name))):
            continue
        value = _text(given[refusal.name])
        if refusal.is_refused(value):
            raise InvalidArgument(f"{refusal.name} is {value}: {refusal.reason}")


def settings_without_effect(given: Mapping[str, object]) -> str | None:
    """Return one line that names those settings that have no effect, by subject; None where all have theirs.

    Args:
        given: upstream's names and the values that somebody gave.
    """
    subjects: dict[str, list[str]] = {}
    for name, value in sorted(given.items()):
        subject = HARMLESS.get(name) or _HARMLESS_VALUES.get((name, _text(value).lower()))
        if subject is not None:
            subjects.setdefault(subject, []).append(name)
    if not subjects:
        return None
    return "settings without effect: " + "; ".join(f"{', '.join(names)} ({why})" for why, names in subjects.items())
