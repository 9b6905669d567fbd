"""A cluster on virtual time, and simple consumers of its topic."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import pytest

from cometmq.client.pop.simple_engine import SimpleEngine
from cometmq.client.pop.simple_settings import SimpleSettings
from cometmq.remoting.bodies.heartbeat import ConsumeFromWhere
from support.fake_cluster import FakeBroker, FakeCluster
from support.virtual_loop import VirtualLoop, run_virtual

if TYPE_CHECKING:
    from cometmq._engine import ReceivedMessage

__all__ = ["GROUP", "TOPIC", "Scene", "warnings_of", "bodies", "receive", "receive_kept", "run"]

GROUP, TOPIC = "g", "T"


class Scene:
    """A cluster with the topic, and consumers of it."""

    def __init__(self, loop: VirtualLoop, *, brokers: int = 1, queues: int = 2) -> None:
        self.loop = loop
        self.cluster = FakeCluster(loop, brokers=brokers)
        self.brokers: list[FakeBroker] = self.cluster.brokers
        for broker in self.brokers:
            broker.create(TOPIC, queues)
        self.made = 0

    @property
    def broker(self) -> FakeBroker:
        return self.brokers[0]

    def send(self, *bodies: bytes, broker: int = 0, tags: str | None = None) -> None:
        for number, body in enumerate(bodies):
            self.brokers[broker].append(TOPIC, number % 2, body, {} if tags is None else {"TAGS": tags})

    def engine(self, *, topic: str | None = TOPIC, **options: Any) -> SimpleEngine:
        self.made += 1
        given = {
            "name_servers": ("ns:9876",),
            "group": GROUP,
            "client_ip": f"10.0.0.{self.made}",
            "consume_from_where": ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            **options,
        }
        return SimpleEngine(SimpleSettings(**given), now_ms=self.loop.now_ms, network_factory=self.cluster.factory)

    async def started(self, expression: str | None = None, **options: Any) -> SimpleEngine:
        engine = self.engine(**options)
        await engine.subscribe(TOPIC, expression)
        await engine.start()
        return engine


def run(main: Callable[[Scene], Coroutine[Any, Any, None]], **options: Any) -> None:
    async def of(loop: VirtualLoop) -> None:
        await main(Scene(loop, **options))

    run_virtual(of)


def bodies(messages: list[ReceivedMessage]) -> list[bytes]:
    return sorted(message.body_bytes for message in messages)


async def receive(
    engine: SimpleEngine, most: int | None = None, *, invisible_s: float | None = None, wait_s: float | None = None
) -> list[ReceivedMessage]:
    return await engine.receive(most, invisible_s=invisible_s, wait_s=wait_s)


async def receive_kept(engine: SimpleEngine) -> list[ReceivedMessage]:
    return await engine.receive_kept(32)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
