"""Checks: options by Kafka's names, ours and the aliases, whatever their case; errors name unusable options."""

from __future__ import annotations

import pickle
from datetime import datetime
from typing import Any

import pytest

from cometmq.spark.errors import OptionError
from cometmq.spark.options import DeliveryGuarantee, OptionMap, ReadOptions, Subscription, WriteOptions

READ = {"path": "/store", "topic": "orders"}


def read(**options: str) -> ReadOptions:
    return ReadOptions.of(OptionMap({**READ, **options}))


def test_defaults() -> None:
    options = read()
    assert options.subscription == Subscription(topics=("orders",))
    assert (options.batch_rows, options.batch_bytes, options.max_partition_bytes) == (8192, 4 << 20, 256 << 20)
    assert options.fail_on_data_loss
    flags = (options.pushdown, options.skip_corrupt, options.include_properties, options.kafka_schema)
    assert not any(flags)
    assert options.columns is None
    assert options.max_offsets_per_trigger is None


def test_brokers_instead_of_a_path() -> None:
    options = ReadOptions.of(OptionMap({"nameServer": "a:1; b:2", "topic": "t", "pullTimeoutMs": "5"}))
    assert (options.path, options.name_servers, options.pull_timeout_ms) == (None, ("a:1", "b:2"), 5)


def test_names_have_no_case() -> None:
    """Spark hands over lower-case names where somebody copies its mapping."""
    options = ReadOptions.of(OptionMap({"PATH": "/store", "TOPIC": "t", "maxoffsetspertrigger": "7"}))
    assert options.max_offsets_per_trigger == 7


def test_aliases() -> None:
    options = ReadOptions.of(
        OptionMap({"path": "/s", "subscribe": "a, b,a", "subExpression": "x || y", "includeHeaders": "TRUE"})
    )
    assert options.subscription.topics == ("a", "b")
    assert options.tags == ("x", "y")
    assert options.include_properties


@pytest.mark.parametrize(
    ("text", "size"), [("4m", 4 << 20), ("256M", 256 << 20), ("1gb", 1 << 30), ("10", 10), ("8k", 8192)]
)
def test_sizes(text: str, size: int) -> None:
    assert read(batchBytes=text).batch_bytes == size


def test_times() -> None:
    assert read(startingTimestamp="1700000000000").starting_timestamp_ms == 1_700_000_000_000
    assert read(endingTimestamp="2026-11-21T10:00:00Z").ending_timestamp_ms == 1_795_255_200_000
    for text, moment in (("2026-11-23", datetime(2026, 11, 23)), ("2026-11-23T14:00", datetime(2026, 11, 23, 14))):
        assert (
            read(startingTimestamp=text).starting_timestamp_ms == moment.timestamp() * 1000
        )  # the driver's local time
    assert read(maxTriggerDelay="90s").max_trigger_delay_ms == 90_000
    assert read(maxTriggerDelay="2 minutes").max_trigger_delay_ms == 120_000


def test_pickled_options_are_small_and_complete() -> None:
    options = read(tags="a", columns="queueOffset")
    assert pickle.loads(pickle.dumps(options)) == options
    assert len(pickle.dumps(options)) < 2000


def test_sparks_own_options_pass() -> None:
    ReadOptions.of(OptionMap({**READ, "checkpointLocation": "/c", "queryName": "q"}))


@pytest.mark.parametrize(
    ("options", "name", "text"),
    [
        ({"maxOffsetPerTrigger": "5"}, "maxOffsetPerTrigger", "did you mean maxOffsetsPerTrigger?"),
        ({"topics": "5"}, "topics", "did you mean topic?"),
        ({"kafka.bootstrap.servers": "x"}, "kafka.bootstrap.servers", "known are"),
        ({"batchRows": "0"}, "batchRows", "whole number from 1"),
        ({"batchRows": "many"}, "batchRows", "whole number"),
        ({"batchRows": "2000000"}, "batchRows", "above"),
        ({"batchBytes": "4 parsecs"}, "batchBytes", "size such as 4m"),
        ({"batchBytes": "2g"}, "batchBytes", "1 to 1073741824"),
        ({"failOnDataLoss": "perhaps"}, "failOnDataLoss", "neither true nor false"),
        ({"onCorrupt": "ignore"}, "onCorrupt", "fail, skip"),
        ({"where": "price > 10 LIMIT 5"}, "where", "byte 11: the condition ends before 'LIMIT 5'"),
        ({"schema": "json"}, "schema", "cometmq, kafka"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp", "milliseconds since 1970"),
        ({"startingTimestamp": "2026-11-41"}, "startingTimestamp", "milliseconds since 1970"),
        (
            {"startingTimestamp": "5", "startingOffsets": "earliest"},
            "startingTimestamp",
            "together with startingOffsets",
        ),
        ({"subscribePattern": ".*"}, "topic", "together with subscribePattern"),
        ({"subscribe": "other"}, "topic", "given twice"),
        ({"schema": "kafka", "columns": "value"}, "columns", "schema=kafka"),
        ({"groupId": "g"}, "groupId", "commitOffsets=true"),
        ({"commitOffsets": "true"}, "groupId", "commitOffsets=true"),
        ({"commitOffsets": "true", "groupId": "a b"}, "groupId", "a b"),
        ({"jobId": "x"}, "jobId", "option of writing"),
        ({"path": ""}, "path", "commitlog"),
        ({"path": "hdfs://x/y"}, "path", "not a local path"),
        ({"nameServer": "localhost:9876"}, "nameServer", "together with path"),
        ({"path": "", "nameServer": "localhost"}, "nameServer", "write host:port"),
        ({"path": "", "nameServer": "h:1", "config": "c"}, "config", "belongs to path"),
        ({"path": "", "nameServer": "h:1", "brokerName": "b"}, "brokerName", "is for path"),
        ({"pullTimeoutMs": "5"}, "pullTimeoutMs", "belongs to nameServer"),
        ({"topic": " , "}, "topic", "names nothing"),
    ],
)
def test_bad_options(options: dict[str, str], name: str, text: str) -> None:
    with pytest.raises(OptionError, match=r"option") as caught:
        read(**options)
    assert caught.value.option == name
    assert text in str(caught.value)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.option) == (str(caught.value), name)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "one of topic"),
        ({"subscribePattern": "("}, "regular expression"),
        ({"keys": "k", "subscribePattern": "x"}, "keys"),
    ],
)
def test_bad_subscriptions(options: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        ReadOptions.of(OptionMap({"path": "/s", **options}))


def test_batch_and_stream_have_options_of_their_own() -> None:
    for name in ("maxOffsetsPerTrigger", "maxTriggerDelay"):
        with pytest.raises(OptionError, match="readStream"):
            ReadOptions.for_batch(OptionMap({**READ, name: "5"}))
    for name in ("endingOffsets", "keys", "pushdown"):
        with pytest.raises(OptionError, match="option of read"):
            ReadOptions.for_stream(OptionMap({**READ, name: "true"}))


def test_local_paths() -> None:
    assert read(path="file:///a%20b/c").path == "/a b/c"
    assert read(path="relative").path.startswith("/")


# --- Writing


def write(streaming: bool = False, **options: str) -> WriteOptions:
    return WriteOptions.of(OptionMap({"path": "/s", **options}), streaming=streaming)


AT_LEAST_ONCE = {"path": "", "nameServer": "h:1", "deliveryGuarantee": "At-Least-Once"}


def test_writing_through_brokers() -> None:
    options = write(path="", nameServer="h:1")
    assert (options.guarantee, options.topic_queues, options.path) == (None, 0, None)
    assert write(**AT_LEAST_ONCE).guarantee is DeliveryGuarantee.AT_LEAST_ONCE
    asked = write(path="", nameServer="h:1", deliveryGuarantee="exactly-once", topicQueues="3", commitTimeoutMs="5")
    assert (asked.guarantee, asked.topic_queues) == (DeliveryGuarantee.EXACTLY_ONCE, 3)
    assert asked.commit_timeout_ms == 5


def test_writing() -> None:
    options = write(topic="t", topicQueues="4", jobId="daily:2026-11-21", commitTimeoutMs="500")
    assert (options.topic, options.topic_queues, options.job_id, options.commit_timeout_ms) == (
        "t",
        4,
        "daily:2026-11-21",
        500,
    )
    assert write().topic is None


@pytest.mark.parametrize(
    ("streaming", "options", "text"),
    [
        (False, {"topic": "a/b"}, "a/b"),
        (False, {"jobId": "a/b"}, "not a name"),
        (True, {"jobId": "a"}, "batch write"),
        (False, {"tags": "a"}, "option of reading"),
        (False, {**AT_LEAST_ONCE, "topicQueues": "3"}, "topic create"),
        (False, {**AT_LEAST_ONCE, "commitTimeoutMs": "3"}, "acknowledge each message"),
        (False, {"path": "", "nameServer": "h:1", "deliveryGuarantee": "once"}, "exactly-once, at-least-once"),
        (False, {"deliveryGuarantee": "exactly-once"}, "belongs to nameServer"),
        (False, {"brokerName": "b"}, "belongs to nameServer"),
        (False, {"nameServer": "h:1"}, "together with path"),
    ],
)
def test_bad_write_options(streaming: bool, options: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        write(streaming, **options)


def test_the_engine_of_the_jvm_needs_its_jar() -> None:
    """Where the jar is in the session, its own source has taken the query before these options are read."""
    for engine in ("python", "auto", "AUTO"):
        OptionMap({"engine": engine})
    with pytest.raises(OptionError, match=r"option engine: .* make the session with cometmq\.spark\.session\(\)"):
        OptionMap({"engine": "jvm"})
    with pytest.raises(OptionError, match="option engine: 'java' is not one of auto, jvm, python"):
        OptionMap({"engine": "java"})
