"""Push engines over a cluster of one broker, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from cometmq.client.push.listener_workers import ListenerSpec
from cometmq.client.push.push_engine import PushEngine
from cometmq.client.settings import PushSettings
from cometmq.remoting.bodies.heartbeat import ConsumeFromWhere
from cometmq.remoting.bodies.message_queue import MessageQueue
from support.fake_cluster import FakeCluster
from support.virtual_loop import VirtualLoop, run_virtual

__all__ = ["Seen", "committed", "consumer", "fill", "on_cluster", "queue_of", "run_on_threads", "until"]

Listener = Callable[[Any], Awaitable[Any]]


def on_cluster(test: Callable[[FakeCluster], Awaitable[None]]) -> Callable[[], None]:
    """Run a test on virtual time with a cluster of one broker that has topic T with two queues."""

    def run() -> None:
        def main(loop: VirtualLoop) -> Any:
            cluster = FakeCluster(loop)
            cluster.brokers[0].create("T", 2)
            return test(cluster)

        run_virtual(main)

    run.__name__ = test.__name__
    run.__doc__ = test.__doc__
    return run


def consumer(
    cluster: FakeCluster,
    listener: Listener,
    *,
    batch: bool = False,
    orderly: bool = False,
    auto_commit: bool = True,
    topics: dict[str, tuple[str | None, str]] | None = None,
    more: dict[str, Any] | None = None,
    **settings: Any,
) -> PushEngine:
    """Return a consumer of group g and topic T that begins at the first offset, not started."""
    chosen: dict[str, Any] = {
        "name_servers": ("ns:9876",),
        "client_ip": "10.0.0.9",
        "group": "g",
        "consume_from_where": ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    }
    return PushEngine(
        PushSettings(**(chosen | settings)),
        ListenerSpec(function=listener, batch=batch, orderly=orderly, auto_commit=auto_commit),
        expressions={"T": (None, "TAG")} if topics is None else topics,
        network_factory=cluster.factory,
        **{"now_ms": cluster.loop.now_ms, **(more or {})},
    )


def fill(cluster: FakeCluster, count: int, *, queues: int = 2, **properties: str) -> None:
    """Put numbered messages into the queues of T in turn."""
    for number in range(count):
        cluster.brokers[0].append("T", number % queues, b"%d" % number, dict(properties))


class Seen:
    """A listener that keeps what it saw, and does with it what a test says."""

    def __init__(self, answer: Callable[[Any], Any] = lambda _: None) -> None:
        self.bodies: list[bytes] = []
        self.messages: list[Any] = []
        self.answer = answer

    async def __call__(self, message: Any) -> Any:
        self.bodies.append(message.body_bytes)
        self.messages.append(message)
        return self.answer(message)

    def numbers(self) -> list[int]:
        """Return what it saw as numbers."""
        return [int(body) for body in self.bodies]


async def until(condition: Callable[[], bool], *, limit_s: float = 600) -> None:
    """Let virtual time pass until something is so."""
    loop = asyncio.get_running_loop()
    end = loop.time() + limit_s
    while not condition():
        assert loop.time() < end, "it never came"
        await asyncio.sleep(0.01)


def committed(cluster: FakeCluster, topic: str = "T", group: str = "g") -> dict[int, int]:
    """Return a group's progress as the broker has it, by queue."""
    offsets = cluster.brokers[0].offsets
    return {queue: offset for (of, name, queue), offset in offsets.items() if (of, name) == (group, topic)}


def queue_of(queue_id: int) -> MessageQueue:
    """Return a queue of T."""
    return MessageQueue(topic="T", broker_name="b0", queue_id=queue_id)


def run_on_threads(test: Callable[[FakeCluster], Awaitable[None]]) -> None:
    """Run a test on virtual time whose file work is done at once instead of in threads."""

    def main(loop: VirtualLoop) -> Any:
        def at_once(_: Any, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
            future: asyncio.Future[Any] = loop.create_future()
            future.set_result(function(*args))
            return future

        loop.run_in_executor = at_once  # type: ignore[assignment]
        cluster = FakeCluster(loop)
        cluster.brokers[0].create("T", 2)
        return test(cluster)

    run_virtual(main)
