#!/usr/bin/env python3
"""The flights over the wire: servers, the Python client, the live log, and Spark; each number is checked.

python examples/served_flights.py [--csv FILE] [--limit N] [--without-spark] [--json]

`make demo` runs it as its second half. The servers are `cometmq serve` on a fresh directory and on free ports. The
flights go in by a producer and come out by groups of push consumers (see flights_client.py), and once more by POP, with
eight workers of which one hangs (see popped_flights.py). They are counted in the live log, beside the broker, and
aggregated in Spark (see spark_flights.py): from the log, through the broker, and in a stream; its result goes to the
running broker as a topic. At the first difference it says what differs and ends with
exit code 1. Where Spark or Java is missing, the rest is done, and one line says what to install. Ctrl-C stops it and
all that it has started.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flights_client import bars, by_the_client
from flights_demo import TOPIC, Flight, Mismatch, csv_text, parse_flights
from popped_flights import by_pops
from rich.console import Console
from spark_flights import Report, as_table, cometmq_command

import cometmq
from cometmq.spark.requirements import missing

START_S = 60
STOP_S = 60
SPARK_STEPS = 5


@contextmanager
def servers(store: Path, log: Path) -> Iterator[str]:
    """Run `cometmq serve`; yields the name server's address. Its end must be a clean one."""
    command = cometmq_command("serve", store, "--listen", "127.0.0.1:0", "--namesrv-listen", "127.0.0.1:0", "--json")
    # Ctrl-C in a terminal is for the demo alone, which stops the servers when nobody uses them any more.
    with (
        log.open("w") as output,
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=output, start_new_session=True) as process,
    ):
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


def in_spark(store: Path, csv: Path, name_server: str, report: Report) -> None:
    """Let another process aggregate in Spark, whose Java has much to say on standard error; take its steps over.

    Raises:
        Mismatch: it found a number that differs.
    """
    program = str(Path(__file__).with_name("spark_flights.py"))
    command = [sys.executable, program, str(store), "--csv", str(csv), "--name-server", name_server, "--json"]
    environment = {**os.environ, "TMPDIR": str(csv.parent)}  # what it leaves when it is stopped goes with the rest
    with (
        tempfile.TemporaryFile("w+") as log,
        bars() as progress,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment, start_new_session=True
        ) as process,
    ):
        task = progress.add_task("aggregated in Spark", total=SPARK_STEPS)
        said = ""
        try:
            assert process.stdout is not None
            for said in process.stdout:
                values = json.loads(said) if said.startswith("{") else {}
                if "checks" in values:
                    report.checks += values["checks"]
                elif values:
                    report.add(values["name"], values["messages"], values["note"], values["seconds"])
                    progress.update(task, advance=1)
        except BaseException:
            os.killpg(process.pid, signal.SIGTERM)
            raise
        if process.wait(STOP_S) != 0:
            log.seek(0)
            raise Mismatch(f"in Spark: {said.strip()}\n{log.read()[-4000:]}")


def run(folder: Path, text: str, console: Console, *, with_spark: bool) -> Report:
    """Do every step.

    Raises:
        Mismatch: a number differs from the CSV's.
        cometmq.Error: servers or client did not work.
    """
    report = Report()
    flights = parse_flights(text)
    store = folder / "served"
    begin = time.perf_counter()
    with servers(store, folder / "serve.log") as name_server:
        report.add("servers start", 0, f"name server {name_server}", time.perf_counter() - begin)
        by_the_client(name_server, flights, report)
        by_pops(name_server, flights, report)
        with console.status("counting in the live log", spinner="line"):
            begin = time.perf_counter()
            check_log(store, flights, report)
        report.add("counted in the live log", len(flights), "equal to the CSV", time.perf_counter() - begin)
        lacking = missing() if with_spark else None
        if lacking is not None:
            console.print(lacking)
        elif with_spark:
            csv = folder / "flights.csv"
            csv.write_text(text, encoding="ascii")
            in_spark(store, csv, name_server, report)
    return report


def main(arguments: list[str] | None = None) -> int:
    """Run; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--csv", type=Path, metavar="FILE", help="another CSV of the same columns")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N lines")
    parser.add_argument("--without-spark", action="store_true", help="leave Spark out")
    parser.add_argument("--json", action="store_true", help="print the results as JSON instead of a table")
    options = parser.parse_args(arguments)
    messages = Console(highlight=False, stderr=True)
    try:
        with tempfile.TemporaryDirectory(prefix="cometmq-served-", ignore_cleanup_errors=True) as folder:
            text = limited(csv_text(options.csv), options.limit)
            report = run(Path(folder), text, messages, with_spark=not options.without_spark)
    except KeyboardInterrupt:
        messages.print("stopped")
        return 130
    except Mismatch as error:
        messages.print(f"[red]wrong:[/] {error}")
        return 1
    except cometmq.Error as error:
        messages.print(f"[red]{type(error).__name__}:[/] {error}")
        return 1
    console = Console(highlight=False)
    if options.json:
        print(json.dumps(report.as_document(), indent=2))
    else:
        console.print(as_table(report, "The same flights over the wire, and in Spark"))
        console.print(f"All equal: {report.checks} comparisons with the CSV.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
