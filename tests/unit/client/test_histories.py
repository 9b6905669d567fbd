"""The checker: random histories of a group on virtual time, against a model of what may be delivered and committed.

A history is a list of events made of a seed. Members of push, orderly, pull, popping and simple consumers join, leave,
have their close cancelled, close themselves from their listener, crash, or are cut off with their host; calls and
listeners are cancelled, fail, hang for a while, give messages up; members are suspended; brokers, one or two, restart
and hang; the group is reset, by notices to its members or by its pulls, and changes from pulls to pops and back; wall
clocks step; messages come. The model (:mod:`support.history_model`) holds these:

- progress never passes a message that nobody has finished with and no retry topic has, in retry topics too;
- of an orderly queue one message is at work at a time, and none is skipped;
- a popped message that was acknowledged in time is not redelivered; none is a dead letter before it was tried
  often enough;
- in the end each message was handled or given up, each that a reset moved back came again, progress is at the queues'
  ends, and nobody is a member who has left.

A failure names its seed and the shortest history that still fails; ``PYTHONHASHSEED=0`` makes it nearly the same each
time. ``CMQ_LONG=1`` (``make histories-long``) runs ``CMQ_COUNT`` histories, with ``CMQ_SEED`` for the first.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from random import Random
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest

from cometmq.client.instance import name_servers, routes
from cometmq.client.pop.simple_engine import SimpleEngine
from cometmq.client.pop.simple_settings import SimpleSettings
from cometmq.client.pull.pull_engine import PullEngine
from cometmq.client.push.listeners import Outcome
from cometmq.client.push.push_engine import PushEngine
from cometmq.client.settings import PullSettings
from cometmq.errors import Error
from cometmq.remoting.bodies.assignments import MessageRequestMode
from cometmq.remoting.bodies.heartbeat import ConsumeFromWhere
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.remoting.bodies.offset_changes import ResetOffsetBody
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.members import request
from support.fake_cluster import FakeBroker, FakeCluster, FakeNetwork, Record
from support.history_model import GROUP, TOPIC, Model, Place, Progress
from support.push_engines import consumer
from support.virtual_loop import VirtualLoop, run_virtual

LONG = bool(os.environ.get("CMQ_LONG"))
COUNT = int(os.environ.get("CMQ_COUNT", "10000" if LONG else "100"))
FIRST_SEED = int(os.environ.get("CMQ_SEED", str(time.time_ns() % 1_000_000_000) if LONG else "20261123"))
QUEUES = 3
MEMBERS_MAX = 4
TRIES = 3
QUIET_S = 400
"""By then locks, members and rests have run out, and messages that were put back have been redelivered."""
SHORT_S = 8.0
KINDS = ("mixed", "push", "orderly", "pull", "pop", "simple")
FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET

EVENTS = (
    *["publish"] * 7,
    *["join"] * 6,
    *["leave"] * 2,
    "cancelled leave",
    "own leave",
    "crash",
    "host lost",
    "interrupt",
    "suspend",
    "notified reset",
    "pulled reset",
    "pulled reset",
    "mode",
    "restart",
    "hang",
    "clock",
)


class Event(NamedTuple):
    """One event, so long after the one before; ``pick`` is for whatever it has to choose."""

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


class Member:
    """A consumer, and what a test may do to it."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.engine: PushEngine | PullEngine | SimpleEngine
        self.is_gone = False
        self.is_leaving = False
        self.has_started = asyncio.Event()
        self.call: asyncio.Task[Any] | None = None

    @property
    def network(self) -> FakeNetwork:
        instance: Any = self.engine._instance
        network: FakeNetwork = instance.network
        return network

    # --- Push ---------------------------------------------------------------------------------------------------------

    async def listen(self, message: Any) -> Outcome | None:
        model = self.world.model
        if self.is_gone:  # its process has ended; its actions have no effect
            await asyncio.sleep(100_000)
        model.begin(self.name, message)
        is_done = False
        try:
            outcome = await self._work()
            if model.failures[message.body_bytes] >= 2 * TRIES:
                outcome = None  # an orderly queue's retries take longer each time
            is_done = outcome is None and not self.is_gone
            if outcome is not None and not self.is_gone:
                model.failed(message, is_given_up=outcome is Outcome.DEAD_LETTER)
            return outcome
        except asyncio.CancelledError:
            if not self.is_gone:
                model.failed(message, is_given_up=False)
            raise
        finally:
            model.end(self.name, message, is_done=is_done)

    async def _work(self) -> Outcome | None:
        chooser = self.world.chooser
        if self.is_leaving and chooser.random() < 0.3:
            await self.engine.close()
        await asyncio.sleep(chooser.choice((0, 0, 0, 0.001, 0.05, 2, 2 if chooser.random() < 0.9 else 25)))
        draw = chooser.random()
        if draw < 0.005:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)
        if draw < 0.01:
            return Outcome.DEAD_LETTER
        return Outcome.RETRY if draw < self.world.failing else None

    # --- Those that are asked -----------------------------------------------------------------------------------------

    async def _call(self, work: Any) -> Any:
        """Await a call that may be interrupted; None where it was."""
        self.call = asyncio.ensure_future(work)
        try:
            return await self.call
        except asyncio.CancelledError:
            if not self.call.cancelled():
                raise
            return None
        finally:
            self.call = None

    async def poll_on(self) -> None:
        """Poll, work on what comes, and come back for more: then it is finished with."""
        world, engine = self.world, self.engine
        assert isinstance(engine, PullEngine)
        polled: list[Any] = []
        while engine.state.name == "RUNNING":
            # This call finishes the messages of the poll before.
            for message in polled:
                world.model.end(self.name, message, is_done=not self.is_gone)
            polled = await self._call(engine.poll(1_000)) or []
            for message in polled:
                world.model.begin(self.name, message)
                await asyncio.sleep(world.chooser.choice((0, 0, 0.01)))

    async def receive_on(self) -> None:
        """Receive, work on each message, and acknowledge it or not."""
        world, engine = self.world, self.engine
        assert isinstance(engine, SimpleEngine)
        while engine.state.name == "RUNNING":
            received = await self._unless_out(self._call(engine.receive(8, invisible_s=30, wait_s=20)))
            for message in received or ():
                world.model.begin(self.name, message)
            for message in received or ():  # others may have had it, and be done with it, before its turn comes
                await asyncio.sleep(world.chooser.choice((0, 0, 0.01, 1, 2)))
                await self._unless_out(self._settle(message))

    async def _unless_out(self, work: Any) -> Any:
        """Await a call; where the broker is out of reach, None, a moment later."""
        try:
            return await work
        except Error:
            if self.engine.state.name == "RUNNING":
                await asyncio.sleep(1)

    async def _settle(self, message: Any) -> None:
        draw, engine = self.world.chooser.random(), self.engine
        assert isinstance(engine, SimpleEngine)
        if draw < 0.05 or self.is_gone:
            return  # it is redelivered
        if draw < 0.1:
            await engine.extend(message, invisible_s=self.world.chooser.choice((0, 3)))
            return
        if draw < 0.15:
            await engine.extend(message, invisible_s=60)
        self.world.model.end(self.name, message, is_done=True)
        await engine.ack([message])


class World:
    """A cluster, the group's members, and the model."""

    def __init__(self, loop: VirtualLoop, seed: int) -> None:
        self.loop = loop
        self.chooser = Random(seed)
        self.kind = self.chooser.choice(KINDS)
        self.failing = self.chooser.choice((0.03, 0.03, 0.5))
        # Of popped messages each delivery counts as a try, also by a member that crashes before its listener begins.
        tries_max = 0 if self.kind == "pop" else TRIES
        self.model = Model(is_orderly=self.kind == "orderly", tries_max=tries_max)
        self.cluster = FakeCluster(loop, brokers=self.chooser.choice((1, 1, 2)))
        self.brokers = self.cluster.brokers
        for broker in self.brokers:
            self._watch(broker)
        self.members: list[Member] = []
        self.leaving: list[Member] = []
        """Those whose ``close()`` was cancelled."""
        self.shift_ms = 0
        self.made = 0
        self.beside: list[asyncio.Task[Any]] = []

    def _watch(self, broker: FakeBroker) -> None:
        broker.create(TOPIC, QUEUES)
        broker.offsets = Progress(self.model, broker)
        model, append = self.model, broker.append

        def appended(*given: Any, **more: Any) -> Record:
            record = append(*given, **more)
            model.stored(record)
            return record

        class Acknowledged(list[bytes]):
            def append(self, body: bytes) -> None:
                if body not in model.sent_again:
                    model.acknowledged.add(body)

        broker.append = appended  # type: ignore[method-assign]
        if self.kind in ("pop", "simple"):
            broker.pops.modes[TOPIC] = MessageRequestMode.POP
            broker.pops.acked = Acknowledged()

    def now_ms(self) -> int:
        return self.loop.now_ms() + self.shift_ms

    def pick(self, event: Event) -> Member | None:
        return self.members.pop(event.pick % len(self.members)) if self.members else None

    def broker_of(self, event: Event) -> FakeBroker:
        return self.brokers[event.pick % len(self.brokers)]

    async def happen(self, event: Event) -> None:
        await asyncio.sleep(event.after_ms / 1000)
        self.require_no_trouble()
        await getattr(self, "_" + event.what.replace(" ", "_"))(event)

    def require_no_trouble(self) -> None:
        if self.model.troubles:
            raise Broken(self.model.troubles[0])

    def _beside(self, work: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.ensure_future(work)
        self.beside.append(task)
        return task

    # --- Messages and members -----------------------------------------------------------------------------------------

    async def _publish(self, event: Event) -> None:
        for _ in range(event.pick % 60):
            broker = self.chooser.choice(self.brokers)
            place = Place(broker.name, self.chooser.randrange(QUEUES))
            queue = broker.topics[TOPIC][place.queue_id]
            broker.append(TOPIC, place.queue_id, place.body(len(queue)))

    async def _join(self, event: Event) -> None:
        if len(self.members) >= MEMBERS_MAX:
            return
        self.made += 1
        kind = ("push", "pull")[event.pick % 2] if self.kind == "mixed" else self.kind
        member = Member(self, f"{kind}-{self.made}")
        member.engine = await self._engine(kind, member)
        self._beside(self._run(member))
        self.members.append(member)

    async def _engine(self, kind: str, member: Member) -> PushEngine | PullEngine | SimpleEngine:
        given: Any = {
            "group": GROUP,
            "name_servers": ("ns:9876",),
            "client_ip": "10.0.0.9",
            "instance_name": member.name,  # the usual one has the clock in it, by which members are sorted
            "consume_from_where": FIRST,
        }
        reach: Any = {"now_ms": self.now_ms, "network_factory": self.cluster.factory}
        if kind == "pull":
            pulling = PullEngine(PullSettings(**given, auto_commit_interval_ms=1_000), **reach)
            await pulling.subscribe(TOPIC)
            await pulling.subscribe(f"%RETRY%{GROUP}")
            return pulling
        if kind == "simple":
            simple = SimpleEngine(SimpleSettings(**given), **reach)
            await simple.subscribe(TOPIC, None)
            return simple
        return consumer(
            self.cluster,
            member.listen,
            orderly=kind == "orderly",
            more={"now_ms": self.now_ms},
            instance_name=member.name,
            max_reconsume_times=TRIES,
            client_rebalance=kind != "pop",
            pop_extend=kind == "pop" and self.chooser.random() < 0.5,
        )

    async def _run(self, member: Member) -> None:
        try:
            try:
                await member.engine.start()
            finally:
                member.has_started.set()
            if isinstance(member.engine, PullEngine):
                await member.poll_on()
            elif isinstance(member.engine, SimpleEngine):
                await member.receive_on()
        except Error:
            if not member.is_gone and member.engine.state.name == "RUNNING":
                raise

    async def _leave(self, event: Event) -> None:
        if (member := self.pick(event)) is not None:
            self._beside(self._close(member))

    async def _own_leave(self, event: Event) -> None:
        """A listener closes its own consumer, sooner or later; the rest is closed at the end."""
        if self.members:
            self.members[event.pick % len(self.members)].is_leaving = self.kind in ("push", "orderly", "pop")

    async def _cancelled_leave(self, event: Event) -> None:
        if (member := self.pick(event)) is not None:
            await member.has_started.wait()
            closing = self._beside(self._close(member))
            self.leaving.append(member)
            for _ in range(1 + event.pick % 20):  # a call that never began closes nothing
                await asyncio.sleep(0 if event.pick % 3 else 0.0005)
            closing.cancel()

    @staticmethod
    async def _close(member: Member) -> None:
        await member.has_started.wait()
        if isinstance(member.engine, PullEngine):
            # Its current messages are not finished: another thread closes.
            member.is_gone = True
            await member.engine.close(commit=False)
        else:
            await member.engine.close()

    async def _crash(self, event: Event) -> None:
        self._end(event, host_too=False)

    async def _host_lost(self, event: Event) -> None:
        self._end(event, host_too=True)

    def _end(self, event: Event, *, host_too: bool) -> None:
        """End a member's process: its actions have no effect from now on."""
        member = self.pick(event)
        if member is None:
            return
        if not member.has_started.is_set():
            self.members.append(member)
            return
        member.is_gone = True
        member.network.crash(host_too=host_too)
        self.model.gone(member.name)
        self._beside(self._bury(member))

    @staticmethod
    async def _bury(member: Member) -> None:
        if isinstance(member.engine, PullEngine):
            await member.engine.close(commit=False)
        elif isinstance(member.engine, PushEngine):
            await member.engine.close(timeout_ms=0)
        else:
            await member.engine.close()

    async def _interrupt(self, event: Event) -> None:
        """Cancel the call that a member waits in."""
        calls = [member.call for member in self.members if member.call is not None]
        if calls:
            calls[event.pick % len(calls)].cancel()

    async def _suspend(self, event: Event) -> None:
        pushing = [member for member in self.members if isinstance(member.engine, PushEngine)]
        if not pushing:
            return
        member = pushing[event.pick % len(pushing)]
        engine = member.engine
        assert isinstance(engine, PushEngine)

        async def resume(engine: PushEngine) -> None:
            await asyncio.sleep(event.pick % 40)
            await engine.resume()

        if member.has_started.is_set() and engine.state.name == "RUNNING":
            engine.suspend()
            self._beside(resume(engine))

    # --- The group ----------------------------------------------------------------------------------------------------

    def _place_to_reset(self, event: Event) -> tuple[FakeBroker, Place, int, int] | None:
        """Return a queue, and an offset up to which all is finished: a reset beyond skips messages on purpose."""
        broker, queue_id = self.broker_of(event), event.pick % QUEUES
        place, queue = Place(broker.name, queue_id), broker.topics[TOPIC][queue_id]
        offset = event.pick // QUEUES % (len(queue) + 1)
        if any(record.body not in self.model.done for record in queue[:offset]):
            return None
        return broker, place, offset, len(queue)

    async def _notified_reset(self, event: Event) -> None:
        """As a broker of upstream's does it: it tells the members."""
        found = self._place_to_reset(event)
        if found is None or self.kind not in ("push", "orderly"):
            return  # pull consumers keep their places, and brokers those of popped queues
        broker, place, offset, _ = found
        known = list(broker.groups.get(GROUP, {}).values())
        if not known or broker not in self.cluster.brokers or broker.is_silent:
            return
        queue = MessageQueue(topic=TOPIC, broker_name=broker.name, queue_id=place.queue_id)
        body = ResetOffsetBody(offsets={queue: offset}).to_json()
        command = request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, topic=TOPIC, group=GROUP, timestamp=1, body=body)
        for member in known:
            member.network.receive(broker.address, command.as_oneway())
        self.model.again.pop(place, None)  # the messages expected after an earlier reset may lie before this one

    async def _pulled_reset(self, event: Event) -> None:
        """As our broker does it: it moves the progress, and answers pulls from elsewhere with the reset."""
        found = self._place_to_reset(event)
        if found is None or self.kind in ("pop", "simple"):
            return
        broker, place, offset, end = found
        if broker in self.cluster.brokers:
            broker.reset(GROUP, TOPIC, place.queue_id, offset)
            self.model.reset(place, offset, end)

    async def _mode(self, event: Event) -> None:
        """Have the group pop what it pulled, or the reverse; acknowledged messages may be redelivered then."""
        if self.kind != "pop":
            return
        for broker in self.brokers:
            is_popped = broker.pops.modes[TOPIC] is MessageRequestMode.POP
            broker.pops.modes[TOPIC] = MessageRequestMode.PULL if is_popped else MessageRequestMode.POP
            broker.pops.acked = []
        self.model.acknowledged.clear()

    # --- The rest of the world ----------------------------------------------------------------------------------------

    async def _restart(self, event: Event) -> None:
        broker = self.broker_of(event)
        if broker not in self.cluster.brokers:
            return
        self.cluster.stop(broker.address)
        broker.groups.clear()

        async def start() -> None:
            await asyncio.sleep(event.pick % 5)
            self.cluster.servers[broker.address] = broker

        await self._beside(start())

    async def _hang(self, event: Event) -> None:
        broker = self.broker_of(event)
        broker.is_silent = True
        await asyncio.sleep(event.pick % 40)
        broker.is_silent = False

    async def _clock(self, event: Event) -> None:
        self.shift_ms += (3_600_000, -3_600_000, 86_400_000)[event.pick % 3]

    # --- The end ------------------------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Let everything come to rest with one member that stays, and hold the end against the model."""
        for member in self.members:
            member.is_leaving = False
        while len(self.members) >= MEMBERS_MAX:
            await self._close(self.members.pop())
        await self._join(Event(0, "join", 0))
        await self._until(lambda: self.model.owing(self.brokers))
        if self.kind in ("push", "orderly", "pull", "mixed"):
            await self._until(lambda: self.model.behind(self.brokers))
        # A close whose caller was cancelled goes on, as long as listeners may take: another call waits for it.
        for member in (*self.members, *self.leaving):
            await self._close(member)
        await asyncio.gather(*self.beside, return_exceptions=True)
        for ended in self.beside:
            if not ended.cancelled() and isinstance(ended.exception(), AssertionError):
                raise Broken(str(ended.exception()))
        for broker in self.brokers:
            left = broker.groups.get(GROUP, {})
            if any(not member.network.is_cut for member in left.values()):
                raise Broken(f"members stayed: {list(left)}")

    async def _until(self, owing: Any) -> None:
        # Popped messages that were tried often enough stay hidden for up to two hours, until they are four hours old.
        end_s = self.loop.time() + (10 * QUIET_S if self.kind != "pop" else 30_000)
        while (text := owing()) is not None and self.loop.time() < end_s:
            await asyncio.sleep(5 if self.kind != "pop" else 60)
            self.require_no_trouble()
        if text is not None:
            raise Broken(text)


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

    with ExitStack() as patches:
        for module in (name_servers, routes):
            patches.enter_context(patch.object(module, "Random", lambda: Random(seed)))
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
        if LONG and (seed - FIRST_SEED) % 1_000 == 999:
            print(f"{seed - FIRST_SEED + 1} histories, the first of seed {FIRST_SEED}", flush=True)
        if trouble is not None:
            found = shortest(seed, events)
            lines = "\n".join(f"  {event}" for event in found)
            pytest.fail(f"CMQ_SEED={seed}: {trouble_of(seed, found) or trouble}\n{lines}")
