"""Checks: which name server is asked, which are passed over, and what a web server tells."""

from __future__ import annotations

import asyncio
import http.server
import threading
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from cometmq.client.instance.name_servers import LOOK_UP_BYTES_MAX, NameServers, look_up, look_up_url
from cometmq.errors import (
    BrokerError,
    ClientStateError,
    ConnectionLost,
    LimitReached,
    MalformedBody,
    MalformedCommand,
    NotConnected,
    RequestTimeout,
)
from cometmq.remoting.bodies.routes import BrokerData, TopicRouteData
from cometmq.remoting.command import Command

ADDRESSES = ("n0:1", "n1:1", "n2:1")
ROUTE = TopicRouteData(broker_datas=(BrokerData(cluster="c", broker_name="b", broker_addresses={0: "b:1"}),))


class Servers:
    """A network on which each name server has its answer."""

    def __init__(self, **answers: Command | Exception) -> None:
        self.answers = answers
        self.asked: list[str] = []

    async def invoke(self, address: str, request: Command, *, timeout_ms: int) -> Command:
        assert request.fields == {"topic": "T", "acceptStandardJsonOnly": "true"}
        assert timeout_ms == 700
        name = address.removesuffix(":1")
        self.asked.append(name)
        answer = self.answers.get(name, Command(code=0, body=ROUTE.to_json()))
        if isinstance(answer, Exception):
            raise answer
        return answer

    send: Any = None
    pull: Any = None
    oneway: Any = None
    close: Any = None


class First(Random):
    """Begins at the first."""

    def randrange(self, *args: Any, **kwargs: Any) -> int:
        return 0


def find(servers: NameServers) -> TopicRouteData | None:
    return asyncio.run(servers.find_route("T", timeout_ms=700))


def test_the_one_that_answers_is_asked_again() -> None:
    network = Servers(n0=ConnectionLost("gone"))
    servers = NameServers(network, ADDRESSES, random=First())
    assert find(servers) == find(servers) == ROUTE
    assert network.asked == ["n0", "n1", "n1"]
    network.answers["n1"] = RequestTimeout("silent")
    assert find(servers) == ROUTE
    network.answers["n2"] = LimitReached("full")
    network.answers.pop("n0")
    assert find(servers) == ROUTE
    assert network.asked[3:] == ["n1", "n2", "n2", "n0"], "round and round"


@pytest.mark.parametrize(
    "garbage",
    [
        Command(code=0, body=b"nonsense"),
        Command(code=0, body=b"{"),
        Command(code=0),
        MalformedCommand("no frame"),
    ],
)
def test_garbage_is_passed_over(garbage: Command | Exception) -> None:
    network = Servers(n0=garbage)
    assert find(NameServers(network, ADDRESSES, random=First())) == ROUTE
    assert network.asked == ["n0", "n1"]
    network = Servers(n0=garbage)
    with pytest.raises((MalformedBody, MalformedCommand)):
        find(NameServers(network, ADDRESSES[:1]))


def test_refused_request_is_not_repeated_elsewhere() -> None:
    network = Servers(n0=Command(code=17, remark="nowhere"))
    assert find(NameServers(network, ADDRESSES, random=First())) is None
    network.answers["n0"] = Command(code=1, remark="not ready")
    with pytest.raises(BrokerError, match="not ready"):
        find(NameServers(network, ADDRESSES, random=First()))
    assert network.asked == ["n0", "n0"]


def test_an_address_of_no_name_server_is_named() -> None:
    network = Servers(n0=Command(code=3, remark="request 105 is not supported"))
    with pytest.raises(BrokerError, match=r"from n0:1: request 105.*this is not a name server") as told:
        find(NameServers(network, ADDRESSES, random=First()))
    assert told.value.address == "n0:1"


def test_none_answers() -> None:
    network = Servers(n0=ConnectionLost("first"), n1=ConnectionLost("second"), n2=RequestTimeout("third"))
    with pytest.raises(RequestTimeout, match=r"\(n0:1: first; n1:1: second; n2:1: third\): check") as told:
        find(NameServers(network, ADDRESSES, random=First()))
    assert told.value.__cause__ is network.answers["n2"]
    assert network.asked == ["n0", "n1", "n2"]


@pytest.mark.parametrize(
    ("last", "kind"),
    [
        (NotConnected("no connection"), ConnectionLost),
        (ConnectionLost("gone"), ConnectionLost),
        (RequestTimeout("silent"), RequestTimeout),
        (LimitReached("full"), LimitReached),
    ],
)
def test_error_of_all_has_the_kind_of_the_last(last: Exception, kind: type[Exception]) -> None:
    """But for NotConnected: the others may have had the request."""
    network = Servers(n0=RequestTimeout("silent"), n1=last)
    with pytest.raises(kind) as caught:
        find(NameServers(network, ADDRESSES[:2], random=First()))
    assert type(caught.value) is kind


def test_none_is_known() -> None:
    with pytest.raises(ClientStateError, match="NAMESRV_ADDR"):
        find(NameServers(Servers(), ()))


def test_clients_begin_at_different_ones() -> None:
    firsts = set()
    for seed in range(50):
        network = Servers()
        find(NameServers(network, ADDRESSES, random=Random(seed)))
        firsts.update(network.asked)
    assert firsts == {"n0", "n1", "n2"}


def test_other_name_servers() -> None:
    servers = NameServers(Servers(), ADDRESSES)
    assert not servers.replace(ADDRESSES[::-1]), "the same ones"
    assert servers.replace(("m:1",))
    assert servers.addresses == ("m:1",)
    assert servers.replace(())


def test_the_address_of_the_web_server() -> None:
    assert look_up_url("web", subgroup="nsaddr", unit_name=None) == "http://web:8080/rocketmq/nsaddr"
    assert look_up_url("web:81", subgroup="s", unit_name=" ") == "http://web:81/rocketmq/s"
    assert look_up_url("web:81", subgroup="s", unit_name="u") == "http://web:81/rocketmq/s-u?nofix=1"


@pytest.fixture
def web() -> Iterator[Callable[[int, bytes], str]]:
    """A web server that gives one answer; the fixture sets it and returns the address."""
    answer = [200, b""]

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answer
            assert isinstance(status, int)
            assert isinstance(body, bytes)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()

    def tell(status: int, body: bytes) -> str:
        answer[:] = [status, body]
        return look_up_url(f"127.0.0.1:{server.server_port}", subgroup="nsaddr", unit_name=None)

    yield tell
    server.shutdown()
    thread.join()
    server.server_close()


def test_answers_of_the_web_server(web: Callable[[int, bytes], str]) -> None:
    assert look_up(web(200, b"n0:1;n1:1\r\nsecond line"), timeout_ms=5_000) == ("n0:1", "n1:1")
    for nothing in (b"", b"\n", b"<html>", b"n0", b"\xff" * (LOOK_UP_BYTES_MAX + 10)):
        with pytest.raises(MalformedBody):
            look_up(web(200, nothing), timeout_ms=5_000)
    with pytest.raises(ConnectionLost, match="404"):
        look_up(web(404, b"n0:1"), timeout_ms=5_000)


def test_no_web_server() -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectionLost):
            look_up(f"http://127.0.0.1:{taken.getsockname()[1]}/x", timeout_ms=5_000)
