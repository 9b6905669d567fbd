"""Checks: every program in examples/ runs as its head says and ends with exit code 0, warnings counting as errors."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import sqlite3
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import cometmq
import cometmq.admin

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
DEMO = EXAMPLES / "flights_demo.py"
# They make a store in ./data and need no arguments. The demo and what belongs to it have tests of their own below.
# Those for Spark, which says much on standard error, are run by tests/spark.
OF_THE_DEMO = {"flights_demo.py", "flights_client.py", "popped_flights.py", "served_flights.py"}
PLAIN = sorted(
    path.name for path in EXAMPLES.glob("*.py") if path.name not in OF_THE_DEMO and not path.name.startswith("spark_")
)

CARRIERS = ["UA", "AA", "DL", "B6"]
COLUMNS = (
    "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,flight,tailnum,"
    "origin,dest,air_time,distance,hour,minute,time_hour"
)


def run(program: Path, *arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(program), *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=90)


def missing_libraries(program: Path) -> list[str]:
    """The libraries that a program imports at its top and that are not installed."""
    imported = [
        name.partition(".")[0]
        for node in ast.parse(program.read_text(encoding="utf-8")).body
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    ]
    return sorted({name for name in imported if importlib.util.find_spec(name) is None})


@pytest.mark.parametrize("name", PLAIN)
def test_example_runs(name: str, tmp_path: Path) -> None:
    missing = missing_libraries(EXAMPLES / name)
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (pip install {' '.join(missing)})")
    ended = run(EXAMPLES / name, cwd=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout
    assert not ended.stderr


@pytest.mark.parametrize("name", ["embed_store.py", "consumer_group.py", "popped_orders.py"])
def test_every_example_says_how_to_start_it(name: str) -> None:
    assert f"python examples/{name}" in (EXAMPLES / name).read_text(encoding="utf-8")


# --- Since last time, with a crash at each of its steps

DYING = """
import os, sqlite3, sys
import cometmq, cometmq.arrow
sys.path.insert(0, sys.argv[1])
import since_last_time as example

way, point = sys.argv[2], sys.argv[3]

class Sink(sqlite3.Connection):
    def __exit__(self, *error):
        if point == "before the sink's commit":
            os._exit(9)
        super().__exit__(*error)
        if point == "behind the sink's commit":
            os._exit(9)

def commit(scan, commit=cometmq.arrow.Scan.commit):
    commit(scan)
    if point == "behind the group's commit":
        os._exit(9)

cometmq.arrow.Scan.commit = commit
sink = sqlite3.connect("sink.sqlite", factory=Sink)
example.prepare(sink)
with cometmq.open("store", flush="sync") as store:
    example.append(store, 100 * int(sys.argv[4]), 100)
    getattr(example, way)(store, sink)
"""


@pytest.mark.parametrize("way", ["copy_with_cursor", "copy_with_group"])
def test_each_message_arrives_once_after_any_interruption(way: str, tmp_path: Path) -> None:
    points = ["before the sink's commit", "behind the sink's commit", "behind the group's commit", "never"]
    if way == "copy_with_cursor":
        points.remove("behind the group's commit")
    for number, point in enumerate(points):
        command = [sys.executable, "-W", "error", "-c", DYING, str(EXAMPLES), way, point, str(number)]
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=90)
        assert ended.returncode == (0 if point == "never" else 9), ended.stderr
    with closing(sqlite3.connect(tmp_path / "sink.sqlite")) as sink:
        assert sink.execute("select id from orders order by id").fetchall() == [(n,) for n in range(100 * len(points))]


# --- The demo, with a small CSV of the same columns -------------------------------------------------------------------


def flights() -> Iterator[str]:
    """Three months of ten days of 24 flights; some were cancelled and have neither tail number nor air time."""
    for month in (6, 7, 8):
        for day in range(1, 11):
            for hour in range(24):
                number = (month * 31 + day) * 24 + hour
                cancelled = number % 11 == 0
                tail = "NA" if cancelled else f"N{number % 7:03d}QQ"
                air_time = "NA" if cancelled else str(50 + number % 300)
                carrier = CARRIERS[number % 13 % len(CARRIERS)]
                yield (
                    f"2013,{month},{day},517,515,2,830,819,11,{carrier},{number},{tail},EWR,IAH,{air_time},"
                    f"{100 + number % 2000},{hour},15,2013-{month:02d}-{day:02d}T{hour:02d}:00:00Z"
                )


@pytest.fixture
def small_csv(tmp_path: Path) -> Path:
    path = tmp_path / "flights.csv"
    path.write_text("\n".join([COLUMNS, *flights(), ""]), encoding="ascii")
    return path


def test_demo_reports_its_checks(small_csv: Path, tmp_path: Path) -> None:
    ended = run(DEMO, "--csv", small_csv, "--store", tmp_path / "kept", "--json", cwd=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    result: dict[str, Any] = json.loads(ended.stdout)
    lines = [line.split(",") for line in flights()]
    assert result["flights"] == len(lines)
    assert sum(carrier["miles"] for carrier in result["carriers"].values()) == sum(int(line[15]) for line in lines)
    assert result["checks"] > 20
    with cometmq.open(tmp_path / "kept", mode="r") as store:
        assert store.topic("flights").messages == len(lines)
        assert {progress.lag for progress in store.progress("aggregator")} == {0}


def test_demo_prints_a_table(small_csv: Path, tmp_path: Path) -> None:
    ended = run(DEMO, "--csv", small_csv, "--flush", "async", cwd=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "All equal" in ended.stdout
    assert max(map(len, ended.stdout.splitlines())) <= 80


def test_demo_refuses_a_folder_that_is_not_empty(small_csv: Path, tmp_path: Path) -> None:
    ended = run(DEMO, "--csv", small_csv, "--store", tmp_path, cwd=tmp_path)
    assert ended.returncode == 2
    assert "is not empty" in ended.stderr


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import a program of the demo, with those that it imports, for one test."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    for path in EXAMPLES.glob("*.py"):
        monkeypatch.delitem(sys.modules, path.stem, raising=False)
    return importlib.import_module(name)


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return load("flights_demo", monkeypatch)


def test_demo_fails_where_the_store_differs(
    demo: ModuleType, small_csv: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A flight too many behind the demo's back is found."""
    write_and_follow = demo.write_and_follow

    def write_one_more(path: Path, *arguments: Any) -> Any:
        month_begins = write_and_follow(path, *arguments)
        with cometmq.open(path) as store:
            store.append("flights", b"2013,9,1", tags="UA", queue=0)
        return month_begins

    monkeypatch.setattr(demo, "write_and_follow", write_one_more)
    assert demo.main(["--csv", str(small_csv)]) == 1
    assert "the store says 721, the CSV says 720" in " ".join(capsys.readouterr().err.split())


# --- Its second half, without Spark -----------------------------------------------------------------------------------


def test_second_half_reports_its_checks(small_csv: Path, tmp_path: Path) -> None:
    ended = run(EXAMPLES / "served_flights.py", "--csv", small_csv, "--without-spark", "--json", cwd=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stderr == ""
    result: dict[str, Any] = json.loads(ended.stdout)
    assert result["checks"] == 21
    messages = {step["name"]: step["messages"] for step in result["steps"]}
    assert 1 <= messages.pop("  taken by the one that hangs") <= 32
    assert messages == {
        "servers start": 0,
        "a group's members start": 0,
        "published by the producer": 720,
        "consumed while published": 720,
        "  failed at first, retried": sum(zlib.crc32(line.encode()) % 100 == 0 for line in flights()),
        "in each aircraft's order": 720,
        "popped by eight workers": 720,
        "counted in the live log": 720,
    }


def test_second_half_finds_differences(
    small_csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A member that hides a flight, and Ctrl-C in the middle: both end it, with its servers."""
    client, served = load("flights_client", monkeypatch), load("served_flights", monkeypatch)
    addresses: list[str] = []

    def hidden(name_server: str, flights: list[Any], report: Any) -> None:
        addresses.append(name_server)
        seen = client.InOrder()
        listener = seen.listener("one")
        lines = [flight.line for flight in flights[1:]]
        listener([_Message(line) for line in lines])
        report.equal("flights", len(seen.seen), len(flights))

    monkeypatch.setattr(served, "by_the_client", hidden)
    assert served.main(["--csv", str(small_csv), "--without-spark"]) == 1
    assert "wrong: flights: found 719, the CSV says 720" in capsys.readouterr().err

    def interrupted(name_server: str, flights: list[Any], report: Any) -> None:
        addresses.append(name_server)
        raise KeyboardInterrupt

    monkeypatch.setattr(served, "by_the_client", interrupted)
    assert served.main(["--csv", str(small_csv), "--without-spark"]) == 130
    assert "stopped" in capsys.readouterr().err
    assert len(addresses) == 2
    for address in addresses:
        with pytest.raises(cometmq.Error), cometmq.admin.connect(namesrv=address) as admin:
            admin.cluster.brokers()


class _Message:
    """The fields that a listener looks at."""

    def __init__(self, body: bytes) -> None:
        self.body_bytes = body
        self.keys = (body.split(b",")[11].decode(),)
