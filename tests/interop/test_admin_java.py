"""Checks: ``cometmq.admin`` does and says on real brokers of 5.3.3 and 4.9.7 what upstream's ``mqadmin`` does there."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

import cometmq.admin
from cometmq.admin import Admin, BrokerStatus, OutgoingMessage, SendLimits
from cometmq.errors import BrokerError, InvalidArgument
from cometmq.remoting.bodies.running_info import ConsumeResult
from cometmq.store_config.topic_config import Perm
from interop.patterns import MessageSpec
from interop.processes import PEER_VERSION
from interop.sites import Maker, Peer
from interop.waiting import eventually
from support.command_line import run, run_json

pytestmark = pytest.mark.java

VERSIONS = [PEER_VERSION, pytest.param("4.9.7", marks=pytest.mark.java(full=True))]


def has_topic(admin: Admin, topic: str) -> bool:
    return topic in admin.topics.list()


def table(text: str) -> list[list[str]]:
    """The rows of a table of ``mqadmin``, without its heads."""
    return [line.split() for line in text.splitlines() if line.strip() and not line.startswith("#")]


@pytest.mark.java(full=True)
@pytest.mark.parametrize("version", VERSIONS)
def test_topics_and_messages(peer: Peer, tmp_path: Path, version: str) -> None:
    mqadmin = peer.client.mqadmin
    with (
        peer.broker(tmp_path / "store", version=version) as broker,
        cometmq.admin.connect(namesrv=peer.namesrv.address) as admin,
    ):
        (ref,) = admin.cluster.brokers()
        assert (ref.cluster, ref.broker_name, ref.address) == ("DefaultCluster", "broker-a", broker.address)
        (status,) = admin.cluster.status()
        assert isinstance(status, BrokerStatus)
        assert status.version == f"V{version.replace('.', '_')}"
        assert admin.cluster.broker_config()["broker-a"]["brokerName"] == "broker-a"

        admin.topics.create("Made", queues=3)
        eventually(lambda: has_topic(admin, "Made"))
        assert '"readQueueNums":3' in mqadmin("topicRoute", "-t", "Made").replace(" ", "").replace("\t", "")
        admin.topics.update("Made", write_queues=2)
        assert admin.topics.describe("Made").configs["broker-a"].write_queue_nums == 2
        admin.topics.update("Made", queues=3)

        sent = admin.messages.send("Made", b"one", tags="paid", keys="k-1 k-2", properties={"a": "b"}, queue_id=1)
        with admin.messages.sender("Made", limits=SendLimits(batch_messages=40)) as sender:
            for start in range(0, 600, 100):
                sender.put(
                    OutgoingMessage(b"%d" % number, tags="many", keys=f"n{number}", sharding_key=f"s{number % 5}")
                    for number in range(start, start + 100)
                )
        report = sender.report()
        assert (report.messages, report.retries) == (600, 0)

        # Our report of the queues agrees with mqadmin's, and the Java client reads the messages that we sent. A Java
        # broker
        # puts messages into their queues a moment after it has acknowledged them.
        eventually(lambda: admin.topics.describe("Made").messages == 601)
        queues = admin.topics.queues("Made")
        assert peer.client.offsets("Made") == {one.queue_id: (one.min_offset, one.max_offset) for one in queues}
        if version == PEER_VERSION:  # its mqadmin asks a 4.9 broker what that does not know
            shown = table(mqadmin("topicStatus", "-t", "Made"))
            assert [row[:4] for row in shown if row[0] == "broker-a"] == [
                ["broker-a", str(one.queue_id), str(one.min_offset), str(one.max_offset)] for one in queues
            ]
        read = peer.client.pull_all("Made", with_body=True)
        assert len(read) == 601

        found = admin.messages.by_id(sent.message_id)
        assert (found.body_bytes, found.tags, found.keys, found.properties["a"]) == (
            b"one",
            "paid",
            ("k-1", "k-2"),
            "b",
        )
        assert admin.messages.at("Made", 1, sent.queue_offset).body_bytes == b"one"
        eventually(lambda: len(admin.messages.by_key("Made", "k-2")) == 1)
        assert [one.body_bytes for one in admin.messages.by_unique_id("Made", sent.unique_id)] == [b"one"]
        eventually(lambda: [one.body_bytes for one in admin.messages.by_key("Made", "n77")] == [b"77"])
        assert [one.body_bytes for one in admin.messages.peek("Made", tags="paid")] == [b"one"]
        numbers: dict[int, list[int]] = {}
        for queue in range(3):
            for one in admin.messages.peek("Made", queue_id=queue, limit=1000, tags="many"):
                numbers.setdefault(int(one.body_bytes) % 5, []).append(int(one.body_bytes))
        assert numbers == {key: list(range(key, 600, 5)) for key in range(5)}

        # The broker creates this topic automatically.
        assert admin.messages.send("MadeBySending", b"x").queue_offset == 0
        admin.topics.update("Made", perm=Perm.READ)
        eventually(lambda: '"perm":4' in mqadmin("topicRoute", "-t", "Made").replace(" ", ""))
        with pytest.raises(InvalidArgument, match="no write permission"):
            admin.messages.send("Made", b"x")


@pytest.mark.parametrize("version", VERSIONS)
def test_groups_and_offsets(peer: Peer, tmp_path: Path, version: str) -> None:
    mqadmin = peer.client.mqadmin
    with (
        peer.broker(tmp_path / "store", version=version) as broker,
        cometmq.admin.connect(namesrv=peer.namesrv.address) as admin,
    ):
        peer.client.create_topic(broker, "Orders", queues=2)
        list(peer.client.send([MessageSpec(topic="Orders", body=b"%d" % n, queue=n % 2) for n in range(20)]))
        eventually(lambda: admin.topics.describe("Orders").messages == 20)
        admin.groups.create("g_ours", retry_max_times=5)
        assert admin.groups.configs()["g_ours"]["broker-a"].retry_max_times == 5
        if version == PEER_VERSION:  # its consumers get nothing from a 4.9 broker
            assert len(peer.client.group_consume("g_java", "Orders", count=20)) == 20
            eventually(lambda: admin.offsets.progress("g_java", topic="Orders").lag == 0)
        else:
            admin.groups.create("g_java")
            admin.offsets.commit("g_java", "Orders", admin.offsets.at_time("Orders", cometmq.admin.LATEST_MS))
            assert admin.offsets.progress("g_java", topic="Orders").lag == 0

        moved = admin.offsets.reset("g_java", "Orders", timestamp_ms=cometmq.admin.EARLIEST_MS)
        assert [(one.queue_id, one.offset) for one in moved] == [(0, 0), (1, 0)]
        progress = admin.offsets.progress("g_java", topic="Orders")
        assert progress.lag == 20
        if version == PEER_VERSION:
            assert peer.client.group_offsets("g_java", "Orders") == {0: 0, 1: 0}
            shown = [row for row in table(mqadmin("consumerProgress", "-g", "g_java")) if row[0] == "Orders"]
            assert [row[:6] for row in shown] == [
                [
                    "Orders",
                    "broker-a",
                    str(one.queue_id),
                    str(one.broker_offset),
                    str(one.consumer_offset),
                    str(one.lag),
                ]
                for one in progress.queues
            ]
        admin.offsets.reset("g_java", "Orders", offset=7, queue_id=1)
        assert [one.consumer_offset for one in admin.offsets.progress("g_java", topic="Orders").queues] == [0, 7]
        assert admin.offsets.clone("g_java", "g_ours", topic="Orders")
        assert admin.offsets.progress("g_ours", topic="Orders").lag == 13
        admin.offsets.skip("g_ours", "Orders")
        assert admin.offsets.progress("g_ours", topic="Orders").lag == 0
        lags = {one.group: one.lag for one in admin.groups.lags()}
        assert (lags["g_ours"], lags["g_java"]) == (0, 13)
        middle = admin.messages.at("Orders", 0, 5)
        at_time = admin.offsets.at_time("Orders", middle.store_timestamp_ms, queue_id=0)
        assert at_time[0].offset == peer.client.search_offset("Orders", middle.store_timestamp_ms)[0]
        assert {"g_java", "g_ours"} <= set(admin.topics.groups("Orders"))
        with pytest.raises(BrokerError) as caught:
            admin.offsets.reset("g_none", "Orders", timestamp_ms=-1)
        assert caught.value.address == broker.address
        admin.groups.delete("g_ours", delete_topics=False)
        assert "g_ours" not in admin.groups.list()


@pytest.mark.java(full=True)
def test_the_command_line(peer: Peer, tmp_path: Path) -> None:
    rows = io.StringIO()
    csv.writer(rows).writerows([["kind", "id"], *(["even" if n % 2 == 0 else "odd", f"id-{n}"] for n in range(300))])
    (tmp_path / "rows.csv").write_text(rows.getvalue())
    where = ["--namesrv", peer.namesrv.address]
    with peer.broker(tmp_path / "store") as broker:
        assert run("topic", "create", "Rows", "-q", "4", *where).code == 0
        columns = ["--tag-column", "kind", "--key-column", "id", "--shard-column", "id"]
        report = run_json(
            "message", "send", "Rows", "-f", tmp_path / "rows.csv", *columns, "--broker", broker.address, "--json"
        )
        assert (report["messages"], report["maybe_twice"]) == (300, 0)
        eventually(lambda: run("topic", "describe", "Rows", *where).out.startswith("Rows: 300 messages"))
        read = peer.client.pull_all("Rows", tags="even")
        assert len(read) == 150
        (found,) = run_json("message", "peek", "Rows", "--limit", "1", "--tags", "odd", "--json", *where)
        assert found["tags"] == "odd"
        assert broker.address in run("cluster", "status", *where).out


@pytest.mark.parametrize(
    "maker",
    [Maker.OURS, pytest.param(Maker.JAVA, marks=pytest.mark.java(full=True))],
    ids=lambda maker: maker.value,
)
def test_a_group_with_members(peer: Peer, tmp_path: Path, maker: Maker) -> None:
    """The official Java consumer, on upstream's broker and on ours."""
    with (
        peer.broker(tmp_path / "store", maker=maker) as broker,
        cometmq.admin.connect(namesrv=peer.namesrv.address) as admin,
    ):
        topic, group = f"Members-{maker.value}", f"g_members_{maker.value}"
        peer.client.create_topic(broker, topic, queues=2)
        admin.messages.send(topic, b"0")
        client_id = peer.client.start_consumer(f"c-{maker.value}", group, {topic: "*"})
        assert len(peer.client.consumed(f"c-{maker.value}", count=1)) == 1

        members = admin.groups.members(group)
        assert members is not None
        assert [one.client_id for one in members.connections] == [client_id]
        assert members.subscriptions[topic].sub_string == "*"
        info = admin.groups.running_info(group, client_id, stack=True)
        assert {queue.queue_id for queue in info.queues if queue.topic == topic} == {0, 1}
        assert info.jstack
        (message,) = admin.messages.peek(topic)
        result = admin.messages.consume_directly(message.message_id, group=group, client_id=client_id)
        assert result.consume_result is ConsumeResult.CR_SUCCESS
        assert len(peer.client.consumed(f"c-{maker.value}", count=2)) == 2  # again, as it was asked to
        assert client_id in run("group", "describe", group, "--namesrv", peer.namesrv.address).out
        eventually(lambda: admin.offsets.progress(group, topic=topic).lag == 0)
        # A group whose members are connected goes on from the new place without a restart.
        admin.offsets.reset(group, topic, timestamp_ms=cometmq.admin.EARLIEST_MS)
        assert len(peer.client.consumed(f"c-{maker.value}", count=3)) == 3
        peer.client.stop_consumers(f"c-{maker.value}")
        eventually(lambda: admin.groups.members(group) is None)
