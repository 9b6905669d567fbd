"""Checks: messages that a client sent as a batch into a topic of inner batches are found by their own tags and keys."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import cometmq
import cometmq.testing
from cometmq.admin import connect
from cometmq.broker.plane import OutgoingMessage as StoredMessage
from cometmq.client import OutgoingMessage, Producer

EVERYTHING = [(b"%d" % n, "AB"[n % 2], f"k{n}") for n in range(6)] + [(b"single", "A", "s"), (b"plain", None, None)]


HALF = 4
"""The system flag of a half message: queues do not have it, the index has."""


@pytest.fixture(scope="module")
def store() -> Iterator[cometmq.Store]:
    """A batch of two tags, a single message, a batch without tags."""
    with cometmq.testing.cluster() as running:
        with connect(namesrv=running.name_server_address) as admin:
            admin.topics.create("b", queues=1, attributes={"queue.type": "BatchCQ"})
        with Producer("makers", name_servers=running.name_server_address) as producer:
            batch = [OutgoingMessage(body, tags=tag, keys=key) for body, tag, key in EVERYTHING[:6]]
            producer.send_batch(batch, topic="b")
            producer.send("b", b"single", tags="A", keys="s")
            producer.send_batch([OutgoingMessage(b"plain")], topic="b")
        half = StoredMessage(
            topic="b",
            queue_id=0,
            body=b"half",
            properties={"KEYS": "h half", "UNIQ_KEY": "H"},
            flag=0,
            sys_flag=HALF,
            born_timestamp_ms=1_700_000_000_000,
            born_host=("127.0.0.1", 1),
            reconsume_times=0,
        )
        running.brokers[0]._plane.put(half)
        path = running.path / running.brokers[0].config.settings.broker_name
        with cometmq.open(path, mode="r") as opened:
            yield opened


@pytest.mark.parametrize("tags", ["A", "B", "A || B", "none"])
def test_tags(store: cometmq.Store, tags: str) -> None:
    wanted = [body for body, tag, _ in EVERYTHING if tag in tags.split(" || ")]
    assert [bytes(message) for message in store.read("b", tags=tags)] == wanted
    assert [bytes(message) for message in store.read("b", tags=tags, backwards=True)] == wanted[::-1]
    assert [bytes(message) for message in store.read(tags=tags)] == wanted
    for columns in (["body"], ["body", "tags"]):
        assert store.scan("b", tags=tags, columns=columns).to_table().column("body").to_pylist() == wanted
        assert store.scan(tags=tags, columns=columns).to_table().column("body").to_pylist() == wanted
    assert store.scan("b", tags=tags).count() == len(wanted)


@pytest.mark.parametrize(
    ("where", "rows"),
    [("KEYS = 'k4'", [0]), ("TAGS = 'A'", [0, 6]), ("TAGS IS NULL", [0, 7]), ("KEYS = 'none'", [])],
)
def test_batches_as_one_row_match_where_one_of_their_messages_does(
    store: cometmq.Store, where: str, rows: list[int]
) -> None:
    """The record of a batch has neither keys nor tags of its own."""
    scan = store.scan("b", columns=["queue_offset"], compressed="raw", where=where)
    assert scan.to_table().column(0).to_pylist() == rows
    assert scan.count() == len(rows)
    assert [message.queue_offset for message in store.read("b", unwrap=False, where=where)] == rows


@pytest.mark.parametrize("key", ["k1", "k4", "s", "none"])
def test_find_returns_messages_inside_batches(store: cometmq.Store, key: str) -> None:
    wanted = [body for body, _, own in EVERYTHING if own == key]
    assert [bytes(message) for message in store.find("b", key) if not message.is_inner_batch] == wanted
    assert len(list(store.find("b", key, limit=1))) == len(wanted[:1])
    newest = max(message.store_timestamp_ms for message in store.read("b"))
    assert len(list(store.find("b", key, end_time=newest))) == len(wanted)
    assert list(store.find("b", key, start_time=newest + 1)) == []


def test_find_returns_half_messages_of_a_topic_with_batches(store: cometmq.Store) -> None:
    assert [bytes(message) for message in store.find("b", "h")] == [b"half"]
    assert [bytes(message) for message in store.find("b", "half")] == [b"half"]
    found = store.find_unique("b", "H")
    assert found is not None
    assert bytes(found) == b"half"


def test_find_unique_returns_messages_inside_batches(store: cometmq.Store) -> None:
    for message in store.read("b"):
        assert message.unique_id is not None
        found = store.find_unique("b", message.unique_id)
        assert found is not None
        assert bytes(found) == bytes(message)


@pytest.mark.parametrize("key", ["k1", "k4", "s"])
def test_keys(store: cometmq.Store, key: str) -> None:
    wanted = [body for body, _, own in EVERYTHING if own == key]
    assert store.scan("b", keys=key).to_table().column("body").to_pylist() == wanted
    assert store.scan("b", keys=key, tags="A").count() == sum(tag == "A" for _, tag, own in EVERYTHING if own == key)
