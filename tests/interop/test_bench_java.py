"""The load generators against real brokers: their checks hold there, too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cometmq.loadtest import LoadOptions, find_target, run_load
from cometmq.remoting.command import HeaderFormat
from interop.processes import PEER_VERSION, PROJECT
from interop.sites import Peer

pytestmark = pytest.mark.java(full=True)

RUNS = [
    LoadOptions(producers=4, consumers=2, depth=8, count=4000),
    LoadOptions(producers=2, consumers=1, batch=16, count=4000, consume_after=True, headers=HeaderFormat.ROCKETMQ),
    LoadOptions(producers=1, consumers=1, rate_per_s=500, count=250, body_bytes=5000),
    LoadOptions(producers=2, consumers=1, oneway=True, rate_per_s=2000, count=1000),
]


@pytest.mark.parametrize("version", [PEER_VERSION, "4.9.7"])
def test_runs_are_verified(version: str, peer: Peer, tmp_path: Path) -> None:
    with peer.broker(tmp_path / "store", version=version) as broker:
        made = find_target(broker=broker.address, topic="Bench", queues=4, create=True)
        assert len(made.queues) == 4
        for number, options in enumerate(RUNS):
            target = find_target(broker=broker.address, topic=f"Bench{number}", queues=3, create=True)
            report = run_load(target, options, broker_pid=broker.pid)
            assert report.verified, (number, report.problem)
            assert report.consumed == report.accepted == options.count
        peer.await_broker(broker)
        assert find_target(namesrv=broker.namesrv, topic="Bench") == made
        assert find_target(broker=broker.address, topic="Bench") == made


@pytest.mark.timeout(400)
def test_the_benchmark_of_clients_drives_the_java_client_at_either_broker(tmp_path: Path) -> None:
    """Its program sends and consumes what our own workers read back and have put there."""
    program = PROJECT / "benchmarks" / "run_client.py"
    done = subprocess.run(
        [sys.executable, str(program), "--quick", "--json", "--systems", "Java client", "--only", "/128B", "latency"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"CMQ_BENCH_DIR": str(tmp_path), "CMQ_BENCH_RESULTS": str(tmp_path / "results")},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    document = json.loads(done.stdout)
    assert document["failed"] == {}
    sites = ("our broker", "Java broker")
    assert {figure["system"] for figure in document["figures"]} == {f"Java client, {site}" for site in sites}
    assert len(document["figures"]) == len(sites) * (7 + 3)
