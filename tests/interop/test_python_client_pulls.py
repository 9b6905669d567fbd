"""Our pull consumer, assigned and subscribed, moved about and committed; and namespaces and traces."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import cometmq.admin
import cometmq.aio
from cometmq.client import PullConsumer, ReceivedMessage
from cometmq.client.pull.pull_kernel import PullStatus
from cometmq.client.trace.trace_records import PubTrace, SubAfterTrace, SubBeforeTrace
from cometmq.errors import OffsetOutOfRange
from interop.landscapes import beside_java, on_each_server
from interop.members import (
    QUICK,
    Seen,
    as_arguments,
    await_progress,
    committed,
    create_topic,
    keyed,
    keys_of,
    producer,
    puller,
    push,
    queue_of,
)
from interop.patterns import MessageSpec
from interop.sites import Peer, Site
from interop.waiting import LIMIT_S, eventually

QUEUES = 2


def send(site: Site, specs: list[MessageSpec]) -> None:
    """One after the other, so that their offsets are known: a Java broker takes what comes at once in any order."""
    with producer(site) as sender:
        for spec in specs:
            sender.send(**as_arguments(spec))


def keys(messages: list[ReceivedMessage]) -> list[str]:
    return sorted(key for message in messages for key in message.keys)


def poll(consumer: PullConsumer, count: int) -> list[ReceivedMessage]:
    """So many messages, or what came within the limit."""
    messages: list[ReceivedMessage] = []
    end = time.monotonic() + LIMIT_S
    while len(messages) < count and time.monotonic() < end:
        messages += consumer.poll(200)
    return messages


@contextmanager
def assigned(site: Site, group: str, topic: str, **options: Any) -> Iterator[PullConsumer]:
    with puller(site, group, auto_commit=False, **options) as consumer:
        consumer.assign(consumer.queues(topic))
        yield consumer


@on_each_server()
def test_assigned_queues_are_read_sought_and_committed(servers: Site) -> None:
    topic, group = "PyAssigned", "py_assigned"
    create_topic(servers, topic, queues=QUEUES)
    specs = keyed(topic, range(60), queues=QUEUES)
    send(servers, specs)
    queues = [queue_of(topic, number) for number in range(QUEUES)]
    with assigned(servers, group, topic) as consumer:
        assert sorted(consumer.assignment(), key=lambda queue: queue.queue_id) == queues
        for queue in queues:
            consumer.seek(queue, 10)
        assert keys(poll(consumer, 40)) == sorted(keys_of(specs[20:]))
        assert [consumer.position(queue) for queue in queues] == [30, 30]
        consumer.commit()
        with pytest.raises(OffsetOutOfRange):
            consumer.seek(queues[0], 31)
        # By time: messages stored from this one on. Of several of one millisecond 4.9 takes any, later ones the first.
        middle = consumer.pull(queues[0], 15, max_messages=1).messages[0]
        consumer.pause([queues[1]])
        consumer.seek_to_time(queues[0], middle.store_timestamp_ms)
        (first, *_) = poll(consumer, 1)
        assert first.store_timestamp_ms == middle.store_timestamp_ms
        assert first.queue_offset <= 15 or servers.landscape.server_version.startswith("4.")
    # Not committed since: the group is where it was, and whoever comes next finds what is new.
    assert committed(servers, group, topic) == {("shared", 0): 30, ("shared", 1): 30}
    new = keyed(topic, range(60, 64), queues=QUEUES)
    send(servers, new)
    with assigned(servers, group, topic) as consumer:
        assert keys(poll(consumer, 4)) == sorted(keys_of(new))
        consumer.commit({queues[0]: 31})
    assert committed(servers, group, topic) == {("shared", 0): 31, ("shared", 1): 30}
    if isinstance(servers, Peer):
        # The progress is the group's: the Java client goes on from it.
        rows, _ = servers.client.consume_assigned(group, topic, count=3)
        assert sorted(row["keys"] for row in rows) == ["n61", "n62", "n63"]


@on_each_server()
def test_a_subscribed_group_goes_on_where_it_ended(servers: Site) -> None:
    topic, group = "PySubscribed", "py_subscribed"
    create_topic(servers, topic, queues=QUEUES)
    specs = keyed(topic, range(50), queues=QUEUES)
    send(servers, specs)
    got: list[ReceivedMessage] = []
    with puller(servers, group, pull_batch_size=5) as consumer:
        consumer.subscribe(topic)
        for message in consumer:
            got.append(message)
            if len(got) == 20:
                break
        consumer.commit()
    await_progress(servers, group, topic, 20)

    async def rest() -> list[ReceivedMessage]:
        given: Any = {"consume_from_where": "CONSUME_FROM_FIRST_OFFSET", **QUICK}
        found: list[ReceivedMessage] = []
        async with cometmq.aio.PullConsumer(group, name_servers=servers.namesrv.address, **given) as consumer:
            await consumer.subscribe(topic)
            while len(found) < 30:
                found += await consumer.poll(1000)
        return found

    got += asyncio.run(asyncio.wait_for(rest(), LIMIT_S))
    assert keys(got) == sorted(keys_of(specs))
    # Closing has counted what was handed out.
    await_progress(servers, group, topic, 50)


@on_each_server()
def test_one_queue_is_pulled_from_any_offset(servers: Site) -> None:
    topic, queue = "PyLowLevel", queue_of("PyLowLevel", 0)
    create_topic(servers, topic, queues=1)
    send(servers, [MessageSpec(topic, b"x", "ab"[number % 2], (f"n{number}",), queue=0) for number in range(20)])
    with puller(servers, "py_low_level", broker_suspend_max_time_ms=10_000) as consumer:
        eventually(lambda: consumer.max_offset(queue), lambda offset: offset == 20)
        assert consumer.min_offset(queue) == 0
        result = consumer.pull(queue, 5, max_messages=4)
        assert (result.status, result.next_begin_offset) == (PullStatus.FOUND, 9)
        assert [message.queue_offset for message in result.messages] == [5, 6, 7, 8]
        tagged = consumer.pull(queue, 0, expression="b").messages
        assert [message.queue_offset for message in tagged] == list(range(1, 20, 2))
        assert consumer.pull(queue, 20).status is PullStatus.NO_NEW_MESSAGE
        beyond = consumer.pull(queue, 1000)
        assert (beyond.status, beyond.next_begin_offset) == (PullStatus.OFFSET_ILLEGAL, 20)
        # The broker holds this one until the message comes, which another thread sends.
        with producer(servers) as sender:
            sent = sender.send_async(**as_arguments(MessageSpec(topic, b"late", queue=0)))
            (late,) = consumer.pull(queue, 20, block=True).messages
            assert (late.body_bytes, late.queue_offset) == (b"late", sent.result().queue_offset)


@on_each_server()
def test_a_namespace_is_put_before_names_and_taken_away_again(servers: Site) -> None:
    topic, namespace, seen = "PySpaced", "space", Seen()
    for name in (topic, f"{namespace}%{topic}"):
        create_topic(servers, name, queues=1)
    outside = keyed(topic, [100], queues=1)
    send(servers, outside)
    with (
        producer(servers, namespace=namespace) as sender,
        push(
            servers,
            "py_spaced",
            seen,
            namespace=namespace,
            answer=lambda message: 1 / message.reconsume_times,
        ).subscribe(topic),
    ):
        sender.send(topic, b"x", keys="n1")
        # The first time it fails, and comes back through the retry topic of the group's long name.
        taken = seen.wait_for(2)
    assert {(one.message.topic, one.key) for one in taken} == {(topic, "n1")}
    await_progress(servers, f"{namespace}%py_spaced", f"{namespace}%{topic}", 1)
    with puller(servers, "py_spaced_pull", namespace=namespace) as consumer:
        consumer.subscribe(topic)
        assert [(one.topic, one.keys) for one in poll(consumer, 1)] == [(topic, ("n1",))]
    if isinstance(servers, Peer):
        (row,) = servers.client.pull_all(f"{namespace}%{topic}")
        assert row["keys"] == "n1"


@on_each_server()
def test_traces_contain_sends_and_consumptions(servers: Site) -> None:
    topic, seen = "PyTraced", Seen()
    create_topic(servers, topic, queues=1)
    with push(servers, "py_traced", seen, enable_trace=True).subscribe(topic):
        with producer(servers, "py_tracing", enable_trace=True) as sender:
            result = sender.send(topic, b"followed", tags="t", keys="k-traced")
            keyless = sender.send(topic, b"without keys and tags")
        seen.wait_for(2)
    # Closing has sent the pending traces.
    wanted = {PubTrace, SubBeforeTrace, SubAfterTrace}
    told, plain = (
        eventually(
            lambda message_id=one.message_id: traces_of(servers, message_id),  # type: ignore[misc]
            lambda records: {type(one) for one in records} == wanted,
        )
        for one in (result, keyless)
    )
    assert {one.keys for one in plain} == {""}
    (sent,) = (one for one in told if isinstance(one, PubTrace))
    assert (sent.topic, sent.group, sent.tags, sent.keys) == (topic, "py_tracing", "t", "k-traced")
    (before,) = (one for one in told if isinstance(one, SubBeforeTrace))
    assert before.group == "py_traced"
    if isinstance(servers, Peer) and servers.landscape.version.startswith("5."):
        for message_id in (result.message_id, keyless.message_id):
            shown = servers.client.mqadmin("queryMsgTraceById", "-i", message_id)
            rows = [line.split() for line in shown.splitlines() if line.startswith(("Pub", "Sub"))]
            assert {(row[0], row[1]) for row in rows} >= {("Pub", "py_tracing"), ("Sub", "py_traced")}


def traces_of(site: Site, message_id: str) -> list[Any]:
    with cometmq.admin.connect(namesrv=site.namesrv.address) as admin:
        return list(admin.messages.trace(message_id))


@beside_java(short=False)
def test_consumers_read_batches_and_compression_of_java(company: Peer) -> None:
    client, topic, seen = company.client, "PyFromJava", Seen()
    create_topic(company, topic, queues=QUEUES)
    kinds = [None] if company.landscape.version.startswith("4.") else ["ZLIB", "LZ4", "ZSTD"]
    dull = [MessageSpec(topic, b"a long and dull text\n" * 1000, keys=(f"d{number}",)) for number in range(len(kinds))]
    for kind, spec in zip(kinds, dull, strict=True):
        assert [row["status"] for row in client.send([spec], compression=kind)] == ["SEND_OK"]
    batch = [MessageSpec(topic, b"x", "t", (f"b{number}",), {"own": str(number)}, 0) for number in range(10)]
    assert len(list(client.send([batch]))) == len(batch)
    with push(company, "py_from_java", seen).subscribe(topic):
        taken = seen.wait_for_keys(keys_of([*dull, *batch]))
    bodies = {one.key: one.message.body_bytes for one in taken}
    assert bodies == {spec.keys[0]: spec.body for spec in [*dull, *batch]}
    assert {one.message.properties["own"] for one in taken if one.key.startswith("b")} == set(map(str, range(10)))
