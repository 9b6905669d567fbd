"""Checks: on a cluster each row is copied once by the engine in the executors, also where a worker dies meanwhile."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import cometmq
from cometmq.spark import jars
from support.small_store import open_small
from support.spark import missing
from support.spark_cluster import Logged, spark_cluster

ROWS = 8000
PROGRAM = Path(__file__).parent / "copy_on_cluster.py"

pytestmark = [
    pytest.mark.skipif(missing() is not None, reason=missing() or ""),
    pytest.mark.skipif(not jars(), reason="the engine for the JVM is not built: Java 17's javac was not found"),
    pytest.mark.skipif(not os.environ.get("CMQ_LONG"), reason="takes minutes: only with CMQ_LONG=1"),
]


@pytest.mark.parametrize("dies", [False, True])
def test_each_row_is_copied_once(tmp_path: Path, dies: bool) -> None:
    """The worker dies when it or the other one has done a task, and most are still to do."""
    source, target = tmp_path / "source", tmp_path / "target"
    with open_small(source) as store:
        store.create_topic("t", queues=8)
        store.append_many("t", [b"%d" % number for number in range(ROWS)])
    (tmp_path / "cluster").mkdir()
    with spark_cluster(tmp_path / "cluster") as cluster:
        for _ in range(2):
            cluster.add_worker()
        command = [sys.executable, str(PROGRAM), cluster.url, str(source), str(target), str(tmp_path / "local")]
        job = Logged(command, tmp_path / "job.log")
        try:
            if dies:
                job.wait_for(r"\[Stage \d+:[=>]+ +\(([1-9]\d*) \+")  # so many tasks have ended
                cluster.kill_worker(0)
            ended = job.wait(600)
        finally:
            job.kill()
        assert ended == 0, job.output()[-4000:]
    with cometmq.open(target, mode="r") as store:
        assert sorted(int(bytes(message)) for message in store.read("copy")) == list(range(ROWS))
    assert [entry.name for entry in (target / "cometmq" / "staged").iterdir()] == ["done"]
