"""Checks: the engine's sockets in Python: use after close, items that outlive their server, forks, threads."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from cometmq import _engine
from cometmq.errors import InvalidArgument, StoreClosed
from cometmq.remoting.command import Command

PATIENCE_S = 60


@pytest.fixture
def net() -> Iterator[_engine.NetServer]:
    """A server that was started."""
    server = _engine.NetServer(["127.0.0.1:0"])
    server.start()
    yield server
    server.close()


def entries(folder: str) -> int:
    """How many descriptors or threads this process has."""
    return sum(1 for _ in Path("/proc/self", folder).iterdir())


def connect(net: _engine.NetServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", net.ports()[0]), timeout=PATIENCE_S)


def take(net: _engine.NetServer) -> list[_engine.ControlItem]:
    assert select.select([net.control_fd], [], [], PATIENCE_S)[0], "nothing came"
    return net.take()


def test_an_item_s_way(net: _engine.NetServer) -> None:
    frame = Command(code=34, opaque=4, body=b"body").encode()
    with connect(net) as client:
        client.sendall(frame)
        (item,) = take(net)
        assert (item.kind, item.frame, item.local_port) == (net.REQUEST, frame, net.ports()[0])
        assert item.host == client.getsockname()
        assert item.arrived_ns > 0
        assert not net.is_idle()
        net.again(item)
        assert item.frame is None
        with pytest.raises(InvalidArgument, match="given back"):
            net.again(item)
        (second,) = take(net)
        assert (second.frame, second.conn) == (frame, item.conn)
        net.answer(second, b"\0\0\0\4\0\0\0\0")
        net.answer(second)
        assert client.recv(100) == b"\0\0\0\4\0\0\0\0"
        assert net.take() == []
    (gone,) = take(net)
    assert (gone.kind, gone.conn, gone.frame) == (net.CLOSED, item.conn, None)
    assert not net.send(item.conn, b"x")
    net.close_conn(item.conn)


def test_an_item_that_is_dropped_is_one_that_nobody_waits_for(net: _engine.NetServer) -> None:
    with connect(net) as client:
        client.sendall(Command(code=34).encode())
        items = take(net)
        assert not net.is_idle()
        items.clear()
        assert net.is_idle()


def test_items_may_outlive_their_server(net: _engine.NetServer) -> None:
    with connect(net) as client:
        client.sendall(Command(code=34).encode() * 3)
        items = take(net)
        net.close()
        assert items[0].frame is not None
        with pytest.raises(StoreClosed):
            net.answer(items[0], b"x")
        with pytest.raises(StoreClosed):
            net.again(items[0])


CALLS: list[Callable[[_engine.NetServer], object]] = [
    lambda net: net.start(),
    lambda net: net.drain(),
    lambda net: net.is_idle(),
    lambda net: net.ports(),
    lambda net: net.control_fd,
    lambda net: net.take(),
    lambda net: net.send(1, b"x"),
    lambda net: net.close_conn(1),
    lambda net: net.counters(),
]


@pytest.mark.parametrize("call", CALLS)
def test_after_close(net: _engine.NetServer, call: Callable[[_engine.NetServer], object]) -> None:
    assert not net.closed
    net.close()
    net.close()
    assert net.closed
    with pytest.raises(StoreClosed):
        call(net)


def test_it_starts_once(net: _engine.NetServer) -> None:
    with pytest.raises(RuntimeError, match="started before"):
        net.start()
    with pytest.raises(RuntimeError, match="made before"):
        net.__init__(["127.0.0.1:0"])  # type: ignore[misc]


def test_bad_values() -> None:
    with pytest.raises(InvalidArgument, match="loops"):
        _engine.NetServer(["127.0.0.1:0"], loops=0)
    with pytest.raises(InvalidArgument, match="addresses"):
        _engine.NetServer([])
    with pytest.raises(InvalidArgument, match="idle_ms"):
        _engine.NetServer(["127.0.0.1:0"], idle_ms=-5)
    with pytest.raises(TypeError, match="handles no requests"):
        _engine.NetServer(["127.0.0.1:0"], handler=_engine.RequestHandler())
    with pytest.raises(TypeError):
        _engine.NetServer(["127.0.0.1:0"], handler=object())  # type: ignore[arg-type]


def test_a_server_that_is_forgotten_ends() -> None:
    before = threading.active_count(), entries("fd"), entries("task")
    for _ in range(3):
        server = _engine.NetServer(["127.0.0.1:0"], loops=2)
        server.start()
        with connect(server) as client:
            client.sendall(Command(code=34).encode())
            take(server)
        del server
    after = threading.active_count(), entries("fd"), entries("task")
    assert after == before


def test_a_child_has_no_part_in_it(net: _engine.NetServer) -> None:
    with connect(net) as client:
        client.sendall(Command(code=34, opaque=1).encode())
        (item,) = take(net)
        descriptors = entries("fd")
        child = os.fork()
        if child == 0:
            status = 1
            try:
                for call in CALLS:
                    with pytest.raises(StoreClosed):
                        call(net)
                net.close()
                # Listener, connection, epoll set, wake-up, reserve, control queue; garbage of earlier tests may go too.
                left = entries("fd")
                status = 0 if left <= descriptors - 6 else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        net.answer(item, b"\0\0\0\4\0\0\0\0")
        assert client.recv(100) == b"\0\0\0\4\0\0\0\0"
        with connect(net) as other:
            other.sendall(Command(code=34).encode())
            assert len(take(net)) == 1


def test_close_while_others_call() -> None:
    """A late call gets StoreClosed; nobody waits, nothing breaks."""
    for _ in range(20):
        server = _engine.NetServer(["127.0.0.1:0"], loops=2)
        server.start()
        ready = threading.Barrier(3)

        def call_until_closed(net: _engine.NetServer = server, ready: threading.Barrier = ready) -> None:
            ready.wait()
            with suppress(StoreClosed):
                while True:
                    net.counters()
                    net.send(1 << 24, b"frame")

        threads = [threading.Thread(target=call_until_closed) for _ in range(2)]
        for thread in threads:
            thread.start()
        ready.wait()
        server.close()
        for thread in threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
