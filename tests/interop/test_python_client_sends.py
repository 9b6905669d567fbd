"""Every way in which our client sends, read back by our client and by the official Java client."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time
from collections import defaultdict
from collections.abc import Callable

import pytest

import cometmq.admin
import cometmq.aio
from cometmq.client import OutgoingMessage
from cometmq.client.send.producer_settings import CompressionType
from cometmq.errors import InvalidArgument, MessageTooLarge, RouteNotFound, SendFailed
from cometmq.store_config.topic_config import Perm
from interop.landscapes import beside_java, on_each_server
from interop.members import (
    PATIENT,
    Seen,
    as_arguments,
    check_content,
    create_topic,
    producer,
    push,
    queue_of,
    read_all,
    send_all,
    stored,
)
from interop.patterns import Content, MessageSpec, content_of_row, content_of_spec, in_batches, mixed
from interop.sites import Peer, Site
from interop.waiting import eventually

QUEUES = 4
MESSAGE_ILLEGAL = 13
BROKER_LIMIT_BYTES = 4 << 20
CLOCKS_MS = 60_000
"""Far more than a message can be older than it is, and less than a wrong time zone."""


def one_by_one(site: Site, topic: str) -> list[Content]:
    specs = list(mixed(topic, 40, queues=QUEUES, seed=11))
    with producer(site) as sender:
        return [stored(spec, sender.send(**as_arguments(spec))) for spec in specs]


def on_the_way_at_once(site: Site, topic: str) -> list[Content]:
    with producer(site) as sender:
        return send_all(sender, list(mixed(topic, 200, queues=QUEUES, seed=12)))


def awaited(site: Site, topic: str) -> list[Content]:
    async def send(specs: list[MessageSpec]) -> list[Content]:
        async with cometmq.aio.Producer("python_aio", name_servers=site.namesrv.address, **PATIENT) as sender:
            return [stored(spec, await sender.send(**as_arguments(spec))) for spec in specs]

    return asyncio.run(send(list(mixed(topic, 40, queues=QUEUES, seed=13))))


def in_whole_batches(site: Site, topic: str) -> list[Content]:
    small = (spec for spec in mixed(topic, 120, queues=QUEUES, seed=14) if len(spec.body) < 1000)
    sent: list[Content] = []
    with producer(site) as sender:
        for batch in in_batches(small, 8):
            messages = [
                OutgoingMessage(one.body, one.tags, " ".join(one.keys) or None, dict(one.properties)) for one in batch
            ]
            result = sender.send_batch(messages, topic=topic, queue=queue_of(topic, batch[0].queue or 0))
            sent += [stored(spec, result, behind) for behind, spec in enumerate(batch)]
    return sent


def accumulated(site: Site, topic: str) -> list[Content]:
    specs = [
        dataclasses.replace(spec, queue=None)
        for spec in mixed(topic, 300, queues=QUEUES, seed=15)
        if len(spec.body) < 1000
    ]
    with producer(site, accumulate=True) as sender:
        sent = send_all(sender, specs)
    assert len({(one.queue, one.queue_offset) for one in sent}) == len(specs)
    return sent


WAYS: list[Callable[[Site, str], list[Content]]] = [
    one_by_one, on_the_way_at_once, awaited, in_whole_batches, accumulated,
]  # fmt: skip


@on_each_server()
def test_all_kinds_of_sends_are_read_unchanged(servers: Site) -> None:
    topic = "PySend"
    create_topic(servers, topic, queues=QUEUES)
    sent = [content for way in WAYS for content in way(servers, topic)]
    check_content(servers, topic, sent)
    # Tags with the same hash stay distinct.
    check_content(servers, topic, [one for one in sent if one.tags in ("AaAa", "late")], "AaAa || late")


@on_each_server()
def test_one_way_messages_arrive(servers: Site) -> None:
    topic = "PySendOneway"
    create_topic(servers, topic, queues=QUEUES)
    specs = list(mixed(topic, 40, queues=QUEUES, seed=16))
    with producer(servers) as sender:
        for spec in specs:
            sender.send_oneway(**as_arguments(spec))
    found = eventually(lambda: read_all(servers, topic), lambda found: len(found) == len(specs))

    def placeless(contents: list[Content]) -> list[str]:
        return sorted(repr(dataclasses.replace(content, queue_offset=0)) for content in contents)

    assert placeless(found) == placeless([content_of_spec(spec, spec.queue or 0, 0) for spec in specs])


@on_each_server()
def test_bodies_compressed_in_every_way_are_read(servers: Site) -> None:
    topic = "PySendCompressed"
    # A Java client of 4.9 reads zlib alone; brokers look at no body.
    kinds = [CompressionType.ZLIB] if is_old(servers) else list(CompressionType)
    create_topic(servers, topic, queues=QUEUES)
    sent: list[Content] = []
    for seed, kind in enumerate(kinds):
        specs = [spec for spec in mixed(topic, 32, queues=QUEUES, seed=seed) if len(spec.body) > 4096]
        with producer(servers, compress_type=kind) as sender:
            sent += send_all(sender, specs)
    check_content(servers, topic, sent)
    with cometmq.admin.connect(namesrv=servers.namesrv.address) as admin:
        sizes = [one.record_bytes for queue in range(QUEUES) for one in admin.messages.peek(topic, queue_id=queue)]
    # The dull texts, half of what was sent, are much shorter where they lie.
    assert sum(size < 3000 for size in sizes) == len(sent) // 2


def is_old(site: Site) -> bool:
    return site.landscape.version.startswith("4.")


@on_each_server()
def test_a_delayed_message_comes_when_its_time_has_come(servers: Site) -> None:
    topic, seen = "PySendDelayed", Seen()
    create_topic(servers, topic, queues=QUEUES)
    specs = [
        MessageSpec(topic, b"in two seconds", "late", ("late", "k2"), {"own": "property"}, 1, delay_level=2),
        MessageSpec(topic, b"in one second", "early", queue=2, delay_level=1),
        MessageSpec(topic, b"now", "now", queue=3),
    ]
    with push(servers, "py_send_delayed", seen).subscribe(topic), producer(servers) as sender:
        results = [sender.send(**as_arguments(spec)) for spec in specs]
        taken = {one.message.tags: one for one in seen.wait_for(3)}
    assert [result.status.name for result in results] == ["SEND_OK"] * 3
    expected = []
    for spec in specs:
        waited = {"DELAY": str(spec.delay_level), "REAL_TOPIC": topic, "REAL_QID": str(spec.queue)}
        properties = {**spec.properties, **(waited if spec.delay_level else {})}
        expected.append(content_of_spec(dataclasses.replace(spec, properties=properties), spec.queue or 0, 0))
    check_content(servers, topic, expected)
    for tag, delay_ms in (("late", 2000), ("early", 1000)):
        message = taken[tag].message
        assert message.store_timestamp_ms - message.born_timestamp_ms >= delay_ms
    assert taken["late"].message.unique_id == results[0].message_id


@on_each_server()
def test_a_topic_that_nobody_made_is_made_by_the_first_message(servers: Site) -> None:
    topic = "PySendNewTopic"
    assert servers.shared_broker.address
    spec = MessageSpec(topic, b"first")
    with producer(servers) as sender:
        sent = stored(spec, sender.send(**as_arguments(spec)))
    with cometmq.admin.connect(namesrv=servers.namesrv.address) as admin:
        eventually(lambda: topic in admin.topics.list())
        assert len(admin.topics.queues(topic)) == QUEUES
    check_content(servers, topic, [sent])


@on_each_server()
def test_invalid_messages_are_refused_with_the_reason(servers: Site) -> None:
    topic, closed = "PySendRefused", "PySendClosed"
    create_topic(servers, topic, queues=1)
    create_topic(servers, closed, queues=1)
    body = os.urandom(BROKER_LIMIT_BYTES + 1)
    with producer(servers) as sender:
        with pytest.raises(MessageTooLarge):
            sender.send(topic, body)
        for illegal in ("Not a topic", "SCHEDULE_TOPIC_XXXX"):
            with pytest.raises(InvalidArgument):
                sender.send(illegal, b"x")
    # Where the client lets it pass, the broker does not.
    with (
        producer(servers, max_message_size_bytes=8 << 20) as sender,
        pytest.raises(SendFailed, match=topic) as refused,
    ):
        sender.send(topic, body)
    assert refused.value.code == MESSAGE_ILLEGAL
    assert not refused.value.is_uncertain

    with cometmq.admin.connect(namesrv=servers.namesrv.address) as admin, producer(servers) as sender:
        assert sender.send(closed, b"x").queue_offset == 0
        admin.topics.update(closed, perm=Perm.READ)

        def refusal() -> str | None:
            # The broker refuses at once; a moment later the route has no queue to send to.
            try:
                sender.send(closed, b"x")
            except (SendFailed, RouteNotFound) as error:
                return str(error)
            return None

        assert closed in str(eventually(refusal))
    assert read_all(servers, topic) == []


@beside_java()
def test_a_sharding_key_leads_both_clients_to_the_same_queue(company: Peer) -> None:
    topic = "PySendSharded"
    create_topic(company, topic, queues=QUEUES)
    specs = [
        MessageSpec(topic, b"%d" % number, f"tag{number % 12}", hash_key=f"order-{number % 12}-größe")
        for number in range(48)
    ]
    with producer(company) as sender:
        ours = [sender.send(**as_arguments(spec)).queue.queue_id for spec in specs]
    theirs = [row["queue"] for row in company.client.send(specs)]
    assert ours == theirs
    queues: defaultdict[int, list[int]] = defaultdict(list)
    for row in eventually(lambda: company.client.pull_all(topic, with_body=True), lambda rows: len(rows) == 96):
        if "__SHARDINGKEY" in row["properties"]:
            queues[row["queue"]].append(row["queue_offset"])
            assert row["properties"]["__SHARDINGKEY"] == f"order-{row['tags'].removeprefix('tag')}-größe"
    assert sum(map(len, queues.values())) == 48
    assert len(queues) > 1


@beside_java()
def test_messages_are_found_by_their_ids_and_keys_with_upstreams_tools(company: Peer) -> None:
    client, topic = company.client, "PySendFound"
    create_topic(company, topic, queues=QUEUES)
    began_ms = time.time_ns() // 1_000_000
    spec = MessageSpec(topic, b"look for me", "t", ("first-key", "second-key"), {"own": "1"}, 2)
    with producer(company) as sender:
        result = sender.send(**as_arguments(spec))
        batch = sender.send_batch([OutgoingMessage(b"b%d" % one, keys=f"part-{one}") for one in range(3)], topic=topic)
    expected = stored(spec, result)

    made = client.read_unique_id(result.unique_id)
    assert made["pid"] == os.getpid() & 0xFFFF
    assert abs(made["made_at_ms"] - began_ms) < CLOCKS_MS

    if is_old(company):
        # Its admin client's answers have other classes.
        eventually(
            lambda: client.mqadmin("queryMsgByKey", "-t", topic, "-k", "second-key"),
            lambda text: result.unique_id in text,
        )
        return
    for key in ("first-key", "second-key"):
        (row,) = eventually(lambda key=key: client.query_key(topic, key))
        assert content_of_row(row) == expected
    (row,) = eventually(lambda: client.query_unique_key(topic, result.unique_id))
    assert content_of_row(row) == expected
    assert row["message_id"] == result.message_id
    assert content_of_row(client.view(topic, result.offset_message_id)) == expected
    shown = client.mqadmin("queryMsgByUniqueKey", "-t", topic, "-i", result.unique_id)
    assert f"[{', '.join(spec.keys).replace(', ', ' ')}]" in shown
    # Of a batch, brokers put one more id over the messages' own, whoever has sent it: their keys find them.
    for number in range(3):
        (row,) = eventually(lambda number=number: client.query_key(topic, f"part-{number}"))
        assert (row["body_bytes"], row["queue_offset"]) == (2, batch.queue_offset + number)
