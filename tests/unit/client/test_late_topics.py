"""Checks: a member works soon after its topic, its group or its retry topic was created, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import pytest

from cometmq.client.pop.simple_engine import SimpleEngine
from cometmq.client.pop.simple_settings import SimpleSettings
from cometmq.client.pull.pull_engine import PullEngine
from cometmq.client.push.listeners import Outcome
from cometmq.client.settings import PullSettings
from cometmq.errors import Error
from cometmq.remoting.bodies.assignments import MessageRequestMode
from cometmq.remoting.bodies.heartbeat import ConsumeFromWhere, MessageModel
from cometmq.remoting.codes import RequestCode, ResponseCode
from support.fake_cluster import FakeCluster
from support.push_engines import consumer, until
from support.virtual_loop import run_virtual

SOON_S = 1.5
"""From the creation to the first message: a second until the route is asked for, or between two rounds."""
KINDS = ("push", "orderly", "assigned", "popped", "pull", "simple")


class Offsets:
    """The progress of a broadcasting member, which keeps no file here."""

    def __init__(self) -> None:
        self.stored: dict[Any, int] = {}

    def load(self, queue: Any) -> int | None:
        return self.stored.get(queue)

    def save(self, offsets: Mapping[Any, int]) -> None:
        self.stored.update(offsets)


class Member:
    """A consumer of any kind, and when each of its messages came."""

    def __init__(
        self, cluster: FakeCluster, kind: str, topics: tuple[str, ...] = ("late",), *, rebalance_ms: int = 20_000
    ) -> None:
        self.cluster, self.kind, self.topics = cluster, kind, topics
        self.given: Any = {"group": "g", "name_servers": ("ns:9876",), "client_ip": "10.0.0.9"}
        if kind != "simple":
            self.given["rebalance_wait_interval_ms"] = rebalance_ms
        self.more: dict[str, Any] = {}
        if kind.startswith("broadcast"):
            self.given["message_model"] = MessageModel.BROADCASTING
            self.more["offset_store"] = Offsets()
        self.came_s: list[float] = []
        self.answers: list[Outcome] = []
        self.engine: Any = self._engine()
        self.task: asyncio.Task[None] | None = None

    def _engine(self) -> Any:
        reach: Any = {"now_ms": self.cluster.loop.now_ms, "network_factory": self.cluster.factory}
        if self.is_pull:
            first = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
            return PullEngine(PullSettings(**self.given, consume_from_where=first), **reach, **self.more)
        if self.kind == "simple":
            return SimpleEngine(SimpleSettings(**self.given), **reach)
        return consumer(
            self.cluster,
            self.listen,
            orderly=self.kind == "orderly",
            topics=dict.fromkeys(self.topics, (None, "TAG")),
            client_rebalance=self.kind not in ("assigned", "popped"),
            more=self.more,
            **self.given,
        )

    @property
    def is_pull(self) -> bool:
        return self.kind in ("pull", "broadcast pull")

    async def listen(self, message: Any) -> Outcome | None:
        self.came_s.append(self.cluster.loop.time())
        return self.answers.pop(0) if self.answers else None

    async def start(self) -> None:
        if self.is_pull:
            for topic in self.topics:
                await self.engine.subscribe(topic)
        elif self.kind == "simple":
            for topic in self.topics:
                await self.engine.subscribe(topic, None)
        await self.engine.start()
        if self.is_pull or self.kind == "simple":
            self.task = asyncio.ensure_future(self._ask())

    async def _ask(self) -> None:
        while self.engine.state.name == "RUNNING":
            try:
                messages = await self._next()
            except Error:  # a simple consumer's receive() reports what is missing
                await asyncio.sleep(1)
                continue
            for message in messages:
                await self.listen(message)
                if self.kind == "simple":
                    await self.engine.ack([message])

    async def _next(self) -> list[Any]:
        if self.is_pull:
            return list(await self.engine.poll(1_000))
        return list(await self.engine.receive(8, invisible_s=30, wait_s=20))

    async def close(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
        await self.engine.close()


def run(test: Callable[[FakeCluster], Coroutine[Any, Any, None]], *, brokers: int = 1) -> None:
    run_virtual(lambda loop: test(FakeCluster(loop, brokers=brokers)))


@pytest.mark.parametrize("wait_s", [0.3, 47.0])
@pytest.mark.parametrize("kind", KINDS)
def test_first_message_of_a_topic_that_is_created_behind_its_member(kind: str, wait_s: float) -> None:
    async def main(cluster: FakeCluster) -> None:
        broker = cluster.brokers[0]
        if kind == "popped":
            broker.pops.modes["late"] = MessageRequestMode.POP
        member = Member(cluster, kind)
        await member.start()
        await asyncio.sleep(wait_s)
        broker.create("late", 2)
        made_s = cluster.loop.time()
        broker.append("late", 0, b"0")
        await until(lambda: len(member.came_s) == 1)
        assert member.came_s[0] - made_s <= SOON_S
        await member.close()

    run(main)


@pytest.mark.parametrize("kind", ["push", "assigned"])
def test_failed_message_comes_again_after_its_delay_in_a_new_group(kind: str) -> None:
    """The group's retry topic is created by the first heartbeat, after the member looked for it."""

    async def main(cluster: FakeCluster) -> None:
        broker = cluster.brokers[0]
        broker.create("T", 1)
        broker.append("T", 0, b"0")
        member = Member(cluster, kind, ("T",))
        member.answers.append(Outcome.retry(delay_level=1))
        await member.start()
        await until(lambda: len(member.came_s) == 2)
        assert member.came_s[1] - member.came_s[0] <= 1 + SOON_S
        await member.close()

    run(main)


@pytest.mark.parametrize("wait_s", [0.3, 47.0])
@pytest.mark.parametrize("kind", KINDS)
def test_first_message_of_a_late_topic_beside_one_that_exists(kind: str, wait_s: float) -> None:
    async def main(cluster: FakeCluster) -> None:
        broker = cluster.brokers[0]
        broker.create("T", 2)
        if kind == "popped":
            broker.pops.modes["T"] = broker.pops.modes["late"] = MessageRequestMode.POP
        member = Member(cluster, kind, ("T", "late"))
        await member.start()
        await asyncio.sleep(wait_s)
        broker.create("late", 2)
        made_s = cluster.loop.time()
        broker.append("late", 0, b"0")
        await until(lambda: len(member.came_s) == 1)
        assert member.came_s[0] - made_s <= SOON_S
        broker.append("T", 1, b"1")
        await until(lambda: len(member.came_s) == 2)
        assert member.came_s[1] - made_s <= 2 * SOON_S
        await member.close()

    run(main)


@pytest.mark.parametrize("kind", [*KINDS, "broadcast", "broadcast pull"])
def test_first_message_of_a_group_that_is_created_behind_its_member(kind: str) -> None:
    async def main(cluster: FakeCluster) -> None:
        broker = cluster.brokers[0]
        broker.create("T", 2)
        if kind == "popped":
            broker.pops.modes["T"] = MessageRequestMode.POP
        broker.unknown_groups.add("g")
        broker.append("T", 0, b"0")
        member = Member(cluster, kind, ("T",))
        await member.start()
        await asyncio.sleep(47)
        assert not member.came_s
        broker.unknown_groups.clear()
        made_s = cluster.loop.time()
        await until(lambda: len(member.came_s) == 1)
        assert member.came_s[0] - made_s <= 2 * SOON_S
        await member.close()

    run(main)


@pytest.mark.parametrize("kind", ["push", "orderly", "assigned", "pull"])
def test_queues_that_a_topic_gets_later_are_shared_out_when_the_route_is_read_again(kind: str) -> None:
    async def main(cluster: FakeCluster) -> None:
        broker = cluster.brokers[0]
        broker.create("T", 1)
        member = Member(cluster, kind, ("T",), rebalance_ms=300_000)
        await member.start()
        await asyncio.sleep(31)
        broker.create("T", 2)
        made_s = cluster.loop.time()
        broker.append("T", 1, b"0")
        await until(lambda: len(member.came_s) == 1)
        assert member.came_s[0] - made_s <= 30 + SOON_S
        await member.close()

    run(main)


def test_popped_retry_topic_that_never_exists_is_not_asked_for_each_second() -> None:
    async def main(cluster: FakeCluster) -> None:
        broker = cluster.brokers[0]
        broker.create("T", 1)
        broker.pops.modes["T"] = MessageRequestMode.POP
        broker.append("T", 0, b"0")
        member = Member(cluster, "popped", ("T",))
        await member.start()
        await asyncio.sleep(60)
        assert len(member.came_s) == 1
        asked = [one.fields["topic"] for one in cluster.log if one.code == RequestCode.GET_ROUTEINFO_BY_TOPIC]
        assert asked.count("%RETRY%g_T") <= 10
        await member.close()

    run(main)


@pytest.mark.parametrize("kind", ["push", "pull"])
@pytest.mark.parametrize(
    ("code", "most"),
    [(ResponseCode.SYSTEM_ERROR, 180), (ResponseCode.NO_PERMISSION, 24), (ResponseCode.SYSTEM_BUSY, 24)],
)
def test_members_that_a_broker_does_not_list_cost_few_heartbeats(kind: str, code: ResponseCode, most: int) -> None:
    """Only a group without members is worth another heartbeat: one each second at first, each 30 s in the end."""

    async def main(cluster: FakeCluster) -> None:
        broker = cluster.brokers[0]
        broker.create("T", 1)
        broker.create("U", 1)
        broker.refused_lists = code
        member = Member(cluster, kind, ("T", "U"))
        await member.start()
        await asyncio.sleep(600)
        beats = [asked.at_ms for asked in cluster.log if asked.code == RequestCode.HEART_BEAT]
        assert 20 <= len(beats) <= most
        lists = [asked for asked in cluster.log if asked.code == RequestCode.GET_CONSUMER_LIST_BY_GROUP]
        assert len(lists) <= 5 * most
        await member.close()

    run(main)


def test_name_servers_are_asked_for_missing_topics_alone() -> None:
    """About once a second."""

    async def main(cluster: FakeCluster) -> None:
        cluster.brokers[0].create("T", 1)
        member = Member(cluster, "push", ("T", "late"))
        await member.start()
        await asyncio.sleep(60)
        asked = [one.fields["topic"] for one in cluster.log if one.code == RequestCode.GET_ROUTEINFO_BY_TOPIC]
        assert asked.count("T") < 6
        assert asked.count("%RETRY%g") < 6
        assert 55 <= asked.count("late") <= 200
        await member.close()

    run(main)
