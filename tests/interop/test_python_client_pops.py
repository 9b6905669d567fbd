"""Our client where brokers share out: messages popped, acknowledged, hidden for longer, revived."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

import cometmq.admin
import cometmq.aio
from cometmq._engine import set_popped
from cometmq.client import Outcome, PushConsumer, ReceivedMessage, SimpleConsumer
from cometmq.client.pop.pop_policy import ALL_QUEUES
from cometmq.errors import StaleHandle
from cometmq.remoting.bodies.assignments import MessageRequestMode
from interop.landscapes import beside_java, on_each_server
from interop.members import (
    QUICK,
    Seen,
    Taken,
    as_arguments,
    create_topic,
    keyed,
    keys_of,
    producer,
    push,
    queue_of,
)
from interop.sites import SHARED_SETTINGS, Peer, Site
from interop.waiting import LIMIT_S, eventually

QUEUES = 2

on_servers_that_pop = on_each_server(old=False)
slow_on_servers_that_pop = on_each_server(short=False, quick=False, old=False)
beside_java_that_pops = beside_java(old=False)


def simple(site: Site, group: str, **options: object) -> SimpleConsumer:
    quick = {name: value for name, value in QUICK.items() if name.startswith(("poll", "heartbeat"))}
    given = {"consume_from_where": "CONSUME_FROM_FIRST_OFFSET", **quick, **options}
    return SimpleConsumer(group, name_servers=site.namesrv.address, **given)  # type: ignore[arg-type]


def send(site: Site, topic: str, numbers: range, *, tags: str | None = None) -> list[str]:
    specs = keyed(topic, numbers, queues=QUEUES, tags=tags)
    with producer(site) as sender:
        for spec in specs:
            sender.send(**as_arguments(spec))
    return keys_of(specs)


def key(message: ReceivedMessage) -> str:
    (found,) = message.keys
    return found


def receive(consumer: SimpleConsumer, count: int, *, invisible_s: float = 60) -> list[ReceivedMessage]:
    """So many messages, or what came within the limit."""
    messages: list[ReceivedMessage] = []
    end = time.monotonic() + LIMIT_S
    while len(messages) < count and time.monotonic() < end:
        messages += consumer.receive(count - len(messages), invisible_s=invisible_s, wait_s=1)
    return messages


@on_servers_that_pop
def test_messages_are_received_and_acknowledged_once(servers: Site) -> None:
    topic, group = "PyPop", "py_pop"
    create_topic(servers, topic, queues=QUEUES)
    keys = send(servers, topic, range(70))
    with simple(servers, group) as one, simple(servers, group) as two:
        one.subscribe(topic)
        two.subscribe(topic)
        first, second = receive(one, 40), receive(two, 30)
        assert sorted(map(key, first + second)) == sorted(keys)
        assert all(message.topic == topic and message.reconsume_times == 0 for message in first)
        assert {message.queue_id for message in first + second} == {0, 1}
        one.ack_many(first)
        for message in second:
            two.ack(message)
        assert one.receive(wait_s=0) == []
        began = time.monotonic()
        assert one.receive(wait_s=1.5) == []
        assert time.monotonic() - began > 1


@on_servers_that_pop
def test_ordered_messages_come_one_batch_of_a_queue_at_a_time(servers: Site) -> None:
    topic, group = "PyPopOrdered", "py_pop_ordered"
    create_topic(servers, topic, queues=1)
    with producer(servers) as sender:
        for number in range(6):
            sender.send(topic, b"%d" % number)
    with simple(servers, group, orderly=True) as one, simple(servers, group, orderly=True) as two:
        one.subscribe(topic)
        two.subscribe(topic)
        first = receive(one, 2)
        assert [message.queue_offset for message in first] == [0, 1]
        assert two.receive(wait_s=0) == []
        one.ack(first[0])
        one.extend(first[1], invisible_s=0)
        again = receive(two, 5)
        assert [(message.queue_offset, message.reconsume_times > 0) for message in again] == [
            (1, True),
            *((offset, False) for offset in range(2, 6)),
        ]
        two.ack_many(again)
        assert one.receive(wait_s=0) == []


@slow_on_servers_that_pop
def test_unacknowledged_messages_are_redelivered(servers: Site) -> None:
    topic, group = "PyPopAgain", "py_pop_again"
    create_topic(servers, topic, queues=QUEUES)
    keys = send(servers, topic, range(6))
    with simple(servers, group) as consumer:
        consumer.subscribe(topic)
        first = receive(consumer, 6, invisible_s=8)
        done, longer, *left = first
        consumer.ack(done)
        old = longer.pop_handle
        assert consumer.extend(longer, invisible_s=60) != old
        again = receive(consumer, 4)
        assert sorted(map(key, again)) == sorted(set(keys) - {key(done), key(longer)})
        assert {message.reconsume_times for message in again} == {1}
        assert all(message.topic == topic for message in again)
        consumer.ack_many([longer, *again])
        assert consumer.receive(wait_s=12) == []
        assert len(left) == 4


@slow_on_servers_that_pop
def test_message_in_a_loop_stays_invisible(servers: Site) -> None:
    topic, group = "PyPopLoop", "py_pop_loop"
    create_topic(servers, topic, queues=QUEUES)
    (sent,) = send(servers, topic, range(1))
    seen = []
    with simple(servers, group, invisible_time_ms=6_000) as consumer, simple(servers, group) as other:
        consumer.subscribe(topic)
        other.subscribe(topic)
        for message in consumer:
            seen.append(key(message))
            assert other.receive(wait_s=8) == [], "the others get nothing while somebody works"
            consumer.ack(message)
            break
        assert seen == [sent]
        assert other.receive(wait_s=8) == []


@on_servers_that_pop
def test_messages_of_other_tags_are_left_out(servers: Site) -> None:
    topic, group = "PyPopTags", "py_pop_tags"
    create_topic(servers, topic, queues=QUEUES)
    wanted = send(servers, topic, range(5), tags="a")
    send(servers, topic, range(5, 10), tags="b")
    with simple(servers, group) as consumer:
        consumer.subscribe(topic, "a")
        messages = receive(consumer, 5)
        assert sorted(map(key, messages)) == sorted(wanted)
        consumer.ack_many(messages)
        assert consumer.receive(wait_s=1) == []


@on_servers_that_pop
def test_handles_that_no_broker_knows(servers: Site) -> None:
    topic, group = "PyPopStale", "py_pop_stale"
    create_topic(servers, topic, queues=QUEUES)
    send(servers, topic, range(1))
    with simple(servers, group) as consumer:
        consumer.subscribe(topic)
        (message,) = receive(consumer, 1)
        assert message.pop_handle is not None
        head, _, _ = message.pop_handle.rpartition(" ")
        set_popped([message], head, message.queue_id, [10_000])
        with pytest.raises(StaleHandle) as caught:
            consumer.ack(message)
        assert caught.value.code == 208
        with pytest.raises(StaleHandle):
            consumer.extend(message, invisible_s=5)


@on_servers_that_pop
def test_two_brokers_are_asked_by_asyncio(servers: Site, tmp_path: Path) -> None:
    topic, group = "PyPopTwo", "py_pop_two"
    with servers.broker(tmp_path / "store", name="second", settings=SHARED_SETTINGS):
        create_topic(servers, topic, queues=1, broker_names=("shared", "second"))

        async def main() -> None:
            async with (
                cometmq.aio.SimpleConsumer(
                    group,
                    name_servers=servers.namesrv.address,
                    consume_from_where="CONSUME_FROM_FIRST_OFFSET",
                ) as consumer,
                cometmq.aio.Producer("py_pop_senders", name_servers=servers.namesrv.address) as sender,
            ):
                await consumer.subscribe(topic)
                for broker_name in ("shared", "second", "second", "shared"):
                    waiting = asyncio.ensure_future(consumer.receive(1, wait_s=LIMIT_S))
                    await asyncio.sleep(0.3)
                    result = await sender.send(topic, b"x", queue=queue_of(topic, 0, broker_name))
                    (message,) = await waiting
                    assert message.broker_name == broker_name == result.queue.broker_name
                    await consumer.ack(message)

        asyncio.run(main())


def set_mode(site: Site, group: str, topic: str, mode: MessageRequestMode) -> None:
    with cometmq.admin.connect(namesrv=site.namesrv.address) as admin:
        admin.groups.set_consume_mode(group, topic, mode)


def pops(consumer: PushConsumer, topic: str) -> bool:
    return {queue.queue_id for queue in consumer.queues if queue.topic == topic} == {ALL_QUEUES}


def pulls(consumer: PushConsumer, topic: str) -> bool:
    queues = {queue.queue_id for queue in consumer.queues if queue.topic == topic}
    return bool(queues) and ALL_QUEUES not in queues


@on_servers_that_pop
def test_push_consumer_pops_and_failed_messages_are_redelivered(servers: Site) -> None:
    topic, group = "PyPushPop", "py_push_pop"
    create_topic(servers, topic, queues=QUEUES)
    keys = send(servers, topic, range(20))
    seen = Seen()

    def fail_once(message: ReceivedMessage) -> Outcome | None:
        return Outcome.RETRY if key(message) == "n3" and not message.reconsume_times else None

    consumer = push(servers, group, seen, answer=fail_once, client_rebalance=False)
    consumer.subscribe(topic)
    with consumer:
        eventually(lambda: pulls(consumer, topic))
        seen.wait_for(20)
        set_mode(servers, group, topic, MessageRequestMode.POP)
        eventually(lambda: pops(consumer, topic))
        keys += send(servers, topic, range(100, 120))
        seen.wait_for(41)
    taken = seen.wait_for_keys(keys)
    (first, again) = [one for one in taken if one.key == "n3"]
    assert (first.reconsume_times, again.reconsume_times) == (0, 1)
    popped = [one for one in taken if int(one.key[1:]) >= 100]
    assert all(one.message.pop_handle for one in popped)
    with simple(servers, group) as rest:
        rest.subscribe(topic)
        assert rest.receive(wait_s=3) == [], "all of it is acknowledged"


@slow_on_servers_that_pop
def test_the_mode_changes_under_load(servers: Site) -> None:
    topic, group = "PyPopSwitch", "py_pop_switch"
    create_topic(servers, topic, queues=QUEUES)
    seen, keys = Seen(), []
    fails: set[str] = set()

    def fail_some(message: ReceivedMessage) -> Outcome | None:
        if key(message).endswith("7") and key(message) not in fails:
            fails.add(key(message))
            return Outcome.RETRY
        return None

    members = [push(servers, group, seen, member=name, answer=fail_some, client_rebalance=False) for name in "ab"]
    for member in members:
        member.subscribe(topic)
    with members[0], members[1]:
        for round_number, mode in enumerate((MessageRequestMode.POP, MessageRequestMode.PULL, MessageRequestMode.POP)):
            first = 1000 * round_number
            keys += send(servers, topic, range(first, first + 100))
            set_mode(servers, group, topic, mode)
            keys += send(servers, topic, range(first + 100, first + 200))
            is_so = pops if mode is MessageRequestMode.POP else pulls
            for member in members:
                eventually(partial(is_so, member, topic))
        seen.until(lambda taken: {one.key for one in taken} >= set(keys))
        counted = Counter(one.key for one in seen.until(lambda taken: _has_again(taken, keys)))
    assert set(counted) == set(keys)


@slow_on_servers_that_pop
def test_popped_messages_are_redelivered_to_members_without_queues(servers: Site) -> None:
    """Two members have the queues. Two have none, and tell brokers far more often what the group subscribes to; one of
    these shares out queues itself, and never names the retry topic, as Java's do not while they have no queue."""
    topic, group = "PyPopToPull", "py_pop_to_pull"
    create_topic(servers, topic, queues=QUEUES)
    keys = send(servers, topic, range(10))
    with simple(servers, group) as popping:
        popping.subscribe(topic)
        assert sorted(map(key, receive(popping, 10, invisible_s=10))) == sorted(keys)
    seen = Seen()

    def member(name: str, *, client_rebalance: bool = False, heartbeat_ms: int) -> PushConsumer:
        made = push(
            servers,
            group,
            seen,
            member=name,
            client_rebalance=client_rebalance,
            heartbeat_broker_interval_ms=heartbeat_ms,
            instance_name=name,
        )
        made.subscribe(topic)
        return made

    a, b = member("a", heartbeat_ms=30_000), member("b", heartbeat_ms=30_000)
    with a, b, member("c", heartbeat_ms=200), member("d", client_rebalance=True, heartbeat_ms=200):
        taken = seen.wait_for_keys(keys)
    assert {(one.member, one.reconsume_times) for one in taken} == {("a", 1)}


@slow_on_servers_that_pop
def test_message_in_a_listener_stays_invisible(servers: Site) -> None:
    topic, group = "PyPopLong", "py_pop_long"
    create_topic(servers, topic, queues=QUEUES)
    with simple(servers, group) as other:
        other.subscribe(topic)
        assert other.receive(wait_s=0) == []
        set_mode(servers, group, topic, MessageRequestMode.POP)
        seen, going_on = Seen(), threading.Event()
        consumer = push(
            servers,
            group,
            seen,
            answer=lambda _: going_on.wait(LIMIT_S) and None,
            client_rebalance=False,
            pop_invisible_time_ms=5_000,
            pop_extend=True,
        )
        consumer.subscribe(topic)
        with consumer:
            eventually(lambda: pops(consumer, topic))
            other.unsubscribe(topic)
            keys = send(servers, topic, range(2))
            seen.wait_for_keys(keys)
            other.subscribe(topic)
            assert other.receive(wait_s=12) == [], "longer than it was hidden at first"
            going_on.set()
            assert other.receive(wait_s=1) == []
        assert other.receive(wait_s=10) == [], "messages finished late are acknowledged all the same"


def _has_again(taken: Sequence[Taken], keys: Sequence[str]) -> bool:
    """Whether whatever failed has come once more."""
    counts = Counter(one.key for one in taken)
    return all(counts[one] > 1 for one in keys if one.endswith("7"))


@beside_java_that_pops
def test_upstreams_tools_ask_a_simple_consumer(company: Peer) -> None:
    topic, group = "PyPopAsked", "py_pop_asked"
    create_topic(company, topic, queues=QUEUES)
    send(company, topic, range(2))
    with simple(company, group) as consumer:
        consumer.subscribe(topic)
        messages = receive(consumer, 2)
        with cometmq.admin.connect(namesrv=company.namesrv.address) as admin:
            members = admin.groups.members(group)
            assert members is not None
            (client_id,) = (one.client_id for one in members.connections)
            held = admin.groups.running_info(group, client_id).pop_queues
        assert sum(one.wait_ack_count for one in held.values()) == 2
        assert all(one.oldest_pop_timestamp_ms for one in held.values())
        told = company.client.running_info(group, client_id)
        assert told["properties"]["receiveMaxMessages"] == "32"
        assert client_id in company.client.mqadmin("consumerStatus", "-g", group)
        consumer.ack_many(messages)


@beside_java_that_pops
def test_java_and_python_members_pop_in_one_group(company: Peer) -> None:
    topic, group = "PyJavaPop", "py_java_pop"
    create_topic(company, topic, queues=QUEUES)
    seen = Seen()
    consumer = push(company, group, seen, client_rebalance=False)
    consumer.subscribe(topic)
    with consumer:
        eventually(lambda: pulls(consumer, topic))
        set_mode(company, group, topic, MessageRequestMode.POP)
        company.client.start_consumer("java", group, {topic: "*"}, client_rebalance=False)
        eventually(lambda: pops(consumer, topic))
        keys: list[str] = []
        java: set[str] = set()

        def are_both_at_it() -> bool:
            keys.extend(send(company, topic, range(len(keys), len(keys) + 20)))
            java.update(str(row["keys"]) for row in company.client.consumed("java", count=0))
            return len(java) > 20 and len(seen.all) > 20

        eventually(are_both_at_it)

        def is_all_seen() -> bool:
            java.update(str(row["keys"]) for row in company.client.consumed("java", count=0))
            return java | {one.key for one in seen.all} >= set(keys)

        eventually(is_all_seen)
        company.client.stop_consumers("java")
    with simple(company, group) as rest:
        rest.subscribe(topic)
        assert rest.receive(wait_s=3) == [], "messages of either of them are acknowledged"


@on_each_server(ours=False, old=False)
def test_the_example_of_workers_one_of_which_hangs(servers: Site) -> None:
    assert servers.shared_broker.address
    program = Path(__file__).parents[2] / "examples" / "popped_orders.py"
    ended = subprocess.run(
        [sys.executable, "-W", "error", str(program), servers.namesrv.address],
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert not ended.stderr
    assert re.search(r"^400 orders were done by [2-7] of 8 workers", ended.stdout, re.MULTILINE), ended.stdout
    assert re.search(r"^[1-9][0-9]* of them came again", ended.stdout, re.MULTILINE), ended.stdout
