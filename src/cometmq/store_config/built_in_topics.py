"""The topics that a broker makes at its start, as data. A stored entry of the same name wins over the one here."""

from __future__ import annotations

from cometmq.store_config.topic_config import Perm, TopicConfig

__all__ = ["SCHEDULE_TOPIC", "revive_topic", "system_topics"]

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"

_READ_WRITE = Perm.READ | Perm.WRITE
_ALL = Perm.READ | Perm.WRITE | Perm.INHERIT


def revive_topic(broker_cluster_name: str) -> str:
    """Return the name of the topic in which the brokers of this cluster keep what was popped, and when to revive it."""
    return f"rmq_sys_REVIVE_LOG_{broker_cluster_name}"


def system_topics(
    *,
    broker_cluster_name: str = "DefaultCluster",
    broker_name: str = "broker-a",
    auto_create_topic_enable: bool = True,
    default_topic_queue_nums: int = 8,
    cluster_topic_enable: bool = True,
    broker_topic_enable: bool = True,
    trace_topic_enable: bool = False,
    msg_trace_topic_name: str = "RMQ_SYS_TRACE_TOPIC",
    revive_queue_num: int = 8,
    timer_wheel_enable: bool = True,
) -> tuple[TopicConfig, ...]:
    """Return the system topics of upstream's 5.3 line for a broker with these options, in the order it makes them."""
    cluster, broker = broker_cluster_name, broker_name
    table: list[tuple[bool, str, int, Perm]] = [
        (True, "SELF_TEST_TOPIC", 1, _READ_WRITE),
        (auto_create_topic_enable, "TBW102", default_topic_queue_nums, _ALL),
        (True, "BenchmarkTest", 1024, _READ_WRITE),
        (True, cluster, 16, _ALL if cluster_topic_enable else Perm.INHERIT),
        (True, broker, 1, _ALL if broker_topic_enable else Perm.INHERIT),
        (True, "OFFSET_MOVED_EVENT", 1, _READ_WRITE),
        (True, SCHEDULE_TOPIC, 18, _READ_WRITE),
        (trace_topic_enable, msg_trace_topic_name, 1, _READ_WRITE),
        (True, f"{cluster}_REPLY_TOPIC", 1, _READ_WRITE),
        (True, revive_topic(cluster), revive_queue_num, _READ_WRITE),
        (True, f"rmq_sys_SYNC_BROKER_MEMBER_{broker}", 1, Perm.INHERIT),
        (True, "RMQ_SYS_TRANS_HALF_TOPIC", 1, _READ_WRITE),
        (True, "RMQ_SYS_TRANS_OP_HALF_TOPIC", 1, _READ_WRITE),
        (timer_wheel_enable, "rmq_sys_wheel_timer", 1, _READ_WRITE),
    ]
    return tuple(
        TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)
        for wanted, name, queues, perm in table
        if wanted
    )
