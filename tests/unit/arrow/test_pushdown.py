"""Checks: lazy frames and datasets of scans: rows equal those of a filtered table, and only what is needed is read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

import cometmq
from cometmq import Cursor, InvalidArgument, Store
from cometmq.arrow.pushdown import Term, narrow, terms_of_arrow, terms_of_polars
from cometmq.arrow.scan import Query, Scan, ScanPass
from support.small_store import open_small

pl = pytest.importorskip("polars", reason="polars is not installed (pip install cometmq[polars])")

COUNT = 300
ODD = 'b" and (queue_id == 5) and (tags == "b'


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_small(tmp_path / "store") as opened:
        opened.create_topic("orders", queues=3)
        opened.append_many(
            "orders",
            [b'{"id": %d, "at": %d}' % (number, number * 10) for number in range(COUNT)],
            tags=["a", ODD, None] * (COUNT // 3),
            queue=[number // 3 % 3 for number in range(COUNT)],
        )
        opened.append_many("others", [b'{"id": 7}'] * 10, tags="a")
        yield opened


class Passes:
    """The requests of the passes that were begun."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.queries: list[Query] = []
        self.rows = 0
        init, step = ScanPass.__init__, ScanPass.next

        def begun(run: ScanPass, handle: Any, query: Query, **options: Any) -> None:
            self.queries.append(query)
            init(run, handle, query, **options)

        def stepped(run: ScanPass) -> Any:
            batch = step(run)
            self.rows += 0 if batch is None else batch.num_rows
            return batch

        monkeypatch.setattr(ScanPass, "__init__", begun)
        monkeypatch.setattr(ScanPass, "next", stepped)


def moment(store: Store, number: int) -> datetime:
    message = list(store.read("orders"))[number]
    return datetime.fromtimestamp(message.store_timestamp_ms / 1000, timezone.utc)


def polars_conditions(at: datetime) -> dict[str, Any]:
    col = pl.col
    return {
        "offset": col("queue_offset") >= 90,
        "flipped": pl.lit(90) < col("queue_offset"),
        "between": col("queue_offset").is_between(5, 6),
        "none": (col("queue_offset") > 5) & (col("queue_offset") < 5),
        "negative": col("queue_offset") < -5,
        "tag": (col("tags") == "a") & (col("queue_id") == 0),
        "odd tag": col("tags") == ODD,
        "tags": col("tags").is_in(["a", "zzz"]),
        "no tag": col("tags").is_null(),
        "queues": col("queue_id").is_in([0, 2, 9]),
        "topic": col("topic") == "orders",
        "other topic": col("topic") == "nowhere",
        "or": (col("queue_offset") < 2) | (col("tags") == "a"),
        "not": ~(col("queue_id") == 0),
        "time": col("store_timestamp") >= at,
        "before": col("store_timestamp") < at,
        "times": (col("store_timestamp") == at) & (col("queue_id") == 1),
        "length": col("body").bin.size() > 20,
        "both": (col("queue_offset") > 50) & (col("body").bin.size() > 20),
    }


def arrow_conditions(at: datetime) -> dict[str, Any]:
    field = pc.field
    return {
        "offset": field("queue_offset") >= 90,
        "between": (field("queue_offset") >= 5) & (field("queue_offset") <= 6),
        "none": (field("queue_offset") > 5) & (field("queue_offset") < 5),
        "negative": field("queue_offset") < -5,
        "tag": (field("tags") == "a") & (field("queue_id") == 0),
        "odd tag": field("tags") == ODD,
        "tags": field("tags").isin(["a", "zzz"]),
        "no tag": field("tags").is_null(),
        "other topic": field("topic") == "nowhere",
        "or": (field("queue_offset") < 2) | (field("tags") == "a"),
        "not": ~(field("queue_id") == 0),
        "time": field("store_timestamp") >= pa.scalar(at, pa.timestamp("us", "UTC")),
        "zone": field("store_timestamp") < pa.scalar(at, pa.timestamp("ms", "Europe/Berlin")),
        "times": (field("store_timestamp") == pa.scalar(at, pa.timestamp("ms", "UTC"))) & (field("queue_id") == 1),
        "length": pc.binary_length(field("body")) > 20,
    }


SCANS: dict[str, dict[str, Any]] = {
    "topic": {"topic": "orders"},
    "all": {},
    "two topics": {"topic": ["orders", "others"]},
    "cursor": {"topic": "orders", "start": {0: 3, 1: 4}},
    "filtered": {
        "topic": "orders",
        "tags": "a",
        "queues": [0, 1],
    },
    "range": {"topic": "orders", "start": 3, "end": 95},
    "limit": {"topic": "orders", "limit": 200},
}


@pytest.mark.parametrize("name", SCANS)
def test_lazy_frames_have_the_rows_of_a_filtered_frame(store: Store, name: str) -> None:
    scan = store.scan(**SCANS[name])
    whole = scan.to_polars()
    for condition, predicate in polars_conditions(moment(store, 150)).items():
        wanted = whole.filter(predicate)
        assert scan.to_lazy().filter(predicate).collect().rows() == wanted.rows(), condition
        assert (
            scan.to_lazy().filter(predicate).select("queue_offset").head(3).collect().rows()
            == wanted.select("queue_offset").head(3).rows()
        ), condition


@pytest.mark.parametrize("name", SCANS)
def test_datasets_have_the_rows_of_a_filtered_table(store: Store, name: str) -> None:
    dataset = store.scan(**SCANS[name]).to_dataset()
    whole = dataset.to_table()
    for condition, filter in arrow_conditions(moment(store, 150)).items():
        wanted = whole.filter(filter)
        assert dataset.to_table(filter=filter).equals(wanted), condition
        found = dataset.to_table(columns=["queue_offset"], filter=filter)
        assert found.equals(wanted.select(["queue_offset"])), condition
        assert dataset.count_rows(filter=filter) == wanted.num_rows


def test_only_the_columns_of_a_query_are_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    scan = store.scan("orders", schema="id int, at int", columns=["tags", "queue_offset", "body"])
    lazy, dataset = scan.to_lazy(), scan.to_dataset()
    passes = Passes(monkeypatch)
    assert lazy.filter(pl.col("queue_offset") > 90).select(pl.col("id").sum()).collect().item() > 0
    assert dataset.to_table(columns=["id"], filter=pc.field("queue_offset") > 90).column_names == ["id"]
    read = [{column.name for column in query.columns} for query in passes.queries]
    assert {"queue_offset"} in read
    assert all(names <= {"queue_offset"} for names in read)


def test_conditions_keep_messages_from_being_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    at = moment(store, 150)
    lazy, dataset = store.scan("orders").to_lazy(), store.scan("orders").to_dataset()
    for predicate, filter, most in (
        (pl.col("queue_offset") >= 99, pc.field("queue_offset") >= 99, 3),
        (pl.col("queue_id") == 1, pc.field("queue_id") == 1, 100),
        (pl.col("tags") == "a", pc.field("tags") == "a", 100),
        (pl.col("topic") == "others", pc.field("topic") == "others", 0),
        (
            pl.col("store_timestamp") > at + timedelta(days=1),
            pc.field("store_timestamp") > pa.scalar(at + timedelta(days=1)),
            0,
        ),
    ):
        for query in (lazy.filter(predicate).collect, lambda filter=filter: dataset.to_table(filter=filter)):
            with monkeypatch.context() as patch:
                passes = Passes(patch)
                query()
                assert passes.rows <= most, str(predicate)
    with monkeypatch.context() as patch:
        passes = Passes(patch)
        assert lazy.head(5).collect().height == 5
        assert passes.rows == 5


def test_duckdb_reads_a_dataset(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed (pip install cometmq[duckdb])")
    with duckdb.connect() as connection:
        connection.register("orders", store.scan("orders", schema="id int", columns=["queue_id", "tags"]).to_dataset())
        passes = Passes(monkeypatch)
        found = connection.sql("select sum(id), count(*) from orders where tags = 'a' and queue_id = 1").fetchall()
    ids = [number for number in range(COUNT) if number % 3 == 0 and number // 3 % 3 == 1]
    assert found == [(sum(ids), len(ids))]
    assert passes.rows <= 100


def test_a_field_with_a_columns_name_narrows_nothing(store: Store) -> None:
    store.append_many("fields", [b'{"queue_offset": %d, "tags": "x"}' % (number + 100) for number in range(5)])
    scan = store.scan("fields", columns=["queue_id"], schema="queue_offset int, tags text")
    assert scan.to_lazy().filter((pl.col("queue_offset") > 102) & (pl.col("tags") == "x")).collect().height == 2
    assert scan.to_dataset().to_table(filter=pc.field("queue_offset") > 102).num_rows == 2


def test_csv_fields_keep_their_places(store: Store) -> None:
    store.append_many("lines", [b"1,Kiel", b"2,Lima"])
    scan = store.scan("lines", columns=[], schema="id int, city text", body_format="csv")
    assert scan.select(["city"]).to_table().to_pydict() == {"city": ["Kiel", "Lima"]}
    assert scan.to_lazy().select("city").collect().rows() == [("Kiel",), ("Lima",)]


def test_reports_and_errors_of_bodies(store: Store) -> None:
    store.append("orders", b"no JSON")
    scan = store.scan("orders", columns=[], schema="id int, at int", error_column="error")
    assert scan.to_lazy().select("id").collect().height == COUNT + 1
    assert scan.report.bad_bodies == 1
    assert scan.to_lazy().filter(pl.col("error").is_not_null()).collect().rows() == [
        (None, None, "not one JSON object")
    ]


def test_limit_of_a_scan_holds_in_queries_of_libraries(store: Store) -> None:
    scan = store.scan("orders", limit=5)
    assert scan.to_lazy().head(10).collect().height == 5
    assert scan.to_lazy().head(3).collect().height == 3
    assert scan.to_lazy().collect().height == 5
    assert scan.to_dataset().head(10).num_rows == 5
    assert scan.to_lazy().filter(pl.col("queue_offset") >= 0).head(10).collect().height == 5


def test_queries_of_libraries_count_nothing_for_the_cursor(store: Store) -> None:
    scan = store.scan("orders", start=Cursor())
    assert scan.to_lazy().head(5).collect().height == 5
    assert scan.to_lazy().filter(pl.col("tags") == "a").collect().height == 100
    assert scan.to_dataset().to_table(columns=["tags"]).num_rows == COUNT
    assert pa.table(scan).num_rows == COUNT
    assert list(pa.table(scan).column_names) == list(scan.columns)
    with pytest.raises(InvalidArgument, match="queries of libraries do not count"):
        _ = scan.cursor
    scan.to_table()
    assert scan.cursor.offsets == {("orders", 0): 102, ("orders", 1): 99, ("orders", 2): 99}


@pytest.mark.parametrize("schema", [None, "id int"])
@pytest.mark.parametrize("way", ["stream", "dataset"])
def test_a_limit_of_duckdb_commits_nothing_however_few_messages_there_are(
    store: Store, way: str, schema: str | None
) -> None:
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed (pip install cometmq[duckdb])")
    scan = store.scan("orders", group="etl", schema=schema)
    source = scan if way == "stream" else scan.to_dataset()
    with duckdb.connect() as database:
        database.register("orders", source)
        assert len(database.sql("select queue_offset from orders limit 10").fetchall()) == 10
        assert database.sql("select count(queue_offset) from orders").fetchall() == [(COUNT,)]
    with pytest.raises(InvalidArgument, match="queries of libraries do not count"):
        scan.commit()
    assert store.progress("etl") == []


def test_a_dataset_has_types_for_every_kernel(store: Store) -> None:
    dataset = store.scan("orders").to_dataset()
    assert isinstance(dataset, ds.Dataset)
    table = dataset.to_table()
    kinds = {table.schema.field(name).type for name in ("topic", "tags", "keys")}
    assert (kinds, table.schema.field("body").type) == ({pa.string()}, pa.binary())
    assert table.filter(pc.equal(table["tags"], "a")).num_rows == 100
    assert table.take([5, 1]).num_rows == 2
    assert table.sort_by([("body", "descending")]).num_rows == COUNT
    assert table.join(table.select(["body", "queue_id"]), ["body"], right_suffix="_r").num_rows == COUNT
    assert table.group_by(["tags", "body"]).aggregate([("queue_offset", "max")]).num_rows == COUNT
    assert pc.binary_length(table["body"]).null_count == 0


def test_select_of_a_scan(store: Store) -> None:
    scan = store.scan("orders")
    assert scan.select(["tags", "queue_id"]).columns == ("queue_id", "tags")
    assert scan.select(None).columns == scan.columns
    assert scan.select(["tags"]).count() == COUNT


def test_terms_that_are_not_understood_narrow_nothing() -> None:
    field = pc.field
    columns = ["queue_offset", "tags"]
    assert terms_of_arrow((field("queue_offset") > 5) & (field("tags") == "x"), columns) == [
        Term("queue_offset", ">", 5),
        Term("tags", "==", "x"),
    ]
    for text in ('a"b', "a\\b", 'x") and (queue_offset == "5'):
        assert terms_of_arrow(field("tags") == text, columns) in ([], [Term("tags", "==", text)])
    assert terms_of_arrow(field("queue_offset") > 5, [*columns, "x > 5) and (y"]) == []
    for other in (~(field("queue_offset") > 5), field("queue_offset") + 1 > 5, field("queue_offset").cast("int8") > 5):
        assert terms_of_arrow(other, columns) == []
    assert terms_of_polars(pl.col("queue_offset") + 1 > 5) == []
    assert terms_of_polars("no expression") == []
    query = Query(columns=(), topics=("t",))
    for term in (
        Term("queue_offset", ">", 5.5),
        Term("queue_offset", ">", True),
        Term("queue_offset", ">", None),
        Term("queue_offset", "in", [1, None]),
        Term("tags", ">", "a"),
        Term("tags", "==", ""),
        Term("tags", "==", "\ufffd"),
        Term("topic", "==", "%LMQ%x"),
        Term("store_timestamp", "<", 253_402_214_400_000),
        Term("keys", "==", "k"),
    ):
        assert narrow(query, [term]) == query, term
    raw = replace(query, raw_bodies=True)
    assert narrow(raw, [Term("tags", "==", "a")]) == raw
    limited = replace(query, limit_rows=5)
    assert narrow(limited, [Term("queue_offset", ">", 5)]) == limited


def test_lazy_frames_fail_as_their_scan_does(store: Store) -> None:
    lazy = store.scan("orders", schema="id text, at struct<x: int>", strict=True).to_lazy()
    with pytest.raises(Exception, match="does not fit the schema"):
        lazy.collect()
    with pytest.raises(cometmq.InvalidArgument, match="never ends"):
        store.scan("orders", follow=True).to_lazy()
    assert isinstance(store.scan("orders").select(None), Scan)
