"""Checks: push consumers on virtual time: members come, go and crash, listeners fail, servers restart.

No message is lost; where nobody comes or goes each is handled once; where somebody does, only what was under way then
is redelivered; one that always fails ends among the dead letters after its tries. The seed is in the test's name.
``CMQ_LONG=1`` runs longer ones.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING

import pytest

from cometmq.client.push.listener_workers import ListenerSpec
from cometmq.client.push.listeners import Outcome
from cometmq.client.push.push_engine import PushEngine
from cometmq.client.settings import PushSettings
from cometmq.remoting.bodies.heartbeat import ConsumeFromWhere
from support.fake_cluster import MEMBER_LIVES_MS, FakeBroker, FakeCluster, FakeNetwork
from support.virtual_loop import VirtualLoop, run_virtual

if TYPE_CHECKING:
    from cometmq._engine import ReceivedMessage

LONG = bool(os.environ.get("CMQ_LONG"))
SEEDS = range(20261122, 20261122 + (30 if LONG else 1))
GROUP, TOPIC = "g", "T"
ROUTES_S = 55
"""By then everybody has refreshed the routes, every 30 s, and shared out the queues, every 20 s."""
REST_S = MEMBER_LIVES_MS / 1000 + 60

SETTINGS = PushSettings(
    name_servers=("ns:9876",), group=GROUP, consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
)


@dataclass
class Call:
    """A listener's call."""

    member: int
    position: tuple[str, str, int, int]
    begun_s: float
    is_handled: bool = False


class Simulation:
    """A cluster with its messages, the consumers that live, and what their listeners did."""

    def __init__(
        self, loop: VirtualLoop, seed: int, *, brokers: int = 2, queues: int = 4, orderly: bool = False
    ) -> None:
        self.loop, self.chooser, self.orderly = loop, Random(seed), orderly
        self.cluster = FakeCluster(loop, brokers=brokers)
        for broker in self.cluster.brokers:
            broker.create(TOPIC, queues)
        self.settings = SETTINGS
        self.consumers: dict[int, PushEngine] = {}
        self.calls: dict[bytes, list[Call]] = {}
        self.sent: set[bytes] = set()
        # When queues may have changed hands; until members have refreshed their routes they may even share them.
        self.unrest_s: list[tuple[float, float]] = []
        self.alive: set[int] = set()
        self.behave: Callable[[ReceivedMessage], Awaitable[Outcome | None]] = self._quick
        self._made = 0

    async def _quick(self, message: ReceivedMessage) -> Outcome | None:
        return None

    def note_unrest(self, *, lasts_s: float = 0) -> None:
        """Queues change hands now, or within this time."""
        self.unrest_s.append((self.loop.time(), self.loop.time() + lasts_s))

    def grow(self) -> None:
        broker = self.chooser.choice(self.cluster.brokers)
        broker.create(TOPIC, len(broker.topics[TOPIC]) + 1)
        self.note_unrest(lasts_s=ROUTES_S)

    # --- Messages -----------------------------------------------------------------------------------------------------

    def send(self, count: int = 1) -> None:
        for _ in range(count):
            broker: FakeBroker = self.chooser.choice(self.cluster.brokers)
            body = b"%d" % len(self.sent)
            self.sent.add(body)
            broker.append(TOPIC, self.chooser.randrange(len(broker.topics[TOPIC])), body)

    async def _listen(self, number: int, message: ReceivedMessage) -> Outcome | None:
        assert message.topic == TOPIC
        position = message.stored_topic, message.broker_name, message.queue_id, message.queue_offset
        call = Call(number, position, self.loop.time())
        self.calls.setdefault(message.body_bytes, []).append(call)
        outcome = await self.behave(message)
        call.is_handled = number in self.alive and outcome in (None, Outcome.SUCCESS)
        return outcome

    # --- Members ------------------------------------------------------------------------------------------------------

    async def join(self) -> int:
        self._made += 1
        number = self._made

        async def listener(message: ReceivedMessage) -> Outcome | None:
            return await self._listen(number, message)

        consumer = PushEngine(
            replace(self.settings, client_ip=f"10.0.0.{number}"),
            ListenerSpec(function=listener, orderly=self.orderly),
            expressions={TOPIC: (None, "TAG")},
            network_factory=self.cluster.factory,
            now_ms=self.loop.now_ms,
            queue_listener=lambda *_: self.note_unrest(),
        )
        self.alive.add(number)
        self.consumers[number] = consumer
        await consumer.start()
        return number

    async def leave(self, number: int) -> None:
        consumer = self.consumers.pop(number)
        self.note_unrest()
        await consumer.close()
        self.note_unrest()

    async def crash(self, number: int, *, host_too: bool) -> None:
        """The process's later actions reach nobody."""
        consumer = self.consumers.pop(number)
        self.alive.discard(number)
        self.note_unrest()
        network = consumer._instance.network
        assert isinstance(network, FakeNetwork)
        network.crash(host_too=host_too)
        await consumer.close(timeout_ms=0)

    async def close(self) -> None:
        """Let all leave, one after the other; the next owner has time to see the progress of the one before."""
        for number in list(self.consumers):
            await self.leave(number)
            await asyncio.sleep(30)

    async def anything(self, choices: Sequence[str]) -> None:
        """Let one of these happen."""
        what = self.chooser.choice(choices)
        if what == "join" or not self.consumers:
            await self.join()
        elif what == "queues":
            self.grow()
        elif what != "nothing":
            number = self.chooser.choice(list(self.consumers))
            await (self.leave(number) if what == "leave" else self.crash(number, host_too=what == "host"))

    # --- What must be true --------------------------------------------------------------------------------------------

    def dead(self) -> set[bytes]:
        return {
            record.body
            for broker in self.cluster.brokers
            for queue in broker.topics.get(f"%DLQ%{GROUP}", [])
            for record in queue
        }

    def handled(self) -> set[bytes]:
        return {body for body, calls in self.calls.items() if any(call.is_handled for call in calls)}

    def check_nothing_lost(self) -> None:
        assert self.handled() | self.dead() == self.sent

    def check_each_once(self) -> None:
        assert {body: len(calls) for body, calls in self.calls.items()} == dict.fromkeys(self.sent, 1)

    def check_duplicates(self) -> None:
        """A stored message came again only where its queue changed hands; others of the same body follow from that."""
        for body, calls in self.calls.items():
            begun: dict[object, list[float]] = {}
            for call in calls:
                begun.setdefault(call.position, []).append(call.begun_s)
            again = [times for times in begun.values() if len(times) > 1]
            for times in again:
                # A new owner pulls half a second after the change, and the old one has not heard of it until then.
                first_s, last_s = times[0] - 1, times[-1]
                assert any(begin <= last_s and first_s <= end for begin, end in self.unrest_s), (body, calls)
            assert again or sum(call.is_handled for call in calls) <= 1, (body, calls)

    def check_order(self) -> None:
        """Of each queue, messages were first begun in its order."""
        queues: dict[tuple[str, str, int], list[tuple[float, int]]] = {}
        for calls in self.calls.values():
            *key, offset = calls[0].position
            queues.setdefault(tuple(key), []).append((calls[0].begun_s, offset))  # type: ignore[arg-type]
        for key, firsts in queues.items():
            offsets = [offset for _, offset in sorted(firsts)]
            assert offsets == sorted(offsets), key

    def check_progress(self) -> None:
        """After all have left, the brokers know that everything was consumed."""
        for broker in self.cluster.brokers:
            for topic in (TOPIC, f"%RETRY%{GROUP}"):
                for queue_id, records in enumerate(broker.topics.get(topic, [])):
                    if records:
                        assert broker.offsets[GROUP, topic, queue_id] == len(records), (broker.name, topic, queue_id)


async def settle(simulation: Simulation, *, limit_s: float) -> None:
    """Wait until everything sent is handled or dead and nothing more comes for a while, at most so long."""
    end_s = simulation.loop.time() + limit_s
    quiet_s = 0
    while quiet_s < 10 and simulation.loop.time() < end_s:
        await asyncio.sleep(1)
        is_done = simulation.handled() | simulation.dead() == simulation.sent
        comes_more = any(broker.delayed for broker in simulation.cluster.brokers)
        quiet_s = quiet_s + 1 if is_done and not comes_more else 0


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_quiet_group_handles_each_message_once(seed: int, orderly: bool) -> None:
    async def main(loop: VirtualLoop) -> None:
        simulation = Simulation(loop, seed, orderly=orderly)

        async def slow(message: ReceivedMessage) -> None:
            await asyncio.sleep(simulation.chooser.choice((0, 0.001, 0.1)))

        simulation.behave = slow
        for _ in range(3):
            await simulation.join()
        await asyncio.sleep(60)
        for _ in range(60):
            simulation.send(simulation.chooser.randrange(10))
            await asyncio.sleep(simulation.chooser.random())
        await settle(simulation, limit_s=30)
        simulation.check_nothing_lost()
        simulation.check_each_once()
        if orderly:
            simulation.check_order()
        await simulation.close()
        simulation.check_progress()

    run_virtual(main)


@pytest.mark.parametrize("seed", SEEDS)
def test_members_come_go_and_crash(seed: int) -> None:
    async def main(loop: VirtualLoop) -> None:
        simulation = Simulation(loop, seed)
        chooser = simulation.chooser

        async def uneven(message: ReceivedMessage) -> Outcome | None:
            await asyncio.sleep(chooser.choice((0, 0.01, 0.5)))
            if chooser.random() < 0.05:
                raise RuntimeError("not now")
            return Outcome.RETRY if chooser.random() < 0.05 else None

        simulation.behave = uneven
        for _ in range(4):
            await simulation.join()
        for _ in range(60 if LONG else 25):
            simulation.send(chooser.randrange(30))
            await asyncio.sleep(chooser.choice((0.1, 1, 5)) * chooser.random())
            await simulation.anything(("join", "leave", "crash", "host", "queues", "nothing", "nothing", "nothing"))
        if not simulation.consumers:
            await simulation.join()
        await asyncio.sleep(REST_S)
        await settle(simulation, limit_s=3_600)
        simulation.check_nothing_lost()
        simulation.check_duplicates()
        await simulation.close()
        simulation.check_progress()

    run_virtual(main)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_orderly_group_keeps_the_order_when_members_come_and_go(seed: int) -> None:
    async def main(loop: VirtualLoop) -> None:
        simulation = Simulation(loop, seed, orderly=True)
        chooser = simulation.chooser

        async def uneven(message: ReceivedMessage) -> Outcome | None:
            await asyncio.sleep(chooser.choice((0, 0.01, 0.5)))
            return Outcome.RETRY if chooser.random() < 0.1 else None

        simulation.behave = uneven
        for _ in range(3):
            await simulation.join()
        for _ in range(40 if LONG else 15):
            simulation.send(chooser.randrange(20))
            await asyncio.sleep(chooser.choice((0.1, 1, 5)) * chooser.random())
            await simulation.anything(("join", "leave", "crash", "host", "queues", "nothing", "nothing", "nothing"))
        if not simulation.consumers:
            await simulation.join()
        await asyncio.sleep(REST_S)
        await settle(simulation, limit_s=3_600)
        simulation.check_nothing_lost()
        simulation.check_order()
        await simulation.close()
        simulation.check_progress()

    run_virtual(main)


def test_message_that_always_fails_becomes_a_dead_letter() -> None:
    async def main(loop: VirtualLoop) -> None:
        simulation = Simulation(loop, 1, brokers=1, queues=1)

        async def refuse(message: ReceivedMessage) -> Outcome | None:
            return Outcome.RETRY if int(message.body_bytes) % 2 else None

        simulation.behave = refuse
        await simulation.join()
        simulation.send(4)
        await asyncio.sleep(5 * 3_600)
        assert simulation.handled() == {b"0", b"2"}
        assert simulation.dead() == {b"1", b"3"}
        assert {body: len(calls) for body, calls in simulation.calls.items()} == {
            b"0": 1,
            b"1": 17,
            b"2": 1,
            b"3": 17,
        }, "once, and sixteen times more"
        await simulation.close()
        simulation.check_progress()

    run_virtual(main)


@pytest.mark.parametrize("seed", SEEDS)
def test_brokers_and_the_name_server_restart(seed: int) -> None:
    async def main(loop: VirtualLoop) -> None:
        simulation = Simulation(loop, seed)
        chooser = simulation.chooser
        for _ in range(3):
            await simulation.join()
        for _ in range(10 if LONG else 4):
            simulation.send(20)
            await asyncio.sleep(chooser.uniform(0, 40))
            address = chooser.choice(list(simulation.cluster.servers))
            server = simulation.cluster.stop(address)
            simulation.note_unrest(lasts_s=ROUTES_S)
            await asyncio.sleep(chooser.uniform(0, 60))
            if isinstance(server, FakeBroker):
                server.groups.clear()
                server.locks.clear()
            simulation.cluster.servers[address] = server
            simulation.note_unrest(lasts_s=ROUTES_S)
        simulation.send(20)
        await asyncio.sleep(REST_S)
        await settle(simulation, limit_s=600)
        simulation.check_nothing_lost()
        simulation.check_duplicates()
        await simulation.close()
        simulation.check_progress()

    run_virtual(main)
