"""Checks: every program in examples/ runs as its head says and ends with exit code 0, warnings counting as errors."""

from __future__ import annotations

import ast
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import cometmq

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
DEMO = EXAMPLES / "flights_demo.py"
# They make a store in ./data and need no arguments. The demo has tests of its own below.
# Those for Spark, which says much on standard error, are run by tests/spark.
PLAIN = sorted(path.name for path in EXAMPLES.glob("*.py") if path != DEMO and not path.name.startswith("spark_"))

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


@pytest.mark.parametrize("name", ["embed_store.py", "consumer_group.py"])
def test_every_example_says_how_to_start_it(name: str) -> None:
    assert f"python examples/{name}" in (EXAMPLES / name).read_text(encoding="utf-8")


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


def test_demo_reports_what_it_checked(small_csv: Path, tmp_path: Path) -> None:
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


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("flights_demo", DEMO)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "flights_demo", module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


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
