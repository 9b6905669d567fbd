#!/usr/bin/env python3
"""The flights by POP: eight workers on two queues, one of which hangs; the others do what it took.

python examples/popped_flights.py NAME_SERVER [--csv FILE]    NAME_SERVER is `cometmq serve`'s, or Apache RocketMQ's

served_flights.py, the second half of `make demo`, runs the same. A producer sends each flight to the topic
``departures``, which has two queues. Eight workers take flights from both: with POP no worker owns a queue. The first
one takes some and hangs. When their time is over, the broker hands its flights to the others. That every flight was
handled, and that what the first one took came back, is compared with the CSV; at the first difference it says what
differs and ends with exit code 1.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from flights_client import bars, wait_until
from flights_demo import Flight, Mismatch, csv_text, parse_flights, sums_of_bodies, sums_of_flights
from rich.console import Console
from rich.progress import Progress
from spark_flights import Report, as_table, timed

import cometmq
import cometmq.admin
from cometmq.client import ConsumeFromWhere, OutgoingMessage, Producer, SimpleConsumer

POP_TOPIC = "departures"
POP_GROUP = "gates"
POP_QUEUES = 2
WORKERS = 8
AT_ONCE = 32
INVISIBLE_MS = 5_000
HANGING = 0


class Popped:
    """The results of all workers."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._lock = threading.Lock()
        self.times: Counter[bytes] = Counter()
        self.by_worker: Counter[int] = Counter()
        self.hung: set[bytes] = set()
        self.came_back: set[bytes] = set()
        self.is_over = threading.Event()
        self.failure: BaseException | None = None

    def take(self, worker: int, flights: list[tuple[bytes, int]]) -> None:
        """Take note of flights that a worker has done, with how often each came before."""
        with self._lock:
            for body, times in flights:
                self.times[body] += 1
                if times:
                    self.came_back.add(body)
            self.by_worker[worker] += len(flights)

    def fail(self, error: BaseException) -> None:
        """End the wait for the flights with an error."""
        self.failure = self.failure or error
        self.is_over.set()


def work(worker: int, consumer: SimpleConsumer, popped: Popped) -> None:
    """Take flights and acknowledge them until all is over; the first worker hangs when it has some."""
    try:
        while not popped.is_over.is_set():
            messages = consumer.receive(AT_ONCE, wait_s=1)
            if messages and worker == HANGING:
                popped.hung.update(message.body_bytes for message in messages)
                popped.is_over.wait()
                return
            if messages:
                popped.take(worker, [(message.body_bytes, message.reconsume_times) for message in messages])
                consumer.ack_many(messages)
    except cometmq.Error as error:
        popped.fail(error)


def start_worker(worker: int, name_server: str, popped: Popped, life: ExitStack) -> None:
    """Start a worker, with a consumer of its own; the stack's end ends both."""
    consumer = SimpleConsumer(
        POP_GROUP,
        name_servers=name_server,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        invisible_time_ms=INVISIBLE_MS,
    )
    consumer.subscribe(POP_TOPIC)
    life.enter_context(consumer)
    thread = threading.Thread(target=work, args=(worker, consumer, popped), name=f"worker {worker}")
    thread.start()
    life.callback(thread.join)
    life.callback(popped.is_over.set)


def send(producer: Producer, flights: list[Flight]) -> int:
    """Send flights; returns how many are on the broker's disk."""
    messages = (OutgoingMessage(flight.line, tags=flight.carrier, keys=flight.tail) for flight in flights)
    return sum(1 for result in producer.send_many(messages, topic=POP_TOPIC) if result.status.name == "SEND_OK")


def pop_all(admin: cometmq.admin.Admin, name_server: str, flights: list[Flight], report: Report, bar: Progress) -> None:
    """Send all flights while the workers take them, until the broker has none for them and none in flight."""
    expected = {flight.line for flight in flights}
    popped = Popped()
    task = bar.add_task("popped by eight workers", total=len(expected))

    def all_done() -> bool:
        bar.update(task, completed=len(popped.times))
        return popped.failure is not None or len(popped.times) == len(expected)

    def nothing_left() -> bool:
        left = admin.groups.in_flight(POP_GROUP)
        return popped.failure is not None or (left.waiting, left.in_flight) == (0, 0)

    with timed(report, "popped by eight workers", len(flights)) as step, ExitStack() as life:
        producer = life.enter_context(Producer("tower", name_servers=name_server))
        first = len(flights) // 10  # so that the worker that hangs finds something to hang with
        sent = send(producer, flights[:first])
        for worker in range(WORKERS):
            start_worker(worker, name_server, popped, life)
        sent += send(producer, flights[first:])
        wait_until(all_done, "not all flights were popped")
        wait_until(nothing_left, "flights were still waiting or in flight")
        step.note = f"{len(popped.by_worker)} workers, {POP_QUEUES} queues; 1 hangs"
    if popped.failure is not None:
        raise popped.failure
    report.equal("flights that were acknowledged", sent, len(flights))
    report.equal("flights that nobody popped", expected - popped.times.keys(), set())
    report.equal("flights, miles, minutes that were popped", sums_of_bodies(popped.times), sums_of_flights(flights))
    report.equal("flights that the one that hangs has done", popped.by_worker[HANGING], 0)
    report.equal("whether the one that hangs took some", bool(popped.hung), True)
    report.equal("flights of it that came back", popped.hung & popped.came_back, popped.hung)
    twice = sum(popped.times.values()) - len(expected)
    report.add("  taken by the one that hangs", len(popped.hung), f"revived; some twice: {twice:,}")


def by_pops(name_server: str, flights: list[Flight], report: Report) -> None:
    """Make the topic, and let the workers at it.

    Raises:
        Mismatch: a number differs from the CSV's.
        cometmq.Error: the servers or the client did not work.
    """
    with cometmq.admin.connect(namesrv=name_server) as admin:
        admin.topics.create(POP_TOPIC, queues=POP_QUEUES)
        with bars() as bar:
            pop_all(admin, name_server, flights, report, bar)


def main(arguments: list[str] | None = None) -> int:
    """Run; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("name_server", metavar="NAME_SERVER", help="host:port; no topic departures is there yet")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="another CSV of the same columns")
    options = parser.parse_args(arguments)
    report = Report()
    try:
        by_pops(options.name_server, parse_flights(csv_text(options.csv)), report)
    except Mismatch as error:
        print(f"wrong: {error}")
        return 1
    except cometmq.Error as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    console = Console(highlight=False)
    console.print(as_table(report, "The flights by POP"))
    console.print(f"All equal: {report.checks} comparisons with the CSV.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
