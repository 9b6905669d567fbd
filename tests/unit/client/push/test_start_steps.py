"""Checks: the steps of a start on virtual time, the states of every kind of client, and the names of instances."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import patch

import pytest

from cometmq.client.instance.instance import ClientInstance
from cometmq.client.instance.service_state import ServiceState
from cometmq.client.pop.simple_engine import SimpleEngine
from cometmq.client.pop.simple_settings import SimpleSettings
from cometmq.client.pull.pull_engine import PullEngine
from cometmq.client.send.producer_settings import ProducerSettings
from cometmq.client.send.send_engine import SendEngine
from cometmq.client.settings import PullSettings
from cometmq.errors import BrokerError, ClientStateError, InvalidArgument
from cometmq.remoting.bodies.heartbeat import HeartbeatData, MessageModel
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import Command
from support.fake_cluster import FakeBroker, FakeCluster, FakeNetwork
from support.push_engines import Seen, consumer, fill, on_cluster, run_on_threads, until
from support.virtual_loop import EPOCH_MS


def _takes_expressions(_: FakeBroker, client: FakeNetwork, command: Command) -> Command:
    return command.response(0)


def _refuses_expressions(_: FakeBroker, client: FakeNetwork, command: Command) -> Command:
    return command.response(23, remark="the expression has no end")


def broker_that(check: Callable[..., Command]) -> Any:
    """Have brokers answer the check of an expression."""
    handlers = {**FakeBroker._HANDLERS, RequestCode.CHECK_CLIENT_CONFIG: check}
    return patch.object(FakeBroker, "_HANDLERS", handlers)


# --- The steps of a start ---------------------------------------------------------------------------------------------


@on_cluster
async def test_start_takes_its_steps_in_order(cluster: FakeCluster) -> None:
    """Promise 16: routes, checks of expressions, a heartbeat; queues after 1 s, their pulls half a second later."""
    fill(cluster, 2)
    cluster.brokers[0].create("%RETRY%g", 1)
    engine = consumer(cluster, Seen(), topics={"T": ("a > 1", "SQL92")}, enable_heartbeat_channel_event_listener=False)
    states: list[ServiceState] = []
    register = ClientInstance.register_consumer

    def note(instance: ClientInstance, part: Any) -> None:
        states.append(part.state)
        register(instance, part)

    with broker_that(_takes_expressions), patch.object(ClientInstance, "register_consumer", note):
        states.append(engine.state)
        await engine.start()
        states.append(engine.state)
        told = [(one.code, one.fields.get("topic")) for one in cluster.log]
        assert told == [
            (RequestCode.GET_ROUTEINFO_BY_TOPIC, "T"),
            (RequestCode.GET_ROUTEINFO_BY_TOPIC, "%RETRY%g"),
            (RequestCode.CHECK_CLIENT_CONFIG, None),
            (RequestCode.HEART_BEAT, None),
        ]
        started_s = cluster.loop.time()
        beat = HeartbeatData.from_json(cluster.log[3].body)
        assert {one.topic for one in beat.consumers[0].subscriptions} == {"T", "%RETRY%g"}
        await until(lambda: bool(cluster.asked(RequestCode.PULL_MESSAGE)))
        await engine.close()
        states.append(engine.state)
    assert states == [
        ServiceState.CREATE_JUST,
        ServiceState.START_FAILED,
        ServiceState.RUNNING,
        ServiceState.SHUTDOWN_ALREADY,
    ]
    shared_out = _at_s(cluster, RequestCode.GET_CONSUMER_LIST_BY_GROUP)
    assert shared_out == pytest.approx(1, abs=0.02), "the first round comes a second after the instance was made"
    assert _at_s(cluster, RequestCode.QUERY_CONSUMER_OFFSET) == pytest.approx(shared_out, abs=0.02)
    assert _at_s(cluster, RequestCode.PULL_MESSAGE) == pytest.approx(shared_out + 0.5, abs=0.02)
    assert started_s < shared_out
    assert "g" in {one.fields.get("consumerGroup") for one in cluster.asked(RequestCode.UNREGISTER_CLIENT)}


def _at_s(cluster: FakeCluster, code: int) -> float:
    return (cluster.asked(code)[0].at_ms - EPOCH_MS) / 1000


@on_cluster
async def test_heartbeat_of_the_start_wakes_the_rebalance(cluster: FakeCluster) -> None:
    """Promise 16: without the broker's notice, and without a heartbeat of a new connection, it comes all the same."""
    cluster.brokers[0].notices = False
    engine = consumer(cluster, Seen(), enable_heartbeat_channel_event_listener=False)
    await engine.start()
    await until(lambda: bool(engine.queues), limit_s=3)
    await engine.close()


@on_cluster
async def test_expression_that_a_broker_rejects_fails_the_start(cluster: FakeCluster) -> None:
    """Promise 16: nobody has heard of the consumer then, and it is closed."""
    engine = consumer(cluster, Seen(), topics={"T": ("a >", "SQL92")}, enable_heartbeat_channel_event_listener=False)
    with broker_that(_refuses_expressions), pytest.raises(BrokerError, match="the expression has no end"):
        await engine.start()
    assert not cluster.asked(RequestCode.HEART_BEAT)
    assert engine.state is ServiceState.SHUTDOWN_ALREADY
    with pytest.raises(ClientStateError, match="closed"):
        await engine.start()


# --- States -----------------------------------------------------------------------------------------------------------


async def _push(cluster: FakeCluster, name_servers: tuple[str, ...]) -> Any:
    return consumer(cluster, Seen(), name_servers=name_servers)


async def _pull(cluster: FakeCluster, name_servers: tuple[str, ...]) -> Any:
    settings = PullSettings(group="g", name_servers=name_servers, client_ip="10.0.0.9")
    return PullEngine(settings, now_ms=cluster.loop.now_ms, network_factory=cluster.factory)


async def _simple(cluster: FakeCluster, name_servers: tuple[str, ...]) -> Any:
    settings = SimpleSettings(group="g", name_servers=name_servers, client_ip="10.0.0.9")
    return SimpleEngine(settings, now_ms=cluster.loop.now_ms, network_factory=cluster.factory)


async def _producer(cluster: FakeCluster, name_servers: tuple[str, ...]) -> Any:
    settings = ProducerSettings(group="g", name_servers=name_servers, client_ip="10.0.0.9")
    instance = ClientInstance.shared(settings, network_factory=cluster.factory, now_ms=cluster.loop.now_ms)
    return SendEngine(instance, settings)


Maker = Callable[[FakeCluster, tuple[str, ...]], Awaitable[Any]]
MAKERS: list[Maker] = [_push, _pull, _simple, _producer]


@pytest.mark.parametrize("make", MAKERS)
def test_only_a_new_client_starts(make: Maker) -> None:
    """Promise 16: CREATE_JUST, RUNNING, SHUTDOWN_ALREADY; a start in any other state names that state."""

    @on_cluster
    async def body(cluster: FakeCluster) -> None:
        client = await make(cluster, ("ns:9876",))
        assert client.state is ServiceState.CREATE_JUST
        await client.start()
        assert client.state is ServiceState.RUNNING
        with pytest.raises(ClientStateError, match="running"):
            await client.start()
        assert client.state is ServiceState.RUNNING
        await client.close()
        assert client.state is ServiceState.SHUTDOWN_ALREADY
        with pytest.raises(ClientStateError, match="closed"):
            await client.start()
        await client.close()
        assert client.state is ServiceState.SHUTDOWN_ALREADY

    body()


@pytest.mark.parametrize("make", MAKERS)
def test_failed_start_is_final(make: Maker) -> None:
    """Promise 16: after START_FAILED, or the close that follows it, nothing starts any more."""

    @on_cluster
    async def body(cluster: FakeCluster) -> None:
        client = await make(cluster, ("ns:9876",))
        with (
            patch.object(ClientInstance, "start", side_effect=ConnectionResetError("broken")),
            pytest.raises(ConnectionResetError),
        ):
            await client.start()
        assert client.state in (ServiceState.START_FAILED, ServiceState.SHUTDOWN_ALREADY)
        with pytest.raises(ClientStateError, match=r"its start failed|closed"):
            await client.start()
        await client.close()
        with pytest.raises(ClientStateError):
            await client.start()
        # A setting that cannot be used.
        client = await make(cluster, ())
        with pytest.raises((InvalidArgument, ClientStateError), match="no name server is known"):
            await client.start()
        with pytest.raises(ClientStateError, match=r"its start failed|closed"):
            await client.start()
        await client.close()

    body()


# --- Instance names ---------------------------------------------------------------------------------------------------


@on_cluster
async def test_clustering_consumers_of_a_process_get_instances_of_their_own(cluster: FakeCluster) -> None:
    """Promise 18: two members of one group that name no instance are two clients, and share the queues."""
    one, two = consumer(cluster, Seen()), consumer(cluster, Seen())
    await one.start()
    await two.start()
    await until(lambda: len(_queues(one)) == len(_queues(two)) == 1)
    ids = set(cluster.brokers[0].groups["g"])
    assert len(ids) == 2
    assert all("#" in name and name.startswith("10.0.0.9@") for name in ids)
    assert one._instance is not two._instance
    await one.close()
    await two.close()


def _queues(engine: Any) -> list[Any]:
    return [queue for queue in engine.queues if queue.topic == "T"]


@on_cluster
async def test_named_instance_keeps_its_name_and_is_shared(cluster: FakeCluster) -> None:
    """Promise 18: an instance name given by the user is left alone."""
    one = consumer(cluster, Seen(), instance_name="mine")
    two = consumer(cluster, Seen(), instance_name="mine", group="g2")
    await one.start()
    await two.start()
    await asyncio.sleep(2)
    assert set(cluster.brokers[0].groups["g"]) == set(cluster.brokers[0].groups["g2"]) == {"10.0.0.9@mine"}
    assert one._instance is two._instance
    await one.close()
    await two.close()


def test_broadcasting_consumer_keeps_the_default_name(tmp_path: Any) -> None:
    """Promise 18: its local offsets are kept under the client id, which must outlive the process."""

    async def body(cluster: FakeCluster) -> None:
        engine = consumer(cluster, Seen(), message_model=MessageModel.BROADCASTING, offset_folder=tmp_path)
        await engine.start()
        await asyncio.sleep(2)
        assert set(cluster.brokers[0].groups["g"]) == {"10.0.0.9@DEFAULT"}
        await engine.close()

    run_on_threads(body)
