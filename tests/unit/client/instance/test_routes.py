"""Checks: the queues of a route, the addresses of brokers, and routes that cannot be."""

from __future__ import annotations

from random import Random

import pytest

from cometmq.client.instance.routes import (
    QUEUES_MAX,
    RouteTable,
    check_route,
    clamp_default_route,
    publish_queues,
    subscribe_queues,
)
from cometmq.errors import MalformedBody
from cometmq.remoting.bodies.routes import BrokerData, QueueData, TopicRouteData


def queues(broker_name: str, *, read: int = 2, write: int = 2, perm: int = 6) -> QueueData:
    return QueueData(broker_name=broker_name, read_queue_nums=read, write_queue_nums=write, perm=perm, topic_sys_flag=0)


def broker(name: str, *ids: int) -> BrokerData:
    return BrokerData(cluster="c", broker_name=name, broker_addresses={number: f"{name}-{number}:1" for number in ids})


def names(found: object) -> list[tuple[str, int]]:
    assert isinstance(found, tuple)
    return [(queue.broker_name, queue.queue_id) for queue in found]


ROUTE = TopicRouteData(
    queue_datas=(
        queues("b", read=3, write=1),
        queues("a"),
        queues("slave"),
        queues("ro", perm=4),
        queues("wo", perm=2),
    ),
    broker_datas=(broker("b", 0, 1), broker("a", 0), broker("slave", 1), broker("ro", 0), broker("wo", 0)),
)


def test_queues_to_send_to_have_a_master_and_may_be_written() -> None:
    info = publish_queues("T", ROUTE)
    assert names(info.queues) == [("a", 0), ("a", 1), ("b", 0), ("wo", 0), ("wo", 1)]
    assert not info.is_order_topic


def test_queues_to_read_need_no_master() -> None:
    assert names(subscribe_queues("T", ROUTE)) == [
        *(("b", number) for number in range(3)),
        *(("a", number) for number in range(2)),
        *(("slave", number) for number in range(2)),
        *(("ro", number) for number in range(2)),
    ]


def test_an_order_configuration_fixes_the_queues() -> None:
    route = TopicRouteData(
        queue_datas=ROUTE.queue_datas, broker_datas=ROUTE.broker_datas, order_topic_conf="z:2;b:1;;:3;x:y;w"
    )
    info = publish_queues("T", route)
    assert info.is_order_topic
    assert names(info.queues) == [("z", 0), ("z", 1), ("b", 0)]


def test_a_template_gives_no_more_queues_than_wanted() -> None:
    parts = clamp_default_route(ROUTE, 2).queue_datas
    assert [(part.read_queue_nums, part.write_queue_nums) for part in parts] == [(2, 2)] * 5
    assert {part.read_queue_nums for part in clamp_default_route(ROUTE, 9).queue_datas} == {2, 3}


@pytest.mark.parametrize(
    "route",
    [
        TopicRouteData(queue_datas=(queues("b", read=QUEUES_MAX + 1),)),
        TopicRouteData(queue_datas=(queues("b", write=QUEUES_MAX + 1),)),
        TopicRouteData(order_topic_conf=f"b:{QUEUES_MAX + 1}"),
        TopicRouteData(order_topic_conf="b:1;c:" + "9" * 5_000),
    ],
)
def test_more_queues_than_there_can_be(route: TopicRouteData) -> None:
    with pytest.raises(MalformedBody, match=f"{QUEUES_MAX}"):
        check_route("T", route)


def test_as_many_queues_as_there_can_be() -> None:
    route = TopicRouteData(
        queue_datas=(queues("b", read=QUEUES_MAX, write=-1),), order_topic_conf=f"b:{QUEUES_MAX};c:none"
    )
    assert check_route("T", route) is route


def test_the_order_of_a_route_s_parts_is_no_change() -> None:
    table = RouteTable()
    assert table.put("T", ROUTE)
    turned = TopicRouteData(queue_datas=ROUTE.queue_datas[::-1], broker_datas=ROUTE.broker_datas[::-1])
    assert not table.put("T", turned)
    assert table.route("T") is ROUTE
    assert table.put("T", TopicRouteData(queue_datas=ROUTE.queue_datas[1:], broker_datas=ROUTE.broker_datas))
    assert table.put("U", ROUTE)


def test_unknown_topics_and_brokers() -> None:
    table = RouteTable()
    assert table.route("T") is table.publish_info("T") is table.subscribe_queues("T") is None
    assert table.broker_of_topic("T") is table.master_address("b") is table.broker_address("b") is None
    assert table.addresses("b") == {}
    assert table.targets(slaves=True) == table.drop_gone_brokers() == []
    assert not table.is_known("b-0:1")


def test_addresses_to_read_from() -> None:
    table = RouteTable()
    table.put("T", TopicRouteData(broker_datas=(broker("b", 0, 2), broker("slave", 3))))
    assert table.broker_names == ("b", "slave")
    assert table.broker_address("b") == ("b-0:1", False)
    assert table.broker_address("b", 2) == ("b-2:1", True)
    assert table.broker_address("b", 1) == ("b-2:1", True), "the next slave"
    assert table.broker_address("b", 7) == ("b-0:1", False), "any"
    assert table.broker_address("b", 7, only_this=True) is None
    assert table.broker_address("slave") == ("slave-3:1", True)
    assert table.broker_address("slave", only_this=True) is None
    assert table.master_address("slave") is None
    assert table.targets(slaves=False) == ["b-0:1"]
    assert table.targets(slaves=True) == ["b-0:1", "b-2:1", "slave-3:1"]


def test_any_broker_of_a_topic() -> None:
    table = RouteTable(random=Random(20261122))
    table.put("T", TopicRouteData(broker_datas=(broker("b", 0, 1), broker("slave", 3, 4), broker("empty"))))
    assert {table.broker_of_topic("T") for _ in range(100)} == {"b-0:1", "slave-3:1", "slave-4:1"}
    table.put("U", TopicRouteData(broker_datas=(broker("empty"),)))
    assert table.broker_of_topic("U") is None


def test_addresses_in_no_route_are_dropped() -> None:
    table = RouteTable()
    table.put("T", TopicRouteData(broker_datas=(broker("b", 0, 1), broker("gone", 0))))
    table.put("U", TopicRouteData(broker_datas=(broker("b", 0),)))
    table.put("T", TopicRouteData(broker_datas=(broker("b", 0, 2),)))
    assert table.drop_gone_brokers() == ["gone-0:1"]
    table.put("T", TopicRouteData(broker_datas=(broker("other", 0),)))
    assert table.drop_gone_brokers() == ["b-2:1"]
    assert table.addresses("b") == {0: "b-0:1"}
    assert table.is_known("other-0:1")
    assert not table.is_known("b-2:1")
