"""Checks: a name server behind sockets: brokers live by their connections, the silent ones go, it stops cleanly."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq.errors import ConnectionLost, Error, InvalidArgument
from cometmq.namesrv.server import NamesrvServer
from cometmq.namesrv.settings import NamesrvSettings
from cometmq.remoting.bodies.routes import BrokerData, ClusterInfo, TopicRouteData
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command, HeaderFormat
from cometmq.remoting.sync_channel import Channel
from support.registrations import registration
from support.waiting import wait_until

TIMEOUT_MS = 10_000


@pytest.fixture
def server() -> Iterator[NamesrvServer]:
    with NamesrvServer(NamesrvSettings(listen_port=0, scan_not_active_broker_interval_ms=5)) as server:
        yield server


def route_code(channel: Channel, topic: str = "orders") -> int:
    request = Command(code=RequestCode.GET_ROUTEINFO_BY_TOPIC, fields={"topic": topic})
    return channel.invoke(request, timeout_ms=TIMEOUT_MS).code


@pytest.mark.parametrize("header_format", list(HeaderFormat))
def test_a_broker_registers_and_a_client_finds_it(server: NamesrvServer, header_format: HeaderFormat) -> None:
    with Channel(server.address) as broker, Channel(server.address) as client:
        answer = broker.invoke(registration(header_format=header_format), timeout_ms=TIMEOUT_MS)
        assert (answer.code, answer.format) == (ResponseCode.SUCCESS, header_format)
        request = Command(code=RequestCode.GET_ROUTEINFO_BY_TOPIC, fields={"topic": "orders"}, format=header_format)
        route = TopicRouteData.from_json(client.invoke(request, timeout_ms=TIMEOUT_MS).body)
        assert route.broker_datas[0].broker_addresses == {0: "127.0.0.1:10911"}
        unknown = client.invoke(Command(code=310), timeout_ms=TIMEOUT_MS)
        assert (unknown.code, unknown.remark) == (3, " request type 310 not supported")


def test_a_broker_goes_with_its_connection(server: NamesrvServer) -> None:
    with Channel(server.address) as client:
        with Channel(server.address) as broker:
            broker.invoke(registration(), timeout_ms=TIMEOUT_MS)
            assert route_code(client) == ResponseCode.SUCCESS
        wait_until(lambda: route_code(client) == ResponseCode.TOPIC_NOT_EXIST)
        info = client.invoke(Command(code=RequestCode.GET_BROKER_CLUSTER_INFO), timeout_ms=TIMEOUT_MS)
        lost = BrokerData(cluster="c", broker_name="b", broker_addresses={0: "127.0.0.1:10911"})
        assert ClusterInfo.from_json(info.body) == ClusterInfo(lost={"b": lost})


def test_a_silent_broker_goes_and_is_disconnected(server: NamesrvServer) -> None:
    lost = threading.Event()
    with Channel(server.address, on_lost=lost.set) as broker, Channel(server.address) as client:
        broker.invoke(registration(expiry_ms=1), timeout_ms=TIMEOUT_MS)
        wait_until(lambda: route_code(client) == ResponseCode.TOPIC_NOT_EXIST)
        assert lost.wait(10)


def test_keys_outlive_the_server(tmp_path: Path) -> None:
    settings = NamesrvSettings(listen_port=0, kv_config_path=str(tmp_path / "keys" / "kv.json"))
    fields = {"namespace": "n", "key": "k", "value": "v"}
    with NamesrvServer(settings) as server, Channel(server.address) as client:
        client.invoke(Command(code=RequestCode.PUT_KV_CONFIG, fields=fields), timeout_ms=TIMEOUT_MS)
    with NamesrvServer(settings) as server, Channel(server.address) as client:
        answer = client.invoke(Command(code=RequestCode.GET_KV_CONFIG, fields=fields), timeout_ms=TIMEOUT_MS)
        assert answer.fields == {"value": "v"}


def test_an_invalid_frame_ends_that_connection_alone(server: NamesrvServer) -> None:
    host, port = "127.0.0.1", server.port
    with Channel(server.address) as client, socket.create_connection((host, port), timeout=10) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert stranger.recv(1) == b"", "closed"
        assert route_code(client) == ResponseCode.TOPIC_NOT_EXIST


def test_stopping() -> None:
    server = NamesrvServer(NamesrvSettings(listen_port=0))
    server.start()
    with Channel(server.address) as client:
        assert route_code(client) == ResponseCode.TOPIC_NOT_EXIST
        server.stop()
        server.stop()
        with pytest.raises(ConnectionLost):
            route_code(client)


def test_one_that_was_never_started_lets_its_port_go() -> None:
    server = NamesrvServer(NamesrvSettings(listen_port=0))
    port = server.port
    server.stop()
    with NamesrvServer(NamesrvSettings(listen_port=port)):
        pass


def test_a_taken_port_is_named(server: NamesrvServer) -> None:
    with pytest.raises(Error, match=str(server.port)):
        NamesrvServer(NamesrvSettings(listen_port=server.port))


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "192.0.2.1"])
def test_an_address_that_others_reach_is_refused(address: str) -> None:
    with pytest.raises(InvalidArgument, match="insecure-listen"):
        NamesrvServer(NamesrvSettings(bind_address=address, listen_port=0))


def test_unless_that_is_meant() -> None:
    with NamesrvServer(NamesrvSettings(bind_address="0.0.0.0", listen_port=0), insecure_listen=True) as server:
        assert server.counters()["open"] == 0
        with Channel(f"127.0.0.1:{server.port}") as client:
            route_code(client)
            assert server.counters()["open"] == 1


def test_a_name_is_no_address_to_listen_on() -> None:
    with pytest.raises(InvalidArgument, match="numeric"):
        NamesrvServer(NamesrvSettings(bind_address="example", listen_port=0))
