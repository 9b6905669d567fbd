"""``cometmq export``: formats, filters, the summary, bodies as columns."""

from __future__ import annotations

import base64
import csv
import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

from cometmq.arrow.columns import DEFAULT_COLUMNS
from support.command_line import run, run_json
from support.exports import (
    COUNT,
    append_orders_and_others,
    check_refused,
    expected,
)
from support.small_store import open_small


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return append_orders_and_others(tmp_path / "store")


# --- Formats


def test_parquet(path: Path, tmp_path: Path) -> None:
    out = tmp_path / "orders.parquet"
    outcome = run("export", path, "orders", "-o", out)
    assert outcome.code == 0, outcome.err
    assert "exported 500 messages" in outcome.out
    table = pq.read_table(out)
    assert tuple(table.column_names) == DEFAULT_COLUMNS
    assert table.schema.field("body").type == pa.binary()
    assert table.schema.field("topic").type == pa.string()
    assert table.to_pylist() == expected(path)
    assert pq.ParquetFile(out).metadata.row_group(0).column(0).compression == "ZSTD"
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_arrow(path: Path, tmp_path: Path, compression: str) -> None:
    out = tmp_path / "orders.arrow"
    assert run("export", path, "-o", out, "--compression", compression).code == 0
    with pyarrow.ipc.open_file(out) as reader:
        assert reader.read_all().to_pylist() == expected(path, None)


def test_csv(path: Path, tmp_path: Path) -> None:
    out = tmp_path / "all.csv"
    assert run("export", path, "-o", out, "--columns", "topic,body,tags,store_timestamp,properties").code == 0
    with out.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == COUNT + 3
    assert rows[1]["body"] == "order 1, ü"
    assert json.loads(rows[1]["properties"]) == {"TAGS": "paid", "KEYS": "o-1 every", "region": "r1"}
    assert rows[1]["store_timestamp"].endswith("Z")
    assert [row["body"] for row in rows[-3:]] == ["\ufffd\x00", "", 'a "quoted", line\nand another']
    assert rows[-1]["tags"] == ""


def test_json_lines(path: Path, tmp_path: Path) -> None:
    out = tmp_path / "all.jsonl.gz"
    assert run("export", path, "-o", out, "--columns", "topic,queue_offset,body,properties,prop:region").code == 0
    with gzip.open(out, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    assert rows[3] == {
        "topic": "orders",
        "queue_offset": 1,
        "body": "order 3, ü",
        "properties": {"TAGS": "paid", "KEYS": "o-3 every", "region": "r3"},
        "prop:region": "r3",
    }
    assert rows[-3]["body"] == "\ufffd\x00"


@pytest.mark.parametrize("name", ["orders.daily", "2026.nov", "v1.2", "host.example.com", "orders.d"])
def test_any_name_but_a_file_formats_is_a_folder(path: Path, tmp_path: Path, name: str) -> None:
    assert run_json("export", path, "orders", "-o", tmp_path / name, "--json")["complete"]
    assert (tmp_path / name / "part-00000.parquet").exists()


@pytest.mark.parametrize("name", ["o.xlsx", "o.XLSX", "o.json", "o.avro", "o.tsv", "o.gz", "o.txt.gz", "o.zip"])
def test_names_of_other_formats_are_refused(path: Path, tmp_path: Path, name: str) -> None:
    outcome = run("export", path, "orders", "-o", tmp_path / name)
    assert outcome.code == 2
    assert "unsupported suffix" in outcome.err
    assert not (tmp_path / name).exists()


def test_bodies_as_base64(path: Path, tmp_path: Path) -> None:
    for name in ("b.jsonl", "b.csv"):
        assert run("export", path, "others", "-o", tmp_path / name, "--columns", "body", "--body", "base64").code == 0
    rows = [json.loads(line) for line in (tmp_path / "b.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [base64.b64decode(row["body"]) for row in rows][:2] == [b"\xff\x00", b""]
    assert run("export", path, "others", "-o", tmp_path / "b.parquet", "--body", "text").code == 0
    assert pq.read_schema(tmp_path / "b.parquet").field("body").type == pa.string()


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "csv", "jsonl", "csv.zst"])
def test_nothing_to_export(path: Path, tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"none.{suffix}"
    assert run("export", path, "orders", "--tags", "none", "-o", out).code == 0
    assert out.exists()
    if suffix == "parquet":
        assert tuple(pq.read_table(out).column_names) == DEFAULT_COLUMNS
    if suffix == "csv":
        assert out.read_text(encoding="utf-8").startswith('"topic","queue_id"')


def test_a_topic_without_messages(path: Path, tmp_path: Path) -> None:
    with open_small(path) as store:
        store.create_topic("empty")
    assert run_json("export", path, "empty", "-o", tmp_path / "empty.parquet", "--json")["messages"] == 0
    report = run_json("export", path, "empty", "-o", tmp_path / "empty", "--json")
    assert report["complete"]
    assert tuple(pq.read_table(tmp_path / "empty" / "part-00000.parquet").column_names) == DEFAULT_COLUMNS


# --- Filters and summary


def test_filters(path: Path, tmp_path: Path) -> None:
    def count(*options: str) -> int:
        report = run_json("export", path, *options, "-o", tmp_path / "f.parquet", "--overwrite", "--json")
        assert report["complete"]
        rows: int = report["messages"]
        assert rows == pq.read_metadata(tmp_path / "f.parquet").num_rows
        return rows

    assert count() == COUNT + 3
    assert count("orders", "others") == COUNT + 3
    assert count("orders", "--tags", "paid") == COUNT // 2
    assert count("orders", "--tags", "paid || open", "--limit", "7") == 7
    assert count("orders", "--where", "TAGS = 'paid'") == COUNT // 2
    assert count("orders", "--where", "TAGS = 'paid'", "--tags", "open") == 0
    assert count("orders", "--where", "TAGS = 'paid'", "--key", "o-17", "--key", "o-18") == 1
    assert count("orders", "--key", "o-17", "--key", "o-18") == 2
    assert count("orders", "--queue", "0", "--queue", "1") == 334
    assert count("orders", "--start", "3", "--end", "5") == 6
    assert count("orders", "--from-time", "1d") == COUNT
    assert count("orders", "--to-time", "1d") == 0
    assert count("orders", "--start", "2100-01-01") == 0


def test_summary(path: Path, tmp_path: Path) -> None:
    report = run_json("export", path, "orders", "-o", tmp_path / "orders.parquet", "--json")
    size = (tmp_path / "orders.parquet").stat().st_size
    assert report.pop("elapsed_s") >= 0
    assert report == {
        "output": str(tmp_path / "orders.parquet"),
        "format": "parquet",
        "compression": "zstd",
        "complete": True,
        "resumed": False,
        "was_complete": False,
        "messages": COUNT,
        "added": COUNT,
        "bytes": size,
        "parts": [{"name": "orders.parquet", "rows": COUNT, "bytes": size}],
        "skipped": 0,
        "expired": 0,
        "clamped_times": 0,
        "bad_bodies": 0,
    }


def test_times_outside_the_calendar_are_reported(tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as store:
        store.append_many("t", [b"a", b"b"], born_timestamps_ms=[1 << 62, 5])
    outcome = run("export", tmp_path / "store", "t", "-o", tmp_path / "t.csv", "--columns", "born_timestamp")
    assert outcome.code == 0
    assert "warning: 1 time outside 0001-01-02 to 9999-12-30 became the nearest inside" in outcome.err
    assert (tmp_path / "t.csv").read_text().splitlines()[1] == '"9999-12-30T23:59:59.999Z"'


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["nowhere", "-o", "x.csv"], 3, "no topic 'nowhere'"),
        (["-o", "x.csv", "--compression", "lz4"], 3, "none, gzip, zstd"),
        (["-o", "x.csv", "--body", "binary"], 3, "text or base64"),
        (["-o", "x.csv", "--columns", "bdoy"], 3, "did you mean 'body'"),
        (["-o", "x.csv", "--start", "5"], 3, "one topic"),
        (["-o", "x.csv", "--start", "10m", "--from-time", "10m"], 2, "give one"),
        (["-o", "x", "--part-size", "much"], 2, "256M"),
        (["-o", "new", "--resume"], 3, "leave --resume out"),
        ([], 2, "--output"),
    ],
)
def test_wrong_options(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    check_refused(path, arguments, code, text)


def test_a_file_is_not_replaced_unless_asked(path: Path, tmp_path: Path) -> None:
    out = tmp_path / "orders.csv"
    out.write_text("mine", encoding="utf-8")
    outcome = run("export", path, "orders", "-o", out)
    assert outcome.code == 3
    assert "--overwrite" in outcome.err
    assert out.read_text(encoding="utf-8") == "mine"
    assert run("export", path, "orders", "-o", out, "--overwrite").code == 0
    assert len(out.read_text(encoding="utf-8").splitlines()) == COUNT + 1


# --- Bodies as columns


def test_bodies_as_columns(tmp_path: Path) -> None:
    path, out = tmp_path / "store", tmp_path / "o.parquet"
    with open_small(path) as store:
        store.append_many("t", [b'{"id": 1, "to": {"city": "Kiel"}}', b"no JSON", b'{"id": "x"}', b'{"id": 2}'])
    options = ["--columns", "queue_offset", "--schema", "id bigint, to struct<city: string>"]
    outcome = run("export", path, "t", "-o", out, *options)
    assert outcome.code == 0
    assert "warning: 2 bodies of this run did not fit the schema; values that do not fit are null" in outcome.err
    assert pq.read_table(out).to_pylist() == [
        {"queue_offset": 0, "id": 1, "to": {"city": "Kiel"}},
        {"queue_offset": 1, "id": None, "to": None},
        {"queue_offset": 2, "id": None, "to": None},
        {"queue_offset": 3, "id": 2, "to": None},
    ]
    assert run("export", path, "t", "-o", tmp_path / "o.jsonl", *options).code == 0
    lines = (tmp_path / "o.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(lines[0]) == {"queue_offset": 0, "id": 1, "to": {"city": "Kiel"}}
    assert run("export", path, "t", "-o", tmp_path / "o.csv", "--infer", "--columns", "queue_offset").code == 0
    assert (tmp_path / "o.csv").read_text(encoding="utf-8").splitlines()[:2] == [
        '"queue_offset","id","to"',
        '0,"1","{""city"":""Kiel""}"',
    ]
