"""State that outlives a process: progress, acknowledged messages, the store's directory from one broker to another."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from interop.landscapes import in_each_pair, in_full_only, ours_and_upstream, ours_only
from interop.patterns import Content, MessageSpec, content_of_row, content_of_spec, in_batches, mixed
from interop.sites import Maker, Peer

pytestmark = pytest.mark.java

QUEUES = 4


def numbered(topic: str, numbers: range) -> list[MessageSpec]:
    return [MessageSpec(topic, b"x", keys=(f"n{number}",), queue=number % QUEUES) for number in numbers]


def keys_of(numbers: range) -> list[str]:
    return sorted(f"n{number}" for number in numbers)


@in_full_only
@in_each_pair
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_progress_outlives_consumers_and_brokers(site: Peer, tmp_path: Path, end: str) -> None:
    client, topic, group = site.client, f"Outlive_{end}", f"outlive_{end}"
    with site.broker(tmp_path / "store", name=f"broker-{end}") as broker:
        client.create_topic(broker, topic, queues=QUEUES)
        sent = range(100)
        assert [row["status"] for row in client.send(numbered(topic, sent))] == ["SEND_OK"] * len(sent)
        client.start_consumer("one", group, {topic: "*"})
        rows = client.consumed("one", count=len(sent))
        assert sorted(row["keys"] for row in rows) == keys_of(sent)
        client.stop_consumers("one")
        if end == "kill":
            # A consumer's commits are written down every second here, and not before a kill.
            broker.await_written(group, topic, len(sent))
        getattr(broker, end)()
        broker.start()
        site.await_broker(broker)
        client.await_topic(topic)

        more = range(100, 140)
        assert [row["status"] for row in client.send(numbered(topic, more))] == ["SEND_OK"] * len(more)
        client.start_consumer("two", group, {topic: "*"})
        rows = client.consumed("two", count=len(more))
        assert sorted(row["keys"] for row in rows) == keys_of(more)
        client.stop_consumers("two")
        client.await_progress(group, topic, dict.fromkeys(range(QUEUES), 35))
        assert client.group_offsets(group, topic) == dict.fromkeys(range(QUEUES), 35)


@in_full_only
@in_each_pair
def test_a_running_consumer_outlives_its_broker(site: Peer, tmp_path: Path) -> None:
    """It reconnects, and misses nothing; messages that it had not committed yet may be redelivered."""
    client, topic, group = site.client, "Running", "running"
    with site.broker(tmp_path / "store", name="broker-running") as broker:
        client.create_topic(broker, topic, queues=QUEUES)
        client.start_consumer("reader", group, {topic: "*"})
        assert len(list(client.send(numbered(topic, range(40))))) == 40
        client.consumed("reader", count=40)
        client.committed("reader", topic=topic, count=40)
        broker.await_written(group, topic, 40)
        broker.kill()
        broker.start()
        site.await_broker(broker)
        client.await_topic(topic)
        assert [row["status"] for row in client.send(numbered(topic, range(40, 80)))] == ["SEND_OK"] * 40
        rows = client.consumed("reader", count=80)
        assert sorted(row["keys"] for row in rows) == keys_of(range(80))


@in_full_only
@in_each_pair
@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_acknowledged_messages_survive_a_kill(site: Peer, tmp_path: Path, flush: str) -> None:
    client, topic = site.client, f"Killed_{flush}"
    with site.broker(tmp_path / "store", name=f"broker-{flush}", flush=flush) as broker:
        client.create_topic(broker, topic, queues=QUEUES)
        specs = [spec for spec in mixed(topic, 6000, queues=QUEUES) if len(spec.body) < 1000]
        acknowledged: list[Content] = []
        for spec, row in zip(specs, client.send(specs), strict=False):
            if "failed" in row:
                break
            acknowledged.append(content_of_spec(spec, row["queue"], row["queue_offset"]))
            if len(acknowledged) == 500:
                broker.kill()
        assert 500 <= len(acknowledged) < len(specs)
        broker.start()
        site.await_broker(broker)
        client.await_topic(topic)
        found = [content_of_row(row) for row in client.pull_all(topic)]
        assert set(acknowledged) <= set(found)
        # Besides at most the one whose answer the kill cut off.
        assert len(found) <= len(acknowledged) + 1
        # Life goes on behind it.
        (row,) = client.send([MessageSpec(topic, b"after", queue=0)])
        assert row["queue_offset"] == sum(content.queue == 0 for content in found)


@in_full_only
@ours_only
@pytest.mark.parametrize(
    ("first", "then", "end"),
    [(*makers, end) for makers in itertools.permutations(Maker) for end in ("stop", "kill")],
    ids=lambda value: value if isinstance(value, str) else value.value,
)
def test_one_store_from_broker_to_broker(site: Peer, tmp_path: Path, first: Maker, then: Maker, end: str) -> None:
    """Everything that clients left with one broker is served by the other, over the same directory."""
    client, topic, group = site.client, f"Moved_{first.value}_{end}", f"moved_{first.value}_{end}"
    specs = list(mixed(topic, 80, queues=QUEUES))
    batches = list(in_batches((s for s in mixed(topic, 80, queues=QUEUES, seed=2) if len(s.body) < 1000), 8))
    every = [*specs, *(spec for batch in batches for spec in batch)]
    delayed = [MessageSpec(topic, b"to be given out later", "later", queue=1, delay_level=2)]
    with site.broker(tmp_path / "store", maker=first, name="broker-moved") as broker:
        client.create_topic(broker, topic, queues=QUEUES)
        rows = list(client.send([*specs, *batches]))
        sent = [content_of_spec(spec, row["queue"], row["queue_offset"]) for spec, row in zip(every, rows, strict=True)]
        consumed = client.group_consume(group, topic, count=50)
        broker.await_written(group, topic, 50)
        # Due in the next broker's time, five seconds from now.
        assert [row["status"] for row in client.send(delayed)] == ["SEND_OK"]
        getattr(broker, end)()

    with site.broker(tmp_path / "store", maker=then, name="broker-moved") as broker:
        client.await_topic(topic)
        found = [content_of_row(row) for row in client.pull_all(topic) if row["tags"] != "later"]
        assert sorted(found, key=repr) == sorted(sent, key=repr)
        assert sum(client.group_offsets(group, topic).values()) == 50
        # The group goes on behind what it had, and gets what was delayed meanwhile.
        client.start_consumer("next", group, {topic: "*"})
        rest = client.consumed("next", count=len(sent) - 50 + len(delayed))
        # By place: the client gives the messages of a batch one id.
        places = [(row["queue"], row["queue_offset"]) for row in consumed + rest]
        assert len(places) == len(set(places)) == len(sent) + len(delayed)
        assert {(content.queue, content.queue_offset) for content in sent} < set(places)
        (late,) = (row for row in rest if row["tags"] == "later")
        assert late["body_sha256"] == content_of_spec(delayed[0], 1, 0).body_sha256
        keyed = next(content for content in sent if content.keys)
        assert keyed.keys[0] in {key for row in client.query_key(topic, keyed.keys[0]) for key in row["keys"].split()}


@in_full_only
@ours_and_upstream
def test_one_group_over_our_broker_and_upstreams(site: Peer, tmp_path: Path) -> None:
    """Two brokers under one name server, one of either kind: producers and a group of consumers see one topic."""
    client, topic, group = site.client, "Spanning", "spanning"
    other = Maker.JAVA if site.landscape.broker is Maker.OURS else Maker.OURS
    with (
        site.broker(tmp_path / "this", name="broker-this") as this,
        site.broker(tmp_path / "that", maker=other, name="broker-that") as that,
    ):
        client.create_topic(this, topic, queues=QUEUES)
        client.create_topic(that, topic, queues=QUEUES, in_all=2 * QUEUES)
        specs = [MessageSpec(topic, b"x", keys=(f"n{number}",)) for number in range(240)]
        client.start_consumer("one", group, {topic: "*"})
        client.start_consumer("two", group, {topic: "*"})
        owners = client.divided("one", "two", topic=topic, queues=2 * QUEUES)
        assert {queue.split(":")[0] for owned in owners.values() for queue in owned} == {"broker-this", "broker-that"}
        sent = list(client.send(specs))
        assert {row["broker"] for row in sent} == {"broker-this", "broker-that"}
        rows = client.consumed("one", "two", count=len(specs))
        assert sorted(row["keys"] for row in rows) == sorted(spec.keys[0] for spec in specs)
        assert sorted((row["message_id"], row["broker"], row["queue"], row["queue_offset"]) for row in rows) == sorted(
            (row["message_id"], row["broker"], row["queue"], row["queue_offset"]) for row in sent
        )
        # One leaves: the other has the queues of both brokers.
        client.committed("one", "two", topic=topic, count=len(specs))
        client.stop_consumers("one")
        client.divided("two", topic=topic, queues=2 * QUEUES)
        more = [MessageSpec(topic, b"x", keys=(f"n{number}",)) for number in range(240, 300)]
        assert len(list(client.send(more))) == len(more)
        rows = client.consumed("one", "two", count=len(specs) + len(more))
        assert len(rows) == len(specs) + len(more)
