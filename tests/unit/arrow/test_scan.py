"""Checks: a scan's results, in every format; options and errors. Equality with read() has tests of its own."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import cometmq
from cometmq import Store, errors
from cometmq.arrow import COLUMN_NAMES, DEFAULT_COLUMNS, Scan, ScanReport
from support.any_disk import retention_on_request
from support.small_store import SMALL, open_small, pretend_newer

COUNT = 1000


def body_of(number: int) -> bytes:
    return b"message %d " % number * (number % 7)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """1000 orders in four queues, and some of another topic."""
    with open_small(tmp_path / "store") as opened:
        opened.create_topic("orders", queues=4)
        opened.append_many(
            "orders",
            [body_of(number) for number in range(COUNT)],
            tags=[("paid", "refused", None)[number % 3] for number in range(COUNT)],
            keys=[f"o-{number} c-{number % 10}" if number % 2 else None for number in range(COUNT)],
            properties=[{"region": f"r{number % 5}"} if number % 4 else None for number in range(COUNT)],
            queue=[number % 4 for number in range(COUNT)],
        )
        opened.append_many("others", [b"x"] * 10)
        yield opened


def test_default_columns(store: Store) -> None:
    table = store.scan("orders").to_table()
    table.validate(full=True)
    assert tuple(table.column_names) == DEFAULT_COLUMNS
    assert table.num_rows == COUNT
    assert table.schema.field("body").type == pa.binary_view()
    assert table.schema.field("queue_id").type == pa.int32()
    assert table.schema.field("queue_offset").type == pa.int64()
    assert table.schema.field("store_timestamp").type == pa.timestamp("ms", "UTC")
    assert table.column("body").to_pylist() == [body_of(number) for number in range(COUNT)]
    assert table.column("tags").to_pylist() == [("paid", "refused", None)[number % 3] for number in range(COUNT)]
    assert table.column("keys").to_pylist()[:2] == [None, "o-1 c-1"]
    assert set(table.column("topic").to_pylist()) == {"orders"}


def test_every_column(store: Store) -> None:
    names = [*COLUMN_NAMES, "prop:region", "prop:none"]
    scan = store.scan("orders", columns=names)
    table = scan.to_table()
    table.validate(full=True)
    assert table.column_names == names == list(scan.columns)
    assert table.schema == scan.schema
    messages = list(store.read("orders"))
    assert table.column("message_id").to_pylist() == [message.message_id for message in messages]
    assert table.column("properties").to_pylist() == [list(message.properties.items()) for message in messages]
    assert table.column("prop:region").to_pylist() == [message.properties.get("region") for message in messages]
    assert table.column("prop:none").null_count == COUNT
    assert table.column("body_bytes").to_pylist() == [len(message.raw_body) for message in messages]
    assert table.column("born_host").to_pylist()[0] == "{}:{}".format(*messages[0].born_host)


def test_columns_in_the_order_that_was_asked_for(store: Store) -> None:
    assert store.scan("orders", columns=["tags", "queue_offset"]).to_table().column_names == ["tags", "queue_offset"]


def test_gathered_bodies(store: Store) -> None:
    table = store.scan("orders", body="binary").to_table()
    assert table.schema.field("body").type == pa.binary()
    assert table.column("body").to_pylist() == [body_of(number) for number in range(COUNT)]


def test_a_schema_needs_no_queue(store: Store) -> None:
    for options in (
        {},
        {"tags": "paid"},
        {"start": 5},
        {"keys": ["o-1"]},
        {"follow": True},
        {"columns": [], "schema": {"a": "int8"}},
    ):
        scan = store.scan("orders", **options)  # type: ignore[arg-type]
        assert pa.schema(scan) == scan.schema
        assert tuple(scan.schema.names) == scan.columns


def test_an_arrow_stream_for_everybody(store: Store) -> None:
    scan = store.scan("orders")
    assert pa.table(scan).equals(scan.to_table())
    assert pa.schema(scan) == scan.schema == pa.table(scan).schema
    assert pa.RecordBatchReader.from_stream(scan).read_all().num_rows == COUNT
    assert scan.to_reader().read_all().num_rows == COUNT
    assert sum(batch.num_rows for batch in scan) == COUNT
    assert [batch.num_rows for batch in store.scan("orders", batch_rows=300).batches()] == [300, 300, 300, 100]


def test_each_use_is_a_pass_of_its_own(store: Store) -> None:
    scan = store.scan("orders")
    first, second = scan.batches(), scan.batches()
    assert next(first).equals(next(second))
    assert scan.count() == COUNT
    store.append("orders", b"new")
    assert scan.count() == COUNT + 1
    assert pa.table(scan).num_rows == scan.to_table().num_rows == COUNT + 1


def test_filters_that_select_nothing(store: Store) -> None:
    scan = store.scan("orders", tags="none")
    table = scan.to_table()
    assert table.num_rows == 0
    assert table.schema == scan.schema == store.scan("orders").schema
    assert pa.table(scan).num_rows == 0
    assert list(scan) == []
    assert scan.count() == 0
    assert store.scan("orders", start=10_000).to_table().num_rows == 0


def test_a_topic_without_messages(store: Store) -> None:
    store.create_topic("empty")
    table = store.scan("empty").to_table()
    assert table.num_rows == 0
    assert tuple(table.column_names) == DEFAULT_COLUMNS


def test_topics(store: Store) -> None:
    assert store.scan().to_table().num_rows == COUNT + 10
    assert store.scan(["others", "orders"]).to_table().num_rows == COUNT + 10
    assert set(store.scan("others").to_table().column("topic").to_pylist()) == {"others"}


def test_limit(store: Store) -> None:
    assert store.scan("orders", limit=7).to_table().num_rows == 7
    assert store.scan("orders", limit=7).count() == 7
    assert store.scan("orders", limit=7, tags="paid").count() == 7
    assert store.scan("others", limit=700).count() == 10


def test_messages_of_light_queues_count_once(tmp_path: Path) -> None:
    settings = {**SMALL, "enableLmq": True, "enableMultiDispatch": True}
    with open_small(tmp_path / "light", settings=settings) as store:
        for number in range(3):
            store.append("t", b"%d" % number, properties={"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b"})
        for scan, rows in ((store.scan(), 3), (store.scan("%LMQ%a"), 3), (store.scan(["t", "%LMQ%b"]), 6)):
            assert (scan.count(), scan.count(exact=True), scan.to_table().num_rows) == (rows, rows, rows)


def test_count_without_reading(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    scans = {
        COUNT: store.scan("orders"),
        COUNT + 10: store.scan(),
        COUNT // 2: store.scan("orders", queues=[1, 3]),
        4 * 7: store.scan("orders", start=3, end=10),
        0: store.scan("orders", start=9_999),
    }
    for count, scan in scans.items():
        assert scan.count(exact=True) == count
    monkeypatch.setattr("cometmq.arrow.scan.ColumnScan", None)
    for count, scan in scans.items():
        assert scan.count() == count


def test_count_with_filters(store: Store) -> None:
    assert store.scan("orders", tags="paid").count() == 334
    assert store.scan("orders", keys=["c-3"]).count() == 100
    newest = store.info().latest_timestamp_ms
    assert newest is not None
    assert store.scan("orders", start_time=newest + 1).count() == 0


def test_keys(store: Store) -> None:
    table = store.scan("orders", keys=["o-17", "c-3"], columns=["keys"]).to_table()
    assert sorted(table.column("keys").to_pylist()) == sorted(
        f"o-{number} c-{number % 10}" for number in range(1, COUNT, 2) if number == 17 or number % 10 == 3
    )
    assert store.scan("orders", keys="nobody").to_table().num_rows == 0


def test_follow(store: Store) -> None:
    scan = store.scan("others", follow=True, timeout_s=0.05)
    assert scan.to_table().num_rows == 10
    batches = store.scan("others", follow=True, timeout_s=20).batches()
    assert next(batches).num_rows == 10
    timer = threading.Timer(0.05, lambda: store.append("others", b"late"))
    timer.start()
    assert next(batches).column("body").to_pylist() == [b"late"]
    timer.join()
    batches.close()  # type: ignore[attr-defined]
    with pytest.raises(errors.InvalidArgument, match="never ends"):
        store.scan("others", follow=True).to_table()
    with pytest.raises(errors.InvalidArgument, match="never ends"):
        store.scan("others", follow=True).count()


def test_batches_outlive_the_store(tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as opened:
        opened.append_many("t", [b"a body that is longer than a view holds"] * 10)
        table = opened.scan("t").to_table()
        scan = opened.scan("t")
    assert table.column("body").to_pylist() == [b"a body that is longer than a view holds"] * 10
    for use in (scan.to_table, scan.count, lambda: pa.table(scan)):
        with pytest.raises(errors.StoreClosed):
            use()


def test_compressed_bodies(store: Store) -> None:
    assert store.scan("orders", compressed="raw").to_table().column("body").to_pylist() == [
        body_of(number) for number in range(COUNT)
    ]


def test_check_crc(store: Store) -> None:
    assert store.scan("orders", check_crc=True).to_table().num_rows == COUNT


def test_repr(store: Store) -> None:
    text = repr(store.scan("orders", tags="a || b", start=3, columns=["body"], queues=[1]))
    assert text == "<Scan of 'orders'; columns body; tags a || b; queues 1; start 3>"
    assert "every topic" in repr(store.scan())


# --- Structured bodies


@pytest.fixture
def readings(tmp_path: Path) -> Iterator[Store]:
    with open_small(tmp_path / "store") as opened:
        bodies = [b'{"id": %d, "tags": "t%d", "v": {"x": 1.5}}' % (number, number % 3) for number in range(100)]
        bodies[40] = b"no json"
        bodies[41] = b'{"id": 1}{"id": 2}'
        bodies[99] = b""
        opened.append_many("r", bodies, tags="TagA")
        yield opened


def test_json_bodies_become_columns(readings: Store) -> None:
    scan = readings.scan("r", schema={"id": "int64", "tags": pa.string()}, batch_rows=30, on_bad_body="null")
    table = scan.to_table()
    assert table.schema == scan.schema == pa.schema(scan)
    names = ["topic", "queue_id", "queue_offset", "keys", "born_timestamp", "store_timestamp", "id", "tags"]
    assert table.column_names == names == list(scan.columns)
    bad = (40, 41, 99)
    assert table.column("id").to_pylist() == [None if row in bad else row for row in range(100)]
    assert table.column("tags").to_pylist() == [None if row in bad else f"t{row % 3}" for row in range(100)]
    assert table.column("queue_offset").to_pylist() == list(range(100))
    report = scan.report
    assert report.bad_bodies == 3
    assert report.bad_rows == tuple(("r", 0, row) for row in bad)
    assert pa.table(scan).equals(table)


def test_bodies_that_do_not_fit_are_warned_of_once(readings: Store) -> None:
    scan = readings.scan("r", schema={"id": "int64", "v": "string"}, columns=["queue_offset"], batch_rows=50)
    with pytest.warns(RuntimeWarning) as caught:
        table = scan.to_table()
    assert [one.filename for one in caught] == [__file__]
    assert pa.table(scan).equals(table)  # where a second warning would be an error
    assert [str(one.message).partition(";")[0] for one in caught] == [
        "50 of 50 bodies do not fit the schema and give nulls, first r/0 at offset 0 (v: not string)"
    ]
    assert table.column("id").to_pylist()[:3] == [0, 1, 2]
    assert (scan.report.bad_bodies, scan.report.bad_fields) == (100, {"v": 97})


def test_an_error_column_in_a_scan(readings: Store) -> None:
    scan = readings.scan("r", schema="id BIGINT", columns=[], error_column="error")
    table = scan.to_table()
    assert table.column_names == list(scan.columns) == ["id", "error"]
    assert table.schema == scan.schema
    assert [row["error"] for row in table.to_pylist()[39:42]] == [None, "not one JSON object", "not one JSON object"]


def test_strict_raises(readings: Store) -> None:
    with pytest.raises(errors.BodyMismatch, match=r"r/0 at offset 40 .*\(not one JSON object\)"):
        readings.scan("r", schema={"id": "int64"}, strict=True).to_table()
    with pytest.raises(errors.InvalidArgument, match="strict=True"):
        readings.scan("r", schema={"id": "int64"}, strict=True, on_bad_body="null")
    with pytest.raises(errors.InvalidArgument, match="give schema"):
        readings.scan("r", strict=True)


def test_decoded_beside_the_body(readings: Store) -> None:
    table = readings.scan("r", columns=["body", "queue_offset"], schema={"id": "int64"}, on_bad_body="null").to_table()
    assert table.column_names == ["body", "queue_offset", "id"]
    assert table.column("body").to_pylist()[99] == b""
    assert readings.scan("r", columns=[], schema={"id": "int64"}, end=9).to_table().column_names == ["id"]
    assert readings.scan("r", schema={"id": "int64"}, columns=[]).schema == pa.schema([("id", pa.int64())])


def test_a_bad_body_fails_when_asked(readings: Store) -> None:
    scan = readings.scan("r", schema={"id": "int64"}, on_bad_body="fail")
    with pytest.raises(errors.BodyMismatch, match=r"r/0 at offset 40") as caught:
        scan.to_table()
    assert (caught.value.topic, caught.value.queue_id, caught.value.queue_offset) == ("r", 0, 40)
    restored = pickle.loads(pickle.dumps(caught.value))
    assert restored.queue_offset == 40
    assert readings.scan("r", schema={"id": "int64"}, on_bad_body="fail", end=40).to_table().num_rows == 40


def test_csv_bodies_become_columns(store: Store) -> None:
    store.append_many("csv", [b"1,a", b"2,b\n", b"x,c"])
    scan = store.scan("csv", schema={"id": pa.int16(), "name": "string"}, body_format="csv", columns=["queue_offset"])
    with pytest.warns(RuntimeWarning, match=r"1 of 3 bodies do not fit .* \(id: not int16\)"):
        table = scan.to_table()
    assert table.to_pydict() == {"queue_offset": [0, 1, 2], "id": [1, 2, None], "name": ["a", "b", "c"]}
    assert scan.report.bad_bodies == 1


def test_nothing_is_reported_before_a_pass(store: Store) -> None:
    assert store.scan("orders").report == ScanReport()


# --- Wrong questions


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"columns": ["bdoy"]}, "did you mean 'body'"),
        ({"columns": ["region"]}, '"prop:region"|a property'),
        ({"columns": ["body", "body"]}, "twice"),
        ({"columns": []}, "no column"),
        ({"columns": "body"}, "several names"),
        ({"columns": ["prop:"]}, "prop:NAME"),
        ({"topic": None, "start": 1}, "one topic"),
        ({"topic": None, "queues": [0]}, "topic"),
        ({"topic": None, "keys": ["a"]}, "in a topic"),
        ({"keys": []}, "keys"),
        ({"keys": ["a"], "follow": True}, "follow"),
        ({"limit": 0}, "limit"),
        ({"batch_rows": 0}, "batch_rows"),
        ({"batch_bytes": 1 << 40}, "batch_bytes"),
        ({"body": "text"}, "body is 'view' or 'binary'"),
        ({"compressed": "yes"}, "compressed"),
        ({"on_corrupt": "null"}, "on_corrupt"),
        ({"on_bad_body": "skip"}, "on_bad_body"),
        ({"schema": {"id": "int64"}, "compressed": "raw"}, "schema"),
        ({"schema": {"id": "int64"}, "columns": ["topic", "id"]}, "no column 'id'|both have"),
        ({"schema": {"tags": "string"}, "columns": ["tags"]}, "both have 'tags'"),
        ({"schema": {"id": "int64"}, "body_format": "xml"}, "body_format"),
        ({"start": -1}, "start"),
        ({"start": 7, "end": 6}, "start 7 lies behind end 6"),
        ({"timeout_s": -1}, "timeout_s"),
    ],
)
def test_wrong_options(store: Store, options: dict[str, Any], text: str) -> None:
    topic = options.pop("topic", "orders")
    with pytest.raises(errors.InvalidArgument, match=text):
        store.scan(topic, **options)


def test_unknown_topic(store: Store) -> None:
    with pytest.raises(errors.TopicNotFound):
        store.scan("nowhere")
    with pytest.raises(errors.TopicNotFound):
        store.scan("orders", queues=[17])
    with pytest.raises(TypeError):
        store.scan("orders", columns=[1])  # type: ignore[list-item]


def test_a_missing_library_is_named(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> Any:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr("cometmq.arrow.libraries.importlib", type("fake", (), {"import_module": staticmethod(refuse)}))
    scan = Scan(store.handle, store.scan("orders").query)
    with pytest.raises(errors.MissingLibrary, match="pip install 'polars>="):
        scan.to_polars()
    with pytest.raises(errors.MissingLibrary, match="pip install pandas"):
        scan.to_pandas()
    with pytest.raises(ImportError, match="pip install pyarrow"):
        scan.to_table()


def test_nothing_heavy_is_imported() -> None:
    heavy = ("pyarrow", "pandas", "polars", "duckdb", "numpy")
    code = f"import sys, cometmq, cometmq.store.scanning; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


# --- Other libraries


def test_pandas(store: Store) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed (pip install pandas)")
    frame = store.scan("orders").to_pandas()
    assert list(frame.columns) == list(DEFAULT_COLUMNS)
    assert frame["body"].tolist() == [body_of(number) for number in range(COUNT)]
    assert frame.groupby("tags", observed=True).size().to_dict() == {"paid": 334, "refused": 333}
    typed = store.scan("orders").to_pandas(arrow_types=True)
    assert typed["body"].dtype == pandas.ArrowDtype(pa.binary_view())
    assert typed["queue_offset"].sum() == frame["queue_offset"].sum()


def test_polars(store: Store) -> None:
    polars = pytest.importorskip("polars", reason="polars is not installed")
    scan = store.scan("orders")
    bodies = [body_of(number) for number in range(COUNT)]
    whole = polars.from_arrow(scan)
    if isinstance(whole, polars.Series):  # of structs: Polars 2 makes one of any stream
        whole = whole.to_frame("all")
    if len(whole.columns) == 1:  # so does a late Polars 1
        whole = whole.unnest(whole.columns[0])
    for frame in (scan.to_polars(), polars.DataFrame(scan), whole):
        assert frame.columns == list(DEFAULT_COLUMNS)
        assert frame["body"].to_list() == bodies
        assert frame.filter(polars.col("tags") == "paid").height == 334
        assert frame["body"].bin.size().sum() == sum(map(len, bodies))
    assert store.scan("orders", tags="none").to_polars().is_empty()


def test_duckdb(store: Store) -> None:
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
    scan = store.scan("orders")  # noqa: F841 (DuckDB finds it by its name)
    with duckdb.connect() as connection:
        found = connection.sql("select tags, count(*), sum(octet_length(body)) from scan group by tags order by tags")
        sizes = [len(body_of(number)) for number in range(COUNT)]
        assert found.fetchall() == [
            ("paid", 334, sum(sizes[0::3])),
            ("refused", 333, sum(sizes[1::3])),
            (None, 333, sum(sizes[2::3])),
        ]
        both = connection.sql("select count(*) from scan a join scan b using (queue_id, queue_offset)")
        assert both.fetchall() == [(COUNT,)]
        bodies = connection.sql("select body from scan order by queue_offset * 4 + queue_id").fetchall()
        assert [body for (body,) in bodies] == [body_of(number) for number in range(COUNT)]


def test_damage(tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as opened:
        opened.append_many("t", [b"%d" % number for number in range(100)])
        place = opened.get("t", 0, 50)
    log = next((tmp_path / "store" / "commitlog").iterdir())
    with log.open("r+b") as file:
        file.seek(place.physical_offset + 4)
        file.write(b"\xff" * 4)
    with cometmq.open(tmp_path / "store", mode="r") as damaged:
        scan = damaged.scan("t")
        batches = scan.batches()
        assert next(batches).column("body").to_pylist() == [b"%d" % number for number in range(50)]
        with pytest.raises(errors.CorruptRecord) as caught:
            next(batches)
        assert caught.value.offset == place.physical_offset
        with pytest.raises(errors.CorruptRecord):
            scan.to_table()
        with pytest.raises((OSError, ValueError, pa.ArrowException)):
            pa.table(scan)
        passing = damaged.scan("t", on_corrupt="skip")
        assert passing.to_table().num_rows == 99
        assert passing.report.skipped == 1
        assert passing.report.skipped_offsets == (place.physical_offset,)


def test_a_store_of_a_newer_version(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with open_small(path) as opened:
        opened.append_many("t", [b"%d" % number for number in range(100)], keys=[f"k{number}" for number in range(100)])
    pretend_newer(path, older_may_use=True)
    with cometmq.open(path, mode="r") as store:
        assert store.scan("t").to_table().num_rows == 100
        assert store.scan("t", keys=["k7"]).to_table().column("body").to_pylist() == [b"7"]
    pretend_newer(path, older_may_use=False)
    for mode in ("r", "a"):
        with pytest.raises(errors.NotAStore, match=r"a newer CometMQ wrote this store.*pip install --upgrade cometmq"):
            cometmq.open(path, mode=mode)


def test_a_body_that_changed_is_found_by_its_crc(tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as opened:
        opened.append_many("t", [b"a body that has some length"] * 10)
        place = opened.get("t", 0, 5)
    log = next((tmp_path / "store" / "commitlog").iterdir())
    data = log.read_bytes()
    with log.open("r+b") as file:
        file.seek(data.index(b"a body", place.physical_offset))
        file.write(b"A")
    with cometmq.open(tmp_path / "store", mode="r") as damaged:
        assert damaged.scan("t").to_table().num_rows == 10
        with pytest.raises(errors.CorruptRecord) as caught:
            damaged.scan("t", check_crc=True).to_table()
        assert caught.value.offset == place.physical_offset
        passing = damaged.scan("t", check_crc=True, on_corrupt="skip")
        assert passing.to_table().column("queue_offset").to_pylist() == [0, 1, 2, 3, 4, 6, 7, 8, 9]
        assert passing.report.skipped == 1


def test_each_pass_beside_a_writer_sees_confirmed_messages(store: Store) -> None:
    with cometmq.open(store.path, mode="r") as reader:
        scan = reader.scan("others")
        assert scan.to_table().num_rows == 10
        store.append_many("others", [b"y"] * 5)
        assert scan.to_table().num_rows == scan.count() == 15
        follow = reader.scan("others", start=15, follow=True, timeout_s=20).batches()
        store.append("others", b"live")
        assert next(follow).column("body").to_pylist() == [b"live"]


def test_expired_messages_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with open_small(path) as opened:
        opened.append_many("t", [b"x" * 1000] * 5000)
    for segment in (path / "commitlog").iterdir():
        os.utime(segment, (0, 0))
    with open_small(path, retention=retention_on_request(1)) as opened:
        assert opened.expire() > 0
        low = opened.min_offset("t")
        scan = opened.scan("t", start=0)
        assert scan.to_table().num_rows == scan.count() == 5000 - low
        assert scan.report.expired == low > 0
        whole = opened.scan("t")
        assert whole.to_table().num_rows == 5000 - low
        assert whole.report.expired == 0


FAR = [2**63 - 1, -(2**63) + 1, 253402300800000, -62135596800001, 1_700_000_000_000, 0]


def test_times_that_no_calendar_has_come_as_the_nearest_and_are_counted(tmp_path: Path) -> None:
    """A producer's clock may say anything; DuckDB failed on such a row, and CSV showed years beyond 9999."""
    with open_small(tmp_path) as store:
        store.append_many("t", [b"x"] * len(FAR), born_timestamps_ms=[time or 1 for time in FAR])
        scan = store.scan("t", columns=["born_timestamp"])
        times = scan.to_table().column("born_timestamp").to_pylist()
        assert [time.year for time in times] == [9999, 1, 9999, 1, 2023, 1970]
        assert scan.report.clamped_times == 4
        for hours in (14, -12):  # in every zone: PySpark's collect() failed in those east of Greenwich
            assert all(time.astimezone(timezone(timedelta(hours=hours))) == time for time in times)


def test_texts_that_are_not_utf8_are_counted(store: Store) -> None:
    store.append("bytes", b"x", tags=b"a\xff", keys=b"\xfe", properties={"region": b"\xfd", "shop": "s"})
    scan = store.scan("bytes", columns=["tags", "keys", "prop:region", "prop:shop"])
    assert scan.to_table().to_pylist() == [
        {"tags": "a\ufffd", "keys": "\ufffd", "prop:region": "\ufffd", "prop:shop": "s"}
    ]
    assert scan.report.mended_texts == 3


def test_a_topic_given_twice_is_read_and_counted_once(store: Store) -> None:
    assert store.scan(["orders", "orders"]).count() == store.scan(["orders", "orders"]).to_table().num_rows == COUNT
