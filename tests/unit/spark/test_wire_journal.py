"""Checks: a broker that takes staged writes gets each row once, whatever is asked again; elsewhere rows are sent, or
the write is refused where exactly once was asked for.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pyspark.sql.types import BinaryType, StringType, StructField, StructType

import cometmq
import cometmq.testing
from cometmq.admin import connect
from cometmq.broker.staged_writes import StagedWrites
from cometmq.errors import BrokerError, ConnectionLost, HandoffRejected, HandoffWaiting, InvalidArgument
from cometmq.remoting.answers import Refusal
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import Command
from cometmq.spark import wire_journal, wire_writer
from cometmq.spark.default_source import CometMQSource
from cometmq.spark.errors import OptionError
from cometmq.spark.running import RunningQuery
from cometmq.spark.wire_writer import Sent, WireBatchWriter, WireStreamWriter
from cometmq.spark.writer import Staged
from cometmq.testing import Cluster
from support.spark_rows import read_rows

BODY = StructType([StructField("body", BinaryType())])
WITH_TOPIC = StructType([StructField("body", BinaryType()), StructField("topic", StringType())])
ON: dict[str, object] = {"stagedWritesEnable": True}


def started(brokers: int, **settings: object) -> Iterator[Cluster]:
    small = {"mappedFileSizeCommitLog": 16 << 20, "mappedFileSizeConsumeQueue": 60_000, "maxHashSlotNum": 10_000}
    given = {**small, "maxIndexNum": 40_000, "flushDiskType": "ASYNC_FLUSH", **settings}
    with cometmq.testing.cluster(brokers=brokers, settings=given) as running:
        yield running


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    yield from started(1, **ON)


@pytest.fixture(scope="module")
def two() -> Iterator[Cluster]:
    """Two brokers that take staged writes; topic ``here`` is at the first, ``both`` at both."""
    for running in started(2, **ON):
        with connect(broker=running.brokers[0].address) as admin:
            admin.topics.create("here", queues=2)
        with connect(namesrv=running.name_server_address) as admin:
            admin.topics.create("both", queues=2)
        yield running


@pytest.fixture(scope="module")
def off() -> Iterator[Cluster]:
    yield from started(1)


def source(cluster: Cluster, **options: str) -> CometMQSource:
    return CometMQSource({"nameServer": cluster.name_server_address, "topic": "t", **options})


def batch_writer(cluster: Cluster, schema: StructType = BODY, **options: str) -> WireBatchWriter:
    made = source(cluster, **options).writer(schema, False)
    assert isinstance(made, WireBatchWriter)
    return made


def stream_writer(cluster: Cluster, **options: str) -> WireStreamWriter:
    made = source(cluster, checkpointLocation="/c", **options).streamWriter(BODY, False)
    assert isinstance(made, WireStreamWriter)
    return made


def batch(*bodies: bytes, topics: list[str] | None = None) -> pa.RecordBatch:
    columns: dict[str, Any] = {"body": pa.array(bodies, pa.binary())}
    return pa.record_batch(columns if topics is None else {**columns, "topic": pa.array(topics)})


def task(writer: Any, *batches: pa.RecordBatch) -> Any:
    """Run a task: with a copy of the writer, and its message through a pickle."""
    copy = pickle.loads(pickle.dumps(writer))
    return pickle.loads(pickle.dumps(copy.write(iter(batches))))


def stored(cluster: Cluster, topic: str = "t") -> list[bytes]:
    rows = read_rows(nameServer=cluster.name_server_address, topic=topic, columns="body")
    return sorted(row["body"] for row in rows)


def staged_folders(cluster: Cluster, broker: int = 0) -> list[str]:
    """Return the jobs that are there when the writer's thread, which removes appended ones, is done."""
    serving = cluster.brokers[broker]
    serving.store.apply_handoffs()
    folder = serving.store.path / "cometmq" / "staged"
    return sorted(one.name for one in folder.iterdir() if one.name != "done") if folder.exists() else []


@pytest.fixture
def _query(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_writer, "running_query", lambda: RunningQuery("q", 0))


# --- Batches


def test_a_job(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_journal, "_PIECE_BYTES_MAX", 1000)
    writer = batch_writer(cluster, topicQueues="3")
    many = [b"%05d" % number for number in range(3_000)]
    messages = [task(writer, batch(*many[:1000]), batch(*many[1000:])), task(writer), task(writer, batch(b"z"))]
    assert [type(one) for one in messages] == [Staged] * 3
    assert "t" not in cluster.broker.store.topics()
    pickle.loads(pickle.dumps(writer)).commit(messages)
    assert stored(cluster) == [*many, b"z"]
    assert cluster.broker.store.topic("t").write_queues == 3
    assert staged_folders(cluster) == []


def test_a_job_without_rows(cluster: Cluster) -> None:
    writer = batch_writer(cluster)
    writer.commit([task(writer), task(writer, batch())])
    assert staged_folders(cluster) == []
    assert "t" not in cluster.broker.store.topics()


def test_a_job_id_writes_once(cluster: Cluster) -> None:
    for body in (b"a", b"again"):
        writer = batch_writer(cluster, jobId="daily:21")
        writer.commit([task(writer, batch(body))])
    for body in (b"b", b"c"):
        writer = batch_writer(cluster)
        writer.commit([task(writer, batch(body))])
    assert stored(cluster) == [b"a", b"b", b"c"]


def test_a_directory_and_the_wire_share_their_keys(cluster: Cluster) -> None:
    """A job that was written by path is not written again through the broker."""
    path = cluster.path / "broker-a"
    by_path = CometMQSource({"path": str(path), "topic": "t", "jobId": "j"}).writer(BODY, False)
    by_path.commit([task(by_path, batch(b"a"))])
    writer = batch_writer(cluster, jobId="j")
    writer.commit([task(writer, batch(b"a"))])
    assert stored(cluster) == [b"a"]


def test_a_job_that_fails_leaves_nothing(cluster: Cluster) -> None:
    writer = batch_writer(cluster)
    message = task(writer, batch(b"a"))
    with pytest.raises(InvalidArgument, match="the column body has one of"):
        task(writer, batch(b"x"), batch(bytes((4 << 20) + 1)))
    assert len(staged_folders(cluster)) == 1
    writer.abort([message, None])
    assert staged_folders(cluster) == []
    with pytest.raises(BrokerError, match="there is no job"):
        task(writer, batch(b"late"))
    assert "t" not in cluster.broker.store.topics()


def test_rows_that_the_writer_rejects(cluster: Cluster) -> None:
    with connect(namesrv=cluster.name_server_address) as admin:
        admin.topics.create("closed", queues=1)
        admin.topics.update("closed", perm=cometmq.store_config.topic_config.Perm.READ)
    writer = batch_writer(cluster, WITH_TOPIC)
    message = task(writer, batch(b"a", b"b", topics=["t", "closed"]))
    with pytest.raises(HandoffRejected, match=r"takes no messages .*columns topic and queue"):
        writer.commit([message])
    writer.abort([message])
    assert (stored(cluster) if "t" in cluster.broker.store.topics() else []) == []


def test_waiting_work_is_not_discarded(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cometmq.broker.staged_writes._WAIT_S", 0.05)
    watcher = cluster.broker.store._watcher
    assert watcher is not None
    watcher.stop()
    writer = batch_writer(cluster, commitTimeoutMs="100", jobId="j")
    messages = [task(writer, batch(b"a"))]
    with pytest.raises(HandoffWaiting, match=r"they are on its disk .*unless it has a jobId"):
        writer.commit(messages)
    writer.abort(messages)
    cluster.broker.store.apply_handoffs()
    again = batch_writer(cluster, jobId="j")
    again.commit([task(again, batch(b"a"))])
    assert (stored(cluster), staged_folders(cluster)) == ([b"a"], [])


# --- Answers that do not come


Handler = Callable[[StagedWrites, Command, Any], Any]


def losing(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    *,
    before: bool,
    times: int = 1,
    code: ResponseCode = ResponseCode.SYSTEM_BUSY,
) -> list[int]:
    """Let the first answers of a handler say busy, before or after it has done what was asked."""
    right: Handler = getattr(StagedWrites, name)
    calls: list[int] = []

    async def handle(self: StagedWrites, request: Command, caller: Any) -> Command:
        calls.append(len(calls))
        if len(calls) > times:
            answer: Command = await right(self, request, caller)
            return answer
        if not before:
            await right(self, request, caller)
        raise Refusal(code, "lost")

    monkeypatch.setattr(StagedWrites, name, handle)
    return calls


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("_begin", ResponseCode.SYSTEM_BUSY),
        ("_put", ResponseCode.SERVICE_NOT_AVAILABLE),
        ("_commit", ResponseCode.SYSTEM_BUSY),
        ("_commit", ResponseCode.SERVICE_NOT_AVAILABLE),
    ],
)
def test_every_request_bears_being_made_again(
    monkeypatch: pytest.MonkeyPatch, name: str, code: ResponseCode, before: bool
) -> None:
    calls = losing(monkeypatch, name, before=before, times=2, code=code)
    for cluster in started(1, **ON):
        writer = batch_writer(cluster)
        writer.commit([task(writer, batch(b"a", b"b"))])
        assert stored(cluster) == [b"a", b"b"]
        assert len(calls) >= 3
        assert staged_folders(cluster) == []


def test_unserved_commit_error_names_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = losing(monkeypatch, "_commit", before=True, times=1000, code=ResponseCode.SERVICE_NOT_AVAILABLE)
    for cluster in started(1, **ON):
        writer = batch_writer(cluster, commitTimeoutMs="200")
        message = task(writer, batch(b"a"))
        with pytest.raises(
            BrokerError, match=r"code 14 .*lost \(option commitTimeoutMs; do not run the job again"
        ) as told:
            writer.commit([message])
        assert told.value.code == ResponseCode.SERVICE_NOT_AVAILABLE
        calls += range(1000)  # it is served from here on
        writer.commit([message])
        assert stored(cluster) == [b"a"]


def test_a_broker_that_is_gone(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    options = {"pullTimeoutMs": "200", "commitTimeoutMs": "200"}
    writer = batch_writer(cluster, **options)
    messages = [task(writer, batch(b"a"))]
    cluster.broker.stop()
    with pytest.raises((ConnectionLost, cometmq.errors.BrokerNotFound)):
        writer.commit(messages)
    with caplog.at_level(logging.WARNING, "cometmq.spark"):
        writer.abort(messages)
    assert "the staged files stay at broker broker-a until its stagedJobExpireTime" in caplog.text
    with pytest.raises((ConnectionLost, cometmq.errors.NotFound)):
        batch_writer(cluster, **options)


# --- Streams


@pytest.mark.usefixtures("_query")
def test_a_stream(cluster: Cluster) -> None:
    for number, body in ((0, b"a"), (0, b"again"), (1, b"b")):
        message = task(stream_writer(cluster), batch(body))
        assert isinstance(message, Staged)
        stream_writer(cluster).commit([message], number)
    assert (stored(cluster), staged_folders(cluster)) == ([b"a", b"b"], [])


@pytest.mark.usefixtures("_query")
def test_leftovers_of_a_driver_go_with_the_next_micro_batch(cluster: Cluster) -> None:
    task(stream_writer(cluster), batch(b"a"))  # the driver dies
    batch_job = batch_writer(cluster)
    message = task(stream_writer(cluster), batch(b"a"))
    stream_writer(cluster).commit([message], 0)
    assert stored(cluster) == [b"a"]
    assert len(staged_folders(cluster)) == 1, "the batch's"
    batch_job.abort([])


@pytest.mark.usefixtures("_query")
def test_an_aborted_micro_batch(cluster: Cluster) -> None:
    message = task(stream_writer(cluster), batch(b"a"))
    stream_writer(cluster).abort([message, None], 0)
    assert staged_folders(cluster) == []
    task(stream_writer(cluster), batch(b"a"))
    stream_writer(cluster).abort([None], 0)
    assert staged_folders(cluster) == [], "found by the stream's checkpoint"


@pytest.mark.usefixtures("_query")
def test_a_stream_that_is_sent(off: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    message = task(stream_writer(off, topic="sent"), batch(b"a"))
    assert isinstance(message, Sent)
    stream_writer(off, topic="sent").commit([message], 0)
    with caplog.at_level(logging.WARNING, "cometmq.spark"):
        stream_writer(off, topic="sent").abort([None], 1)
    assert "sent rows stay" in caplog.text


# --- Which way


def test_where_all_rows_go_to_one_broker(two: Cluster) -> None:
    for options in ({"topic": "here"}, {"topic": "both", "brokerName": "broker-b"}):
        writer = batch_writer(two, **options)
        writer.commit([task(writer, batch(b"a"))])
        assert stored(two, options["topic"]) == [b"a"]
    assert two.brokers[1].store.topic("both").messages == 1


@pytest.mark.parametrize(
    ("schema", "topic", "text"),
    [
        (BODY, "both", "the brokers of topic both are broker-a, broker-b: name one with option brokerName"),
        (WITH_TOPIC, "here", "the cluster's brokers are broker-a, broker-b: name one"),
    ],
)
def test_where_rows_go_to_several_brokers(
    two: Cluster,
    schema: StructType,
    topic: str,
    text: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wire_journal, "_warned", set())
    with pytest.raises(OptionError, match=f"option deliveryGuarantee: exactly-once cannot be had: .*{text}"):
        batch_writer(two, schema, topic=topic, deliveryGuarantee="exactly-once")
    with caplog.at_level(logging.WARNING, "cometmq.spark"):
        for _ in range(2):
            writer = batch_writer(two, schema, topic=topic)
    assert caplog.text.count(text) == 1
    assert "rows are written at least once" in caplog.text
    assert isinstance(task(writer, batch(b"x", topics=[topic] if schema is WITH_TOPIC else None)), Sent)


def test_where_it_is_off(off: Cluster) -> None:
    with pytest.raises(
        OptionError, match=r"broker broker-a says: .*set stagedWritesEnable=true, or give at-least-once"
    ):
        batch_writer(off, deliveryGuarantee="exactly-once")
    assert isinstance(task(batch_writer(off), batch(b"a")), Sent)


def test_where_the_broker_does_not_know_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(self: StagedWrites, request: Command, caller: Any) -> Command:
        raise Refusal(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "request type 31001 not supported")

    monkeypatch.setattr(StagedWrites, "_begin", refuse)
    for cluster in started(1):
        with pytest.raises(OptionError, match="broker broker-a is not CometMQ's, or an older one"):
            batch_writer(cluster, deliveryGuarantee="exactly-once")


def test_at_least_once_asks_nobody(tmp_path: Path) -> None:
    options = {"nameServer": "127.0.0.1:1", "topic": "t", "deliveryGuarantee": "at-least-once"}
    assert isinstance(CometMQSource(options).writer(BODY, False), WireBatchWriter)


def test_at_least_once_where_it_is_asked_for(cluster: Cluster) -> None:
    writer = batch_writer(cluster, deliveryGuarantee="at-least-once")
    assert isinstance(task(writer, batch(b"a")), Sent)
    assert stored(cluster) == [b"a"]
