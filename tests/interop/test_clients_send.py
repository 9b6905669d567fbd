"""Every way in which the official client sends, read back by the official client: only the address changes."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Sequence

import pytest

from interop.java_client import Client, Row
from interop.landscapes import for_each_client, in_each_pair, in_full_only, ours_only
from interop.patterns import Content, MessageSpec, content_of_row, content_of_spec, in_batches, mixed
from interop.processes import PEER_VERSION, PeerFailed
from interop.sites import Peer

pytestmark = pytest.mark.java

QUEUES = 4
NO_PERMISSION = 16
MESSAGE_ILLEGAL = 13
TOPIC_NOT_EXIST_FOR_CLIENT = 10005
BROKER_LIMIT_BYTES = 4 << 20


def acknowledged(specs: Sequence[MessageSpec], rows: Sequence[Row]) -> list[Content]:
    """Return the expected content of the store when all was accepted."""
    assert [row.get("status") for row in rows] == ["SEND_OK"] * len(specs), rows[-1]
    return [content_of_spec(spec, row["queue"], row["queue_offset"]) for spec, row in zip(specs, rows, strict=True)]


def in_order(contents: Sequence[Content]) -> list[Content]:
    return sorted(contents, key=repr)


def pulled(client: Client, topic: str, tags: str | None = None) -> list[Content]:
    return in_order([content_of_row(row) for row in client.pull_all(topic, tags=tags)])


@for_each_client
def test_single_and_batched_sends_are_read_unchanged(site: Peer) -> None:
    client, topic = site.client, "SendSync"
    client.create_topic(site.shared_broker, topic, queues=QUEUES)
    specs = list(mixed(topic, 64, queues=QUEUES))
    sent = acknowledged(specs, list(client.send(specs)))
    batches = list(in_batches((s for s in mixed(topic, 120, queues=QUEUES, seed=2) if len(s.body) < 1000), 8))
    sent += acknowledged([spec for batch in batches for spec in batch], list(client.send(batches)))
    assert pulled(client, topic) == in_order(sent)
    # Tags with the same hash stay distinct, and a message without a tag does not match.
    assert pulled(client, topic, "AaAa || late") == in_order([c for c in sent if c.tags in ("AaAa", "late")])


@in_full_only
@in_each_pair
def test_bodies_compressed_in_every_way_come_back(site: Peer) -> None:
    client, topic = site.client, "SendCompressed"
    client.create_topic(site.shared_broker, topic, queues=QUEUES)
    sent: list[Content] = []
    for seed, compression in enumerate(("ZLIB", "LZ4", "ZSTD")):
        specs = [s for s in mixed(topic, 48, queues=QUEUES, seed=seed) if len(s.body) > 4096]
        assert specs
        sent += acknowledged(specs, list(client.send(specs, compression=compression)))
    assert pulled(client, topic) == in_order(sent)


@for_each_client
def test_many_on_the_way_at_once(site: Peer) -> None:
    client, topic = site.client, "SendAsync"
    client.create_topic(site.shared_broker, topic, queues=QUEUES)
    specs = [spec for spec in mixed(topic, 400, queues=QUEUES) if len(spec.body) < 1000]
    assert pulled(client, topic) == []
    sent = acknowledged(specs, list(client.send(specs, mode="async")))
    assert len({(content.queue, content.queue_offset) for content in sent}) == len(specs)
    assert pulled(client, topic) == in_order(sent)


@in_full_only
@for_each_client
def test_one_way_messages_arrive(site: Peer) -> None:
    client, topic, group = site.client, "SendOneway", "send_oneway"
    client.create_topic(site.shared_broker, topic, queues=QUEUES)
    specs = [MessageSpec(topic, f"one way {number}".encode(), queue=number % QUEUES) for number in range(60)]
    assert [row["status"] for row in client.send(specs, mode="oneway")] == ["ONEWAY"] * len(specs)
    client.start_consumer("reader", group, {topic: "*"})
    rows = client.consumed("reader", count=len(specs))
    assert sorted(row["body_sha256"] for row in rows) == sorted(
        content_of_spec(spec, 0, 0).body_sha256 for spec in specs
    )


@in_full_only
@for_each_client
def test_the_selector_by_hash_keeps_a_key_in_its_queue_and_in_order(site: Peer) -> None:
    client, topic = site.client, "SendSelector"
    client.create_topic(site.shared_broker, topic, queues=QUEUES)
    specs = [
        MessageSpec(topic, f"{number}".encode(), tags=f"tag{number % 12}", hash_key=f"order-{number % 12}")
        for number in range(96)
    ]
    sent = acknowledged(specs, list(client.send(specs)))
    queues: defaultdict[str | None, set[int]] = defaultdict(set)
    for content in sent:
        queues[content.tags].add(content.queue)
    assert all(len(chosen) == 1 for chosen in queues.values())
    assert len({queue for chosen in queues.values() for queue in chosen}) > 1
    assert pulled(client, topic) == in_order(sent)


@for_each_client
def test_a_delayed_message_comes_when_its_time_has_come(site: Peer) -> None:
    client, topic, group = site.client, "SendDelayed", "send_delayed"
    client.create_topic(site.shared_broker, topic, queues=QUEUES)
    client.start_consumer("reader", group, {topic: "*"})
    specs = [
        MessageSpec(topic, b"in two seconds", "late", ("k1", "k2"), {"own": "property"}, 1, delay_level=2),
        MessageSpec(topic, b"in one second", "early", queue=2, delay_level=1),
        MessageSpec(topic, b"now", "now", queue=3),
    ]
    rows = list(client.send(specs))
    assert [row["status"] for row in rows] == ["SEND_OK"] * 3
    seen = {row["tags"]: row for row in client.consumed("reader", count=3)}
    # Content as sent, in the queue that it was sent to, at the place that it got when its time had come.
    for queue, spec in enumerate(specs, start=1):
        if spec.delay_level is not None:
            waited = {"DELAY": str(spec.delay_level), "REAL_TOPIC": topic, "REAL_QID": str(queue)}
            spec = dataclasses.replace(spec, properties={**spec.properties, **waited})
        assert content_of_row(seen[str(spec.tags)]) == content_of_spec(spec, queue, 0)
    late = seen["late"]
    assert late["message_id"] == rows[0]["message_id"]
    assert late["store_timestamp_ms"] - late["born_timestamp_ms"] >= 2000
    assert seen["early"]["store_timestamp_ms"] - seen["early"]["born_timestamp_ms"] >= 1000
    assert all(row["consumed_at_ms"] >= row["store_timestamp_ms"] for row in seen.values())


@in_full_only
@for_each_client
def test_a_topic_that_nobody_made_is_made_by_the_first_message(site: Peer) -> None:
    client, topic = site.client, "SendNewTopic"
    assert site.shared_broker.address
    (row,) = client.send([MessageSpec(topic, b"first")])
    assert row["status"] == "SEND_OK"
    # The route is there as soon as the broker has registered the topic, which it does without waiting for its period.
    client.start_consumer("reader", "send_new_topic", {topic: "*"})
    (seen,) = client.consumed("reader", count=1)
    assert content_of_row(seen) == content_of_spec(MessageSpec(topic, b"first"), row["queue"], row["queue_offset"])
    assert set(client.offsets(topic)) == set(range(QUEUES))


@for_each_client
def test_refused_send_raises_with_the_code_of_the_broker(site: Peer) -> None:
    client, topic, closed = site.client, "SendRefused", "SendClosed"
    broker = site.shared_broker
    client.create_topic(broker, topic, queues=1)
    client.create_topic(broker, closed, queues=1)
    too_large = MessageSpec(topic, bytes(BROKER_LIMIT_BYTES + 1))
    (row,) = client.send([too_large], compress_over_bytes=1 << 30, max_message_bytes=1 << 30)
    assert (row["kind"], row["code"]) == ("MQBrokerException", MESSAGE_ILLEGAL)

    # Where the client does not look before it sends.
    (row,) = client.send([MessageSpec(topic, b"x", properties={"long": "x" * 33_000})])
    assert (row["kind"], row["code"]) == ("MQBrokerException", MESSAGE_ILLEGAL)

    # These the client itself refuses.
    for illegal in ("Not a topic", "SCHEDULE_TOPIC_XXXX"):
        (row,) = client.send([MessageSpec(illegal, b"x")])
        assert row["kind"] == "MQClientException"

    # Nothing of it was stored.
    assert pulled(client, topic) == []
    client.mqadmin("updateTopic", "-b", broker.address, "-t", closed, "-r", "1", "-w", "1", "-p", "4")
    (row,) = client.send([MessageSpec(closed, b"x")])
    assert row["code"] in (NO_PERMISSION, TOPIC_NOT_EXIST_FOR_CLIENT), row


@in_full_only
@ours_only
def test_unsupported_requests_are_refused(site: Peer) -> None:
    client, topic = site.client, "SendLater"
    client.create_topic(site.shared_broker, topic, queues=1)
    for properties, code in (
        ({"TRAN_MSG": "true", "PGROUP": "senders"}, NO_PERMISSION),
        ({"TIMER_DELIVER_MS": str(1 << 42)}, MESSAGE_ILLEGAL),
    ):
        (row,) = client.send([MessageSpec(topic, b"x", system_properties=properties)])
        assert row.get("code") == code, (properties, row)
    with pytest.raises(PeerFailed, match="CODE: 1 "):
        client.start_consumer("sql", "send_later", {topic: "a > 5"}, is_sql=True)
    assert pulled(client, topic) == []


@for_each_client
def test_messages_are_found_by_key_by_unique_key_by_id_and_by_time(site: Peer) -> None:
    client, topic = site.client, "SendFound"
    if client.version != PEER_VERSION:
        pytest.skip("the admin client's answers have other classes in 4.9")
    broker = site.shared_broker
    client.create_topic(broker, topic, queues=QUEUES)
    specs = [spec for spec in mixed(topic, 60, queues=QUEUES) if len(spec.body) < 1000]
    acknowledged(specs, list(client.send(specs)))
    rows = client.pull_all(topic)
    keyed = [row for row in rows if row["keys"]]
    assert len(keyed) > 10
    for row in keyed[:5]:
        (found,) = client.query_key(topic, row["keys"].split()[-1])
        assert content_of_row(found) == content_of_row(row)
        (found,) = client.query_unique_key(topic, row["message_id"])
        assert content_of_row(found) == content_of_row(row)
        assert row["offset_message_id"] == broker.offset_message_id(row["physical_offset"])
        assert content_of_row(client.view(topic, row["offset_message_id"])) == content_of_row(row)
    assert client.query_key(topic, "nobody has this key") == []

    times = sorted(row["store_timestamp_ms"] for row in rows)
    for time_ms in (times[0], times[len(times) // 2], times[-1]):
        expected = {
            queue: min(
                (row["queue_offset"] for row in rows if row["queue"] == queue and row["store_timestamp_ms"] >= time_ms),
                default=max(row["queue_offset"] for row in rows if row["queue"] == queue) + 1,
            )
            for queue in range(QUEUES)
        }
        assert client.search_offset(topic, time_ms) == expected
