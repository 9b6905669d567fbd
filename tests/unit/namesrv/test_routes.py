"""Checks: registration, change, expiry and disappearance of brokers and topics, as upstream's name server does them."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Hashable, Mapping
from contextlib import suppress

import pytest

from cometmq.errors import InvalidArgument, LimitReached
from cometmq.namesrv.routes import (
    BROKER_EXPIRY_MS,
    LOST_BROKER_MS,
    LOST_BROKERS_MAX,
    STEP_TOPICS,
    Registered,
    Registration,
    RouteLimits,
    RouteTable,
)
from cometmq.namesrv.turns import Steps
from cometmq.remoting.bodies.config_tables import TopicConfigAndMappingSerializeWrapper
from cometmq.remoting.bodies.registration import RegisterBrokerBody
from cometmq.remoting.bodies.routes import QueueData, TopicQueueMappingInfo
from cometmq.store_config.data_version import DataVersion
from cometmq.store_config.topic_config import TopicConfig
from support.steps import finished

SEED = int(os.environ.get("CMQ_SEED", "20250919"), 0)
TOPICS = ("orders", "bills")


def body(
    *topics: str, counter: int = 1, state: int = 0, perm: int = 6, servers: tuple[str, ...] = ()
) -> RegisterBrokerBody:
    """A registration's body; each topic has four queues."""
    configs = {
        name: TopicConfig(topic_name=name, read_queue_nums=4, write_queue_nums=4, perm=perm)
        for name in topics or TOPICS
    }
    version = DataVersion(counter=counter, state_version=state, timestamp_ms=1)
    wrapper = TopicConfigAndMappingSerializeWrapper(topics=configs, data_version=version)
    return RegisterBrokerBody(wrapper=wrapper, filter_servers=servers)


def broker(
    name: str = "a",
    *,
    broker_id: int = 0,
    address: str | None = None,
    cluster: str = "c",
    expiry_ms: int | None = None,
    acting: bool | None = False,
) -> Registration:
    """A registration's header."""
    address = address or f"{name}{broker_id}:10911"
    return Registration(
        cluster=cluster,
        broker_name=name,
        broker_id=broker_id,
        address=address,
        ha_address=f"ha-{address}",
        expiry_ms=expiry_ms,
        enable_acting_master=acting,
    )


def register(
    table: RouteTable,
    registration: Registration | None = None,
    what: RegisterBrokerBody | None = None,
    *,
    connection: Hashable = 1,
    now_ms: int = 0,
) -> Registered | None:
    return finished(table.register(registration or broker(), what or body(), connection=connection, now_ms=now_ms))


def addresses(table: RouteTable, topic: str = "orders") -> Mapping[str, Mapping[int, str]]:
    route = finished(table.route(topic))
    return {} if route is None else {each.broker_name: each.broker_addresses for each in route.broker_datas}


def perms(table: RouteTable, topic: str = "orders") -> dict[str, int]:
    route = finished(table.route(topic))
    return {} if route is None else {each.broker_name: each.perm for each in route.queue_datas}


def test_a_registered_topic_has_a_route() -> None:
    table = RouteTable()
    assert register(table) == Registered()
    route = finished(table.route("orders"))
    assert route is not None
    assert route.queue_datas == (QueueData(broker_name="a", read_queue_nums=4, write_queue_nums=4, perm=6),)
    assert addresses(table) == {"a": {0: "a0:10911"}}
    assert finished(table.route("unknown")) is None
    assert finished(table.cluster_info()).clusters == {"c": ("a",)}


def test_an_unknown_broker_with_one_topic_is_refused_and_leaves_nothing() -> None:
    table = RouteTable()
    assert register(table, what=body("orders")) is None
    assert (table.broker_count, table.topic_count) == (0, 0)
    assert finished(table.cluster_info()).clusters == {}
    register(table)
    assert register(table, what=body("new", counter=2)) == Registered(), "a known one registers such a change"
    assert finished(table.route("new")) is not None
    assert finished(table.route("orders")) is not None, "a registration removes nothing"


def test_the_same_version_changes_nothing_another_does() -> None:
    table = RouteTable()
    register(table)
    register(table, what=body(perm=2))
    assert perms(table) == {"a": 6}, "the version says that nothing changed"
    register(table, what=body("orders", "third", perm=2))
    assert perms(table, "third") == {"a": 2}, "a topic that is not known is taken all the same"
    register(table, what=body(perm=2, counter=2))
    assert perms(table) == {"a": 2}


def test_missing_topics_go_only_where_the_setting_says_so() -> None:
    table = RouteTable(delete_missing_topics=True)
    register(table)
    register(table, broker("b"))
    register(table, what=body("orders", "third", counter=2))
    assert set(addresses(table, "bills")) == {"b"}
    assert set(addresses(table, "orders")) == {"a", "b"}


def test_a_silent_broker_expires_and_a_heartbeat_keeps_it() -> None:
    table = RouteTable()
    register(table, now_ms=1_000)
    register(table, broker("b", expiry_ms=500), connection=2, now_ms=1_000)
    assert finished(table.expire(1_500)) == []
    assert finished(table.expire(1_501)) == [(("c", "b0:10911"), 2)]
    assert set(addresses(table)) == {"a"}
    table.heard_of("c", "a0:10911", now_ms=50_000)
    table.heard_of("c", "nobody:1", now_ms=50_000)
    assert finished(table.expire(1_000 + BROKER_EXPIRY_MS + 1)) == []
    assert finished(table.expire(50_000 + BROKER_EXPIRY_MS + 1)) == [(("c", "a0:10911"), 1)]
    assert finished(table.route("orders")) is None
    assert finished(table.cluster_info()).brokers == {}


def test_the_connection_of_the_last_registration_is_the_broker_s_life() -> None:
    table = RouteTable()
    register(table, connection=1)
    register(table, connection=2)
    assert finished(table.connection_closed(1)) == [], "the broker has registered by another one since"
    assert finished(table.route("orders")) is not None
    assert finished(table.connection_closed(2)) == [("c", "a0:10911")]
    assert finished(table.route("orders")) is None
    assert finished(table.connection_closed(2)) == []


def lost(table: RouteTable) -> dict[str, dict[int, str]]:
    return {name: dict(data.broker_addresses) for name, data in (finished(table.cluster_info()).lost or {}).items()}


def test_a_broker_that_does_not_unregister_is_lost_until_it_returns() -> None:
    table = RouteTable()
    register(table, broker("a"), connection=1)
    register(table, broker("b", expiry_ms=500), connection=2, now_ms=1_000)
    assert b"ost" not in finished(table.cluster_info()).to_json(), "upstream's answer has no such member"
    finished(table.connection_closed(1))
    finished(table.expire(1_501))
    assert lost(table) == {"a": {0: "a0:10911"}, "b": {0: "b0:10911"}}
    register(table, broker("a"), connection=3)
    assert lost(table) == {"b": {0: "b0:10911"}}


def test_a_broker_that_unregisters_is_not_lost() -> None:
    table = RouteTable()
    register(table, broker("a"), connection=1)
    finished(table.unregister(cluster="c", broker_name="a", address="a0:10911"))
    finished(table.connection_closed(1))
    assert lost(table) == {}
    register(table, broker("a"), connection=2)
    finished(table.connection_closed(2))
    finished(table.unregister(cluster="d", broker_name="a", address="a0:10911"))
    assert set(lost(table)) == {"a"}, "another cluster's broker has the name"
    finished(table.unregister(cluster="c", broker_name="a", address="a0:10911"))
    assert lost(table) == {}, "an administrator unregistered it afterwards"


def test_a_lost_broker_is_forgotten_after_a_day() -> None:
    table = RouteTable()
    register(table, broker("a"), connection=1)
    finished(table.connection_closed(1))
    finished(table.expire(5_000))
    finished(table.expire(5_000 + LOST_BROKER_MS))
    assert set(lost(table)) == {"a"}
    finished(table.expire(5_001 + LOST_BROKER_MS))
    assert lost(table) == {}


def test_the_oldest_lost_brokers_make_room() -> None:
    table = RouteTable()
    names = [f"b{number}" for number in range(LOST_BROKERS_MAX + 2)]
    for name in [*names, "b2"]:
        register(table, broker(name), connection=1)
        finished(table.connection_closed(1))
    assert list(lost(table)) == [*names[3:], "b2"]


def test_a_name_that_keeps_a_slave_is_not_among_the_lost_names() -> None:
    table = RouteTable()
    register(table, broker("a"), connection=1)
    register(table, broker("a", broker_id=1), connection=2)
    finished(table.connection_closed(1))
    assert lost(table) == {}
    assert table.members("a") == {1: "a1:10911"}


def test_several_brokers_of_one_connection_go_with_it() -> None:
    table = RouteTable()
    register(table, broker("a"))
    register(table, broker("b"))
    assert len(finished(table.connection_closed(1))) == 2
    assert (table.broker_count, table.topic_count) == (0, 0)


def test_unregistering_leaves_the_other_broker_s_topics() -> None:
    table = RouteTable()
    register(table, broker("a"), body("orders", "mine"))
    register(table, broker("b"), body("orders", "yours"), connection=2)
    assert finished(table.unregister(cluster="c", broker_name="a", address="a0:10911"))
    assert not finished(table.unregister(cluster="c", broker_name="a", address="a0:10911"))
    assert set(table.topics()) == {"orders", "yours"}
    assert set(addresses(table)) == {"b"}
    assert finished(table.connection_closed(1)) == []


def test_a_slave_learns_its_master_and_does_not_speak_for_topics() -> None:
    table = RouteTable()
    register(table)
    learned = register(table, broker("a", broker_id=1), body("orders", "slave's", counter=9), connection=2)
    assert learned == Registered(master_address="a0:10911", ha_address="ha-a0:10911")
    assert finished(table.route("slave's")) is None
    assert addresses(table) == {"a": {0: "a0:10911", 1: "a1:10911"}}
    assert table.members("a") == {0: "a0:10911", 1: "a1:10911"}
    assert table.members("z") == {}


def test_a_slave_that_becomes_the_master_has_one_id() -> None:
    table = RouteTable()
    register(table, broker("a", broker_id=1))
    register(table, broker("a", broker_id=0, address="a1:10911"))
    assert table.members("a") == {0: "a1:10911"}


def test_of_two_masters_the_later_state_stays() -> None:
    table = RouteTable()
    register(table, broker(address="old:1"), body(state=1))
    assert register(table, broker(address="new:1"), body(state=2), connection=2) == Registered()
    assert table.members("a") == {0: "new:1"}
    assert register(table, broker(address="old:1"), body(state=1), connection=3) == Registered(), "nothing reported"
    assert table.members("a") == {0: "new:1"}
    assert table.version_of("c", "old:1") is None
    assert finished(table.connection_closed(1)) == []
    assert finished(table.connection_closed(3)) == []


def test_an_acting_master_may_be_read_alone() -> None:
    table = RouteTable(support_acting_master=True)
    register(table, broker("a", acting=True))
    register(table, broker("a", broker_id=2, acting=True), connection=2)
    finished(table.connection_closed(1))
    assert perms(table) == {"a": 4}
    assert addresses(table) == {"a": {0: "a2:10911"}}, "shown as the master"
    register(table, broker("a", broker_id=2, acting=True), body(counter=2), connection=2)
    assert perms(table) == {"a": 4}, "a slave's registration gives no write permission"
    table.support_acting_master = False
    assert addresses(table) == {"a": {2: "a2:10911"}}


def test_an_address_belongs_to_one_name_and_a_name_to_one_cluster() -> None:
    table = RouteTable()
    register(table, broker("a", address="h:1"))
    register(table, broker("b", address="h:1"), connection=2)
    assert set(addresses(table)) == {"b"}
    with pytest.raises(InvalidArgument, match="cluster c"):
        register(table, broker("b", cluster="other"))
    assert finished(table.connection_closed(1)) == []
    assert finished(table.connection_closed(2)) == [("c", "h:1")]


def test_write_permission_of_a_broker() -> None:
    table = RouteTable()
    register(table, what=body("orders", "bills", perm=7))
    register(table, broker("b"))
    assert finished(table.wipe_write_perm("a")) == 2
    assert perms(table) == {"a": 5, "b": 6}
    assert finished(table.add_write_perm("a")) == 2
    assert perms(table) == {"a": 6, "b": 6}, "upstream's: readable and writable and no more"
    assert finished(table.wipe_write_perm("nobody")) == 0


def test_topics_made_and_deleted_by_request() -> None:
    table = RouteTable()
    register(table, broker("a", cluster="c"))
    register(table, broker("b", cluster="d"), connection=2)
    queue = QueueData(broker_name="a", read_queue_nums=1, write_queue_nums=1, perm=6)
    assert finished(table.register_topic("made", [queue]))
    assert not finished(table.register_topic("made", [queue, QueueData(broker_name="nobody")]))
    assert not finished(table.register_topic("empty", []))
    assert set(table.topics()) == {"orders", "bills", "made"}
    finished(table.delete_topic("orders", cluster="c"))
    assert set(addresses(table)) == {"b"}
    finished(table.delete_topic("orders", cluster="d"))
    finished(table.delete_topic("bills"))
    finished(table.delete_topic("bills"))
    assert table.topics() == ("made",)
    assert finished(table.topics_of_cluster("c")) == ("made",)
    assert finished(table.topics_of_cluster("nowhere")) == ()


def test_lists_of_the_system_and_of_units() -> None:
    table = RouteTable()
    assert table.system_topics() == ((), None)
    flags = {"plain": 0, "unit": 1, "subscribed": 2, "both": 3}
    configs = {name: TopicConfig(topic_name=name, topic_sys_flag=flag) for name, flag in flags.items()}
    wrapper = TopicConfigAndMappingSerializeWrapper(topics=configs)
    register(table, what=RegisterBrokerBody(wrapper=wrapper))
    assert table.system_topics() == (("c", "a"), "a0:10911")
    assert finished(table.unit_topics()) == ("unit", "both")
    assert finished(table.unit_subscribed_topics()) == ("subscribed", "both")
    assert finished(table.unit_subscribed_plain_topics()) == ("subscribed",)


def test_static_topics_and_filter_servers_are_handed_on() -> None:
    table = RouteTable()
    mapping = TopicQueueMappingInfo(topic="orders", total_queues=4, broker_name="a", current_ids={0: 0})
    wrapper = TopicConfigAndMappingSerializeWrapper(topics=body().wrapper.topics, queue_mappings={"orders": mapping})
    register(table, what=RegisterBrokerBody(wrapper=wrapper, filter_servers=("f:1",)))
    route = finished(table.route("orders", order_topic_conf="a:4"))
    assert route is not None
    assert route.queue_mappings == {"a": mapping}
    assert route.filter_servers == {"a0:10911": ("f:1",)}
    assert route.order_topic_conf == "a:4"
    finished(table.connection_closed(1))
    register(table)
    again = finished(table.route("orders"))
    assert again is not None
    assert again.queue_mappings is None


def test_limits_refuse_and_change_nothing() -> None:
    table = RouteTable(limits=RouteLimits(brokers=1, topics=3, name_chars=20))
    register(table)
    with pytest.raises(LimitReached, match="1 brokers"):
        register(table, broker("b"))
    with pytest.raises(LimitReached, match="3 topics"):
        register(table, what=body("orders", "three", "four", counter=2))
    with pytest.raises(LimitReached, match="20 characters"):
        register(table, what=body("orders", "x" * 21, counter=2))
    with pytest.raises(LimitReached, match="20 characters"):
        register(table, broker(address="a" * 21))
    register(table, what=body("orders", "three", counter=2))
    with pytest.raises(LimitReached, match="3 topics"):
        finished(table.register_topic("four", [QueueData(broker_name="a")]))
    with pytest.raises(LimitReached, match="20 characters"):
        finished(table.register_topic("x" * 21, [QueueData(broker_name="a")]))
    assert set(table.topics()) == {"orders", "bills", "three"}
    assert table.broker_count == 1


def check_invariant(table: RouteTable) -> None:
    info = finished(table.cluster_info())
    assert set(info.brokers) == {name for names in info.clusters.values() for name in names}
    assert all(each.broker_addresses for each in info.brokers.values())
    alive = [(each.cluster, address) for each in info.brokers.values() for address in each.broker_addresses.values()]
    assert len(alive) == len(set(alive)) == table.broker_count
    for topic in table.topics():
        route = finished(table.route(topic))
        assert route is not None
        assert {queue.broker_name for queue in route.queue_datas} <= set(info.brokers)


def test_whatever_happens_the_tables_agree() -> None:
    print(f"CMQ_SEED={SEED}")
    rng = random.Random(SEED)
    table = RouteTable(support_acting_master=True)
    now_ms = 0
    for _ in range(4000):
        now_ms += rng.randrange(20_000)
        name, broker_id, address = rng.choice("abc"), rng.randrange(3), f"h:{rng.randrange(6)}"
        match rng.randrange(6):
            case 0 | 1 | 2:
                cluster, acting = rng.choice("cd"), rng.choice([None, False, True])
                which = broker(name, broker_id=broker_id, address=address, cluster=cluster, acting=acting)
                what = body(*rng.sample(["t1", "t2", "t3", "t4"], rng.randint(1, 4)), counter=rng.randrange(5))
                with suppress(InvalidArgument):
                    register(table, which, what, connection=rng.randrange(5), now_ms=now_ms)
            case 3:
                finished(table.unregister(cluster=rng.choice("cd"), broker_name=name, address=address))
            case 4:
                finished(table.connection_closed(rng.randrange(5)))
            case _:
                finished(table.expire(now_ms))
        check_invariant(table)
    for connection in range(5):
        finished(table.connection_closed(connection))
    assert (table.broker_count, table.topic_count) == (0, 0)
    assert finished(table.cluster_info()).clusters == {}


MANY = tuple(f"t{number}" for number in range(5_000))


def sizes(table: RouteTable, steps: Steps[object]) -> list[int]:
    """Run the steps; return the number of topics behind each."""
    counts = [table.topic_count]
    while True:
        try:
            next(steps)
        except StopIteration:
            return [*counts, table.topic_count]
        counts.append(table.topic_count)


def largest_step(counts: list[int]) -> int:
    return max(abs(after - before) for before, after in itertools.pairwise(counts))


def test_very_many_topics_come_and_go_in_steps() -> None:
    table = RouteTable()
    counts = sizes(table, table.register(broker(), body(*MANY), connection=1, now_ms=0))
    assert (counts[0], counts[-1]) == (0, len(MANY))
    assert largest_step(counts) <= STEP_TOPICS
    finished(table.register(broker("b"), body(*MANY), connection=2, now_ms=0))
    for change in (table.wipe_write_perm("a"), table.add_write_perm("a"), table.topics_of_cluster("c")):
        assert len(sizes(table, change)) > 2, "it has no pause"
    finished(table.unregister(cluster="c", broker_name="b", address="b0:10911"))
    assert table.topic_count == len(MANY)
    counts = sizes(table, table.unregister(cluster="c", broker_name="a", address="a0:10911"))
    assert counts[-1] == 0
    assert largest_step(counts) <= STEP_TOPICS
    check_invariant(table)


def test_a_topic_of_many_brokers_is_looked_up_and_deleted_in_steps() -> None:
    table = RouteTable()
    names = [f"b{number}" for number in range(3 * STEP_TOPICS)]
    for name in names:
        register(table, broker(name), body("wide", "other"), connection=name)
    made = table.register_topic("made", [QueueData(broker_name=name) for name in names])
    assert len(sizes(table, made)) > 4, "it has no pause"
    route = finished(table.route("made"))
    assert route is not None
    assert [queue.broker_name for queue in route.queue_datas] == names
    check_invariant(table)
    looking = table.route("wide")
    next(looking)
    finished(table.unregister(cluster="c", broker_name=names[0], address=f"{names[0]}0:10911"))
    finished(table.unregister(cluster="c", broker_name=names[-1], address=f"{names[-1]}0:10911"))
    route = finished(looking)
    assert route is not None
    assert [queue.broker_name for queue in route.queue_datas] == names[:-1], "as each was in its step"
    assert [each.broker_name for each in route.broker_datas] == names[:-1]
    assert len(sizes(table, table.delete_topic("wide"))) > 2, "it has no pause"
    assert finished(table.route("wide")) is None
    check_invariant(table)


def test_routes_name_no_broker_that_is_going() -> None:
    table = RouteTable()
    register(table, what=body(*MANY))
    register(table, broker("b"), what=body(*MANY), connection=2)
    going = table.unregister(cluster="c", broker_name="a", address="a0:10911")
    next(going)
    for topic in (MANY[0], MANY[-1]):
        assert addresses(table, topic) == {"b": {0: "b0:10911"}}
        assert perms(table, topic) == {"b": 6}
    finished(table.delete_topic(MANY[-1]))
    finished(going)
    assert table.topic_count == len(MANY) - 1
    check_invariant(table)


def test_a_connection_that_closes_during_its_registration_takes_all_topics_along() -> None:
    table = RouteTable()
    coming = table.register(broker(), body(*MANY), connection=7, now_ms=0)
    while table.topic_count == 0:
        next(coming)
    finished(coming)
    assert finished(table.connection_closed(7)) == [("c", "a0:10911")]
    assert table.topic_count == 0
    check_invariant(table)
