"""Checks: both channels and the hub find answers, tell what went wrong, and come back after a connection was lost.

Every test runs for the blocking channel, for asyncio's, and for the hub.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Protocol, TypeVar

import pytest

from cometmq.errors import BrokerError, ConnectionLost, InvalidArgument, MalformedCommand, NotConnected, RequestTimeout
from cometmq.remoting.channel import AsyncChannel, checked
from cometmq.remoting.command import Command, HeaderFormat
from cometmq.remoting.hub import Hub
from cometmq.remoting.sync_channel import Channel
from support.peer import Peer

T = TypeVar("T")
LONG_MS = 10_000


class AnyChannel(Protocol):
    """The methods of both kinds of channel, as blocking calls."""

    @property
    def is_connected(self) -> bool: ...

    def connect(self) -> None: ...

    def invoke(self, request: Command, *, timeout_ms: int) -> Command: ...

    def send_oneway(self, request: Command) -> None: ...

    def close(self) -> None: ...


class OnLoop:
    """An AsyncChannel whose loop runs in a thread."""

    def __init__(self, address: str, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._channel = AsyncChannel(address, **options)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    @property
    def is_connected(self) -> bool:
        return self._channel.is_connected

    def connect(self) -> None:
        self._run(self._channel.connect())

    def invoke(self, request: Command, *, timeout_ms: int) -> Command:
        return self._run(self._channel.invoke(request, timeout_ms=timeout_ms))

    def send_oneway(self, request: Command) -> None:
        self._run(self._channel.send_oneway(request))

    def close(self) -> None:
        if not self._loop.is_closed():
            self._run(self._close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _close(self) -> None:
        await self._channel.close()
        calls = asyncio.all_tasks() - {asyncio.current_task()}
        if calls:
            await asyncio.wait(calls)


class OnHub:
    """A Hub whose loop runs in a thread, used for one address."""

    def __init__(self, address: str, *, on_request: Any = None, on_lost: Any = None, **options: Any) -> None:
        self._address = address
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        if on_request is not None:
            options["on_request"] = lambda where, request: on_request(request)
        if on_lost is not None:
            options["on_lost"] = lambda where: on_lost()
        self._hub = self._run(self._make(options))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _make(self, options: dict[str, Any]) -> Hub:
        return Hub(**options)

    @property
    def is_connected(self) -> bool:
        return self._address in self._hub.addresses

    def connect(self) -> None:
        self.invoke(Command(code=0), timeout_ms=LONG_MS)

    def invoke(self, request: Command, *, timeout_ms: int) -> Command:
        return self._run(self._hub.invoke(self._address, request, timeout_ms=timeout_ms))

    def send_oneway(self, request: Command) -> None:
        self._hub.oneway(self._address, request)

    def close(self) -> None:
        if not self._loop.is_closed():
            self._run(self._close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _close(self) -> None:
        await self._hub.close()
        calls = asyncio.all_tasks() - {asyncio.current_task()}
        if calls:
            await asyncio.wait(calls)


MakeChannel = Callable[..., AnyChannel]
KINDS: dict[str, MakeChannel] = {"blocking": Channel, "asyncio": OnLoop, "hub": OnHub}


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest) -> Iterator[MakeChannel]:
    """Makes channels of one kind, and closes them."""
    made: list[AnyChannel] = []

    def make_one(address: str, **options: Any) -> AnyChannel:
        channel = KINDS[request.param](address, **options)
        made.append(channel)
        return channel

    yield make_one
    for channel in made:
        channel.close()


def echo(peer: Peer, connection: socket.socket, request: Command) -> bytes | None:
    """Answers with the request's body; nothing to a oneway request."""
    return None if request.is_oneway else request.response(0, body=request.body).encode()


def test_a_request_gets_its_answer(make: MakeChannel) -> None:
    with Peer(echo) as peer:
        channel = make(peer.address)
        assert not channel.is_connected
        answer = channel.invoke(Command(code=105, body=b"x", format=HeaderFormat.ROCKETMQ), timeout_ms=LONG_MS)
        assert (answer.code, answer.body, answer.format) == (0, b"x", HeaderFormat.ROCKETMQ)
        assert channel.is_connected
        large = bytes(5_000_000)
        assert channel.invoke(Command(code=105, body=large), timeout_ms=LONG_MS).body == large
        assert len(peer.connections) == 1


def test_many_at_a_time_on_one_connection(make: MakeChannel) -> None:
    held: list[tuple[socket.socket, bytes]] = []

    def backwards(peer: Peer, connection: socket.socket, request: Command) -> bytes | None:
        """Answer in the opposite order, when all have come."""
        held.append((connection, request.response(0, body=request.body).encode()))
        return b"".join(frame for _, frame in reversed(held)) if len(held) == 16 else None

    with Peer(backwards) as peer, ThreadPoolExecutor(16) as pool:
        channel = make(peer.address)
        bodies = [str(n).encode() for n in range(16)]
        answers = pool.map(lambda body: channel.invoke(Command(code=1, body=body), timeout_ms=LONG_MS).body, bodies)
        assert list(answers) == bodies
        assert len(peer.connections) == 1


def test_oneway_requests_are_sent_and_not_waited_for(make: MakeChannel) -> None:
    with Peer(echo) as peer:
        channel = make(peer.address)
        channel.send_oneway(Command(code=15, fields={"a": "b"}))
        peer.wait_for(lambda: len(peer.requests) == 1)
        assert peer.requests[0].is_oneway
        assert peer.requests[0].fields == {"a": "b"}


def test_a_server_that_says_nothing_is_taken_for_dead(make: MakeChannel) -> None:
    with Peer(lambda peer, connection, request: None if request.code == 1 else request.response(0).encode()) as peer:
        channel = make(peer.address)
        with pytest.raises(RequestTimeout, match="request 1 within 20 ms"):
            channel.invoke(Command(code=1), timeout_ms=20)
        assert channel.invoke(Command(code=2), timeout_ms=LONG_MS).code == 0
        assert len(peer.connections) == 2, "the first connection was given up"


def test_one_late_answer_does_not_cost_the_connection(make: MakeChannel) -> None:
    late: list[bytes] = []

    def slow(peer: Peer, connection: socket.socket, request: Command) -> bytes | None:
        if request.code == 1:
            late.append(request.response(0, body=b"late").encode())
            return Command(code=40, fields={"consumerGroup": "g"}).as_oneway().encode()
        return b"".join(late) + request.response(0, body=b"in time").encode()

    with Peer(slow) as peer:
        channel = make(peer.address)
        with pytest.raises(RequestTimeout):
            channel.invoke(Command(code=1), timeout_ms=200)
        assert channel.invoke(Command(code=2), timeout_ms=LONG_MS).body == b"in time"
        assert len(peer.connections) == 1


def test_the_end_of_the_connection_fails_waiters_and_the_next_call_reconnects(make: MakeChannel) -> None:
    lost = threading.Event()

    def drops(peer: Peer, connection: socket.socket, request: Command) -> bytes | None:
        if request.code == 1:
            connection.shutdown(socket.SHUT_RDWR)
            return None
        return request.response(0).encode()

    with Peer(drops) as peer:
        channel = make(peer.address, on_lost=lost.set)
        with pytest.raises(ConnectionLost, match=peer.address):
            channel.invoke(Command(code=1), timeout_ms=LONG_MS)
        assert lost.wait(10)
        assert channel.invoke(Command(code=2), timeout_ms=LONG_MS).code == 0


def test_nobody_listens(make: MakeChannel) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    channel = make(address)
    with pytest.raises(NotConnected, match=f"cannot connect to {address}: Connection refused"):
        channel.invoke(Command(code=1), timeout_ms=LONG_MS)
    with pytest.raises(ConnectionLost):
        channel.connect()


def test_an_invalid_frame_ends_the_connection(make: MakeChannel) -> None:
    page = b"HTTP/1.1 400 Bad Request\r\n\r\n"
    with Peer(lambda peer, connection, request: page) as peer, pytest.raises(ConnectionLost):
        make(peer.address).invoke(Command(code=1), timeout_ms=LONG_MS)


def test_a_server_that_goes_down_is_asked_again_once_on_a_new_connection(make: MakeChannel) -> None:
    def going(peer: Peer, connection: socket.socket, request: Command) -> bytes | None:
        is_new = request.code == 2 or len(peer.connections) > 1
        return request.response(0 if is_new and request.code != 3 else 1500, remark="please go away").encode()

    with Peer(going) as peer:
        channel = make(peer.address)
        assert channel.invoke(Command(code=1), timeout_ms=LONG_MS).code == 0
        assert len(peer.connections) == 2
        assert channel.invoke(Command(code=3), timeout_ms=LONG_MS).code == 1500, "and no third time"
        assert [request.code for request in peer.requests] == [1, 1, 3, 3]


def test_requests_of_the_server_are_answered(make: MakeChannel) -> None:
    def asks(peer: Peer, connection: socket.socket, request: Command) -> bytes | None:
        first = Command(code=307, opaque=77, fields={"clientId": "c"}).encode()
        return first + Command(code=309, opaque=78).encode() + Command(code=40).as_oneway().encode()

    def serve(request: Command) -> Command | None:
        if request.code == 309:
            raise ValueError("no such message")
        return request.response(0, body=request.fields["clientId"].encode()) if request.code == 307 else None

    with Peer(asks) as peer:
        channel = make(peer.address, on_request=serve)
        with ThreadPoolExecutor(1) as pool:
            calling = pool.submit(channel.invoke, Command(code=1), timeout_ms=LONG_MS)
            answers = peer.wait_for_responses(2)
            channel.close()
            with pytest.raises(ConnectionLost):
                calling.result(10)
    assert [(answer.opaque, answer.code, answer.body) for answer in answers] == [(77, 0, b"c"), (78, 1, b"")]
    assert answers[1].remark == "ValueError: no such message"


def test_without_a_handler_requests_of_the_server_are_not_supported(make: MakeChannel) -> None:
    def asks(peer: Peer, connection: socket.socket, request: Command) -> bytes | None:
        return Command(code=307, opaque=5).encode() + request.response(0).encode()

    with Peer(asks) as peer:
        make(peer.address).invoke(Command(code=1), timeout_ms=LONG_MS)
        (answer,) = peer.wait_for_responses(1)
        assert (answer.code, answer.remark) == (3, " request type 307 not supported")


def test_an_idle_connection_is_closed(make: MakeChannel) -> None:
    lost = threading.Event()
    with Peer(echo) as peer:
        # Longer than an answer takes on a loaded machine.
        channel = make(peer.address, idle_timeout_ms=500, on_lost=lost.set)
        channel.connect()
        assert lost.wait(10)
        assert not channel.is_connected
        assert channel.invoke(Command(code=1), timeout_ms=LONG_MS).code == 0


def test_a_closed_channel(make: MakeChannel) -> None:
    with Peer(echo) as peer:
        channel = make(peer.address)
        channel.connect()
        channel.close()
        channel.close()
        if isinstance(channel, Channel):
            with pytest.raises(ConnectionLost, match="was closed"):
                channel.invoke(Command(code=1), timeout_ms=LONG_MS)


def test_closing_while_a_connection_is_being_made(monkeypatch: pytest.MonkeyPatch) -> None:
    async def close_meanwhile() -> None:
        asked = asyncio.Event()

        async def never(*arguments: object) -> None:
            asked.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", never)
        channel = AsyncChannel("127.0.0.1:1")
        calls = [asyncio.create_task(channel.invoke(Command(code=1), timeout_ms=LONG_MS)) for _ in range(2)]
        await asked.wait()
        calls[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await calls[0]
        await channel.close()
        with pytest.raises(ConnectionLost, match="was closed"):
            await calls[1]

    asyncio.run(close_meanwhile())


def test_a_bad_address_is_refused_at_once() -> None:
    for kind in (Channel, AsyncChannel):
        with pytest.raises(InvalidArgument):
            kind("nowhere")


def test_a_slow_taker_ends_in_time() -> None:
    """A peer that reads nothing: the blocking channel gives up sending when the call's time is over."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        channel = Channel(f"127.0.0.1:{listener.getsockname()[1]}")
        with pytest.raises(RequestTimeout):
            channel.invoke(Command(code=1, body=bytes(15 << 20)), timeout_ms=100)
        channel.close()


def test_codes_become_errors() -> None:
    request = Command(code=105)
    assert checked(request.response(0)).code == 0
    with pytest.raises(BrokerError, match="code 2 from h:1: busy") as caught:
        checked(request.response(2, remark="busy"), address="h:1")
    assert (caught.value.code, caught.value.remark, caught.value.retriable) == (2, "busy", True)
    with pytest.raises(BrokerError, match="no remark") as caught:
        checked(request.response(17))
    assert not caught.value.retriable


def test_a_frame_is_read_by_the_codec_alone() -> None:
    with pytest.raises(MalformedCommand):
        Command.decode(b"\x00\x00\x00\x04\x00\x00\x00\x01")


@pytest.mark.parametrize("reset", [False, True])
def test_a_server_that_ends_connections_at_once_is_named(reset: bool) -> None:
    """As a broker at its limit of connections does: an end before, or just behind, the start of the client's side."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"

        def serve() -> None:
            with suppress(OSError):
                while True:
                    accepted, _ = listening.accept()
                    if reset:
                        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    accepted.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()

        async def ask() -> None:
            channel = AsyncChannel(address)
            try:
                for _ in range(20):
                    with pytest.raises(ConnectionLost, match=f"^{address} closed the connection before its first"):
                        await channel.invoke(Command(code=105), timeout_ms=LONG_MS)
            finally:
                await channel.close()

        asyncio.run(ask())
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()
