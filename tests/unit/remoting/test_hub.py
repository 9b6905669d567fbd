"""Checks: the client's connections, to a broker and to a peer that does what the test says.

Behaviour shared with the channels is checked in test_channel.py, that of one connection in test_link.py.
"""

from __future__ import annotations

import asyncio
import errno
import os
import queue
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from cometmq._engine import PendingSend, PullAnswer, PullRequest, SendAnswer, SendRequest, decode_pulled
from cometmq.client.send.sending import SendPolicy
from cometmq.errors import (
    ClientStateError,
    ConnectionLost,
    ForkedClient,
    InvalidArgument,
    LimitReached,
    MalformedCommand,
    NotConnected,
    RequestTimeout,
)
from cometmq.remoting import hub as hub_module
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command, HeaderFormat
from cometmq.remoting.hub import Hub
from cometmq.testing import Cluster, cluster
from support.peer import Peer

T = TypeVar("T")


@pytest.fixture(scope="module")
def servers() -> Iterator[Cluster]:
    with cluster() as running:
        yield running


def with_hub(body: Callable[[Hub], Awaitable[T]], **options: Any) -> T:
    async def run() -> T:
        hub = Hub(**options)
        try:
            return await body(hub)
        finally:
            await hub.close()

    return asyncio.run(run())


def a_send(topic: str, body: bytes = b"hello", **members: Any) -> SendRequest:
    given: dict[str, Any] = {"code": 310, "producer_group": "PG", "queue_id": 0, "properties": b"TAGS\x01A\x02"}
    return SendRequest(topic=topic, body=body, born_timestamp_ms=1_700_000_000_000, **{**given, **members})


def a_pull(topic: str, **members: Any) -> PullRequest:
    given: dict[str, Any] = {
        "group": "CG",
        "queue_id": 0,
        "queue_offset": 0,
        "max_messages": 32,
        "sys_flag": 4,
        "commit_offset": 0,
        "suspend_timeout_ms": 1_000,
        "sub_version": 0,
        "max_bytes": 1 << 18,
        "subscription": "*",
    }
    return PullRequest(topic=topic, **{**given, **members})


def sent(hub: Hub, address: str, request: SendRequest, *, timeout_ms: int = 10_000) -> asyncio.Future[Any]:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    hub.send(address, request, future.set_result, timeout_ms=timeout_ms)
    return future


def pulled(hub: Hub, address: str, request: PullRequest, *, timeout_ms: int = 10_000) -> asyncio.Future[Any]:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    hub.pull(address, request, future.set_result, timeout_ms=timeout_ms)
    return future


@pytest.mark.parametrize("header_format", list(HeaderFormat))
def test_sends_pulls_and_calls(servers: Cluster, header_format: HeaderFormat) -> None:
    topic = f"Hub{header_format.name}"
    bodies = [b"%d" % i for i in range(100)]

    async def body(hub: Hub) -> None:
        route = await hub.invoke(
            servers.name_server_address,
            Command(code=RequestCode.GET_ROUTEINFO_BY_TOPIC, fields={"topic": "TBW102"}),
            timeout_ms=10_000,
        )
        assert route.code == ResponseCode.SUCCESS
        assert b"broker-a" in route.body
        address = servers.broker.address
        first = await sent(hub, address, a_send(topic))
        assert isinstance(first, SendAnswer)
        assert (first.code, first.queue_id, first.queue_offset, first.trace_on) == (0, 0, 0, True)
        assert first.message_id is not None
        assert first.region_id == "DefaultRegion"
        more = await asyncio.gather(*[sent(hub, address, a_send(topic, one)) for one in bodies])
        assert [answer.queue_offset for answer in more] == list(range(1, 101))
        found = await pulled(hub, address, a_pull(topic, queue_offset=1))
        assert isinstance(found, PullAnswer)
        assert (found.code, found.min_offset, found.max_offset, found.offset_delta) == (0, 0, 101, None)
        messages = decode_pulled(found.body, broker_name="broker-a", topic=topic, queue_id=0).messages
        assert found.next_begin_offset == 1 + len(messages)
        assert [bytes(message) for message in messages] == bodies[: len(messages)]

    with_hub(body, header_format=header_format)


# --- Against a peer that the test scripts -----------------------------------------------------------------------------

STORED = {"msgId": "id", "queueId": "0", "queueOffset": "5"}
LONG_MS = 30_000


def stores(peer: Peer, connection: socket.socket, request: Command) -> bytes | None:
    """Says of everything that it is stored; nothing to a one-way request."""
    return None if request.is_oneway else request.response(0, fields=STORED).encode()


def test_queued_requests_go_out_in_order() -> None:
    async def body(hub: Hub) -> None:
        answers = [sent(hub, peer.address, a_send("T", b"%d" % at)) for at in range(50)]
        assert not hub.addresses
        await asyncio.gather(*answers)
        assert [request.body for request in peer.requests] == [b"%d" % at for at in range(50)]
        assert hub.addresses == (peer.address,)
        assert len(peer.connections) == 1

    with Peer(stores) as peer:
        with_hub(body)


def test_connections_are_reported() -> None:
    told: list[tuple[str, str]] = []

    async def body(hub: Hub) -> None:
        await sent(hub, peer.address, a_send("T"))
        assert told == [("connected", peer.address)]

    def fails(address: str) -> None:
        told.append(("lost", address))
        raise ValueError("mine")

    with Peer(stores) as peer:
        with_hub(body, on_connected=lambda address: told.append(("connected", address)), on_lost=fails)
        assert told == [("connected", peer.address), ("lost", peer.address)]


def test_waiting_sends_get_the_connections_end_once() -> None:
    def drops(peer: Peer, connection: socket.socket, request: Command) -> bytes | None:
        if request.body == b"last":
            connection.shutdown(socket.SHUT_RDWR)
        return None

    async def body(hub: Hub) -> None:
        told: list[Any] = []
        for at in range(20):
            hub.send(peer.address, a_send("T", b"%d" % at), told.append, timeout_ms=LONG_MS)
        last = await sent(hub, peer.address, a_send("T", b"last"))
        assert isinstance(last, ConnectionLost)
        assert peer.address in str(last)
        assert [type(one) for one in told] == [ConnectionLost] * 20

    with Peer(drops) as peer:
        with_hub(body)


def test_a_server_that_goes_down_is_left_for_a_new_connection() -> None:
    def goes(peer: Peer, connection: socket.socket, request: Command) -> bytes | None:
        is_old = connection is peer.connections[0]
        return request.response(1500 if is_old else 0, fields={} if is_old else STORED).encode()

    async def body(hub: Hub) -> None:
        answers = await asyncio.gather(*[sent(hub, peer.address, a_send("T", b"%d" % at)) for at in range(20)])
        assert [answer.queue_offset for answer in answers] == [5] * 20
        assert len(peer.connections) == 2
        assert hub.addresses == (peer.address,)

    with Peer(goes) as peer:
        with_hub(body)


def test_one_way_sends() -> None:
    async def body(hub: Hub) -> None:
        for _ in range(40):
            hub.send(peer.address, a_send("T"), None, timeout_ms=LONG_MS)
        await sent(hub, peer.address, a_send("T", b"last"))
        assert [request.is_oneway for request in peer.requests] == [True] * 40 + [False]

    with Peer(stores) as peer:
        with_hub(body)


def test_the_time_runs_while_the_connection_is_being_made(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(hub: Hub) -> None:
        async def never(*arguments: object) -> None:
            await asyncio.Event().wait()

        monkeypatch.setattr(asyncio.get_running_loop(), "sock_connect", never)
        slow = sent(hub, "127.0.0.1:1", a_send("T"), timeout_ms=60_000)
        answer = await sent(hub, "127.0.0.1:1", a_send("T"), timeout_ms=20)
        assert isinstance(answer, RequestTimeout)
        assert "no connection to 127.0.0.1:1" in str(answer)
        refused = await slow
        assert isinstance(refused, NotConnected)
        assert "within 60 ms" in str(refused)

    with_hub(body, connect_timeout_ms=60)


def test_a_name_is_looked_up_and_its_addresses_are_tried_in_turn() -> None:
    async def body(hub: Hub) -> None:
        port = peer.address.rpartition(":")[2]
        assert (await sent(hub, f"localhost:{port}", a_send("T"))).code == 0

    with Peer(stores) as peer:
        with_hub(body)


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1:x", "", "127.0.0.1:70000"])
def test_a_bad_address_is_reported_not_raised(address: str) -> None:
    async def body(hub: Hub) -> None:
        assert isinstance(await sent(hub, address, a_send("T")), InvalidArgument)
        hub.oneway(address, Command(code=1))
        with pytest.raises(InvalidArgument):
            await hub.invoke(address, Command(code=1), timeout_ms=LONG_MS)

    with_hub(body)


def test_an_unresolvable_name_is_reported_not_raised() -> None:
    async def body(hub: Hub) -> None:
        outcome = await sent(hub, f"{'a' * 64}.invalid:9876", a_send("T"))
        assert isinstance(outcome, ConnectionLost)
        assert isinstance(outcome.__cause__, UnicodeError)

    with_hub(body)


def test_connection_waiters_get_the_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_link(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async def body(hub: Hub) -> None:
        monkeypatch.setattr(hub_module, "Link", no_link)
        outcome = await sent(hub, peer.address, a_send("T"))
        assert isinstance(outcome, ConnectionLost)
        assert os.strerror(errno.EMFILE) in str(outcome)
        # The next one finds a new connection.
        monkeypatch.undo()
        assert (await sent(hub, peer.address, a_send("T"))).code == 0

    with Peer(stores) as peer:
        with_hub(body)


def test_a_connection_is_made_although_ctrl_c_came_when_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(hub: Hub) -> None:
        def interrupted(function: Callable[..., object], *arguments: object) -> None:
            monkeypatch.undo()
            raise KeyboardInterrupt

        monkeypatch.setattr(hub, "_soon", interrupted)
        with pytest.raises(KeyboardInterrupt):
            sent(hub, peer.address, a_send("T"))
        assert isinstance(await sent(hub, peer.address, a_send("T")), SendAnswer)

    with Peer(stores) as peer:
        with_hub(body)


def test_a_request_that_no_frame_can_hold_takes_nothing_from_the_others() -> None:
    async def body(hub: Hub) -> None:
        large = a_send("T", bytes(17 << 20))
        bad, good = sent(hub, peer.address, large), sent(hub, peer.address, a_send("T"))
        assert isinstance(await bad, InvalidArgument)
        assert (await good).code == 0
        assert isinstance(await sent(hub, peer.address, large), InvalidArgument)

    with Peer(stores) as peer:
        with_hub(body)


def test_a_caller_that_gives_up_leaves_the_connection() -> None:
    def holds(peer: Peer, connection: socket.socket, request: Command) -> bytes | None:
        return None if request.code == 1 else request.response(0).encode()

    async def body(hub: Hub) -> None:
        calling = asyncio.create_task(hub.invoke(peer.address, Command(code=1), timeout_ms=LONG_MS))
        await hub.invoke(peer.address, Command(code=2), timeout_ms=LONG_MS)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        assert (await hub.invoke(peer.address, Command(code=2), timeout_ms=LONG_MS)).code == 0
        assert len(peer.connections) == 1

    with Peer(holds) as peer:
        with_hub(body)


class Signing:
    """A hook that adds a field, and counts."""

    def __init__(self) -> None:
        self.answers = 0

    def before_request(self, address: str, request: Command) -> Command:
        return replace(request, fields={**request.fields, "Signature": address})

    def after_answer(self, address: str, request: Command, answer: Command) -> None:
        assert request.fields["Signature"] == address
        self.answers += 1


@pytest.mark.parametrize("hooks", [[], [Signing()]], ids=["no hooks", "hooks"])
def test_send_given_up_while_it_waits_for_the_connection_is_not_sent(hooks: list[Signing]) -> None:
    async def body(hub: Hub) -> None:
        given_up = PendingSend(
            hub, a_send("T", b"given up"), "id", SendPolicy(attempts=1), began_s=0.0, timeout_ms=LONG_MS
        )
        hub.send(peer.address, a_send("T", b"given up"), given_up, timeout_ms=LONG_MS)
        given_up.set_error(ClientStateError("the producer was closed"))
        await sent(hub, peer.address, a_send("T", b"wanted"))
        assert [request.body for request in peer.requests] == [b"wanted"]

    with Peer(stores) as peer:
        with_hub(body, hooks=hooks)


def test_hooks_see_every_request_and_answer() -> None:
    def stores_badly(peer: Peer, connection: socket.socket, request: Command) -> bytes | None:
        return None if request.is_oneway else request.response(0, fields=STORED if request.body else {}).encode()

    async def body(hub: Hub) -> None:
        answer = await sent(hub, peer.address, a_send("T"))
        assert (answer.message_id, answer.queue_offset) == ("id", 5)
        assert isinstance(await sent(hub, peer.address, a_send("T", b"")), MalformedCommand)
        await hub.invoke(peer.address, Command(code=1), timeout_ms=LONG_MS)
        hub.oneway(peer.address, Command(code=2))
        hub.send(peer.address, a_send("T"), None, timeout_ms=LONG_MS)
        await hub.invoke(peer.address, Command(code=3), timeout_ms=LONG_MS)
        assert isinstance(await sent(hub, "nowhere", a_send("T")), InvalidArgument)
        assert [request.fields["Signature"] for request in peer.requests] == [peer.address] * 6

    hook = Signing()
    with Peer(stores_badly) as peer:
        with_hub(body, hooks=[hook])
    assert hook.answers == 4


def test_requests_of_the_server_on_the_loop() -> None:
    def asks(peer: Peer, connection: socket.socket, request: Command) -> bytes | None:
        return Command(code=307, opaque=7).encode() + Command(code=309, opaque=8).encode()

    async def answers(address: str, request: Command) -> Command | None:
        assert address == peer.address
        return request.response(0, body=b"x" if request.code == 307 else bytes(17 << 20))

    async def body(hub: Hub) -> None:
        calling = asyncio.create_task(hub.invoke(peer.address, Command(code=1), timeout_ms=LONG_MS))
        found = await asyncio.to_thread(peer.wait_for_responses, 2)
        assert [(one.opaque, one.code, one.body) for one in found] == [(7, 0, b"x"), (8, 1, b"")]
        assert "no frame can hold" in (found[1].remark or "")
        await hub.close()
        with pytest.raises(ConnectionLost, match="closed by this client"):
            await calling

    with Peer(asks) as peer:
        with_hub(body, on_request=answers)


# --- Threads, the end, forks ------------------------------------------------------------------------------------------


def test_threads_send_and_each_hears_once() -> None:
    threads, each = 4, 300

    def send_all(hub: Hub, name: int) -> list[Any]:
        told: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for at in range(each):
            hub.send(peer.address, a_send("T", b"%d %d" % (name, at)), told.put, timeout_ms=LONG_MS)
        return [told.get(timeout=30) for _ in range(each)]

    async def body(hub: Hub) -> None:
        found = await asyncio.gather(*[asyncio.to_thread(send_all, hub, name) for name in range(threads)])
        assert [answer.code for answers in found for answer in answers] == [0] * (threads * each)
        for name in range(threads):
            mine = [int(request.body.split()[1]) for request in peer.requests if request.body.startswith(b"%d " % name)]
            assert mine == list(range(each)), "the order of one thread"

    with Peer(stores) as peer:
        with_hub(body)


def test_closing_while_threads_send() -> None:
    """Every send hears: an answer, or that the connections were closed."""

    def send_until_closed(hub: Hub, started: threading.Event) -> tuple[int, list[Any]]:
        told: list[Any] = []
        closed = threading.Event()

        def on_answer(answer: object) -> None:
            told.append(answer)
            if isinstance(answer, ConnectionLost):
                closed.set()
            started.set()

        count = 0
        while not closed.is_set():
            hub.send(peer.address, a_send("T"), on_answer, timeout_ms=LONG_MS)
            count += 1
        return count, told

    async def body(hub: Hub) -> None:
        started = threading.Event()
        sending = [asyncio.create_task(asyncio.to_thread(send_until_closed, hub, started)) for _ in range(3)]
        await asyncio.to_thread(started.wait, 10)
        await hub.close()
        for count, told in await asyncio.gather(*sending):
            await asyncio.sleep(0)  # the last notice is in the loop's turn
            assert len(told) == count
            assert {type(one) for one in told} <= {SendAnswer, ConnectionLost, NotConnected, LimitReached}

    with Peer(stores) as peer:
        with_hub(body)


def test_a_closed_hub() -> None:
    async def body(hub: Hub) -> None:
        await sent(hub, peer.address, a_send("T"))
        assert peer.address in repr(hub)
        await hub.close()
        await hub.close()
        assert isinstance(await sent(hub, peer.address, a_send("T")), ConnectionLost)
        with pytest.raises(ConnectionLost, match="were closed"):
            await hub.invoke(peer.address, Command(code=1), timeout_ms=LONG_MS)
        assert repr(hub) == "<Hub closed>"

    with Peer(stores) as peer:
        with_hub(body)


def test_closing_while_a_connection_is_being_made(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(hub: Hub) -> None:
        asked = asyncio.Event()

        async def never(*arguments: object) -> None:
            asked.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(asyncio.get_running_loop(), "sock_connect", never)
        waiting = sent(hub, "127.0.0.1:1", a_send("T"))
        await asked.wait()
        await hub.close()
        assert isinstance(await waiting, ConnectionLost)

    with_hub(body)


def test_a_hub_whose_loop_is_gone() -> None:
    hubs: list[Hub] = []

    async def body(hub: Hub) -> None:
        hubs.append(hub)

    with_hub(body)
    with pytest.raises(ConnectionLost, match="event loop of this client is closed"):
        hubs[0].send("127.0.0.1:1", a_send("T"), print, timeout_ms=LONG_MS)


def test_a_forked_child_is_refused_and_disturbs_nothing() -> None:
    async def body(hub: Hub) -> None:
        await sent(hub, peer.address, a_send("T"))
        child = os.fork()
        if child == 0:
            status = 1
            try:
                with suppress(ForkedClient):
                    hub.send(peer.address, a_send("T"), print, timeout_ms=LONG_MS)
                    os._exit(2)
                with suppress(ForkedClient):
                    hub.send("127.0.0.1:1", a_send("T"), print, timeout_ms=LONG_MS)
                    os._exit(3)
                with suppress(StopIteration):
                    hub.close().send(None)
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert (await sent(hub, peer.address, a_send("T"))).code == 0
        assert len(peer.connections) == 1

    with Peer(stores) as peer:
        with_hub(body)
