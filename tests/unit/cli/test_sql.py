"""``cometmq sql``: topics as DuckDB's tables; output; missing topics and columns."""

from __future__ import annotations

import json
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import cometmq
from cometmq import errors
from cometmq._extras import install_command
from cometmq.arrow import Scan
from support.command_line import run, run_json, start
from support.small_store import open_small

duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")

COUNT = 300


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    with open_small(path) as store:
        store.create_topic("orders", queues=2)
        store.append_many(
            "orders",
            [b'{"id": %d, "city": "c%d"}' % (number, number % 3) for number in range(COUNT)],
            tags=["paid" if number % 2 else None for number in range(COUNT)],
            properties=[{"region": f"r{number % 5}"} for number in range(COUNT)],
            queue=[number % 2 for number in range(COUNT)],
        )
        store.append("%RETRY%mailer", b"\xff\x00")
        store.append("Other-Topic", b"x")
    return path


def rows(path: Path, query: str, *options: str) -> Any:
    outcome = run("sql", path, query, "--json", *options)
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)


def test_topics_are_tables(path: Path) -> None:
    found = rows(path, "select tags, count(*) as n, sum(octet_length(body)) as b from orders group by 1 order by 1")
    with cometmq.open(path, mode="r") as store:
        sizes = [(message.tags, len(message.body)) for message in store.read("orders")]
    assert found == [
        {"tags": tag, "n": 150, "b": sum(size for other, size in sizes if other == tag)} for tag in ("paid", None)
    ]
    assert rows(path, 'select body, topic from "%RETRY%mailer"') == [{"body": "\ufffd\x00", "topic": "%RETRY%mailer"}]
    assert rows(path, 'select count(*) as n from "other-topic"') == [{"n": 1}]
    assert rows(path, "select topic, count(*) as n from messages group by topic order by n desc, topic") == [
        {"topic": "orders", "n": COUNT},
        {"topic": "%RETRY%mailer", "n": 1},
        {"topic": "Other-Topic", "n": 1},
    ]


def test_joins_and_subqueries(path: Path) -> None:
    query = """
        with cities as (select decode(body) ->> 'city' as city, queue_offset from orders where queue_id = 0)
        select city, count(*) as n from cities join orders using (queue_offset) where orders.queue_id = 1
        group by city order by city
    """
    assert rows(path, query) == [{"city": f"c{number}", "n": 50} for number in range(3)]
    assert rows(path, "select (select count(*) from messages) - count(*) as n from orders") == [{"n": 2}]


def test_columns_and_contents_of_tables(path: Path) -> None:
    query = 'select "prop:region" as r, count(*) as n from orders group by r order by r'
    assert rows(path, query, "--columns", "prop:region") == [{"r": f"r{number}", "n": 60} for number in range(5)]
    assert rows(path, "select count(*) as n from orders", "--tags", "paid") == [{"n": 150}]
    assert rows(path, "select count(*) as n from orders", "--from-time", "1d") == [{"n": COUNT}]
    assert rows(path, "select count(*) as n from orders", "--to-time", "1d") == [{"n": 0}]
    described = rows(path, "describe orders")
    assert [row["column_name"] for row in described][:3] == ["topic", "queue_id", "queue_offset"]


def test_only_the_columns_that_are_needed_are_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []
    to_reader = Scan.to_reader

    def noting(scan: Scan) -> Any:
        asked.append(scan.columns)
        return to_reader(scan)

    monkeypatch.setattr(Scan, "to_reader", noting)
    assert rows(path, "select max(queue_offset) as m from orders where tags = 'paid'") == [{"m": 149}]
    assert sorted(asked[0]) == ["queue_offset", "tags"]
    assert rows(path, "select count(*) as n from orders") == [{"n": COUNT}]
    assert "body" not in asked[1]


def test_only_topics_that_are_named_become_tables(path: Path) -> None:
    assert rows(path, "show tables") == []
    assert {row["name"] for row in rows(path, "select 1 as one from orders limit 1; show tables")} >= {"orders"}


def test_a_table_for_people(path: Path) -> None:
    query = "select queue_offset as o, tags, body from orders where queue_id = 1 order by 1"
    outcome = run("sql", path, query, "--rows", "2")
    assert outcome.lines == [
        "o  tags  body",
        "-  ----  -----------------------",
        '0  paid  {"id": 1, "city": "c1"}',
        '1  paid  {"id": 3, "city": "c0"}',
        "(150 rows, 2 shown; use --rows, --csv, --json or -o for more)",
    ]
    assert run("sql", path, "select null as a, 'x\ty' as b").lines[2] == "NULL  x\\ty"
    assert run("sql", path, "select 1 as a where false").lines == ["a", "-", "(0 rows)"]


def test_csv_and_files(path: Path, tmp_path: Path) -> None:
    outcome = run("sql", path, "select queue_id, count(*) as n from orders group by 1 order by 1", "--csv")
    assert outcome.out == '"queue_id","n"\n0,150\n1,150\n'
    out = tmp_path / "cities.parquet"
    query = "select decode(body) ->> 'city' as city, count(*) as n from orders group by city order by city"
    assert run("sql", path, query, "-o", out).out == f"wrote 3 rows to {out}\n"
    assert pq.read_table(out).to_pylist() == [{"city": f"c{number}", "n": 100} for number in range(3)]
    outcome = run("sql", path, query, "-o", out)
    assert outcome.code == 2
    assert "--overwrite" in outcome.err
    assert run("sql", path, query, "-o", out, "--overwrite").code == 0
    assert run("sql", path, "select body from orders", "-o", tmp_path / "x.jsonl").code == 0
    assert json.loads((tmp_path / "x.jsonl").read_text("utf-8").splitlines()[0])["body"].startswith('{"id": 0')


def test_the_query_from_standard_input(path: Path) -> None:
    assert run("sql", path, "-", "--csv", input="select 17 as n").out == '"n"\n17\n'


def test_a_topic_called_messages(path: Path) -> None:
    with open_small(path) as store:
        store.append("messages", b"only one")
    outcome = run("sql", path, "select count(*) as n from messages", "--csv")
    assert outcome.out == '"n"\n1\n'
    assert "not all of them" in outcome.err


@pytest.mark.parametrize(
    ("query", "options", "code", "text"),
    [
        ("select * from ordres", [], 3, "Did you mean the topic 'orders'?"),
        ("select * from nothing_like_it", [], 3, "Tables are messages and the topics: "),
        ("select * from store", [], 3, "Table with name store"),
        ("selec 1", [], 3, "syntax error"),
        ("select nothing from orders", [], 3, "nothing"),
        ("select error('boom') from orders", [], 3, "boom"),
        ("select 1", ["--csv", "--json"], 2, "exclude"),
        ("select 1", ["-o", "x.txt"], 2, ".parquet"),
        ("select 1", ["--columns", "bdoy"], 3, "did you mean 'body'"),
    ],
)
def test_wrong_questions(path: Path, query: str, options: list[str], code: int, text: str) -> None:
    outcome = run("sql", path, query, *options)
    assert outcome.code == code
    assert text in " ".join(outcome.err.split())


def test_names_that_duckdb_cannot_tell_apart(path: Path) -> None:
    with open_small(path) as store:
        store.append("ORDERS", b"x")
    assert rows(path, "select count(*) as n from ORDERS") == [{"n": 1}]
    assert rows(path, "select count(*) as n from orders") == [{"n": COUNT}]
    assert "Orders" in run("sql", path, "select * from Orders").err
    assert "apart" in run("sql", path, "select * from orders, ORDERS").err


def test_columns_that_duckdb_cannot_tell_apart_are_refused(path: Path) -> None:
    """DuckDB found the values of prop:region under the name of prop:Region."""
    outcome = run("sql", path, 'select "prop:Region" from orders', "--columns", "prop:region,prop:Region")
    assert outcome.code == 3
    assert "apart" in outcome.err


def test_columns_of_one_name_are_numbered(path: Path, tmp_path: Path) -> None:
    query = "select 1 as a, 2 as a, 3 as a_1, 4 as a"
    expected = {"a": 1, "a_2": 2, "a_1": 3, "a_3": 4}
    assert rows(path, query) == [expected]
    assert run("sql", path, query).lines[2].split() == ["1", "2", "3", "4"]
    assert run("sql", path, query, "--csv").out == '"a","a_2","a_1","a_3"\n1,2,3,4\n'
    assert run("sql", path, query, "-o", tmp_path / "a.parquet").code == 0
    assert pq.read_table(tmp_path / "a.parquet").to_pylist() == [expected]
    assert run("sql", path, query, "-o", tmp_path / "a.jsonl").code == 0
    assert json.loads((tmp_path / "a.jsonl").read_text("utf-8")) == expected


VALUES: tuple[tuple[str, object, str], ...] = (
    ("date '2026-11-27'", "2026-11-27", "2026-11-27"),
    ("timestamp '2026-11-27 10:00:00'", "2026-11-27T10:00:00.000000", "2026-11-27T10:00:00.000000"),
    ("timestamptz '2026-11-27 10:00:00+02'", "2026-11-27T08:00:00.000000Z", "2026-11-27T08:00:00.000000Z"),
    ("timestamp 'infinity'", f"<value out of range: {(1 << 63) - 1}>", f"<value out of range: {(1 << 63) - 1}>"),
    ("time '12:00:00.5'", "12:00:00.500000", "12:00:00.500000"),
    ("interval '1 day'", {"months": 0, "days": 1, "nanoseconds": 0}, '"{""months"":0,""days"":1,""nanoseconds"":0}"'),
    ("union_value(a := 1)", 1, '"1"'),
    ("['x'::blob, null]", ["x", None], '"[""x"",null]"'),
    ("[timestamptz '2026-11-27 10:00:00+00']", ["2026-11-27T10:00:00Z"], '"[""2026-11-27T10:00:00Z""]"'),
    ("map {1: date '2026-11-27'}", {"1": "2026-11-27"}, '"{""1"":""2026-11-27""}"'),
    ("'b'::enum('a', 'b')", "b", '"b"'),
)


@pytest.mark.parametrize(("expression", "value", "text"), VALUES)
def test_values_of_every_type_have_a_form_in_text(path: Path, expression: str, value: object, text: str) -> None:
    query = f"select {expression} as v"
    assert rows(path, query) == [{"v": value}]
    assert run("sql", path, query, "--csv").lines[1].strip('"') == text.strip('"')
    assert run("sql", path, query).code == 0


def test_a_type_that_a_file_format_lacks_is_named(path: Path, tmp_path: Path) -> None:
    outcome = run("sql", path, "select interval '1 day' as i", "-o", tmp_path / "i.parquet")
    assert outcome.code == 3
    assert "parquet has no form for a column" in outcome.err
    assert not list(tmp_path.glob("i.parquet*"))


def test_damage_is_reported_as_ours(path: Path) -> None:
    with cometmq.open(path, mode="r") as store:
        place = store.get("orders", 0, 100)
    log = next((path / "commitlog").iterdir())
    with log.open("r+b") as file:
        file.seek(place.physical_offset + 4)
        file.write(b"\xff" * 4)
    outcome = run("sql", path, "select sum(octet_length(body)) from orders")
    assert outcome.code == 3
    assert str(place.physical_offset) in outcome.err
    assert "Error:" not in outcome.err


def test_without_duckdb(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise errors.MissingLibrary(f"this needs {name}: {install_command(name)}")

    monkeypatch.setattr("cometmq.arrow.sql.library", missing)
    outcome = run("sql", path, "select 1")
    assert outcome.code == 3
    assert "pip install 'duckdb>=2.0' pytz" in outcome.err


def test_with_an_old_duckdb(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duckdb, "__version__", "1.4.0")
    outcome = run("sql", path, "select 1")
    assert outcome.code == 3
    assert "DuckDB 2 or newer, not 1.4.0: pip install 'duckdb>=2.0' pytz" in outcome.err


def test_many_topics(tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as store:
        for number in range(100):
            store.append(f"t{number}", b"%d" % number)
    assert run_json("sql", tmp_path / "store", "select count(*) as n from t7, t70", "--json") == [{"n": 1}]
    assert rows(tmp_path / "store", "select count(*) as n from messages") == [{"n": 100}]


def links(folder: Path) -> list[str]:
    """Return the targets of a folder's links; links that vanish meanwhile are left out."""
    found = []
    for path in folder.iterdir():
        with suppress(OSError):
            found.append(str(path.readlink()))
    return found


@pytest.mark.parametrize(
    "query",
    [
        "select count(*) from range(100000000) a, range(1000000) b",
        # A join that stays inside one task for minutes: DuckDB looks for no signal there.
        "select a.range, count(*) from range(1500000) a, range(1500000) b where a.range % 7 = b.range % 11 group by 1",
    ],
)
def test_ctrl_c(path: Path, query: str) -> None:
    process = start("sql", str(path), query)
    files = Path(f"/proc/{process.pid}/fd")
    while not any(target.startswith("socket:") for target in links(files)):  # its watch for Ctrl-C
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=60)
    assert process.returncode == 130, error.decode()
    assert b"Traceback" not in error
    assert not out


# --- Bodies as columns


def test_schemas_make_columns_of_bodies(path: Path) -> None:
    query = "select city, count(*) as n, sum(id) as s from orders group by city order by city"
    wanted = [{"city": f"c{rest}", "n": 100, "s": sum(range(rest, COUNT, 3))} for rest in range(3)]
    for options in (["--infer"], ["--schema", "id bigint, city text"], ["--schema", "orders=id bigint, city text"]):
        assert rows(path, query, *options) == wanted
    columns = [row["column_name"] for row in rows(path, "describe orders", "--infer")]
    assert columns[-2:] == ["id", "city"]
    assert "body" not in columns
    both = rows(path, "select body, id from orders limit 1", "--schema", "id int", "--columns", "body,tags")
    assert both == [{"body": '{"id": 0, "city": "c0"}', "id": 0}]


def test_each_topic_has_its_schema(path: Path) -> None:
    with open_small(path) as store:
        store.append_many("cities", [b'{"city": "c%d", "name": "n%d"}' % (number, number) for number in range(3)])
    query = "select name, count(*) as n from orders join cities using (city) group by name order by name"
    wanted = [{"name": f"n{number}", "n": 100} for number in range(3)]
    assert rows(path, query, "--infer") == wanted
    options = ["--schema", "cities=city text, name text", "--schema", "city text"]
    assert rows(path, query, *options) == wanted


def test_a_bad_body_does_not_end_a_query(path: Path) -> None:
    with open_small(path) as store:
        store.append_many("orders", [b"no JSON", b'{"id": "many"}'], queue=0)
    outcome = run("sql", path, "select count(*) as n, count(id) as ids from orders", "--schema", "id int", "--json")
    assert (outcome.code, json.loads(outcome.out)) == (0, [{"n": COUNT + 2, "ids": COUNT}])
    assert "note: 2 bodies did not fit the schema; values that do not fit are NULL" in outcome.err
    assert "note" not in run("sql", path, "select count(*) from orders", "--schema", "id int").err


def test_fields_and_columns_that_differ_by_capitals(path: Path) -> None:
    """DuckDB takes one for the other."""
    with open_small(path) as store:
        store.append_many("mixed", [b'{"Keys": 1, "TOPIC": "x"}', b'{"Keys": 2, "TOPIC": "y"}'])
        store.append("same", b'{"id": 1, "ID": 2}')
    assert rows(path, 'select "Keys", "TOPIC" from mixed', "--infer") == [
        {"Keys": 1, "TOPIC": "x"},
        {"Keys": 2, "TOPIC": "y"},
    ]
    outcome = run("sql", path, "select id from same", "--infer")
    assert outcome.code == 3
    assert "DuckDB cannot tell the columns 'id' and 'ID' apart: ask for one of them" in outcome.err
    assert rows(path, "select id from same", "--schema", "id int") == [{"id": 1}]


def test_lines_of_csv(path: Path) -> None:
    with open_small(path) as store:
        store.append_many("lines", [b"1,Kiel", b"2,Lima"])
    options = ["--schema", "id int, city text", "--body-format", "csv"]
    assert rows(path, "select city from lines where id = 2", *options) == [{"city": "Lima"}]
    assert rows(path, "select city from lines order by city", *options) == [{"city": "Kiel"}, {"city": "Lima"}]


def test_only_the_fields_of_a_query_are_decoded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []
    to_reader = Scan.to_reader

    def noted(self: Scan) -> Any:
        asked.append(self.columns)
        return to_reader(self)

    monkeypatch.setattr(Scan, "to_reader", noted)
    rows(path, "select sum(id) as s, max(queue_id) as q from orders", "--schema", "id int, city text")
    assert asked == [("queue_id", "id")]


def test_copy_writes_files(path: Path, tmp_path: Path) -> None:
    out = tmp_path / "o.parquet"
    outcome = run("sql", path, f"copy (select id, city from orders order by id) to '{out}'", "--infer")
    assert outcome.code == 0, outcome.err
    assert pq.read_table(out).to_pylist()[:2] == [{"id": 0, "city": "c0"}, {"id": 1, "city": "c1"}]


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        (["--schema", "id"], 3, "'id' is not a name with a type"),
        (["--schema", "ordres=id bigint, total double"], 2, "there is no topic ordres"),
        (["--schema", "orders=id nope"], 3, "there is no type 'nope'"),
        (["--schema", "id int", "--schema", "city text"], 2, "two schemas are for all other topics"),
        (["--schema", "orders=id int", "--schema", "orders=city text"], 2, "two schemas are for orders"),
        (["--schema", "id int", "--infer"], 2, "--schema and --infer exclude each other"),
        (["--infer", "--body-format", "csv"], 2, "CSV lines have no names"),
        (["--body-format", "csv"], 2, "--body-format is about decoded bodies: give --schema"),
        (["--schema", "id int", "--body-format", "xml"], 3, 'body_format is "json" or "csv"'),
    ],
)
def test_wrong_schemas(path: Path, options: list[str], code: int, text: str) -> None:
    outcome = run("sql", path, "select * from orders", *options)
    assert text in " ".join(outcome.err.replace("│", " ").split())
    assert outcome.code == code


def test_a_topic_without_json_cannot_be_inferred(path: Path) -> None:
    outcome = run("sql", path, 'select * from "Other-Topic"', "--infer")
    assert outcome.code == 3
    assert "cannot infer a schema of Other-Topic: none of the 1 bodies of the sample is a JSON object" in outcome.err


def test_errors_of_duckdb_name_the_way_on(path: Path) -> None:
    missing = run("sql", path, "select city from orders")
    assert (missing.code, missing.out) == (3, "")
    assert missing.err.endswith(". --infer makes the fields of JSON bodies columns\n")
    assert "--infer" not in run("sql", path, "select town from orders", "--infer").err
    assert "exist. Did you mean the topic 'orders'?" in run("sql", path, "select 1 from ordes").err
