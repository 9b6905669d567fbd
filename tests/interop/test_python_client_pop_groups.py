"""Members of both kinds, Java's and ours, in one group that pops: failures, one that hangs, and from pulls to pops.

Each scenario runs on upstream's broker and on ours, also where they merge acknowledgements in memory, and where their
retry topics have the newer names.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import pytest

import cometmq.admin
from cometmq.client import Outcome, PushConsumer
from cometmq.client.pop.pop_policy import ALL_QUEUES
from cometmq.remoting.bodies.assignments import MessageRequestMode
from interop.landscapes import beside_java
from interop.members import Seen, as_arguments, await_progress, create_topic, keyed, keys_of, producer, push
from interop.servers import Broker
from interop.sites import SHARED_SETTINGS, Peer
from interop.waiting import eventually

QUEUES = 4
INVISIBLE_MS = 5_000
"""The least that upstream's push consumer takes."""

Settings: TypeAlias = "dict[str, object]"
PLAIN: Settings = {}
MERGED: Settings = {"enablePopBufferMerge": "true"}
NEWER_NAMES: Settings = {"enableRetryTopicV2": "true"}
BOTH: Settings = {**MERGED, **NEWER_NAMES}

in_either_way = pytest.mark.parametrize("settings", [PLAIN, BOTH], ids=["plain", "merged-v2"])
in_each_way = pytest.mark.parametrize(
    "settings", [PLAIN, MERGED, NEWER_NAMES, BOTH], ids=["plain", "merged", "v2", "merged-v2"]
)


class Group:
    """A group at a broker of its own, whose members are named ``java…`` and ``python…``, and what they consumed."""

    def __init__(self, peer: Peer, broker: Broker) -> None:
        self.peer = peer
        self.broker = broker
        self.name = "mixed"
        self.topic = "Mixed"
        self.seen = Seen()
        self.sent: list[str] = []
        self._java: list[str] = []
        """Those that live."""
        self._all_java: list[str] = []
        self._python: dict[str, PushConsumer] = {}
        create_topic(peer, self.topic, queues=QUEUES, broker_names=(broker.name,))

    def set_mode(self, mode: MessageRequestMode) -> None:
        with cometmq.admin.connect(namesrv=self.peer.namesrv.address) as admin:
            admin.groups.set_consume_mode(self.name, self.topic, mode)

    def start_java(self, name: str, *, hangs: bool = False, fails_once: bool = False) -> None:
        self.peer.client.start_consumer(
            name,
            self.name,
            {self.topic: "*"},
            client_rebalance=False,
            pop_invisible_ms=INVISIBLE_MS,
            hangs=hangs,
            fail_until={"once": 1} if fails_once else None,
        )
        self._java.append(name)
        self._all_java.append(name)

    def start_python(self, name: str, answer: object = None, **options: object) -> PushConsumer:
        consumer = push(
            self.peer,
            self.name,
            self.seen,
            member=name,
            answer=answer or (lambda _: None),  # type: ignore[arg-type]
            client_rebalance=False,
            pop_invisible_time_ms=INVISIBLE_MS,
            **options,
        )
        consumer.subscribe(self.topic)
        consumer.start()
        self._python[name] = consumer
        return consumer

    def close(self) -> None:
        for consumer in self._python.values():
            consumer.close()
        self.peer.client.stop_consumers(*self._java)
        self._python, self._java = {}, []

    def send(self, numbers: Sequence[int], *, tags: str | None = None) -> list[str]:
        specs = keyed(self.topic, numbers, queues=QUEUES, tags=tags)
        with producer(self.peer) as sender:
            for spec in specs:
                sender.send(**as_arguments(spec, self.broker.name))
        self.sent += keys_of(specs)
        return keys_of(specs)

    def consumed(self) -> list[tuple[str, str, int]]:
        """Member, key and tries before, of each call of a listener."""
        java = self.peer.client.consumed(*self._all_java, count=0)
        return [(str(row["consumer"]), str(row["keys"]), int(row["reconsume_times"])) for row in java] + [
            (one.member, one.key, one.reconsume_times) for one in self.seen.all
        ]

    def await_keys(self, keys: Sequence[str], *, hanging: str = "") -> None:
        """Returns when each of them was consumed by a member that does not hang."""
        eventually(
            lambda: set(keys) - {key for member, key, _ in self.consumed() if member != hanging}, lambda left: not left
        )

    def await_mode(self, mode: MessageRequestMode) -> None:
        """Returns when all members have gone over."""
        wanted = mode is MessageRequestMode.POP

        def are_there() -> bool:
            self.peer.client.rebalance(*self._java)
            popped = self.peer.client.popped(*self._java, topic=self.topic)
            return all(bool(popped[name]) is wanted for name in self._java) and all(
                bool(queues := {one.queue_id for one in consumer.queues if one.topic == self.topic})
                and (ALL_QUEUES in queues) is wanted
                for consumer in self._python.values()
            )

        eventually(are_there, step_s=0.2)

    def drain(self) -> list[str]:
        """Takes what still comes when the members have stopped, the keys, until nothing is left and all is done."""
        keys: list[str] = []
        while True:
            head, messages = self.peer.client.pop(self.broker, self.name, self.topic, poll_ms=INVISIBLE_MS + 5_000)
            if not messages:
                assert head["rest"] == 0
                await_progress(self.peer, self.name, self.topic, len(self.sent))
                return keys
            self.peer.client.pop_ack(self.broker, self.name, self.topic, messages, in_batch=True)
            keys += [str(message["keys"]) for message in messages]


@contextmanager
def mixed_group(peer: Peer, store: Path, settings: Settings) -> Iterator[Group]:
    with peer.broker(store, name="mixed", settings={**SHARED_SETTINGS, **settings}) as broker:
        group = Group(peer, broker)
        try:
            group.set_mode(MessageRequestMode.POP)
            yield group
        finally:
            # Members that stay would take the messages of the next group.
            group.close()


@in_each_way
@beside_java(short=False, old=False)
def test_messages_failed_by_one_go_to_any(company: Peer, tmp_path: Path, settings: Settings) -> None:
    with mixed_group(company, tmp_path / "store", settings) as group:
        group.start_java("java", fails_once=True)
        group.start_python(
            "python",
            lambda message: Outcome.RETRY if message.tags == "once" and not message.reconsume_times else None,
        )
        group.await_mode(MessageRequestMode.POP)
        once = group.send(range(6), tags="once")
        keys: list[str] = []

        def are_both_at_it() -> bool:
            keys.extend(group.send(range(6 + len(keys), 106 + len(keys))))
            return {member for member, _, _ in group.consumed()} == {"java", "python"}

        eventually(are_both_at_it)
        wanted = {(key, 0) for key in [*once, *keys]} | {(key, 1) for key in once}
        eventually(lambda: wanted - {one[1:] for one in group.consumed()}, lambda missing: not missing)
        assert Counter(one[1:] for one in group.consumed()) == Counter(wanted)
        group.close()
        assert group.drain() == []
        mark = "+" if "enableRetryTopicV2" in settings else "_"
        with cometmq.admin.connect(broker=group.broker.address) as admin:
            assert f"%RETRY%mixed{mark}Mixed" in admin.topics.list(system=True)


@pytest.mark.parametrize("hanging", ["java", "python"])
@in_either_way
@beside_java(short=False, old=False)
def test_one_hangs_and_the_others_empty_the_queues(
    company: Peer, tmp_path: Path, settings: Settings, hanging: str
) -> None:
    """Were queues shared out, those of the member that hangs would stop."""
    going_on = threading.Event()
    with mixed_group(company, tmp_path / "store", settings) as group:
        try:
            if hanging == "java":
                group.start_java("java", hangs=True)
            else:
                group.start_python("python", lambda _: going_on.wait(60) and None)
            early = group.send(range(100))
            taken = eventually(group.consumed)
            group.start_java("java others")
            group.start_python("python others")
            late = group.send(range(100, 300))
            group.await_keys([*early, *late], hanging=hanging)
            by_others = Counter(key for member, key, _ in group.consumed() if member != hanging)
            assert all(by_others[key] for _, key, _ in taken)
            assert min(times for member, key, times in group.consumed() if key == taken[0][1] and member != hanging) > 0
        finally:
            going_on.set()
            if hanging == "java":
                company.client.release("java")
            group.close()
        assert group.drain() == []


@in_either_way
@beside_java(short=False, old=False)
def test_the_mode_changes_under_load(company: Peer, tmp_path: Path, settings: Settings) -> None:
    """Nothing is lost, and messages finished before a change of the mode are not redelivered after it."""
    modes = [MessageRequestMode.PULL, MessageRequestMode.POP, MessageRequestMode.PULL, MessageRequestMode.POP]
    with mixed_group(company, tmp_path / "store", settings) as group:
        for number in range(2):
            group.start_java(f"java {number}")
            group.start_python(f"python {number}")
        group.await_mode(MessageRequestMode.POP)
        quiet = group.send(range(100))
        numbers = iter(range(100, 1_000_000))
        for mode in modes:
            group.await_keys(quiet)
            await_progress(company, group.name, group.topic, len(group.sent))
            is_over = threading.Event()

            def load(is_over: threading.Event = is_over) -> None:
                while not is_over.is_set():
                    group.send([next(numbers) for _ in range(20)])

            sender = threading.Thread(target=load)
            sender.start()
            try:
                group.set_mode(mode)
                group.await_mode(mode)
            finally:
                is_over.set()
                sender.join()
            if mode is MessageRequestMode.POP or "enableRetryTopicV2" not in settings:
                # A member that pulls reads no retry topics of the newer names: messages in them wait for the next pops.
                group.await_keys(group.sent)
            quiet += group.send([next(numbers) for _ in range(100)])
        group.await_keys(group.sent)
        group.close()
        late = group.drain()
        counts = Counter([key for _, key, _ in group.consumed()] + late)
        assert set(counts) == set(group.sent)
        assert {key: counts[key] for key in quiet if counts[key] != 1} == {}
