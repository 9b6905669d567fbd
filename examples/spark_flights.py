#!/usr/bin/env python3
"""The flights of a store in Spark: delays by carrier and by hour, in a batch, in a stream, and written back as a topic.

python examples/spark_flights.py STORE [--csv FILE]    STORE is what `flights_demo.py --store STORE` has left

With `--name-server ADDRESS` a broker has the store: the topic is read from the live log and through the broker, the
flights that the stream follows are sent to it meanwhile, and the result is handed to it; served_flights.py, the second
half of `make demo`, does that. Each number is compared with
the same number from the CSV; at the first difference it says what differs and ends with exit code 1. Where Spark or
Java is missing, it says what to install and ends with exit code 3.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from flights_demo import TOPIC, Flight, Mismatch, csv_text, parse_flights
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

import cometmq
import cometmq.spark
from cometmq.spark.requirements import missing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LIVE_TOPIC = "flights_live"
DELAYS_TOPIC = "delays"
STREAM_ROWS = 100_000

# A body is a line of the CSV; NA becomes null.
COLUMNS = (
    "tags AS carrier",
    "CAST(split(CAST(body AS STRING), ',')[16] AS INT) AS hour",
    "try_cast(split(CAST(body AS STRING), ',')[5] AS INT) AS delay",
)

Delays = dict[str, tuple[int, int]]
"""By carrier or hour: flights that left, and the minutes that they were late together."""


@dataclass
class Step:
    """One line of the table."""

    name: str
    messages: int
    seconds: float
    note: str


@dataclass
class Report:
    """The steps that were done, and how many numbers were compared."""

    steps: list[Step] = field(default_factory=list)
    checks: int = 0
    tell: Callable[[Step], object] = lambda step: None
    """Called with each step when it is done."""

    def add(self, name: str, messages: int, note: str, seconds: float = 0.0) -> None:
        """Add a line to the table."""
        self.steps.append(Step(name, messages, seconds, note))
        self.tell(self.steps[-1])

    def equal(self, what: str, found: object, expected: object) -> None:
        """Compare with the CSV."""
        self.checks += 1
        if found != expected:
            raise Mismatch(f"{what}: found {str(found)[:200]}, the CSV says {str(expected)[:200]}")

    def as_document(self) -> dict[str, Any]:
        """Return what --json prints."""
        return {"checks": self.checks, "steps": [asdict(step) for step in self.steps]}


# --- From the CSV


def delays_of(flights: Iterable[Flight]) -> dict[str, Delays]:
    """Add up departures and their delays, by carrier and by hour."""
    sums: dict[str, dict[str, list[int]]] = {by: defaultdict(lambda: [0, 0]) for by in ("carrier", "hour")}
    for flight in flights:
        fields = flight.line.split(b",")
        if fields[5] != b"NA":
            for sum_ in (sums["carrier"][flight.carrier], sums["hour"][str(int(fields[16]))]):
                sum_[0] += 1
                sum_[1] += int(fields[5])
    return {by: {name: (count, minutes) for name, (count, minutes) in one.items()} for by, one in sums.items()}


# --- In Spark


def session(folder: str) -> SparkSession:
    """Start Spark in this process, small, and quiet, with the engine in its JVM where it is built."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.sql.shuffle.partitions", "2")
    found = cometmq.spark.session(builder.config("spark.local.dir", folder))
    found.sparkContext.setLogLevel("ERROR")
    return found


def aggregated(departures: DataFrame, by: str) -> DataFrame:
    """Return departures and minutes by carrier or hour."""
    return departures.where("delay IS NOT NULL").groupBy(by).agg({"delay": "sum", "*": "count"})


def as_delays(frame: DataFrame) -> Delays:
    return {str(row[0]): (row["count(1)"], row["sum(delay)"]) for row in frame.collect()}


def check(report: Report, what: str, departures: DataFrame, expected: dict[str, Delays]) -> str:
    """Aggregate by carrier and by hour, compare, and return the worst of each for the table."""
    worst = []
    for by in ("carrier", "hour"):
        found = as_delays(aggregated(departures, by))
        report.equal(f"{what}: delays by {by}", found, expected[by])
        name, (count, minutes) = max(found.items(), key=lambda one: one[1][1] / one[1][0])
        worst.append(f"{name if by == 'carrier' else f'{by} {name}'}: {minutes / count:.1f}")
    return "; ".join(worst)


@contextmanager
def timed(report: Report, name: str, messages: int) -> Iterator[Step]:
    """Add a line to the table."""
    step, begin = Step(name, messages, 0.0, ""), time.perf_counter()
    yield step
    report.add(step.name, step.messages, step.note, time.perf_counter() - begin)


def in_a_batch(
    spark: SparkSession, where: Mapping[str, str], expected: dict[str, Delays], count: int, report: Report, name: str
) -> None:
    """Read the topic that the demo has written: from the store's files, or through the broker."""
    with timed(report, name, count) as step:
        options = {**where, "topic": TOPIC, "columns": "tags,body"}
        departures = spark.read.format("cometmq").options(**options).load().selectExpr(*COLUMNS)
        step.note = check(report, name, departures, expected)


def cometmq_command(*arguments: object) -> list[str]:
    """Return the command line of `cometmq`, by this interpreter."""
    return [sys.executable, "-m", "cometmq", *map(str, arguments)]


class Live:
    """The year again, to another topic, while Spark reads it."""

    def __init__(self, store: cometmq.Store, flights: list[Flight], name_server: str | None) -> None:
        self._store = store
        self._flights = flights
        self._name_server = name_server
        self.done = threading.Event()
        self.failure: BaseException | None = None

    def create(self) -> None:
        """Make the topic."""
        if self._name_server is None:
            self._store.create_topic(LIVE_TOPIC, queues=4)
            return
        create = cometmq_command("topic", "create", LIVE_TOPIC, "--queues", 4, "--namesrv", self._name_server)
        subprocess.run(create, check=True, stdout=subprocess.DEVNULL)

    def write(self) -> None:
        """Append it day by day, or send it; for a thread of its own."""
        try:
            if self._name_server is None:
                self._append()
            else:
                self._send(self._name_server)
        except (cometmq.Error, subprocess.CalledProcessError, OSError) as error:
            self.failure = error
        finally:
            self.done.set()

    def _append(self) -> None:
        for _, group in itertools.groupby(self._flights, key=lambda flight: (flight.month, flight.day)):
            day = list(group)
            self._store.append_many(LIVE_TOPIC, [one.line for one in day], tags=[one.carrier for one in day])
            time.sleep(0.01)  # a day of flights each 10 ms, so that Spark meets a topic that grows

    def _send(self, name_server: str) -> None:
        command = cometmq_command(
            "message", "send", LIVE_TOPIC, "--namesrv", name_server, "--format", "jsonl", "--tag-column", "carrier",
            "--body", "row",
        )  # fmt: skip
        rows = (json.dumps({"carrier": one.carrier, "row": one.line.decode()}) + "\n" for one in self._flights)
        subprocess.run(command, input="".join(rows), text=True, check=True, stdout=subprocess.DEVNULL)


def in_a_stream(
    spark: SparkSession,
    store: cometmq.Store,
    flights: list[Flight],
    expected: dict[str, Delays],
    report: Report,
    *,
    to: str,
    name_server: str | None,
) -> None:
    """Follow another topic while it is being written, run after run up to what is there, into files."""
    live = Live(store, flights, name_server)
    live.create()
    writer = threading.Thread(target=live.write)
    with timed(report, "stream, while it is written", len(flights)) as step:
        writer.start()
        runs = 0
        while True:
            was_done = live.done.is_set()
            catch_up(spark, str(store.path), to)
            runs += 1
            if was_done:
                break
        writer.join()
        if live.failure is not None:
            raise live.failure
        departures = spark.read.parquet(f"{to}/files")
        report.equal("flights that the stream wrote", departures.count(), len(flights))
        worst = check(report, "the stream", departures, expected)
        step.note = f"{runs} runs; {worst}"


def catch_up(spark: SparkSession, path: str, to: str) -> None:
    options = {"path": path, "topic": LIVE_TOPIC, "columns": "tags,body", "startingOffsets": "earliest"}
    stream = spark.readStream.format("cometmq").options(**options).option("maxOffsetsPerTrigger", STREAM_ROWS).load()
    query = (
        stream.selectExpr(*COLUMNS)
        .writeStream.format("parquet")
        .option("checkpointLocation", f"{to}/checkpoint")
        .trigger(availableNow=True)
        .start(f"{to}/files")
    )
    query.awaitTermination()


def written_back(spark: SparkSession, store: cometmq.Store, expected: dict[str, Delays], report: Report) -> None:
    """Write the delays as messages; the store's writer, this process or a broker, appends them."""
    path = str(store.path)
    count = sum(map(len, expected.values()))
    with timed(report, "result as a topic", count) as step:
        options = {"path": path, "topic": TOPIC, "columns": "tags,body"}
        departures = spark.read.format("cometmq").options(**options).load().selectExpr(*COLUMNS)
        for by in ("carrier", "hour"):
            rows = aggregated(departures, by).selectExpr(
                f"CAST({by} AS STRING) AS keys",
                f"'{by}' AS tags",
                "to_json(named_struct('flights', `count(1)`, 'minutes', `sum(delay)`)) AS body",
            )
            rows.write.format("cometmq").option("path", path).option("topic", DELAYS_TOPIC).mode("append").save()
        step.note = "read back by key"
    for by, delays in expected.items():
        for name, (flights, minutes) in delays.items():
            (message,) = [one for one in store.find(DELAYS_TOPIC, name) if one.tags == by]
            found: dict[str, Any] = json.loads(message.body_bytes)
            report.equal(f"the message about {by} {name}", found, {"flights": flights, "minutes": minutes})


# --- The whole


def aggregate(path: Path, text: str, report: Report, *, name_server: str | None = None) -> None:
    """Do every step in Spark.

    Args:
        path: the store.
        text: the CSV.
        report: where the steps are noted.
        name_server: how to reach the broker that has the store; None: nobody has it.

    Raises:
        Mismatch: a number differs from the CSV's.
    """
    flights = parse_flights(text)
    expected = delays_of(flights)
    mode: Literal["a", "r"] = "a" if name_server is None else "r"
    with tempfile.TemporaryDirectory(prefix="cometmq-spark-") as folder, cometmq.open(path, mode=mode) as store:
        begin = time.perf_counter()
        spark = session(folder)
        engine = "engine in its JVM" if cometmq.spark.jars() else "engine in Python"
        report.add("Spark starts", 0, f"Spark {spark.version}, {engine}", time.perf_counter() - begin)
        in_a_batch(spark, {"path": str(path)}, expected, len(flights), report, "batch, from the log")
        if name_server is not None:
            in_a_batch(spark, {"nameServer": name_server}, expected, len(flights), report, "batch, over the wire")
        in_a_stream(spark, store, flights, expected, report, to=f"{folder}/live", name_server=name_server)
        written_back(spark, store, expected, report)
        spark.stop()


def print_step(step: Step) -> None:
    """Print what --json says of a step, at once."""
    print(json.dumps(asdict(step)), flush=True)


def as_table(report: Report, title: str) -> Table:
    """Return the steps as a table."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("what", no_wrap=True)
    table.add_column("messages", justify="right")
    table.add_column("s", justify="right")
    table.add_column("result; worst mean delays")
    for step in report.steps:
        messages = f"{step.messages:,}" if step.messages else ""
        table.add_row(step.name, messages, f"{step.seconds:,.1f}" if step.seconds else "", step.note)
    return table


def main(arguments: list[str] | None = None) -> int:
    """Run; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("store", type=Path, help="a store with the topic flights")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="the file that the store was made of")
    parser.add_argument("--name-server", metavar="ADDRESS", help="a broker that is registered there has the store")
    parser.add_argument("--json", action="store_true", help="print each step and the end as a line of JSON")
    options = parser.parse_args(arguments)
    lacking = missing()
    if lacking is not None:
        print(lacking)
        return 3
    report = Report(tell=print_step) if options.json else Report()
    try:
        aggregate(options.store.resolve(), csv_text(options.csv), report, name_server=options.name_server)
    except Mismatch as error:
        print(f"wrong: {error}")
        return 1
    if options.json:
        print(json.dumps({"checks": report.checks}))
    else:
        console = Console(highlight=False)
        console.print(as_table(report, "The same flights in Spark"))
        console.print(f"All equal: {report.checks} comparisons with the CSV.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
