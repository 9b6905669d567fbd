"""Request and response codes, and where each is served.

Made from ``csrc/wire/codes.toml`` by ``tools/make_codes.py``; do not edit.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

__all__ = [
    "BROKER_REQUESTS",
    "ENGINE_REQUESTS",
    "NAMESRV_REQUESTS",
    "NEVER_REQUESTS",
    "NOT_YET_REQUESTS",
    "RequestCode",
    "ResponseCode",
]


class RequestCode(enum.IntEnum):
    """The operation that a request asks for."""

    SEND_MESSAGE = 10
    PULL_MESSAGE = 11
    QUERY_MESSAGE = 12
    QUERY_BROKER_OFFSET = 13
    QUERY_CONSUMER_OFFSET = 14
    UPDATE_CONSUMER_OFFSET = 15
    UPDATE_AND_CREATE_TOPIC = 17
    UPDATE_AND_CREATE_TOPIC_LIST = 18
    GET_ALL_TOPIC_CONFIG = 21
    GET_TOPIC_CONFIG_LIST = 22
    GET_TOPIC_NAME_LIST = 23
    UPDATE_BROKER_CONFIG = 25
    GET_BROKER_CONFIG = 26
    TRIGGER_DELETE_FILES = 27
    GET_BROKER_RUNTIME_INFO = 28
    SEARCH_OFFSET_BY_TIMESTAMP = 29
    GET_MAX_OFFSET = 30
    GET_MIN_OFFSET = 31
    GET_EARLIEST_MSG_STORETIME = 32
    VIEW_MESSAGE_BY_ID = 33
    HEART_BEAT = 34
    UNREGISTER_CLIENT = 35
    CONSUMER_SEND_MSG_BACK = 36
    END_TRANSACTION = 37
    GET_CONSUMER_LIST_BY_GROUP = 38
    CHECK_TRANSACTION_STATE = 39
    NOTIFY_CONSUMER_IDS_CHANGED = 40
    LOCK_BATCH_MQ = 41
    UNLOCK_BATCH_MQ = 42
    GET_ALL_CONSUMER_OFFSET = 43
    GET_ALL_DELAY_OFFSET = 45
    CHECK_CLIENT_CONFIG = 46
    GET_CLIENT_CONFIG = 47
    UPDATE_AND_CREATE_ACL_CONFIG = 50
    DELETE_ACL_CONFIG = 51
    GET_BROKER_CLUSTER_ACL_INFO = 52
    UPDATE_GLOBAL_WHITE_ADDRS_CONFIG = 53
    GET_BROKER_CLUSTER_ACL_CONFIG = 54
    GET_TIMER_CHECK_POINT = 60
    GET_TIMER_METRICS = 61
    PUT_KV_CONFIG = 100
    GET_KV_CONFIG = 101
    DELETE_KV_CONFIG = 102
    REGISTER_BROKER = 103
    UNREGISTER_BROKER = 104
    GET_ROUTEINFO_BY_TOPIC = 105
    GET_BROKER_CLUSTER_INFO = 106
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = 200
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG = 201
    GET_TOPIC_STATS_INFO = 202
    GET_CONSUMER_CONNECTION_LIST = 203
    GET_PRODUCER_CONNECTION_LIST = 204
    WIPE_WRITE_PERM_OF_BROKER = 205
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER = 206
    DELETE_SUBSCRIPTIONGROUP = 207
    GET_CONSUME_STATS = 208
    SUSPEND_CONSUMER = 209
    RESUME_CONSUMER = 210
    RESET_CONSUMER_OFFSET_IN_CONSUMER = 211
    RESET_CONSUMER_OFFSET_IN_BROKER = 212
    ADJUST_CONSUMER_THREAD_POOL = 213
    WHO_CONSUME_THE_MESSAGE = 214
    DELETE_TOPIC_IN_BROKER = 215
    DELETE_TOPIC_IN_NAMESRV = 216
    REGISTER_TOPIC_IN_NAMESRV = 217
    GET_KVLIST_BY_NAMESPACE = 219
    RESET_CONSUMER_CLIENT_OFFSET = 220
    GET_CONSUMER_STATUS_FROM_CLIENT = 221
    INVOKE_BROKER_TO_RESET_OFFSET = 222
    INVOKE_BROKER_TO_GET_CONSUMER_STATUS = 223
    GET_TOPICS_BY_CLUSTER = 224
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST = 225
    QUERY_TOPIC_CONSUME_BY_WHO = 300
    REGISTER_FILTER_SERVER = 301
    REGISTER_MESSAGE_FILTER_CLASS = 302
    QUERY_CONSUME_TIME_SPAN = 303
    GET_SYSTEM_TOPIC_LIST_FROM_NS = 304
    GET_SYSTEM_TOPIC_LIST_FROM_BROKER = 305
    CLEAN_EXPIRED_CONSUMEQUEUE = 306
    GET_CONSUMER_RUNNING_INFO = 307
    QUERY_CORRECTION_OFFSET = 308
    CONSUME_MESSAGE_DIRECTLY = 309
    SEND_MESSAGE_V2 = 310
    GET_UNIT_TOPIC_LIST = 311
    GET_HAS_UNIT_SUB_TOPIC_LIST = 312
    GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST = 313
    CLONE_GROUP_OFFSET = 314
    VIEW_BROKER_STATS_DATA = 315
    CLEAN_UNUSED_TOPIC = 316
    GET_BROKER_CONSUME_STATS = 317
    UPDATE_NAMESRV_CONFIG = 318
    GET_NAMESRV_CONFIG = 319
    SEND_BATCH_MESSAGE = 320
    QUERY_CONSUME_QUEUE = 321
    QUERY_DATA_VERSION = 322
    RESUME_CHECK_HALF_MESSAGE = 323
    SEND_REPLY_MESSAGE = 324
    SEND_REPLY_MESSAGE_V2 = 325
    PUSH_REPLY_MESSAGE_TO_CLIENT = 326
    ADD_WRITE_PERM_OF_BROKER = 327
    GET_ALL_PRODUCER_INFO = 328
    DELETE_EXPIRED_COMMITLOG = 329
    QUERY_TOPICS_BY_CONSUMER = 343
    QUERY_SUBSCRIPTION_BY_CONSUMER = 345
    GET_TOPIC_CONFIG = 351
    GET_SUBSCRIPTIONGROUP_CONFIG = 352
    UPDATE_AND_GET_GROUP_FORBIDDEN = 353
    CHECK_ROCKSDB_CQ_WRITE_PROGRESS = 354
    EXPORT_ROCKSDB_CONFIG_TO_JSON = 355
    LITE_PULL_MESSAGE = 361
    RECALL_MESSAGE = 370
    QUERY_ASSIGNMENT = 400
    SET_MESSAGE_REQUEST_MODE = 401
    GET_ALL_MESSAGE_REQUEST_MODE = 402
    UPDATE_AND_CREATE_STATIC_TOPIC = 513
    GET_BROKER_MEMBER_GROUP = 901
    ADD_BROKER = 902
    REMOVE_BROKER = 903
    BROKER_HEARTBEAT = 904
    NOTIFY_MIN_BROKER_ID_CHANGE = 905
    EXCHANGE_BROKER_HA_INFO = 906
    GET_BROKER_HA_STATUS = 907
    RESET_MASTER_FLUSH_OFFSET = 908
    CONTROLLER_ALTER_SYNC_STATE_SET = 1001
    CONTROLLER_ELECT_MASTER = 1002
    CONTROLLER_REGISTER_BROKER = 1003
    CONTROLLER_GET_REPLICA_INFO = 1004
    CONTROLLER_GET_METADATA_INFO = 1005
    CONTROLLER_GET_SYNC_STATE_DATA = 1006
    GET_BROKER_EPOCH_CACHE = 1007
    NOTIFY_BROKER_ROLE_CHANGED = 1008
    UPDATE_CONTROLLER_CONFIG = 1009
    GET_CONTROLLER_CONFIG = 1010
    CLEAN_BROKER_DATA = 1011
    CONTROLLER_GET_NEXT_BROKER_ID = 1012
    CONTROLLER_APPLY_BROKER_ID = 1013
    UPDATE_COLD_DATA_FLOW_CTR_CONFIG = 2001
    REMOVE_COLD_DATA_FLOW_CTR_CONFIG = 2002
    GET_COLD_DATA_FLOW_CTR_INFO = 2003
    SET_COMMITLOG_READ_MODE = 2004
    AUTH_CREATE_USER = 3001
    AUTH_UPDATE_USER = 3002
    AUTH_DELETE_USER = 3003
    AUTH_GET_USER = 3004
    AUTH_LIST_USER = 3005
    AUTH_CREATE_ACL = 3006
    AUTH_UPDATE_ACL = 3007
    AUTH_DELETE_ACL = 3008
    AUTH_GET_ACL = 3009
    AUTH_LIST_ACL = 3010
    SWITCH_TIMER_ENGINE = 5001
    BEGIN_STAGED_JOB = 31001
    PUT_STAGED_PIECE = 31002
    COMMIT_STAGED_JOB = 31003
    ABANDON_STAGED_JOB = 31004
    GET_GROUP_IN_FLIGHT = 31005
    POP_MESSAGE = 200050
    ACK_MESSAGE = 200051
    PEEK_MESSAGE = 200052
    CHANGE_MESSAGE_INVISIBLETIME = 200053
    NOTIFICATION = 200054
    POLLING_INFO = 200055
    POP_ROLLBACK = 200056
    POP_LITE_MESSAGE = 200070
    LITE_SUBSCRIPTION_CTL = 200071
    ACK_LITE_MESSAGE = 200072
    NOTIFY_UNSUBSCRIBE_LITE = 200073
    GET_BROKER_LITE_INFO = 200074
    GET_PARENT_TOPIC_INFO = 200075
    GET_LITE_TOPIC_INFO = 200076
    GET_LITE_CLIENT_INFO = 200077
    GET_LITE_GROUP_INFO = 200078
    TRIGGER_LITE_DISPATCH = 200079
    BATCH_ACK_MESSAGE = 200151


class ResponseCode(enum.IntEnum):
    """How a request ended."""

    RPC_TIME_OUT = -1006
    RPC_SEND_TO_CHANNEL_FAILED = -1004
    RPC_ADDR_IS_NULL = -1002
    RPC_UNKNOWN = -1000
    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    TRANSACTION_FAILED = 4
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    VERSION_NOT_SUPPORTED = 15
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    TOPIC_EXIST_ALREADY = 18
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_NOT_EXIST = 24
    SUBSCRIPTION_NOT_LATEST = 25
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    FILTER_DATA_NOT_EXIST = 27
    FILTER_DATA_NOT_LATEST = 28
    INVALID_PARAMETER = 29
    TRANSACTION_SHOULD_COMMIT = 200
    TRANSACTION_SHOULD_ROLLBACK = 201
    TRANSACTION_STATE_UNKNOW = 202
    TRANSACTION_STATE_GROUP_WRONG = 203
    NO_BUYER_ID = 204
    NOT_IN_CURRENT_UNIT = 205
    CONSUMER_NOT_ONLINE = 206
    CONSUME_MSG_TIMEOUT = 207
    NO_MESSAGE = 208
    POLLING_FULL = 209
    POLLING_TIMEOUT = 210
    BROKER_NOT_EXIST = 211
    BROKER_DISPATCH_NOT_COMPLETE = 212
    BROADCAST_CONSUMPTION = 213
    FLOW_CONTROL = 215
    NOT_LEADER_FOR_QUEUE = 501
    ILLEGAL_OPERATION = 604
    GO_AWAY = 1500
    CONTROLLER_FENCED_MASTER_EPOCH = 2000
    CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH = 2001
    CONTROLLER_INVALID_MASTER = 2002
    CONTROLLER_INVALID_REPLICAS = 2003
    CONTROLLER_MASTER_NOT_AVAILABLE = 2004
    CONTROLLER_INVALID_REQUEST = 2005
    CONTROLLER_BROKER_NOT_ALIVE = 2006
    CONTROLLER_NOT_LEADER = 2007
    CONTROLLER_BROKER_METADATA_NOT_EXIST = 2008
    CONTROLLER_INVALID_CLEAN_BROKER_METADATA = 2009
    CONTROLLER_BROKER_NEED_TO_BE_REGISTERED = 2010
    CONTROLLER_MASTER_STILL_EXIST = 2011
    CONTROLLER_ELECT_MASTER_FAILED = 2012
    CONTROLLER_ALTER_SYNC_STATE_SET_FAILED = 2013
    CONTROLLER_BROKER_ID_INVALID = 2014
    CONTROLLER_JRAFT_INTERNAL_ERROR = 2015
    CONTROLLER_BROKER_LIVE_INFO_NOT_EXISTS = 2016
    LMQ_QUOTA_EXCEEDED = 2017
    LITE_SUBSCRIPTION_QUOTA_EXCEEDED = 2018
    USER_NOT_EXIST = 3001
    POLICY_NOT_EXIST = 3002


ENGINE_REQUESTS: frozenset[RequestCode] = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.PULL_MESSAGE,
        RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        RequestCode.GET_MAX_OFFSET,
        RequestCode.GET_MIN_OFFSET,
        RequestCode.END_TRANSACTION,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.POP_MESSAGE,
        RequestCode.ACK_MESSAGE,
        RequestCode.PEEK_MESSAGE,
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
        RequestCode.NOTIFICATION,
        RequestCode.POLLING_INFO,
        RequestCode.BATCH_ACK_MESSAGE,
    }
)
"""Requests that the engine's socket loops answer themselves."""

BROKER_REQUESTS: frozenset[RequestCode] = frozenset(
    {
        RequestCode.QUERY_MESSAGE,
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.GET_ALL_TOPIC_CONFIG,
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.GET_BROKER_CONFIG,
        RequestCode.GET_BROKER_RUNTIME_INFO,
        RequestCode.GET_EARLIEST_MSG_STORETIME,
        RequestCode.VIEW_MESSAGE_BY_ID,
        RequestCode.HEART_BEAT,
        RequestCode.UNREGISTER_CLIENT,
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.GET_CONSUMER_LIST_BY_GROUP,
        RequestCode.LOCK_BATCH_MQ,
        RequestCode.UNLOCK_BATCH_MQ,
        RequestCode.GET_ALL_CONSUMER_OFFSET,
        RequestCode.GET_ALL_DELAY_OFFSET,
        RequestCode.CHECK_CLIENT_CONFIG,
        RequestCode.GET_TIMER_CHECK_POINT,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_TOPIC_STATS_INFO,
        RequestCode.GET_CONSUMER_CONNECTION_LIST,
        RequestCode.GET_PRODUCER_CONNECTION_LIST,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.GET_CONSUME_STATS,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
        RequestCode.QUERY_CONSUME_TIME_SPAN,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        RequestCode.QUERY_CORRECTION_OFFSET,
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        RequestCode.CLONE_GROUP_OFFSET,
        RequestCode.VIEW_BROKER_STATS_DATA,
        RequestCode.CLEAN_UNUSED_TOPIC,
        RequestCode.GET_BROKER_CONSUME_STATS,
        RequestCode.QUERY_CONSUME_QUEUE,
        RequestCode.RESUME_CHECK_HALF_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
        RequestCode.GET_ALL_PRODUCER_INFO,
        RequestCode.DELETE_EXPIRED_COMMITLOG,
        RequestCode.QUERY_TOPICS_BY_CONSUMER,
        RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER,
        RequestCode.GET_TOPIC_CONFIG,
        RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
        RequestCode.RECALL_MESSAGE,
        RequestCode.QUERY_ASSIGNMENT,
        RequestCode.SET_MESSAGE_REQUEST_MODE,
        RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
        RequestCode.GET_BROKER_HA_STATUS,
        RequestCode.RESET_MASTER_FLUSH_OFFSET,
        RequestCode.GET_BROKER_EPOCH_CACHE,
        RequestCode.BEGIN_STAGED_JOB,
        RequestCode.PUT_STAGED_PIECE,
        RequestCode.COMMIT_STAGED_JOB,
        RequestCode.ABANDON_STAGED_JOB,
        RequestCode.GET_GROUP_IN_FLIGHT,
    }
)
"""Requests that a broker's control plane answers."""

NAMESRV_REQUESTS: frozenset[RequestCode] = frozenset(
    {
        RequestCode.PUT_KV_CONFIG,
        RequestCode.GET_KV_CONFIG,
        RequestCode.DELETE_KV_CONFIG,
        RequestCode.REGISTER_BROKER,
        RequestCode.UNREGISTER_BROKER,
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.GET_BROKER_CLUSTER_INFO,
        RequestCode.WIPE_WRITE_PERM_OF_BROKER,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
        RequestCode.REGISTER_TOPIC_IN_NAMESRV,
        RequestCode.GET_KVLIST_BY_NAMESPACE,
        RequestCode.GET_TOPICS_BY_CLUSTER,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
        RequestCode.GET_UNIT_TOPIC_LIST,
        RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
        RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
        RequestCode.UPDATE_NAMESRV_CONFIG,
        RequestCode.GET_NAMESRV_CONFIG,
        RequestCode.QUERY_DATA_VERSION,
        RequestCode.ADD_WRITE_PERM_OF_BROKER,
        RequestCode.GET_BROKER_MEMBER_GROUP,
        RequestCode.BROKER_HEARTBEAT,
    }
)
"""Requests that a name server answers."""

NOT_YET_REQUESTS: Mapping[RequestCode, str] = {
    RequestCode.GET_TIMER_METRICS: "replication",
    RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE: "replication",
    RequestCode.EXCHANGE_BROKER_HA_INFO: "replication",
    RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET: "replication",
    RequestCode.CONTROLLER_ELECT_MASTER: "replication",
    RequestCode.CONTROLLER_REGISTER_BROKER: "replication",
    RequestCode.CONTROLLER_GET_REPLICA_INFO: "replication",
    RequestCode.CONTROLLER_GET_METADATA_INFO: "replication",
    RequestCode.CONTROLLER_GET_SYNC_STATE_DATA: "replication",
    RequestCode.NOTIFY_BROKER_ROLE_CHANGED: "replication",
    RequestCode.UPDATE_CONTROLLER_CONFIG: "replication",
    RequestCode.GET_CONTROLLER_CONFIG: "replication",
    RequestCode.CLEAN_BROKER_DATA: "replication",
    RequestCode.CONTROLLER_GET_NEXT_BROKER_ID: "replication",
    RequestCode.CONTROLLER_APPLY_BROKER_ID: "replication",
    RequestCode.AUTH_CREATE_USER: "access control",
    RequestCode.AUTH_UPDATE_USER: "access control",
    RequestCode.AUTH_DELETE_USER: "access control",
    RequestCode.AUTH_GET_USER: "access control",
    RequestCode.AUTH_LIST_USER: "access control",
    RequestCode.AUTH_CREATE_ACL: "access control",
    RequestCode.AUTH_UPDATE_ACL: "access control",
    RequestCode.AUTH_DELETE_ACL: "access control",
    RequestCode.AUTH_GET_ACL: "access control",
    RequestCode.AUTH_LIST_ACL: "access control",
    RequestCode.POP_LITE_MESSAGE: "lite topics",
    RequestCode.LITE_SUBSCRIPTION_CTL: "lite topics",
    RequestCode.ACK_LITE_MESSAGE: "lite topics",
    RequestCode.NOTIFY_UNSUBSCRIBE_LITE: "lite topics",
    RequestCode.GET_BROKER_LITE_INFO: "lite topics",
    RequestCode.GET_PARENT_TOPIC_INFO: "lite topics",
    RequestCode.GET_LITE_TOPIC_INFO: "lite topics",
    RequestCode.GET_LITE_CLIENT_INFO: "lite topics",
    RequestCode.GET_LITE_GROUP_INFO: "lite topics",
    RequestCode.TRIGGER_LITE_DISPATCH: "lite topics",
}
"""Requests that are answered with code 3 for now, and what they will come with."""

NEVER_REQUESTS: Mapping[RequestCode, str] = {
    RequestCode.QUERY_BROKER_OFFSET: "a number without code: no version of upstream serves it",
    RequestCode.GET_TOPIC_CONFIG_LIST: "a number without code: no version of upstream serves it",
    RequestCode.GET_TOPIC_NAME_LIST: "a number without code: no version of upstream serves it",
    RequestCode.TRIGGER_DELETE_FILES: "a number without code: no version of upstream serves it",
    RequestCode.GET_CLIENT_CONFIG: "a number without code: no version of upstream serves it",
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: "access control of 4.9, gone upstream since 5.2",
    RequestCode.DELETE_ACL_CONFIG: "access control of 4.9, gone upstream since 5.2",
    RequestCode.GET_BROKER_CLUSTER_ACL_INFO: "access control of 4.9, gone upstream since 5.2",
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: "access control of 4.9, gone upstream since 5.2",
    RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG: "access control of 4.9, gone upstream since 5.2",
    RequestCode.SUSPEND_CONSUMER: "a number without code: no version of upstream serves it",
    RequestCode.RESUME_CONSUMER: "a number without code: no version of upstream serves it",
    RequestCode.RESET_CONSUMER_OFFSET_IN_CONSUMER: "a number without code: no version of upstream serves it",
    RequestCode.RESET_CONSUMER_OFFSET_IN_BROKER: "a number without code: no version of upstream serves it",
    RequestCode.ADJUST_CONSUMER_THREAD_POOL: "a number without code: no version of upstream serves it",
    RequestCode.WHO_CONSUME_THE_MESSAGE: "a number without code: no version of upstream serves it",
    RequestCode.REGISTER_FILTER_SERVER: "filter servers, gone upstream",
    RequestCode.REGISTER_MESSAGE_FILTER_CLASS: "filter servers, gone upstream",
    RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: "asks about RocksDB files, which this store does not have",
    RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON: "asks about RocksDB files, which this store does not have",
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: "topics whose queues move between brokers are not supported",
    RequestCode.ADD_BROKER: "several brokers in one process are several stores here",
    RequestCode.REMOVE_BROKER: "several brokers in one process are several stores here",
    RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: "flow control of cold reads: reads of this store are not throttled",
    RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: "flow control of cold reads: reads of this store are not throttled",
    RequestCode.GET_COLD_DATA_FLOW_CTR_INFO: "flow control of cold reads: reads of this store are not throttled",
    RequestCode.SET_COMMITLOG_READ_MODE: "flow control of cold reads: reads of this store are not throttled",
    RequestCode.SWITCH_TIMER_ENGINE: "moves timers into RocksDB files, which this store does not have",
    RequestCode.POP_ROLLBACK: "moves pops from RocksDB files into the log, where they are here anyway",
}
"""Requests that are answered with code 3 for good, and why."""
