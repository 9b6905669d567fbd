"""Runs the benchmarks of the broker and prints one table: ``make bench-broker``, or

    python benchmarks/run_broker.py [--quick] [--flush async|sync] [--only TEXT ...] [--rounds N] [--json]

Our broker and Apache RocketMQ's 5.3.3 run side by side, idle but for the one that is measured; each scenario goes to
one and then to the other, as many times as there are rounds, so that a noisy machine disturbs both. The load is
``cometmq bench``, one thread, which checks every result (each offset once and without a hole, each message once with
its bytes) and prints no figure for a run that is not right. SQL92 pulls and requests with replies come from our client
(``system/applications.py``), which looks at every message and reply. CPU is the broker's process, all threads; of ours,
the CPU of the thread that makes the log's pages ahead of the writer also has a figure of its own. Where Java or Maven
is missing, ours is measured alone, and one line says so.

Figures are medians over the rounds, saved in ``CMQ_BENCH_RESULTS``, by default ``benchmarks/results``. Stores are made
in ``CMQ_BENCH_DIR``, by default ``build/bench/data``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from bench_machine import ROOT, facts, load
from bench_results import figures_of_rows, save_result
from bench_support import Figure
from bench_table import goal_cells, number, table_console
from clients.servers import SITES
from system.applications import fill_filtered, measure_requests, measure_sql_pulls
from system.peers import OURS, PEER_VERSION, PeerMissing, Server, busy_broker, java_broker, our_broker, prepare_java

Row = dict[str, Any]

PAGES_THREAD = "cmq-pages"
"""The name of the store's thread that makes pages ahead of the writer (``csrc/store/cmq_maintain.c``)."""


@dataclass(frozen=True)
class Scenario:
    """One load. ``count`` is for the full form."""

    name: str
    options: tuple[str, ...]
    count: int
    quick_count: int = 640


SENDS = (
    Scenario("send 128 B, 1 connection, 1 in flight", ("-p", "1", "-d", "1"), 20_000),
    Scenario("send 128 B, 16 connections, 1 in flight", ("-p", "16", "-d", "1"), 100_000),
    Scenario("send 128 B, 64 connections, 1 in flight", ("-p", "64", "-d", "1"), 100_000),
    Scenario("send 128 B, 1 connection, 16 in flight", ("-p", "1", "-d", "16"), 100_000),
    Scenario("send 128 B, 1 connection, 64 in flight", ("-p", "1", "-d", "64"), 200_000),
    Scenario("send 128 B, 4 connections, 256 in flight", ("-p", "4", "-d", "256"), 400_000),
    Scenario("send 1 KiB, 4 connections, 64 in flight", ("-p", "4", "-d", "64", "-s", "1K"), 200_000),
    Scenario(
        "send 128 B, batches of 32, 4 connections, 8 in flight", ("-p", "4", "-d", "8", "--batch", "32"), 1_280_000
    ),
)
TRANSACTIONS = (
    Scenario(
        "transactions of 128 B, half and commit, 1 connection, 64 in flight",
        ("-p", "1", "-d", "64", "--transactions", "-c", "1", "--consume-after"),
        200_000,
    ),
)
CONSUMES = (
    Scenario("consume 128 B, 4 connections", ("-p", "4", "-d", "64", "-c", "4", "--consume-after"), 400_000),
    Scenario(
        "consume 1 KiB, 4 connections", ("-p", "4", "-d", "64", "-c", "4", "-s", "1K", "--consume-after"), 200_000
    ),
)
LATENCIES = (
    Scenario(
        "produce to consume, held pull, 1,000/s", ("-p", "1", "-d", "64", "-c", "1", "--rate", "1000"), 10_000, 200
    ),
)


def measure(server: Server, scenario: Scenario, *, quick: bool, topic: str) -> Row:
    """Put the load on one broker; the report of ``cometmq bench``."""
    count = scenario.quick_count if quick else scenario.count
    command = [sys.executable, "-m", "cometmq", "bench", "--broker", server.address, "--broker-pid", str(server.pid)]
    command += ["--create", "--topic", topic, "--queues", "8", "--json", "--count", str(count), *scenario.options]
    before_s = server.thread_cpu_s(PAGES_THREAD)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{scenario.name} at {server.name}: {done.stderr or done.stdout}")
    report: Row = json.loads(done.stdout)["report"]
    if not report["verified"]:
        raise SystemExit(f"{scenario.name} at {server.name}: {report['problem']}")
    if server.name == OURS:
        report["pages_cpu_s"] = server.thread_cpu_s(PAGES_THREAD) - before_s
    return report


def figures_of(scenario: Scenario, report: Row) -> Row:
    """Return the figures of one run by name; microseconds and messages a second."""
    sent, consumed = report["accepted"], report["consumed"]
    if scenario in CONSUMES:
        return {
            "messages/s": report["consumed_per_s"],
            "CPU us/message": report["broker_consume_cpu_s"] * 1e6 / consumed,
        }
    if scenario in LATENCIES:
        latency = report["end_to_end"]
        return {"p50 us": latency["p50_us"], "p99 us": latency["p99_us"], "p99.9 us": latency["p999_us"]}
    pages = {"pages ahead, CPU us/message": report["pages_cpu_s"] * 1e6 / sent} if "pages_cpu_s" in report else {}
    return {
        "messages/s": report["messages_per_s"],
        "CPU us/message": report["broker_send_cpu_s"] * 1e6 / sent,
        **pages,
        "p50 us": report["send_latency"]["p50_us"],
        "p99 us": report["send_latency"]["p99_us"],
    }


@contextlib.contextmanager
def connections(server: Server, count: int) -> Iterator[None]:
    """Hold so many connections open that say nothing."""
    host, _, port = server.address.rpartition(":")
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(socket.create_connection((host, int(port))))
        yield


def idle_figures(server: Server, *, quick: bool) -> Row:
    """Memory and CPU when nothing happens: alone, then with 10,000 connections."""
    count = 100 if quick else 10_000
    wait_s = 0.2 if quick else 5.0
    found: Row = {"idle MiB": server.memory_mib()}
    begin = server.cpu_s()
    time.sleep(wait_s)
    found["idle CPU %"] = (server.cpu_s() - begin) / wait_s * 100
    with connections(server, count):
        time.sleep(1)
        found["bytes/connection"] = (server.memory_mib() - found["idle MiB"]) * 2**20 / count
        begin = server.cpu_s()
        time.sleep(wait_s)
        found["CPU % with connections"] = (server.cpu_s() - begin) / wait_s * 100
    return found


def queue_figures(server: Server, *, quick: bool) -> Row:
    """Memory of 50,000 queues with a message each; nothing for a peer that does not get so far.

    Upstream maps a file for each queue, and by default a process may have 65,530 mappings.
    """
    topics, queues = (1, 50) if quick else (10, 5_000)
    before = server.memory_mib()
    for topic in range(topics):
        command = [sys.executable, "-m", "cometmq", "bench", "--broker", server.address, "--create", "--json"]
        command += ["--topic", f"many_{topic}", "--queues", str(queues), "--count", str(queues), "-d", "64"]
        command += ["--timeout", "120"]  # upstream makes a queue's files with its first message
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            failure = f"{topics * queues} queues at {server.name}: {done.stderr or done.stdout}"
            if server.name == OURS:
                raise SystemExit(failure)
            print(failure.strip(), file=sys.stderr)
            return {}
    time.sleep(0 if quick else 2)
    return {"MiB more": server.memory_mib() - before}


# --- The run ----------------------------------------------------------------------------------------------------------


def medians(rows: Sequence[Row]) -> Row:
    """The median of every figure."""
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


def run_mode(console: Console, flush: str, servers: Sequence[Server], arguments: argparse.Namespace) -> Iterator[Row]:
    """Every scenario under one flush mode."""
    serial = 0
    for scenario in (*SENDS, *TRANSACTIONS, *CONSUMES, *LATENCIES):
        title = f"{flush}: {scenario.name}"
        if arguments.only and not any(text in title for text in arguments.only):
            continue
        found: dict[str, list[Row]] = {server.name: [] for server in servers}
        before = load()
        for round_number in range(arguments.rounds):
            for server in servers if round_number % 2 == 0 else reversed(servers):
                serial += 1
                with console.status(f"{title}, {server.name}, round {round_number + 1}", spinner="line"):
                    report = measure(server, scenario, quick=arguments.quick, topic=f"bench_{flush}_{serial}")
                found[server.name].append(figures_of(scenario, report))
        yield {"name": title, "load": before} | {name: medians(rows) for name, rows in found.items()}
    for title, call in (("idle", idle_figures), ("50,000 queues", queue_figures)):
        full = f"{flush}: {title}"
        if flush == "sync" or (arguments.only and not any(text in full for text in arguments.only)):
            continue
        with console.status(full, spinner="line"):
            yield {"name": full, "load": load()} | {
                server.name: call(server, quick=arguments.quick) for server in servers
            }


def run_busy(console: Console, flush: str, home: Path, arguments: argparse.Namespace) -> Iterator[Row]:
    """One send in flight to a broker whose process runs Python besides."""
    title = f"{flush}: send 128 B, 1 in flight, Python busy in the broker's process"
    if arguments.only and not any(text in title for text in arguments.only):
        return
    found = []
    with busy_broker(home, flush=flush) as server, console.status(title, spinner="line"):
        for round_number in range(arguments.rounds):
            report = measure(server, SENDS[0], quick=arguments.quick, topic=f"busy_{round_number}")
            latency = report["send_latency"]
            found.append({name: latency[key] for name, key in (("p50 us", "p50_us"), ("p99 us", "p99_us"))})
    yield {"name": title, "load": load(), OURS: medians(found)}


def run_applications(
    console: Console, home: Path, names: Sequence[str], arguments: argparse.Namespace
) -> Iterator[Row]:
    """SQL92 pulls and requests with replies: our client, and clusters that have a name server."""
    count, pulls, requests = (4_096, 1, 50) if arguments.quick else (524_288, 4, 3_000)
    titles = ("async: SQL92 pulls, 1 in 16 matches", "async: request and reply, one at a time")
    wanted = [title for title in titles if not arguments.only or any(text in title for text in arguments.only)]
    found: dict[str, dict[str, list[Row]]] = {title: {name: [] for name in names} for title in wanted}
    if not wanted:
        return
    before = load()
    with contextlib.ExitStack() as stack:
        servers = [replace(stack.enter_context(SITES[name].start(home / name)), name=name) for name in names]
        for server in servers if titles[0] in wanted else ():
            with console.status(f"{titles[0]}, {server.name}: sending", spinner="line"):
                fill_filtered(server, "bench_filtered", count)
        for title in wanted:
            for round_number in range(arguments.rounds):
                for server in servers if round_number % 2 == 0 else reversed(servers):
                    with console.status(f"{title}, {server.name}, round {round_number + 1}", spinner="line"):
                        figures = (
                            measure_sql_pulls(server, "bench_filtered", count, rounds=pulls)
                            if title == titles[0]
                            else measure_requests(server, f"bench_requests_{round_number}", requests)
                        )
                    found[title][server.name].append(figures)
    for title in wanted:
        yield {"name": title, "load": before} | {name: medians(rows) for name, rows in found[title].items()}


def run_all(console: Console, parent: Path, *, with_java: bool, arguments: argparse.Namespace) -> Iterator[Row]:
    """Every scenario under the flush modes that are asked for, each mode with brokers of its own."""
    for flush in (arguments.flush,) if arguments.flush else ("async", "sync"):
        home = Path(tempfile.mkdtemp(prefix="broker-", dir=parent))
        try:
            with contextlib.ExitStack() as stack:
                servers = [stack.enter_context(our_broker(home / "ours", flush=flush))]
                if with_java:
                    servers.append(stack.enter_context(java_broker(home / "java", flush=flush)))
                yield from run_mode(console, flush, servers, arguments)
            yield from run_busy(console, flush, home / "busy", arguments)
            if flush == "async":
                yield from run_applications(console, home, [OURS, "Java"][: 1 + with_java], arguments)
        finally:
            shutil.rmtree(home)


def print_rows(console: Console, rows: Sequence[Row]) -> None:
    """One table: each figure of each scenario, ours beside Java's."""
    table = Table(box=box.SIMPLE)
    for name in ("scenario", "figure", "ours", "Java", "ours/Java", "goal", "reached"):
        table.add_column(
            name, justify="left" if name in ("scenario", "figure") else "right", no_wrap=name != "scenario"
        )
    for row in rows:
        ours, java = row[OURS], row.get("Java", {})
        for index, (name, value) in enumerate(ours.items()):
            other = java.get(name)
            figure: Figure = {"name": f"{row['name']}: {name}", "value": value}
            if other:
                figure["ratio"] = value / other
            shown = ("" if other is None else number(other), f"{figure['ratio']:.2f}" if other else "")
            table.add_row(row["name"] if index == 0 else "", name, number(value), *shown, *goal_cells(figure, {}))
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: checks results, figures mean nothing")
    parser.add_argument("--flush", choices=("async", "sync"), help="only this flush mode")
    parser.add_argument("--only", nargs="+", default=[], metavar="TEXT", help="scenarios whose name has this")
    parser.add_argument("--rounds", type=int, default=0, metavar="N", help="times each; 3, or 1 with --quick")
    parser.add_argument("--without-java", action="store_true", help="ours alone")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    arguments = parser.parse_args()
    arguments.rounds = arguments.rounds or (1 if arguments.quick else 3)
    console = table_console(stderr=arguments.json)
    with_java = not arguments.without_java
    try:
        if with_java:
            prepare_java()
    except PeerMissing as missing:
        console.print(f"ours alone, as there is no Java broker: {missing}", markup=False)
        with_java = False
    parent = Path(os.environ.get("CMQ_BENCH_DIR", ROOT / "build" / "bench" / "data"))
    parent.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    when, machine, saved = time.strftime("%Y-%m-%d-%H%M%S"), facts(parent), Path()
    java = PEER_VERSION if with_java else None
    # Saved after each scenario: a run that ends early has not measured for nothing.
    for row in run_all(console, parent, with_java=with_java, arguments=arguments):
        rows.append(row)
        found = list(figures_of_rows("broker", rows))
        saved = save_result("broker", when, machine, found, is_quick=arguments.quick, java=java)
    if arguments.json:
        print(json.dumps(rows, indent=1))
    else:
        print_rows(console, rows)
        console.print(f"saved as {saved}", highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
