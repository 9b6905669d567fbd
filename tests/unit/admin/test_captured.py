"""Checks: calls ask what ``mqadmin`` asked of a real broker and name server, and read what those answered."""

from __future__ import annotations

import pytest

from cometmq.admin.cluster import ClusterOperations
from cometmq.admin.groups import GroupOperations
from cometmq.admin.messages import MessageOperations
from cometmq.admin.offsets import OffsetOperations
from cometmq.admin.results import BrokerRef, BrokerStatus, GroupLag, QueueEnds, QueueOffset, QueueProgress
from cometmq.admin.servers import Servers
from cometmq.admin.topics import TopicOperations
from cometmq.errors import BrokerError
from cometmq.remoting.bodies.heartbeat import ConsumeFromWhere, ConsumeType, MessageModel
from cometmq.remoting.codes import RequestCode
from support.operations import NAMESRV, Replay, run_operation

BROKER = BrokerRef(cluster="DefaultCluster", broker_name="broker-a", broker_id=0, address="127.0.0.1:16911")
ROLL_PROGRESS = (
    QueueProgress(
        topic="Roll",
        broker_name="broker-a",
        queue_id=0,
        broker_offset=12000,
        consumer_offset=11999,
        pull_offset=12000,
        last_timestamp_ms=1795263316954,
    ),
    QueueProgress(
        topic="Roll",
        broker_name="broker-a",
        queue_id=1,
        broker_offset=12000,
        consumer_offset=12000,
        pull_offset=12000,
        last_timestamp_ms=1795263316954,
    ),
)


@pytest.fixture
def servers() -> Servers:
    return Servers(namesrv=[NAMESRV])


@pytest.fixture
def expired() -> Replay:
    return Replay("apache-5.3.3-expired")


@pytest.fixture
def groups() -> Replay:
    return Replay("apache-5.3.3-groups")


def test_brokers(servers: Servers, expired: Replay) -> None:
    assert run_operation(ClusterOperations(servers).brokers(), expired) == (BROKER,)
    assert [call.address for call in expired.calls] == [NAMESRV]


def test_status(servers: Servers, expired: Replay) -> None:
    (status,) = run_operation(ClusterOperations(servers).status(), expired)
    assert isinstance(status, BrokerStatus)
    assert status.broker == BROKER
    assert (status.version, status.disk_used_ratio) == ("V5_3_3", 0.2)
    assert (status.messages_put_today, status.messages_got_today) == (24_020, 6_858)
    assert (status.log_min_offset, status.log_max_offset) == (0, 7_506_861)
    assert (status.earliest_timestamp_ms, status.boot_timestamp_ms) == (1795263276076, 1795263268743)
    assert expired.codes == [RequestCode.GET_BROKER_CLUSTER_INFO, RequestCode.GET_BROKER_RUNTIME_INFO]


def test_topics(servers: Servers, expired: Replay) -> None:
    topics = TopicOperations(servers)
    assert run_operation(topics.list(), expired) == ("Quiet", "Roll")
    everything = run_operation(topics.list(system=True), expired)
    assert {"TBW102", "broker-a", "DefaultCluster", "DefaultCluster_REPLY_TOPIC", "%RETRY%g_roll"} < set(everything)


def test_a_topic(servers: Servers, expired: Replay) -> None:
    found = run_operation(TopicOperations(servers).describe("Roll"), expired)
    assert found.configs["broker-a"].read_queue_nums == 2
    assert found.queues == (
        QueueEnds(
            broker_name="broker-a",
            queue_id=0,
            min_offset=11733,
            max_offset=12000,
            last_store_timestamp_ms=1795263316956,
        ),
        QueueEnds(
            broker_name="broker-a",
            queue_id=1,
            min_offset=11734,
            max_offset=12000,
            last_store_timestamp_ms=1795263316954,
        ),
    )
    assert found.messages == 267 + 266
    assert found.groups == ("Roll", "g_roll")
    assert found.order_conf is None


def test_groups(servers: Servers, expired: Replay) -> None:
    configs = run_operation(GroupOperations(servers).configs(), expired)
    assert configs["g_roll"]["broker-a"].retry_max_times == 16
    assert "TOOLS_CONSUMER" not in configs
    assert "TOOLS_CONSUMER" in run_operation(GroupOperations(servers).configs(system=True), expired)


def test_lags(servers: Servers, expired: Replay) -> None:
    lags = {one.group: one for one in run_operation(GroupOperations(servers).lags(), expired)}
    assert lags["g_roll"] == GroupLag(group="g_roll", topics=("Roll",), lag=0, consumed_messages_per_s=0.0)
    assert "SELF_TEST_C_GROUP" not in lags


def test_progress(servers: Servers, expired: Replay) -> None:
    progress = run_operation(OffsetOperations(servers).progress("g_roll"), expired)
    assert progress.queues == ROLL_PROGRESS
    assert (progress.lag, progress.consumed_messages_per_s) == (1, 14.3)


def test_members(servers: Servers, expired: Replay) -> None:
    groups = GroupOperations(servers)
    assert run_operation(groups.members("g_roll"), expired) is None  # nobody was connected when it was asked first
    members = run_operation(groups.members("g_roll"), expired)
    assert members is not None
    (member,) = members.connections
    assert (member.client_id, member.language, member.version) == ("192.0.2.2@19866#4625163274981", "JAVA", 479)
    assert members.subscriptions["Roll"].sub_string == "t1 || t2"
    assert (members.consume_type, members.message_model, members.consume_from_where) == (
        ConsumeType.CONSUME_PASSIVELY,
        MessageModel.CLUSTERING,
        ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    )


def test_producers(servers: Servers, expired: Replay) -> None:
    groups = GroupOperations(servers)
    assert run_operation(groups.producers(), expired) == {}
    (producer,) = run_operation(groups.producers("p_roll"), expired)["p_roll"]
    assert producer.client_id == "192.0.2.2@19866#4624466715710"


def test_running_info(servers: Servers, groups: Replay) -> None:
    info = run_operation(GroupOperations(servers).running_info("g_two", "192.0.2.2@m2"), groups)
    assert {queue.topic for queue in info.queues} >= {"Two"}
    assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"


def test_a_member_that_is_gone(servers: Servers, groups: Replay) -> None:
    operations = GroupOperations(servers)
    # It answered while it was there, and printed its stacks when it was asked to.
    info = run_operation(operations.running_info("g_two", "192.0.2.2@m1", stack=True), groups)
    assert info.jstack
    run_operation(operations.running_info("g_two", "192.0.2.2@m1"), groups)
    with pytest.raises(BrokerError, match=r"not online.*cometmq group describe GROUP") as caught:
        run_operation(operations.running_info("g_two", "192.0.2.2@m1"), groups)
    assert (caught.value.code, caught.value.address) == (1, "127.0.0.1:18911")


@pytest.mark.parametrize("timestamp_ms", [1795263390948, -1])
def test_reset(servers: Servers, expired: Replay, timestamp_ms: int) -> None:
    moved = run_operation(OffsetOperations(servers).reset("g_roll", "Roll", timestamp_ms=timestamp_ms), expired)
    assert [(one.broker_name, one.queue_id) for one in moved] == [("broker-a", 0), ("broker-a", 1)]
    if timestamp_ms > 0:
        assert moved == tuple(QueueOffset(broker_name="broker-a", queue_id=queue, offset=12000) for queue in (0, 1))


def test_reset_of_an_unknown_group(servers: Servers, groups: Replay) -> None:
    with pytest.raises(
        BrokerError, match=r"Group g_clone does not exist \(check the name, or create the group"
    ) as caught:
        run_operation(OffsetOperations(servers).reset("g_clone", "Two", timestamp_ms=-1), groups)
    assert caught.value.code == 26


def test_messages_by_key(servers: Servers, groups: Replay, expired: Replay) -> None:
    (message,) = run_operation(MessageOperations(servers).by_key("Two", "two5"), groups)
    assert (message.topic, message.queue_id, message.body_bytes) == ("Two", 5, b"two 5")
    assert (message.tags, message.keys, message.unique_id) == (
        "w",
        ("two5",),
        "FD0000000000000000000000000000020D5B5FFD2B2769C99B7E0010",
    )
    assert run_operation(MessageOperations(servers).by_key("Roll", "r23000"), expired) == ()


def test_statistics(servers: Servers, expired: Replay) -> None:
    cluster = ClusterOperations(servers)
    found = run_operation(cluster.statistic("TOPIC_PUT_NUMS", "Roll"), expired)
    assert found["broker-a"].day.sum == 0
    assert run_operation(cluster.statistic("GROUP_GET_NUMS", "Roll@Roll"), expired) == {}


def test_settings_and_permissions(servers: Servers, expired: Replay) -> None:
    cluster = ClusterOperations(servers)
    settings = run_operation(cluster.namesrv_config(), expired)
    assert (settings["listenPort"], settings["waitSecondsForService"]) == ("9882", "45")
    assert run_operation(cluster.wipe_write_perm("broker-a"), expired) == 17
    assert run_operation(cluster.add_write_perm("broker-a"), expired) == 17
    run_operation(cluster.kv_put("ORDER_TOPIC_CONFIG", "Roll", "broker-a:2"), expired)
    run_operation(TopicOperations(servers).set_order("Roll", None), expired)
    assert expired.codes[-2:] == [RequestCode.PUT_KV_CONFIG, RequestCode.DELETE_KV_CONFIG]
    run_operation(cluster.clean(log=True, unused_topics=True), expired)


def test_a_topic_that_nobody_has(servers: Servers, groups: Replay) -> None:
    with pytest.raises(BrokerError, match="group g_sql has no messages to retry") as caught:
        run_operation(TopicOperations(servers).describe("%RETRY%g_sql"), groups)
    assert (caught.value.code, caught.value.address, caught.value.retriable) == (17, NAMESRV, False)
