"""Our push consumer: shares, order, starting offsets, redelivery, and its memory."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

import cometmq.admin
import cometmq.aio
from cometmq.client import MessageModel, Outcome, ReceivedMessage
from cometmq.errors import BrokerError
from cometmq.remoting.bodies.running_info import ConsumeResult
from cometmq.remoting.command import HeaderFormat
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
    push,
    send_all,
)
from interop.patterns import MessageSpec
from interop.sites import Peer, Site
from interop.waiting import eventually
from support.golden import GoldenStores, expected_records

QUEUES = 4
EXPIRED = "apache-5.3.3-expired"
SYSTEM_ERROR = 1


def send(site: Site, specs: list[MessageSpec]) -> None:
    with producer(site) as sender:
        send_all(sender, specs)


def client_id_of(site: Site, group: str) -> str:
    """The id of the group's only member, as the broker knows it."""
    with cometmq.admin.connect(namesrv=site.namesrv.address) as admin:
        members = eventually(lambda: admin.groups.members(group))
    assert members is not None
    (connection,) = members.connections
    return connection.client_id


@on_each_server()
def test_everything_is_consumed_once_and_the_next_one_goes_on(servers: Site) -> None:
    topic, group, seen = "PyConcurrent", "py_concurrent", Seen()
    create_topic(servers, topic, queues=QUEUES)
    # One pull of each queue brings it all. A further one would commit, too, and a Java broker that is slow to
    # read it takes that for newer than the commit at closing: the next member gets some messages again.
    first, then = keyed(topic, range(120), queues=QUEUES), keyed(topic, range(120, 160), queues=QUEUES)
    send(servers, first)
    with push(servers, group, seen, member="one").subscribe(topic):
        assert len(seen.wait_for_keys(keys_of(first))) == len(first)
    # Closing has committed.
    await_progress(servers, group, topic, len(first))
    send(servers, then)
    with push(servers, group, seen, member="two").subscribe(topic):
        taken = seen.wait_for_keys(keys_of([*first, *then]))
    assert Counter(one.member for one in taken) == {"one": len(first), "two": len(then)}
    await_progress(servers, group, topic, len(first) + len(then))


@on_each_server()
def test_other_forms_of_requests_and_listeners_get_the_same(servers: Site) -> None:
    """JSON headers, heartbeats of the second kind, subscriptions in each pull, lists of messages, one's own loop."""
    topic, wanted = "PyForms", keyed("PyForms", range(40), queues=QUEUES)
    create_topic(servers, topic, queues=QUEUES)
    forms: dict[str, dict[str, Any]] = {
        "json": {"header_format": HeaderFormat.JSON},
        "heartbeats": {"use_heartbeat_v2": True},
        "subscriptions": {"post_subscription_when_pull": True},
    }
    came: dict[str, Seen] = {name: Seen() for name in [*forms, "lists", "loop"]}

    def in_lists(messages: list[ReceivedMessage]) -> None:
        assert 1 <= len(messages) <= 8
        for message in messages:
            came["lists"].by()(message)

    async def on_own_loop() -> None:
        listener = came["loop"].by()

        async def handle(message: ReceivedMessage) -> None:
            listener(message)

        first: Any = {"consume_from_where": "CONSUME_FROM_FIRST_OFFSET", **QUICK}
        at = servers.namesrv.address
        consumer = cometmq.aio.PushConsumer("py_forms_loop", name_servers=at, listener=handle, **first)
        await consumer.subscribe(topic)
        async with consumer:
            await asyncio.to_thread(came["loop"].wait_for_keys, keys_of(wanted))

    with contextlib.ExitStack() as life:
        for name, options in forms.items():
            life.enter_context(push(servers, f"py_forms_{name}", came[name], **options).subscribe(topic, "t"))
        lists = push(
            servers, "py_forms_lists", came["lists"], batch_listener=in_lists, consume_message_batch_max_size=8
        )
        life.enter_context(lists.subscribe(topic))
        with producer(servers, header_format=HeaderFormat.JSON) as sender:
            for spec in wanted:
                sender.send(topic, spec.body, tags="t", keys=spec.keys[0])
        asyncio.run(on_own_loop())
        for seen in came.values():
            assert len(seen.wait_for_keys(keys_of(wanted))) == len(wanted)


@on_each_server()
def test_orderly_members_keep_each_queue_in_order_through_failures_and_changes(servers: Site) -> None:
    topic, group, seen = "PyOrderly", "py_orderly", Seen()
    create_topic(servers, topic, queues=QUEUES)
    specs = [
        MessageSpec(topic, b"x", "stubborn" if number % 20 == 7 else "easy", (f"n{number}",), queue=number % QUEUES)
        for number in range(120)
    ]
    stubborn = [spec.keys[0] for spec in specs if spec.tags == "stubborn"]
    tries: Counter[str] = Counter()

    def answer(message: ReceivedMessage) -> Outcome | None:
        (key,) = message.keys
        tries[key] += 1
        return Outcome.suspend(suspend_ms=10) if message.tags == "stubborn" and tries[key] < 4 else None

    settings: Any = {"orderly": True, "answer": answer, "lock_interval_ms": 500}
    one = push(servers, group, seen, member="one", **settings).subscribe(topic)
    two = push(servers, group, seen, member="two", **settings).subscribe(topic)
    with one:
        send(servers, specs[:60])
        seen.wait_for_keys(keys_of(specs[:60]))
        with two:
            eventually(lambda: (shares(one, topic), shares(two, topic)), lambda found: found == (2, 2))
            send(servers, specs[60:])
            seen.wait_for_keys(keys_of(specs))
            taken = seen.until(lambda taken: sum(one.key in stubborn for one in taken) >= 4 * len(stubborn))
    assert {one.member for one in taken} == {"one", "two"}
    places: defaultdict[int, list[int]] = defaultdict(list)
    for call in taken:
        places[call.message.queue_id].append(call.message.queue_offset)
    for offsets in places.values():
        assert offsets == sorted(offsets)
    assert tries == {key: 4 if key in stubborn else 1 for key in keys_of(specs)}


def shares(consumer: Any, topic: str) -> int:
    return sum(queue.topic == topic for queue in consumer.queues)


@on_each_server(short=False)
def test_broadcasting_delivers_all_messages_to_each_member(servers: Site, tmp_path: Path) -> None:
    topic, group, seen = "PyBroadcast", "py_broadcast", Seen()
    create_topic(servers, topic, queues=QUEUES)
    specs = keyed(topic, range(60), queues=QUEUES)
    settings: Any = {"message_model": MessageModel.BROADCASTING, "offset_folder": tmp_path}
    members = [
        push(servers, group, seen, member=name, instance_name=name, **settings).subscribe(topic)
        for name in ("one", "two")
    ]
    send(servers, specs[:40])
    with members[0], members[1]:
        taken = seen.wait_for(80)
    assert sorted((one.member, one.key) for one in taken) == sorted(
        (name, key) for name in ("one", "two") for key in keys_of(specs[:40])
    )
    (file,) = tmp_path.glob(f"*@one/{group}/offsets.json")
    # Upstream's keys are objects, which no other reader of JSON takes.
    assert file.read_text().count(f'"topic":"{topic}"') == QUEUES

    send(servers, specs[40:])
    seen = Seen()
    with push(servers, group, seen, member="one", instance_name="one", **settings).subscribe(topic):
        assert len(seen.wait_for_keys(keys_of(specs[40:]))) == 20
    assert all(offset in (-1, 0) for offset in committed(servers, group, topic).values())


@on_each_server()
def test_tag_filter_commits_past_filtered_messages(servers: Site) -> None:
    topic, group, seen = "PyFiltered", "py_filtered", Seen()
    create_topic(servers, topic, queues=1)
    # AaAa and BBBB have one hash code: the broker lets both pass, the client takes what it asked for.
    tags = ("AaAa", "BBBB", "paid", "other", None)
    specs = [MessageSpec(topic, b"x", tags[number % 5], (f"n{number}",), queue=0) for number in range(100)]
    send(servers, specs)
    wanted = [spec for spec in specs if spec.tags in ("AaAa", "paid")]
    # A pull that finds the end may be held for half a second, and then says how far the broker has looked.
    with push(servers, group, seen, broker_suspend_max_time_ms=500).subscribe(topic, "AaAa || paid"):
        assert len(seen.wait_for_keys(keys_of(wanted))) == len(wanted)
        # The last two are not for it: that it has seen them its next pull tells.
        with cometmq.admin.connect(namesrv=servers.namesrv.address) as admin:
            client_id = client_id_of(servers, group)
            eventually(lambda: position(admin, group, client_id, topic), lambda offset: offset == len(specs))
    await_progress(servers, group, topic, len(specs))


def position(admin: cometmq.admin.Admin, group: str, client_id: str, topic: str) -> int:
    """How far a member is in the topic, all queues together, as it says itself."""
    info = admin.groups.running_info(group, client_id)
    return sum(held.commit_offset for queue, held in info.queues.items() if queue.topic == topic)


@on_each_server(ours=False)
def test_sql_is_refused_with_the_brokers_reason_where_it_is_off(servers: Site) -> None:
    topic = "PySql"
    create_topic(servers, topic, queues=1)
    consumer = push(servers, "py_sql", Seen()).subscribe(topic, "a > 5", expression_type="SQL92")
    with pytest.raises(BrokerError, match="SQL92") as refused:
        consumer.start()
    assert refused.value.code == SYSTEM_ERROR
    assert consumer.state.value == "closed"


@on_each_server()
def test_a_new_group_on_young_queues_begins_at_the_beginning(servers: Site) -> None:
    topic = "PyYoung"
    create_topic(servers, topic, queues=2)
    specs = keyed(topic, range(20), queues=2)
    send(servers, specs)
    future = time.strftime("%Y%m%d%H%M%S", time.localtime(time.time() + 3600))
    for where in ("FIRST_OFFSET", "LAST_OFFSET", "TIMESTAMP"):
        seen = Seen()
        begin: Any = {"consume_from_where": f"CONSUME_FROM_{where}", "consume_timestamp": future}
        with push(servers, f"py_young_{where}", seen, **begin).subscribe(topic):
            assert len(seen.wait_for_keys(keys_of(specs))) == len(specs)


@on_each_server(short=False, quick=False)
def test_a_new_group_on_older_queues_begins_where_it_asked_to(
    servers: Site, golden_stores: GoldenStores, tmp_path: Path
) -> None:
    """A store whose oldest segments have expired: its queues begin at 11,733 and 11,734."""
    topic = "Roll"
    records = [record for record in expected_records(EXPIRED) if record["topic"] == topic]
    places = {(record["queueId"], record["queueOffset"]) for record in records}
    late_s = max(record["storeTimestamp"] for record in records) // 1000
    late = {
        (record["queueId"], record["queueOffset"]) for record in records if record["storeTimestamp"] >= late_s * 1000
    }
    stamp = time.strftime("%Y%m%d%H%M%S", time.localtime(late_s))
    assert 0 < len(late) < len(places)

    def places_of(seen: Seen, count: int) -> set[tuple[int, int]]:
        taken = seen.wait_for(count)
        assert len(taken) == count
        return {(one.message.queue_id, one.message.queue_offset) for one in taken}

    store = golden_stores.copy(EXPIRED, "clean", tmp_path / "store")
    with servers.broker(store, name="broker-roll", settings={"fileReservedTime": 1_000_000}) as broker:
        first, timed, last = Seen(), Seen(), Seen()
        # From 0: the broker answers that this is too small, and with the offset to go on from.
        with push(servers, "py_older_first", first, offset_illegal_delay_ms=100).subscribe(topic):
            assert places_of(first, len(places)) == places
        at_time: Any = {"consume_from_where": "CONSUME_FROM_TIMESTAMP", "consume_timestamp": stamp}
        with (
            push(servers, "py_older_time", timed, **at_time).subscribe(topic),
            push(servers, "py_older_last", last, consume_from_where="CONSUME_FROM_LAST_OFFSET").subscribe(topic) as end,
        ):
            if servers.landscape.server_version.startswith("4."):
                # It takes the nearest message, be it older, and any of those of one millisecond.
                early = {one.place[1:] for one in timed.until(lambda taken: {one.place[1:] for one in taken} >= late)}
                assert late < early < places
                late = early
            assert places_of(timed, len(late)) == late
            # Where a queue begins is known before it is a member's.
            eventually(lambda: shares(end, topic), lambda count: count == 2)
            with producer(servers) as sender:
                specs = keyed(topic, range(4), queues=2)
                sent = [sender.send(**as_arguments(spec, "broker-roll")) for spec in specs]
            new = {(result.queue.queue_id, result.queue_offset) for result in sent}
            assert places_of(last, 4) == new
            assert places_of(timed, len(late) + 4) == late | new
        broker.kill()  # a clean end takes ten seconds, and nothing of it is wanted


@on_each_server()
def test_failed_message_is_retried_and_becomes_a_dead_letter(servers: Site) -> None:
    topic, group, seen, graves = "PyFailing", "py_failing", Seen(), Seen()
    create_topic(servers, topic, queues=2)
    specs = [
        MessageSpec(topic, b"good", "good", ("good",), {"own": "1"}, 0),
        MessageSpec(topic, b"slow", "slow", ("slow",), {"own": "2"}, 1),
        MessageSpec(topic, b"dead", "dead", ("dead",), {"own": "3"}, 0),
        MessageSpec(topic, b"given up", "hopeless", ("hopeless",), {"own": "4"}, 1),
    ]

    def answer(message: ReceivedMessage) -> Outcome | None:
        if message.tags == "slow" and message.reconsume_times < 2:
            return Outcome.retry(delay_level=2)
        if message.tags == "dead":
            raise ValueError("never")
        return Outcome.DEAD_LETTER if message.tags == "hopeless" else None

    with producer(servers) as sender:
        results = [sender.send(**as_arguments(spec)) for spec in specs]
    with (
        push(servers, group, seen, answer=answer, max_reconsume_times=2).subscribe(topic),
        push(servers, f"{group}_dead", graves, member="undertaker").subscribe(f"%DLQ%{group}"),
    ):
        taken = seen.wait_for(1 + 3 + 3 + 1)
        dead = {one.key: one.message for one in graves.wait_for(2)}
    tries = Counter(one.key for one in taken)
    assert tries == {"good": 1, "slow": 3, "dead": 3, "hopeless": 1}
    for key, delay_ms in (("slow", 2000), ("dead", 1000)):
        given = [one for one in taken if one.key == key]
        assert [one.reconsume_times for one in given] == [0, 1, 2]
        # The listener sees its own topic; where the message waited in between does not show.
        assert {one.message.topic for one in given} == {topic}
        assert len({one.message.body_bytes for one in given}) == 1
        times = [one.at_ms for one in given]
        assert all(later - earlier >= delay_ms for earlier, later in itertools.pairwise(times))
        assert given[-1].message.properties["RETRY_TOPIC"] == topic
    for at, key in ((2, "dead"), (3, "hopeless")):
        letter = dead[key]
        assert (letter.topic, letter.properties["own"]) == (f"%DLQ%{group}", str(at + 1))
        assert letter.properties["RETRY_TOPIC"] == topic
        # Which message it once was.
        assert letter.unique_id == results[at].message_id
        assert letter.properties["ORIGIN_MESSAGE_ID"] == results[at].offset_message_id
    if isinstance(servers, Peer):
        rows = {row["keys"]: row for row in servers.client.pull_all(f"%DLQ%{group}")}
        assert {row["message_id"] for row in rows.values()} == {results[2].message_id, results[3].message_id}


@on_each_server(short=False)
def test_a_suspended_consumer_pulls_nothing_until_it_is_resumed(servers: Site) -> None:
    topic, seen, witness = "PySuspended", Seen(), Seen()
    create_topic(servers, topic, queues=1)
    specs = keyed(topic, range(12), queues=1)
    with (
        push(servers, "py_suspended", seen).subscribe(topic) as consumer,
        push(servers, "py_witness", witness).subscribe(topic),
    ):
        send(servers, specs[:1])
        seen.wait_for_keys(["n0"])
        consumer.suspend()
        # A pull that the broker held already may bring the first of these, and with it what came at once behind.
        send(servers, specs[1:2])
        witness.wait_for(2)
        send(servers, specs[2:])
        witness.wait_for(len(specs))
        assert len(seen.all) <= 2
        consumer.resume()
        assert len(seen.wait_for_keys(keys_of(specs))) == len(specs)


@on_each_server(short=False, quick=False)
def test_progress_is_reset_while_the_consumer_runs(servers: Site) -> None:
    topic, group, seen = "PyReset", "py_reset", Seen()
    create_topic(servers, topic, queues=2)
    specs = keyed(topic, range(40), queues=2)
    send(servers, specs)
    with push(servers, group, seen).subscribe(topic):
        seen.wait_for_keys(keys_of(specs))
        # A broker of 4.9 moves only who has progress.
        await_progress(servers, group, topic, len(specs))
        if isinstance(servers, Peer) and servers.landscape.version.startswith("5."):
            shown = servers.client.mqadmin("resetOffsetByTime", "-g", group, "-t", topic, "-s", "0")
            assert topic in shown
        else:
            with cometmq.admin.connect(namesrv=servers.namesrv.address) as admin:
                admin.offsets.reset(group, topic, timestamp_ms=0)
        taken = seen.wait_for(2 * len(specs))
    await_progress(servers, group, topic, len(specs))
    assert Counter(one.key for one in taken) == dict.fromkeys(keys_of(specs), 2)


@on_each_server(short=False)
def test_a_consumer_is_asked_for_itself_and_given_a_message_by_hand(servers: Site) -> None:
    topic, group, seen = "PyByHand", "py_by_hand", Seen()
    create_topic(servers, topic, queues=2)
    with (
        push(servers, group, seen).subscribe(topic, "t"),
        cometmq.admin.connect(namesrv=servers.namesrv.address) as admin,
        producer(servers) as sender,
    ):
        sent = sender.send(**as_arguments(MessageSpec(topic, b"again", "t", ("again",), queue=0)))
        seen.wait_for_keys(["again"])
        client_id = client_id_of(servers, group)
        info = admin.groups.running_info(group, client_id, stack=True)
        assert {queue.queue_id for queue in info.queues if queue.topic == topic} == {0, 1}
        assert info.jstack
        result = admin.messages.consume_directly(sent.offset_message_id, group=group, client_id=client_id)
        assert result.consume_result is ConsumeResult.CR_SUCCESS
        assert len(seen.wait_for(2)) == 2
    # By hand, beside the group's progress.
    await_progress(servers, group, topic, 1)


@beside_java()
def test_upstreams_tools_ask_our_consumer_and_give_it_a_message_by_hand(company: Peer) -> None:
    client, topic, group, seen = company.client, "PyAsked", "py_asked", Seen()
    if company.landscape.version.startswith("4."):
        pytest.skip("the admin client's answers have other classes in 4.9")
    create_topic(company, topic, queues=2)
    answers = iter([None, None, Outcome.RETRY])
    with push(company, group, seen, answer=lambda _: next(answers)).subscribe(topic, "t"), producer(company) as sender:
        sent = sender.send(**as_arguments(MessageSpec(topic, b"again", "t", ("again",), queue=0)))
        seen.wait_for_keys(["again"])
        client_id = client_id_of(company, group)
        info = client.running_info(group, client_id, with_stacks=True)
        assert info["topics"] == sorted([topic, f"%RETRY%{group}"])
        assert {queue for queue in info["queues"] if queue.startswith(topic)} == {f"{topic}:0", f"{topic}:1"}
        assert info["properties"]["PROP_CONSUMEORDERLY"] == "false"
        assert info["jstack"]
        assert client.consume_directly(group, client_id, topic, sent.offset_message_id) == "CR_SUCCESS"
        assert client.consume_directly(group, client_id, topic, sent.offset_message_id) == "CR_LATER"
        assert [one.message.body_bytes for one in seen.wait_for(3)] == [b"again"] * 3
        for command in ("consumerConnection", "consumerStatus"):
            assert client_id in client.mqadmin(command, "-g", group)
    await_progress(company, group, topic, 1)


@beside_java()
def test_broadcasting_progress_goes_from_one_client_to_the_other_and_back(company: Peer) -> None:
    """The same folder, group and client id: each goes on in ``offsets.json`` where the other has stopped."""
    client, topic, group, instance = company.client, "PyLocalOffsets", "py_local_offsets", "handed-over"
    create_topic(company, topic, queues=2)
    specs = keyed(topic, range(30), queues=2)
    send(company, specs[:10])
    client_id = client.start_consumer("theirs", group, {topic: "*"}, is_broadcasting=True, instance=instance)
    assert len(client.consumed("theirs", count=10)) == 10
    client.stop_consumers("theirs")
    (file,) = client.home.rglob(f"{group}/offsets.json")
    assert file.parent.parent.name == client_id

    send(company, specs[10:20])
    seen = Seen()
    ours = push(
        company,
        group,
        seen,
        message_model=MessageModel.BROADCASTING,
        offset_folder=file.parents[2],
        client_ip=client_id.removesuffix(f"@{instance}"),
        instance_name=instance,
    )
    with ours.subscribe(topic):
        assert len(seen.wait_for_keys(keys_of(specs[10:20]))) == 10
    send(company, specs[20:])
    client.start_consumer("theirs again", group, {topic: "*"}, is_broadcasting=True, instance=instance)
    rows = client.consumed("theirs again", count=10)
    assert sorted(row["keys"] for row in rows) == sorted(keys_of(specs[20:]))
