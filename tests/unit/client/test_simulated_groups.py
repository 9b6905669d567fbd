"""Checks: groups of many members on virtual time, with members that come, go and crash, and topics that grow.

At rest every queue has one owner; consistent hashing moves the queues of those who come and go, and no others; an
orderly queue is never with two at a time. The seed of a run is in its test's name. ``CMQ_LONG=1`` runs longer ones.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Collection, Mapping
from random import Random

import pytest

from cometmq.client.group.allocation import AllocateStrategy, as_strategy
from cometmq.client.group.process_queue import ProcessQueue
from cometmq.client.group.rebalance import Rebalance
from cometmq.client.instance.instance import ClientInstance
from cometmq.client.settings import ConsumerSettings
from cometmq.remoting.bodies.heartbeat import MessageModel
from cometmq.remoting.bodies.message_queue import MessageQueue
from support.client_parts import FakeConsumer
from support.fake_cluster import MEMBER_LIVES_MS, FakeCluster, FakeNetwork
from support.virtual_loop import VirtualLoop, run_virtual

LONG = bool(os.environ.get("CMQ_LONG"))
SEEDS = range(20261122, 20261122 + (40 if LONG else 1))
GROUP, TOPIC = "g", "T"
REST_S = MEMBER_LIVES_MS / 1000 + 60
"""By then a lost host has expired, and two rounds of rebalance have passed."""


class Member(FakeConsumer):
    """A member that owns queues and does nothing with them."""

    is_push = False
    model = MessageModel.CLUSTERING

    def __init__(self, cluster: FakeCluster, number: int, *, strategy: AllocateStrategy, is_orderly: bool) -> None:
        super().__init__(GROUP, TOPIC)
        self.strategy, self.is_orderly = strategy, is_orderly
        self.settings = ConsumerSettings(name_servers=("ns:9876",), client_ip=f"10.0.{number >> 8}.{number & 255}")
        self.instance = ClientInstance(self.settings, network_factory=cluster.factory, now_ms=cluster.loop.now_ms)
        self.table = Rebalance(self.instance, self, now_ms=cluster.loop.now_ms)
        self._renewal: asyncio.Task[None] | None = None

    @property
    def network(self) -> FakeNetwork:
        assert isinstance(self.instance.network, FakeNetwork)
        return self.instance.network

    @property
    def owned(self) -> set[MessageQueue]:
        return {queue for queue, held in self.table.queues.items() if not held.dropped}

    async def join(self) -> None:
        self.instance.register_consumer(self)
        await self.instance.start()
        await self.instance.update_route(TOPIC)
        if await self.instance.heartbeat():
            self.instance.wake_rebalance()
        if self.is_orderly:
            self._renewal = self.instance.spawn(self._renew())

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(20)
            await self.table.lock_all()

    async def leave(self) -> None:
        if self.is_orderly:
            await self.table.unlock_all()
        self.table.drop_all()
        await self.instance.unregister_consumer(GROUP)
        await self.instance.release()

    async def crash(self, *, host_too: bool) -> None:
        self.network.crash(host_too=host_too)
        self.table.drop_all()
        await self.instance.release()

    # The rebalance's calls of its owner.

    async def do_rebalance(self) -> bool:
        return await self.table.run()

    async def start_offset(self, queue: MessageQueue) -> int:
        return await self.instance.query_offset(GROUP, queue) or 0

    def dispatch(self, queue: MessageQueue, process_queue: ProcessQueue, next_offset: int) -> None:
        assert self.table.queues[queue] is process_queue
        assert next_offset == 0

    async def release(self, queue: MessageQueue, process_queue: ProcessQueue) -> bool:
        assert process_queue.dropped
        if self.is_orderly:
            await self.table.unlock(queue, oneway=False)
        return True

    def queues_changed(self, topic: str, all_queues: Collection[MessageQueue], mine: Collection[MessageQueue]) -> None:
        assert set(mine) <= set(all_queues)

    def forget_offset(self, queue: MessageQueue) -> None:
        assert queue not in self.table.queues


class Group:
    """The members that live, and what happens to them."""

    def __init__(
        self, loop: VirtualLoop, *, brokers: int, queues: int, strategy: str = "AVG", is_orderly: bool = False
    ) -> None:
        self.loop = loop
        self.cluster = FakeCluster(loop, brokers=brokers)
        for broker in self.cluster.brokers:
            broker.create(TOPIC, queues)
        self.members: list[Member] = []
        self._strategy, self._is_orderly = as_strategy(strategy), is_orderly
        self._made = 0

    async def join(self) -> Member:
        self._made += 1
        member = Member(self.cluster, self._made, strategy=self._strategy, is_orderly=self._is_orderly)
        self.members.append(member)
        await member.join()
        return member

    async def anything(self, chooser: Random) -> None:
        """Let one thing happen."""
        what = chooser.choice(("join", "join", "leave", "crash", "host", "queues", "restart", "nothing"))
        if what == "join" or not self.members:
            await self.join()
        elif what == "queues":
            broker = chooser.choice(self.cluster.brokers)
            broker.create(TOPIC, len(broker.topics[TOPIC]) + chooser.randrange(1, 4))
        elif what == "restart":
            await self._restart_broker(chooser)
        elif what in ("leave", "crash", "host"):
            member = self.members.pop(chooser.randrange(len(self.members)))
            await (member.leave() if what == "leave" else member.crash(host_too=what == "host"))

    async def _restart_broker(self, chooser: Random) -> None:
        """Stop a broker for some seconds; its members are forgotten, its locks, too."""
        broker = self.cluster.stop(chooser.choice(self.cluster.brokers).address)
        await asyncio.sleep(chooser.uniform(0, 10))
        broker.groups.clear()
        broker.locks.clear()
        self.cluster.servers[broker.address] = broker

    def owners(self) -> dict[MessageQueue, Member]:
        """Return who has each queue.

        Raises:
            AssertionError: a queue has two owners.
        """
        owners: dict[MessageQueue, Member] = {}
        for member in self.members:
            for queue in member.owned:
                assert queue not in owners, f"{queue} belongs to two members"
                owners[queue] = member
        return owners

    def check_rest(self) -> dict[MessageQueue, Member]:
        """Every queue has one owner, and the average one where that is the strategy."""
        owners = self.owners()
        assert set(owners) == self.queues()
        if self._strategy.name == "AVG":
            counts = Counter({id(member): 0 for member in self.members})
            counts.update(map(id, owners.values()))
            assert max(counts.values()) - min(counts.values()) <= 1
        return owners

    def queues(self) -> set[MessageQueue]:
        return {
            MessageQueue(topic=TOPIC, broker_name=broker.name, queue_id=queue_id)
            for broker in self.cluster.brokers
            for queue_id in range(len(broker.topics[TOPIC]))
        }


def moved(before: Mapping[MessageQueue, Member], after: Mapping[MessageQueue, Member]) -> set[MessageQueue]:
    return {queue for queue, member in after.items() if before.get(queue) is not member}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("strategy", ["AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH"])
def test_at_rest_every_queue_has_one_owner(strategy: str, seed: int) -> None:
    async def main(loop: VirtualLoop) -> None:
        chooser = Random(seed)
        group = Group(loop, brokers=3, queues=16, strategy=strategy)
        await asyncio.gather(*(group.join() for _ in range(chooser.randrange(5, 40))))
        for _ in range(10 if LONG else 3):
            for _ in range(chooser.randrange(1, 12)):
                await group.anything(chooser)
                await asyncio.sleep(chooser.choice((0, 0.01, 1, 10)) * chooser.random())
            await asyncio.sleep(REST_S)
            if group.members:
                group.check_rest()
        for member in list(group.members):
            await member.leave()
        assert all(not members for broker in group.cluster.brokers for members in broker.groups.values())

    run_virtual(main)


@pytest.mark.parametrize("size", [200, 500] if LONG else [100])
def test_hundreds_join_at_once(size: int) -> None:
    async def main(loop: VirtualLoop) -> None:
        group = Group(loop, brokers=2, queues=size)
        await asyncio.gather(*(group.join() for _ in range(size)))
        await asyncio.sleep(45)
        owners = group.check_rest()
        assert len(owners) == 2 * size
        for member in group.members[: size // 2]:
            await member.crash(host_too=False)
        del group.members[: size // 2]
        await asyncio.sleep(45)
        group.check_rest()

    run_virtual(main)


@pytest.mark.parametrize("seed", SEEDS)
def test_consistent_hashing_moves_no_other_queues(seed: int) -> None:
    async def main(loop: VirtualLoop) -> None:
        chooser = Random(seed)
        group = Group(loop, brokers=2, queues=32, strategy="CONSISTENT_HASH")
        for _ in range(10):
            await group.join()
        await asyncio.sleep(REST_S)
        before = group.check_rest()
        for _ in range(4):
            newcomer = await group.join()
            await asyncio.sleep(REST_S)
            after = group.check_rest()
            assert {after[queue] for queue in moved(before, after)} <= {newcomer}
            before = after
            leaver = group.members.pop(chooser.randrange(len(group.members)))
            await leaver.leave()
            await asyncio.sleep(REST_S)
            after = group.check_rest()
            assert {before[queue] for queue in moved(before, after)} <= {leaver}
            before = after

    run_virtual(main)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_orderly_queue_is_never_with_two(seed: int) -> None:
    async def main(loop: VirtualLoop) -> None:
        chooser = Random(seed)
        group = Group(loop, brokers=2, queues=8, is_orderly=True)

        async def watch() -> None:
            while True:
                group.owners()
                await asyncio.sleep(0.01)

        watching = asyncio.ensure_future(watch())
        for _ in range(6):
            await group.join()
        for _ in range(10 if LONG else 3):
            what = chooser.choice(("join", "leave", "host"))
            if what == "join" or len(group.members) < 2:
                await group.join()
            else:
                member = group.members.pop(chooser.randrange(len(group.members)))
                await (member.leave() if what == "leave" else member.crash(host_too=True))
            await asyncio.sleep(chooser.uniform(0, 5))
        await asyncio.sleep(REST_S)
        assert not watching.done() or watching.exception() is None
        watching.cancel()
        owners = group.check_rest()
        for queue, member in owners.items():
            broker = next(broker for broker in group.cluster.brokers if broker.name == queue.broker_name)
            assert broker.locks[GROUP, queue][0] == member.instance.client_id

    run_virtual(main)
