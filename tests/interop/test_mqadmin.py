"""Upstream's own ``mqadmin`` against our servers: it prints what it prints against upstream's.

``mqadmin-5.3.3.txt`` is what it printed against a name server and a broker of 5.3.3, with what differs from run to run
replaced. The same commands are given here; upstream's servers are asked again, so that the file stays true.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cometmq.client import ConsumeFromWhere, SimpleConsumer
from interop.java_client import Client
from interop.landscapes import for_each_client, in_each_pair, in_full_only
from interop.patterns import MessageSpec
from interop.servers import Broker
from interop.sites import Maker, Peer
from interop.waiting import eventually

pytestmark = pytest.mark.java

TRANSCRIPT = Path(__file__).with_name("mqadmin-5.3.3.txt")
TOPIC, GROUP, CLONE, GONE = "AdminTopic", "admin_group", "admin_clone", "AdminGone"

COMMANDS = f"""
updateTopic -b BROKER -t {TOPIC} -r 4 -w 4
updateTopic -c AdminCluster -t {GONE} -r 2 -w 2 -p 6
updateSubGroup -b BROKER -g {GROUP} -r 3
topicRoute -t {TOPIC}
topicClusterList -t {TOPIC}
SEND
topicStatus -t {TOPIC}
allocateMQ -t {TOPIC} -i one,two
consumerProgress -g {GROUP}
consumerConnection -g {GROUP}
getConsumerConfig -g {GROUP}
setConsumeMode -b BROKER -t {TOPIC} -g {GROUP} -m POP -q 2
setConsumeMode -c AdminCluster -t {TOPIC} -g {GROUP} -m PULL
queryMsgByKey -t {TOPIC} -k k7
queryMsgById -t {TOPIC} -i OFFSET_ID
queryMsgByOffset -t {TOPIC} -b admin -i 2 -o 3
queryCq -t {TOPIC} -q 1 -i 0 -c 3 -b BROKER
updateTopicPerm -b BROKER -t {GONE} -p 4
topicRoute -t {GONE}
resetOffsetByTime -g {GROUP} -t {TOPIC} -s 0
updateSubGroup -b BROKER -g {CLONE}
cloneGroupOffset -s {GROUP} -d {CLONE} -t {TOPIC}
updateKvConfig -s space -k key -v value
deleteKvConfig -s space -k key
updateOrderConf -t {TOPIC} -v admin:4 -m put
updateOrderConf -t {TOPIC} -m get
updateOrderConf -t {TOPIC} -m delete
wipeWritePerm -b admin
addWritePerm -b admin
STOP
deleteTopic -c AdminCluster -t {GONE}
deleteSubGroup -b BROKER -g {CLONE}
cleanUnusedTopic -b BROKER
cleanExpiredCQ -b BROKER
"""

REPLACED = [
    (r"\S+@[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "CLIENT"),
    (r"127\.0\.0\.1:\d+", "ADDRESS"),
    # With an IPv4 or an IPv6 address in front.
    (r"\b[0-9A-F]{32,56}\b", "ID"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(,\d+)?", "TIME"),
    (r"/\S+/msgbodys/\S+", "FILE"),
    (r"TPS: [\d.]+", "TPS: N"),
    # Upstream keeps a group by the name of the topic for whoever pulls by hand, and finds no route for it.
    (r"MessageTrack \[consumerGroup=AdminTopic,.*\n.*\]", ""),
    (r"[ \t]+", " "),
    (r" ?\n\s*", "\n"),
]


def normalized(text: str) -> str:
    for pattern, replacement in REPLACED:
        text = re.sub(pattern, replacement, text)
    return "".join(f"  {line}\n" for line in text.strip().splitlines())


def named(text: str, separator: str) -> dict[str, str]:
    """The lines of a name and a value."""
    pairs = (line.split(separator, 1) for line in text.splitlines() if separator in line)
    return {name.strip(): value.strip() for name, value in pairs}


def transcript(client: Client, broker: Broker) -> str:
    """Gives all commands, to a broker that has nothing yet, and returns them with what they printed."""
    offset_id = ""
    parts = []
    for line in COMMANDS.strip().splitlines():
        if line == "SEND":
            client.await_topic(TOPIC)
            specs = [MessageSpec(TOPIC, b"body", "tag", (f"k{n}",), {"own": "1"}, n % 4) for n in range(40)]
            offset_id = str(list(client.send(specs))[3]["offset_message_id"])
            client.start_consumer("reader", GROUP, {TOPIC: "tag"})
            client.consumed("reader", count=40)
            client.committed("reader", topic=TOPIC, count=40)
        elif line == "STOP":
            client.stop_consumers("reader")
        else:
            words = line.replace("BROKER", broker.address).replace("OFFSET_ID", offset_id).split()
            parts.append(f"$ mqadmin {line}\n{normalized(client.mqadmin(*words))}")
    return "".join(parts)


@in_full_only
@in_each_pair
def test_output_equals_output_against_upstream(site: Peer, tmp_path: Path) -> None:
    # Of a cluster of its own: commands for a whole cluster reach no other broker.
    settings = {"brokerClusterName": "AdminCluster", "timerWheelEnable": "true"}
    with site.broker(tmp_path / "store", name="admin", settings=settings) as broker:
        assert transcript(site.client, broker) == TRANSCRIPT.read_text()


@in_full_only
@in_each_pair
def test_lists_and_status_name_the_same_things(site: Peer) -> None:
    client, broker = site.client, site.shared_broker
    cluster, *_ = (line.split() for line in client.mqadmin("clusterList").splitlines() if broker.address in line)
    assert cluster[:4] == ["DefaultCluster", "shared", "0", broker.address]
    assert cluster[-1] == "true"

    client.mqadmin("updateTopic", "-b", broker.address, "-t", "AdminListed", "-r", "1", "-w", "1")
    client.await_topic("AdminListed")
    topics = set(client.mqadmin("topicList").split())
    # Upstream's own topics are there, too.
    assert topics >= {"AdminListed", "TBW102", "SELF_TEST_TOPIC", "SCHEDULE_TOPIC_XXXX", "shared", "DefaultCluster"}

    status = named(client.mqadmin("brokerStatus", "-b", broker.address), ":")
    assert status["brokerVersionDesc"] == "V5_3_3"
    assert int(status["msgPutTotalTodayNow"]) >= 0
    assert {"bootTimestamp", "runtime", "commitLogMaxOffset", "putTps", "getTotalTps", "dispatchBehindBytes"} <= set(
        status
    )
    assert "not supported" not in client.mqadmin("statsAll", "-t", "AdminListed")


@in_full_only
@in_each_pair
def test_settings_are_read_and_changed_and_paths_are_not(site: Peer) -> None:
    client, broker = site.client, site.shared_broker

    def settings() -> dict[str, str]:
        return named(client.mqadmin("getBrokerConfig", "-b", broker.address), " = ")

    before = settings()
    assert before["brokerName"] == "shared"
    assert before["storePathRootDir"] == str(broker.store)
    assert before["messageDelayLevel"].startswith("1s 2s 1s")
    changed = client.mqadmin("updateBrokerConfig", "-b", broker.address, "-k", "flushDelayOffsetInterval", "-v", "1500")
    assert "success" in changed
    assert settings()["flushDelayOffsetInterval"] == "1500"
    if site.landscape.broker is Maker.OURS:
        # Upstream lets anybody who reaches the port move the store; we do not.
        refused = client.mqadmin(
            "updateBrokerConfig", "-b", broker.address, "-k", "storePathRootDir", "-v", "/elsewhere"
        )
        assert "CODE: 16" in refused
        assert settings()["storePathRootDir"] == str(broker.store)


@in_each_pair
def test_progress_of_a_group_that_pops(site: Peer) -> None:
    """Checkpoints are in the log: the group's offset is behind what is in flight, and nothing shows as such."""
    client, broker, topic, group = site.client, site.shared_broker, "AdminPopped", "admin_popped"
    client.mqadmin("updateTopic", "-b", broker.address, "-t", topic, "-r", "1", "-w", "1")
    client.await_topic(topic)
    assert len(list(client.send([MessageSpec(topic, b"x", keys=("k",), queue=0) for _ in range(5)]))) == 5
    first = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    with SimpleConsumer(group, name_servers=site.namesrv.address, consume_from_where=first) as consumer:
        consumer.subscribe(topic)
        assert len(consumer.receive(3, wait_s=60)) == 3

        def row() -> list[str]:
            lines = [line.split() for line in client.mqadmin("consumerProgress", "-g", group).splitlines()]
            return next((line[:7] for line in lines if line[:1] == [topic]), [])

        # Broker, queue, its end, the group's offset, the difference, in flight.
        eventually(row, lambda found: found == [topic, "shared", "0", "5", "3", "2", "0"])


@in_full_only
@for_each_client
def test_the_commands_of_each_version_work(site: Peer) -> None:
    client, broker, topic = site.client, site.shared_broker, "AdminVersions"
    client.mqadmin("updateTopic", "-b", broker.address, "-t", topic, "-r", "2", "-w", "2")
    client.await_topic(topic)
    assert len(list(client.send([MessageSpec(topic, b"x", keys=("k",), queue=n % 2) for n in range(6)]))) == 6
    status = client.mqadmin("topicStatus", "-t", topic)
    assert [line.split()[:4] for line in status.splitlines() if line.startswith("shared")] == [
        ["shared", "0", "0", "3"],
        ["shared", "1", "0", "3"],
    ]
    assert broker.address in client.mqadmin("topicRoute", "-t", topic)
    assert broker.address in client.mqadmin("clusterList")
    assert "commitLogMaxOffset" in client.mqadmin("brokerStatus", "-b", broker.address)
    client.start_consumer("reader", "admin_versions", {topic: "*"})
    client.consumed("reader", count=6)
    client.committed("reader", topic=topic, count=6)
    assert "CLUSTERING" in client.mqadmin("consumerConnection", "-g", "admin_versions")
    assert topic in client.mqadmin("consumerProgress", "-g", "admin_versions")
