"""Checks: messages that a push consumer's listener failed are retried, sent back, or given up; on virtual time."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from cometmq.client.push.listeners import Outcome
from cometmq.errors import BrokerError
from cometmq.remoting.codes import RequestCode
from support.fake_cluster import FakeCluster
from support.push_engines import Seen, committed, consumer, fill, on_cluster, queue_of, until


@on_cluster
async def test_failed_message_is_redelivered_by_the_broker(cluster: FakeCluster) -> None:
    """Promises 9, 10, 72: after 10 s, under its own topic, with the count of its tries and its first id."""
    fill(cluster, 3)
    times: list[float] = []

    def answer(message: Any) -> None:
        if message.body_bytes == b"1":
            times.append(cluster.loop.time())
            if message.reconsume_times < 2:
                raise ValueError("not yet")

    seen = Seen(answer)
    engine = consumer(cluster, seen)
    await engine.start()
    await until(lambda: len(times) == 3)
    await asyncio.sleep(1)
    tries = [message for message in seen.messages if message.body_bytes == b"1"]
    assert [message.reconsume_times for message in tries] == [0, 1, 2]
    assert {message.topic for message in tries} == {"T"}
    assert [message.stored_topic for message in tries] == ["T", "%RETRY%g", "%RETRY%g"]
    assert len({message.original_message_id for message in tries}) == 1
    assert 10 <= times[1] - times[0] <= 35
    assert 30 <= times[2] - times[1] <= 31
    await engine.close()
    assert committed(cluster) == {0: 2, 1: 1}


@on_cluster
async def test_after_the_last_try_it_is_a_dead_letter(cluster: FakeCluster) -> None:
    """Promise 9: dead letters go to ``%DLQ%group``; Outcome.DEAD_LETTER at once."""
    fill(cluster, 2)
    seen = Seen(lambda message: Outcome.DEAD_LETTER if message.body_bytes == b"1" else Outcome.RETRY)
    engine = consumer(cluster, seen, max_reconsume_times=1)
    await engine.start()
    await until(lambda: len(cluster.brokers[0].topics.get("%DLQ%g", [[]])[0]) == 2)
    await engine.close()
    assert seen.bodies.count(b"0") == 2
    assert seen.bodies.count(b"1") == 1


@pytest.mark.parametrize("outcome", [Outcome.RETRY, Outcome.DEAD_LETTER])
@pytest.mark.parametrize("orderly", [False, True])
def test_message_that_is_full_of_properties_holds_nothing_up(orderly: bool, outcome: Outcome) -> None:
    """Neither the broker's copy nor ours would have room for what a retry adds; the longest property goes."""

    @on_cluster
    async def run(cluster: FakeCluster) -> None:
        full = {"note": "x" * 32_660, "short": "y", "KEYS": "k", "UNIQ_KEY": "0" * 32}
        cluster.brokers[0].append("T", 0, b"0", full)
        fill(cluster, 4, queues=1)
        seen = Seen(lambda message: outcome if "note" in message.properties else None)
        engine = consumer(cluster, seen, orderly=orderly, max_reconsume_times=1)
        await engine.start()
        await until(lambda: committed(cluster).get(0) == 5, limit_s=120)
        topics = cluster.brokers[0].topics
        again = [record for topic in ("%RETRY%g", "%DLQ%g") for queue in topics.get(topic, []) for record in queue]
        await until(lambda: len(seen.bodies) >= 6 or bool(again))
        await engine.close()
        for record in again:
            assert "note" not in record.properties
            assert record.properties["short"] == "y"
            assert record.properties["KEYS"] == "k"

    run()


@on_cluster
async def test_single_outcomes_send_back_only_failed_messages(cluster: FakeCluster) -> None:
    """Promise 70: of a list, what the listener did not take goes back."""
    fill(cluster, 4, queues=1)
    calls: list[list[bytes]] = []

    async def listener(messages: list[Any]) -> list[Outcome | None]:
        calls.append([message.body_bytes for message in messages])
        is_first = messages[0].reconsume_times == 0
        return [Outcome.retry(delay_level=1) if is_first and m.body_bytes in b"13" else None for m in messages]

    engine = consumer(cluster, listener, batch=True, consume_message_batch_max_size=4)
    await engine.start()
    await until(lambda: sum(map(len, calls)) == 6)
    await engine.close()
    assert calls[0] == [b"0", b"1", b"2", b"3"]
    assert sorted(body for call in calls[1:] for body in call) == [b"1", b"3"]


@on_cluster
async def test_message_that_no_broker_takes_back_is_retried_locally(
    cluster: FakeCluster,
) -> None:
    """Promise 72: 5 seconds later, and the offset waits for it."""
    fill(cluster, 3, queues=1)
    broker = cluster.brokers[0]
    times: list[float] = []
    tries: list[int] = []

    def answer(message: Any) -> Outcome | None:
        if message.body_bytes == b"0":
            times.append(cluster.loop.time())
            tries.append(message.reconsume_times)
            return Outcome.RETRY if len(times) < 3 else None
        return None

    seen = Seen(answer)
    engine = consumer(cluster, seen)
    await engine.start()
    await until(lambda: len(engine.queues) >= 2)

    def refuse(client: Any, command: Any) -> Any:
        return command.response(1, remark="not now")

    put_back = type(broker)._HANDLERS
    broker._HANDLERS = {**put_back, RequestCode.CONSUMER_SEND_MSG_BACK: lambda *args: refuse(*args[1:])}  # type: ignore[misc]

    async def fail(*_: Any, **__: Any) -> None:
        raise BrokerError("not now", code=1)

    engine._instance.send_inner = fail  # type: ignore[method-assign]
    await until(lambda: len(times) == 2)
    assert engine.offsets("T")[queue_of(0)] == 0
    await until(lambda: len(times) == 3)
    assert tries == [0, 1, 2]
    assert [round(later - earlier, 1) for earlier, later in itertools.pairwise(times)] == [5.0, 5.0]
    await until(lambda: engine.offsets("T")[queue_of(0)] == 3)
    await engine.close()


@on_cluster
async def test_messages_that_the_broker_refuses_are_sent_again(cluster: FakeCluster) -> None:
    """Promise 72: a send to the retry topic takes the place of the send-back."""
    fill(cluster, 1, queues=1, KEYS="k")
    broker = cluster.brokers[0]
    broker.create("%RETRY%g", 1)
    put_back = type(broker)._HANDLERS
    broker._HANDLERS = {  # type: ignore[misc]
        **put_back,
        RequestCode.CONSUMER_SEND_MSG_BACK: lambda _self, _client, command: command.response(1, remark="no"),
    }
    seen = Seen(lambda message: None if message.reconsume_times else Outcome.RETRY)
    engine = consumer(cluster, seen)
    await engine.start()
    await until(lambda: len(seen.bodies) == 2)
    again = seen.messages[1]
    assert (again.topic, again.stored_topic, again.reconsume_times) == ("T", "%RETRY%g", 1)
    assert again.original_message_id == seen.messages[0].message_id
    assert again.keys == ("k",)
    await engine.close()


@on_cluster
async def test_hanging_messages_are_sent_back(cluster: FakeCluster) -> None:
    """Promise 49: after ``consume_timeout_minutes``; the offset goes on, the message is redelivered."""
    fill(cluster, 5, queues=1)
    never = asyncio.Event()

    async def listener(message: Any) -> None:
        if message.body_bytes == b"0" and message.reconsume_times == 0:
            await never.wait()
        else:
            seen.append(message.body_bytes)

    seen: list[bytes] = []
    engine = consumer(cluster, listener, consume_timeout_minutes=1)
    await engine.start()
    await until(lambda: len(seen) == 4)
    assert engine.offsets("T").get(queue_of(0)) == 0
    await until(lambda: len(seen) == 5)
    assert cluster.loop.time() > 60
    assert engine.offsets("T")[queue_of(0)] == 5
    await engine.close(timeout_ms=10)
