"""Checks: which servers are asked, what happens when one is away, routes, and tables in pages."""

from __future__ import annotations

import dataclasses

import pytest

from cometmq.admin.cluster import ClusterOperations
from cometmq.admin.operation import Answer, Call
from cometmq.admin.results import BrokerRef
from cometmq.admin.servers import Servers, lost_broker, request
from cometmq.errors import BrokerError, ConnectionLost, InvalidArgument, NotFound, RequestTimeout
from cometmq.remoting.bodies.config_tables import TopicConfigAndMappingSerializeWrapper
from cometmq.remoting.bodies.routes import BrokerData, ClusterInfo, QueueData, TopicRouteData
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.store_config.topic_config import TopicConfig
from support.operations import run_operation

ANY = request(RequestCode.GET_NAMESRV_CONFIG)


def cluster_info() -> bytes:
    brokers = {
        "b": BrokerData(cluster="east", broker_name="b", broker_addresses={0: "10.0.0.3:1"}),
        "a": BrokerData(cluster="east", broker_name="a", broker_addresses={1: "10.0.0.2:1", 0: "10.0.0.1:1"}),
        "w": BrokerData(cluster="west", broker_name="w", broker_addresses={2: "10.0.0.4:1"}),
    }
    return ClusterInfo(brokers=brokers, clusters={"east": ("a", "b"), "west": ("w",)}).to_json()


def names(brokers: tuple[BrokerRef, ...]) -> list[tuple[str, int]]:
    return [(broker.broker_name, broker.broker_id) for broker in brokers]


def test_the_next_name_server_is_asked_and_then_stays_the_first() -> None:
    servers = Servers(namesrv=["10.0.0.1:9876", "10.0.0.2:9876", "10.0.0.3:9876"])
    asked: list[str] = []

    def answer(call: Call) -> Answer:
        asked.append(call.address)
        return ConnectionLost("gone") if call.address == "10.0.0.1:9876" else Command(code=0)

    run_operation(servers.ask_namesrv(ANY), answer)
    run_operation(servers.ask_namesrv(ANY), answer)
    assert asked == ["10.0.0.1:9876", "10.0.0.2:9876", "10.0.0.2:9876"]


def test_masters_that_cannot_be_asked_are_lost() -> None:
    gone = BrokerData(cluster="east", broker_name="c", broker_addresses={0: "10.0.0.5:1"})
    back = BrokerData(cluster="east", broker_name="b", broker_addresses={0: "10.0.0.6:1"})
    info = dataclasses.replace(ClusterInfo.from_json(cluster_info()), lost={"c": gone, "b": back}).to_json()
    servers = Servers(namesrv=["10.0.0.9:9876"])
    brokers, lost = run_operation(servers.brokers_and_lost(), lambda _: Command(code=0, body=info))
    assert names(brokers) == [("a", 0), ("b", 0)]
    assert [(one.broker_name, one.address) for one in lost] == [("c", "10.0.0.5:1"), ("w", "")]
    assert "broker c (last at 10.0.0.5:1) is lost" in str(lost_broker(lost[0]))
    _, lost = run_operation(servers.brokers_and_lost(cluster="east"), lambda _: Command(code=0, body=info))
    assert names(lost) == [("c", 0)]
    with pytest.raises(NotFound, match=r"no master is registered in cluster west; .*; lost: east/c, west/w"):
        run_operation(servers.brokers(cluster="west"), lambda _: Command(code=0, body=info))


@pytest.mark.parametrize(
    ("perm", "is_read_only"), [(6, False), (7, False), (4, True), (5, True), (1, False), (2, False)]
)
def test_a_broker_is_read_only_where_its_topic_is(perm: int, is_read_only: bool) -> None:
    servers = Servers(namesrv=["10.0.0.9:9876"])
    route = TopicRouteData(
        queue_datas=(
            QueueData(broker_name="a", read_queue_nums=1, write_queue_nums=1, perm=perm),
            QueueData(broker_name="b", read_queue_nums=1, write_queue_nums=1, perm=4),
        ),
        broker_datas=tuple(
            BrokerData(cluster="east", broker_name=name, broker_addresses={0: f"10.0.0.{number}:1"})
            for number, name in enumerate("ab")
        ),
    ).to_json()
    brokers = [BrokerRef(cluster="east", broker_name="a", broker_id=0, address="10.0.0.0:1")]
    found = run_operation(ClusterOperations(servers).read_only(brokers), lambda _: Command(code=0, body=route))
    assert found == ({"a"} if is_read_only else set())


def test_no_name_server_can_be_reached() -> None:
    servers = Servers(namesrv=["10.0.0.1:9876", "10.0.0.2:9876"])
    with pytest.raises(RequestTimeout, match=r"10\.0\.0\.2"):
        run_operation(servers.ask_namesrv(ANY), lambda call: RequestTimeout(f"{call.address} is silent"))


def test_a_refusal_is_not_asked_elsewhere() -> None:
    servers = Servers(namesrv=["10.0.0.1:9876", "10.0.0.2:9876"])
    asked = []

    def answer(call: Call) -> Answer:
        asked.append(call.address)
        return Command(code=ResponseCode.SYSTEM_BUSY, remark=" busy \n")

    with pytest.raises(BrokerError, match=r"code 2 from 10\.0\.0\.1:9876: busy \(the server is overloaded") as caught:
        run_operation(servers.ask_namesrv(ANY), answer)
    assert asked == ["10.0.0.1:9876"]
    assert caught.value.retriable
    assert caught.value.remark == " busy \n"


def test_changes_go_to_all_name_servers_before_a_failure_is_reported() -> None:
    servers = Servers(namesrv=["10.0.0.1:9876", "10.0.0.2:9876"])
    asked = []

    def answer(call: Call) -> Answer:
        asked.append(call.address)
        return ConnectionLost("gone") if len(asked) == 1 else Command(code=0)

    with pytest.raises(ConnectionLost):
        run_operation(servers.invoke_namesrv(ANY), answer)
    assert asked == ["10.0.0.1:9876", "10.0.0.2:9876"]


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({}, [("a", 0), ("b", 0)]),
        ({"slaves": True}, [("a", 0), ("b", 0), ("a", 1), ("w", 2)]),
        ({"broker_name": "b"}, [("b", 0)]),
        ({"cluster": "west", "slaves": True}, [("w", 2)]),
    ],
)
def test_brokers(chosen: dict[str, str | bool], expected: list[tuple[str, int]]) -> None:
    servers = Servers(namesrv=["n:9876"])
    found = run_operation(servers.brokers(**chosen), lambda _: Command(code=0, body=cluster_info()))  # type: ignore[arg-type]
    assert names(found) == expected


def test_no_such_broker() -> None:
    servers = Servers(namesrv=["n:9876"])
    with pytest.raises(NotFound, match="no master is registered in cluster west; known are: east/a, east/b, west/w"):
        run_operation(servers.brokers(cluster="west"), lambda _: Command(code=0, body=cluster_info()))
    with pytest.raises(NotFound, match="no broker x is registered"):
        run_operation(servers.brokers(broker_name="x"), lambda _: Command(code=0, body=cluster_info()))


def test_a_route_has_masters_alone() -> None:
    data = TopicRouteData(
        queue_datas=tuple(
            QueueData(broker_name=name, read_queue_nums=4, write_queue_nums=2, perm=6) for name in ("b", "a", "w")
        ),
        broker_datas=(
            BrokerData(cluster="east", broker_name="a", broker_addresses={0: "10.0.0.1:1"}),
            BrokerData(cluster="east", broker_name="b", broker_addresses={0: "10.0.0.3:1", 1: "10.0.0.5:1"}),
            BrokerData(cluster="west", broker_name="w", broker_addresses={2: "10.0.0.4:1"}),
        ),
        order_topic_conf="a:4",
    )
    servers = Servers(namesrv=["n:9876"])
    route = run_operation(servers.route("orders"), lambda _: Command(code=0, body=data.to_json()))
    assert [part.broker.address for part in route.parts] == ["10.0.0.1:1", "10.0.0.3:1"]
    assert route.order_conf == "a:4"
    assert route.part_of("b").all_queues == 4
    with pytest.raises(InvalidArgument, match=r"several brokers \(a, b\): choose one"):
        route.part_of(None)
    with pytest.raises(NotFound, match="broker w does not have topic orders"):
        route.part_of("w")


def test_a_broker_alone() -> None:
    servers = Servers(broker="10.0.0.1:10911")
    config = TopicConfig(topic_name="orders", read_queue_nums=3, write_queue_nums=2)
    asked = []

    def answer(call: Call) -> Answer:
        asked.append(call.request.code)
        assert call.address == "10.0.0.1:10911"
        if call.request.code == RequestCode.GET_BROKER_CONFIG:
            return Command(code=0, body=b"brokerName=a\nbrokerClusterName=east\nbrokerId=0\n")
        if call.request.code == RequestCode.GET_TOPIC_CONFIG:
            return Command(code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED)  # a 4.9 broker
        tables = TopicConfigAndMappingSerializeWrapper(topics={"orders": config})
        return Command(code=0, body=tables.to_json())

    route = run_operation(servers.route("orders"), answer)
    (part,) = route.parts
    assert (part.broker.broker_name, part.broker.cluster, part.read_queues, part.write_queues) == ("a", "east", 3, 2)
    assert asked == [RequestCode.GET_BROKER_CONFIG, RequestCode.GET_TOPIC_CONFIG, RequestCode.GET_ALL_TOPIC_CONFIG]
    with pytest.raises(BrokerError, match="topic bills does not exist"):
        run_operation(servers.route("bills"), answer)
    with pytest.raises(InvalidArgument, match="give a name server's address"):
        run_operation(servers.ask_namesrv(ANY), answer)


def test_tables_in_pages() -> None:
    """A broker of the newest line gives its topics in pages, and says how many there are."""
    topics = [TopicConfig(topic_name=f"t{number}") for number in range(5)]
    asked = []

    def answer(call: Call) -> Answer:
        start = int(call.request.fields["topicSeq"])
        asked.append(start)
        page = {one.topic_name: one for one in topics[start : start + 2]}
        body = TopicConfigAndMappingSerializeWrapper(topics=page).to_json()
        return Command(code=0, fields={"totalTopicNum": "5"}, body=body)

    broker = BrokerRef(cluster="c", broker_name="a", broker_id=0, address="10.0.0.1:10911")
    found = run_operation(Servers(namesrv=["n:9876"]).topic_configs(broker), answer)
    assert (sorted(found), asked) == ([f"t{number}" for number in range(5)], [0, 2, 4])


def test_a_broker_whose_pages_are_empty_ends() -> None:
    empty = Command(code=0, fields={"totalTopicNum": "9"}, body=TopicConfigAndMappingSerializeWrapper().to_json())
    broker = BrokerRef(cluster="c", broker_name="a", broker_id=0, address="10.0.0.1:10911")
    assert run_operation(Servers(namesrv=["n:9876"]).topic_configs(broker), lambda _: empty) == {}


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"namesrv": ["n:1"], "broker": "b:1"},
        {"namesrv": ["n"]},
        {"broker": "b:70000"},
        {"broker": "b:1", "timeout_ms": 0},
    ],
)
def test_invalid_requests_are_rejected(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument):
        Servers(**wrong)  # type: ignore[arg-type]
