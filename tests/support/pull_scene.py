"""A cluster on virtual time, and pull consumers of its topic."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from cometmq.client.pull.pull_engine import PullEngine
from cometmq.client.settings import PullSettings
from cometmq.remoting.bodies.heartbeat import ConsumeFromWhere
from cometmq.remoting.bodies.message_queue import MessageQueue
from support.fake_cluster import FakeBroker, FakeCluster
from support.virtual_loop import VirtualLoop, run_virtual

__all__ = ["FIRST", "World", "queue_of", "virtually"]

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


def queue_of(number: int, *, topic: str = "t") -> MessageQueue:
    return MessageQueue(topic=topic, broker_name="b0", queue_id=number)


class World:
    """A cluster with a topic of two queues, and consumers."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.cluster = FakeCluster(loop)
        self.broker: FakeBroker = self.cluster.brokers[0]
        self.broker.create("t", 2)

    def fill(self, count: int, *, queue_id: int = 0, topic: str = "t") -> None:
        for number in range(count):
            self.broker.append(topic, queue_id, b"%d" % number)

    def consumer(self, group: str = "g", **settings: Any) -> PullEngine:
        given = {"auto_commit": False, "client_ip": "192.0.2.1", **settings}
        return PullEngine(
            PullSettings(group=group, name_servers=("ns:9876",), **given),
            now_ms=self.loop.now_ms,
            network_factory=self.cluster.factory,
        )

    async def started(self, *numbers: int, group: str = "g", **settings: Any) -> PullEngine:
        """Return a running consumer of these queues of the topic."""
        engine = self.consumer(group, **settings)
        await engine.assign([queue_of(number) for number in numbers], "*", expression_type="TAG")
        await engine.start()
        return engine

    async def bodies(self, engine: PullEngine, *, timeout_ms: int = 60_000) -> list[int]:
        return [int(bytes(message.body)) for message in await engine.poll(timeout_ms)]


def virtually(test: Callable[[World], Awaitable[None]]) -> None:
    async def main(loop: VirtualLoop) -> None:
        await test(World(loop))

    run_virtual(main)
