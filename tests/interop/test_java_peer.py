"""The peer alone: a real broker, producer and consumer agree with each other, so that later differences are ours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from interop.java_client import Client, Row
from interop.patterns import Content, MessageSpec, content_of_row, content_of_spec, in_batches, mixed
from interop.servers import StoreSizes
from interop.sites import Peer

pytestmark = pytest.mark.java

TOPIC = "PeerTopic"
QUEUES = 4


def send_all(
    client: Client, entries: Sequence[MessageSpec | Sequence[MessageSpec]], compression: str = "ZLIB"
) -> list[Content]:
    """Sends everything, demands that all is accepted, and returns what must now be in the store."""
    specs = [spec for entry in entries for spec in ([entry] if isinstance(entry, MessageSpec) else entry)]
    rows = list(client.send(entries, compression=compression))
    assert [row.get("status") for row in rows] == ["SEND_OK"] * len(specs), rows[-1]
    return [content_of_spec(spec, row["queue"], row["queue_offset"]) for spec, row in zip(specs, rows, strict=True)]


def pulled(client: Client, topic: str, tags: str | None = None) -> list[Content]:
    return sorted(map(content_of_row, client.pull_all(topic, tags=tags)), key=repr)


def test_producer_and_consumer_agree(peer: Peer, tmp_path: Path) -> None:
    client = peer.client
    with peer.broker(tmp_path / "store") as broker:
        client.create_topic(broker, TOPIC, queues=QUEUES)
        sent = send_all(client, list(mixed(TOPIC, 160, queues=QUEUES)))
        for seed, compression in enumerate(("ZLIB", "LZ4", "ZSTD"), start=2):
            sent += send_all(client, list(mixed(TOPIC, 24, queues=QUEUES, seed=seed)), compression=compression)
        small = (spec for spec in mixed(TOPIC, 200, queues=QUEUES, seed=9) if len(spec.body) < 1000)
        sent += send_all(client, list(in_batches(small, 8)))

        assert pulled(client, TOPIC) == sorted(sent, key=repr)
        assert pulled(client, TOPIC, "AaAa || late") == sorted(
            (c for c in sent if c.tags in ("AaAa", "late")), key=repr
        )
        assert client.offsets(TOPIC) == {
            queue: (0, sum(content.queue == queue for content in sent)) for queue in range(QUEUES)
        }

        rows = client.pull_all(TOPIC)
        _check_lookups(client, broker.offset_message_id, rows)
        group = client.group_consume("peer_group", TOPIC, count=50)
        assert len(group) == 50
        assert sum(client.group_offsets("peer_group", TOPIC).values()) == 50

    # The clean stop has left a whole store behind.
    store = tmp_path / "store"
    assert not (store / "abort").exists()
    sizes = StoreSizes()
    assert {file.stat().st_size for file in (store / "commitlog").iterdir()} == {sizes.commit_log_bytes}
    assert {file.stat().st_size for file in (store / "consumequeue" / TOPIC).glob("*/*")} == {
        sizes.consume_queue_units * 20
    }


def _check_lookups(client: Client, offset_id: object, rows: list[Row]) -> None:
    """By key, by unique id, by offset id and by time the broker finds the same message as the pull did."""
    assert callable(offset_id)
    keyed = next(row for row in rows if row["keys"])
    (found,) = client.query_key(TOPIC, keyed["keys"].split()[0])
    assert content_of_row(found) == content_of_row(keyed)
    assert client.query_key(TOPIC, "nobody has this key") == []

    (by_unique,) = client.query_unique_key(TOPIC, keyed["message_id"])
    assert content_of_row(by_unique) == content_of_row(keyed)
    assert keyed["offset_message_id"] == offset_id(keyed["physical_offset"])
    assert content_of_row(client.view(TOPIC, keyed["offset_message_id"])) == content_of_row(keyed)

    time_ms = max(row["store_timestamp_ms"] for row in rows if row["queue"] == 0)
    first = min(row["queue_offset"] for row in rows if row["queue"] == 0 and row["store_timestamp_ms"] >= time_ms)
    assert client.search_offset(TOPIC, time_ms)[0] == first


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.java(full=True)
def test_broker_keeps_acknowledged_messages_through_kill_and_restart(peer: Peer, tmp_path: Path, flush: str) -> None:
    client = peer.client
    with peer.broker(tmp_path / "store", flush=flush) as broker:
        client.create_topic(broker, TOPIC, queues=QUEUES)
        sent = send_all(client, list(mixed(TOPIC, 100, queues=QUEUES)))
        broker.kill()
        assert (tmp_path / "store" / "abort").exists()
        broker.start()
        peer.await_broker(broker)
        assert pulled(client, TOPIC) == sorted(sent, key=repr)
        sent += send_all(client, list(mixed(TOPIC, 100, queues=QUEUES, seed=2)))
        assert pulled(client, TOPIC) == sorted(sent, key=repr)


@pytest.mark.java(full=True)
def test_rows_come_while_the_sending_goes_on(peer: Peer, tmp_path: Path) -> None:
    """A broker killed in the middle: acknowledged messages are there afterwards, the producer reports the end."""
    client = peer.client
    with peer.broker(tmp_path / "store") as broker:
        client.create_topic(broker, TOPIC, queues=QUEUES)
        specs = list(mixed(TOPIC, 5000, queues=QUEUES))
        rows = client.send(specs)
        acknowledged = []
        for spec, row in zip(specs, rows, strict=False):
            if "failed" in row:
                break
            acknowledged.append(content_of_spec(spec, row["queue"], row["queue_offset"]))
            if len(acknowledged) == 60:
                broker.kill()
        assert 60 <= len(acknowledged) < len(specs)
        assert list(rows) == []

        broker.start()
        peer.await_broker(broker)
        assert set(acknowledged) <= set(pulled(client, TOPIC))


@pytest.mark.java(full=True)
def test_an_older_broker_agrees_with_the_same_client(peer: Peer, tmp_path: Path) -> None:
    client = peer.client
    with peer.broker(tmp_path / "store", version="4.9.7") as broker:
        client.create_topic(broker, TOPIC, queues=QUEUES)
        sent = send_all(client, list(mixed(TOPIC, 80, queues=QUEUES)))
        assert pulled(client, TOPIC) == sorted(sent, key=repr)
        _check_lookups(client, broker.offset_message_id, client.pull_all(TOPIC))
