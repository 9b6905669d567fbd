"""The checker: random histories of a group on virtual time, against a model of what may be delivered and committed.

A history is a list of events made of a seed: members of push, orderly and pull consumers join, leave, have their close
cancelled, crash, or are cut off with their host; brokers restart and hang; the group is reset; wall clocks step;
messages come. The model holds these:

- progress never passes a message that no listener has finished with and no retry topic has;
- of an orderly queue one message is at work at a time, and none is skipped;
- in the end each message was handled, and nobody is a member who has left.

A failure names its seed and the shortest history that still fails. ``CMQ_LONG=1`` runs ``CMQ_COUNT`` histories
(10,000), with ``CMQ_SEED`` for the first.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import defaultdict
from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple

import pytest

from cometmq.client.pull.pull_engine import PullEngine
from cometmq.client.push.listeners import Outcome
from cometmq.client.push.push_engine import PushEngine
from cometmq.client.settings import PullSettings
from cometmq.errors import Error
from cometmq.remoting.bodies.heartbeat import ConsumeFromWhere
from cometmq.remoting.bodies.offset_changes import ResetOffsetBody
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.members import request
from support.fake_cluster import FakeBroker, FakeCluster, FakeNetwork, Record
from support.push_engines import consumer, queue_of
from support.virtual_loop import VirtualLoop, run_virtual

LONG = bool(os.environ.get("CMQ_LONG"))
COUNT = int(os.environ.get("CMQ_COUNT", "10000" if LONG else "100"))
FIRST_SEED = int(os.environ.get("CMQ_SEED", str(time.time_ns() % 1_000_000_000) if LONG else "20261123"))
QUEUES = 3
MEMBERS_MAX = 4
QUIET_S = 400
"""By then locks, members and rests have run out, and what was put back has come again."""
SHORT_S = 12.0

EVENTS = (
    *["publish"] * 6,
    *["join"] * 5,
    *["leave"] * 2,
    "cancelled leave",
    "crash",
    "host lost",
    "reset",
    "restart",
    "hang",
    "clock",
)


class Event(NamedTuple):
    """What happens, so long after the one before; ``pick`` chooses whom it happens to."""

    after_ms: int
    what: str
    pick: int


class Broken(AssertionError):
    """The model was contradicted."""


def history_of(seed: int) -> list[Event]:
    chooser = Random(seed)
    events = [Event(0, "publish", chooser.randrange(1 << 16)), Event(0, "join", chooser.randrange(1 << 16))]
    for _ in range(chooser.randrange(6, 26)):
        after_ms = chooser.choice((0, 1, 3, 20, 300, 1_000, 4_000, 11_000, 25_000))
        events.append(Event(after_ms, chooser.choice(EVENTS), chooser.randrange(1 << 16)))
    return events


class Progress(dict[tuple[str, str, int], int]):
    """The broker's progress; each commit is held against the model."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self._model = model

    def __setitem__(self, key: tuple[str, str, int], offset: int) -> None:
        self._model.committed(key, offset)
        super().__setitem__(key, offset)


class Model:
    """What was delivered and finished, by queue and offset."""

    def __init__(self, *, is_orderly: bool) -> None:
        self.is_orderly = is_orderly
        self.troubles: list[str] = []
        self.finished: dict[int, set[int]] = defaultdict(set)
        self.at_work: dict[int, str] = {}
        self.next: dict[int, int] = {}

    def committed(self, key: tuple[str, str, int], offset: int) -> None:
        _, topic, queue_id = key
        missing = sorted(set(range(offset)) - self.finished[queue_id]) if topic == "T" else []
        if missing:
            self.troubles.append(f"queue {queue_id} was committed to {offset}, and nobody has finished {missing[:5]}")

    def begin(self, who: str, queue_id: int, offset: int) -> None:
        if self.is_orderly:
            other = self.at_work.get(queue_id)
            if other is not None:
                self.troubles.append(f"{who} is at {offset} of queue {queue_id}, where {other} is at work")
            if offset > self.next.get(queue_id, 0):
                self.troubles.append(f"{who} skips from {self.next.get(queue_id, 0)} to {offset} of queue {queue_id}")
            self.at_work[queue_id] = f"{who} at {offset}"

    def end(self, queue_id: int, offset: int, *, is_finished: bool) -> None:
        self.at_work.pop(queue_id, None)
        if is_finished:
            self.finished[queue_id].add(offset)
            self.next[queue_id] = max(self.next.get(queue_id, 0), offset + 1)

    def owing(self, sizes: Sequence[int]) -> list[str]:
        """Return what is not right yet in the end."""
        return [
            f"{offset} of queue {queue_id} was never finished"
            for queue_id, size in enumerate(sizes)
            for offset in range(size)
            if offset not in self.finished[queue_id]
        ]


class Member:
    """A consumer, and what a test may do to it."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.engine: PushEngine | PullEngine
        self.is_gone = False
        self.has_started = asyncio.Event()

    @property
    def network(self) -> FakeNetwork:
        instance: Any = self.engine._instance
        network: FakeNetwork = instance.network
        return network

    async def listen(self, message: Any) -> Outcome | None:
        world, model = self.world, self.world.model
        if message.stored_topic != "T":
            return None
        queue_id, offset = message.queue_id, message.queue_offset
        model.begin(self.name, queue_id, offset)
        is_finished = False
        try:
            await asyncio.sleep(world.chooser.choice((0, 0, 0.001, 0.05, 2)))
            fails = world.chooser.random() < 0.03
            is_finished = not fails and not self.is_gone
            return Outcome.RETRY if fails else None
        finally:
            model.end(queue_id, offset, is_finished=is_finished)

    async def pull_on(self) -> None:
        """Poll, work on what comes, and come back for more: then it is finished with."""
        world, engine = self.world, self.engine
        assert isinstance(engine, PullEngine)
        while engine.state.name == "RUNNING":
            # What was polled before counts as finished by this call.
            messages = await engine.poll(1_000)
            for message in messages:
                world.model.begin(self.name, message.queue_id, message.queue_offset)
                await asyncio.sleep(world.chooser.choice((0, 0, 0.01)))
            if not self.is_gone:
                for message in messages:
                    world.model.end(message.queue_id, message.queue_offset, is_finished=True)


class World:
    """A cluster, the group's members, and the model."""

    def __init__(self, loop: VirtualLoop, seed: int) -> None:
        self.loop = loop
        self.chooser = Random(seed)
        self.kind = self.chooser.choice(("mixed", "push", "orderly", "pull"))
        self.model = Model(is_orderly=self.kind == "orderly")
        self.cluster = FakeCluster(loop)
        self.broker: FakeBroker = self.cluster.brokers[0]
        self.broker.create("T", QUEUES)
        self.broker.offsets = Progress(self.model)
        self.members: list[Member] = []
        self.shift_ms = 0
        self.made = 0
        self.beside: list[asyncio.Task[Any]] = []
        append = self.broker.append

        def appended(topic: str, queue_id: int, body: bytes, *given: Any, **more: Any) -> Record:
            if topic != "T":  # it comes again from there, after its delay
                self.model.finished[int(body.split(b"-")[0])].add(int(body.split(b"-")[1]))
            return append(topic, queue_id, body, *given, **more)

        self.broker.append = appended  # type: ignore[method-assign]

    @property
    def sizes(self) -> list[int]:
        return [len(queue) for queue in self.broker.topics["T"]]

    def now_ms(self) -> int:
        return self.loop.now_ms() + self.shift_ms

    def pick(self, event: Event) -> Member | None:
        return self.members.pop(event.pick % len(self.members)) if self.members else None

    async def happen(self, event: Event) -> None:
        await asyncio.sleep(event.after_ms / 1000)
        if self.model.troubles:
            raise Broken(self.model.troubles[0])
        await getattr(self, "_" + event.what.replace(" ", "_"))(event)

    async def _publish(self, event: Event) -> None:
        for _ in range(event.pick % 60):
            queue_id = self.chooser.randrange(QUEUES)
            self.broker.append("T", queue_id, b"%d-%d" % (queue_id, self.sizes[queue_id]))

    async def _join(self, event: Event) -> None:
        if len(self.members) >= MEMBERS_MAX:
            return
        self.made += 1
        kind = ("push", "pull")[event.pick % 2] if self.kind == "mixed" else self.kind
        member = Member(self, f"{kind}-{self.made}")
        if kind == "pull":
            member.engine = PullEngine(
                PullSettings(
                    group="g",
                    name_servers=("ns:9876",),
                    client_ip="10.0.0.9",
                    consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
                    auto_commit_interval_ms=1_000,
                ),
                now_ms=self.now_ms,
                network_factory=self.cluster.factory,
            )
            await member.engine.subscribe("T")
        else:
            member.engine = consumer(
                self.cluster, member.listen, orderly=kind == "orderly", more={"now_ms": self.now_ms}
            )
        self.beside.append(asyncio.ensure_future(self._run(member)))
        self.members.append(member)

    async def _run(self, member: Member) -> None:
        try:
            try:
                await member.engine.start()
            finally:
                member.has_started.set()
            if isinstance(member.engine, PullEngine):
                await member.pull_on()
        except Error:
            if not member.is_gone and member.engine.state.name == "RUNNING":
                raise

    async def _leave(self, event: Event) -> None:
        if (member := self.pick(event)) is not None:
            self.beside.append(asyncio.ensure_future(self._close(member)))

    async def _cancelled_leave(self, event: Event) -> None:
        if (member := self.pick(event)) is not None:
            await member.has_started.wait()
            closing = asyncio.ensure_future(self._close(member))
            for _ in range(event.pick % 20):
                await asyncio.sleep(0 if event.pick % 3 else 0.0005)
            closing.cancel()
            self.beside.append(closing)

    @staticmethod
    async def _close(member: Member) -> None:
        await member.has_started.wait()
        if isinstance(member.engine, PullEngine):
            # What it is at is not finished with: another thread closes.
            member.is_gone = True
            await member.engine.close(commit=False)
        else:
            await member.engine.close()

    async def _crash(self, event: Event) -> None:
        self._end(event, host_too=False)

    async def _host_lost(self, event: Event) -> None:
        self._end(event, host_too=True)

    def _end(self, event: Event, *, host_too: bool) -> None:
        """End a member's process: what it does from now on happens nowhere."""
        member = self.pick(event)
        if member is None:
            return
        if not member.has_started.is_set():
            self.members.append(member)
            return
        member.is_gone = True
        member.network.crash(host_too=host_too)
        for queue_id, who in list(self.model.at_work.items()):
            if who.startswith(f"{member.name} "):
                del self.model.at_work[queue_id]
        # Its listeners and loops would go on in this process; nothing that they do counts.
        member.listen = self._dead  # type: ignore[method-assign]
        self.beside.append(asyncio.ensure_future(self._bury(member)))

    @staticmethod
    async def _dead(message: object) -> Outcome:
        await asyncio.sleep(100_000)
        return Outcome.RETRY

    @staticmethod
    async def _bury(member: Member) -> None:
        if isinstance(member.engine, PullEngine):
            await member.engine.close(commit=False)
        else:
            await member.engine.close(timeout_ms=0)

    async def _reset(self, event: Event) -> None:
        """As our broker does it: it moves the progress and tells the members."""
        if self.kind in ("pull", "mixed"):
            return  # pull consumers keep their places
        queue_id = event.pick % QUEUES
        size = self.sizes[queue_id]
        place = event.pick // QUEUES % (size + 1)
        if set(range(place)) - self.model.finished[queue_id]:
            return  # forward resets skip messages on purpose
        dict.__setitem__(self.broker.offsets, ("g", "T", queue_id), place)
        body = ResetOffsetBody(offsets={queue_of(queue_id): place}).to_json()
        command = request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, topic="T", group="g", timestamp=1, body=body)
        known = list(self.broker.groups.get("g", {}).values())
        if not known:
            return
        for member in known:
            member.network.receive(self.broker.address, command.as_oneway())

    async def _restart(self, event: Event) -> None:
        broker = self.cluster.stop(self.broker.address)
        self.broker.groups.clear()
        await asyncio.sleep(event.pick % 5)
        self.cluster.servers[self.broker.address] = broker

    async def _hang(self, event: Event) -> None:
        self.broker.is_silent = True
        await asyncio.sleep(event.pick % 40)
        self.broker.is_silent = False

    async def _clock(self, event: Event) -> None:
        self.shift_ms += (3_600_000, -3_600_000, 86_400_000)[event.pick % 3]

    async def settle(self) -> None:
        """Let everything come to rest with one member that stays, and hold the end against the model."""
        await self._join(Event(0, "join", 0))
        end_s = self.loop.time() + 10 * QUIET_S
        while (owing := self.model.owing(self.sizes)) and self.loop.time() < end_s:
            await asyncio.sleep(5)
            if self.model.troubles:
                raise Broken(self.model.troubles[0])
        if owing:
            raise Broken(owing[0])
        while self.members:
            await self._close(self.members.pop())
        await asyncio.gather(*self.beside, return_exceptions=True)
        for ended in self.beside:
            if not ended.cancelled() and isinstance(ended.exception(), AssertionError):
                raise Broken(str(ended.exception()))
        left = self.broker.groups.get("g", {})
        if any(not member.network.is_cut for member in left.values()):
            raise Broken(f"members stayed: {list(left)}")


def run_history(seed: int, events: Sequence[Event]) -> None:
    """Run a history.

    Raises:
        Broken: the model was contradicted.
    """

    async def main(loop: VirtualLoop) -> None:
        world = World(loop, seed)
        for event in events:
            await world.happen(event)
        await world.settle()

    run_virtual(main, limit_s=1_000_000)


def trouble_of(seed: int, events: Sequence[Event]) -> str | None:
    try:
        run_history(seed, events)
    except AssertionError as error:
        return str(error) or repr(error)
    return None


def shortest(seed: int, events: list[Event], *, limit_s: float = 60) -> list[Event]:
    """Leave out what is not needed for a failure."""
    end_s = time.monotonic() + limit_s
    size = max(1, len(events) // 2)
    while time.monotonic() < end_s:
        for begin in range(0, len(events), size):
            fewer = events[:begin] + events[begin + size :]
            if trouble_of(seed, fewer) is not None:
                events = fewer
                break
        else:
            if size == 1:
                break
            size //= 2
    return events


@pytest.mark.timeout(0 if LONG else 120)
def test_random_histories() -> None:
    begun_s = time.monotonic()
    for seed in range(FIRST_SEED, FIRST_SEED + COUNT):
        if not LONG and time.monotonic() - begun_s > SHORT_S:
            break
        events = history_of(seed)
        trouble = trouble_of(seed, events)
        if trouble is not None:
            found = shortest(seed, events)
            lines = "\n".join(f"  {event}" for event in found)
            pytest.fail(f"CMQ_SEED={seed}: {trouble_of(seed, found) or trouble}\n{lines}")
