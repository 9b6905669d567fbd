"""Checks: a batch read gives what the store has, whatever is asked for; with and without pushed filters the same."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

import cometmq
from support.golden import StoreKind, broker_properties, expected_records, golden_names
from support.rows import row_of
from support.small_store import open_small, pretend_newer, spoil

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GoldenStore: TypeAlias = Callable[[str, StoreKind], Path]

COLUMNS = (
    "topic,queueId,queueOffset,body,tags,keys,bornTimestamp,storeTimestamp,properties,flag,sysFlag,reconsumeTimes,"
    "msgId,uniqueId,commitLogOffset,bornHost,storeHost,bodyCrc,bodyBytes,preparedTransactionOffset,prop:region"
)
NAMES = {
    "queueId": "queue_id",
    "queueOffset": "queue_offset",
    "bornTimestamp": "born_timestamp",
    "storeTimestamp": "store_timestamp",
    "sysFlag": "sys_flag",
    "reconsumeTimes": "reconsume_times",
    "msgId": "message_id",
    "uniqueId": "unique_id",
    "commitLogOffset": "physical_offset",
    "bornHost": "born_host",
    "storeHost": "store_host",
    "bodyCrc": "body_crc",
    "bodyBytes": "body_bytes",
    "preparedTransactionOffset": "prepared_transaction_offset",
}


def load(spark: SparkSession, path: Path, **options: str) -> DataFrame:
    return spark.read.format("cometmq").options(path=str(path), **options).load()


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    found = [{NAMES.get(name, name): value for name, value in row.items()} for row in frame.toArrow().to_pylist()]
    return sorted(found, key=place)


def place(row: dict[str, Any]) -> tuple[object, ...]:
    # A light queue's rows are records of another topic, under offsets of the light queue.
    return row["topic"], row["queue_id"], row["queue_offset"], row.get("physical_offset")


# --- What a real broker wrote


@pytest.mark.parametrize("name", golden_names())
def test_golden_stores(spark: SparkSession, golden_store: GoldenStore, name: str) -> None:
    path = golden_store(name, "clean")
    with cometmq.open(path, mode="r", config=broker_properties(name)) as store:
        topics = store.topics(system=True)
        messages = [row_of(message) for topic in topics for message in store.read(topic)]
    options = {"topic": ",".join(topics), "config": str(broker_properties(name)), "columns": COLUMNS}
    found = rows(load(spark, path, **options, minPartitions="3"))
    assert found == sorted(messages, key=place)
    records = {record["physicalOffset"]: record for record in expected_records(name)}
    compared = 0
    for row in found:
        record = records[row["physical_offset"]]
        is_itself = (record["topic"], record["queueOffset"]) == (row["topic"], row["queue_offset"])
        if is_itself and "INNER_NUM" not in record["properties"]:
            assert record["bodySha256"] == hashlib.sha256(row["body"]).hexdigest()
            assert record["properties"] == dict(row["properties"])
            assert record["offsetMsgId"] == row["message_id"]
            assert record["storeTimestamp"] == round(row["store_timestamp"].timestamp() * 1000)
            compared += 1
    assert compared > 100


# --- A store of ours


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """4,000 messages in four queues of one topic, 100 in another."""
    path = tmp_path_factory.mktemp("orders") / "store"
    with open_small(path) as store:
        store.create_topic("orders", queues=4)
        for start in range(0, 4000, 500):
            numbers = range(start, start + 500)
            store.append_many(
                "orders",
                [b"%d" % number for number in numbers],
                tags=[("red", "green", None)[number % 3] for number in numbers],
                keys=[f"k{number}" for number in numbers],
                properties=[{"region": "eu" if number % 2 else "us"} for number in numbers],
            )
        store.append_many("refunds", [b"r%d" % number for number in range(100)])
    return path


def bodies(frame: DataFrame, column: str = "body") -> list[int]:
    return sorted(int(row[0]) for row in frame.selectExpr(f"CAST({column} AS STRING)").collect())


def test_everything(spark: SparkSession, orders: Path) -> None:
    frame = load(spark, orders, topic="orders")
    assert frame.columns == [
        "topic",
        "queueId",
        "queueOffset",
        "body",
        "tags",
        "keys",
        "bornTimestamp",
        "storeTimestamp",
    ]
    assert bodies(frame) == list(range(4000))
    assert frame.count() == 4000


def test_several_topics(spark: SparkSession, orders: Path) -> None:
    for options in ({"topic": "orders,refunds"}, {"subscribePattern": "(orders|ref.*)"}):
        counts = load(spark, orders, **options).groupBy("topic").count().collect()
        assert {row["topic"]: row["count"] for row in counts} == {"orders": 4000, "refunds": 100}
    one = load(spark, orders, assign='{"orders": [1, 3]}').select("queueId").distinct().collect()
    assert {row[0] for row in one} == {1, 3}


def test_options_choose_rows(spark: SparkSession, orders: Path) -> None:
    def chosen(**options: str) -> list[int]:
        return bodies(load(spark, orders, topic="orders", **options))

    assert chosen(tags="red || nothing") == list(range(0, 4000, 3))
    assert chosen(keys="k7, k3999, k7,none") == [7, 3999]
    assert chosen(keys="k6,k7", tags="red") == [6]
    assert chosen(where="TAGS = 'red' AND region = 'eu'") == list(range(3, 4000, 6))
    start, end = '{"orders": {"b": {"0": 999, "1": 1000, "2": 1000, "3": 998}}}', '{"orders": {"3": 999}}'
    assert len(chosen(startingOffsets=start, endingOffsets=end)) == 2


def test_partitions(spark: SparkSession, orders: Path) -> None:
    assert load(spark, orders, topic="orders").rdd.getNumPartitions() == 1
    many = load(spark, orders, topic="orders", minPartitions="7")
    assert many.rdd.getNumPartitions() == 7
    assert bodies(many) == list(range(4000))
    assert load(spark, orders, topic="orders", maxPartitionBytes="100k").rdd.getNumPartitions() > 4


def test_nothing_to_read(spark: SparkSession, orders: Path) -> None:
    end = '{"orders": {"0": 0, "1": 0, "2": 0, "3": 0}}'
    assert load(spark, orders, topic="orders", endingOffsets=end).count() == 0
    assert load(spark, orders, topic="orders", tags="none").collect() == []


def test_narrowing(spark: SparkSession, orders: Path) -> None:
    reader = spark.read.format("cometmq").options(path=str(orders), topic="orders")
    narrow = reader.schema("queueOffset long, `prop:region` string").load()
    assert narrow.where("`prop:region` = 'eu'").count() == 2000
    chosen = load(spark, orders, topic="orders", columns="prop:region,queueId")
    assert chosen.columns == ["prop:region", "queueId"]
    properties = load(spark, orders, topic="orders", includeProperties="true")
    assert properties.where("properties['region'] = 'us'").count() == 2000


def test_kafkas_form(spark: SparkSession, orders: Path) -> None:
    frame = load(spark, orders, subscribe="orders", schema="kafka", includeHeaders="true")
    row = frame.where("partition = 2 AND offset = 5").collect()[0]
    assert (bytes(row["key"]), row["topic"], row["timestampType"]) == (b"k22", "orders", 1)
    headers = {pair["key"]: bytes(pair["value"]) for pair in row["headers"]}
    assert headers["region"] == b"us"
    assert bodies(frame, "value") == list(range(4000))


def test_load_takes_the_path(spark: SparkSession, orders: Path) -> None:
    assert spark.read.format("cometmq").option("topic", "refunds").load(str(orders)).count() == 100


def test_sql(spark: SparkSession, orders: Path) -> None:
    spark.sql(f"CREATE TEMPORARY VIEW orders USING cometmq OPTIONS (path '{orders}', topic 'orders')")
    assert spark.sql("SELECT count(*), max(queueOffset) FROM orders WHERE tags = 'green'").collect()[0][0] == 1333
    spark.catalog.dropTempView("orders")


FILTERS = (
    "tags = 'red'",
    "tags IN ('red', 'green') AND queueId = 1",
    "keys = 'k17'",
    "keys IN ('k17', 'k18', 'x')",
    "queueOffset > 990",
    "queueOffset BETWEEN 10 AND 20 AND tags = 'red'",
    "queueId < 2 AND queueOffset <= 3",
    "topic = 'refunds'",
    "topic = 'orders' AND topic = 'refunds'",
    "storeTimestamp > timestamp '2020-01-01 00:00:00' AND queueOffset = 7",
    "storeTimestamp < timestamp '2020-01-01 00:00:00'",
    "tags IS NULL AND queueOffset < 4",
    "NOT (tags = 'red') AND queueOffset < 9",
    "tags = 'red' OR queueOffset = 5",
    "keys = 'k17' AND tags = 'none'",
    "queueOffset = 5 AND queueOffset = 6",
)


def test_pushed_filters_give_equal_rows(spark: SparkSession, orders: Path) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        plain = load(spark, orders, topic="orders,refunds")
        table = spark.createDataFrame(plain.collect(), schema=plain.schema).cache()
        for condition in FILTERS:
            # A frame for each: Spark keeps what it pushed into one (docs/spark.md).
            frame = load(spark, orders, topic="orders,refunds", pushdown="true", engine="python")
            assert rows(frame.where(condition)) == rows(table.where(condition)), condition
        assert rows(load(spark, orders, topic="orders,refunds", pushdown="true")) == rows(plain)
        table.unpersist()
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_spark_keeps_the_filters_of_a_loaded_frame(spark: SparkSession, orders: Path) -> None:
    """It is Spark's doing, for every Python source: docs/spark.md warns of it, and may stop where this fails."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = load(spark, orders, topic="orders", pushdown="true", engine="python")
        assert frame.where("queueOffset < 10").count() == 40
        assert frame.count() == 40
        assert load(spark, orders, topic="orders", pushdown="true").count() == 4000
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_pushing_needs_sparks_permission(spark: SparkSession, orders: Path) -> None:
    with pytest.raises(Exception, match=r"spark\.sql\.python\.filterPushdown\.enabled"):
        load(spark, orders, topic="orders", pushdown="true", engine="python").where("queueId = 1").count()


def test_beside_its_writer(spark: SparkSession, path: Path) -> None:
    with open_small(path) as store:
        store.append_many("t", [b"%d" % number for number in range(10)])
        frame = load(spark, path, topic="t")
        assert frame.count() == 10
        store.append("t", b"10")
        # The end was fixed by the frame's first query; another one sees what is new.
        assert frame.count() == 10
        assert load(spark, path, topic="t").count() == 11


# --- What goes wrong


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"topic": "order"}, r"option topic: there is no topic 'order'; known topics: orders, refunds"),
        ({"subscribePattern": "x.*"}, r"option subscribePattern: 'x\.\*' matches no topic"),
        ({"topic": "orders", "startingOffsets": "{"}, "option startingOffsets: .* JSON"),
        ({"topic": "orders", "startingOffsets": '{"orders": {"0": 1001}}'}, "beyond the end of queue 0"),
        ({"topic": "orders", "tag": "red"}, "option tag: there is no such option; did you mean tags"),
        ({"topic": "orders", "columns": "bodi"}, "there is no column 'bodi'; did you mean body"),
        ({"topic": "orders", "maxOffsetsPerTrigger": "5"}, "option of readStream"),
        ({"nameServer": "localhost:9876", "topic": "orders"}, "option nameServer: cannot be given together with path"),
    ],
)
def test_bad_options(spark: SparkSession, orders: Path, options: dict[str, str], match: str) -> None:
    with pytest.raises(Exception, match=match):
        load(spark, orders, **options).count()


def test_a_path_that_is_not_there(spark: SparkSession, path: Path) -> None:
    with pytest.raises(Exception, match=r"option path: .* is not there on the driver"):
        load(spark, path, topic="t").count()
    path.mkdir()
    (path / "readme.txt").write_text("no store")
    with pytest.raises(Exception, match=r"option path: .*cannot be read as a store"):
        load(spark, path, topic="t").count()


def test_a_store_of_a_newer_version(spark: SparkSession, orders: Path, tmp_path: Path) -> None:
    path = shutil.copytree(orders, tmp_path / "newer")
    pretend_newer(path, older_may_use=True)
    assert load(spark, path, topic="orders").count() == 4000
    pretend_newer(path, older_may_use=False)
    with pytest.raises(Exception, match=r"option path: .*a newer CometMQ.*pip install --upgrade cometmq"):
        load(spark, path, topic="orders").count()


def test_a_path_that_is_not_there_on_an_executor(spark: SparkSession, orders: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(orders, tmp_path / "copy")
    frame = load(spark, copy, topic="orders")
    assert frame.rdd.getNumPartitions() == 1  # planned, while the store is there
    copy.rename(tmp_path / "elsewhere")
    with pytest.raises(Exception, match=r"option path: .* is not there on the executor"):
        frame.rdd.count()


def test_a_corrupt_record(spark: SparkSession, orders: Path, tmp_path: Path) -> None:
    path = shutil.copytree(orders, tmp_path / "damaged")
    offset = spoil(path, "orders", 1, 500)
    with pytest.raises(Exception, match=rf"(?s){offset}.*onCorrupt=skip"):
        load(spark, path, topic="orders").collect()
    assert len(bodies(load(spark, path, topic="orders", onCorrupt="skip"))) == 3999
