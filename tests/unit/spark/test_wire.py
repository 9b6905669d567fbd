"""Checks: a cluster read over the wire, without Spark: the same rows as its files, in columns, tags, times, losses."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import cometmq
import cometmq.testing
from cometmq import BrokerError, CorruptRecord
from cometmq._engine import PullAnswer
from cometmq.admin import connect
from cometmq.client import OutgoingMessage, Producer
from cometmq.errors import BrokerNotFound, MalformedCommand, NotFound
from cometmq.remoting.codes import ResponseCode
from cometmq.spark.catalog import open_catalog, selected_topics
from cometmq.spark.errors import DataLoss, OptionError
from cometmq.spark.fetch import record_batches
from cometmq.spark.filters import Pushed, narrowed_by_time
from cometmq.spark.offsets import QueueKey
from cometmq.spark.options import OptionMap, ReadOptions, Subscription
from cometmq.spark.planning import QueueRange
from cometmq.spark.schema import chosen_columns, spark_arrow_schema
from cometmq.spark.wire import Retry, Wire
from cometmq.spark.wire_catalog import WireCatalog
from cometmq.spark.wire_rows import WireRows
from cometmq.testing import Cluster
from support.spark_rows import plan_of, read_batches, read_rows

MESSAGES = 3_000
EVERYTHING = (
    "topic,queueId,queueOffset,body,tags,keys,bornTimestamp,storeTimestamp,properties,flag,sysFlag,reconsumeTimes,"
    "msgId,uniqueId,commitLogOffset,bornHost,storeHost,bodyCrc,bodyBytes,preparedTransactionOffset,prop:region"
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two brokers; topic t has two queues at each, and bodies of which some are compressed."""
    with cometmq.testing.cluster(brokers=2) as running:
        with connect(namesrv=running.name_server_address) as admin:
            admin.topics.create("t", queues=2)
            admin.topics.create("empty", queues=1)
        with Producer("makers", name_servers=running.name_server_address) as producer:
            for start in range(0, MESSAGES, 100):
                producer.send_batch([message(number) for number in range(start, start + 100)], topic="t")
            for number in range(MESSAGES, MESSAGES + 4):
                producer.send("t", b"%d " % number * 2_000, tags="long", properties={"region": "north"})
        yield running


def message(number: int) -> OutgoingMessage:
    return OutgoingMessage(b"%d" % number, tags=("a", "b", None)[number % 3], keys=f"k{number} every{number % 100}")


def read_options(cluster: Cluster, **options: str) -> ReadOptions:
    return ReadOptions.of(OptionMap({"nameServer": cluster.name_server_address, "topic": "t", **options}))


def read(cluster: Cluster, **options: str) -> list[dict[str, Any]]:
    return read_rows(nameServer=cluster.name_server_address, **{"topic": "t", **options})


def numbers(rows: list[dict[str, Any]]) -> list[int]:
    return sorted(int(row["body"].split()[0]) for row in rows)


# --- Rows


def test_the_same_rows_as_the_files(cluster: Cluster) -> None:
    by_wire = read(cluster, columns=EVERYTHING)
    by_files = []
    for broker in cluster.brokers:
        path = str(cluster.path / broker.config.settings.broker_name)
        by_files += read_rows(path=path, topic="t", columns=EVERYTHING)

    def place(row: dict[str, Any]) -> tuple[Any, ...]:
        return row["storeHost"], row["queueId"], row["queueOffset"]

    assert len(by_wire) == MESSAGES + 4
    assert sorted(by_wire, key=place) == sorted(by_files, key=place)


def test_types_and_sizes_of_batches(cluster: Cluster) -> None:
    options = read_options(cluster, batchRows="100", columns="queueOffset,body,properties,storeTimestamp")
    batches = read_batches(options)
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema.equals(spark_arrow_schema(chosen_columns(options)))
        assert batch.num_rows <= 100
    kafka = read_batches(read_options(cluster, schema="kafka", includeHeaders="true"))
    assert sum(batch.num_rows for batch in kafka) == MESSAGES + 4
    assert kafka[0].to_pylist()[0]["timestampType"] == 1


def test_tags_keys_and_brokers(cluster: Cluster) -> None:
    assert numbers(read(cluster, tags="a || long")) == [*range(0, MESSAGES, 3), *range(MESSAGES, MESSAGES + 4)]
    assert numbers(read(cluster, keys="k7,every42")) == sorted([7, *range(42, MESSAGES, 100)])
    rows = read(cluster, columns="brokerName,queueId,storeHost")
    hosts = {row["storeHost"]: row["brokerName"] for row in rows}
    assert sorted(hosts.values()) == ["broker-a", "broker-b"]
    assert {row["brokerName"] == hosts[row["storeHost"]] for row in rows} == {True}


def test_brokers_evaluate_expressions(tmp_path: Path) -> None:
    with (
        cometmq.testing.cluster(path=tmp_path, settings={"enablePropertyFilter": True}) as running,
        Producer("makers", name_servers=running.name_server_address) as producer,
    ):
        with connect(namesrv=running.name_server_address) as admin:
            admin.topics.create("t", queues=2)
        for number in range(60):
            producer.send("t", b"%d" % number, tags="ab"[number % 2], properties={"price": str(number)})
        assert numbers(read(running, where="price > 40")) == list(range(41, 60))
        assert numbers(read(running, where="price > 40", tags="a")) == list(range(42, 60, 2))
        assert numbers(read(running, where="price < 0", columns="body")) == []


def test_a_broker_without_property_filters_is_named(cluster: Cluster) -> None:
    with pytest.raises(BrokerError, match=r"code 1 from 127.*SQL92.*enablePropertyFilter is false"):
        read(cluster, where="price > 40")


def test_delayed_messages_are_found_by_their_tags(cluster: Cluster) -> None:
    with Producer("makers", name_servers=cluster.name_server_address) as producer:
        for tag in "abab":
            producer.send(OutgoingMessage(b"later", topic="t", tags=tag, delay_level=18))
    found = read(cluster, topic="SCHEDULE_TOPIC_XXXX", tags="b", columns="body,tags")
    assert found == [{"body": b"later", "tags": "b"}] * 2


def test_offsets(cluster: Cluster) -> None:
    start = '{"t": {"broker-a": {"0": 10, "1": 7}, "broker-b": {"0": -1, "1": -2}}}'
    end = '{"t": {"broker-a": {"0": 12, "1": 7}, "broker-b": {"0": -1, "1": 1}}}'
    with pytest.raises(OptionError, match="cannot start at latest"):
        read(cluster, startingOffsets=start)
    start = start.replace("-1", "-2")
    end = end.replace("-1", "0")
    rows = read(cluster, startingOffsets=start, endingOffsets=end, columns="brokerName,queueId,queueOffset")
    found = sorted((row["brokerName"], row["queueId"], row["queueOffset"]) for row in rows)
    assert found == [("broker-a", 0, 10), ("broker-a", 0, 11), ("broker-b", 1, 0)]


def test_an_empty_topic(cluster: Cluster) -> None:
    assert read(cluster, topic="empty") == []
    with pytest.raises(OptionError, match=r"there is no topic 'missing'; known topics: .*empty"):
        read(cluster, topic="missing")


def test_patterns_leave_the_brokers_own_topics_out(cluster: Cluster) -> None:
    with WireCatalog([cluster.name_server_address], timeout_ms=5_000) as catalog:
        assert selected_topics(catalog, Subscription(pattern=".*")) == {"t": None, "empty": None}
        assert "RMQ_SYS_TRANS_HALF_TOPIC" in catalog.topics()


# --- Times


def test_times_are_exact(cluster: Cluster) -> None:
    stored = sorted(row["storeTimestamp"] for row in read(cluster, columns="storeTimestamp"))
    for moment in (stored[0], stored[len(stored) // 2], stored[-1]):
        rows = read(cluster, columns="storeTimestamp", startingTimestamp=moment.isoformat())
        assert sorted(row["storeTimestamp"] for row in rows) == [one for one in stored if one >= moment]
        rows = read(cluster, columns="storeTimestamp", endingTimestamp=moment.isoformat())
        assert sorted(row["storeTimestamp"] for row in rows) == [one for one in stored if one < moment]
    assert read(cluster, columns="storeTimestamp", startingTimestamp=str(int(stored[-1].timestamp() * 1000) + 1)) == []
    assert len(read(cluster, columns="storeTimestamp", startingTimestamp="0")) == len(stored)


@pytest.mark.parametrize("error", [-5, -1, 0, 1, 7])
def test_times_where_the_broker_is_wrong(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    """As brokers of 4.9 are: they name the message that is nearest in time."""
    stored = sorted(row["storeTimestamp"] for row in read(cluster, columns="storeTimestamp"))
    moment = stored[len(stored) // 3]
    with WireCatalog([cluster.name_server_address], timeout_ms=5_000) as catalog:
        ends = catalog.ends("t")
        offsets = catalog._wire.admin.offsets
        right = type(offsets).at_time

        async def wrong(self: Any, *args: Any, **kwargs: Any) -> Any:
            (told,) = await right(self, *args, **kwargs)
            return (type(told)(broker_name=told.broker_name, queue_id=told.queue_id, offset=told.offset + error),)

        monkeypatch.setattr(type(offsets), "at_time", wrong)
        time_ms = int(moment.timestamp() * 1000)
        later = sum(one.high - catalog.offset_at(key, time_ms) for key, one in ends.items())
    assert later == sum(one >= moment for one in stored)


def test_filters_by_time(cluster: Cluster) -> None:
    with WireCatalog([cluster.name_server_address], timeout_ms=5_000) as catalog:
        ranges = [QueueRange.of(key, one.low, one.high) for key, one in catalog.ends("t").items()]
        now_ms = time.time_ns() // 1_000_000
        assert narrowed_by_time(catalog, ranges, Pushed(time_low_ms=now_ms + 60_000)) == []
        assert narrowed_by_time(catalog, ranges, Pushed(time_low_ms=0, time_high_ms=now_ms + 60_000)) == ranges


# --- Planning


def test_cost_of_a_message(cluster: Cluster) -> None:
    with WireCatalog([cluster.name_server_address], timeout_ms=5_000) as catalog:
        key, ends = max(catalog.ends("t").items(), key=lambda one: one[1].high)
        whole = QueueRange.of(key, ends.low, ends.high)
        mean = catalog.row_bytes(whole)
        assert 150 < mean < 2_000
        assert catalog.row_bytes(whole, ["a"]) == pytest.approx(mean / 3, rel=0.3)
        assert catalog.row_bytes(whole, ["nobody"]) < mean / 10


def test_progress_of_a_group(cluster: Cluster) -> None:
    with connect(namesrv=cluster.name_server_address) as admin:
        admin.groups.create("watched")
    with WireCatalog([cluster.name_server_address], timeout_ms=5_000) as catalog:
        catalog.commit_progress("watched", {QueueKey("t", 1, "broker-b"): 5, QueueKey("t", 0, "broker-a"): 3})
    with connect(namesrv=cluster.name_server_address) as admin:
        queues = admin.groups.describe("watched").progress.queues
    told = {(one.broker_name, one.queue_id): one.consumer_offset for one in queues if one.consumer_offset > 0}
    assert told == {("broker-b", 1): 5, ("broker-a", 0): 3}


def test_reading_touches_no_group(cluster: Cluster) -> None:
    read(cluster)
    with connect(namesrv=cluster.name_server_address) as admin:
        queues = admin.offsets.progress("TOOLS_CONSUMER", topic="t").queues
        assert {one.consumer_offset for one in queues} <= {-1, 0}
        assert not admin.groups.describe("TOOLS_CONSUMER").members


# --- What goes wrong


@pytest.mark.parametrize("fail", [True, False])
def test_missing_things_are_named(cluster: Cluster, fail: bool, caplog: pytest.LogCaptureFixture) -> None:
    options = read_options(cluster, failOnDataLoss=str(fail).lower())
    with open_catalog(options) as catalog:
        key, ends = max(catalog.ends("t").items(), key=lambda one: one[1].high)
    beyond = [QueueRange.of(key, ends.high - 3, ends.high + 5)]
    if fail:
        with pytest.raises(DataLoss, match=rf"{ends.high} to {ends.high + 4} of queue .* failOnDataLoss=false"):
            list(record_batches(plan_of(options), beyond))
        return
    with caplog.at_level(logging.WARNING, "cometmq.spark"):
        assert sum(batch.num_rows for batch in record_batches(plan_of(options), beyond)) == 3
    assert "not there any more" in caplog.text


Answers = Callable[[Wire, QueueKey, int], "PullAnswer | Exception"]


def answering(monkeypatch: pytest.MonkeyPatch, answers: Answers) -> None:
    """Let brokers answer pulls in another way."""

    async def pull(self: Wire, key: QueueKey, offset: int, **_: Any) -> PullAnswer:
        answer = answers(self, key, offset)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(Wire, "pull", pull)


def fetched(cluster: Cluster, *, rows: int = 10, **options: str) -> int:
    plan = plan_of(read_options(cluster, **options))
    ranges = [QueueRange("t", 0, 0, rows, "broker-a")]
    return sum(batch.num_rows for batch in record_batches(plan, ranges))


def test_messages_that_expire_meanwhile(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    right = Wire.pull

    def pulled(wire: Wire, key: QueueKey, offset: int) -> PullAnswer:
        return PullAnswer(code=int(ResponseCode.PULL_OFFSET_MOVED), next_begin_offset=4, min_offset=4, max_offset=10)

    async def pull(self: Wire, key: QueueKey, offset: int, **kwargs: Any) -> PullAnswer:
        return pulled(self, key, offset) if offset < 4 else await right(self, key, offset, **kwargs)

    monkeypatch.setattr(Wire, "pull", pull)
    with pytest.raises(DataLoss, match=r"the messages 0 to 3 of queue 0 of 't' at broker-a .* the queue has 4 to 10"):
        fetched(cluster)
    assert fetched(cluster, failOnDataLoss="false") == 6


def test_messages_that_do_not_come_are_counted(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, lambda *_: PullAnswer(code=0, next_begin_offset=10, max_offset=10))
    with pytest.raises(DataLoss, match="10 of 10 messages of t/broker-a/0 did not come"):
        fetched(cluster)
    assert fetched(cluster, failOnDataLoss="false") == 0
    assert fetched(cluster, tags="a") == 0  # filtered messages cannot be distinguished from missing ones


def test_answers_that_make_no_sense(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, lambda wire, key, offset: PullAnswer(code=0, next_begin_offset=offset, max_offset=10))
    with pytest.raises(MalformedCommand, match="asked for offset 0 of queue 0 of 't' at broker-a"):
        fetched(cluster)
    answering(monkeypatch, lambda *_: PullAnswer(code=0, next_begin_offset=10, max_offset=10, body=b"nonsense" * 20))
    with pytest.raises(CorruptRecord, match=r"not messages.*t/broker-a/0.*onCorrupt=skip"):
        fetched(cluster)
    assert fetched(cluster, onCorrupt="skip") == 0


def test_refusals(cluster: Cluster) -> None:
    plan = plan_of(read_options(cluster, pullTimeoutMs="200"))
    with pytest.raises(BrokerError, match="missing"):
        list(record_batches(plan, [QueueRange("missing", 0, 0, 5, "broker-a")]))
    with pytest.raises(BrokerNotFound, match="no name server knows broker nowhere; known are broker-a, broker-b"):
        list(record_batches(plan, [QueueRange("t", 0, 0, 5, "nowhere")]))


def test_nobody_there() -> None:
    options = ReadOptions.of(OptionMap({"nameServer": "127.0.0.1:1", "topic": "t", "pullTimeoutMs": "100"}))
    with open_catalog(options) as catalog, pytest.raises(cometmq.errors.ConnectionLost, match=r"127\.0\.0\.1:1"):
        catalog.topics()


@pytest.mark.parametrize(
    "code",
    [
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.GO_AWAY,
    ],
)
def test_a_busy_broker_is_asked_again(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, code: ResponseCode) -> None:
    right, asked = Wire._pull_once, []

    async def once(self: Wire, address: str, request: Any) -> PullAnswer:
        asked.append(request.queue_offset)
        if len(asked) <= 2:
            return PullAnswer(code=int(code), remark="too much to do")
        return await right(self, address, request)

    monkeypatch.setattr(Wire, "_pull_once", once)
    assert fetched(cluster) == 10
    assert asked == [0, 0, 0]
    asked.clear()
    with pytest.raises(BrokerError, match="too much to do"):
        fetched(cluster, pullTimeoutMs="1")


def test_a_broker_that_comes_back_is_waited_for(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    with WireCatalog([cluster.name_server_address], timeout_ms=10_000) as catalog:
        before = catalog.ends("t")
        right, calls = type(catalog._wire.admin.topics).queues, []

        async def queues(self: Any, topic: str) -> Any:
            calls.append(topic)
            found = await right(self, topic)
            return tuple(one for one in found if one.broker_name == "broker-a") if len(calls) < 3 else found

        monkeypatch.setattr(type(catalog._wire.admin.topics), "queues", queues)
        after = catalog.ends("t")
    assert len(calls) == 3
    assert {key: (one.low, one.high) for key, one in after.items()} == {
        key: (one.low, one.high) for key, one in before.items()
    }


def test_a_cluster_without_a_broker_is_asked_again(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    with WireCatalog([cluster.name_server_address], timeout_ms=10_000) as catalog:
        wire, calls = catalog._wire, []
        cluster_admin = type(wire.admin.cluster)
        right = cluster_admin.brokers

        async def brokers(self: Any) -> Any:
            calls.append(1)
            if len(calls) < 3:  # the only one died, and has not registered again
                raise NotFound("no broker is registered")
            return await right(self)

        monkeypatch.setattr(cluster_admin, "brokers", brokers)
        assert wire.writable_brokers(None) == ("broker-a", "broker-b")
        assert len(calls) == 3


@pytest.mark.parametrize("slave_is_last", [False, True])
def test_a_master_is_asked_and_not_its_slave(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, slave_is_last: bool
) -> None:
    masters = {broker.config.settings.broker_name: broker.address for broker in cluster.brokers}
    with WireCatalog([cluster.name_server_address], timeout_ms=100) as catalog:
        wire = catalog._wire
        cluster_admin = type(wire.admin.cluster)
        right = cluster_admin.brokers

        async def brokers(self: Any) -> Any:
            found = await right(self)
            slaves = tuple(replace(one, broker_id=1, address="127.0.0.1:1") for one in found)
            lonely = replace(found[0], broker_name="broker-c", broker_id=1, address="127.0.0.1:2")
            return (*found, *slaves, lonely) if slave_is_last else (lonely, *slaves, *found)

        monkeypatch.setattr(cluster_admin, "brokers", brokers)
        for name, address in masters.items():
            assert wire.run(wire._address_of(name)) == address
        # A slave whose master is gone is nobody to pull from: it may be behind.
        with pytest.raises(BrokerNotFound, match="knows broker broker-c; known are broker-a, broker-b"):
            wire.run(wire._address_of("broker-c"))


# --- Life


def test_a_reader_that_is_left_ends_its_pulls(cluster: Cluster) -> None:
    options = read_options(cluster, batchRows="10", batchBytes="1k")
    with open_catalog(options) as catalog:
        ranges = [QueueRange.of(key, ends.low, ends.high) for key, ends in catalog.ends("t").items()]
    rows = WireRows(plan_of(options))
    with rows:
        batches = rows.batches(ranges)
        assert next(batches).num_rows == 10
        batches.close()  # type: ignore[attr-defined]
        loop = rows._wire._background.loop
        left = asyncio.run_coroutine_threadsafe(_pulling(), loop).result(20)
    assert left == 0


async def _pulling() -> int:
    names = [getattr(task.get_coro(), "__name__", "") for task in asyncio.all_tasks()]
    return names.count("_pull_chunk")


def test_a_deleted_topic_is_waited_for_once(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its brokers may only be starting again; but not for every micro-batch."""
    pauses = []
    pause = Retry.pause

    async def counted(retry: Retry) -> bool:
        pauses.append(retry)
        return await pause(retry)

    monkeypatch.setattr(Retry, "pause", counted)
    with WireCatalog([cluster.name_server_address], timeout_ms=300) as catalog:
        assert catalog.ends("t")
        with connect(namesrv=cluster.name_server_address) as admin:
            admin.topics.delete("t")
        assert "t" not in catalog.topics()
        assert pauses
        pauses.clear()
        assert "t" not in catalog.topics()
        assert not pauses
