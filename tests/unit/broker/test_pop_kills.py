"""Checks: a broker that is killed while members pop loses no message; one that is stopped forgets nothing.

A process of its own, with its store, its timers and its control plane, killed at random moments. ``CMQ_LONG=1`` kills
oftener.
"""

from __future__ import annotations

import os
import random
import threading
import time
from pathlib import Path

import pytest

from cometmq.client import Producer, ReceivedMessage, SimpleConsumer
from cometmq.errors import Error
from support.broker_process import BrokerProcess, broker_process

LONG = bool(os.environ.get("CMQ_LONG"))
KILLS = 40 if LONG else 3
MEMBERS = 3
MESSAGES = 400
LIMIT_S = 90
INVISIBLE_S = (1, 2, 5)

MODES = [pytest.param("true", "SYNC_FLUSH", id="merged")]
if LONG:
    MODES.append(pytest.param("false", "ASYNC_FLUSH", id="stored"))


def send(broker: BrokerProcess, count: int, *, first: int = 0) -> None:
    with Producer("kill_producer", name_servers=broker.name_server_address) as producer:
        for number in range(first, first + count):
            producer.send("Kills", str(number).encode())


def number_of(message: ReceivedMessage) -> int:
    return int(bytes(message.body_bytes))


def member(broker: BrokerProcess) -> SimpleConsumer:
    consumer = SimpleConsumer(
        "kill_group",
        name_servers=broker.name_server_address,
        consume_from_where="CONSUME_FROM_FIRST_OFFSET",
    )
    consumer.subscribe("Kills")
    return consumer


class Members:
    """Members of a group until the broker dies: some acknowledge, some are slow, some release messages."""

    def __init__(self, broker: BrokerProcess, seed: int) -> None:
        self._broker = broker
        self._seed = seed
        self.acknowledged: set[int] = set()
        self._killed = threading.Event()
        self._failures: list[Error] = []

    def _work(self, number: int) -> None:
        dice = random.Random(self._seed + number)
        try:
            with member(self._broker) as consumer:
                while True:
                    messages = consumer.receive(dice.randint(1, 32), invisible_s=dice.choice(INVISIBLE_S), wait_s=0.2)
                    for message in messages:
                        self._deal_with(consumer, message, dice)
        except Error as failure:
            if not self._killed.is_set():
                self._failures.append(failure)

    def _deal_with(self, consumer: SimpleConsumer, message: ReceivedMessage, dice: random.Random) -> None:
        lot = dice.random()
        if lot < 0.5:
            consumer.ack(message)
            self.acknowledged.add(number_of(message))
        elif lot < 0.7:
            consumer.extend(message, invisible_s=dice.choice(INVISIBLE_S))

    def work_until_killed(self, after_s: float) -> None:
        self._killed.clear()
        threads = [threading.Thread(target=self._work, args=(number,)) for number in range(MEMBERS)]
        for thread in threads:
            thread.start()
        time.sleep(after_s)  # a random moment is what the test is about
        self._killed.set()
        self._broker.kill()
        for thread in threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive()
        assert self._failures == []


def drain(broker: BrokerProcess, missing: set[int]) -> None:
    """Acknowledge what comes, until nothing is missing."""
    end = time.monotonic() + LIMIT_S
    with member(broker) as consumer:
        while missing and time.monotonic() < end:
            messages = consumer.receive(32, invisible_s=60, wait_s=1)
            consumer.ack_many(messages)
            missing -= set(map(number_of, messages))


@pytest.mark.parametrize(("merge", "flush"), MODES)
def test_no_message_is_lost_by_kills(tmp_path: Path, merge: str, flush: str) -> None:
    seed = int(os.environ.get("CMQ_SEED", random.randrange(1 << 32) if LONG else 20_250_919))
    dice = random.Random(seed)
    print(f"repeat with CMQ_SEED={seed}")
    settings = {"enablePopBufferMerge": merge, "flushDiskType": flush, "autoCreateTopicEnable": "true"}
    with broker_process(tmp_path / "store", **settings) as broker:
        members = Members(broker, seed)
        sent = 0
        for _ in range(KILLS):
            send(broker, MESSAGES // KILLS, first=sent)
            sent += MESSAGES // KILLS
            members.work_until_killed(dice.uniform(0.2, 1.5))
            broker.start()
        assert members.acknowledged
        missing = set(range(sent)) - members.acknowledged
        drain(broker, missing)
        assert missing == set()


@pytest.mark.parametrize(("merge", "flush"), MODES)
def test_a_clean_stop_forgets_nothing(tmp_path: Path, merge: str, flush: str) -> None:
    """No acknowledged message is redelivered, no hidden one comes early, and all others come."""
    settings = {"enablePopBufferMerge": merge, "flushDiskType": flush, "autoCreateTopicEnable": "true"}
    with broker_process(tmp_path / "store", **settings) as broker:
        send(broker, 60)
        with member(broker) as consumer:
            messages: list[ReceivedMessage] = []
            while len(messages) < 60:
                messages += consumer.receive(32, invisible_s=5, wait_s=1)
            popped = time.monotonic()
            consumer.ack_many(messages[:20])
            for message in messages[20:30]:
                consumer.extend(message, invisible_s=60)
        broker.stop_and_start()
        with member(broker) as consumer:
            again: list[ReceivedMessage] = []
            while len(again) < 30 and time.monotonic() - popped < LIMIT_S:
                came = consumer.receive(32, invisible_s=60, wait_s=1)
                assert not came or time.monotonic() - popped > 4
                again += came
            again += consumer.receive(32, invisible_s=60, wait_s=2)
        assert sorted(map(number_of, again)) == sorted(map(number_of, messages[30:]))
        assert {message.reconsume_times for message in again} == {1}


def orderly_member(broker: BrokerProcess) -> SimpleConsumer:
    consumer = SimpleConsumer(
        "kill_orderly",
        name_servers=broker.name_server_address,
        orderly=True,
        consume_from_where="CONSUME_FROM_FIRST_OFFSET",
    )
    consumer.subscribe("Kills")
    return consumer


def test_ordered_messages_come_again_in_order_after_a_kill(tmp_path: Path) -> None:
    """Acknowledgements since the batches were last written are lost: messages are redelivered, none is skipped."""
    settings = {"flushDiskType": "SYNC_FLUSH", "autoCreateTopicEnable": "true", "defaultTopicQueueNums": "1"}
    with broker_process(tmp_path / "store", **settings) as broker:
        send(broker, 12)
        popped: list[int] = []
        with orderly_member(broker) as consumer:
            while len(popped) < 8:
                for message in consumer.receive(4, invisible_s=300, wait_s=1):
                    popped.append(number_of(message))
                    if len(popped) <= 6:
                        consumer.ack(message)
            broker.kill()
        assert popped == list(range(8))
        broker.start()
        again: list[int] = []
        end = time.monotonic() + LIMIT_S
        with orderly_member(broker) as consumer:
            while (not again or again[-1] < 11) and time.monotonic() < end:
                for message in consumer.receive(4, invisible_s=60, wait_s=1):
                    again.append(number_of(message))
                    consumer.ack(message)
        assert again == list(range(again[0], 12))
        assert again[0] <= 6, "an unacknowledged message was skipped"
