"""Checks: a write's refusals, the files that tasks stage, and that a job is committed once, whoever holds the store."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import cometmq
from cometmq.errors import HandoffWaiting, InvalidArgument
from cometmq.spark.errors import OptionError
from cometmq.store.handoff_files import HandoffFolder
from support.small_store import open_small

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from cometmq.spark import journal
from cometmq.spark import writer as writers
from cometmq.spark.default_source import CometMQSource
from cometmq.spark.running import RunningQuery
from cometmq.spark.staging import RowEncoder, WriteSchema
from cometmq.spark.writer import BatchWriter, Staged, StreamWriter

BODY = StructType([StructField("body", BinaryType())])


def struct(**fields: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields.items()])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with open_small(tmp_path / "store") as store:
        store.append("t", b"first")
    return tmp_path / "store"


def batch(*bodies: bytes) -> pa.RecordBatch:
    return pa.record_batch({"body": pa.array(bodies, pa.binary())})


def source(path: Path, **options: str) -> CometMQSource:
    return CometMQSource({"path": str(path), "topic": "t", **options})


def batch_writer(path: Path, **options: str) -> BatchWriter:
    found = source(path, **options).writer(BODY, False)
    assert isinstance(found, BatchWriter)
    return found


def task(writer: Any, *batches: pa.RecordBatch) -> Staged:
    """Run a task: with a copy of the writer, and its message through a pickle."""
    copy = pickle.loads(pickle.dumps(writer))
    found: Staged = pickle.loads(pickle.dumps(copy.write(iter(batches))))
    return found


def bodies(path: Path, topic: str = "t") -> list[bytes]:
    with open_small(path, mode="r") as store:
        return [bytes(message) for message in store.read(topic)]


def left_over(path: Path) -> list[str]:
    folder = path / "cometmq" / "staged"
    return sorted(entry.name for entry in folder.iterdir() if entry.name != "done") if folder.exists() else []


# --- Batch


def test_a_job(path: Path) -> None:
    writer = batch_writer(path)
    messages = [task(writer, batch(b"a", b"b"), batch(b"c")), task(writer), task(writer, batch(b"d"))]
    assert bodies(path) == [b"first"]
    pickle.loads(pickle.dumps(writer)).commit(messages)
    # The order of tasks is that of Spark's partition numbers, which are not there here.
    assert sorted(bodies(path)) == [b"a", b"b", b"c", b"d", b"first"]
    assert left_over(path) == []
    assert HandoffFolder(path).waiting() == []


def test_rows_are_appended_in_the_order_of_partitions(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = batch_writer(path)
    messages = []
    for partition in reversed(range(12)):
        monkeypatch.setattr(writers, "task_prefix", lambda number=partition: f"{number:05}-0")
        messages.append(task(writer, batch(b"%d" % partition)))
    writer.commit(messages)
    assert bodies(path) == [b"first", *(b"%d" % partition for partition in range(12))]


@pytest.mark.parametrize("winner", [0, 1])
def test_rows_of_a_task_with_two_attempts_are_stored_once(path: Path, winner: int) -> None:
    """Speculation and repeated stages give a partition more attempts than one; Spark commits the message of one."""
    writer = batch_writer(path)
    attempts = [task(writer, batch(b"a", b"b")) for _ in range(2)]
    assert len({file.name for attempt in attempts for file in attempt.files}) == 2

    def late() -> Iterator[pa.RecordBatch]:
        yield batch(b"a")
        pickle.loads(pickle.dumps(writer)).commit([attempts[winner]])
        yield batch(b"b")

    with pytest.raises(InterruptedError):
        writer.write(late())
    with pytest.raises(InterruptedError):
        writer.write(iter([batch(b"a", b"b")]))
    assert (bodies(path), left_over(path)) == ([b"first", b"a", b"b"], [])


def test_staged_rows_are_on_disk_before_their_file_has_its_name(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: dict[str, int] = {}
    sync = os.fsync

    def recorded(descriptor: int) -> None:
        synced[Path(f"/proc/self/fd/{descriptor}").readlink().name] = os.fstat(descriptor).st_size
        sync(descriptor)

    writer = batch_writer(path)
    monkeypatch.setattr(os, "fsync", recorded)
    (file,) = task(writer, batch(b"a", b"b")).files
    assert synced[file.name.replace(".arrow", ".tmp")] == file.size_bytes


def test_marks_of_earlier_work_are_not_written_on() -> None:
    schema = struct(body=BinaryType(), properties=MapType(StringType(), StringType()))
    rows = pa.record_batch(
        {
            "body": pa.array([b"x"], pa.binary()),
            "properties": pa.array([[("CMQ_HANDOFF", "w:0"), ("a", "b")]], pa.map_(pa.string(), pa.string())),
        }
    )
    encoded = RowEncoder(WriteSchema.of(schema, "t"), topic="t", body_bytes_max=100).encode(rows)
    (properties,) = encoded.column("properties").to_pylist()
    assert b"a" in properties
    assert b"CMQ_HANDOFF" not in properties


def test_a_job_without_rows(path: Path) -> None:
    writer = batch_writer(path)
    writer.commit([task(writer), task(writer, batch())])
    assert (bodies(path), left_over(path)) == ([b"first"], [])


def test_a_new_store(tmp_path: Path) -> None:
    writer = batch_writer(tmp_path / "new", topicQueues="3")
    writer.commit([task(writer, batch(b"a", b"b", b"c"))])
    with cometmq.open(tmp_path / "new", mode="r") as store:
        assert sorted((m.queue_id, bytes(m)) for m in store.read("t")) == [(0, b"a"), (1, b"b"), (2, b"c")]


def test_a_job_with_an_id_is_done_once(path: Path) -> None:
    for body in (b"a", b"again"):
        writer = batch_writer(path, jobId="daily-21")
        writer.commit([task(writer, batch(body))])
    other = batch_writer(path, jobId="daily-22")
    other.commit([task(other, batch(b"b"))])
    assert (bodies(path), left_over(path)) == ([b"first", b"a", b"b"], [])


def test_an_abort_leaves_nothing(path: Path) -> None:
    writer = batch_writer(path)
    late: list[pa.RecordBatch] = []

    def slow() -> Iterator[pa.RecordBatch]:
        yield batch(b"a")
        writer.abort([None, None])
        late.append(batch(b"b"))
        yield late[0]

    task(writer, batch(b"done before"))
    with pytest.raises(InterruptedError, match="aborted"):
        writer.write(slow())
    with pytest.raises(InterruptedError, match="aborted"):
        writer.write(iter([batch(b"begins after")]))
    assert late
    assert (bodies(path), left_over(path)) == ([b"first"], [])


def test_a_driver_that_dies_is_swept(path: Path) -> None:
    program = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "sys.path.insert(0, sys.argv[2])\n"
        "from unit.spark.test_write import *\n"
        "writer = batch_writer(Path(sys.argv[1]))\n"
        "task(writer, batch(b'lost'))\n"
        "os._exit(9)\n"
    )
    tests = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, "PYTHONPATH": tests}
    ended = subprocess.run([sys.executable, "-c", program, str(path), tests], env=environment, check=False)
    assert ended.returncode == 9
    assert len(left_over(path)) == 1
    batch_writer(path).abort([])
    assert left_over(path) == []


# --- Stream


@pytest.fixture
def _query(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "running_query", lambda: RunningQuery("3f2c", 0))


def stream_writer(path: Path, **options: str) -> StreamWriter:
    found = source(path, **options).streamWriter(BODY, False)
    assert isinstance(found, StreamWriter)
    return found


@pytest.mark.usefixtures("_query")
def test_micro_batches(path: Path) -> None:
    for number in range(3):
        message = task(stream_writer(path), batch(b"%d" % number))
        # Spark commits with another writer than the one that tasks had.
        stream_writer(path).commit([message, None], number)
    assert (bodies(path), left_over(path)) == ([b"first", b"0", b"1", b"2"], [])


@pytest.mark.usefixtures("_query")
def test_a_replayed_micro_batch_is_a_no_op(path: Path) -> None:
    for body in (b"a", b"a"):
        stream_writer(path).commit([task(stream_writer(path), batch(body))], 7)
    assert (bodies(path), left_over(path)) == ([b"first", b"a"], [])


@pytest.mark.usefixtures("_query")
def test_an_aborted_micro_batch(path: Path) -> None:
    options = {"checkpointLocation": "/c"}
    task(stream_writer(path, **options), batch(b"its message is lost"))
    message = task(stream_writer(path, **options), batch(b"its message comes"))
    other = task(stream_writer(path, checkpointLocation="/d"), batch(b"another stream's"))
    assert len(left_over(path)) == 3
    stream_writer(path, **options).abort([message, None], 0)
    assert left_over(path) == [other.job]


def test_without_a_query_id(path: Path) -> None:
    with pytest.raises(InvalidArgument, match="stream's id"):
        task(stream_writer(path), batch(b"a"))


# --- Who holds the store


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_process_that_holds_the_store_applies(path: Path, flush: str) -> None:
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from support.small_store import open_small\n"
        "with open_small(Path(sys.argv[1]), flush=sys.argv[2]) as store:\n"
        "    print('open', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path), flush],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"open\n"
        writer = batch_writer(path)
        writer.commit([task(writer, batch(b"a", b"b"))])
        assert bodies(path) == [b"first", b"a", b"b"]
        holder.stdin.close()
        assert holder.wait(30) == 0
    assert left_over(path) == []


def test_a_writer_that_does_not_look(path: Path) -> None:
    with open_small(path, background=False):
        writer = batch_writer(path, jobId="j", commitTimeoutMs="100")
        with pytest.raises(HandoffWaiting, match="commitTimeoutMs"):
            writer.commit([task(writer, batch(b"a"))])
    with open_small(path):
        pass
    again = batch_writer(path, jobId="j")
    again.commit([task(again, batch(b"a"))])
    assert bodies(path) == [b"first", b"a"]


def test_an_abort_after_the_commit_takes_nothing_from_the_writer(path: Path) -> None:
    """Spark aborts where the commit raises, also where it only did not wait long enough."""
    with open_small(path, background=False):
        writer = batch_writer(path, commitTimeoutMs="100")
        messages = [task(writer, batch(b"a"))]
        with pytest.raises(HandoffWaiting, match="it is on disk"):
            writer.commit(messages)
        writer.abort(messages)
    with open_small(path):
        pass
    assert (bodies(path), left_over(path)) == ([b"first", b"a"], [])
    assert not HandoffFolder(path).rejected.exists()


@pytest.mark.usefixtures("_query")
def test_an_aborted_micro_batch_that_was_committed(path: Path) -> None:
    options = {"checkpointLocation": "/c"}
    with open_small(path, background=False):
        message = task(stream_writer(path, **options), batch(b"a"))
        with pytest.raises(HandoffWaiting):
            stream_writer(path, **options, commitTimeoutMs="100").commit([message], 0)
        stream_writer(path, **options).abort([message], 0)
        stream_writer(path, **options).abort([None], 0)
    message = task(stream_writer(path, **options), batch(b"a"))
    stream_writer(path, **options).commit([message], 0)
    assert (bodies(path), left_over(path)) == ([b"first", b"a"], [])


def test_streams_of_other_hosts_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else one host's stream would give up what another's has staged at the same broker."""
    places = ("/c", "file:///c", "hdfs://n/c")
    here = [journal.stream_scope(place) for place in places]
    assert here == [journal.stream_scope(place) for place in places]
    assert len(set(here)) == 3
    monkeypatch.setattr(journal, "this_host", lambda: "elsewhere")
    there = [journal.stream_scope(place) for place in places]
    assert [one == other for one, other in zip(here, there, strict=True)] == [False, False, True]
    assert journal.stream_scope(None) == "stream"


def test_a_broker_holds_the_store(path: Path) -> None:
    """Anyone who holds the lock and does not publish himself as CometMQ is taken for a broker."""
    import fcntl

    with (path / "lock").open("r+b") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX, 1, 0)  # as Java does; the byte behind it is a writer of ours
        program = (
            "import sys\n"
            "from pathlib import Path\n"
            "sys.path.insert(0, sys.argv[2])\n"
            "from unit.spark.test_write import *\n"
            "try:\n"
            "    batch_writer(Path(sys.argv[1]))\n"
            "except cometmq.StoreLocked as error:\n"
            "    print(error)\n"
        )
        tests = str(Path(__file__).resolve().parents[2])
        environment = {**os.environ, "PYTHONPATH": tests}
        command = [sys.executable, "-c", program, str(path), tests]
        told = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "over the wire" in told.stdout, told.stderr
    assert left_over(path) == []


# --- What is refused


@pytest.mark.parametrize(
    ("schema", "options", "text"),
    [
        (struct(text=StringType()), {}, "the column 'text' cannot be written; columns are body, topic"),
        (struct(tags=StringType()), {}, "no column body"),
        (struct(body=IntegerType()), {}, "body must be string or binary, not int"),
        (struct(body=BinaryType(), tags=BinaryType()), {}, "tags must be string"),
        (struct(body=BinaryType(), properties=MapType(StringType(), LongType())), {}, "properties must be map"),
        (struct(body=BinaryType(), queue=StringType()), {}, "queue must be int"),
        (struct(body=BinaryType(), Body=BinaryType()), {}, "body is there twice"),
        (struct(body=BinaryType()), {"topic": None}, "neither the option topic nor a column topic"),
    ],
)
def test_columns_that_cannot_be_written(
    path: Path, schema: StructType, options: dict[str, str | None], text: str
) -> None:
    given = {"path": str(path), "topic": "t", **options}
    made = CometMQSource({name: value for name, value in given.items() if value is not None})
    for make in (made.writer, made.streamWriter):
        with pytest.raises(InvalidArgument) as caught:
            make(schema, False)
        assert text in str(caught.value)
    assert left_over(path) == []


def test_a_log_is_not_overwritten(path: Path) -> None:
    with pytest.raises(OptionError, match=r'mode\("append"\)'):
        source(path).writer(BODY, True)
    with pytest.raises(OptionError, match="outputMode"):
        source(path).streamWriter(BODY, True)


def test_a_path_that_is_no_store(path: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("x")
    with pytest.raises(OptionError, match="option path"):
        batch_writer(tmp_path / "other")


ALL = struct(
    body=StringType(),
    topic=StringType(),
    tags=StringType(),
    keys=StringType(),
    properties=MapType(StringType(), StringType()),
    queue=LongType(),
    shardKey=StringType(),
)


def encode(**columns: Any) -> pa.RecordBatch:
    types = {
        "properties": pa.map_(pa.string(), pa.string()),
        "queue": pa.int64(),
        "body": pa.string(),
        "keys": pa.string(),
    }
    if any(isinstance(one, list) for one in columns.get("keys", ())):
        types["keys"] = pa.list_(pa.string())
    columns = {"body": ["b"], **columns}
    made = pa.record_batch({name: pa.array(values, types.get(name, pa.string())) for name, values in columns.items()})
    kinds = {field.name: field for field in ALL.fields}
    fields = [kinds[name] for name in columns]
    if "keys" in columns and pa.types.is_list(made.schema.field("keys").type):
        fields = [StructField("keys", ArrayType(StringType())) if one.name == "keys" else one for one in fields]
    schema = WriteSchema.of(StructType(fields), "t")
    return RowEncoder(schema, topic="t", body_bytes_max=1000).encode(made)


def test_encoding() -> None:
    made = encode(
        body=["ä", ""],
        topic=["u", None],
        tags=[None, "x"],
        keys=[["a", "b"], None],
        properties=[[("p", "1"), ("q", None)], None],
        queue=[3, None],
        shardKey=["s", None],
    )
    assert made.column("body").to_pylist() == ["ä".encode(), b""]
    assert made.column("keys").to_pylist() == ["a b", None]
    assert made.column("properties").to_pylist() == [b"p\x011\x02", None]
    assert (made.column("queue").type, made.column("queue").to_pylist()) == (pa.int32(), [3, None])
    assert made.column("shard").to_pylist() == [ord("s"), None]


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"body": [None]}, "the column body has a null"),
        ({"body": ["x" * 1001]}, "1001 bytes; at most 1000"),
        ({"topic": ["a/b"]}, "the column topic: "),
        ({"topic": ["SCHEDULE_TOPIC_XXXX"]}, "RocketMQ's own"),
        ({"tags": ["a||b"]}, "the column tags has 'a||b'"),
        ({"tags": [" a"]}, "the column tags has ' a'"),
        ({"keys": ["a\x01b"]}, "the column keys"),
        ({"keys": [["a b"]]}, "a key of a list is null or has a blank"),
        ({"keys": [["a", None]]}, "a key of a list is null"),
        ({"properties": [[("a\x02", "1")]]}, "the column properties"),
        ({"properties": [[("a", "1" * 40_000)]]}, "over 32767 bytes"),
        ({"properties": [[("a", "1" * 20_000)]], "keys": ["k" * 13_000]}, "together have 33"),
        ({"queue": [-1]}, "the column queue has -1"),
        ({"queue": [70_000]}, "the column queue has 70000"),
    ],
)
def test_rows_that_cannot_be_written(columns: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        encode(**columns)
    assert text in str(caught.value)


def test_batches_are_cut_to_the_read_size_of_the_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    from cometmq.spark import staging

    monkeypatch.setattr(staging, "_PIECE_BYTES", 10_000)
    bodies = [b"%03d" % number * (1 if number < 90 else 1000) for number in range(100)]
    batch = pa.record_batch({"body": pa.array(bodies, pa.binary())})
    pieces = list(staging.plain_pieces([batch]))
    assert [body for piece in pieces for body in piece.column("body").to_pylist()] == bodies
    assert max(piece.nbytes for piece in pieces) <= 20_000
    assert len(list(staging.plain_pieces([batch.slice(0, 5)]))) == 1
    lists = pa.list_(pa.field("element", pa.string(), nullable=False))
    maps = pa.map_(pa.string(), pa.field("value", pa.string(), nullable=False))
    usual = pa.record_batch({"keys": pa.array([["k"]], lists), "properties": pa.array([[("p", "1")]], maps)})
    (piece,) = staging.plain_pieces([usual])
    assert piece.schema.equals(usual.schema), "nothing is copied"


LARGE = pa.schema(
    [
        ("body", pa.large_binary()),
        ("topic", pa.large_string()),
        ("tags", pa.large_string()),
        ("keys", pa.list_(pa.large_string())),
        ("properties", pa.map_(pa.large_string(), pa.large_string())),
        ("queue", pa.int32()),
        ("shardKey", pa.large_string()),
    ]
)


def test_large_types_of_spark_are_written(path: Path) -> None:
    """Spark makes them with spark.sql.execution.arrow.useLargeVarTypes; the store's writer refused the files."""
    schema = struct(
        body=BinaryType(),
        topic=StringType(),
        tags=StringType(),
        keys=ArrayType(StringType()),
        properties=MapType(StringType(), StringType()),
        queue=IntegerType(),
        shardKey=StringType(),
    )
    given = [
        {"body": b"1", "topic": "t", "tags": "a", "keys": ["k", "l"], "properties": {"region": "eu"}, "queue": 0},
        {"body": b"2", "shardKey": "s"},
    ]
    writer = source(path).writer(schema, False)
    writer.commit([task(writer, pa.RecordBatch.from_pylist(given, schema=LARGE).slice(0), batch())])
    with open_small(path, mode="r") as store:
        found = list(store.read("t"))[1:]
    assert [(bytes(one.body), one.tags, list(one.keys), one.properties.get("region")) for one in found] == [
        (b"1", "a", ["k", "l"], "eu"),
        (b"2", None, [], None),
    ]


@pytest.mark.timeout(900)
def test_a_batch_of_more_bodies_than_32_bit_offsets_reach_is_written(tmp_path: Path) -> None:
    body = bytes(3 << 20 if os.environ.get("CMQ_LONG") else 3 << 10)
    count = (1 << 31) // (3 << 20) + 10
    given = pa.record_batch({"body": pa.array([body] * count, pa.large_binary())})
    writer = source(tmp_path / "store").writer(BODY, False)
    writer.commit([task(writer, given)])
    with cometmq.open(tmp_path / "store", mode="r") as store:
        assert [len(message.raw_body) for message in store.read("t")] == [len(body)] * count
