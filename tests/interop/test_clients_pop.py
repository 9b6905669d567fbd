"""The official client popping: shares, redelivery, and how a group goes from one mode to the other."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence

import pytest

from interop.java_client import Client, Row
from interop.landscapes import in_full_only, ours_and_upstream
from interop.patterns import MessageSpec
from interop.servers import Broker
from interop.sites import Peer
from interop.waiting import LIMIT_S, eventually

pytestmark = pytest.mark.java

QUEUES = 4
INVISIBLE_MS = 5_000
"""The least that a push consumer takes."""


def numbered(topic: str, numbers: Iterable[int], *, tags: str | None = None) -> list[MessageSpec]:
    return [MessageSpec(topic, b"x", tags, (f"n{number}",), {}, number % QUEUES) for number in numbers]


def send(client: Client, specs: Sequence[MessageSpec]) -> None:
    rows = list(client.send(specs))
    assert [row.get("status") for row in rows] == ["SEND_OK"] * len(specs), rows[-1]


def keys(rows: Iterable[Row]) -> list[str]:
    return sorted(str(row["keys"]) for row in rows)


def keys_of(specs: Iterable[MessageSpec]) -> list[str]:
    return sorted(spec.keys[0] for spec in specs)


def set_mode(broker: Broker, topic: str, group: str, mode: str, share: int) -> list[str]:
    return ["setConsumeMode", "-b", broker.address, "-t", topic, "-g", group, "-m", mode, "-q", str(share)]


def made(site: Peer, topic: str, group: str, *, mode: str = "POP", share: int = 0) -> Client:
    """A topic whose group's mode is set by upstream's tool."""
    broker, client = site.shared_broker, site.client
    client.create_topic(broker, topic, queues=QUEUES)
    printed = client.mqadmin(*set_mode(broker, topic, group, mode, share))
    assert "success" in printed, printed
    return client


def pop_all(client: Client, site: Peer, group: str, topic: str, count: int, *, invisible_ms: int = 60_000) -> list[Row]:
    """So many messages, by as many pops as it takes."""
    found: list[Row] = []

    def is_enough() -> bool:
        found.extend(
            client.pop(
                site.shared_broker,
                group,
                topic,
                max_messages=min(32, count - len(found)),
                invisible_ms=invisible_ms,
                poll_ms=1_000,
            )[1]
        )
        return len(found) >= count

    eventually(is_enough)
    assert len(found) == count
    return found


@ours_and_upstream
def test_members_pop_and_failed_messages_are_redelivered(site: Peer) -> None:
    topic, group = "JavaPop", "java_pop"
    client = made(site, topic, group)
    for name in ("one", "two"):
        client.start_consumer(name, group, {topic: "*"}, client_rebalance=False, fail_until={"once": 1})
    eventually(
        lambda: client.popped("one", "two", topic=topic),
        lambda found: set(map(tuple, found.values())) == {("shared:-1",)},
    )
    assert client.owned("one", "two", topic=topic) == {"one": set(), "two": set()}
    specs = numbered(topic, range(100)) + numbered(topic, range(100, 104), tags="once")
    send(client, specs)
    rows = client.consumed("one", "two", count=len(specs))
    end = time.monotonic() + LIMIT_S
    # The next pop gets new messages: on a busy machine one member may get all of them, but not for ever.
    while {row["consumer"] for row in rows} != {"one", "two"} and time.monotonic() < end:
        more = numbered(topic, range(len(specs), len(specs) + 20))
        send(client, more)
        specs += more
        rows = client.consumed("one", "two", count=len(specs))
    tries = Counter(str(row["keys"]) for row in rows)
    assert sorted(tries) == keys_of(specs)
    assert {key: count for key, count in tries.items() if count > 1} == {f"n{number}": 2 for number in range(100, 104)}
    assert {row["consumer"] for row in rows} == {"one", "two"}
    assert {(row["topic"], row["broker"]) for row in rows} == {(topic, "shared")}
    for row in rows:
        failed_before = row["keys"] in ("n100", "n101", "n102", "n103") and row["consumed"]
        assert row["reconsume_times"] == int(failed_before)
        assert row["properties"]["POP_CK"].split()[4] == ("1" if failed_before else "0")
        assert int(row["properties"]["1ST_POP_TIME"]) > 0
    client.stop_consumers("one", "two")
    assert client.pop(site.shared_broker, group, topic, poll_ms=3_000)[1] == [], "all of it is acknowledged"


@in_full_only
@ours_and_upstream
def test_a_member_that_hangs_holds_up_nobody(site: Peer) -> None:
    topic, group = "JavaPopHangs", "java_pop_hangs"
    client = made(site, topic, group)
    client.start_consumer(
        "hangs", group, {topic: "*"}, client_rebalance=False, pop_invisible_ms=INVISIBLE_MS, hangs=True
    )
    specs = numbered(topic, range(200))
    send(client, specs[:100])
    eventually(lambda: client.consumed("hangs", count=0))
    client.start_consumer("works", group, {topic: "*"}, client_rebalance=False, pop_invisible_ms=INVISIBLE_MS)
    send(client, specs[100:])
    rows = client.consumed("works", count=len(specs))
    assert keys(rows) == keys_of(specs)
    again = {str(row["keys"]) for row in rows if row["reconsume_times"]}
    assert again >= {str(row["keys"]) for row in client.consumed("hangs", count=0) if not row["reconsume_times"]}
    client.release("hangs")
    client.stop_consumers("works", "hangs")
    assert client.pop(site.shared_broker, group, topic, poll_ms=3_000)[1] == []


@in_full_only
@ours_and_upstream
def test_each_request_of_the_client(site: Peer) -> None:
    """Pops, single acknowledgements and those of many, and messages hidden for longer again and again."""
    topic, group = "JavaPopRequests", "java_pop_requests"
    client, broker = made(site, topic, group), site.shared_broker
    specs = numbered(topic, range(30))
    send(client, specs)
    messages = pop_all(client, site, group, topic, 30, invisible_ms=6_000)
    assert keys(messages) == keys_of(specs)
    one_by_one, at_once, renewed, left = messages[:8], messages[8:20], messages[20:24], messages[24:]
    assert client.pop_ack(broker, group, topic, one_by_one) == ["OK"] * 8
    assert client.pop_ack(broker, group, topic, at_once, in_batch=True) == ["OK"]
    end = time.monotonic() + 14
    again: list[Row] = []
    while time.monotonic() < end:
        renewed = [client.pop_change(broker, group, topic, message, invisible_ms=4_000) for message in renewed]
        again += client.pop(broker, group, topic, poll_ms=1_000)[1]
    assert keys(again) == keys(left)
    assert {message["reconsume_times"] for message in again} == {1}
    assert {message["topic"] for message in again} == {topic}
    # Handles of a retry topic and of the topic itself in one request.
    assert client.pop_ack(broker, group, topic, [*again, *renewed], in_batch=True) == ["OK"]
    assert client.pop(broker, group, topic, poll_ms=10_000) == ({"status": "POLLING_NOT_FOUND", "rest": 0}, [])
    assert sum(client.group_offsets(group, topic).values()) == 30


@in_full_only
@ours_and_upstream
def test_a_queue_in_order(site: Peer) -> None:
    topic, group = "JavaPopOrder", "java_pop_order"
    client, broker = made(site, topic, group), site.shared_broker
    client.mqadmin("updateSubGroup", "-b", broker.address, "-g", group, "-o", "true")
    send(client, [MessageSpec(topic, b"x", None, (f"n{number}",), {}, 1) for number in range(8)])

    def popped(count: int) -> list[Row]:
        return client.pop(broker, group, topic, max_messages=count, queue_id=1, in_order=True)[1]

    first = popped(3)
    assert [row["queue_offset"] for row in first] == [0, 1, 2]
    assert popped(3) == []
    assert client.pop_ack(broker, group, topic, first[:2]) == ["OK"] * 2
    client.pop_change(broker, group, topic, first[2], invisible_ms=500)
    again = eventually(lambda: popped(3))
    assert [(row["queue_offset"], row["reconsume_times"]) for row in again] == [(2, 1), (3, 0), (4, 0)]
    assert client.pop_ack(broker, group, topic, again, in_batch=True) == ["OK"]
    assert [row["queue_offset"] for row in popped(32)] == [5, 6, 7]


@in_full_only
@ours_and_upstream
def test_assignments_of_the_broker(site: Peer) -> None:
    topic, group = "JavaPopAssigned", "java_pop_assigned"
    client, broker = made(site, topic, group, mode="PULL"), site.shared_broker

    def assigned(strategy: str = "AVG") -> list[set[tuple[int, str]]]:
        return [client.assignment(broker, group, topic, client_id=member, strategy=strategy) for member in members]

    members = ["nobody"]
    assert assigned() == [set()], "a group that nobody knows"
    members = sorted(client.start_consumer(name, group, {topic: "*"}, client_rebalance=False) for name in "abc")
    eventually(assigned, lambda found: all(found))
    assert assigned() == [{(0, "PULL"), (1, "PULL")}, {(2, "PULL")}, {(3, "PULL")}]
    assert assigned("AVG_BY_CIRCLE") == [{(0, "PULL"), (3, "PULL")}, {(1, "PULL")}, {(2, "PULL")}]
    assert assigned("CONSISTENT_HASH") == [set()] * 3
    for share, wanted in (
        (0, [{(-1, "POP")}] * 3),
        (1, [{(0, "POP"), (1, "POP"), (2, "POP")}, {(2, "POP"), (3, "POP")}, {(0, "POP"), (1, "POP"), (3, "POP")}]),
        (2, [{(-1, "POP")}] * 3),
    ):
        made(site, topic, group, share=share)
        assert assigned() == wanted, share
    for refused_topic, reason in (
        (f"%RETRY%{group}", "retry topic is not allowed to set mode"),
        ("Nowhere", "not exist"),
    ):
        printed = client.mqadmin(*set_mode(broker, refused_topic, group, "POP", 0))
        assert reason in printed


@in_full_only
@ours_and_upstream
def test_orderly_listener_pulls_in_every_mode(site: Peer) -> None:
    topic, group = "JavaPopOrderly", "java_pop_orderly"
    client = made(site, topic, group)
    specs = numbered(topic, range(80))
    client.start_consumer("orderly", group, {topic: "*"}, client_rebalance=False, is_orderly=True)
    send(client, specs)
    rows = client.consumed("orderly", count=80)
    assert keys(rows) == keys_of(specs)
    assert client.popped("orderly", topic=topic) == {"orderly": set()}
    assert len(client.owned("orderly", topic=topic)["orderly"]) == QUEUES
    for queue_id in range(QUEUES):
        offsets = [row["queue_offset"] for row in rows if row["queue"] == queue_id]
        assert offsets == sorted(offsets)
