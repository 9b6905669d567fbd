"""Checks: the client instance on virtual time: its start, its rhythm, its heartbeats, what it asks and when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest

from cometmq.client.instance.instance import (
    INNER_PRODUCER_GROUP,
    ClientInstance,
    build_client_id,
    own_instance_name,
    vip_address,
)
from cometmq.client.instance.service_state import ServiceState
from cometmq.client.settings import ClientSettings
from cometmq.errors import (
    BrokerError,
    BrokerNotFound,
    ClientStateError,
    ConnectionLost,
    Error,
    GroupTaken,
    MalformedBody,
    RouteNotFound,
)
from cometmq.remoting.bodies.heartbeat import HeartbeatData
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.members import request
from cometmq.testing.clusters import cluster as real_cluster
from support.client_parts import FakeConsumer, FakeProducer
from support.fake_cluster import Asked, FakeCluster
from support.virtual_loop import EPOCH_MS, VirtualLoop, run_virtual

SETTINGS = ClientSettings(name_servers=("ns:9876",), client_ip="10.0.0.9", instance_name="i")


def shared(cluster: FakeCluster, settings: ClientSettings = SETTINGS) -> ClientInstance:
    return ClientInstance.shared(settings, network_factory=cluster.factory, now_ms=cluster.loop.now_ms)


def queue(topic: str = "T", queue_id: int = 0, broker_name: str = "b0") -> MessageQueue:
    return MessageQueue(topic=topic, broker_name=broker_name, queue_id=queue_id)


def at_s(asked: list[Asked]) -> list[float]:
    return [round((one.at_ms - EPOCH_MS) / 1000, 2) for one in asked]


def on_cluster(test: Any) -> Any:
    """Run a test as a coroutine of a virtual loop with a cluster of one broker that has topic T with two queues."""

    def run() -> None:
        def main(loop: VirtualLoop) -> Coroutine[Any, Any, None]:
            cluster = FakeCluster(loop)
            cluster.brokers[0].create("T", 2)
            return test(cluster)  # type: ignore[no-any-return]

        run_virtual(main)

    run.__name__ = test.__name__
    return run


@on_cluster
async def test_rounds_keep_upstream_s_times(cluster: FakeCluster) -> None:
    persisted: list[float] = []
    rebalanced: list[float] = []

    async def rebalance() -> bool:
        rebalanced.append(round(cluster.loop.time(), 2))
        return True

    instance = shared(cluster)
    part = FakeConsumer("g", "T", rebalance=rebalance, persist=lambda: persisted.append(round(cluster.loop.time(), 2)))
    instance.register_consumer(part)
    await instance.start()
    assert instance.state is ServiceState.RUNNING
    await asyncio.sleep(61.5)
    assert at_s(cluster.asked(RequestCode.GET_ROUTEINFO_BY_TOPIC)) == [0.01, 30.01, 60.01]
    assert at_s(cluster.asked(RequestCode.HEART_BEAT)) == [1.0, 31.0, 61.0]
    assert persisted == [10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60]
    # The broker's notice of the new member wakes the first round; without more, one follows every 20 s.
    assert rebalanced == [1.0, 21.0, 41.0, 61.0]
    await instance.release()


@on_cluster
async def test_a_round_that_fails_ends_nothing(cluster: FakeCluster) -> None:
    rounds = 0

    async def rebalance() -> bool:
        nonlocal rounds
        rounds += 1
        raise RuntimeError("broken")

    def persist() -> None:
        raise OSError("disk")

    instance = shared(cluster)
    instance.register_consumer(FakeConsumer("g", "T", rebalance=rebalance, persist=persist))
    await instance.start()
    await asyncio.sleep(40)
    # Not balanced: again after a second each time.
    assert 37 <= rounds <= 40
    assert len(cluster.asked(RequestCode.HEART_BEAT)) == 2
    await instance.release()


@on_cluster
async def test_woken_rebalances_keep_their_distance(cluster: FakeCluster) -> None:
    times: list[float] = []

    async def rebalance() -> bool:
        times.append(round(cluster.loop.time(), 3))
        return True

    instance = shared(cluster)
    instance.register_consumer(FakeConsumer("g", rebalance=rebalance))
    await instance.start()
    instance.wake_rebalance()
    await asyncio.sleep(5)
    assert times == [1.0]
    instance.wake_rebalance()
    instance.wake_rebalance()
    await asyncio.sleep(0.2)
    instance.wake_rebalance()
    instance.wake_rebalance(500)
    await asyncio.sleep(5)
    assert times == [1.0, 5.0, 6.0]
    await instance.release()


@on_cluster
async def test_heartbeats_list_the_groups(cluster: FakeCluster) -> None:
    instance = shared(cluster)
    assert not await instance.heartbeat(), "no broker is known"
    instance.register_producer(FakeProducer("pg", "T"))
    instance.register_consumer(FakeConsumer("g2", "T"))
    instance.register_consumer(FakeConsumer("g1", "T", "%RETRY%g1"))
    await instance.update_route("T")
    assert await instance.heartbeat()
    (beat,) = cluster.asked(RequestCode.HEART_BEAT)
    data = HeartbeatData.from_json(beat.body)
    assert data.client_id == "10.0.0.9@i"
    assert [one.group_name for one in data.producers] == [INNER_PRODUCER_GROUP, "pg"]
    assert [one.group_name for one in data.consumers] == ["g1", "g2"]
    assert [one.topic for one in data.consumers[0].subscriptions] == ["%RETRY%g1", "T"]
    assert (data.fingerprint, data.without_sub) == (0, False)
    assert instance.broker_versions == {"b0:10911": 479}
    assert set(cluster.brokers[0].groups) == {"g1", "g2"}
    await instance.release()


@on_cluster
async def test_one_heartbeat_at_a_time_and_none_after_the_farewell(cluster: FakeCluster) -> None:
    instance = shared(cluster)
    instance.register_consumer(FakeConsumer("g", "T"))
    await instance.update_route("T")
    cluster.log.clear()
    first = asyncio.ensure_future(instance.heartbeat())
    await asyncio.sleep(0)
    assert not await instance.heartbeat()
    farewell = asyncio.ensure_future(instance.unregister_consumer("g"))
    assert await first
    await farewell
    assert [one.code for one in cluster.log] == [RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT]
    assert cluster.log[1].fields == {"clientID": "10.0.0.9@i", "consumerGroup": "g"}
    assert cluster.brokers[0].groups == {"g": {}}
    await instance.unregister_consumer("g")
    assert len(cluster.log) == 2, "it was unregistered once"
    await instance.release()


@on_cluster
async def test_a_change_is_sent_although_a_heartbeat_is_in_progress(cluster: FakeCluster) -> None:
    """That one may have been made before the change; brokers would refuse pulls until the next, half a minute later."""
    instance = shared(cluster)
    part = FakeConsumer("g", "T")
    instance.register_consumer(part)
    await instance.update_route("T")
    cluster.log.clear()
    first = asyncio.ensure_future(instance.heartbeat())
    await asyncio.sleep(0)
    part.subscriptions["T"] = replace(part.subscriptions["T"], sub_version=EPOCH_MS + 77)
    assert await instance.heartbeat(queues_changed=True)
    assert await first
    told = [HeartbeatData.from_json(beat.body) for beat in cluster.asked(RequestCode.HEART_BEAT)]
    assert len(told) == 2
    assert told[1].consumers[0].subscriptions[0].sub_version == EPOCH_MS + 77
    await instance.release()


@on_cluster
async def test_a_new_connection_is_greeted_and_shares_out_again(cluster: FakeCluster) -> None:
    woken: list[float] = []

    async def rebalance() -> bool:
        woken.append(round(cluster.loop.time(), 1))
        return True

    instance = shared(cluster)
    instance.register_consumer(FakeConsumer("g", "T", rebalance=rebalance))
    await instance.start()
    await asyncio.sleep(5)
    broker = cluster.stop("b0:10911")
    await asyncio.sleep(1)
    with pytest.raises(ConnectionLost):
        await instance.max_offset(queue())
    cluster.servers["b0:10911"] = broker
    cluster.log.clear()
    assert await instance.max_offset(queue()) == 0
    await asyncio.sleep(0.01)
    assert [one.code for one in cluster.log] == [RequestCode.GET_MAX_OFFSET, RequestCode.HEART_BEAT]
    await asyncio.sleep(2)
    assert woken == [1.0, 6.0]
    await instance.release()


def test_broker_that_is_back_is_greeted_while_another_hangs() -> None:
    """A round that waits for one broker keeps no other from hearing of us."""

    async def test(loop: VirtualLoop) -> None:
        cluster = FakeCluster(loop, brokers=2)
        for broker in cluster.brokers:
            broker.create("T", 1)
        hanging, back = cluster.brokers
        instance = shared(cluster)
        instance.register_consumer(FakeConsumer("g", "T"))
        await instance.start()
        await asyncio.sleep(5)
        cluster.stop(back.address)
        hanging.is_silent = True
        instance.spawn(instance.heartbeat())  # waits for the one that hangs
        await asyncio.sleep(1)
        back.groups.clear()
        cluster.servers[back.address] = back
        place = MessageQueue(topic="T", broker_name=back.name, queue_id=0)
        assert await instance.max_offset(place) == 0
        await asyncio.sleep(0.1)
        assert back.groups["g"]
        hanging.is_silent = False
        await instance.release()

    run_virtual(test)


@on_cluster
async def test_short_heartbeats_until_something_changes(cluster: FakeCluster) -> None:
    settings = ClientSettings(name_servers=("ns:9876",), client_ip="10.0.0.9", use_heartbeat_v2=True)
    instance = shared(cluster, settings)
    part = FakeConsumer("g", "T")
    instance.register_consumer(part)
    await instance.update_route("T")

    async def beat(**how: bool) -> HeartbeatData:
        assert await instance.heartbeat(**how)
        return HeartbeatData.from_json(cluster.asked(RequestCode.HEART_BEAT)[-1].body)

    full, short = await beat(), await beat()
    assert full.fingerprint == short.fingerprint != 0
    assert (full.without_sub, short.without_sub) == (False, True)
    assert [len(data.consumers[0].subscriptions) for data in (full, short)] == [1, 0]
    assert not (await beat(queues_changed=True)).without_sub
    assert (await beat()).without_sub
    part.subscriptions.update(FakeConsumer("g", "U").subscriptions)
    changed = await beat()
    assert not changed.without_sub
    assert changed.fingerprint != full.fingerprint
    cluster.networks[0].server_gone("b0:10911")
    assert not (await beat()).without_sub, "another process may answer there now"
    await instance.release()


@on_cluster
async def test_parts_get_each_route_once_and_its_changes(cluster: FakeCluster) -> None:
    instance = shared(cluster)
    first, other, producer = FakeConsumer("g", "T"), FakeConsumer("o", "U"), FakeProducer("p")
    instance.register_consumer(first)
    instance.register_consumer(other)
    instance.register_producer(producer)
    assert await instance.update_route("T")
    assert not await instance.update_route("T")
    late = FakeConsumer("late", "T")
    instance.register_consumer(late)
    assert not await instance.update_route("T")
    cluster.brokers[0].create("T", 3)
    assert await instance.update_route("T")
    two, three = [queue(queue_id=number) for number in range(2)], [queue(queue_id=number) for number in range(3)]
    assert first.routes == late.routes == [("T", two), ("T", three)]
    assert other.routes == []
    assert [list(info.queues) for info in producer.routes] == [two, three]
    await instance.release()


@on_cluster
async def test_concurrent_callers_share_a_look_up(cluster: FakeCluster) -> None:
    instance = shared(cluster)
    assert await asyncio.gather(*(instance.update_route("T") for _ in range(5))) == [True] * 5
    assert len(cluster.log) == 1
    impatient = asyncio.ensure_future(instance.update_route("T"))
    patient = asyncio.ensure_future(instance.update_route("T"))
    await asyncio.sleep(0)
    impatient.cancel()
    assert await patient is False
    await instance.release()


@on_cluster
async def test_topics_that_are_nowhere(cluster: FakeCluster) -> None:
    instance = shared(cluster)
    assert not await instance.update_route("U")
    with pytest.raises(RouteNotFound, match="topic create U") as caught:
        await instance.update_route("U", must_exist=True)
    assert caught.value.topic == "U"
    cluster.brokers[0].create("TBW102", 8)
    assert await instance.update_route("U", default_topic="TBW102", default_queues=4)
    info = instance.routes.publish_info("U")
    assert info is not None
    assert list(info.queues) == [queue("U", number) for number in range(4)]
    cluster.stop("ns:9876")
    assert not await instance.update_route("T")
    with pytest.raises(ConnectionLost):
        await instance.update_route("T", must_exist=True)
    await instance.release()


@on_cluster
async def test_a_name_server_that_answers_garbage(cluster: FakeCluster) -> None:
    instance = shared(cluster)
    for garbage in (b"", b"{", b"[]", b'{"queueDatas":[{"brokerName":"b","readQueueNums":2000000000}]}'):
        cluster.name_server.garbage = garbage
        with pytest.raises(MalformedBody):
            await instance.update_route("T", must_exist=True)
    assert not await instance.update_route("T")
    await instance.release()


@on_cluster
async def test_questions_to_brokers(cluster: FakeCluster) -> None:
    instance = shared(cluster)
    broker = cluster.brokers[0]
    assert await instance.query_offset("g", queue()) is None, "the route is fetched for the question"
    broker.offsets["g", "T", 0] = 7
    assert await instance.query_offset("g", queue()) == 7
    broker.append("T", 0, b"one")
    await asyncio.sleep(1)
    broker.append("T", 0, b"two")
    assert (await instance.min_offset(queue()), await instance.max_offset(queue())) == (0, 2)
    assert await instance.search_offset(queue(), cluster.loop.now_ms() - 500) == 1
    first_ms = broker.log[0].stored_ms
    assert await instance.earliest_store_time(queue()) == first_ms
    assert await instance.earliest_store_time(queue(queue_id=1)) == -1
    with pytest.raises(BrokerNotFound, match="nowhere") as caught:
        await instance.max_offset(queue(broker_name="nowhere"))
    assert caught.value.broker_name == "nowhere"
    answer = await instance.ask_broker("b0", request(9_999), timeout_ms=100)
    assert answer.code == 3, "any answer is one"
    await instance.release()


@on_cluster
async def test_a_refusal_names_the_queue(cluster: FakeCluster) -> None:
    instance = shared(cluster)
    await instance.update_route("T")
    cluster.servers["b0:10911"] = cluster.name_server
    cluster.name_server.answer = lambda client, command: command.response(1, remark="no")  # type: ignore[method-assign]
    with pytest.raises(BrokerError, match="queue 1 of T at b0"):
        await instance.max_offset(queue(queue_id=1))
    await instance.release()


@on_cluster
async def test_members_of_a_group(cluster: FakeCluster) -> None:
    instance = shared(cluster)
    assert await instance.consumer_ids("U", "g") is None, "nobody has the topic"
    assert await instance.consumer_ids("T", "g") is None, "nobody is in the group"
    instance.register_consumer(FakeConsumer("g", "T"))
    await instance.heartbeat()
    assert await instance.consumer_ids("T", "g") == ["10.0.0.9@i"]
    cluster.stop("b0:10911")
    assert await instance.consumer_ids("T", "g") is None
    await instance.release()


@on_cluster
async def test_brokers_that_are_in_no_route_are_forgotten(cluster: FakeCluster) -> None:
    cluster.add_broker("b1").create("T", 1)
    instance = shared(cluster)
    instance.register_consumer(FakeConsumer("g", "T"))
    await instance.start()
    await asyncio.sleep(2)
    assert {one.address for one in cluster.asked(RequestCode.HEART_BEAT)} == {"b0:10911", "b1:10911"}
    cluster.stop("b1:10911")
    cluster.log.clear()
    await asyncio.sleep(30)
    assert {one.address for one in cluster.asked(RequestCode.HEART_BEAT)} == {"b0:10911"}
    assert instance.master_address("b1") is None
    assert "b1:10911" not in instance.broker_versions
    await instance.release()


@on_cluster
async def test_clients_of_one_id_share_one_instance(cluster: FakeCluster) -> None:
    first, second = shared(cluster), shared(cluster)
    assert first is second
    assert len(cluster.networks) == 1
    first.register_consumer(FakeConsumer("g", "T"))
    with pytest.raises(GroupTaken, match="instance_name") as caught:
        second.register_consumer(FakeConsumer("g", "U"))
    assert caught.value.group == "g"
    first.register_producer(FakeProducer("g"))
    with pytest.raises(GroupTaken):
        first.register_producer(FakeProducer("g"))
    await asyncio.gather(first.start(), second.start())
    await asyncio.sleep(2)
    assert len(cluster.asked(RequestCode.HEART_BEAT)) == 1
    await first.release()
    assert first.state is ServiceState.RUNNING
    assert not cluster.networks[0].is_closed
    await second.release()
    assert first.state is ServiceState.SHUTDOWN_ALREADY
    assert cluster.networks[0].is_closed
    assert shared(cluster) is not first


@on_cluster
async def test_the_end(cluster: FakeCluster) -> None:
    instance = shared(cluster)
    instance.register_producer(FakeProducer("p", "T"))
    await instance.start()
    await asyncio.sleep(2)
    cluster.log.clear()
    await instance.unregister_producer("p")
    await instance.release()
    left = [one.fields.get("producerGroup") for one in cluster.asked(RequestCode.UNREGISTER_CLIENT)]
    assert left == ["p", INNER_PRODUCER_GROUP]
    cluster.log.clear()
    await asyncio.sleep(200)
    assert cluster.log == []
    await instance.start()
    assert instance.state is ServiceState.SHUTDOWN_ALREADY, "a start after the end does nothing"


@on_cluster
async def test_a_silent_broker_holds_up_the_end_for_its_time_only(cluster: FakeCluster) -> None:
    instance = shared(cluster)
    instance.register_producer(FakeProducer("p", "T"))
    await instance.start()
    await asyncio.sleep(2)
    cluster.brokers[0].is_silent = True
    begun_s = cluster.loop.time()
    await instance.release()
    assert cluster.loop.time() - begun_s == pytest.approx(3)


@on_cluster
async def test_name_servers_from_a_web_server(cluster: FakeCluster) -> None:
    asked: list[str] = []
    told = [("gone:9876",), ("ns:9876",)]

    async def look_up(url: str, timeout_ms: int) -> tuple[str, ...]:
        asked.append(url)
        return told[len(asked) > 1]

    settings = ClientSettings(client_ip="10.0.0.9", name_server_domain="web", unit_name="u")
    instance = ClientInstance(settings, network_factory=cluster.factory, look_up_name_servers=look_up)
    instance.register_consumer(FakeConsumer("g", "T"))
    await instance.start()
    await asyncio.sleep(5)
    assert asked == ["http://web:8080/rocketmq/nsaddr-u?nofix=1"]
    assert instance.routes.route("T") is None
    await asyncio.sleep(130)
    assert len(asked) == 3
    assert instance.name_servers.addresses == ("ns:9876",)
    assert instance.routes.route("T") is not None
    await instance.release()


@on_cluster
async def test_a_start_that_fails_stays_failed(cluster: FakeCluster) -> None:
    instance = ClientInstance(ClientSettings(client_ip="10.0.0.9"), network_factory=cluster.factory)
    with pytest.raises(ClientStateError, match="NAMESRV_ADDR"):
        await instance.start()
    with pytest.raises(ClientStateError, match="its start failed"):
        await instance.start()
    await instance.release()


@on_cluster
async def test_inner_producer_sends_messages_back(cluster: FakeCluster) -> None:
    instance = shared(cluster)
    await instance.start()
    broker = cluster.brokers[0]
    broker.create("%RETRY%g", 1)
    properties = {"TAGS": "a", "KEYS": "k", "RETRY_TOPIC": "T", "RECONSUME_TIME": "3", "own": "1"}
    await instance.send_inner("%RETRY%g", b"body", properties=properties)
    (record,) = broker.topics["%RETRY%g"][0]
    assert record.body == b"body"
    assert {name: record.properties.get(name) for name in properties} == properties
    assert record.reconsume_times == 3
    cluster.stop("b0:10911")
    with pytest.raises(Error, match="cannot be reached"):
        await instance.send_inner("%RETRY%g", b"body", properties=properties)
    await instance.release()


def test_on_servers_of_our_own() -> None:
    async def main(address: str) -> None:
        instance = ClientInstance.shared(ClientSettings(name_servers=(address,), use_heartbeat_v2=True))
        part = FakeConsumer("g", "TBW102")
        instance.register_consumer(part)
        await instance.update_route("TBW102")
        ((_, queues),) = part.routes
        assert len(queues) == 8
        assert await instance.heartbeat()
        assert await instance.heartbeat(), "without subscriptions"
        assert await instance.consumer_ids("TBW102", "g") == [instance.client_id]
        assert await instance.query_offset("g", queues[0]) is None
        assert (await instance.min_offset(queues[0]), await instance.max_offset(queues[0])) == (0, 0)
        await instance.unregister_consumer("g")
        assert await instance.consumer_ids("TBW102", "g") is None
        await instance.release()

    with real_cluster() as servers:
        asyncio.run(main(servers.name_server_address))


def test_client_ids() -> None:
    assert build_client_id(SETTINGS) == "10.0.0.9@i"
    marked = ClientSettings(client_ip="::1", instance_name="7#1", unit_name="u", enable_stream_request_type=True)
    assert build_client_id(marked) == "::1@7#1@u@STREAM"
    assert build_client_id(ClientSettings(client_ip="10.0.0.9", unit_name=" ")) == "10.0.0.9@DEFAULT"
    assert own_instance_name("mine") == "mine"
    first, second = own_instance_name("DEFAULT"), own_instance_name("DEFAULT")
    assert first != second
    assert "#" in first


def test_second_ports() -> None:
    assert vip_address("10.0.0.1:10911") == "10.0.0.1:10909"
    assert vip_address("10.0.0.1:1") == "10.0.0.1:1"
