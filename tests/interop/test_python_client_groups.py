"""Java and Python members in one group: they share its queues out alike, and each message is handled once or more."""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import cometmq.admin
from cometmq.client import MessageQueue, Outcome, PushConsumer, ReceivedMessage
from cometmq.client.group.allocation import (
    AllocateStrategy,
    Averagely,
    AveragelyByCircle,
    ByConfig,
    ByMachineRoom,
    ConsistentHash,
    MachineRoomNearby,
)
from interop.landscapes import beside_java
from interop.members import (
    Seen,
    as_arguments,
    await_progress,
    create_topic,
    keyed,
    keys_of,
    producer,
    push,
    queue_of,
    send_all,
)
from interop.patterns import MessageSpec
from interop.sites import Peer
from interop.waiting import eventually

QUEUES = 8
ROOMS = ("west", "east")

Owners = dict[str, frozenset[str]]
"""Member to the ``broker:queue`` that it has."""


class Rooms:
    """As ``Strategies.java`` has them: brokers are ``room@name``, and members' instances ``room@name``."""

    def broker_deploy_in(self, queue: MessageQueue) -> str:
        return queue.broker_name.split("@")[0]

    def consumer_deploy_in(self, client_id: str) -> str:
        return client_id.split("@")[1]


@dataclass(frozen=True, slots=True)
class Strategy:
    """One strategy of upstream's, as each side is configured.

    Attributes:
        spec: for the Java client.
        make: for ours; gets the queues that are fixed for the member.
        is_fixed: each member's queues are configured.
        needs_rooms: it goes by the rooms of brokers and members.
    """

    spec: Mapping[str, object]
    make: Callable[[Sequence[MessageQueue]], AllocateStrategy]
    is_fixed: bool = False
    needs_rooms: bool = False


STRATEGIES = {
    "AVG": Strategy({"name": "AVG"}, lambda _: Averagely()),
    "AVG_BY_CIRCLE": Strategy({"name": "AVG_BY_CIRCLE"}, lambda _: AveragelyByCircle()),
    "CONSISTENT_HASH": Strategy({"name": "CONSISTENT_HASH"}, lambda _: ConsistentHash()),
    "CONFIG": Strategy({"name": "CONFIG"}, ByConfig, is_fixed=True),
    "MACHINE_ROOM": Strategy(
        {"name": "MACHINE_ROOM", "rooms": ROOMS}, lambda _: ByMachineRoom(ROOMS), needs_rooms=True
    ),
    "MACHINE_ROOM_NEARBY": Strategy(
        {"name": "MACHINE_ROOM_NEARBY"}, lambda _: MachineRoomNearby(Averagely(), Rooms()), needs_rooms=True
    ),
}


class MixedGroup:
    """Members of both kinds in one group; leaving the context ends ours."""

    def __init__(self, site: Peer, topic: str, group: str, strategy: Strategy | None = None) -> None:
        self._site = site
        self._topic = topic
        self.group = group
        self._strategy = strategy
        self._ours: dict[str, PushConsumer] = {}
        self._theirs: list[str] = []
        self._ever_theirs: list[str] = []
        self._life = contextlib.ExitStack()
        self.seen = Seen()

    def __enter__(self) -> MixedGroup:
        return self

    def __exit__(self, *_: object) -> None:
        self._life.close()

    def _instance(self, name: str) -> str:
        """The second part of the client id: nobody else's, not even one's that is about to end."""
        return f"{name}+{self.group}"

    def add_ours(self, name: str, *, fixed: Sequence[MessageQueue] = (), **options: Any) -> None:
        if self._strategy is not None:
            options["allocate_strategy"] = self._strategy.make(fixed)
        consumer = push(self._site, self.group, self.seen, member=name, instance_name=self._instance(name), **options)
        self._life.enter_context(consumer.subscribe(self._topic))
        self._ours[name] = consumer

    def add_theirs(self, name: str, *, fixed: Sequence[MessageQueue] = (), **options: Any) -> None:
        if self._strategy is not None:
            queues = [f"{one.topic}:{one.broker_name}:{one.queue_id}" for one in fixed]
            options["strategy"] = {**self._strategy.spec, **({"queues": queues} if self._strategy.is_fixed else {})}
        options["instance"] = self._instance(name)
        self._site.client.start_consumer(name, self.group, {self._topic: "*"}, **options)
        self._theirs.append(name)
        self._ever_theirs.append(name)

    def leave(self, name: str) -> None:
        """One goes, as clients do that are ended cleanly."""
        if name in self._ours:
            self._ours.pop(name).close()
        else:
            self._theirs.remove(name)
            self._site.client.stop_consumers(name)

    def owners(self) -> Owners:
        """Return the current queues of each member, as it reports them."""
        found = {
            name: frozenset(
                f"{queue.broker_name}:{queue.queue_id}" for queue in consumer.queues if queue.topic == self._topic
            )
            for name, consumer in self._ours.items()
        }
        if self._theirs:
            theirs = self._site.client.owned(*self._theirs, topic=self._topic)
            found |= {name: frozenset(queues) for name, queues in theirs.items()}
        return found

    def settle(self, queues: int = QUEUES) -> Owners:
        """Waits until the members have among them each queue once, and nobody has none."""
        return eventually(self.owners, lambda owners: is_divided(owners, queues), step_s=0.1)

    def client_ids(self) -> dict[str, str]:
        """Member to client id, as soon as a broker knows them all and nobody else."""
        wanted = set(self._ours) | set(self._theirs)
        with cometmq.admin.connect(namesrv=self._site.namesrv.address) as admin:

            def names() -> dict[str, str]:
                members = admin.groups.members(self.group)
                connections = () if members is None else members.connections
                return {one.client_id.split("@", 1)[1].rsplit("+")[0]: one.client_id for one in connections}

            return eventually(names, lambda found: set(found) == wanted)

    def handled(self) -> list[str]:
        """The keys of all that members of either kind have consumed, ever."""
        rows = self._site.client.ask("consumer_rows", names=self._ever_theirs, count=0, timeout_ms=0)
        return [row["keys"] for row in rows if row["consumed"]] + [one.key for one in self.seen.all]

    def wait_for(self, specs: Sequence[MessageSpec]) -> Counter[str]:
        """Waits until each message was handled; how often each was."""
        wanted = set(keys_of(specs))
        return Counter(eventually(self.handled, lambda keys: wanted <= set(keys), step_s=0.1))


def is_divided(owners: Owners, queues: int) -> bool:
    owned = [queue for some in owners.values() for queue in some]
    return len(owned) == len(set(owned)) == queues and all(owners.values())


def names_of(queues: Iterable[MessageQueue]) -> frozenset[str]:
    return frozenset(f"{queue.broker_name}:{queue.queue_id}" for queue in queues)


def await_agreement(members: MixedGroup, strategy: AllocateStrategy, queues: Sequence[MessageQueue]) -> Owners:
    """Waits until members of both kinds have exactly what our strategy says of each: each queue once."""
    ids = members.client_ids()
    client_ids = sorted(ids.values())
    computed = {
        name: names_of(strategy.allocate(members.group, client_id, queues, client_ids))
        for name, client_id in ids.items()
    }
    owned = [queue for some in computed.values() for queue in some]
    assert sorted(owned) == sorted(names_of(queues))
    return eventually(members.owners, lambda owners: owners == computed, step_s=0.1)


@beside_java()
def test_members_of_both_kinds_come_and_go_and_each_message_is_handled(company: Peer) -> None:
    topic, group = "PyMixed", "py_mixed"
    create_topic(company, topic, queues=QUEUES)
    specs = keyed(topic, range(300), queues=QUEUES)
    with MixedGroup(company, topic, group) as members, producer(company) as sender:
        members.add_ours("a-ours")
        members.add_theirs("b-theirs")
        owners = members.settle()
        assert {len(owned) for owned in owners.values()} == {4}
        # Java produces, and Python; both consume.
        assert len(list(company.client.send(specs[:50]))) == 50
        send_all(sender, specs[50:100])
        assert members.wait_for(specs[:100]).total() == 100

        members.add_ours("c-ours")
        members.add_theirs("d-theirs")
        owners = members.settle()
        assert {len(owned) for owned in owners.values()} == {2}
        send_all(sender, specs[100:200])
        members.wait_for(specs[:200])

        members.leave("a-ours")
        assert {len(owned) for owned in members.settle().values()} == {2, 3}
        members.leave("b-theirs")
        assert {len(owned) for owned in members.settle().values()} == {4}
        send_all(sender, specs[200:])
        members.wait_for(specs[100:])
        last = Counter(one.member for one in members.seen.all if int(one.key[1:]) >= 200)
        assert set(last) == {"c-ours"}


@beside_java(short=False)
@pytest.mark.parametrize("name", [name for name, strategy in STRATEGIES.items() if not strategy.needs_rooms])
def test_members_of_both_kinds_agree_on_each_strategy(company: Peer, name: str) -> None:
    topic, group, strategy = f"PyMixed_{name}", f"py_mixed_{name}", STRATEGIES[name]
    create_topic(company, topic, queues=QUEUES)
    queues = [queue_of(topic, number) for number in range(QUEUES)]
    # By configuration each has its own queues; the others compute theirs.
    fixed = {"m1": queues[:3], "m2": queues[3:4], "m3": queues[4:]}
    with MixedGroup(company, topic, group, strategy) as members:
        members.add_ours("m1", fixed=fixed["m1"])
        members.add_theirs("m2", fixed=fixed["m2"])
        members.add_ours("m3", fixed=fixed["m3"])
        if strategy.is_fixed:
            owners = members.settle()
            assert owners == {member: names_of(some) for member, some in fixed.items()}
            return
        await_agreement(members, strategy.make(()), queues)
        members.add_theirs("m4")
        await_agreement(members, strategy.make(()), queues)
        members.leave("m1")
        await_agreement(members, strategy.make(()), queues)


@beside_java(short=False)
@pytest.mark.parametrize("name", [name for name, strategy in STRATEGIES.items() if strategy.needs_rooms])
def test_members_of_both_kinds_agree_on_rooms(company: Peer, tmp_path: Path, name: str) -> None:
    """Two brokers in two rooms, members in them, and one in neither."""
    topic, group, strategy = f"PyRooms_{name}", f"py_rooms_{name}", STRATEGIES[name]
    with (
        company.broker(tmp_path / "west", name="west@broker"),
        company.broker(tmp_path / "east", name="east@broker"),
    ):
        brokers = ("east@broker", "west@broker")
        create_topic(company, topic, queues=4, broker_names=brokers)
        queues = [queue_of(topic, number, broker) for broker in brokers for number in range(4)]
        with MixedGroup(company, topic, group, strategy) as members:
            members.add_ours("west@ours")
            members.add_theirs("west@theirs")
            await_agreement(members, strategy.make(()), queues)
            members.add_ours("east@ours")
            owners = await_agreement(members, strategy.make(()), queues)
            if name == "MACHINE_ROOM_NEARBY":
                assert owners["east@ours"] == names_of(queues[:4])
        company.kill_brokers()


@beside_java(short=False)
def test_orderly_members_of_both_kinds_keep_each_queue_in_order(company: Peer) -> None:
    client, topic, group = company.client, "PyMixedOrderly", "py_mixed_orderly"
    create_topic(company, topic, queues=QUEUES)
    specs = [
        MessageSpec(topic, b"x", "stubborn" if number % 40 == 7 else "easy", (f"n{number}",), queue=number % QUEUES)
        for number in range(240)
    ]
    tries: Counter[str] = Counter()

    def answer(message: ReceivedMessage) -> Outcome | None:
        (key,) = message.keys
        tries[key] += 1
        return Outcome.suspend(suspend_ms=10) if message.tags == "stubborn" and tries[key] < 4 else None

    def send(some: Sequence[MessageSpec]) -> None:
        # In order, so that numbers and offsets grow together in each queue.
        for spec in some:
            sender.send(**as_arguments(spec))

    ours: Any = {"orderly": True, "answer": answer, "lock_interval_ms": 500}
    theirs: Any = {"is_orderly": True, "fail_until": {"stubborn": 3}}
    with MixedGroup(company, topic, group) as members, producer(company) as sender:
        members.add_theirs("b-theirs", **theirs)
        members.settle()
        send(specs[:120])
        members.wait_for(specs[:120])
        # The next owner begins at the committed offset, which the Java client sends every few seconds, one way.
        client.committed("b-theirs", topic=topic, count=120)
        await_progress(company, group, topic, 120)
        members.add_ours("a-ours", **ours)
        members.settle()
        send(specs[120:])
        members.wait_for(specs)
        rows = list(client.ask("consumer_rows", names=["b-theirs"], count=0, timeout_ms=0))
    calls: defaultdict[int, list[tuple[int, str]]] = defaultdict(list)
    times = [(row["consumed_at_ms"], row["queue"], row["queue_offset"], row["keys"]) for row in rows] + [
        (one.at_ms, one.message.queue_id, one.message.queue_offset, one.key) for one in members.seen.all
    ]
    for _, queue, offset, key in sorted(times):
        calls[queue].append((offset, key))
    for given in calls.values():
        offsets = [offset for offset, _ in given]
        # A failed one is redelivered before the next; and nobody takes a queue that the other still works on.
        assert offsets == sorted(offsets)
    often = Counter(key for given in calls.values() for _, key in given)
    assert {often[spec.keys[0]] for spec in specs if spec.tags == "stubborn"} == {4}
    assert {one.member for one in members.seen.all} == {"a-ours"}
