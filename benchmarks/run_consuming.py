"""Measures what our client consumes, every way it has, and prints one table:

    python benchmarks/run_consuming.py [--ways WAY ...] [--count N] [--body-bytes N] [--pull-batch N] [--rounds N]

A name server and a broker of ours run as one process, the consumer (``system/consuming_main.py``) as another; a topic
is filled first (``run_sending.measure``) and consumed by a group of its own for each way, the ways in turn as many
times as there are rounds. Every run looks at every message: each once, with its bytes. The last row is the time from
``send`` to the listener, one message at a time at a rate (``system/latency_main.py``). Figures are medians; CPU is the
consumer's process. ``measure`` and ``measure_latency`` are for others to call.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import run_sending
from bench_ways import medians, parser_of, run_and_print
from system.consuming_main import AIO_WAYS, WAYS
from system.peers import our_cluster

__all__ = ["measure", "measure_latency"]

_COUNT = 500_000
_PULL_BATCH = 32
_LATENCY_COUNT = 5_000
_RATE = 1_000
_LATENCY = "latency"


def _run(program: str, *arguments: object) -> dict[str, Any]:
    command = [sys.executable, str(Path(__file__).parent / "system" / program), *map(str, arguments)]
    path = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": path})
    if done.returncode != 0:
        raise SystemExit(f"{program} {' '.join(map(str, arguments))}: {done.stderr or done.stdout}")
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def measure(
    name_server: str, topic: str, way: str, *, count: int, body_bytes: int, pull_batch: int = _PULL_BATCH
) -> dict[str, float]:
    """Consume a topic that ``run_sending.measure`` has filled with so many messages, by a process of its own.

    Returns:
        ``messages/s`` and ``CPU us/message``; every message was there once.
    """
    report = _run("consuming_main.py", name_server, topic, way, count, body_bytes, pull_batch)
    cpu_us = report["cpu_s"] * 1e6
    return {"messages/s": report["count"] / report["seconds"], "CPU us/message": cpu_us / report["count"]}


def measure_latency(
    name_server: str, topic: str, *, count: int, body_bytes: int, rate: int = _RATE
) -> dict[str, float]:
    """Send to a topic of its own so many messages a second, one at a time, from one process to the listener of another.

    Returns:
        ``p50 us``, ``p99 us``, ``p99.9 us`` from before ``send`` until the listener is called, and ``CPU us/message``.
    """
    return _run("latency_main.py", name_server, topic, count, body_bytes, rate)


def run(home: Path, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Every way in turn."""
    runs: dict[str, list[dict[str, float]]] = {way: [] for way in arguments.ways}
    sizes = {"count": arguments.count, "body_bytes": arguments.body_bytes}
    with our_cluster(home, flush=arguments.flush) as (server, _):
        name_server = server.address
        for round_number in range(arguments.rounds):
            topic = f"consumed_{round_number}"
            run_sending.measure(name_server, topic, "accumulated", under_way=1_000, **sizes)
            for way in arguments.ways:
                if way == _LATENCY:
                    of_latency = {"count": arguments.latency_count, "body_bytes": arguments.body_bytes}
                    runs[way].append(measure_latency(name_server, f"latency_{round_number}", **of_latency))
                else:
                    pull_batch = arguments.pull_batch
                    runs[way].append(measure(name_server, topic, way, pull_batch=pull_batch, **sizes))
    return medians(runs)


def main() -> int:
    parser = parser_of(__doc__, [*WAYS, *AIO_WAYS, _LATENCY])
    parser.add_argument("--count", type=int, default=_COUNT, metavar="N", help="messages of each run")
    parser.add_argument("--latency-count", type=int, default=_LATENCY_COUNT, metavar="N", help="the same for latency")
    parser.add_argument("--pull-batch", type=int, default=_PULL_BATCH, metavar="N", help="messages of a pull at most")
    return run_and_print(parser, run, prefix="consuming-")


if __name__ == "__main__":
    sys.exit(main())
