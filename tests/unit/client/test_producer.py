"""Checks: the blocking producer against a name server and brokers in this process."""

from __future__ import annotations

import math
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from cometmq._compression import decompress_body
from cometmq.client.instance.service_state import ServiceState
from cometmq.client.producer import Producer
from cometmq.client.send.outgoing import OutgoingMessage, SendStatus
from cometmq.client.send.sending import SendFuture, SendResult
from cometmq.errors import ClientStateError, ConnectionLost, ForkedClient, InvalidArgument, SendFailed
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.testing.clusters import Cluster, cluster


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    with cluster(brokers=2) as started:
        yield started


@contextmanager
def producing(running: Cluster, group: str, **options: object) -> Iterator[Producer]:
    with Producer(group, name_servers=running.name_server_address, **options) as producer:  # type: ignore[arg-type]
        yield producer


def stored(running: Cluster, result: SendResult) -> tuple[bytes, dict[str, str]]:
    """Body and properties of a message, read from its broker's store."""
    broker = {one.name: one for one in running.brokers}[result.queue.broker_name]
    message = broker.store.get(result.topic, result.queue.queue_id, result.queue_offset)
    return bytes(message.body), dict(message.properties)


def test_a_message_is_stored(running: Cluster) -> None:
    with producing(running, "p_one") as producer:
        assert producer.state is ServiceState.RUNNING
        result = producer.send("orders", b"body", tags="paid", keys="k", properties={"a": "b"})
        assert result.status is SendStatus.SEND_OK
        body, properties = stored(running, result)
        assert body == b"body"
        assert properties.items() >= {"TAGS": "paid", "KEYS": "k", "a": "b", "UNIQ_KEY": result.unique_id}.items()
    assert producer.state is ServiceState.SHUTDOWN_ALREADY
    with pytest.raises(ClientStateError, match="closed"):
        producer.send("orders", b"body")


def test_many_messages_are_spread_over_queues(running: Cluster) -> None:
    with producing(running, "p_spread") as producer:
        results = producer.send_many((OutgoingMessage(b"%d" % at) for at in range(160)), topic="spread", under_way=16)
        # How evenly is the ring's test; here routes change while brokers make the topic.
        assert len({one.queue for one in results}) >= 4
        assert [stored(running, one)[0] for one in results] == [b"%d" % at for at in range(160)]


def test_threads_send_at_a_time(running: Cluster) -> None:
    results: list[SendResult] = []
    with producing(running, "p_threads") as producer:

        def send() -> None:
            results.extend(producer.send("threads", b"x") for _ in range(50))

        threads = [threading.Thread(target=send) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert len({(one.queue, one.queue_offset) for one in results}) == 400
    assert len({one.unique_id for one in results}) == 400


def test_futures_callbacks_and_flush(running: Cluster) -> None:
    called: list[SendFuture] = []
    with producing(running, "p_async") as producer:
        futures = [producer.send_async("futures", b"%d" % at) for at in range(300)]
        for future in futures:
            future.add_done_callback(called.append)
        producer.flush()
        assert all(future.done() for future in futures)
        assert len({future.result().unique_id for future in futures}) == 300
    assert sorted(map(id, called)) == sorted(map(id, futures))


def test_a_batch_lies_in_a_row(running: Cluster) -> None:
    with producing(running, "p_batch") as producer:
        result = producer.send_batch([OutgoingMessage(b"one", tags="t"), OutgoingMessage(b"two")], topic="batches")
        assert stored(running, result)[0] == b"one"
        broker = {one.name: one for one in running.brokers}[result.queue.broker_name]
        second = broker.store.get("batches", result.queue.queue_id, result.queue_offset + 1)
        assert bytes(second.body) == b"two"
        assert result.unique_id.count(",") == 1


def test_one_way(running: Cluster) -> None:
    with producing(running, "p_oneway") as producer:
        first = producer.send("oneway", b"first")
        producer.send_oneway("oneway", b"second", queue=first.queue)
        # The connection keeps the order: later answers are of messages stored later.
        last = producer.send("oneway", b"third", queue=first.queue)
        assert last.queue_offset == first.queue_offset + 2


def test_long_bodies_travel_compressed(running: Cluster) -> None:
    with producing(running, "p_big") as producer:
        result = producer.send("big", b"order stock " * 1_000)
        broker = {one.name: one for one in running.brokers}[result.queue.broker_name]
        message = broker.store.get("big", result.queue.queue_id, result.queue_offset)
        assert bytes(message.body) == b"order stock " * 1_000
        assert decompress_body(message.sys_flag, message.raw_body) == b"order stock " * 1_000
        assert len(message.raw_body) < 1_000


def test_a_sharding_key_and_a_queue(running: Cluster) -> None:
    with producing(running, "p_shard") as producer:
        places = {producer.send("shards", b"x", sharding_key="N725MQ").queue for _ in range(6)}
        assert len(places) == 1
        (place,) = places
        chosen = producer.send("shards", b"x", selector=lambda queues, arg: queues[arg], arg=0)
        assert chosen.queue.queue_id == 0
        assert producer.send("shards", b"x", queue=place).queue == place


def test_invalid_messages_are_rejected(running: Cluster) -> None:
    with producing(running, "p_bad") as producer:
        with pytest.raises(InvalidArgument, match="body"):
            producer.send("orders")
        with pytest.raises(InvalidArgument, match="not both"):
            producer.send(OutgoingMessage(b"x", topic="orders"), b"y")
        with pytest.raises(InvalidArgument, match="under_way"):
            producer.send_many([], under_way=0)
        gone = MessageQueue(topic="orders", broker_name="no-such-broker", queue_id=0)
        with pytest.raises(SendFailed, match="no-such-broker"):
            producer.send("orders", b"x", queue=gone)


def test_arguments_of_the_wrong_kind(running: Cluster) -> None:
    wrong: list[dict[str, Any]] = [
        *({"timeout_ms": value} for value in (0, "1", math.nan, 1.5)),
        *({"delay_ms": value} for value in (-1, "1", math.nan, 1.5)),
        *({"deliver_at_ms": value} for value in ("1", math.nan)),
        {"selector": 5},
        {"queue": 5},
    ]
    with producing(running, "g_wrong_kinds") as producer:
        for given in wrong:
            with pytest.raises(InvalidArgument, match=next(iter(given))):
                producer.send("orders", b"x", **given)
        several: list[Any] = [None, 5, [b"x"], "text"]
        for messages in several:
            with pytest.raises(InvalidArgument, match=r"send_batch\(\) was given .*OutgoingMessage"):
                producer.send_batch(messages, topic="orders")
        with pytest.raises(InvalidArgument, match="under_way is 0"):
            producer.send_many([], topic="orders", under_way=0)


def test_without_a_name_server_the_error_names_it() -> None:
    with socket.socket() as taken:  # nobody listens there
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with Producer("g_nowhere", name_servers=address) as producer:
            with pytest.raises(
                ConnectionLost, match=rf"no name server answered \(cannot connect to {address}: "
            ) as told:
                producer.send("orders", b"x")
            assert isinstance(told.value.__cause__, ConnectionLost)


def test_states(running: Cluster) -> None:
    producer = Producer("p_states", name_servers=running.name_server_address)
    with pytest.raises(ClientStateError, match=r"start\(\)"):
        producer.send("orders", b"x")
    producer.close()
    assert "not started" in repr(producer)
    producer.start()
    with pytest.raises(ClientStateError, match="started once"):
        producer.start()
    producer.close()
    producer.close()


def test_a_forked_child_must_make_its_own(running: Cluster) -> None:
    with producing(running, "p_fork") as producer:
        producer.send("orders", b"x")
        child = os.fork()
        if child == 0:
            code = 1
            try:
                producer.send_async("orders", b"x")
            except ForkedClient:
                code = 42
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 42
        assert producer.send("orders", b"x").status is SendStatus.SEND_OK


def test_a_blocking_call_in_a_callback_is_refused(running: Cluster) -> None:
    caught: list[BaseException] = []
    done = threading.Event()
    with producing(running, "p_callback") as producer:

        def again(future: SendFuture) -> None:
            try:
                producer.send("orders", b"x")
            except ClientStateError as error:
                caught.append(error)
            done.set()

        future = producer.send_async("orders", b"x")
        future.add_done_callback(again)
        future.result()
        assert done.wait(30)
        producer.flush()
    assert len(caught) <= 1
