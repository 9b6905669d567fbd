"""Checks: a cluster for users' tests runs in the test's process, serves, knows its brokers, leaves nothing behind."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import cometmq.testing
from cometmq.errors import InvalidArgument
from cometmq.remoting.bodies.routes import ClusterInfo, TopicRouteData
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.sync_channel import Channel
from cometmq.store.options import Retention
from cometmq.testing import Cluster

pytest_plugins = ["cometmq.testing.pytest_plugin"]


def ask(address: str, code: int, fields: dict[str, str] | None = None, body: bytes = b"") -> Command:
    with Channel(address) as channel:
        return channel.invoke(Command(code=code, fields=fields or {}, body=body), timeout_ms=10_000)


def test_a_topic_made_by_a_send_is_routed_before_the_send_is_answered(cometmq_cluster: Cluster) -> None:
    fields = {"a": "p", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": ""}
    answer = ask(cometmq_cluster.broker.address, RequestCode.SEND_MESSAGE_V2, fields, b"hello")
    assert answer.code == ResponseCode.SUCCESS
    answer = ask(cometmq_cluster.name_server_address, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
    assert answer.code == ResponseCode.SUCCESS
    (queues,) = TopicRouteData.from_json(answer.body).queue_datas
    assert (queues.broker_name, queues.write_queue_nums, queues.perm) == ("broker-a", 4, 6)
    assert bytes(cometmq_cluster.broker.store.get("orders", 0, 0).body) == b"hello"


def test_several_brokers_under_one_name_server() -> None:
    before = set(threading.enumerate())
    with cometmq.testing.cluster(brokers=3) as running:
        folder = running.path
        answer = ask(running.name_server_address, RequestCode.GET_BROKER_CLUSTER_INFO)
        info = ClusterInfo.from_json(answer.body)
        addresses = {name: dict(data.broker_addresses) for name, data in info.brokers.items()}
        assert addresses == {broker.name: {0: broker.address} for broker in running.brokers}
        assert [broker.name for broker in running.brokers] == ["broker-a", "broker-b", "broker-c"]
        running.brokers[1].stop()
        answer = ask(running.name_server_address, RequestCode.GET_BROKER_CLUSTER_INFO)
        assert set(ClusterInfo.from_json(answer.body).brokers) == {"broker-a", "broker-c"}
    assert not folder.exists()
    assert {thread for thread in set(threading.enumerate()) - before if thread.is_alive()} == set()


def test_brokers_accept_appends_on_a_nearly_full_disk() -> None:
    with cometmq.testing.cluster() as running:
        retention = Retention.from_settings(running.broker.config.settings)
    assert (retention.max_used_ratio, retention.force_ratio, retention.warning_ratio) == (0.95, 0.95, 0.95)


def test_stores_of_a_given_folder_stay(tmp_path: Path) -> None:
    settings = {"defaultTopicQueueNums": 2}
    for _ in range(2):
        with cometmq.testing.cluster(path=tmp_path, settings=settings) as running:
            running.broker.store.append("orders", b"1")
            topic = running.broker.control.topics.get("TBW102")
            assert topic is not None
            assert topic.write_queue_nums == 2
    assert (tmp_path / "broker-a" / "config" / "topics.json").exists()
    with cometmq.open(tmp_path / "broker-a", mode="r") as store:
        assert len(list(store.read("orders"))) == 2


@pytest.mark.parametrize("brokers", [0, 27])
def test_how_many(brokers: int) -> None:
    with pytest.raises(InvalidArgument, match="1 to 26"), cometmq.testing.cluster(brokers=brokers):
        pass
