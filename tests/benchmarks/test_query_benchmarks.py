"""Checks: the query benchmarks work in their short form, and their answers agree whatever they are read from."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cometmq.spark import jars
from support.spark import missing

ROOT = Path(__file__).resolve().parents[2]
MISSING = [name for name in ("duckdb", "polars") if importlib.util.find_spec(name) is None]

needs_engines = pytest.mark.skipif(
    bool(MISSING), reason=f"not installed: {', '.join(MISSING)} (pip install cometmq[polars,duckdb])"
)


def run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "run_query.py"), "--quick", *arguments],
        cwd=directory,
        env=os.environ
        | {"CMQ_BENCH_DIR": str(directory), "CMQ_BENCH_RESULTS": str(directory / "results"), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )


@needs_engines
def test_engines_in_this_process(tmp_path: Path) -> None:
    done = run(tmp_path, "--only", "local/100B", "--json")
    assert done.returncode == 0, done.stderr[-4000:]
    document = json.loads(done.stdout)
    assert document["quick"]
    figures: dict[str, dict[str, Any]] = {figure["name"]: figure for figure in document["figures"]}
    for question in ("hash every byte", "sum of lengths", "tag, 1 %", "one key", "time range, 1 %", "count"):
        for engine in ("duckdb", "polars"):
            ours = figures[f"query/100B/{question}/{engine}/cometmq"]
            none = figures[f"query/100B/{question}/{engine}/parquet none"]
            assert ours["ratio"] == pytest.approx(none["value"] / ours["value"])
            assert f"query/100B/{question}/{engine}/parquet zstd" in figures
    assert figures["scan/100B/body views and five columns"]["unit"] == "msg/s"
    assert all(figure["min"] <= figure["value"] <= figure["max"] for figure in figures.values())
    assert list(tmp_path.glob("cmq-bench-*")) == []


@needs_engines
def test_the_table(tmp_path: Path) -> None:
    done = run(tmp_path, "--only", "local/1024B=one key")
    assert done.returncode == 0, done.stderr[-4000:]
    assert "1024B/one key/duckdb" in done.stdout
    # The title is wrapped to the table's width, which hangs on the figures.
    assert "these figures mean nothing" in " ".join(done.stdout.split())
    assert "1024B/body views and five columns" in done.stdout
    assert "hash every byte" not in done.stdout


def skip_without_spark() -> None:
    reason = missing()
    if reason is not None:
        pytest.skip(reason)


@pytest.mark.timeout(400)
def test_spark(tmp_path: Path) -> None:
    skip_without_spark()
    done = run(tmp_path, "--only", "spark/100B")
    assert done.returncode == 0, done.stderr[-4000:]
    (saved,) = (tmp_path / "results").glob("query-*.json")
    document = json.loads(saved.read_text(encoding="utf-8"))
    figures: dict[str, dict[str, Any]] = {figure["name"]: figure for figure in document["figures"]}
    filtered = ("tag, 1 %", "one key", "offset range, 1 %", "time range, 1 %")
    for question in ("five columns", "hash every byte", "sum of lengths", "count", *filtered):
        for source in ("cometmq", "parquet zstd"):
            one = figures[f"query/100B/{question}/spark/{source}"]
            none = figures[f"query/100B/{question}/spark/parquet none"]
            assert one["ratio"] == pytest.approx(none["value"] / one["value"])
    for name in (*filtered, "rows by Arrow", "micro-batch", "write", "wire, 32 a pull", "wire, 4096 a pull"):
        assert figures[f"spark/100B/{name}"]["ratio"] > 0
    assert figures["spark/100B/catch-up"]["unit"] == "msg/s"
    if jars():
        by_jvm = ("tag, 1 % by the JVM", "micro-batch by the JVM", "write by the JVM", "planned: count")
        assert all(figures[f"spark/100B/{name}"]["ratio"] > 0 for name in by_jvm)
        assert figures["spark/100B/catch-up by the JVM"]["unit"] == "msg/s"
    assert "Spark: rates, and milliseconds" in done.stdout
    assert "100B/write" in done.stdout
    assert "the scan alone" not in done.stdout
    assert list(tmp_path.glob("cmq-bench-*")) == []


@pytest.mark.timeout(800)
@pytest.mark.skipif(not os.environ.get("CMQ_LONG"), reason="takes minutes: only with CMQ_LONG=1")
def test_the_goals_and_kafka(tmp_path: Path) -> None:
    skip_without_spark()
    done = run(tmp_path, "--goals", "--only", "100B")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    if "Kafka's part is left out" in done.stdout:
        pytest.skip(done.stdout)
    (saved,) = (tmp_path / "results").glob("query-*.json")
    figures = {figure["name"]: figure for figure in json.loads(saved.read_text(encoding="utf-8"))["figures"]}
    assert not any(name.endswith(("/cometmq", "parquet zstd")) for name in figures)
    for name in ("hash every byte", "noop sink", "catch-up"):
        assert figures[f"spark/100B/against Kafka: {name}"]["ratio"] > 0
