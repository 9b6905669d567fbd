#!/usr/bin/env python3
"""The flights over the wire: name server and broker are started, the year is published, and each number is checked.

python examples/served_flights.py [--csv FILE] [--limit N] [--json]

`make demo` runs it as its second half. The servers are `cometmq serve` on a fresh directory and on free ports; the
flights go in through `cometmq message send`, as lines of the CSV with the carrier as tag, the tail number as key, and
one queue for each aircraft. They are counted in the live log, beside the broker, and in Spark (see spark_flights.py),
whose result goes to the running broker as a topic. At the first difference it says what differs and ends with exit
code 1. Where Spark or Java is missing, the rest is done, and one line says what to install.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import spark_flights
from flights_demo import QUEUES, TOPIC, Flight, Mismatch, csv_text, parse_flights
from rich.console import Console
from spark_flights import Report, Step, as_table, cometmq_command

import cometmq
from cometmq.spark.requirements import missing

START_S = 60
STOP_S = 60


@contextmanager
def servers(store: Path, log: Path) -> Iterator[str]:
    """Run `cometmq serve`; yields the name server's address. Its end must be a clean one."""
    command = cometmq_command("serve", store, "--listen", "127.0.0.1:0", "--namesrv-listen", "127.0.0.1:0", "--json")
    with log.open("w") as output, subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=output) as process:
        try:
            yield started(process, log)
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait(STOP_S)
    if code != 0:
        raise Mismatch(f"the servers ended with code {code}: {log.read_text()[-2000:]}")


def started(process: subprocess.Popen[bytes], log: Path) -> str:
    """Wait for the line that says that the broker has started; it names its name server."""
    end = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < end:
        for line in log.read_text().splitlines(keepends=True):
            event = json.loads(line) if line.endswith("\n") else {}
            if event.get("event") == "broker started":
                return str(event["name_servers"])
        time.sleep(0.02)
    raise Mismatch(f"the servers did not start: {log.read_text()[-2000:]}")


def publish(name_server: str, text: str, topic: str) -> None:
    """Send the lines of a CSV; every one is acknowledged when this returns."""
    command = cometmq_command(
        "message", "send", topic, "--namesrv", name_server, "--format", "csv", "--null", "NA",
        "--tag-column", "carrier", "--key-column", "tailnum", "--shard-column", "tailnum",
    )  # fmt: skip
    subprocess.run(command, input=text, text=True, check=True, stdout=subprocess.DEVNULL)


def check_log(store: Path, flights: list[Flight], report: Report) -> None:
    """Count in the log that the broker is writing."""
    with cometmq.open(store, mode="r") as reader:
        tags: Counter[str] = Counter()
        bodies: Counter[bytes] = Counter()
        queues: dict[str, set[int]] = {}
        for message in reader.read(TOPIC):
            tags[message.tags or ""] += 1
            bodies[message.body_bytes] += 1
            if message.keys:
                queues.setdefault(message.keys[0], set()).add(message.queue_id)
        report.equal("carriers", tags, Counter(flight.carrier for flight in flights))
        report.equal("lines", bodies, Counter(flight.line for flight in flights))
        report.equal("aircraft in more than one queue", [one for one, where in queues.items() if len(where) > 1], [])
        tail = next(flight.tail for flight in flights if flight.tail is not None)
        found = sum(1 for message in reader.read(TOPIC) if tail in message.keys)
        report.equal(f"flights of {tail}", found, sum(1 for flight in flights if flight.tail == tail))


def limited(text: str, limit: int | None) -> str:
    """Return the CSV's header and so many of its lines."""
    return text if limit is None else "".join(text.splitlines(keepends=True)[: limit + 1])


def run(folder: Path, text: str, console: Console) -> Report:
    """Do every step.

    Raises:
        Mismatch: a number differs from the CSV's.
    """
    report = Report()
    flights = parse_flights(text)
    store = folder / "served"
    begin = time.perf_counter()
    with servers(store, folder / "serve.log") as name_server:
        report.steps.append(Step("servers", 0, time.perf_counter() - begin, f"name server {name_server}"))
        create = cometmq_command("topic", "create", TOPIC, "--queues", QUEUES, "--namesrv", name_server)
        subprocess.run(create, check=True, stdout=subprocess.DEVNULL)
        with console.status("publishing the flights", spinner="line"):
            begin = time.perf_counter()
            publish(name_server, text, TOPIC)
        report.steps.append(
            Step("published over the wire", len(flights), time.perf_counter() - begin, "all acknowledged")
        )
        with console.status("counting in the live log", spinner="line"):
            begin = time.perf_counter()
            check_log(store, flights, report)
        report.steps.append(
            Step("counted in the live log", len(flights), time.perf_counter() - begin, "equal to the CSV")
        )
        lacking = missing()
        if lacking is None:
            with console.status("aggregating in Spark", spinner="line"):
                spark_flights.aggregate(store, text, report, name_server=name_server)
        else:
            console.print(lacking)
    return report


def main(arguments: list[str] | None = None) -> int:
    """Run; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--csv", type=Path, metavar="FILE", help="another CSV of the same columns")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N lines")
    parser.add_argument("--json", action="store_true", help="print the results as JSON instead of a table")
    options = parser.parse_args(arguments)
    console = Console(highlight=False, stderr=options.json)
    try:
        with tempfile.TemporaryDirectory(prefix="cometmq-served-") as folder:
            report = run(Path(folder), limited(csv_text(options.csv), options.limit), console)
    except Mismatch as error:
        print(f"wrong: {error}")
        return 1
    if options.json:
        print(json.dumps(report.as_document(), indent=2))
    else:
        console.print(as_table(report, "The same flights over the wire, and in Spark from the live log"))
        console.print(f"All equal: {report.checks} comparisons with the CSV.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
