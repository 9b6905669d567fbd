"""The short form of the broker's benchmark: its results are checked, its figures mean nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import draw_plots
import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("flush", "only", "scenarios"),
    [("async", [], 17), ("sync", ["1 connection, 1 in flight", "consume 128", "produce"], 3)],
)
def test_scenarios_are_measured(tmp_path: Path, flush: str, only: list[str], scenarios: int) -> None:
    done = subprocess.run(
        [
            sys.executable,
            str(ROOT / "benchmarks" / "run_broker.py"),
            "--quick",
            "--without-java",
            "--json",
            "--flush",
            flush,
            *(["--only", *only] if only else []),
        ],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"CMQ_BENCH_DIR": str(tmp_path), "CMQ_BENCH_RESULTS": str(tmp_path / "results")},
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    names = [row["name"] for row in rows]
    assert len(names) == len(set(names)) == scenarios
    assert all(value >= 0 for row in rows for value in row["ours"].values())
    sends = [row["ours"] for row in rows if ": send" in row["name"] and "busy" not in row["name"]]
    assert all("pages ahead, CPU us/message" in ours for ours in sends)
    (saved,) = (tmp_path / "results").glob("broker-*-quick.json")
    figures = {figure["name"]: figure["value"] for figure in json.loads(saved.read_text())["figures"]}
    expected = {f"broker/{row['name']}/{name}/ours": value for row in rows for name, value in row["ours"].items()}
    assert figures == expected
    pictures = draw_plots.draw([saved])
    assert set(pictures) == ({"broker.svg", "latency.svg"} if flush == "sync" else {"latency.svg"})
    assert all("CometMQ" in picture for picture in pictures.values())
