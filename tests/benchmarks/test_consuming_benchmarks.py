"""The short form of the consumer's benchmark: what came is looked at, and found wanting where it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "benchmarks" / "run_consuming.py"


def test_every_way_is_measured(tmp_path: Path) -> None:
    options = ["--json", "--rounds", "1", "--count", "300", "--latency-count", "20", "--body-bytes", "20"]
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *options],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"CMQ_BENCH_DIR": str(tmp_path), "CMQ_BENCH_RESULTS": str(tmp_path / "results")},
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [row["way"] for row in rows] == ["push", "push_batch", "orderly", "poll", "aio", "latency"]
    assert all(row["messages/s"] > 0 for row in rows[:-1])
    assert 0 < rows[-1]["p50 us"] <= rows[-1]["p99 us"] <= rows[-1]["p99.9 us"]


def test_changed_messages_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PROGRAM.parent))
    from system.consuming_main import check_bodies
    from system.sending_main import body_of

    bodies = [body_of(number, 20) for number in (2, 0, 1)]
    check_bodies(bodies, 3, 20)
    with pytest.raises(SystemExit, match="1 of 4 messages did not come, the first is 3"):
        check_bodies(bodies, 4, 20)
    with pytest.raises(SystemExit, match="message 2 came twice"):
        check_bodies([*bodies, bodies[0]], 3, 20)
    with pytest.raises(SystemExit, match="was not sent"):
        check_bodies(bodies, 3, 21)
    with pytest.raises(SystemExit, match="was not sent"):
        check_bodies(bodies, 2, 20)
