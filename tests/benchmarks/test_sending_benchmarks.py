"""The short form of the producer's benchmark: what was sent is looked for, and found wanting where it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import cometmq

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "benchmarks" / "run_sending.py"


def test_every_way_is_measured_and_looked_for(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "--json", "--rounds", "1", "--count", "300", "--body-bytes", "20"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"CMQ_BENCH_DIR": str(tmp_path), "CMQ_BENCH_RESULTS": str(tmp_path / "results")},
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [row["way"] for row in rows] == [
        *("send", "send_async", "send_many", "send_messages", "send_oneway", "accumulated"),
        *("aio", "aio_accumulated"),
    ]
    assert all(row["messages/s"] > 0 for row in rows)


def test_changed_messages_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PROGRAM.parent))
    from run_sending import check_topic
    from system.sending_main import body_of

    with cometmq.open(tmp_path) as store:
        store.append_many("t", [body_of(0, 20), body_of(2, 20)])
        with pytest.raises(SystemExit, match="1 of 3 messages are not stored, the first is 1"):
            check_topic(store, "t", count=3, body_bytes=20)
        with pytest.raises(SystemExit, match="was not sent"):
            check_topic(store, "t", count=2, body_bytes=20)
        with pytest.raises(SystemExit, match="was not sent"):
            check_topic(store, "t", count=3, body_bytes=21)
        store.append("t", body_of(2, 20))
        with pytest.raises(SystemExit, match="message 2 is stored twice"):
            check_topic(store, "t", count=3, body_bytes=20)
        store.append_many("u", [body_of(1, 20), body_of(0, 20)])
        check_topic(store, "u", count=2, body_bytes=20)
