"""Checks: groups of members over real connections whose broker is killed and comes back.

Random histories: push, orderly and simple members join and leave, messages come, the broker's process dies. Three
histories, one of each kind, share a broker and its deaths. In the end each message was handled; of an orderly queue one
message is at work at a time, and none is skipped. A failure prints the seed of the first of the three. ``CMQ_LONG=1``
runs ``CMQ_COUNT`` histories, with ``CMQ_SEED`` for the first.
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import pytest

from cometmq.client import Outcome, Producer, PushConsumer, SimpleConsumer
from cometmq.client.group.rebalance import Rebalance
from cometmq.errors import Error
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import Command
from support.broker_process import BrokerProcess, broker_process

LONG = bool(os.environ.get("CMQ_LONG"))
COUNT = int(os.environ.get("CMQ_COUNT", "200" if LONG else "3"))
FIRST_SEED = int(os.environ.get("CMQ_SEED", str(time.time_ns() % 1_000_000_000) if LONG else "20261126"))
LIMIT_S = 200
"""More than a lock lives: a member that leaves before it knows the broker that came back keeps its locks for 60 s."""
QUEUES = 4
MEMBERS_MAX = 3
LOCKS_NEVER_RENEWED_MS = 3_600_000
EVENTS = ("publish", "publish", "join", "join", "leave", "kill", "wait")
KINDS = ("orderly", "push", "simple")
QUICK: Any = {
    "poll_name_server_interval_ms": 100,
    "heartbeat_broker_interval_ms": 200,
}
GROUP: Any = {**QUICK, "consume_from_where": "CONSUME_FROM_FIRST_OFFSET"}
PUSH: Any = {
    **GROUP,
    "rebalance_min_interval_ms": 50,
    "rebalance_wait_interval_ms": 200,
    "persist_consumer_offset_interval_ms": 200,
    "lock_interval_ms": 500,
    "pull_time_delay_when_exception_ms": 100,
}


def send(producer: Producer, topic: str, body: bytes) -> None:
    """Send, as soon as there is a broker again and its new address is known."""
    end_s = time.monotonic() + LIMIT_S
    while time.monotonic() < end_s:
        with suppress(Error):
            producer.send(topic, body)
            return
        time.sleep(0.05)
    raise AssertionError("the broker did not come back")


class Model:
    """Handled messages, and those that listeners have now. Any thread."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.sent: set[bytes] = set()
        self.done: set[bytes] = set()
        self.troubles: list[str] = []
        self._at_work: dict[int, str] = {}
        self._next: dict[int, int] = defaultdict(int)

    def begin(self, who: str, message: Any, *, is_orderly: bool) -> None:
        queue, offset = message.queue_id, message.queue_offset
        with self.changed:
            if is_orderly:
                if (other := self._at_work.get(queue)) is not None:
                    self.troubles.append(f"{who} is at {offset} of queue {queue}, where {other} is at work")
                if offset > self._next[queue]:
                    self.troubles.append(f"{who} skips from {self._next[queue]} to {offset} of queue {queue}")
                self._at_work[queue] = f"{who} at {offset}"
            self.changed.notify_all()

    def end(self, message: Any, *, is_done: bool) -> None:
        queue, offset = message.queue_id, message.queue_offset
        with self.changed:
            self._at_work.pop(queue, None)
            if is_done:
                self.done.add(bytes(message.body_bytes))
                self._next[queue] = max(self._next[queue], offset + 1)
            self.changed.notify_all()

    def came_again(self, message: Any) -> None:
        """Take note that a message was handled behind its failure."""
        with self.changed:
            self.done.add(bytes(message.body_bytes))
            self.changed.notify_all()

    def wait(self, condition: Any) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: condition() or self.troubles, LIMIT_S), (
                f"{len(self.sent - self.done)} messages were never handled"
            )
            assert not self.troubles, self.troubles[0]


class Simple:
    """A simple consumer with a thread that receives, works and acknowledges."""

    def __init__(self, group: str, topic: str, name_servers: str, work: Any) -> None:
        self._consumer = SimpleConsumer(group, name_servers=name_servers, invisible_time_ms=2_000, **GROUP)
        self._consumer.subscribe(topic)
        self._consumer.start()
        self._is_over = threading.Event()
        self._work = work
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over.is_set():
            with suppress(Error):  # the broker is away
                for message in self._consumer.receive(8, wait_s=0.2):
                    if self._work(message) is None:
                        self._consumer.ack(message)
                continue
            self._is_over.wait(0.1)

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()
        self._consumer.close()


class History:
    """One group, its topic, and what happens to it."""

    def __init__(self, broker: BrokerProcess, producer: Producer, seed: int) -> None:
        self.broker, self.producer = broker, producer
        self.chooser = Random(seed)
        self.name = f"H{seed}"
        self.kind = KINDS[seed % len(KINDS)]
        self.model = Model()
        self.members: list[Any] = []
        self.made = 0

    def work(self, who: str, message: Any) -> Outcome | None:
        first_time = message.stored_topic == self.name
        if first_time:
            self.model.begin(who, message, is_orderly=self.kind == "orderly")
        draw = crc32(message.body_bytes, message.reconsume_times) % 100
        time.sleep(0.1 if draw < 5 else 0.001)
        fails = draw > 96 and message.reconsume_times == 0 and self.kind != "orderly"
        if first_time:
            self.model.end(message, is_done=not fails)
        elif not fails:
            self.model.came_again(message)
        return Outcome.retry(delay_level=1) if fails else None

    def publish(self) -> None:
        for _ in range(self.chooser.randrange(40)):
            body = b"%d" % len(self.model.sent)
            self.model.sent.add(body)
            send(self.producer, self.name, body)

    def join(self) -> None:
        if len(self.members) == MEMBERS_MAX:
            return
        self.made += 1
        who = f"{self.kind}-{self.made}"
        servers = self.broker.name_server_address
        if self.kind == "simple":
            self.members.append(Simple(self.name, self.name, servers, lambda message: self.work(who, message)))
            return
        member = PushConsumer(self.name, name_servers=servers, orderly=self.kind == "orderly", **PUSH)
        member.subscribe(self.name)
        member.listener(lambda message: self.work(who, message))
        member.start()
        self.members.append(member)

    def leave(self) -> None:
        if self.members:
            self.members.pop(self.chooser.randrange(len(self.members))).close()

    def wait(self) -> None:
        time.sleep(self.chooser.choice((0.0, 0.05, 0.3)))  # events at random moments are what the test is about

    def lives(self) -> list[list[str]]:
        """Return what happens in each life of the broker; it is killed once at least."""
        events = [self.chooser.choice(EVENTS) for _ in range(self.chooser.randrange(4, 9))]
        events.insert(self.chooser.randrange(len(events)), "kill")
        lives: list[list[str]] = [["publish", "join"]]
        for event in events:
            if event == "kill":
                lives.append(["publish", "settle"])
            else:
                lives[-1].append(event)
        return lives

    def settle(self) -> None:
        """Have everything handled; members work with the broker that came back before one of them may leave."""
        if self.members:
            self.model.wait(lambda: self.model.done == self.model.sent)

    def end(self) -> None:
        if not self.members:
            self.join()
        self.settle()
        self.close()

    def close(self) -> None:
        while self.members:
            self.members.pop().close()


def trouble_of(broker: BrokerProcess, producer: Producer, seeds: range) -> Exception | None:
    """Run histories of one broker side by side."""
    histories = [History(broker, producer, seed) for seed in seeds]
    plans = [history.lives() for history in histories]
    try:
        for life in range(max(map(len, plans))):
            if life:
                broker.kill_and_start()
            for history, plan in zip(histories, plans, strict=True):
                for event in plan[life] if life < len(plan) else ():
                    getattr(history, event)()
                if life == len(plan) - 1:
                    history.end()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
        return error
    finally:
        for history in histories:
            history.close()
    return None


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    delays = " ".join(["1s"] * 18)
    with broker_process(tmp_path, messageDelayLevel=delays, defaultTopicQueueNums=QUEUES) as running:
        yield running


@pytest.fixture
def producer(broker: BrokerProcess) -> Iterator[Producer]:
    with Producer("makers", name_servers=broker.name_server_address, **QUICK) as running:
        yield running


@pytest.mark.timeout(0 if LONG else 900)
def test_random_histories_of_a_killed_broker(broker: BrokerProcess, producer: Producer) -> None:
    for seed in range(FIRST_SEED, FIRST_SEED + COUNT, len(KINDS)):
        trouble = trouble_of(broker, producer, range(seed, seed + len(KINDS)))
        assert trouble is None, f"CMQ_SEED={seed}: {trouble!r}"


def test_nobody_begins_beside_a_listener_that_outlasts_a_kill(
    broker: BrokerProcess, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new member asks for the queues of one that is at work and does not renew its locks, while the broker dies."""
    for number in range(4 * QUEUES):
        send(producer, "Overlap", b"%d" % number)
    model, may_end, answered = Model(), threading.Event(), [0]
    at_work: set[int] = set()
    ask = Rebalance._ask

    async def counted(self: Rebalance, broker_name: str, command: Command) -> Command:
        answer = await ask(self, broker_name, command)
        if command.code == RequestCode.LOCK_BATCH_MQ and b"quick" in command.body:
            with model.changed:
                answered[0] += 1
                model.changed.notify_all()
        return answer

    def work(who: str, message: Any) -> None:
        model.begin(who, message, is_orderly=True)
        if who == "long":
            at_work.add(message.queue_id)
            assert may_end.wait(LIMIT_S)
        model.end(message, is_done=True)

    monkeypatch.setattr(Rebalance, "_ask", counted)
    servers = broker.name_server_address
    with ExitStack() as members:

        def join(who: str, **more: Any) -> None:
            member = PushConsumer("Overlap", name_servers=servers, orderly=True, instance_name=who, **{**PUSH, **more})
            member.subscribe("Overlap")
            member.listener(lambda message: work(who, message))
            members.enter_context(member)

        join("long", lock_interval_ms=LOCKS_NEVER_RENEWED_MS)
        members.callback(may_end.set)
        model.wait(lambda: len(at_work) == QUEUES)
        join("quick")
        model.wait(lambda: answered[0] >= 1)
        broker.kill_and_start()
        before = answered[0]
        model.wait(lambda: answered[0] >= before + 3)
        may_end.set()
        model.sent = {b"%d" % number for number in range(4 * QUEUES)}
        model.wait(lambda: model.done >= model.sent)
