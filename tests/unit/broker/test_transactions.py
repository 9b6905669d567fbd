"""Checks: transactions over sockets and beside twins: asked about, discarded, put back, counted, kept over restarts.

The ends themselves, and what is refused, are tested in ``tests/c/broker/txn/test_cmq_txn.c``.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cometmq._engine import Message, decode_messages
from cometmq.broker.config import load_broker_config
from cometmq.broker.plane import HalfQuestion
from cometmq.broker.server import Broker
from cometmq.errors import NotFound
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.sync_channel import Channel
from support.any_disk import ANY_DISK
from support.broker_twins import NOW_MS, Caller, Rig, run
from support.transactions import COMMIT, ROLLBACK, TIMEOUT_MS, AskedProducer, end, send_half
from support.waiting import wait_for_message

HALF_TOPIC, OP_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
DISCARD_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
QUESTION = HalfQuestion("p", "u1", 7, 4_096, "7F00000100002A9F0000000000001000", b"record")


# --- Beside twins


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as rig:
        yield rig


def asked(rig: Rig) -> list[tuple[int, Command]]:
    return [(conn, one) for conn, one in rig.link.sent if one.code == RequestCode.CHECK_TRANSACTION_STATE]


def test_question_goes_to_a_producer_of_the_group(rig: Rig) -> None:
    run(rig.heartbeat(Caller(1), producers=("p",), client_id="one"))
    run(rig.heartbeat(Caller(2), producers=("q",), client_id="two"))
    rig.plane.questions = [QUESTION]
    run(rig.control.transactions.step())
    ((conn, request),) = asked(rig)
    assert (conn, request.body) == (1, b"record")
    assert request.fields == {
        "topic": HALF_TOPIC,
        "commitLogOffset": "4096",
        "tranStateTableOffset": "7",
        "msgId": "u1",
        "transactionId": "u1",
        "offsetMsgId": QUESTION.message_id,
        "bname": "broker-a",
    }
    assert rig.plane.producers_seen == [{"p", "q"}]


@pytest.mark.parametrize("per_step", [1, 2, 6])
def test_questions_go_round_the_producers_of_a_group(rig: Rig, per_step: int) -> None:
    """Each transaction's questions do, however many others are asked about: one producer may never answer."""
    for conn in (1, 2, 3):
        run(rig.heartbeat(Caller(conn), producers=("p",), client_id=f"client-{conn}"))
    questions = [QUESTION._replace(unique_id=f"u{number}") for number in range(20)]
    for _ in range(3):
        rig.plane.questions, rig.plane.questions_per_step = list(questions), per_step
        run(rig.control.transactions.step())
        run(rig.control.transactions.step())  # between rounds
    for question in questions:
        conns = [conn for conn, request in asked(rig) if request.fields["msgId"] == question.unique_id]
        assert sorted(conns) == [1, 2, 3]
    assert {conn for conn, _ in asked(rig)[:20]} == {1, 2, 3}


def test_question_about_a_group_that_left_is_dropped(rig: Rig) -> None:
    rig.plane.questions = [QUESTION]
    run(rig.control.transactions.step())
    assert asked(rig) == []


def test_questions_of_one_step_let_other_work_in(rig: Rig) -> None:
    run(rig.heartbeat(Caller(1), producers=("p",), client_id="one"))
    rig.plane.questions, rig.plane.questions_per_step = [QUESTION] * 100, 100

    async def count_beside() -> list[int]:
        step = asyncio.ensure_future(rig.control.transactions.step())
        counts = [0]
        while not step.done():
            await asyncio.sleep(0)
            counts.append(len(asked(rig)))
        await step
        return counts

    counts = asyncio.run(count_beside())
    assert counts[-1] == 100
    assert max(after - before for before, after in itertools.pairwise(counts)) <= 32


def test_producer_that_takes_no_questions_ends_the_step(rig: Rig) -> None:
    run(rig.heartbeat(Caller(1), producers=("p",), client_id="one"))
    rig.plane.questions, rig.plane.questions_per_step = [QUESTION] * 100, 10
    rig.link.offers_taken_max = 20
    run(rig.control.transactions.step())
    assert (len(asked(rig)), len(rig.plane.questions)) == (20, 70)
    rig.link.offers_taken_max = 1_000
    run(rig.control.transactions.step())
    assert (len(asked(rig)), rig.plane.questions) == (90, [])


def test_discard_topic_is_made_with_the_first_discarded_message(rig: Rig) -> None:
    run(rig.control.transactions.step())
    assert rig.control.topics.get(DISCARD_TOPIC) is None
    rig.plane.totals["txn_discarded"] = 1
    run(rig.control.transactions.step())
    topic = rig.control.topics.get(DISCARD_TOPIC)
    assert topic is not None
    assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (1, 1, 6)


def test_settings_hold_at_run_time(rig: Rig) -> None:
    body = b"rejectTransactionMessage=true\ntransactionTimeOut=7000\ntransactionCheckMax=3\n"
    assert rig.run(RequestCode.UPDATE_BROKER_CONFIG, body=body).code == ResponseCode.SUCCESS
    rules = rig.plane.transaction_rules
    assert rules is not None
    assert (rules.reject, rules.timeout_ms, rules.checks_max, rules.reserved_ms) == (True, 7_000, 3, 72 * 3_600_000)


def test_message_is_put_back_by_its_id(rig: Rig) -> None:
    answer = rig.run(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"msgId": QUESTION.message_id})
    assert answer.code == ResponseCode.SUCCESS
    assert rig.plane.resumed == [4_096]
    rig.plane.resume_fails = NotFound("no message begins at this place")
    answer = rig.run(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"msgId": QUESTION.message_id})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == f"Put message back to {HALF_TOPIC} failed. no message begins at this place"
    answer = rig.run(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"msgId": "none"})
    assert answer.code == ResponseCode.SYSTEM_ERROR


def test_open_half_messages_are_counted_over_restarts(tmp_path: Path) -> None:
    path = tmp_path / "config" / "transactionMetrics"
    with Rig(tmp_path) as rig:
        rig.plane.halves = {"Tx": (3, 1)}
        rig.control.transactions.persist()
        rig.plane.halves = {"Tx": (4, 2), "Other": (1, 0)}
        rig.control.stop()
    entry = {"count": 2, "timeStamp": NOW_MS}
    assert json.loads(path.read_bytes())["transactionCount"] == {"Tx": entry, "Other": {**entry, "count": 1}}
    with Rig(tmp_path) as rig:
        rig.plane.halves = {"Tx": (0, 2)}
        rig.control.transactions.persist()
    content = json.loads(path.read_bytes())
    assert content["transactionCount"]["Tx"]["count"] == 0
    assert content["dataVersion"] == {"counter": 9, "stateVersion": 0, "timestamp": NOW_MS}


# --- Over sockets


def make(path: Path, **settings: object) -> Broker:
    fixed = {
        "brokerName": "broker-a",
        "flushDiskType": "ASYNC_FLUSH",
        "mappedFileSizeCommitLog": 1 << 20,
        "transactionTimeOut": 1,
        "transactionCheckInterval": 1,
        "transactionCheckMax": 1_000_000,
        "transactionOpBatchInterval": 1,
    }
    return Broker(load_broker_config(path, listen=":0", settings={**fixed, **settings}, environ=ANY_DISK))


def stored(broker: Broker, topic: str = "orders") -> list[Message]:
    with broker.store.read(topic) as reader:
        return list(reader)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Callable[..., Broker]]:
    """Start brokers on one store, one after the other."""
    running: list[Broker] = []

    def start(**settings: object) -> Broker:
        if running:
            running.pop().stop()
        running.append(make(tmp_path / "store", **settings))
        running[-1].start()
        return running[-1]

    yield start
    for broker in running:
        broker.stop()


def test_open_transaction_is_asked_about_and_committed_once(served: Callable[..., Broker]) -> None:
    broker = served()
    with Channel(broker.address) as channel:
        half = send_half(channel, b"paid")
        assert half.code == ResponseCode.SUCCESS
        producer = AskedProducer(broker.address, "p")
        question = producer.question()
        (message,) = decode_messages(question.body)
        assert (message.topic, message.queue_id, bytes(message.body)) == ("orders", 1, b"paid")
        assert message.properties["TRANSACTION_CHECK_TIMES"] == "1"
        assert str(message.physical_offset) == question.fields["commitLogOffset"]
        assert end(channel, question, COMMIT, from_check=True) == ResponseCode.SUCCESS
        assert end(channel, half, COMMIT) == ResponseCode.SUCCESS
        producer.close()
    (committed,) = stored(broker)
    assert (bytes(committed.body), committed.sys_flag & 0xC) == (b"paid", 8)
    assert str(committed.prepared_transaction_offset) == question.fields["commitLogOffset"]


def test_discarded_message_can_be_put_back(served: Callable[..., Broker]) -> None:
    broker = served(transactionCheckMax=1)
    with Channel(broker.address) as channel:
        send_half(channel, b"lost")
        producer = AskedProducer(broker.address, "p")
        producer.question()
        wait_for_message(channel, DISCARD_TOPIC)
        (message,) = stored(broker, DISCARD_TOPIC)
        assert message.properties["REAL_TOPIC"] == "orders"
        raised = Command(code=RequestCode.UPDATE_BROKER_CONFIG, body=b"transactionCheckMax=1000000\n")
        assert channel.invoke(raised, timeout_ms=TIMEOUT_MS).code == ResponseCode.SUCCESS
        resume = Command(code=RequestCode.RESUME_CHECK_HALF_MESSAGE, fields={"msgId": message.message_id})
        assert channel.invoke(resume, timeout_ms=TIMEOUT_MS).code == ResponseCode.SUCCESS
        question = producer.question()
        assert end(channel, question, COMMIT, from_check=True) == ResponseCode.SUCCESS
        producer.close()
    assert [bytes(one.body) for one in stored(broker)] == [b"lost"]


def test_open_transactions_outlive_a_restart(served: Callable[..., Broker]) -> None:
    quiet = {"transactionCheckInterval": 600_000, "transactionOpBatchInterval": 600_000}
    broker = served(**quiet)
    with Channel(broker.address) as channel:
        halves = [send_half(channel, b"m%d" % number, unique=f"U{number}") for number in range(3)]
        assert end(channel, halves[0], COMMIT) == ResponseCode.SUCCESS
        assert end(channel, halves[1], ROLLBACK) == ResponseCode.SUCCESS
    broker = served()
    assert bytes(stored(broker, OP_TOPIC)[0].body) == b"0,1,"
    with Channel(broker.address) as channel:
        producer = AskedProducer(broker.address, "p")
        question = producer.question()
        assert question.fields["transactionId"] == "U2"
        assert end(channel, halves[1], COMMIT) == ResponseCode.SUCCESS
        assert end(channel, question, COMMIT, from_check=True) == ResponseCode.SUCCESS
        producer.close()
    assert sorted(bytes(one.body) for one in stored(broker)) == [b"m0", b"m2"]


def test_half_messages_can_be_forbidden(served: Callable[..., Broker]) -> None:
    broker = served(rejectTransactionMessage=True)
    with Channel(broker.address) as channel:
        answer = send_half(channel, b"x")
    assert answer.code == ResponseCode.NO_PERMISSION
    assert answer.remark == "the broker[127.0.0.1] sending transaction message is forbidden"


def test_light_queues_get_committed_messages_alone(served: Callable[..., Broker]) -> None:
    """Not the half message, its copies, or a discarded one: readers of a light queue do not see their topics."""
    broker = served(enableLmq="true", transactionCheckMax=2)
    light = "INNER_MULTI_DISPATCH\x01%LMQ%a\x02"
    with Channel(broker.address) as channel:
        halves = [send_half(channel, b"%d" % number, unique=f"U{number}", more=light) for number in range(3)]
        producer = AskedProducer(broker.address, "p")
        assert producer.question().fields["transactionId"] == "U0"  # all of them are copied
        assert end(channel, halves[0], ROLLBACK) == ResponseCode.SUCCESS
        assert end(channel, halves[1], COMMIT) == ResponseCode.SUCCESS
        wait_for_message(channel, DISCARD_TOPIC)
        producer.close()
    assert [(message.topic, bytes(message.body)) for message in stored(broker, "%LMQ%a")] == [("orders", b"1")]
