"""Transactional messages of our client: outcomes, and answers to the checks of brokers that know none."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Callable

import pytest

import cometmq.aio
from cometmq.client import ReceivedMessage, SendResult, TransactionProducer, TransactionState
from interop.landscapes import on_each_server
from interop.members import PATIENT, Seen, create_topic, push, read_all
from interop.sites import Maker, Site
from interop.waiting import eventually

COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN
OUTCOMES = {"committed": COMMIT, "rolled-back": ROLLBACK}
ASKED = {"asked-commit": COMMIT, "asked-rollback": ROLLBACK, "asked-unknown-then-commit": COMMIT, "raised": COMMIT}
DELIVERED = {"committed", "asked-commit", "asked-unknown-then-commit", "raised"}


class Outcomes:
    """The outcomes of a test's transactions, by the keys of their messages."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.asked: Counter[str] = Counter()

    def check(self, message: ReceivedMessage) -> TransactionState | None:
        (key,) = message.keys
        with self._lock:
            self.asked[key] += 1
            if key == "asked-unknown-then-commit" and self.asked[key] == 1:
                return None
        return OUTCOMES.get(key) or ASKED[key]

    def local(self, key: str) -> Callable[[SendResult], TransactionState | None]:
        def run(sent: SendResult) -> TransactionState | None:
            if key == "raised":
                raise OSError("the database is gone")
            return OUTCOMES.get(key)

        return run


def check_delivered(servers: Site, topic: str, outcomes: Outcomes, send: Callable[[], None]) -> None:
    """Send, and check that committed messages are delivered, and no others.

    Once each by ours; upstream's writes outcomes down in batches, every 3 s, and asks again for those not written.
    """
    seen = Seen()
    with push(servers, f"{topic}_group", seen).subscribe(topic):
        send()
        taken = seen.wait_for_keys(sorted(DELIVERED))
        eventually(lambda: set(outcomes.asked) >= set(ASKED))
    assert {one.message.properties["PGROUP"] for one in taken} == {"py_transactions"}
    if servers.landscape.broker is Maker.OURS:
        assert len(read_all(servers, topic)) == len(DELIVERED)


@on_each_server()
def test_outcomes_of_transactions_are_kept(servers: Site) -> None:
    topic, outcomes = "PyTransactions", Outcomes()
    create_topic(servers, topic, queues=2)
    with TransactionProducer(
        "py_transactions", checker=outcomes.check, name_servers=servers.namesrv.address, **PATIENT
    ) as producer:

        def send() -> None:
            for key in (*OUTCOMES, *ASKED):
                with pytest.raises(OSError, match="database") if key == "raised" else contextlib.nullcontext():
                    sent = producer.send_in_transaction(topic, key.encode(), keys=key, local=outcomes.local(key))
                    assert sent.state is OUTCOMES.get(key, UNKNOWN)

        check_delivered(servers, topic, outcomes, send)


@on_each_server(old=False)
def test_outcomes_of_asyncio_transactions_are_kept(servers: Site) -> None:
    topic, outcomes = "PyAioTransactions", Outcomes()
    create_topic(servers, topic, queues=2)

    async def check(message: ReceivedMessage) -> TransactionState | None:
        return outcomes.check(message)

    async def send() -> None:
        async with cometmq.aio.TransactionProducer(
            "py_transactions", checker=check, name_servers=servers.namesrv.address, **PATIENT
        ) as producer:
            for key in (*OUTCOMES, *ASKED):
                run = outcomes.local(key)

                async def local(
                    sent: SendResult, run: Callable[[SendResult], TransactionState | None] = run
                ) -> TransactionState | None:
                    return run(sent)

                with pytest.raises(OSError, match="database") if key == "raised" else contextlib.nullcontext():
                    await producer.send_in_transaction(topic, key.encode(), keys=key, local=local)
            while not set(outcomes.asked) >= set(ASKED) or outcomes.asked["asked-unknown-then-commit"] < 2:
                await asyncio.sleep(0.05)

    check_delivered(servers, topic, outcomes, lambda: asyncio.run(send()))
