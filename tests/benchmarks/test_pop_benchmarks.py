"""The short form of POP's benchmark on our broker: its results are checked, its figures mean nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import draw_plots
import pytest

ROOT = Path(__file__).resolve().parents[2]
CLIENTS = ("cometmq.client, our broker", "cometmq.aio, our broker")
ROWS = ("1 million", "64 consumers, 8 queues", "1 consumers, 1 queues", "stored: ", "receive, one ack")


def run_quick(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "run_pop.py"), "--quick", "--without-java", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"CMQ_BENCH_DIR": str(directory), "CMQ_BENCH_RESULTS": str(directory / "results")},
    )


@pytest.mark.timeout(300)
def test_popped_messages_are_measured(tmp_path: Path) -> None:
    done = run_quick(tmp_path, "--json", "--systems", *CLIENTS, "--only", *ROWS)
    assert done.returncode == 0, done.stderr[-4000:]
    document = json.loads(done.stdout)
    assert document["quick"]
    assert document["failed"] == {}
    rows: dict[str, dict[str, float]] = {}
    for figure in document["figures"]:
        if figure["name"].startswith("pop/"):
            _, row, number = figure["name"].removesuffix("/ours").split("/", 2)
            rows.setdefault(row, {})[number] = figure["value"]
    assert len(rows) == 7
    # So little memory may be less than before.
    assert all(value >= 0 for row in rows.values() for name, value in row.items() if not name.startswith("bytes/"))
    assert rows["1 million popped by 32, not acknowledged"]["revived messages/s"] > 0
    assert rows["pop and ack, 64 consumers, 8 queues, an ack each"]["messages/s"] > 0
    names = [figure["name"] for figure in document["figures"] if figure["name"].startswith("client/")]
    assert names == [f"client/receive, one ack/128B/{client}" for client in CLIENTS]
    assert list(tmp_path.glob("pop-*")) == []
    (saved,) = (tmp_path / "results").glob("pop-*-quick.json")
    assert "pop.svg" in draw_plots.draw([saved])


def test_a_name_that_nothing_has(tmp_path: Path) -> None:
    done = run_quick(tmp_path, "--only", "no such row")
    assert done.returncode == 1
    assert "nothing was measured" in done.stderr
