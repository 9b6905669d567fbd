#!/usr/bin/env python3
"""The flights by the Python client: a producer, a group whose members change, and a group that keeps aircraft in order.

python examples/flights_client.py NAME_SERVER [--csv FILE]    NAME_SERVER is `cometmq serve`'s, or Apache RocketMQ's

served_flights.py, the second half of `make demo`, runs the same. Each flight is one message of the topic ``flights``:
its line of the CSV, with the carrier as tag, the tail number as key, and one queue for each aircraft. While a producer
sends them, a group of push consumers takes them: one member leaves after a third, another joins after two, and one
flight of a hundred fails when it comes first and is retried. Then a second group, whose listener is orderly, sees the
flights of each aircraft in the order in which they were sent. Each number is compared with the same number from the
CSV; at the first difference it says what differs and ends with exit code 1.
"""

from __future__ import annotations

import argparse
import logging
import sys
import threading
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from flights_demo import QUEUES, TOPIC, Flight, Mismatch, csv_text, parse_flights, sums_of_bodies, sums_of_flights
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from spark_flights import Report, as_table, timed

import cometmq
import cometmq.admin
from cometmq.client import ConsumeFromWhere, Outcome, OutgoingMessage, Producer, PushConsumer, ReceivedMessage

GROUP = "dispatchers"
ORDERLY_GROUP = "mechanics"
MEMBER_BATCH = 64
FAILS_ONE_OF = 100
LIMIT_S = 120
LOOK_EVERY_S = 0.05


def bars() -> Progress:
    """Return the bars that are shown meanwhile, on standard error."""
    columns = (TextColumn("{task.description:<26}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Wait, and look again and again.

    Raises:
        Mismatch: it did not become so in two minutes.
    """
    end = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > end:
            raise Mismatch(f"{what} within {LIMIT_S} s")
        time.sleep(LOOK_EVERY_S)


def fails_at_first(body: bytes) -> bool:
    """Whether a flight is one of the hundredth that fails when it comes first."""
    return zlib.crc32(body) % FAILS_ONE_OF == 0


# --- A group whose members change -------------------------------------------------------------------------------------


class Handled:
    """The results of all members of the group. Listeners run in many threads."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._lock = threading.Lock()
        self.times: Counter[bytes] = Counter()
        self.failed: set[bytes] = set()
        self.retried: set[bytes] = set()
        self.by_member: Counter[str] = Counter()

    def listener(self, member: str) -> Callable[[list[ReceivedMessage]], Sequence[Outcome]]:
        """Return the listener of one member: it says of each message what becomes of it."""

        def take(messages: list[ReceivedMessage]) -> Sequence[Outcome]:
            bodies = [(message.body_bytes, message.reconsume_times) for message in messages]
            with self._lock:
                return [self._take(member, body, times) for body, times in bodies]

        return take

    def _take(self, member: str, body: bytes, reconsume_times: int) -> Outcome:
        if reconsume_times == 0 and fails_at_first(body):
            self.failed.add(body)
            return Outcome.retry(delay_level=1)  # again in a second; by way of the broker, to whichever member
        if reconsume_times:
            self.retried.add(body)
        self.times[body] += 1
        self.by_member[member] += 1
        return Outcome.SUCCESS


def member_of(group: str, name_server: str, **options: object) -> PushConsumer:
    """Return a member of a group that reads the flights from the first on."""
    first = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    consumer = PushConsumer(
        group,
        name_servers=name_server,
        consume_from_where=first,
        consume_message_batch_max_size=MEMBER_BATCH,
        pull_batch_size=MEMBER_BATCH,
        **options,  # type: ignore[arg-type]
    )
    return consumer.subscribe(TOPIC)


def has_queues(consumer: PushConsumer) -> bool:
    """Whether the member has got its share of the topic."""
    return any(queue.topic == TOPIC for queue in consumer.queues)


def thirds(flights: list[Flight]) -> list[list[Flight]]:
    """Cut a list in three."""
    third = -(-len(flights) // 3)
    return [flights[:third], flights[third : 2 * third], flights[2 * third :]]


def publish_and_consume(name_server: str, flights: list[Flight], report: Report, progress: Progress) -> None:
    """Send all flights while a group consumes them, whose second member leaves, and whose third one joins."""
    handled = Handled()
    published = progress.add_task("published", total=len(flights))
    consumed = progress.add_task("handled by the group", total=len(flights))

    def messages(part: list[Flight]) -> Iterator[OutgoingMessage]:
        for number, flight in enumerate(part, 1):
            yield OutgoingMessage(flight.line, tags=flight.carrier, keys=flight.tail, sharding_key=flight.tail)
            if number % 1024 == 0 or number == len(part):
                progress.update(published, advance=number % 1024 or 1024)
                progress.update(consumed, completed=len(handled.times))

    def all_handled() -> bool:
        progress.update(consumed, completed=len(handled.times))
        return len(handled.times) >= different

    expected = Counter(flight.line for flight in flights)
    different = len(expected)
    members = {name: member_of(GROUP, name_server, batch_listener=handled.listener(name)) for name in "ABC"}
    with ExitStack() as life:
        with timed(report, "a group's members start", 0) as step:
            for name in "AB":
                life.enter_context(members[name])
            wait_until(lambda: all(has_queues(members[name]) for name in "AB"), "members A and B got no queues")
            step.note = "A and B share the queues"
        with timed(report, "consumed while published", len(flights)) as whole:
            with timed(report, "published by the producer", len(flights)) as step:
                sent = 0
                with Producer("airport", name_servers=name_server) as producer:
                    for number, part in enumerate(thirds(flights)):
                        if number == 2:
                            life.enter_context(members["C"])
                            wait_until(lambda: has_queues(members["C"]), "member C got no queues")
                        results = producer.send_many(messages(part), topic=TOPIC)
                        sent += sum(1 for result in results if result.status.name == "SEND_OK")
                        if number == 0:
                            wait_until(lambda: handled.by_member["B"] > 0, "member B handled nothing")
                            members["B"].close()
                step.note = "B leaves, C joins meanwhile"
            wait_until(all_handled, f"{different - len(handled.times):,} flights were not handled")
            whole.note = ", ".join(f"{name} {count:,}" for name, count in sorted(handled.by_member.items()))
    report.equal("flights that were acknowledged", sent, len(flights))
    report.equal("flights that nobody handled", [line for line in expected if line not in handled.times], [])
    report.equal("what was handled and is no flight", [line for line in handled.times if line not in expected], [])
    report.equal("flights, miles, minutes that were handled", sums_of_bodies(handled.times), sums_of_flights(flights))
    failing = {line for line in expected if fails_at_first(line)}
    report.equal("flights that failed at first", len(handled.failed), len(failing))
    report.equal("flights that were retried", handled.retried, failing)
    report.equal("members that handled some", sorted(handled.by_member), ["A", "B", "C"])
    report.equal("flights that the group has left", lag_of(GROUP, name_server), 0)
    twice = sum(handled.times.values()) - different
    report.add("  failed at first, retried", len(failing), f"each handled; some twice: {twice:,}")


def lag_of(group: str, name_server: str) -> int:
    """Return how many messages of the topic a group has not committed."""
    with cometmq.admin.connect(namesrv=name_server) as admin:
        return sum(queue.lag for queue in admin.offsets.progress(group, topic=TOPIC).queues)


# --- A group that keeps each aircraft's order -------------------------------------------------------------------------


class InOrder:
    """The flights of each aircraft that members of the orderly group have seen."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._lock = threading.Lock()
        self.by_tail: dict[str, list[bytes]] = defaultdict(list)
        self.seen: set[bytes] = set()
        self.twice = 0
        self.by_member: Counter[str] = Counter()

    def listener(self, member: str) -> Callable[[list[ReceivedMessage]], None]:
        """Return the listener of one member."""

        def take(messages: list[ReceivedMessage]) -> None:
            flights = [(message.body_bytes, message.keys) for message in messages]
            with self._lock:
                for body, keys in flights:
                    if body in self.seen:
                        self.twice += 1
                        continue
                    self.seen.add(body)
                    self.by_member[member] += 1
                    if keys:
                        self.by_tail[keys[0]].append(body)

        return take


def consume_in_order(name_server: str, flights: list[Flight], report: Report, progress: Progress) -> None:
    """Consume the topic again, each queue in order, by two members."""
    task = progress.add_task("in each aircraft's order", total=len(flights))
    seen = InOrder()
    expected: dict[str, list[bytes]] = defaultdict(list)
    for flight in flights:
        if flight.tail is not None:
            expected[flight.tail].append(flight.line)

    def all_seen() -> bool:
        progress.update(task, completed=len(seen.seen))
        return len(seen.seen) >= len(flights)

    with timed(report, "in each aircraft's order", len(flights)) as step, ExitStack() as life:
        for name in ("one", "two"):
            member = member_of(ORDERLY_GROUP, name_server, batch_listener=seen.listener(name), orderly=True)
            life.enter_context(member)
        wait_until(all_seen, f"{len(flights) - len(seen.seen):,} flights did not come in order")
        step.note = f"{len(expected):,} aircraft; twice: {seen.twice:,}"
    wrong = [tail for tail, lines in expected.items() if seen.by_tail.get(tail) != lines]
    report.equal("aircraft whose flights came in another order", wrong, [])
    report.equal("aircraft", len(seen.by_tail), len(expected))
    report.equal("flights, miles, minutes in order", sums_of_bodies(seen.seen), sums_of_flights(flights))


# --- The whole --------------------------------------------------------------------------------------------------------


def by_the_client(name_server: str, flights: list[Flight], report: Report) -> None:
    """Make the topic, and do both.

    Raises:
        Mismatch: a number differs from the CSV's.
        cometmq.Error: the servers or the client did not work.
    """
    with cometmq.admin.connect(namesrv=name_server) as admin:
        admin.topics.create(TOPIC, queues=QUEUES)
    # While queues change hands, pulls are refused now and then and retried: here that is meant to happen.
    logging.getLogger("cometmq").setLevel(logging.ERROR)
    with bars() as progress:
        publish_and_consume(name_server, flights, report, progress)
        consume_in_order(name_server, flights, report, progress)


def main(arguments: list[str] | None = None) -> int:
    """Run; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("name_server", metavar="NAME_SERVER", help="host:port; the topic flights must not be there yet")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="another CSV of the same columns")
    options = parser.parse_args(arguments)
    report = Report()
    try:
        by_the_client(options.name_server, parse_flights(csv_text(options.csv)), report)
    except Mismatch as error:
        print(f"wrong: {error}")
        return 1
    except cometmq.Error as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    console = Console(highlight=False)
    console.print(as_table(report, "The flights by the Python client"))
    console.print(f"All equal: {report.checks} comparisons with the CSV.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
