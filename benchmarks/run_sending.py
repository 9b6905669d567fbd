"""Measures what our client sends, every way it has, and prints one table:

    python benchmarks/run_sending.py [--ways WAY ...] [--count N] [--body-bytes N] [--flush async|sync] [--rounds N]

A name server and a broker of ours run as one process, the sender (``system/sending_main.py``) as another; each way goes
to a topic of its own, the ways in turn as many times as there are rounds. When all have ended and the server is gone,
the store is opened and every message looked for: each number once, with its bytes. No figure is printed before that.
Figures are medians; CPU is the sender's process. ``measure`` and ``check_topic`` are for others to call.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import cometmq
from bench_ways import medians, parser_of, run_and_print
from system.peers import our_cluster
from system.sending_main import AIO_WAYS, WAYS, body_of

__all__ = ["check_topic", "measure"]

_COUNTS = {"send": 20_000, "accumulated": 1_000_000, "aio_accumulated": 1_000_000}
_COUNT = 200_000
_UNDER_WAY = 1_000


def measure(name_server: str, topic: str, way: str, *, count: int, body_bytes: int, under_way: int) -> dict[str, float]:
    """Send so many messages one way, by a process of its own.

    Returns:
        ``messages/s`` and ``CPU us/message``; the store has not been looked at.
    """
    program = Path(__file__).parent / "system" / "sending_main.py"
    command = [sys.executable, str(program), name_server, topic, way, str(count), str(body_bytes), str(under_way)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{way}: {done.stderr or done.stdout}")
    report = json.loads(done.stdout)
    cpu_us = report["cpu_s"] * 1e6
    return {"messages/s": report["count"] / report["seconds"], "CPU us/message": cpu_us / report["count"]}


def check_topic(store: cometmq.Store, topic: str, *, count: int, body_bytes: int) -> None:
    """Look for every message of a run.

    Raises:
        SystemExit: one is missing, twice there, or not what was sent.
    """
    seen = bytearray(count)
    for message in store.read(topic):
        body = message.body_bytes
        at = int.from_bytes(body[:8], "big")
        if at >= count or body != body_of(at, body_bytes):
            raise SystemExit(f"{topic}: a message is stored that was not sent: {body[:40]!r}")
        if seen[at]:
            raise SystemExit(f"{topic}: message {at} is stored twice")
        seen[at] = 1
    if missing := seen.count(0):
        raise SystemExit(f"{topic}: {missing:,} of {count:,} messages are not stored, the first is {seen.index(0)}")


def run(home: Path, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Every way in turn, then the look into the store."""
    runs: dict[str, list[dict[str, float]]] = {way: [] for way in arguments.ways}
    topics: list[tuple[str, int]] = []
    with our_cluster(home, flush=arguments.flush) as (server, store_path):
        for round_number in range(arguments.rounds):
            for way in arguments.ways:
                count = arguments.count or _COUNTS.get(way, _COUNT)
                topic = f"{way}_{round_number}"
                topics.append((topic, count))
                runs[way].append(
                    measure(
                        server.address,
                        topic,
                        way,
                        count=count,
                        body_bytes=arguments.body_bytes,
                        under_way=arguments.under_way,
                    )
                )
    with cometmq.open(store_path, mode="r") as store:
        for topic, count in topics:
            check_topic(store, topic, count=count, body_bytes=arguments.body_bytes)
    return medians(runs)


def main() -> int:
    parser = parser_of(__doc__, [*WAYS, *AIO_WAYS])
    parser.add_argument("--count", type=int, default=0, metavar="N", help="messages of each way")
    parser.add_argument("--under-way", type=int, default=_UNDER_WAY, metavar="N", help="unanswered at most")
    return run_and_print(parser, run, prefix="sending-")


if __name__ == "__main__":
    sys.exit(main())
