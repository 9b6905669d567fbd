"""Checks: rows are read and written once where tasks fail, stages run again and slow tasks have second attempts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import cometmq
from cometmq.spark import jars
from support.small_store import open_small
from support.spark import missing

PROGRAM = Path(__file__).parent / "retried_stages.py"
COUNT = 2000
LIMIT_S = 900


@pytest.mark.skipif("CMQ_LONG" not in os.environ, reason="takes minutes: only with CMQ_LONG=1")
@pytest.mark.timeout(1000)
def test_rows_come_once_whatever_happens_to_tasks_and_stages(path: Path, tmp_path: Path) -> None:
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    with open_small(path) as store:
        store.append_many("t", [b"%d" % number for number in range(COUNT)])
    (tmp_path / "spark").mkdir()
    environment = {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    command = [sys.executable, str(PROGRAM), str(path), str(tmp_path / "spark"), ",".join(jars())]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        try:
            out, err = program.communicate(timeout=LIMIT_S)
        finally:
            program.terminate()  # it ends its servers
    assert program.returncode == 0, err
    results = json.loads(out.splitlines()[-1])
    tasks = [f"{what}-failing-{task}" for what in ("read", "write") for task in range(3)]
    attempts = [f"{what}-slow-{attempt}" for what in ("read", "write") for attempt in ("first", "second")]
    assert sorted(results.pop("marks")) == sorted([*tasks, *attempts, "read-again", "write-again"])
    assert results == {name: list(range(COUNT)) for name in ("read failing", "read slow", "read again")}
    with cometmq.open(path, mode="r") as view:
        for topic in ("written-failing", "written-slow", "written-again"):
            assert sorted(int(bytes(message)) for message in view.read(topic)) == list(range(COUNT)), topic
    staged = path / "cometmq" / "staged"
    assert [entry.name for entry in staged.iterdir() if entry.name != "done"] == []
