"""Checks: a server answers by its table of handlers, whatever they return or raise; it asks clients and is answered; it
ends with everything answered; limits and lost clients."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future

import pytest

from cometmq.errors import CannotListen, ConnectionLost, InvalidArgument, RequestTimeout
from cometmq.remoting.command import FLAG_RESPONSE, FRAME_BYTES_MAX, Command, HeaderFormat
from cometmq.remoting.server import AGAIN, Caller, Handler, RemotingServer, ServerLimits

PATIENCE_S = 60


class Client:
    """A blocking connection that speaks frames."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self._stream = self.socket.makefile("rb")

    def send(self, *commands: Command) -> None:
        self.socket.sendall(b"".join(command.encode() for command in commands))

    def receive(self) -> Command | None:
        """Return the next frame, or None at the end."""
        try:
            prefix = self._stream.read(4)
        except ConnectionResetError:
            return None
        if not prefix:
            return None
        return Command.decode(prefix + self._stream.read(int.from_bytes(prefix, "big")))

    def ask(self, command: Command) -> Command:
        self.send(command)
        answer = self.receive()
        assert answer is not None
        return answer

    def close(self) -> None:
        self._stream.close()
        self.socket.close()


class Served:
    """A server on a free port, with clients that are closed behind it."""

    def __init__(self, handlers: Mapping[int, Handler], **options: object) -> None:
        self.server = RemotingServer(["127.0.0.1:0"], **options)  # type: ignore[arg-type]
        self.server.start(handlers)
        self._clients: list[Client] = []

    def client(self) -> Client:
        client = Client(self.server.ports[0])
        self._clients.append(client)
        return client

    def on_loop(self, coroutine: object) -> Future[object]:
        return asyncio.run_coroutine_threadsafe(coroutine, self.server.loop)  # type: ignore[arg-type]

    def close(self) -> None:
        self.server.stop(grace_ms=0)
        for client in self._clients:
            client.close()


@pytest.fixture
def served() -> Iterator[list[Served]]:
    """Servers that a test puts here are stopped."""
    servers: list[Served] = []
    yield servers
    for server in servers:
        server.close()


def echo(request: Command, caller: Caller) -> Command:
    return request.response(0, body=request.body, fields=request.fields)


async def echo_later(request: Command, caller: Caller) -> Command:
    await asyncio.sleep(0)
    return request.response(0, body=request.body + b" later")


@pytest.mark.parametrize("header_format", list(HeaderFormat))
def test_answers_mirror_their_request(served: list[Served], header_format: HeaderFormat) -> None:
    served.append(Served({34: echo, 35: echo_later}))
    client = served[0].client()
    answer = client.ask(Command(code=34, body=b"body", fields={"a": "b"}, opaque=-9, format=header_format))
    assert (answer.code, answer.opaque, answer.flag, answer.format) == (0, -9, FLAG_RESPONSE, header_format)
    assert (answer.body, answer.fields) == (b"body", {"a": "b"})
    assert client.ask(Command(code=35, body=b"body", format=header_format)).body == b"body later"


def test_codes_that_nobody_serves(served: list[Served]) -> None:
    served.append(Served({}))
    answer = served[0].client().ask(Command(code=777, opaque=3))
    assert (answer.code, answer.remark, answer.opaque) == (3, " request type 777 not supported", 3)


def test_exceptions_of_handlers_are_answered_and_logged(served: list[Served], caplog: pytest.LogCaptureFixture) -> None:
    def fails(request: Command, caller: Caller) -> Command:
        raise InvalidArgument("the queue is not one")

    async def fails_later(request: Command, caller: Caller) -> Command:
        await asyncio.sleep(0)
        raise KeyError("topic")

    served.append(Served({1: fails, 2: fails_later, 3: lambda request, caller: "done"}))
    client = served[0].client()
    with caplog.at_level(logging.ERROR, logger="cometmq.remoting"):
        assert client.ask(Command(code=1)).remark == "InvalidArgument: the queue is not one"
        assert client.ask(Command(code=2)).remark == "KeyError: 'topic'"
        answer = client.ask(Command(code=3))
    assert answer.code == 1
    assert answer.remark is not None
    assert "returned str" in answer.remark
    assert [record.exc_info is not None for record in caplog.records] == [True] * 3


def test_oneway_requests_are_never_answered(served: list[Served]) -> None:
    seen: list[bytes] = []

    def takes(request: Command, caller: Caller) -> Command:
        seen.append(request.body)
        if request.body == b"bad":
            raise ValueError("bad")
        return request.response(0)

    served.append(Served({1: takes, 2: echo}))
    client = served[0].client()
    client.send(Command(code=1, body=b"good").as_oneway(), Command(code=1, body=b"bad").as_oneway())
    client.send(Command(code=99).as_oneway(), Command(code=2, opaque=4))
    answer = client.receive()
    assert answer is not None
    assert answer.opaque == 4
    assert seen == [b"good", b"bad"]


def test_no_answer_where_a_handler_has_none(served: list[Served]) -> None:
    served.append(Served({1: lambda request, caller: None, 2: echo}))
    client = served[0].client()
    client.send(Command(code=1, opaque=1), Command(code=2, opaque=2))
    answer = client.receive()
    assert answer is not None
    assert answer.opaque == 2
    assert served[0].server.waiting == 0


def test_a_request_that_goes_back_comes_again(served: list[Served]) -> None:
    calls: list[int] = []

    def twice(request: Command, caller: Caller) -> object:
        calls.append(caller.conn)
        return AGAIN if len(calls) == 1 else request.response(0, body=request.body)

    served.append(Served({1: twice}))
    assert served[0].client().ask(Command(code=1, body=b"kept")).body == b"kept"
    assert len(calls) == 2
    assert calls[0] == calls[1]


def test_a_passed_on_answer_gets_the_number_of_its_request(served: list[Served]) -> None:
    other = Command(code=0, opaque=123, flag=0, format=HeaderFormat.ROCKETMQ, body=b"other's")
    served.append(Served({1: lambda request, caller: other}))
    answer = served[0].client().ask(Command(code=1, opaque=6))
    assert (answer.opaque, answer.flag, answer.format, answer.body) == (6, FLAG_RESPONSE, HeaderFormat.JSON, b"other's")


def test_answers_that_no_frame_can_hold(served: list[Served], caplog: pytest.LogCaptureFixture) -> None:
    # Half of a pair in a log would stop pytest's processes from telling one another what they captured.
    caplog.set_level(logging.CRITICAL, logger="cometmq.remoting")

    def fails(request: Command, caller: Caller) -> Command:
        raise ValueError("half of a pair \ud800 " + "x" * 20_000_000)

    handlers: dict[int, Handler] = {
        1: lambda request, caller: request.response(0, body=bytes(17 << 20)),
        2: lambda request, caller: request.response(0, fields={"queueId": 3}),  # type: ignore[dict-item]
        3: lambda request, caller: request.response(0, remark="\ud800"),
        4: fails,
    }
    served.append(Served(handlers))
    client = served[0].client()
    client.send(*(Command(code=code, opaque=code) for code in handlers))
    for code, kind in [
        (1, "the answer has 17,825,792 bytes"),
        (2, "TypeError"),
        (3, "InvalidArgument"),
        (4, "ValueError: half of a"),
    ]:
        answer = client.receive()
        assert answer is not None
        assert (answer.code, answer.opaque) == (1, code)
        assert answer.remark is not None
        assert answer.remark.startswith(kind)


def test_callers(served: list[Served]) -> None:
    seen: list[Caller] = []

    def leave(request: Command, caller: Caller) -> Command:
        seen.append(caller)
        caller.close()
        return request.response(0)

    async def leave_later(request: Command, caller: Caller) -> Command:
        caller.close()
        await asyncio.sleep(0)
        return request.response(0)

    served.append(Served({1: leave, 2: leave_later, 3: echo}))
    for code in [1, 2]:
        client = served[0].client()
        assert client.ask(Command(code=code)).code == 0
        assert client.receive() is None, "the connection is closed once the answer was sent"
    client = served[0].client()
    assert client.ask(Command(code=1)).code == 0
    other = served[0].client()
    served[0].server.loop.call_soon_threadsafe(seen[-1].close)  # of a connection that is gone: nothing happens
    assert other.ask(Command(code=3)).code == 0
    host, port = client.socket.getsockname()
    assert seen[-1].peer == f"{host}:{port}"
    assert seen[-1].host == (host, port)
    assert seen[-1].local_port == served[0].server.ports[0]


def test_many_clients_at_once(served: list[Served]) -> None:
    served.append(Served({1: echo, 2: echo_later}, loops=2))
    clients = [served[0].client() for _ in range(20)]
    for number, client in enumerate(clients):
        client.send(*(Command(code=1 + i % 2, opaque=i, body=b"%d-%d" % (number, i)) for i in range(50)))
    for number, client in enumerate(clients):
        answers = {answer.opaque: answer.body for _ in range(50) if (answer := client.receive()) is not None}
        assert answers == {i: b"%d-%d" % (number, i) + b" later" * (i % 2) for i in range(50)}
    assert served[0].server.counters()["accepted"] == 20


# --- To clients


def test_clients_are_asked(served: list[Served]) -> None:
    async def asks(request: Command, caller: Caller) -> Command:
        question = Command(code=307, body=request.body, fields={"jstackEnable": "true"})
        answer = await served[0].server.invoke(caller.conn, question, timeout_ms=PATIENCE_S * 1000)
        return request.response(answer.code, body=answer.body)

    served.append(Served({1: asks}))
    client = served[0].client()
    client.send(Command(code=1, opaque=50, body=b"first"), Command(code=1, opaque=51, body=b"second"))
    questions = [question for _ in range(2) if (question := client.receive()) is not None]
    assert [(question.code, question.is_response) for question in questions] == [(307, False)] * 2
    assert questions[0].opaque != questions[1].opaque
    unasked = Command(code=0, opaque=99_999, flag=FLAG_RESPONSE)
    client.send(unasked, *(question.response(5, body=question.body + b"!") for question in reversed(questions)))
    answers = {answer.opaque: (answer.code, answer.body) for _ in range(2) if (answer := client.receive()) is not None}
    assert answers == {50: (5, b"first!"), 51: (5, b"second!")}


def test_a_client_that_does_not_answer(served: list[Served]) -> None:
    async def asks(request: Command, caller: Caller) -> Command:
        await served[0].server.invoke(caller.conn, Command(code=307), timeout_ms=1)
        return request.response(0)

    served.append(Served({1: asks}))
    client = served[0].client()
    client.send(Command(code=1, opaque=8))
    question = client.receive()
    assert question is not None
    answer = client.receive()
    assert answer is not None
    assert answer.opaque == 8
    assert answer.remark is not None
    assert RequestTimeout.__name__ in answer.remark
    client.send(question.response(0))
    assert client.ask(Command(code=99)).code == 3, "an answer that comes too late is nobody's"


def test_a_client_that_leaves_while_it_is_asked(served: list[Served]) -> None:
    closed: Future[int] = Future()
    callers: Future[Caller] = Future()

    def takes(request: Command, caller: Caller) -> Command:
        callers.set_result(caller)
        return request.response(0)

    served.append(Served({1: takes}))
    server = served[0].server
    server.on_closed(closed.set_result)
    client = served[0].client()
    client.ask(Command(code=1))
    conn = callers.result(PATIENCE_S).conn
    asked = served[0].on_loop(server.invoke(conn, Command(code=307), timeout_ms=PATIENCE_S * 1000))
    assert client.receive() is not None
    client.close()
    with pytest.raises(ConnectionLost):
        asked.result(PATIENCE_S)
    assert closed.result(PATIENCE_S) == conn
    with pytest.raises(ConnectionLost):
        served[0].on_loop(server.invoke(conn, Command(code=307), timeout_ms=PATIENCE_S * 1000)).result(PATIENCE_S)
    server.send_oneway(conn, Command(code=40))


def test_the_end_of_a_connection_is_reported_to_all(served: list[Served], caplog: pytest.LogCaptureFixture) -> None:
    told: Future[int] = Future()

    def fails(conn: int) -> None:
        raise KeyError(conn)

    served.append(Served({1: echo}))
    served[0].server.on_closed(fails)
    served[0].server.on_closed(told.set_result)
    client = served[0].client()
    client.ask(Command(code=1))
    client.close()
    with caplog.at_level(logging.ERROR, logger="cometmq.remoting"):
        assert told.result(PATIENCE_S) > 0
    assert [record.exc_info is not None for record in caplog.records] == [True]


def test_requests_without_an_answer(served: list[Served]) -> None:
    def notifies(request: Command, caller: Caller) -> Command:
        served[0].server.send_oneway(caller.conn, Command(code=40, fields={"consumerGroup": "g"}))
        return request.response(0)

    served.append(Served({1: notifies}))
    client = served[0].client()
    notice = client.ask(Command(code=1))
    assert (notice.code, notice.is_oneway, notice.fields) == (40, True, {"consumerGroup": "g"})
    answer = client.receive()
    assert answer is not None
    assert answer.is_response


# --- The end


def test_requests_in_progress_are_finished(served: list[Served]) -> None:
    entered, leave = threading.Event(), asyncio.Event()

    async def waits(request: Command, caller: Caller) -> Command:
        entered.set()
        await leave.wait()
        return request.response(0, body=b"finished")

    served.append(Served({1: waits, 2: echo}))
    client, other = served[0].client(), served[0].client()
    assert other.ask(Command(code=2)).code == 0
    client.send(Command(code=1, opaque=1))
    assert entered.wait(PATIENCE_S)
    stopping = threading.Thread(target=served[0].server.stop, kwargs={"grace_ms": PATIENCE_S * 1000})
    stopping.start()
    while other.ask(Command(code=2)).code == 0:
        pass
    assert other.ask(Command(code=2)).code == 1500
    assert other.ask(Command(code=2, version=475)).code == 14
    with pytest.raises(OSError, match="refused"):
        Client(other.socket.getpeername()[1])
    served[0].server.loop.call_soon_threadsafe(leave.set)
    answer = client.receive()
    assert answer is not None
    assert answer.body == b"finished"
    stopping.join(PATIENCE_S)
    assert not stopping.is_alive()
    assert client.receive() is None
    assert other.receive() is None


def test_endless_requests_are_cut_off(served: list[Served]) -> None:
    entered = threading.Event()
    cancelled: list[bool] = []

    async def waits(request: Command, caller: Caller) -> Command:
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise
        return request.response(0)

    served.append(Served({1: waits}))
    client = served[0].client()
    client.send(Command(code=1))
    assert entered.wait(PATIENCE_S)
    served[0].server.stop(grace_ms=1)
    assert cancelled == [True]
    assert client.receive() is None
    served[0].server.stop()


def test_a_loop_of_the_caller_s() -> None:
    async def main() -> tuple[int, int]:
        server = RemotingServer(["127.0.0.1:0"])
        thread = threading.get_ident()
        server.start(
            {1: lambda r, c: r.response(0, body=str(threading.get_ident()).encode())}, loop=asyncio.get_running_loop()
        )
        client = await asyncio.to_thread(Client, server.ports[0])
        answer = await asyncio.to_thread(client.ask, Command(code=1))
        await server.finish()
        assert await asyncio.to_thread(client.receive) is None
        client.close()
        return int(answer.body), thread

    served_on, asked_on = asyncio.run(main())
    assert served_on == asked_on


def test_one_that_was_never_started_lets_its_port_go() -> None:
    with RemotingServer(["127.0.0.1:0"]) as server:
        port = server.ports[0]
        with pytest.raises(CannotListen) as taken:
            RemotingServer([f"127.0.0.1:{port}"])
        assert taken.value.errno == errno.EADDRINUSE
        assert str(port) in taken.value.message
    RemotingServer([f"127.0.0.1:{port}"]).stop()
    with pytest.raises(InvalidArgument, match="localhost"):
        RemotingServer(["localhost:80"])


# --- Limits


def test_requests_that_python_has_no_room_for(served: list[Served]) -> None:
    entered, leave = threading.Event(), asyncio.Event()

    async def waits(request: Command, caller: Caller) -> Command:
        entered.set()
        await leave.wait()
        return request.response(0)

    served.append(Served({1: waits}, limits=ServerLimits(control_count_max=1)))
    client = served[0].client()
    client.send(Command(code=1, opaque=1))
    assert entered.wait(PATIENCE_S)
    answer = client.ask(Command(code=1, opaque=2))
    assert (answer.code, answer.opaque) == (2, 2)
    assert answer.remark == "[OVERLOAD]system busy, start flow control for a while"
    served[0].server.loop.call_soon_threadsafe(leave.set)
    first = client.receive()
    assert first is not None
    assert (first.code, first.opaque) == (0, 1)
    assert served[0].server.counters()["control_refused"] == 1


def test_garbage_ends_its_connection_alone(served: list[Served]) -> None:
    served.append(Served({1: echo}))
    bad, good = served[0].client(), served[0].client()
    bad.socket.sendall(b"GET / HTTP/1.1\r\n\r\n")
    assert bad.receive() is None
    assert good.ask(Command(code=1)).code == 0
    assert served[0].server.counters()["closed_corrupt"] == 1


def test_an_answer_that_no_frame_holds_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    served = Served({1: lambda request, caller: request.response(0, body=bytes(FRAME_BYTES_MAX))})
    try:
        answer = served.client().ask(Command(code=1))
    finally:
        served.close()
    assert answer.code == 1
    assert answer.remark == (
        f"the answer has {FRAME_BYTES_MAX:,} bytes; a frame holds {FRAME_BYTES_MAX:,} with its header: ask for less"
    )
    assert [record.levelname for record in caplog.records] == ["WARNING"]
