"""Checks: ``close(timeout_ms=)`` of every client returns in time if servers hang, and logs the abandoned work."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from typing import Any

import pytest

import cometmq.aio
import cometmq.client
from cometmq.client.instance.heartbeat_sender import HeartbeatSender
from cometmq.client.instance.service_state import ServiceState
from cometmq.errors import Error
from cometmq.remoting.bodies.routes import BrokerData, QueueData, TopicRouteData
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import Command
from cometmq.testing import Cluster, cluster
from support.peer import Peer

LIMIT_S = 30


@pytest.fixture(scope="module")
def servers() -> Iterator[Cluster]:
    with cluster() as running:
        yield running


@pytest.fixture
def brokers_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """No broker answers that a group has left."""

    async def never(self: HeartbeatSender, **groups: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(HeartbeatSender, "send_unregister", never)


def made(surface: Any, kind: str, address: str) -> Any:
    options = {"checker": lambda message: None} if kind == "TransactionProducer" else {}
    return getattr(surface, kind)("closing", name_servers=address, **options)


async def ended(call: Any) -> Any:
    """Return what a method of either surface came to."""
    return await asyncio.wait_for(call, LIMIT_S) if asyncio.iscoroutine(call) else call


@pytest.mark.usefixtures("brokers_hang")
@pytest.mark.parametrize("kind", ["Producer", "TransactionProducer", "PullConsumer", "SimpleConsumer"])
@pytest.mark.parametrize("surface", [cometmq.client, cometmq.aio], ids=["client", "aio"])
def test_close_gives_up_brokers_that_hang(
    servers: Cluster, surface: Any, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def life() -> None:
        member = made(surface, kind, servers.name_server_address)
        await ended(member.start())
        await ended(member.close(timeout_ms=20))
        assert member.state is ServiceState.SHUTDOWN_ALREADY

    asyncio.run(life())
    assert "closing: gave up after 20 ms: unregistering at its brokers" in caplog.text


def silent_broker(peer: Peer, connection: socket.socket, request: Command) -> bytes | None:
    """It has a topic, and answers everything but sends."""
    if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
        queues = QueueData(broker_name="a", read_queue_nums=1, write_queue_nums=1, perm=6)
        broker = BrokerData(cluster="c", broker_name="a", broker_addresses={0: peer.address})
        body = TopicRouteData(queue_datas=(queues,), broker_datas=(broker,)).to_json()
        return request.response(0, body=body).encode()
    if request.code in (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2):
        return None
    return request.response(0).encode()


def test_close_gives_up_sends_in_flight(caplog: pytest.LogCaptureFixture) -> None:
    with Peer(silent_broker) as peer:
        producer = cometmq.client.Producer("closing", name_servers=peer.address, send_msg_timeout_ms=600_000).start()
        future = producer.send_async("t", b"x")
        producer.close(timeout_ms=50)
        assert "producer group closing: gave up after 50 ms: 1 send in flight, whose outcome is unknown" in caplog.text
        with pytest.raises(Error):
            future.result(LIMIT_S)
        producer.close()


def test_close_in_time_gives_up_nothing(servers: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    producer = cometmq.client.Producer("closing", name_servers=servers.name_server_address).start()
    sends = [producer.send_async("t", b"%d" % number) for number in range(20)]
    producer.close(timeout_ms=60_000)
    assert [send.done() for send in sends] == [True] * 20
    assert "gave up" not in caplog.text
