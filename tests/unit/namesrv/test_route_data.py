"""Checks: a topic's route has the four parts that clients read, from what brokers register and operators configure."""

from __future__ import annotations

import json

import pytest

from cometmq.namesrv.handlers import NameServer
from cometmq.namesrv.kv_config import KVConfig
from cometmq.namesrv.settings import NamesrvSettings
from cometmq.remoting.bodies.config_tables import TopicConfigAndMappingSerializeWrapper
from cometmq.remoting.bodies.registration import RegisterBrokerBody
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.store_config.data_version import DataVersion
from cometmq.store_config.topic_config import TopicConfig
from support.callers import DirectCaller, answer_of


class Asked:
    """A name server that this test asks."""

    def __init__(self, **settings: bool) -> None:
        self._table = NameServer(NamesrvSettings(**settings), KVConfig(None), now_ms=lambda: 1_000).table()

    def ask(self, code: int, body: bytes = b"", *, connection: int = 1, **fields: str) -> Command:
        request = Command(code=code, fields=fields, body=body, version=479)
        return answer_of(self._table[code](request, DirectCaller(connection)))

    def register(self, name: str, broker_id: int, *filters: str, **topics: TopicConfig) -> None:
        """Register a broker at an address made of its name and number."""
        # A first registration of one topic alone is refused, as upstream does: it may be a change that came too early.
        topics = {"Base": TopicConfig(topic_name="Base"), "Other": TopicConfig(topic_name="Other"), **topics}
        wrapper = TopicConfigAndMappingSerializeWrapper(topics=topics, data_version=DataVersion(counter=1))
        body = RegisterBrokerBody(wrapper=wrapper, filter_servers=filters).to_json()
        answer = self.ask(
            RequestCode.REGISTER_BROKER,
            body,
            connection=hash((name, broker_id)),
            clusterName="c",
            brokerName=name,
            brokerAddr=f"{name}-{broker_id}:10911",
            haServerAddr=f"{name}-{broker_id}:10912",
            brokerId=str(broker_id),
        )
        assert answer.code == ResponseCode.SUCCESS

    def route(self, topic: str) -> dict[str, object]:
        answer = self.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=topic)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        route: dict[str, object] = json.loads(answer.body)
        return route


@pytest.mark.parametrize("order_enabled", [True, False])
def test_route_has_queues_brokers_order_and_filter_servers(order_enabled: bool) -> None:
    """Promise 84: two brokers, one with a slave and filter servers; the order only where the setting allows it."""
    asked = Asked(order_message_enable=order_enabled)
    topic = TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=3, perm=6, topic_sys_flag=1)
    other = TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=2, perm=4)
    asked.register("a", 0, "f1:1", "f2:1", T=topic)
    asked.register("a", 1)
    asked.register("b", 0, T=other, U=TopicConfig(topic_name="U"))
    value = "a:3;b:2"
    put = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": value}
    assert asked.ask(RequestCode.PUT_KV_CONFIG, **put).code == ResponseCode.SUCCESS
    route = asked.route("T")
    assert route["queueDatas"] == [
        {"brokerName": "a", "perm": 6, "readQueueNums": 4, "topicSysFlag": 1, "writeQueueNums": 3},
        {"brokerName": "b", "perm": 4, "readQueueNums": 2, "topicSysFlag": 0, "writeQueueNums": 2},
    ]
    brokers = route["brokerDatas"]
    assert isinstance(brokers, list)
    assert [(one["cluster"], one["brokerName"], one["brokerAddrs"]) for one in brokers] == [
        ("c", "a", {"0": "a-0:10911", "1": "a-1:10911"}),
        ("c", "b", {"0": "b-0:10911"}),
    ]
    assert route.get("orderTopicConf") == (value if order_enabled else None)
    assert route["filterServerTable"] == {"a-0:10911": ["f1:1", "f2:1"]}
    plain = asked.route("U")
    assert plain.get("orderTopicConf") is None
    assert plain["filterServerTable"] == {}
