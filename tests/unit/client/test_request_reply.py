"""Checks: requests and replies over sockets, between clients of every kind and two brokers in this process."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import cometmq.aio
from cometmq.client import ConsumeFromWhere, Producer, PullConsumer, PushConsumer, ReceivedMessage
from cometmq.errors import InvalidArgument, ReplyTimeout, SendFailed
from cometmq.remoting.codes import ResponseCode
from cometmq.testing.clusters import Cluster, cluster

PATIENT_MS = 60_000
TOPIC, FREE = "questions", "unanswered"
FIRST: dict[str, Any] = {
    "consume_from_where": ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    # A notice that comes at a bad moment must not cost the usual 20 s.
    "rebalance_wait_interval_ms": 500,
    "rebalance_min_interval_ms": 50,
}


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    with cluster(brokers=2) as started:
        for broker in started.brokers:
            for topic in (TOPIC, FREE):
                broker.store.create_topic(topic)
        yield started


@contextmanager
def producing(running: Cluster, group: str, **options: Any) -> Iterator[Producer]:
    with Producer(group, name_servers=running.name_server_address, **options) as producer:
        yield producer


@contextmanager
def answering(running: Cluster, replier: Producer, name: str, **options: Any) -> Iterator[PushConsumer]:
    """Answer each request of the topic with the member's name and the request's body."""

    def handle(message: ReceivedMessage) -> None:
        replier.reply_to(message, b"%s:%s" % (name.encode(), message.body_bytes), timeout_ms=PATIENT_MS)

    consumer = PushConsumer(
        "answering",
        name_servers=running.name_server_address,
        listener=handle,
        instance_name=name,
        **FIRST,
        **options,
    )
    consumer.subscribe(TOPIC)
    with consumer:
        yield consumer


@pytest.fixture(scope="module")
def replier(running: Cluster) -> Iterator[Producer]:
    with producing(running, "repliers", instance_name="replier") as producer:
        yield producer


def test_request_is_answered_by_a_listener(running: Cluster, replier: Producer) -> None:
    with producing(running, "askers") as producer, answering(running, replier, "one"):
        for number in range(8):
            reply = producer.request(TOPIC, b"%d" % number, tags="T", keys="k", timeout_ms=PATIENT_MS)
            assert reply.body_bytes == b"one:%d" % number
        large = bytes(range(256)) * 64
        assert producer.request(TOPIC, large, timeout_ms=PATIENT_MS).body_bytes == b"one:" + large
    # A reply is pushed before it is stored; its listener has returned by now.
    stored = [len(list(broker.store.read("DefaultCluster_REPLY_TOPIC"))) for broker in running.brokers]
    assert sum(stored) >= 9


def test_request_of_a_future_calls_back(running: Cluster, replier: Producer) -> None:
    arrived = threading.Event()
    seen: list[bytes] = []

    def called(future: concurrent.futures.Future[ReceivedMessage]) -> None:
        seen.append(future.result().body_bytes)
        if len(seen) == 20:
            arrived.set()

    with producing(running, "askers_back") as producer, answering(running, replier, "two"):
        futures = [producer.request_async(TOPIC, b"%d" % number, timeout_ms=PATIENT_MS) for number in range(20)]
        for future in futures:
            future.add_done_callback(called)
        assert arrived.wait(PATIENT_MS / 1000)
        assert sorted(seen) == sorted(b"two:%d" % number for number in range(20))
        assert [future.result().body_bytes for future in futures] == [b"two:%d" % number for number in range(20)]


def test_asyncio_clients_request_and_reply(running: Cluster) -> None:
    address = running.name_server_address

    async def story() -> list[bytes]:
        async with (
            cometmq.aio.Producer("repliers_aio", name_servers=address) as replier,
            cometmq.aio.Producer("askers_aio", name_servers=address) as asker,
        ):

            async def handle(message: ReceivedMessage) -> None:
                await replier.reply_to(message, b"three:" + message.body_bytes)

            consumer = cometmq.aio.PushConsumer("answering", name_servers=address, listener=handle, **FIRST)
            await consumer.subscribe(TOPIC)
            async with consumer:
                first = await asker.request(TOPIC, b"a", timeout_ms=PATIENT_MS)
                others = await asyncio.gather(
                    *(asker.request_async(TOPIC, b"%d" % number, timeout_ms=PATIENT_MS) for number in range(5))
                )
                return [first.body_bytes, *(reply.body_bytes for reply in others)]

    assert asyncio.run(story()) == [b"three:a", *(b"three:%d" % number for number in range(5))]


@pytest.mark.parametrize("is_sent", [True, False])
def test_nobody_waits_for_the_reply_of_a_cancelled_request(running: Cluster, is_sent: bool) -> None:
    """``asyncio.wait_for(producer.request(...), 5)`` may cancel it; close() waited for its reply nevertheless."""
    topic, store = f"nobody_answers_{is_sent}", running.broker.store
    store.create_topic(topic)

    async def story() -> None:
        asker = cometmq.aio.Producer("cancelling", name_servers=running.name_server_address)
        await asker.start()
        request = asyncio.ensure_future(asker.request(topic, b"a", timeout_ms=3_600_000))
        await asyncio.sleep(0)  # it has begun
        if is_sent:
            while not list(store.read(topic)):
                await asyncio.sleep(0.005)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        await asyncio.wait_for(asker.close(), 60)

    asyncio.run(story())


def test_correlation_survives_rebalance_of_the_answering_group(running: Cluster, replier: Producer) -> None:
    """Each request gets the reply of its own, whichever member answers it, while members come and go."""
    with producing(running, "askers_rebalance") as producer:
        with answering(running, replier, "stays"):
            assert producer.request(TOPIC, b"first", timeout_ms=PATIENT_MS).body_bytes == b"stays:first"
            futures = []
            for turn in range(3):
                with answering(running, replier, f"goes{turn}"):
                    futures += [
                        producer.request_async(TOPIC, b"%d-%d" % (turn, number), timeout_ms=PATIENT_MS)
                        for number in range(40)
                    ]
                    assert futures[-1].result().body_bytes.endswith(b":%d-39" % turn)
            replies = [future.result().body_bytes.partition(b":")[2] for future in futures]
        assert replies == [b"%d-%d" % (turn, number) for turn in range(3) for number in range(40)]


def test_request_without_an_answer_times_out(running: Cluster) -> None:
    with producing(running, "askers_late") as producer:
        with pytest.raises(ReplyTimeout, match=FREE) as caught:
            producer.request(FREE, b"x", timeout_ms=200)
        assert caught.value.topic == FREE


def test_reply_to_a_requester_that_left_fails(running: Cluster, replier: Producer) -> None:
    asked = {"CORRELATION_ID": "c-1", "REPLY_TO_CLIENT": "nobody@1"}
    with PullConsumer("collecting", name_servers=running.name_server_address) as consumer:
        for properties, error in ((asked, SendFailed), ({}, InvalidArgument)):
            result = replier.send("left", b"x", properties=properties)
            (message,) = consumer.pull(result.queue, result.queue_offset, timeout_ms=PATIENT_MS).messages
            with pytest.raises(error, match=r"channel of <nobody@1> not found|is no request") as caught:
                replier.reply_to(message, b"y", timeout_ms=PATIENT_MS)
            assert getattr(caught.value, "code", None) in (ResponseCode.SYSTEM_ERROR, None)


def test_requester_without_its_own_group_is_found_while_another_producer_of_its_client_runs(
    running: Cluster, replier: Producer
) -> None:
    """Upstream forgets a client when any of its producer groups leaves."""
    with (
        producing(running, "askers_shared", instance_name="shared") as asker,
        answering(running, replier, "five"),
    ):
        with producing(running, "askers_other", instance_name="shared") as other:
            assert other.request(TOPIC, b"a", timeout_ms=PATIENT_MS).body_bytes == b"five:a"
        assert asker.request(TOPIC, b"b", timeout_ms=PATIENT_MS).body_bytes == b"five:b"
