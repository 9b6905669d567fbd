"""The load generator against real brokers: what it takes for right is right there, too."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.loadtest import LoadOptions, find_target, run_load
from cometmq.remoting.command import HeaderFormat
from interop.sites import Peer

pytestmark = pytest.mark.java

RUNS = [
    LoadOptions(producers=4, consumers=2, depth=8, count=4000),
    LoadOptions(producers=2, consumers=1, batch=16, count=4000, consume_after=True, headers=HeaderFormat.ROCKETMQ),
    LoadOptions(producers=1, consumers=1, rate_per_s=500, count=250, body_bytes=5000),
    LoadOptions(producers=2, consumers=1, oneway=True, rate_per_s=2000, count=1000),
]


@pytest.mark.parametrize("version", ["5.3.3", pytest.param("4.9.7", marks=pytest.mark.java(full=True))])
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
