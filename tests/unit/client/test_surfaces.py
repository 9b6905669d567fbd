"""Checks: what holds for each surface alike: blocking and asyncio, push, pull and simple consumers, over real servers.

Each gets a message and counts it as done, leaves its group however its close is interrupted, and is closed for good.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import cometmq.admin
import cometmq.aio.pull
import cometmq.aio.push
import cometmq.aio.simple
import cometmq.client.pull_consumer
import cometmq.client.push_consumer
import cometmq.client.simple_consumer
from cometmq.client.instance.heartbeat_sender import HeartbeatSender
from cometmq.client.instance.service_state import ServiceState
from cometmq.client.producer import Producer
from cometmq.errors import ClientStateError
from cometmq.testing import Cluster, cluster

LIMIT_S = 30
FIRST: Any = {"consume_from_where": "CONSUME_FROM_FIRST_OFFSET"}
QUICK: Any = {"rebalance_min_interval_ms": 10, "rebalance_wait_interval_ms": 200, **FIRST}
KINDS = ("push", "pull", "simple")
SURFACES = [(surface, kind) for surface in ("client", "aio") for kind in KINDS]
CLASSES: dict[tuple[str, str], Any] = {
    ("client", "push"): cometmq.client.push_consumer.PushConsumer,
    ("client", "pull"): cometmq.client.pull_consumer.PullConsumer,
    ("client", "simple"): cometmq.client.simple_consumer.SimpleConsumer,
    ("aio", "push"): cometmq.aio.push.PushConsumer,
    ("aio", "pull"): cometmq.aio.pull.PullConsumer,
    ("aio", "simple"): cometmq.aio.simple.SimpleConsumer,
}


@pytest.fixture(scope="module")
def servers() -> Iterator[Cluster]:
    with cluster() as running:
        with Producer("makers", name_servers=running.name_server_address) as producer:
            producer.send("orders", b"hello")
        yield running


class Member:
    """A consumer of topic orders; on either surface its methods block."""

    def __init__(self, servers: Cluster, surface: str, kind: str) -> None:
        self.kind, self.is_aio = kind, surface == "aio"
        self.group = f"{surface}-{kind}"
        self._servers = servers
        self._came = threading.Event()
        self._loop = asyncio.new_event_loop()
        options = FIRST if kind == "simple" else QUICK
        listener = {"listener": self._listen} if kind == "push" else {}
        self.consumer = CLASSES[surface, kind](
            self.group, name_servers=servers.name_server_address, **options, **listener
        )

    def end(self) -> None:
        """Close the loop."""
        self.run(asyncio.sleep(0))
        self._loop.close()

    def _listen(self, message: Any) -> None:
        self._came.set()

    def run(self, returned: Any) -> Any:
        """Return what a call returned, or what it comes to on the loop."""
        if not asyncio.iscoroutine(returned):
            return returned
        return self._loop.run_until_complete(asyncio.wait_for(returned, LIMIT_S))

    def start(self) -> None:
        self.run(self.consumer.subscribe("orders"))
        self.run(self.consumer.start())

    def take_one(self) -> None:
        """Get the message and count it as done."""
        if self.kind == "push":
            while not self._came.is_set():
                self.run(asyncio.sleep(0.01)) if self.is_aio else self._came.wait(LIMIT_S)
            return
        messages: list[Any] = []
        while not messages:
            messages = self.run(self.consumer.receive() if self.kind == "simple" else self.consumer.poll())
        assert [message.body_bytes for message in messages] == [b"hello"]
        if self.kind == "simple":
            self.run(self.consumer.ack(messages[0]))

    def interrupt_close(self) -> None:
        """Close, and be interrupted while the brokers are notified."""
        if self.is_aio:

            async def cancelled() -> None:
                closing = asyncio.ensure_future(self.consumer.close())
                await asyncio.sleep(0.1)
                closing.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await closing

            self.run(cancelled())
            return
        timer = threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            self.consumer.close()
        timer.join()

    def is_member(self) -> bool:
        with cometmq.admin.connect(namesrv=self._servers.name_server_address) as admin:
            return admin.groups.members(self.group) is not None


@pytest.fixture
def slow_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers take a while to learn that a group has left."""
    send_unregister = HeartbeatSender.send_unregister

    async def slowly(self: HeartbeatSender, **groups: Any) -> None:
        await asyncio.sleep(0.5)
        await send_unregister(self, **groups)

    monkeypatch.setattr(HeartbeatSender, "send_unregister", slowly)


@pytest.mark.usefixtures("slow_end")
@pytest.mark.parametrize(("surface", "kind"), SURFACES)
def test_member_consumes_and_leaves_also_when_its_close_is_interrupted(
    servers: Cluster, surface: str, kind: str
) -> None:
    member = Member(servers, surface, kind)
    assert member.consumer.state is ServiceState.CREATE_JUST
    member.start()
    assert member.consumer.state is ServiceState.RUNNING
    member.take_one()
    assert member.is_member()
    member.interrupt_close()
    assert member.consumer.state is ServiceState.SHUTDOWN_ALREADY
    member.run(member.consumer.close())  # waits for the end of the first
    assert not member.is_member()
    with pytest.raises(ClientStateError, match="closed"):
        member.run(member.consumer.start())
    member.run(member.consumer.close())
    member.end()


@pytest.mark.parametrize("form", ["async", "plain"])
@pytest.mark.parametrize("surface", ["client", "aio"])
def test_listener_may_close_its_own_consumer(servers: Cluster, surface: str, form: str) -> None:
    member = Member(servers, surface, "push")
    group = f"own-{surface}-{form}"
    called = threading.Event()

    async def on_loop(message: Any) -> None:
        closed = consumer.close()
        if closed is not None:
            await closed
        called.set()

    def in_thread(message: Any) -> None:
        if surface == "client":
            consumer.close()
        else:
            asyncio.run_coroutine_threadsafe(consumer.close(timeout_ms=500), member._loop).result(LIMIT_S)
        called.set()

    listener = on_loop if form == "async" else in_thread
    consumer: Any = CLASSES[surface, "push"](
        group, name_servers=servers.name_server_address, listener=listener, **QUICK
    )
    member.consumer, member.group = consumer, group
    member.start()
    while not called.is_set():
        member.run(asyncio.sleep(0.01)) if member.is_aio else called.wait(LIMIT_S)
    member.run(consumer.close())
    assert not member.is_member()
    member.end()
