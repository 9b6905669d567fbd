"""Checks: a broker that is killed with transactions in flight commits each once, and no rolled-back one.

A process of its own, killed when so many transactions were begun. Producers end some at once, some twice, and leave
others to the checks; the outcome is part of a transaction's id, so that whoever is asked knows it. ``CMQ_LONG=1``
kills oftener.
"""

from __future__ import annotations

import os
import random
import threading
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

import cometmq
from cometmq.errors import Error
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.sync_channel import Channel
from support.broker_process import BrokerProcess, broker_process
from support.transactions import COMMIT, ROLLBACK, TIMEOUT_MS, AskedProducer, end, send_half

LONG = bool(os.environ.get("CMQ_LONG"))
KILLS = 25 if LONG else 3
BEGUN = 100
"""Transactions begun between two kills."""
PRODUCERS = 2
HALF_TOPIC, GROUP = "RMQ_SYS_TRANS_HALF_TOPIC", "CID_RMQ_SYS_TRANS"

FLUSHES = ["ASYNC_FLUSH", "SYNC_FLUSH"] if LONG else ["ASYNC_FLUSH"]


def outcome_of(unique: str) -> int:
    return COMMIT if unique.endswith("c") else ROLLBACK


class Producers:
    """Producers of one life of the broker, and the connection that is asked."""

    def __init__(self, address: str, life: int, seed: int) -> None:
        self._address = address
        self._life = life
        self._seed = seed
        self._enough = threading.Semaphore(0)
        self.stored: list[str] = []
        """Transactions whose half message was acknowledged."""
        self._threads = [threading.Thread(target=self._produce, args=(number,)) for number in range(PRODUCERS)]
        self._threads.append(threading.Thread(target=self._answer))

    def _produce(self, number: int) -> None:
        dice = random.Random(self._seed + number)
        count = 0
        try:
            with Channel(self._address) as channel:
                while True:
                    unique = f"{self._life}-{number}-{count}{dice.choice('cr')}"
                    count += 1
                    half = send_half(channel, unique.encode(), unique=unique)
                    assert half.code == ResponseCode.SUCCESS, half.remark
                    self.stored.append(unique)
                    for _ in range(dice.choice((0, 1, 1, 2))):
                        assert end(channel, half, outcome_of(unique)) == ResponseCode.SUCCESS
                    self._enough.release()
        except (Error, OSError):
            # The broker was killed.
            pass
        finally:
            self._enough.release(BEGUN)

    def _answer(self) -> None:
        dice = random.Random(self._seed)
        try:
            with closing(AskedProducer(self._address, "p")) as producer:
                while True:
                    question = producer.question()
                    if dice.random() < 0.7:
                        producer.answer(question, outcome_of(question.fields["transactionId"]))
        except OSError:
            pass

    def work_until_killed(self, broker: BrokerProcess) -> None:
        for thread in self._threads:
            thread.start()
        for _ in range(BEGUN):
            self._enough.acquire()
        broker.kill()
        for thread in self._threads:
            thread.join()


def answer_all(address: str) -> None:
    """Answer questions until the checks have passed every half message."""
    stop = threading.Event()

    def answer() -> None:
        try:
            while not stop.is_set():
                question = producer.question()
                producer.answer(question, outcome_of(question.fields["transactionId"]))
        except OSError:
            assert stop.is_set()

    producer = AskedProducer(address, "p")
    thread = threading.Thread(target=answer)
    thread.start()
    queue = {"topic": HALF_TOPIC, "queueId": "0"}
    max_offset = Command(code=RequestCode.GET_MAX_OFFSET, fields=queue)
    progress = Command(code=RequestCode.QUERY_CONSUMER_OFFSET, fields=queue | {"consumerGroup": GROUP})
    with Channel(address) as channel:
        passed, all_of_them = -1, 0
        while passed != all_of_them:
            passed = int(channel.invoke(progress, timeout_ms=TIMEOUT_MS).fields.get("offset", "-1"))
            all_of_them = int(channel.invoke(max_offset, timeout_ms=TIMEOUT_MS).fields["offset"])
    stop.set()
    producer.interrupt()
    thread.join()
    producer.close()


@pytest.mark.parametrize("flush", FLUSHES)
def test_killed_broker_commits_each_transaction_once(tmp_path: Path, flush: str) -> None:
    seed = int(os.environ.get("CMQ_SEED", random.randrange(1 << 32) if LONG else 20_250_919))
    print(f"repeat with CMQ_SEED={seed}")
    settings = {
        "flushDiskType": flush,
        "transactionTimeOut": 1,
        "transactionCheckInterval": 1,
        "transactionCheckMax": 1_000_000,
        "transactionOpMsgMaxSize": 200,
    }
    stored: list[str] = []
    with broker_process(tmp_path / "store", **settings) as broker:
        for life in range(KILLS):
            producers = Producers(broker.address, life, seed + 100 * life)
            producers.work_until_killed(broker)
            stored += producers.stored
            broker.start()
        answer_all(broker.address)
    found = Counter[str]()
    with cometmq.open(tmp_path / "store", mode="r") as store, store.read("orders") as reader:
        found.update(bytes(message.body).decode() for message in reader)
    assert len(stored) >= KILLS * BEGUN // 2
    assert {unique: count for unique, count in found.items() if count > 1 or unique.endswith("r")} == {}
    assert [unique for unique in stored if unique.endswith("c") and unique not in found] == []
