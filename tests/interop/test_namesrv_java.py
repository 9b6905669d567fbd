"""Checks: real brokers of 5.3.3 and 4.9.7 register with our name server, and mqadmin finds there what it looks for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cometmq.remoting.bodies.routes import ClusterInfo
from cometmq.remoting.channel import checked
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import Command
from cometmq.remoting.sync_channel import Channel
from interop.patterns import MessageSpec
from interop.processes import PEER_VERSION, PeerMissing
from interop.sites import Landscape, Maker, Peer

pytestmark = pytest.mark.java

LIMIT_S = 60
OLD_VERSION = "4.9.7"
VERSIONS = [PEER_VERSION, pytest.param(OLD_VERSION, marks=pytest.mark.java(full=True))]


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    """Our name server, and upstream's client and brokers."""
    try:
        peer = Peer(tmp_path_factory.mktemp("namesrv"), Landscape(namesrv=Maker.OURS))
    except PeerMissing as missing:
        pytest.skip(str(missing))
    with peer:
        yield peer
        peer.kill_brokers()


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end


def ask(peer: Peer, code: RequestCode, fields: dict[str, str] | None = None) -> Command:
    """One request to the name server, and its answer."""
    with Channel(peer.namesrv.address) as channel:
        return checked(channel.invoke(Command(code=code, fields=fields or {}), timeout_ms=10_000))


def brokers(peer: Peer) -> dict[str, dict[int, str]]:
    """Return the name server's brokers: broker name to its addresses."""
    info = ClusterInfo.from_json(ask(peer, RequestCode.GET_BROKER_CLUSTER_INFO).body)
    return {name: dict(data.broker_addresses) for name, data in info.brokers.items()}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_broker_s_life(ours: Peer, tmp_path: Path, version: str) -> None:
    with ours.broker(tmp_path / "store", version=version) as broker:
        assert brokers(ours) == {"broker-a": {0: broker.address}}
        ours.client.create_topic(broker, "Orders", queues=3)
        sent = list(ours.client.send([MessageSpec(topic="Orders", body=b"%d" % n) for n in range(30)]))
        assert len(sent) == 30
        found = ours.client.pull_all("Orders", with_body=True)
        assert len(found) == 30
        # A topic that a send makes is registered by another kind of request, in 4.9 one-way.
        list(ours.client.send([MessageSpec(topic="MadeBySending", body=b"x")]))
        assert len(ours.client.pull_all("MadeBySending")) == 1
    assert brokers(ours) == {}, "a clean stop unregisters"


@pytest.mark.java(full=True)
@pytest.mark.parametrize("version", VERSIONS)
def test_mqadmin_reads_and_changes_the_name_server(ours: Peer, tmp_path: Path, version: str) -> None:
    mqadmin = ours.client.mqadmin
    with ours.broker(tmp_path / "store", version=version) as broker:
        ours.client.create_topic(broker, "Orders", queues=3)
        listed = mqadmin("clusterList")
        assert "DefaultCluster" in listed
        assert broker.address in listed
        assert {"Orders", "TBW102", "SELF_TEST_TOPIC", "broker-a"} <= set(mqadmin("topicList").split())
        assert "Orders" in mqadmin("topicList", "-c")
        route = mqadmin("topicRoute", "-t", "Orders")
        assert f'0:"{broker.address}"' in route.replace(" ", "").replace("\t", "").replace('"0"', "0")
        assert '"readQueueNums":3' in route.replace(" ", "").replace("\t", "")
        assert "wipe write perm of broker[broker-a]" in mqadmin("wipeWritePerm", "-b", "broker-a")
        assert '"perm":4' in mqadmin("topicRoute", "-t", "Orders").replace(" ", "")
        assert "add write perm of broker[broker-a]" in mqadmin("addWritePerm", "-b", "broker-a")
        assert '"perm":6' in mqadmin("topicRoute", "-t", "Orders").replace(" ", "")
        assert "success" in mqadmin("updateKvConfig", "-s", "space", "-k", "key", "-v", "value")
        assert "success" in mqadmin("deleteKvConfig", "-s", "space", "-k", "key")
        assert "listenPort" in mqadmin("getNamesrvConfig")
        assert "success" in mqadmin("updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "true")
        assert "orderMessageEnable" in mqadmin("getNamesrvConfig")
        assert "success" in mqadmin(
            "updateTopic", "-b", broker.address, "-t", "Orders", "-o", "true", "-r", "3", "-w", "3"
        )
        assert "success" in mqadmin("updateOrderConf", "-m", "put", "-t", "Orders", "-v", "broker-a:3")
        assert "broker-a:3" in mqadmin("topicRoute", "-t", "Orders")
        refused = mqadmin("updateNamesrvConfig", "-k", "kvConfigPath", "-v", "elsewhere")
        assert "black list" in refused
        # mqadmin's deleteTopic ends in a null pointer of a broker of 5.3.3 without timers, before it comes to us.
        ask(ours, RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "Orders", "clusterName": "DefaultCluster"})
        assert "No topic route info" in mqadmin("topicRoute", "-t", "Orders")


@pytest.mark.java(full=True)
def test_two_brokers_one_of_which_is_killed(ours: Peer, tmp_path: Path) -> None:
    with ours.broker(tmp_path / "a", name="broker-a") as first, ours.broker(tmp_path / "b", name="broker-b") as second:
        assert brokers(ours) == {"broker-a": {0: first.address}, "broker-b": {0: second.address}}
        for broker in (first, second):
            ours.client.create_topic(broker, "Orders", queues=2)
        assert ours.client.mqadmin("topicRoute", "-t", "Orders").count('"brokerName"') == 4, "queues and brokers"
        second.kill()
        wait_until(lambda: set(brokers(ours)) == {"broker-a"})
        assert "broker-b" not in ours.client.mqadmin("topicRoute", "-t", "Orders")
