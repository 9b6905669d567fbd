"""Consumers of the official client in a group: shares, order, starting offsets and redelivery."""

from __future__ import annotations

import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from interop.java_client import Client, Row
from interop.landscapes import for_each_client, in_each_pair, in_full_only
from interop.patterns import MessageSpec
from interop.sites import Peer
from support.golden import GoldenStores, expected_records

pytestmark = pytest.mark.java

QUEUES = 8
EXPIRED = "apache-5.3.3-expired"
RETRY_LEVEL_1_MS = 1000
NOT_LONG_MS = 8_000
"""Less than any period by which a message could be found without a hold being woken: those are 15 s and more."""


def numbered(
    topic: str, count: int, *, start: int = 0, tags: str | None = None, queues: int = QUEUES
) -> list[MessageSpec]:
    return [
        MessageSpec(topic, b"x", tags, (f"n{number}",), {}, number % queues) for number in range(start, start + count)
    ]


def send(client: Client, specs: Sequence[MessageSpec]) -> None:
    rows = list(client.send(specs))
    assert [row.get("status") for row in rows] == ["SEND_OK"] * len(specs), rows[-1]


def keys(rows: Iterable[Row]) -> list[str]:
    return sorted(str(row["keys"]) for row in rows if row["consumed"])


def keys_of(specs: Iterable[MessageSpec]) -> list[str]:
    return sorted(spec.keys[0] for spec in specs)


def check_divided(owners: dict[str, list[str]], queues: int = QUEUES) -> None:
    """Each queue has one owner, and nobody has two more than another."""
    assert sorted(queue for owned in owners.values() for queue in owned) == sorted(
        {queue for owned in owners.values() for queue in owned}
    )
    sizes = [len(owned) for owned in owners.values()]
    assert sum(sizes) == queues
    assert min(sizes) >= queues // len(sizes)


@for_each_client
def test_consumers_come_and_go_and_each_message_is_consumed_once(site: Peer) -> None:
    client, topic, group = site.client, "GroupChanges", "group_changes"
    client.create_topic(site.shared_broker, topic, queues=QUEUES)
    specs = numbered(topic, 500)
    client.start_consumer("one", group, {topic: "*"})
    client.start_consumer("two", group, {topic: "*"})
    check_divided(client.divided("one", "two", topic=topic, queues=QUEUES))
    send(client, specs[:200])
    rows = client.consumed("one", "two", count=200)
    assert keys(rows) == keys_of(specs[:200])
    assert {row["consumer"] for row in rows} == {"one", "two"}

    client.committed("one", "two", topic=topic, count=200)
    client.start_consumer("three", group, {topic: "*"})
    check_divided(client.divided("one", "two", "three", topic=topic, queues=QUEUES))
    send(client, specs[200:400])
    rows = client.consumed("one", "two", "three", count=400)
    assert keys(rows) == keys_of(specs[:400])
    assert "three" in {row["consumer"] for row in rows}

    client.committed("one", "two", "three", topic=topic, count=400)
    client.stop_consumers("one")
    owners = client.divided("two", "three", topic=topic, queues=QUEUES)
    check_divided(owners)
    send(client, specs[400:])
    rows = client.consumed("one", "two", "three", count=500)
    assert keys(rows) == keys_of(specs)
    # The owner of a queue gets its messages.
    places = {queue: consumer for consumer, owned in owners.items() for queue in owned}
    for row in rows:
        if int(str(row["keys"])[1:]) >= 400:
            assert row["consumer"] == places[f"{row['broker']}:{row['queue']}"]


@in_full_only
@in_each_pair
def test_heartbeats_that_are_fingerprints_keep_a_group_together(site: Peer) -> None:
    client, topic, group = site.client, "Fingerprints", "fingerprints"
    client.create_topic(site.shared_broker, topic, queues=QUEUES)
    specs = numbered(topic, 120)
    for name in ("one", "two"):
        client.start_consumer(name, group, {topic: "*"}, has_heartbeat_v2=True)
    check_divided(client.divided("one", "two", topic=topic, queues=QUEUES))
    send(client, specs[:60])
    assert keys(client.consumed("one", "two", count=60)) == keys_of(specs[:60])
    client.committed("one", "two", topic=topic, count=60)
    client.stop_consumers("one")
    check_divided(client.divided("two", topic=topic, queues=QUEUES))
    send(client, specs[60:])
    assert keys(client.consumed("one", "two", count=120)) == keys_of(specs)


@in_full_only
@in_each_pair
def test_members_that_let_the_broker_share_the_queues_out(site: Peer) -> None:
    client, topic, group = site.client, "BrokerShares", "broker_shares"
    client.create_topic(site.shared_broker, topic, queues=QUEUES)
    specs = numbered(topic, 120)
    for name in ("one", "two"):
        client.start_consumer(name, group, {topic: "*"}, client_rebalance=False)
    check_divided(client.divided("one", "two", topic=topic, queues=QUEUES))
    send(client, specs[:60])
    assert keys(client.consumed("one", "two", count=60)) == keys_of(specs[:60])
    client.committed("one", "two", topic=topic, count=60)
    client.stop_consumers("one")
    check_divided(client.divided("two", topic=topic, queues=QUEUES))
    send(client, specs[60:])
    assert keys(client.consumed("one", "two", count=120)) == keys_of(specs)


@for_each_client
def test_an_idle_consumer_gets_a_message_when_it_is_sent(site: Peer) -> None:
    client, topic, group = site.client, "Held", "held"
    client.create_topic(site.shared_broker, topic, queues=2)
    client.start_consumer("idle", group, {topic: "*"})
    client.divided("idle", topic=topic, queues=2)
    for number in range(5):
        send(client, numbered(topic, 1, start=number, queues=2))
        row = client.consumed("idle", count=number + 1)[-1]
        assert row["consumed_at_ms"] - row["store_timestamp_ms"] < NOT_LONG_MS


@for_each_client
def test_orderly_consumers_keep_each_queue_in_order_through_failures_and_changes(site: Peer) -> None:
    client, topic, group = site.client, "Orderly", "orderly"
    client.create_topic(site.shared_broker, topic, queues=QUEUES)
    stubborn = {"stubborn": 3}
    specs = [
        MessageSpec(topic, b"x", "stubborn" if number % 40 == 7 else "easy", (f"n{number}",), queue=number % QUEUES)
        for number in range(240)
    ]
    client.start_consumer("one", group, {topic: "*"}, is_orderly=True, fail_until=stubborn)
    send(client, specs[:120])
    client.consumed("one", count=120)
    client.start_consumer("two", group, {topic: "*"}, is_orderly=True, fail_until=stubborn)
    check_divided(client.divided("one", "two", topic=topic, queues=QUEUES))
    send(client, specs[120:])
    rows = client.consumed("one", "two", count=240)
    assert keys(rows) == keys_of(specs)
    assert {row["consumer"] for row in rows} == {"one", "two"}

    by_queue: defaultdict[int, list[Row]] = defaultdict(list)
    for row in rows:
        by_queue[row["queue"]].append(row)
    for in_queue in by_queue.values():
        offsets = [row["queue_offset"] for row in in_queue]
        # A message that fails is tried again before the next one, and nothing behind it is given out meanwhile.
        assert offsets == sorted(offsets)
    tries = Counter(str(row["keys"]) for row in rows)
    assert {tries[spec.keys[0]] for spec in specs if spec.tags == "stubborn"} == {4}
    assert {tries[spec.keys[0]] for spec in specs if spec.tags == "easy"} == {1}


@in_full_only
@in_each_pair
def test_broadcasting_gives_everything_to_everybody(site: Peer) -> None:
    client, topic, group = site.client, "Broadcast", "broadcast"
    client.create_topic(site.shared_broker, topic, queues=QUEUES)
    for name in ("one", "two"):
        client.start_consumer(name, group, {topic: "*"}, is_broadcasting=True)
    specs = numbered(topic, 80)
    send(client, specs)
    for name in ("one", "two"):
        assert keys(client.consumed(name, count=80)) == keys_of(specs)


@in_full_only
@for_each_client
def test_tag_filter_commits_past_filtered_messages(site: Peer) -> None:
    client, topic, group = site.client, "Filtered", "filtered"
    client.create_topic(site.shared_broker, topic, queues=1)
    # AaAa and BBBB have one hash code: the broker lets both pass, the client takes what it asked for.
    tags = ("AaAa", "BBBB", "other", None)
    specs = [MessageSpec(topic, b"x", tags[number % 4], (f"n{number}",), queue=0) for number in range(200)]
    client.start_consumer("reader", group, {topic: "AaAa || paid"})
    send(client, specs)
    wanted = [spec for spec in specs if spec.tags == "AaAa"]
    assert keys(client.consumed("reader", count=len(wanted))) == keys_of(wanted)
    # None of the last three is for the reader; its answer has the next offset all the same.
    client.stop_consumers("reader")
    client.start_consumer("all", group, {topic: "*"})
    send(client, [MessageSpec(topic, b"x", "end", ("end",), queue=0)])
    rows = client.consumed("all", count=1)
    assert int(rows[0]["queue_offset"]) > max(number for number, spec in enumerate(specs) if spec.tags == "AaAa")


@in_full_only
@for_each_client
def test_a_new_group_on_young_queues_begins_at_the_beginning(site: Peer) -> None:
    """Nothing of them was ever deleted or has left the memory: a group loses nothing, whatever it asked for."""
    client, topic = site.client, "Young"
    client.create_topic(site.shared_broker, topic, queues=2)
    specs = numbered(topic, 20, queues=2)
    send(client, specs)
    future = time.strftime("%Y%m%d%H%M%S", time.localtime(time.time() + 3600))
    for start_from in ("FIRST_OFFSET", "LAST_OFFSET", "TIMESTAMP"):
        client.start_consumer(start_from, f"young_{start_from}", {topic: "*"}, start_from=start_from, timestamp=future)
        assert keys(client.consumed(start_from, count=20)) == keys_of(specs)


@in_full_only
@in_each_pair
def test_a_new_group_on_older_queues_begins_where_it_asked_to(
    site: Peer, golden_stores: GoldenStores, tmp_path: Path
) -> None:
    """A store whose oldest segments have expired: its queues begin at 11,733 and 11,734."""
    client, topic = site.client, "Roll"
    records = [record for record in expected_records(EXPIRED) if record["topic"] == topic]
    places = {(record["queueId"], record["queueOffset"]) for record in records}
    late_s = max(record["storeTimestamp"] for record in records) // 1000
    late = {
        (record["queueId"], record["queueOffset"]) for record in records if record["storeTimestamp"] >= late_s * 1000
    }
    assert 0 < len(late) < len(places)

    store = golden_stores.copy(EXPIRED, "clean", tmp_path / "store")
    with site.broker(store, settings={"fileReservedTime": 1_000_000}):
        client.await_topic(topic)
        # From 0: the broker answers that this is too small, and with the offset to go on from.
        client.start_consumer("first", "older_first", {topic: "*"})
        assert consumed_places(client, "first", len(places)) == places
        stamp = time.strftime("%Y%m%d%H%M%S", time.localtime(late_s))
        client.start_consumer("time", "older_time", {topic: "*"}, start_from="TIMESTAMP", timestamp=stamp)
        assert consumed_places(client, "time", len(late)) == late
        client.start_consumer("last", "older_last", {topic: "*"}, start_from="LAST_OFFSET")
        client.divided("last", topic=topic, queues=2)
        new = {(row["queue"], row["queue_offset"]) for row in client.send(numbered(topic, 4, queues=2))}
        assert consumed_places(client, "last", 4) == new
        assert consumed_places(client, "time", len(late) + 4) == late | new


def consumed_places(client: Client, name: str, count: int) -> set[tuple[int, int]]:
    """Queue and offset of what a consumer got, in all exactly so many."""
    rows = client.consumed(name, count=count)
    assert len(rows) == count
    return {(row["queue"], row["queue_offset"]) for row in rows}


@for_each_client
def test_failed_message_is_retried_and_becomes_a_dead_letter(site: Peer) -> None:
    client, topic, group = site.client, "Failing", "failing"
    client.create_topic(site.shared_broker, topic, queues=2)
    # A broker makes it when the group's first consumer comes, which then learns of it 20 seconds later.
    client.create_topic(site.shared_broker, f"%RETRY%{group}", queues=1)
    specs = [
        MessageSpec(topic, b"good", "good", ("good",), {"own": "1"}, 0),
        MessageSpec(topic, b"slow", "slow", ("slow",), {"own": "2"}, 1),
        MessageSpec(topic, b"dead", "dead", ("dead",), {"own": "3"}, 0),
    ]
    sent = list(client.send(specs))
    client.start_consumer("reader", group, {topic: "*"}, max_reconsume_times=2, fail_until={"slow": 2, "dead": 99})
    client.consumed("reader", count=2)

    dead_topic = f"%DLQ%{group}"
    client.await_topic(dead_topic)
    client.start_consumer("undertaker", f"{group}_dead", {dead_topic: "*"})
    (dead,) = client.consumed("undertaker", count=1)
    rows = client.consumed("reader", count=2)
    tries = Counter(str(row["tags"]) for row in rows)
    assert tries == {"good": 1, "slow": 3, "dead": 3}
    for tag in ("slow", "dead"):
        given = [row for row in rows if row["tags"] == tag]
        assert [row["reconsume_times"] for row in given] == [0, 1, 2]
        # The listener sees its own topic; where the message waited in between does not show.
        assert {row["topic"] for row in given} == {topic}
        assert {row["body_sha256"] for row in given} == {given[0]["body_sha256"]}
        times = [row["consumed_at_ms"] for row in given]
        assert all(later - earlier >= RETRY_LEVEL_1_MS for earlier, later in itertools.pairwise(times))
        assert given[-1]["properties"]["RETRY_TOPIC"] == topic
    assert (dead["topic"], dead["tags"], dead["keys"]) == (dead_topic, "dead", "dead")
    assert dead["properties"]["own"] == "3"
    assert dead["properties"]["RETRY_TOPIC"] == topic
    # Which message it once was.
    assert dead["properties"]["ORIGIN_MESSAGE_ID"] == sent[2]["offset_message_id"]
    assert dead["message_id"] == sent[2]["message_id"]


@in_full_only
@for_each_client
def test_lite_pull_by_subscription_goes_on_where_it_ended(site: Peer) -> None:
    client, topic, group = site.client, "LiteSubscribe", "lite_subscribe"
    client.create_topic(site.shared_broker, topic, queues=2)
    specs = numbered(topic, 60, queues=2)
    send(client, specs)
    first = client.group_consume(group, topic, count=25)
    rest = client.group_consume(group, topic, count=35)
    assert sorted(str(row["keys"]) for row in first + rest) == keys_of(specs)


@for_each_client
def test_lite_pull_by_assignment_seeks_and_commits(site: Peer) -> None:
    client, topic, group = site.client, "LiteAssign", "lite_assign"
    client.create_topic(site.shared_broker, topic, queues=2)
    specs = numbered(topic, 60, queues=2)
    send(client, specs)
    rows, committed = client.consume_assigned(group, topic, count=40, seek=10)
    assert sorted(str(row["keys"]) for row in rows) == keys_of(specs[20:])
    assert committed == {0: 30, 1: 30}
    # Its progress is the group's: the next consumer finds nothing, and then the new messages.
    send(client, numbered(topic, 2, start=60, queues=2))
    rows, committed = client.consume_assigned(group, topic, count=2)
    assert sorted(str(row["keys"]) for row in rows) == ["n60", "n61"]
    assert committed == {0: 31, 1: 31}


@in_full_only
@in_each_pair
def test_progress_is_reset_by_time_while_consumers_run(site: Peer) -> None:
    client, topic, group = site.client, "Reset", "reset"
    client.create_topic(site.shared_broker, topic, queues=2)
    specs = numbered(topic, 60, queues=2)
    send(client, specs)
    client.start_consumer("reader", group, {topic: "*"})
    assert keys(client.consumed("reader", count=60)) == keys_of(specs)
    assert client.reset_offsets(group, topic, 0) == {0: 0, 1: 0}
    assert keys(client.consumed("reader", count=120)) == sorted(keys_of(specs) * 2)
    client.stop_consumers("reader")
    client.await_progress(group, topic, {0: 30, 1: 30})
    assert client.group_offsets(group, topic) == {0: 30, 1: 30}


@in_full_only
@in_each_pair
def test_one_consumer_is_asked_for_itself_and_given_a_message_by_hand(site: Peer) -> None:
    client, topic, group = site.client, "ByHand", "by_hand"
    client.create_topic(site.shared_broker, topic, queues=2)
    (sent,) = client.send([MessageSpec(topic, b"again", "t", ("again",), queue=0)])
    client_id = client.start_consumer("reader", group, {topic: "t"})
    client.consumed("reader", count=1)

    info = client.running_info(group, client_id, with_stacks=True)
    assert info["topics"] == sorted([topic, f"%RETRY%{group}"])
    assert {queue for queue in info["queues"] if queue.startswith(topic)} == {f"{topic}:0", f"{topic}:1"}
    assert info["properties"]["PROP_CONSUMEORDERLY"] == "false"
    assert info["jstack"]

    assert client.consume_directly(group, client_id, topic, sent["offset_message_id"]) == "CR_SUCCESS"
    rows = client.consumed("reader", count=2)
    assert keys(rows) == ["again", "again"]
    # By hand, beside the group's progress.
    assert client.group_offsets(group, topic) in ({0: 1, 1: 0}, {0: 0, 1: 0})


@in_full_only
@in_each_pair
def test_the_old_pull_consumer_finds_the_ends_of_each_queue(site: Peer) -> None:
    client, topic = site.client, "Ends"
    client.create_topic(site.shared_broker, topic, queues=2)
    assert client.offsets(topic) == {0: (0, 0), 1: (0, 0)}
    send(client, numbered(topic, 7, queues=2))
    assert client.offsets(topic) == {0: (0, 4), 1: (0, 3)}
