"""Spark's own Kafka source over an Apache Kafka broker with the same rows, beside the log."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from bench_machine import ROOT
from clients.kafka_server import kafka_class_path, kafka_server
from cometmq.spark import jars
from query.data import QUEUES, TOPIC, Sources
from query.spark_reads import HASH, JVM, NOOP, Ask, asking, from_log, from_parquet
from query.spark_streams import TRIGGER_ROWS
from system.peers import PeerMissing, peer_programs

__all__ = ["KAFKA", "kafka_asks", "kafka_jars", "kafka_streams", "kafka_topic", "missing"]

KAFKA = "kafka"

_POM = Path(__file__).parent / "kafka" / "pom.xml"
_BUILD = ROOT / "build" / "kafka"
_COLUMNS = ("partition", "offset", "timestamp", "value")


def kafka_jars() -> list[str]:
    """Get the jars of Spark's Kafka source, once.

    Raises:
        PeerMissing: Java or Maven is missing, or the jars cannot be had.
    """
    version = re.search("<spark.version>(.*)</spark.version>", _POM.read_text(encoding="utf-8"))
    assert version is not None
    lib = _BUILD / f"spark-{version[1]}"
    if not lib.exists():
        command = [peer_programs.maven(), "-q", "-B", "-f", str(_POM), "dependency:copy-dependencies"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise PeerMissing(
                f"Maven could not get the jars of Spark's Kafka source: {(done.stdout + done.stderr)[-600:]}"
            )
    return sorted(map(str, lib.glob("*.jar")))


def missing() -> str | None:
    """Return the reason why there is no Kafka to compare with, or None; gets the jars where they are not there yet."""
    if not jars():
        return "the engine for Spark's JVM is not built"
    try:
        kafka_jars()
        kafka_class_path()
    except PeerMissing as reason:
        return str(reason)
    return None


@contextmanager
def kafka_topic(spark: SparkSession, sources: Sources, home: Path) -> Iterator[str]:
    """Run a broker whose topic has the rows of the data, each in the partition of its queue; yields its address."""
    with kafka_server(home) as server:
        _create_topic(spark, server.address)
        rows = from_parquet(spark, sources.parquet_none)
        records = rows.selectExpr("queueId AS partition", "keys AS key", "body AS value")
        records.write.format("kafka").options(topic=TOPIC, **{"kafka.bootstrap.servers": server.address}).save()
        yield server.address


def _create_topic(spark: SparkSession, address: str) -> None:
    jvm = spark._jvm
    assert jvm is not None
    kept = jvm.java.util.HashMap()
    kept.put("bootstrap.servers", address)
    admin = jvm.org.apache.kafka.clients.admin.Admin.create(kept)
    optional = jvm.java.util.Optional
    topic = jvm.org.apache.kafka.clients.admin.NewTopic(TOPIC, optional.of(QUEUES), optional.empty())
    admin.createTopics(jvm.java.util.Collections.singleton(topic)).all().get()
    admin.close()


def _from_kafka(spark: SparkSession, address: str) -> DataFrame:
    options = {"kafka.bootstrap.servers": address, "subscribe": TOPIC, "startingOffsets": "earliest"}
    return spark.read.format("kafka").options(**options).load()


def kafka_asks(spark: SparkSession, sources: Sources, address: str) -> dict[tuple[str, str], Ask]:
    """Questions by (name, source), of the columns of Kafka's source."""
    frames = {KAFKA: _from_kafka(spark, address), JVM: from_log(spark, sources, engine="jvm", schema="kafka")}
    found: dict[tuple[str, str], Ask] = {}
    for source, frame in frames.items():
        found[HASH, source] = asking(frame, "bit_xor(xxhash64(value))")
        found[NOOP, source] = _sinking(frame, sources.data.messages)
    return found


def _sinking(frame: DataFrame, messages: int) -> Ask:
    def ask() -> tuple[int, None]:
        frame.select(*_COLUMNS).write.format("noop").mode("overwrite").save()
        return messages, None

    return ask


def kafka_streams(spark: SparkSession, sources: Sources, address: str) -> dict[str, DataFrame]:
    """Return the streams by source, each with the column ``body``."""
    limit = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(TRIGGER_ROWS)}
    theirs = {"kafka.bootstrap.servers": address, "subscribe": TOPIC, **limit}
    ours = {"path": str(sources.store), "topic": TOPIC, "engine": "jvm", "schema": "kafka", **limit}
    frames = {
        KAFKA: spark.readStream.format("kafka").options(**theirs).load(),
        JVM: spark.readStream.format("cometmq").options(**ours).load(),
    }
    return {source: frame.select(*_COLUMNS[:3], frame["value"].alias("body")) for source, frame in frames.items()}
