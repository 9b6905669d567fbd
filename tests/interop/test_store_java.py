"""Our store and a real broker on the same directory, one after the other, and one beside the other.

Each way round: the other side finds acknowledged messages, with every field equal, after clean stops and after kill -9
of either. The lengths of the files are so small that the messages cross segments, queue files and index files.
"""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import pytest

import cometmq
from interop.java_client import Client
from interop.ours import BLOCK, Workload, Writer, content_of_message, contents, row_of_message, settings
from interop.patterns import Content, MessageSpec, bulk, content_of_row, content_of_spec, in_batches, mixed, stored_row
from interop.processes import PEER_VERSION, PeerFailed
from interop.servers import Broker
from interop.sites import Peer

pytestmark = pytest.mark.java

TOPIC = "CrossTopic"
QUEUES = 3
OURS = Workload(TOPIC, QUEUES, singles=160, many=9000)
FOLLOW_LIMIT_S = 30.0


def pulled(client: Client) -> list[Content]:
    return sorted(map(content_of_row, client.pull_all(TOPIC)), key=repr)


def open_ours(path: Path, mode: str = "a") -> cometmq.Store:
    return cometmq.open(path, settings=settings()) if mode == "a" else cometmq.open(path, mode="r")


def write_ours(path: Path, end: str, flush: str) -> list[Content]:
    """Our process writes a store, and closes it or is killed at two thirds; returns what it acknowledged."""
    with Writer(path, OURS, flush=flush) as writer:
        if end == "clean":
            writer.finish()
        else:
            writer.wait_for((OURS.singles + OURS.many) * 2 // 3)
            writer.kill()
        return writer.acknowledged


def java_messages(seed: int) -> list[MessageSpec | list[MessageSpec]]:
    """Return the producer's messages: every kind, batches, and enough for further segments."""
    small = (spec for spec in mixed(TOPIC, 100, queues=QUEUES, seed=seed) if len(spec.body) < 1000)
    return [
        *mixed(TOPIC, 60, queues=QUEUES, seed=seed + 1),
        *in_batches(small, 8),
        *bulk(TOPIC, 2500, queues=QUEUES, seed=seed + 2),
    ]


def send_java(client: Client, broker: Broker, end: str) -> tuple[list[Content], int]:
    """The official producer adds messages; the broker stops cleanly behind them, or is killed while it still sends.

    Returns:
        The acknowledged messages, and how many more may be in the store.
    """
    entries = java_messages(100)
    specs = [spec for entry in entries for spec in (entry if isinstance(entry, list) else [entry])]
    acknowledged: list[Content] = []
    for spec, row in zip(specs, client.send(entries, compression="ZSTD"), strict=False):
        if "failed" in row:
            break
        assert row["status"] == "SEND_OK"
        acknowledged.append(content_of_spec(spec, row["queue"], row["queue_offset"]))
        if end == "kill" and len(acknowledged) == len(specs) // 2:
            broker.kill()
    if end == "clean":
        assert len(acknowledged) == len(specs)
        broker.stop()
    return acknowledged, 0 if end == "clean" else 1


def check_holds(found: list[Content], acknowledged: list[Content], in_flight: int) -> None:
    """All that was acknowledged is there, once, and at most what was in flight besides."""
    assert len(set(found)) == len(found)
    assert set(acknowledged) <= set(found)
    assert len(found) - len(acknowledged) <= in_flight


def check_java_finds(client: Client, broker: Broker) -> None:
    """Tags, keys, ids and times lead the broker to our messages, and it sees every field as we do."""
    rows = client.pull_all(TOPIC)
    with open_ours(broker.store, "r") as store:
        ours = {message.physical_offset: row_of_message(message) for message in store.read(TOPIC)}
        assert {row["physical_offset"]: stored_row(row) for row in rows} == ours
        assert client.offsets(TOPIC) == {
            queue.queue_id: (queue.min_offset, queue.max_offset) for queue in store.queues(TOPIC)
        }
        time_ms = rows[len(rows) // 2]["store_timestamp_ms"]
        for queue, offset in client.search_offset(TOPIC, time_ms).items():
            first = store.offset_at(TOPIC, queue, time_ms)
            # 4.9 gives any message of that millisecond, 5.x the first.
            last = store.offset_at(TOPIC, queue, time_ms, last=True) if broker.version < "5" else first
            assert first <= offset <= last
        tagged = contents(store.read(TOPIC, tags="AaAa || late"))
    assert sorted(map(content_of_row, client.pull_all(TOPIC, tags="AaAa || late")), key=repr) == tagged
    keyed = [row for row in rows if row["keys"]]
    for row in keyed[:: len(keyed) // 20]:
        (found,) = client.query_key(TOPIC, row["keys"].split()[0])
        assert found["physical_offset"] == row["physical_offset"]
        viewed = client.view(TOPIC, broker.offset_message_id(row["physical_offset"]))
        assert content_of_row(viewed) == content_of_row(row)


def check_we_find(store: cometmq.Store, wanted: list[Content]) -> None:
    """Through queues, keys and ids, everything once and in order."""
    messages = list(store.read(TOPIC))
    assert contents(messages) == wanted
    positions = [message.physical_offset for message in messages]
    assert positions == sorted(positions)
    for queue in range(QUEUES):
        offsets = [message.queue_offset for message in messages if message.queue_id == queue]
        assert offsets == list(range(len(offsets)))
    keyed = [message for message in messages if message.keys]
    for message in keyed[:: len(keyed) // 50]:
        (found,) = store.find(TOPIC, message.keys[0])
        assert found.physical_offset == message.physical_offset
    # The messages of a batch have one unique id between them.
    unique = {message.unique_id: message for message in messages if message.unique_id}
    for unique_id, message in list(unique.items())[:: max(1, len(unique) // 20)]:
        found_unique = store.find_unique(TOPIC, unique_id)
        assert found_unique is not None
        assert found_unique.physical_offset == message.physical_offset
    last = messages[-1]
    assert content_of_message(store.get_by_id(last.message_id)) == content_of_message(last)


FULL = pytest.mark.java(full=True)


@pytest.mark.parametrize(
    ("ours", "java", "flush", "version"),
    [
        pytest.param("clean", "clean", "sync", PEER_VERSION, marks=FULL),
        pytest.param("clean", "kill", "async", PEER_VERSION, marks=FULL),
        pytest.param("kill", "clean", "async", PEER_VERSION, marks=FULL),
        pytest.param("kill", "kill", "sync", PEER_VERSION),
        pytest.param("clean", "kill", "sync", "4.9.7", marks=FULL),
        pytest.param("kill", "clean", "sync", "4.9.7", marks=FULL),
    ],
)
def test_each_side_continues_the_store_of_the_other(
    peer: Peer, tmp_path: Path, ours: str, java: str, flush: str, version: str
) -> None:
    path, client = tmp_path / "store", peer.client
    acknowledged = write_ours(path, ours, flush)

    with peer.broker(path, version=version) as broker:
        found = pulled(client)
        check_holds(found, acknowledged, 0 if ours == "clean" else BLOCK)
        check_java_finds(client, broker)
        added, in_flight = send_java(client, broker, java)

    with open_ours(path, "r") as store:
        again = contents(store.read(TOPIC))
    check_holds(again, [*found, *added], in_flight)
    with open_ours(path) as store:
        check_we_find(store, again)
        more = Workload(TOPIC, QUEUES, singles=10, many=500, seed=7)
        again += more.contents([place for places in more.append_to(store) for place in places])
        again.sort(key=repr)
        check_we_find(store, again)

    with peer.broker(path, version=version) as broker:
        assert pulled(client) == again
        check_java_finds(client, broker)
        broker.kill()


@FULL
def test_a_java_broker_overrules_a_journal_of_commits(peer: Peer, tmp_path: Path) -> None:
    """A killed writer leaves commits in its journal alone. A broker goes on from the file, and its progress counts."""
    path, client, group = tmp_path / "store", peer.client, "journal_group"
    with cometmq.open(path, settings=settings(), default_queues=QUEUES, background=False) as store:
        for _ in Workload(TOPIC, QUEUES, singles=0, many=300).append_to(store):
            pass
        with store.consumer(group, TOPIC) as consumer:
            consumer.fetch(100)
            consumer.commit()
            in_file = {progress.queue_id: progress.offset for progress in store.progress(group, TOPIC)}
            for _ in range(5):
                consumer.fetch(20)
                consumer.commit()
        newest = {progress.queue_id: progress.offset for progress in store.progress(group, TOPIC)}
        killed = tmp_path / "killed"
        shutil.copytree(path, killed, ignore=shutil.ignore_patterns("wake"))
    with open_ours(killed, mode="r") as reader:
        assert {progress.queue_id: progress.offset for progress in reader.progress(group, TOPIC)} == newest != in_file
    with peer.broker(killed) as broker:
        assert client.group_offsets(group, TOPIC) == in_file
        client.group_consume(group, TOPIC, count=40)
        java = client.group_offsets(group, TOPIC)
        broker.stop()
    assert (killed / "cometmq" / "progress").exists()
    with open_ours(killed) as store:
        assert {progress.queue_id: progress.offset for progress in store.progress(group, TOPIC)} == java != newest


@FULL
def test_group_progress_goes_both_ways(peer: Peer, tmp_path: Path) -> None:
    """A group that began embedded goes on at the broker, and the other way round."""
    path, client, group = tmp_path / "store", peer.client, "cross_group"
    with cometmq.open(path, settings=settings(), default_queues=QUEUES) as store:
        for _ in Workload(TOPIC, QUEUES, singles=0, many=300).append_to(store):
            pass
        with store.consumer(group, TOPIC) as consumer:
            first = [next(consumer) for _ in range(100)]
            consumer.commit()
        ours = {progress.queue_id: progress.offset for progress in store.progress(group, TOPIC)}
    with peer.broker(path) as broker:
        assert client.group_offsets(group, TOPIC) == ours
        second = client.group_consume(group, TOPIC, count=120)
        java = client.group_offsets(group, TOPIC)
        broker.stop()
    with open_ours(path) as store:
        assert {progress.queue_id: progress.offset for progress in store.progress(group, TOPIC)} == java
        with store.consumer(group, TOPIC) as consumer:
            third = list(consumer)
        consumed = [*map(content_of_message, first), *map(content_of_row, second), *map(content_of_message, third)]
        assert sorted(consumed, key=repr) == contents(store.read(TOPIC))


@FULL
def test_topics_made_by_either_side(peer: Peer, tmp_path: Path) -> None:
    """topics.json goes to and fro without losing anybody's topics, ours without messages among them."""
    path, client = tmp_path / "store", peer.client
    with cometmq.open(path, settings=settings()) as store:
        store.create_topic("OursEmpty", queues=5)
        store.append("OursUsed", b"1", queue=0)
    with peer.broker(path) as broker:
        assert client.offsets("OursEmpty") == dict.fromkeys(range(5), (0, 0))
        assert client.offsets("OursUsed") == {0: (0, 1)}
        client.create_topic(broker, "JavaEmpty", queues=7)
        client.create_topic(broker, "JavaUsed", queues=2)
        assert [row["status"] for row in client.send([MessageSpec("JavaUsed", b"2", queue=1)])] == ["SEND_OK"]
        broker.kill()
    with open_ours(path) as store:
        assert {"OursEmpty", "OursUsed", "JavaEmpty", "JavaUsed"} <= set(store.topics())
        assert store.topic("JavaEmpty").write_queues == 7
        store.append("JavaUsed", b"3", queue=1)
        store.append("JavaEmpty", b"4", queue=6)
        store.create_topic("OursLater", queues=1)
    with peer.broker(path) as broker:
        assert client.offsets("JavaUsed") == {0: (0, 0), 1: (0, 2)}
        assert client.offsets("JavaEmpty")[6] == (0, 1)
        assert client.offsets("OursLater") == {0: (0, 0)}
        assert client.offsets("OursEmpty") == dict.fromkeys(range(5), (0, 0))
        broker.kill()


def follow(store: cometmq.Store, count: int, topic: str | None) -> list[Content]:
    """The next ``count`` messages of a store that somebody else writes, as they come; fewer if none comes for long."""
    with store.read(topic, follow=True, timeout_s=FOLLOW_LIMIT_S) as reader:
        return [content_of_message(message) for message in itertools.islice(reader, count)]


@pytest.mark.parametrize("whole_log", [False, pytest.param(True, marks=FULL)])
def test_follower_of_a_live_broker_sees_everything_once_and_in_order(
    peer: Peer, tmp_path: Path, whole_log: bool
) -> None:
    """A second process (this one) reads along while the broker appends; nothing is missed between two of its looks."""
    client = peer.client
    with peer.broker(tmp_path / "store") as broker:
        client.create_topic(broker, TOPIC, queues=QUEUES)
        specs = list(bulk(TOPIC, 6000, queues=QUEUES, seed=3))
        first = list(client.send(specs[:10]))
        rows = client.send(specs[10:])  # the client sends on its own while we read
        with open_ours(broker.store, "r") as store:
            seen = follow(store, len(specs), None if whole_log else TOPIC)
        sent = [
            content_of_spec(spec, row["queue"], row["queue_offset"])
            for spec, row in zip(specs, [*first, *rows], strict=True)
        ]
        broker.kill()
    assert sorted(seen, key=repr) == sorted(sent, key=repr)
    for queue in range(QUEUES):
        offsets = [content.queue_offset for content in seen if content.queue == queue]
        assert offsets == list(range(len(offsets)))


@FULL
def test_follower_goes_on_when_the_broker_is_killed_and_comes_back(peer: Peer, tmp_path: Path) -> None:
    client = peer.client
    specs = list(bulk(TOPIC, 3000, queues=QUEUES, seed=4))
    with peer.broker(tmp_path / "store") as broker:
        client.create_topic(broker, TOPIC, queues=QUEUES)
        rows = list(client.send(specs[:1000]))
        with open_ours(broker.store, "r") as store:
            with store.read(TOPIC, follow=True, timeout_s=FOLLOW_LIMIT_S) as reader:
                seen = list(itertools.islice(reader, 1000))
                for end, part in ((broker.kill, specs[1000:2000]), (broker.stop, specs[2000:])):
                    end()
                    broker.start()
                    peer.await_broker(broker)
                    rows += list(client.send(part))
                    seen += itertools.islice(reader, 1000)
            assert list(map(content_of_message, store.read(TOPIC))) == list(map(content_of_message, seen))
        broker.kill()
    sent = [content_of_spec(spec, row["queue"], row["queue_offset"]) for spec, row in zip(specs, rows, strict=True)]
    assert contents(seen) == sorted(sent, key=repr)


@FULL
def test_follower_that_came_before_the_first_message(peer: Peer, tmp_path: Path) -> None:
    """An empty store tells nobody the lengths of its files: they are given, or the follower learns that it guessed."""
    client = peer.client
    specs = list(bulk(TOPIC, 2500, queues=QUEUES, seed=5))
    with peer.broker(tmp_path / "store") as broker:
        client.create_topic(broker, TOPIC, queues=QUEUES)
        with (
            cometmq.open(broker.store, mode="r", settings=settings()) as told,
            cometmq.open(broker.store, mode="r") as guessing,
        ):
            rows = client.send(specs)
            seen = follow(told, len(specs), TOPIC)
            with pytest.raises(cometmq.StoreClosed, match="open it again"):
                follow(guessing, len(specs), TOPIC)
        sent = [content_of_spec(spec, row["queue"], row["queue_offset"]) for spec, row in zip(specs, rows, strict=True)]
        broker.kill()
    assert sorted(seen, key=repr) == sorted(sent, key=repr)


@FULL
def test_broker_and_we_exclude_each_other(peer: Peer, tmp_path: Path) -> None:
    path = tmp_path / "store"
    with cometmq.open(path, settings=settings()) as store:
        store.append(TOPIC, b"ours", keys="k")
        with pytest.raises(PeerFailed, match="Lock failed"), peer.broker(path):
            pass
        # The refused broker has changed nothing.
        store.append(TOPIC, b"ours again")
    with peer.broker(path) as broker:
        with pytest.raises(cometmq.StoreLocked) as refused:
            open_ours(path)
        assert refused.value.holder_pid == broker.pid
        # Nor may a reader leave messages for a broker: it would never take them.
        with open_ours(path, "r") as store, pytest.raises(cometmq.StoreLocked):
            store.append(TOPIC, b"not taken")
        broker.kill()
    with open_ours(path) as store:
        assert [message.body_bytes for message in store.read(TOPIC)] == [b"ours", b"ours again"]
