"""Checks: rows are read and written once where tasks fail, stages run again and slow tasks have second attempts."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

import cometmq
from cometmq.spark import jars
from support.small_store import open_small
from support.spark import missing
from support.spark_cluster import Logged, spark_cluster

PROGRAM = Path(__file__).parent / "retried_stages.py"
COUNT = 2000
LIMIT_S = 900


@pytest.mark.skipif("CMQ_LONG" not in os.environ, reason="takes minutes: only with CMQ_LONG=1")
@pytest.mark.timeout(1000)
def test_rows_come_once_after_failures_of_tasks_and_stages(path: Path, tmp_path: Path) -> None:
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    with open_small(path) as store:
        store.append_many("t", [b"%d" % number for number in range(COUNT)])
    (tmp_path / "spark").mkdir()
    (tmp_path / "cluster").mkdir()
    environment = {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    with spark_cluster(tmp_path / "cluster") as cluster:
        # A second attempt of a task goes to another host.
        for host in ("127.0.0.2", "127.0.0.3"):
            cluster.add_worker(host, cores=2)
        command = [sys.executable, str(PROGRAM), cluster.url, str(path), str(tmp_path / "spark"), ",".join(jars())]
        program = Logged(command, tmp_path / "program.log", environment)
        try:
            ended = program.wait(LIMIT_S)
        finally:
            program.kill()
        assert ended == 0, program.output()[-4000:]
    results = json.loads((tmp_path / "spark" / "results.json").read_text())
    tasks = [f"{what}-failing-{task}" for what in ("read", "write") for task in range(3)]
    attempts = [f"{what}-slow-{attempt}" for what in ("read", "write") for attempt in ("first", "second")]
    assert sorted(results.pop("marks")) == sorted([*tasks, *attempts, "read-again", "write-again"])
    assert results == {name: list(range(COUNT)) for name in ("read failing", "read slow", "read again")}
    with cometmq.open(path, mode="r") as view:
        for topic in ("written-failing", "written-slow", "written-again"):
            assert sorted(int(bytes(message)) for message in view.read(topic)) == list(range(COUNT)), topic
    staged = path / "cometmq" / "staged"
    assert [entry.name for entry in staged.iterdir() if entry.name != "done"] == []
