"""Checks: every store that a real RocketMQ left, cleanly or killed, opens to read and to append, with its settings and
without; each message equals what upstream's own decoder made of it; each queue unit points at its record, and each
record has its unit; each key that the index holds is found. Messages of inner batches come one by one.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pytest

import cometmq
from cometmq import Message, Store
from cometmq._engine import java_hash
from support.golden import GoldenStores, StoreKind, broker_properties, expected_records, golden_names

Mode: TypeAlias = Literal["a", "r"]
GoldenStore: TypeAlias = Callable[[str, StoreKind], Path]
Record: TypeAlias = Mapping[str, Any]

CASES: list[tuple[str, StoreKind, Mode]] = [
    (name, kind, mode)
    for kind in ("clean", "crashed")
    for name in golden_names(kind)  # type: ignore[arg-type]
    for mode in ("r", "a")
]
IDS = [f"{name}-{kind}-{mode}" for name, kind, mode in CASES]

# A crashed store's clean twin had one more start of its broker, which wrote a little itself.
RECORDS_MISSING_IN_CRASHED = {"apache-4.9.7": 1, "apache-5.3.3": 4}
# Upstream deletes the newest index file when it starts after a crash, and fills the new one from where recovery reads.
# The clean stores have had such a start; a crashed one gets it when it is opened to append, here as in upstream.
KEYS_LOST = {"apache-5.3.3": 829, "apache-5.3.3-binary-headers": 3373}

SCHEDULE = "SCHEDULE_TOPIC_XXXX"


@pytest.fixture(scope="module", params=CASES, ids=IDS)
def case(
    request: pytest.FixtureRequest, golden_stores: GoldenStores, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Store, list[Record], bool]]:
    """An open store, the records that must be in it, and whether the index has lost keys. Tests only read it."""
    name, kind, mode = request.param
    path = golden_stores.copy(name, kind, tmp_path_factory.mktemp("case") / "store")
    with cometmq.open(path, mode=mode, config=broker_properties(name)) as store:
        yield store, expected(name, kind), kind == "clean" or mode == "a"


def expected(name: str, kind: StoreKind) -> list[Record]:
    records = list(expected_records(name))
    missing = RECORDS_MISSING_IN_CRASHED.get(name, 0) if kind == "crashed" else 0
    return records[: len(records) - missing]


def as_record(message: Message) -> Record:
    """Say a message as upstream's decoder does in expected.jsonl."""
    body, raw_body = bytes(message), bytes(message.raw_body)
    assert message.body == body == message.body_bytes
    assert message.body.readonly
    assert message.raw_body.readonly
    return {
        "physicalOffset": message.physical_offset,
        "size": message.record_bytes,
        "magic": f"{message.magic:08x}",
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "flag": message.flag,
        "sysFlag": message.sys_flag,
        "bodyCRC": message.body_crc,
        "bornTimestamp": message.born_timestamp_ms,
        "bornHost": "/{}:{}".format(*message.born_host),
        "storeTimestamp": message.store_timestamp_ms,
        "storeHost": "/{}:{}".format(*message.store_host),
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "offsetMsgId": message.message_id,
        "bodySize": len(raw_body),
        "storedBodySha256": hashlib.sha256(raw_body).hexdigest(),
        "bodySha256": hashlib.sha256(body).hexdigest(),
        "properties": message.properties,
    }


def keys_of(record: Record) -> set[str]:
    properties = record["properties"]
    return {*properties.get("KEYS", "").split(" "), properties.get("UNIQ_KEY", "")} - {""}


def light_queues(record: Record) -> Iterator[tuple[str, int]]:
    """The light queues that a record was put into, with its offset in each."""
    names = record["properties"].get("INNER_MULTI_DISPATCH", "")
    offsets = record["properties"].get("INNER_MULTI_QUEUE_OFFSET", "")
    for name, offset in zip(names.split(","), offsets.split(","), strict=True):
        if name.startswith("%LMQ%"):
            yield name, int(offset)


def test_each_message_equals_its_line(case: tuple[Store, list[Record], bool]) -> None:
    store, records, _ = case
    assert [as_record(message) for message in store.read(unwrap=False)] == records
    backwards = [message.physical_offset for message in store.read(unwrap=False, backwards=True)]
    assert backwards == [record["physicalOffset"] for record in reversed(records)]


def test_tags_keys_and_ids_are_their_properties(case: tuple[Store, list[Record], bool]) -> None:
    store, records, _ = case
    for message, record in zip(store.read(unwrap=False), records, strict=True):
        properties = record["properties"]
        assert message.tags == properties.get("TAGS")
        assert " ".join(message.keys) == properties.get("KEYS", "")
        assert message.unique_id == properties.get("UNIQ_KEY")
        assert store.get_by_id(record["offsetMsgId"]).physical_offset == record["physicalOffset"]


def test_opens_without_its_settings(golden_store: GoldenStore) -> None:
    for name in golden_names():
        with cometmq.open(golden_store(name, "clean"), mode="r") as store:
            assert sum(1 for _ in store.read(unwrap=False)) == len(expected_records(name))


def test_each_unit_points_at_its_record(case: tuple[Store, list[Record], bool]) -> None:
    store, records, _ = case
    by_offset = {record["physicalOffset"]: record for record in records}
    of_queues: dict[tuple[str, int], list[int]] = defaultdict(list)
    for record in records:
        of_queues[record["topic"], record["queueId"]].append(record["physicalOffset"])
        if record["properties"].get("INNER_MULTI_DISPATCH"):
            for name, offset in light_queues(record):
                assert store.get(name, 0, offset).physical_offset == record["physicalOffset"]
                of_queues[name, 0].append(record["physicalOffset"])
    with_units = {}
    for queue in store.queues():
        units = units_of(store, queue.topic, queue.queue_id)
        for queue_offset, physical_offset, size, tags_code, count in units:
            check_unit(by_offset[physical_offset], queue.topic, queue_offset, size, tags_code, count)
        offsets = [unit[0] for unit in units]
        assert offsets == sorted(set(offsets)), f"{queue}: the ordinals do not rise"
        assert sum(unit[4] for unit in units) == queue.messages
        if units:
            with_units[queue.topic, queue.queue_id] = [unit[1] for unit in units]
    assert with_units == of_queues


def units_of(store: Store, topic: str, queue_id: int) -> list[tuple[int, int, int, int, int]]:
    units: list[tuple[int, int, int, int, int]] = []
    at = store.min_offset(topic, queue_id)
    while True:
        found, at = store.handle.queue_units(topic, queue_id, at, 1000)
        if not found:
            return units
        units += found


def check_unit(record: Record, topic: str, queue_offset: int, size: int, tags_code: int, count: int) -> None:
    assert size == record["size"]
    assert count == int(record["properties"].get("INNER_NUM", 1))
    if topic == record["topic"]:
        assert queue_offset == record["queueOffset"]
    else:
        assert (topic, queue_offset) in list(light_queues(record))
    tags = record["properties"].get("TAGS")
    if topic == SCHEDULE:
        assert tags_code > record["storeTimestamp"]
    else:
        assert tags_code == (java_hash(tags) if tags else 0)


def test_each_key_in_the_index_is_found(case: tuple[Store, list[Record], bool], request: pytest.FixtureRequest) -> None:
    store, records, has_lost_keys = case
    wanted: dict[tuple[str, str], set[int]] = defaultdict(set)
    for record in records:
        for key in keys_of(record):
            wanted[record["topic"], key].add(record["physicalOffset"])
    lost = 0
    for (topic, key), offsets in wanted.items():
        messages = list(store.find(topic, key))
        found = [message.physical_offset for message in messages]
        assert found == sorted(set(found), reverse=True), "newest first, each once"
        assert set(found) <= offsets, f"{key} was found where it is not"
        lost += len(offsets - set(found))
        if found:
            newest = messages[0]
            times = {"start_time": newest.store_timestamp_ms, "end_time": newest.store_timestamp_ms}
            assert newest.physical_offset in [other.physical_offset for other in store.find(topic, key, **times)]
            assert list(store.find(topic, key, end_time=min(records[0]["storeTimestamp"] - 1, 0))) == []
    name = request.node.callspec.id.rpartition("-")[0].rpartition("-")[0]
    assert lost == (KEYS_LOST.get(name, 0) if has_lost_keys else 0)


def test_topics_are_read_alone_and_by_tag(case: tuple[Store, list[Record], bool]) -> None:
    store, records, _ = case
    plain = [record for record in records if record["topic"] in ("Plain", "BcT", "Many")]
    for topic in sorted({record["topic"] for record in plain}):
        lines = [record for record in plain if record["topic"] == topic]
        assert [message.physical_offset for message in store.read(topic)] == [line["physicalOffset"] for line in lines]
        for tag in sorted({line["properties"]["TAGS"] for line in lines if "TAGS" in line["properties"]}):
            tagged = [line["physicalOffset"] for line in lines if line["properties"].get("TAGS") == tag]
            assert [message.physical_offset for message in store.read(topic, tags=tag)] == tagged


def test_time_bounds_agree_with_the_records(case: tuple[Store, list[Record], bool]) -> None:
    store, records, _ = case
    times = sorted({record["storeTimestamp"] for record in records})
    low, high = times[len(times) // 3], times[2 * len(times) // 3]
    wanted = [record["physicalOffset"] for record in records if low <= record["storeTimestamp"] < high]
    between = store.read(start_time=low, end_time=high, unwrap=False)
    assert [message.physical_offset for message in between] == wanted
    for queue in store.queues():
        stored = {
            message.queue_offset: message.store_timestamp_ms
            for message in store.read(queue.topic, queues=[queue.queue_id], unwrap=False)
        }
        if stored and not queue.is_batch and not queue.topic.startswith("%LMQ%"):
            first = min((offset for offset, time in stored.items() if time >= low), default=queue.max_offset)
            assert store.offset_at(queue.topic, queue.queue_id, low) == first


def test_inner_batches_come_as_their_messages(golden_store: GoldenStore) -> None:
    with cometmq.open(golden_store("apache-5.3.3-rare", "clean"), mode="r") as store:
        batches = [record for record in expected_records("apache-5.3.3-rare") if "INNER_NUM" in record["properties"]]
        messages = list(store.read("Bcq"))
        alone = sum(1 for record in expected_records("apache-5.3.3-rare") if record["topic"] == "Bcq") - len(batches)
        assert len(messages) == alone + sum(int(record["properties"]["INNER_NUM"]) for record in batches)
        for queue in store.queues("Bcq"):
            offsets = [message.queue_offset for message in messages if message.queue_id == queue.queue_id]
            assert offsets == list(range(queue.min_offset, queue.max_offset))
        for message in messages:
            again = store.get("Bcq", message.queue_id, message.queue_offset)
            assert (bytes(again), again.properties, again.flag) == (bytes(message), message.properties, message.flag)
            assert "INNER_NUM" not in message.properties
            assert not message.is_inner_batch
        assert Counter(bytes(message) for message in store.read("Bcq", backwards=True)) == Counter(map(bytes, messages))


def test_groups_progress_is_upstreams(golden_store: GoldenStore) -> None:
    with cometmq.open(golden_store("apache-5.3.3", "clean"), mode="r") as store:
        progress = {(one.group, one.topic, one.queue_id): one for one in store.progress()}
        assert ("g_conc", "Plain", 0) in progress or any(key[1] == "Plain" for key in progress)
        for one in progress.values():
            assert one.lag >= 0
        assert {one.group for one in progress.values()} <= set(store.groups())


def test_a_writable_copy_goes_on(golden_store: GoldenStore) -> None:
    for name, kind, mode in CASES:
        if mode != "a":
            continue
        path = golden_store(name, kind)
        count = len(expected(name, kind))
        with cometmq.open(path, config=broker_properties(name), flush="sync") as store:
            topic = next(topic for topic in store.topics() if topic[0] not in "%r" and not store.topic(topic).is_batch)
            high = store.topic(topic).queues[0].max_offset if store.topic(topic).queues else 0
            queue = store.topic(topic).queues[0].queue_id if store.topic(topic).queues else 0
            result = store.append(topic, b"one more", tags="more", keys=["more-1"], queue=queue)
            assert result.queue_offset == high
        with cometmq.open(path, mode="r", config=broker_properties(name)) as store:
            messages = list(store.read(unwrap=False))
            assert len(messages) == count + 1
            assert bytes(messages[-1]) == b"one more"
            assert [bytes(message) for message in store.find(topic, "more-1")] == [b"one more"]
            assert not store.opening().was_unclean
