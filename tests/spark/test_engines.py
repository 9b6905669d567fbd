"""Checks: the engine in the JVM gives the Python source's rows, schema and errors; what it pushes down."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import cometmq
from cometmq.spark import jars
from support.any_disk import retention_on_request
from support.golden import broker_properties, golden_names
from support.small_store import SMALL, open_small, pretend_newer, spoil

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.skipif(not jars(), reason="the engine for the JVM is not built: Java 17's javac was not found")

ALL = (
    "topic,queueId,queueOffset,body,tags,keys,bornTimestamp,storeTimestamp,properties,flag,sysFlag,reconsumeTimes,"
    "msgId,uniqueId,commitLogOffset,bornHost,storeHost,bodyCrc,bodyBytes,preparedTransactionOffset,prop:region,brokerName"
)
TOPICS = "orders,batches,empty"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """4,000 messages with everything in four queues, batches of 1 to 5 messages, tags of one hash, an empty topic."""
    path = tmp_path_factory.mktemp("engines") / "store"
    with open_small(path) as opened:
        opened.create_topic("orders", queues=4)
        opened.create_topic("empty", queues=2)
        opened.create_topic("batches", batch=True)
        for start in range(0, 4000, 500):
            numbers = range(start, start + 500)
            opened.append_many(
                "orders",
                [b"%d" % number * (number % 7) for number in numbers],
                tags=[("red", "green", None)[number % 3] for number in numbers],
                keys=[f"k{number} c{number % 10}" if number % 2 else f"k{number}" for number in numbers],
                properties=[{"region": "eu" if number % 2 else "\u00fcs"} for number in numbers],
            )
        opened.append_many("clashes", [b"%d" % number for number in range(40)], tags=["AaAa", "BBBB", "AaBB", "C"] * 10)
        for number in range(20):
            opened.append_many("batches", [b"%d.%d" % (number, part) for part in range(number % 5 + 1)], tags="t")
    return path


def load(spark: SparkSession, path: Path, engine: str, **options: str) -> DataFrame:
    return spark.read.format("cometmq").options(path=str(path), engine=engine, **options).load()


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    return sorted(frame.toArrow().to_pylist(), key=repr)


def plan_of(frame: DataFrame) -> str:
    plan: str = frame._jdf.queryExecution().toString()
    return plan


def figure(frame: DataFrame, name: str) -> int:
    """Return a metric of the scans below a frame's last action."""
    leaves = frame._jdf.queryExecution().executedPlan().collectLeaves()
    return sum(int(leaves.apply(at).metrics().apply(name).value()) for at in range(leaves.size()))


# --- The same through both


CASES: tuple[dict[str, str], ...] = (
    {"topic": TOPICS, "columns": ALL, "brokerName": "b", "minPartitions": "3"},
    {"topic": "empty"},
    {"subscribePattern": "o.*|b.*", "includeProperties": "true"},
    {"topic": "clashes", "tags": "AaAa||BBBB"},
    {"topic": TOPICS, "schema": "kafka", "includeHeaders": "true"},
    {"topic": "orders", "schema": "kafka", "keys": "k17,c3", "batchRows": "17"},
    {"assign": '{"orders": [1, 3]}', "columns": "queueId,queueOffset", "batchRows": "17"},
    {"topic": "orders", "tags": "red || green", "startingOffsets": '{"orders": {"0": 5, "2": -2}}'},
    {"topic": "orders", "keys": "k17,c3", "columns": "keys,body"},
    {"topic": "orders,batches", "endingOffsets": '{"orders": {"b": {"0": 3, "1": -1}}}', "columns": "topic,body"},
    {"topic": "orders", "endingTimestamp": "2020-01-01"},
    {"topic": "batches", "startingOffsets": '{"batches": {"0": 7}}', "columns": "queueOffset,body,tags"},
    {"topic": TOPICS, "where": "region = 'eu' OR region IS NULL", "tags": "red", "columns": "body,tags,prop:region"},
)


def test_cases_give_equal_rows_schemas_and_metrics(spark: SparkSession, store: Path) -> None:
    for options in CASES:
        by_python, by_jvm = load(spark, store, "python", **options), load(spark, store, "jvm", **options)
        assert by_jvm.schema == by_python.schema, options
        found = rows(by_jvm)
        assert found == rows(by_python), options
        shown = [figure(frame, "numOutputRows") for frame in (by_python, by_jvm)]
        assert shown == [len(found)] * 2, options
        if found:  # a plan without tasks has no figures of tasks
            assert [figure(by_jvm, name) for name in ("skippedRecords", "expiredMessages", "clampedTimes")] == [0] * 3


@pytest.mark.parametrize("name", golden_names())
def test_golden_stores(spark: SparkSession, golden_store: Any, name: str) -> None:
    """What a real broker wrote, compressed bodies included, as the engine reads it in this process."""
    path = golden_store(name, "clean")
    with cometmq.open(path, mode="r", config=broker_properties(name)) as opened:
        topics = [topic for topic in opened.topics(system=True) if not topic.startswith("%LMQ%")]
        messages = [message for topic in topics for message in opened.read(topic)]
        expected = sorted(
            (message.topic, message.queue_id, message.queue_offset, bytes(message.body), message.tags or None)
            for message in messages
        )
    columns = "topic,queueId,queueOffset,body,tags"
    frame = load(spark, path, "jvm", topic=",".join(topics), columns=columns)
    assert sorted((*row[:3], bytes(row[3]), row[4]) for row in frame.collect()) == expected


ERRORS: tuple[tuple[dict[str, str], str], ...] = (
    ({"topic": "order"}, r"option topic: there is no topic 'order'; known topics: batches, clashes, empty, orders"),
    ({"subscribePattern": "x.*"}, r"option subscribePattern: 'x\.\*' matches no topic"),
    ({"topic": "orders", "startingOffsets": "{"}, "option startingOffsets: .* JSON"),
    ({"topic": "orders", "startingOffsets": "latest"}, "a batch cannot start at latest"),
    ({"topic": "orders", "startingOffsets": '{"orders": {"0": 1001}}'}, "beyond the end of queue 0"),
    ({"topic": "orders", "startingOffsets": '{"orders": {"9": 1}}'}, r"has no queue 9; there are \[0, 1, 2, 3\]"),
    ({"topic": "orders", "tag": "red"}, "option tag: there is no such option; did you mean tags"),
    ({"topic": "orders", "columns": "bodi"}, "there is no column 'bodi'; did you mean body"),
    ({"topic": "orders", "columns": "brokerName"}, "option brokerName: a store does not know"),
    ({"topic": "orders", "batchBytes": "-1"}, "option batchBytes: '-1' is not a size such as 4m"),
    ({"topic": "orders", "assign": "{}"}, "option topic: cannot be given together with assign"),
    ({"assign": '{"orders": [7]}'}, r"option assign: the topic 'orders' has no queue 7"),
    ({"topic": "orders", "where": "a >"}, "option where: 'a >' cannot be used: "),
    ({"topic": "orders", "path": "/nowhere"}, "option path: /nowhere is not there on the driver"),
)


def _but_path(options: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in options.items() if name != "path"}


def test_errors_say_the_same(spark: SparkSession, store: Path) -> None:
    for number, (options, match) in enumerate(ERRORS):
        # Python's planner takes seconds to start; test_batch.py has more of its errors.
        for engine in ("python", "jvm") if number < 3 else ("jvm",):
            with pytest.raises(Exception, match=match):
                load(spark, Path(options.get("path", store)), engine, **_but_path(options)).collect()


def test_newer_stores_and_expired_ranges(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    newer = shutil.copytree(store, tmp_path / "newer")
    expired = tmp_path / "expired"
    with open_small(expired) as opened:
        opened.append_many("t", [b"x" * 1000] * 3000)
    os.utime(expired / "commitlog" / f"{0:020d}", (1000, 1000))
    with open_small(expired, retention=retention_on_request(72), background=False) as opened:
        assert opened.expire() > 0
        low = opened.min_offset("t")
    start = {"topic": "t", "startingOffsets": '{"t": {"0": 1}}'}
    pretend_newer(newer, older_may_use=True)
    assert [load(spark, newer, engine, topic="empty").collect() for engine in ("python", "jvm")] == [[], []]
    pretend_newer(newer, older_may_use=False)
    for engine in ("python", "jvm"):
        with pytest.raises(Exception, match=r"option path: .*a newer CometMQ.*pip install --upgrade cometmq"):
            load(spark, newer, engine, topic="orders").collect()
        with pytest.raises(Exception, match=rf"1 in queue 0 of 't' has expired; its first message is {low}"):
            load(spark, expired, engine, **start).collect()
        rest = load(spark, expired, engine, failOnDataLoss="false", **start)
        assert len(rest.select("queueOffset").collect()) == 3000 - low


def test_wide_stores_while_they_are_written(spark: SparkSession, path: Path) -> None:
    """10,000 queues in the long form."""
    queues = 10_000 if os.environ.get("CMQ_LONG") else 200
    with open_small(path) as opened:
        opened.create_topic("wide", queues=queues)
        opened.append_many("wide", [b"%d" % number for number in range(2 * queues)])

        def write() -> None:
            for number in range(1000):
                opened.append_many("wide", [b"later"] * 10, queue=number % queues)

        writer = threading.Thread(target=write)
        writer.start()
        for engine in ("python", "jvm"):
            frame = load(spark, path, engine, topic="wide")
            count = frame.count()
            ends = frame.groupBy("queueId").agg({"queueOffset": "max", "*": "count"}).collect()
            assert count == sum(row["count(1)"] for row in ends) == len(frame.select("body").collect())
            assert all(row["max(queueOffset)"] == row["count(1)"] - 1 for row in ends)
            assert len(ends) == queues
        writer.join()


def test_damage_fails_or_is_skipped(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    path = shutil.copytree(store, tmp_path / "damaged")
    spoil(path, "orders", 1, 400)
    for engine in ("python", "jvm"):
        with pytest.raises(Exception, match=r"option onCorrupt=skip goes round damage"):
            load(spark, path, engine, topic="orders").collect()
        frame = load(spark, path, engine, topic="orders", onCorrupt="skip")
        assert len(frame.collect()) == figure(frame, "numOutputRows") == 3999
        assert engine == "python" or figure(frame, "skippedRecords") == 1


# --- Who answers


def test_the_jvm_answers_unless_asked_otherwise(spark: SparkSession, store: Path) -> None:
    frame = spark.read.format("cometmq").options(path=str(store), topic="orders").load()
    assert "engine=jvm" in plan_of(frame)
    assert "engine=jvm" not in plan_of(load(spark, store, "python", topic="orders"))
    spark.conf.set("spark.datasource.cometmq.engine", "python")
    try:
        assert "engine=jvm" not in plan_of(spark.read.format("cometmq").options(path=str(store), topic="orders").load())
    finally:
        spark.conf.unset("spark.datasource.cometmq.engine")


def test_python_serves_queries_that_the_jvm_cannot(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    settings = tmp_path / "broker.properties"
    settings.write_text("".join(f"{name}={value}\n" for name, value in SMALL.items()))
    needed = {
        "config": (str(settings), "a broker's settings file is read through Python"),
        "subscribePattern": ("(?i)ORDERS", "such regular expressions are Python's"),
        "tags": ("red || 'a b'", "Python checks such tags"),
    }
    for option, (value, reason) in needed.items():
        options = {option: value} if option == "subscribePattern" else {"topic": "orders", option: value}
        with pytest.raises(Exception, match=rf"option engine: {reason}.*; engine=auto lets Python do it"):
            load(spark, store, "jvm", **options)
        if option != "tags":
            frame = load(spark, store, "auto", **options)
            assert f"cometmq read by engine=python ({reason} ({option}))" in plan_of(frame)
            assert frame.count() == 4000
    with pytest.raises(Exception, match="option engine: 'java' is not one of auto, jvm, python"):
        load(spark, store, "java", topic="orders")
    new = tmp_path / "new"
    with open_small(new) as opened:
        opened.create_topic("copies", queues=1)
    copied = load(spark, store, "auto", topic="batches", columns="body")
    copied.write.format("cometmq").options(path=str(new), topic="copies", engine="auto").mode("append").save()
    assert load(spark, new, "auto", topic="copies").count() == copied.count()


# --- Push-down


FILTERS = (
    "tags = 'red'",
    "tags IN ('red', 'green') AND queueId = 1",
    "tags = 'red' OR tags = 'green'",
    "tags = 'red' OR queueOffset = 5",
    "keys = 'k18'",
    "keys IN ('k17', 'k18', 'x')",
    "queueOffset > 990",
    "queueOffset BETWEEN 10 AND 20 AND tags = 'red'",
    "queueOffset IN (3, 9)",
    "(queueOffset < 3 OR queueOffset > 995) AND queueId <> 2",
    "queueId < 2 AND queueOffset <= 3",
    "topic = 'batches'",
    "topic IN ('batches', 'empty') AND queueOffset >= 7",
    "topic = 'orders' AND topic = 'batches'",
    "storeTimestamp > timestamp '2020-01-01 00:00:00' AND queueOffset = 7",
    "storeTimestamp < timestamp '2020-01-01 00:00:00'",
    "tags IS NULL AND queueOffset < 4",
    "NOT (tags = 'red') AND queueOffset < 9",
    "keys = 'k17' AND tags = 'none'",
    "queueOffset = 5 AND queueOffset = 6",
    "queueOffset > 9223372036854775806",
)


def moment(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(0, timezone.utc) + timedelta(milliseconds=milliseconds)


@pytest.fixture
def table(spark: SparkSession, store: Path) -> Iterator[DataFrame]:
    """The rows as the store's reader of single messages gives them, for Spark itself to filter."""
    with cometmq.open(store, mode="r") as opened:
        found = [
            (
                message.topic,
                message.queue_id,
                message.queue_offset,
                bytearray(message.body),
                message.tags,
                message.properties.get("KEYS"),
                moment(message.born_timestamp_ms),
                moment(message.store_timestamp_ms),
            )
            for topic in ("orders", "batches")
            for message in opened.read(topic)
        ]
    cached = spark.createDataFrame(found, schema=load(spark, store, "jvm", topic=TOPICS).schema).cache()
    yield cached
    cached.unpersist()


def test_filters_give_equal_rows_from_one_frame(spark: SparkSession, store: Path, table: DataFrame) -> None:
    frame = load(spark, store, "jvm", topic=TOPICS)
    for condition in FILTERS:
        assert rows(frame.where(condition)) == rows(table.where(condition)), condition
    assert (frame.count(), frame.where("tags = 'red'").count()) == (4060, 1334)
    plan = plan_of(frame.where("tags = 'red' AND queueOffset > 5").select("body"))
    assert "pushed filters: [" in plan
    assert "EqualTo(tags,red)" in plan
    assert "GreaterThan(queueOffset,5)" in plan
    assert "storeTimestamp" not in plan.split("== Physical Plan ==")[1]


AGGREGATES = (
    "SELECT count(*) FROM {}",
    "SELECT count(body), min(queueOffset), max(queueOffset) FROM {}",
    "SELECT topic, queueId, count(*), min(queueOffset), max(queueOffset) FROM {} GROUP BY topic, queueId",
    "SELECT queueId, count(*) FROM {} WHERE topic = 'orders' AND queueOffset >= 10 GROUP BY queueId",
    "SELECT count(*), max(queueOffset) FROM {} WHERE queueOffset > 5000",
    "SELECT count(tags), count(DISTINCT queueId), max(storeTimestamp) FROM {}",
    "SELECT count(*) FROM {} WHERE tags = 'red'",
)


def test_aggregates_come_from_the_ends_of_queues(spark: SparkSession, store: Path, table: DataFrame) -> None:
    load(spark, store, "jvm", topic=TOPICS).createOrReplaceTempView("by_engine")
    table.createOrReplaceTempView("by_spark")
    for number, query in enumerate(AGGREGATES):
        answered = spark.sql(query.format("by_engine"))
        assert sorted(answered.collect()) == sorted(spark.sql(query.format("by_spark")).collect()), query
        is_local = "BatchScan" not in plan_of(answered)
        assert is_local == (number < 5), query
    # Offsets without a message would count.
    for options in ({"failOnDataLoss": "false"}, {"onCorrupt": "skip"}, {"tags": "red"}, {"where": "region = 'eu'"}):
        frame = load(spark, store, "jvm", topic="orders", **options)
        assert "BatchScan" in plan_of(frame.groupBy().count()), options


def test_limits_and_statistics(spark: SparkSession, store: Path) -> None:
    frame = load(spark, store, "jvm", topic="orders")
    assert len(frame.limit(7).collect()) == 7
    assert "limit of a task: 7" in plan_of(frame.limit(7))
    assert len(frame.where("tags = 'red'").limit(5).collect()) == 5
    assert frame.limit(0).count() == 0
    skipped = frame.select("queueId", "queueOffset").offset(1990)
    assert "offset: 1990" in plan_of(skipped)
    assert (len(skipped.collect()), frame.offset(5).limit(9).count(), frame.offset(9999).count()) == (2010, 9, 0)
    assert len(frame.where("tags = 'red'").offset(4).collect()) == 1330
    assert frame.where("queueOffset < 10").offset(15).count() == 25
    # By samples; Spark's own guess is 8 EiB, which no join would broadcast.
    assert 100_000 < int(str(frame._jdf.queryExecution().optimizedPlan().stats().sizeInBytes())) < 4_000_000


def test_values_outlive_their_batch(spark: SparkSession, path: Path) -> None:
    """Texts are read where the engine has them; an aggregate keeps the first batch's to the last."""
    with open_small(path) as opened:
        opened.create_topic("t", queues=1)
        tags = [f"tag-{20_000 - number:08d}" for number in range(20_000)]
        regions = [{"region": tag} for tag in tags]
        opened.append_many("t", [b"x"] * len(tags), tags=tags, keys=tags[::-1], properties=regions)
    columns = "queueOffset,tags,keys,properties,prop:region"
    frame = load(spark, path, "jvm", topic="t", columns=columns, batchRows="100")
    asked = ("max(tags)", "min(keys)", "first(tags)", "first(properties)['region']", "max(struct(tags, keys)).tags")
    expected = [tags[0], tags[-1], tags[0], tags[0], tags[0]]
    for codegen in ("true", "false"):
        spark.conf.set("spark.sql.codegen.wholeStage", codegen)
        try:
            assert [frame.selectExpr(one).collect()[0][0] for one in asked] == expected
            assert {row[1] for row in frame.groupBy("`prop:region`").agg({"keys": "max"}).collect()} == set(tags)
        finally:
            spark.conf.unset("spark.sql.codegen.wholeStage")


def test_a_frame_keeps_its_ends(spark: SparkSession, tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as opened:
        opened.append_many("t", [b"%d" % number for number in range(10)])
        frame = load(spark, tmp_path / "store", "jvm", topic="t")
        assert frame.count() == 10
        opened.append("t", b"10")
        assert (frame.count(), len(frame.collect())) == (10, 10)
        assert load(spark, tmp_path / "store", "jvm", topic="t").count() == 11


def test_an_older_frame_counts_no_expired_messages(spark: SparkSession, path: Path) -> None:
    with open_small(path) as opened:
        opened.append_many("t", [b"x" * 1000] * 4000)
    frame = load(spark, path, "jvm", topic="t")
    later = frame.where("queueOffset >= 3999")
    assert frame.count() == 4000
    os.utime(path / "commitlog" / f"{0:020d}", (1000, 1000))
    with open_small(path, retention=retention_on_request(72), background=False) as opened:
        assert opened.expire() > 0
    for query in (frame.groupBy().count(), frame.selectExpr("max(queueOffset)"), frame.select("body")):
        with pytest.raises(Exception, match=r"are not all there any more.*failOnDataLoss=false"):
            query.collect()
    assert later.count() == 1
