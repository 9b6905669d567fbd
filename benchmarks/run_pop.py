"""Runs the benchmarks of POP and prints two tables: ``make bench-pop``, or

    python benchmarks/run_pop.py [--quick] [--only TEXT ...] [--rounds N] [--without-java] [--json]

**On the wire.** Our broker and Apache RocketMQ's 5.3.3 run side by side, idle but for the one that is measured, both
with asynchronous flush. The load is ``cometmq bench``, one native thread: messages of 128 B are sent, then popped by
32, four pops in flight on each connection, and acknowledged behind the next pop, each by a request of its own or all of
an answer by one. Acks are merged in memory, ``enablePopBufferMerge=true`` in both brokers (upstream's default is
``false``); rows named ``stored`` have it off. Then messages that are never acknowledged: their memory in our broker,
and the time of their revival in both.

**From Python.** ``cometmq.client`` and ``cometmq.aio`` at both brokers, Redis streams' consumer groups and NATS
JetStream's pull consumers, each with one consumer, as ``make bench-client`` measures.

Nothing unverified is printed. Each message was popped once with its bytes, each ack succeeded, and the group's offset
reached the end of every queue; after their invisible time no acknowledged message had come back. The
others came back, each once. CPU is the broker's process, all threads. Servers that this machine lacks are
left out, with the reason. Figures are medians over the rounds, saved in ``CMQ_BENCH_RESULTS``, by default
``benchmarks/results``; servers keep their files in ``CMQ_BENCH_DIR``, by default ``build/bench/data``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

import cometmq
from bench_machine import ROOT, facts, load
from bench_results import figures_of_rows, save_result
from bench_support import Figure
from bench_table import table_console
from clients.jobs import SHARED_SCENARIOS, SHARED_SYSTEMS
from cometmq.loadtest import LoadOptions, Take, find_target, run_load
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.sync_channel import Channel
from run_broker import Row, medians, print_rows
from run_client import Rig, Run, add_ratios, print_figures, settings_lines
from system.peers import OURS, PEER_VERSION, PeerMissing, Server, java_broker, our_broker, prepare_java

_SENDS = ("-p", "4", "-d", "8", "--batch", "32")
_POPS_IN_FLIGHT = "4"
_INVISIBLE_S = 30
"""Of what is acknowledged, so that it can be looked whether it comes back."""
_LATE_S = 5
_LEFT_S = 20
"""Invisible time of what is not acknowledged: longer than 10 s, at which it leaves memory, and 3 s."""
_LEFT_MEMORY_S = 13
_QUICK_LEFT_S = 5
_REVIVED_S = 150
_SETTLE_S = 2
_QUICK_COUNT = 640
_JAVA_HEAP_MIB = 1536
_SEQUENCE_AT, _SEQUENCE_END = 16, 32


@dataclass(frozen=True)
class Acked:
    """Messages that are popped and acknowledged. ``counts`` are for the full form, ours and Java's."""

    queues: int
    consumers: int
    acks: str
    counts: tuple[int, int]
    is_merged: bool = True

    @property
    def name(self) -> str:
        """The row's name."""
        how = "an ack each" if self.acks == "each" else "one ack for 32"
        merged = "" if self.is_merged else "stored: "
        return f"{merged}pop and ack, {self.consumers} consumers, {self.queues} queues, {how}"


_COUNTS = {"each": (640_000, 96_000), "many": (1_280_000, 320_000)}
"""A run takes half a second at least: CPU is counted in hundredths."""
_STORED_COUNTS = {"each": (192_000, 96_000), "many": (384_000, 192_000)}
ACKED = tuple(
    Acked(queues, consumers, acks, counts)
    for queues in (8, 1)
    for consumers in (1, 16, 64)
    for acks, counts in _COUNTS.items()
)
STORED = tuple(Acked(8, 16, acks, counts, is_merged=False) for acks, counts in _STORED_COUNTS.items())
LEFT = "1 million popped by 32, not acknowledged"
LEFT_COUNTS = (1_000_000, 96_000)


@dataclass(frozen=True)
class Site:
    """A broker and its store."""

    server: Server
    store: Path

    def count(self, counts: tuple[int, int], *, quick: bool) -> int:
        """How many messages it gets."""
        return _QUICK_COUNT if quick else counts[0 if self.server.name == OURS else 1]

    def ask_max_offset(self, topic: str) -> int:
        """The end of the first queue of a topic; 0 where there is no such topic."""
        fields = {"topic": topic, "queueId": "0"}
        with Channel(self.server.address) as channel:
            answer = channel.invoke(Command(code=RequestCode.GET_MAX_OFFSET, fields=fields), timeout_ms=10_000)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return 0
        if answer.code != ResponseCode.SUCCESS:
            raise SystemExit(f"{self.server.name}, end of {topic}: code {answer.code}, {answer.remark}")
        return int(answer.fields["offset"])


def retry_topic(group: str, topic: str) -> str:
    """Return the topic where unacknowledged messages are redelivered."""
    return f"%RETRY%{group}_{topic}"


def put_load(site: Site, title: str, name: str, options: Sequence[str]) -> Row:
    """Send to a topic of that name and pop it with a group of that name; the report of ``cometmq bench``."""
    command = [sys.executable, "-m", "cometmq", "bench", "--broker", site.server.address, "--create", "--json"]
    command += ["--broker-pid", str(site.server.pid), "--topic", name, "--group", name, "--consume-after", *_SENDS]
    command += ["--pops", _POPS_IN_FLIGHT, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{title} at {site.server.name}: {done.stderr or done.stdout}")
    report: Row = json.loads(done.stdout)["report"]
    if not report["verified"]:
        raise SystemExit(f"{title} at {site.server.name}: {report['problem']}")
    return report


# --- What is acknowledged ---------------------------------------------------------------------------------------------


class AckedRuns:
    """Runs scenarios in turns, and keeps in mind what must not come back."""

    def __init__(self, console: Console, arguments: argparse.Namespace) -> None:
        self._console = console
        self._arguments = arguments
        self._serial = 0
        self._names: list[tuple[Site, str]] = []
        self._over_s = 0.0

    def _run(self, site: Site, scenario: Acked, count: int) -> Row:
        self._serial += 1
        name = f"pop_{self._serial}"
        options = ["--queues", str(scenario.queues), "-c", str(scenario.consumers), "--pop", scenario.acks]
        options += ["--count", str(count), "--invisible", str(_INVISIBLE_S)]
        report = put_load(site, scenario.name, name, options)
        self._names.append((site, name))
        self._over_s = time.monotonic() + _INVISIBLE_S + _LATE_S
        return {
            "messages/s": report["consumed_per_s"],
            "CPU us/message": report["broker_consume_cpu_s"] * 1e6 / report["consumed"],
        }

    def warm_up(self, sites: Sequence[Site]) -> None:
        """Let Java's broker compile itself; ours has the same."""
        for site in sites:
            for scenario in ACKED[:2] if not self._arguments.quick else ():
                with self._console.status(f"warming up {site.server.name}", spinner="line"):
                    self._run(site, scenario, LEFT_COUNTS[1])

    def rows(self, sites: Sequence[Site], scenarios: Sequence[Acked]) -> Iterator[Row]:
        """Yield each scenario's row."""
        for scenario in scenarios:
            found: dict[str, list[Row]] = {site.server.name: [] for site in sites}
            before = load()
            for round_number in range(self._arguments.rounds):
                for site in sites if round_number % 2 == 0 else reversed(sites):
                    status = f"{scenario.name}, {site.server.name}, round {round_number + 1}"
                    with self._console.status(status, spinner="line"):
                        count = site.count(scenario.counts, quick=self._arguments.quick)
                        found[site.server.name].append(self._run(site, scenario, count))
            yield {"name": scenario.name, "load": before} | {name: medians(rows) for name, rows in found.items()}

    def check_nothing_came_back(self) -> None:
        """Wait until every invisible time is over, and look whether anything was revived.

        The group's offset is at every queue's end, as each run has checked: so only retry topics could have something.
        """
        if self._arguments.quick:
            return  # half a minute for runs that have no figures; that acks last is what the broker's own tests say
        left_s = self._over_s - time.monotonic()
        if left_s > 0:
            with self._console.status("waiting for invisible times to be over", spinner="line"):
                time.sleep(left_s)
        for site, name in self._names:
            revived = site.ask_max_offset(retry_topic(name, name))
            if revived:
                raise SystemExit(f"{site.server.name}: {revived} messages of {name} were acknowledged, and came back")


# --- What is not ------------------------------------------------------------------------------------------------------


def await_revived(site: Site, topic: str, count: int) -> float:
    """Wait until so many messages are in the retry topic; the time when they were."""
    limit = time.monotonic() + _LEFT_S + _REVIVED_S
    while (revived := site.ask_max_offset(topic)) < count:
        if time.monotonic() > limit:
            raise SystemExit(f"{site.server.name}: {revived} of {count} messages came back within {_REVIVED_S} s")
        time.sleep(0.05)
    return time.monotonic()


def check_revived(site: Site, topic: str, count: int) -> None:
    """Read the retry topic from the store: each message must be there once."""
    with cometmq.open(site.store, mode="r") as store:
        bodies = store.scan(topic, columns=["body"]).to_table()["body"].to_pylist()
    ids = np.frombuffer(b"".join(body[_SEQUENCE_AT:_SEQUENCE_END] for body in bodies), dtype=np.dtype("<u8,<u8"))
    if len(ids) != count or len(np.unique(ids)) != count:
        raise SystemExit(
            f"{site.server.name}: {len(ids)} messages came back, {len(np.unique(ids))} of them different, not {count}"
        )


def pop_and_leave(site: Site, topic: str, *, count: int, invisible_s: int) -> tuple[float, float, float]:
    """Send so many messages, pop all of them by 32, acknowledge none.

    Returns:
        When the first was popped, the time of ``time.monotonic()``; the broker's memory before and behind popping, MiB.
    """
    memory_mib = first_s = 0.0

    def watch(stage: str, sent: int, accepted: int, consumed: int) -> bool:
        nonlocal memory_mib, first_s
        if stage in ("connecting", "sending"):
            memory_mib = site.server.memory_mib()
            first_s = time.monotonic()
        return True

    target = find_target(broker=site.server.address, topic=topic, queues=8, create=True)
    options = LoadOptions(
        producers=4,
        depth=8,
        batch=32,
        count=count,
        consumers=4,
        consume_after=True,
        take=Take.POP,
        pops_in_flight=int(_POPS_IN_FLIGHT),
        invisible_ms=invisible_s * 1000,
        consumer_group=topic,
    )
    report = run_load(target, options, watch=watch)
    after_mib = site.server.memory_mib()
    if not report.verified:
        raise SystemExit(f"{LEFT} at {site.server.name}: {report.problem}")
    return first_s, memory_mib, after_mib


def left_figures(console: Console, site: Site, *, quick: bool) -> Row:
    """Pop and acknowledge nothing; memory (of ours: a Java heap says nothing) and what reviving takes."""
    count, name = site.count(LEFT_COUNTS, quick=quick), "left"
    invisible_s = _QUICK_LEFT_S if quick else _LEFT_S
    found: Row = {}
    with console.status(f"{LEFT}, {site.server.name}", spinner="line"):
        pop_and_leave(site, "left_before", count=_QUICK_COUNT, invisible_s=invisible_s)  # threads and connections
        popped_s, before_mib, after_mib = pop_and_leave(site, name, count=count, invisible_s=invisible_s)
        if site.server.name == OURS:
            found["bytes/message in memory"] = (after_mib - before_mib) * 2**20 / count
            time.sleep(0 if quick else _LEFT_MEMORY_S)
            found["bytes/message in the log"] = (site.server.memory_mib() - before_mib) * 2**20 / count
        due_s = popped_s + invisible_s
        time.sleep(max(0.0, due_s - time.monotonic()))
        begin_cpu_s = site.server.cpu_s()
        topic = retry_topic(name, name)
        found["revived messages/s"] = count / max(await_revived(site, topic, count) - due_s, 1e-3)
        found["CPU us/message"] = (site.server.cpu_s() - begin_cpu_s) * 1e6 / count
        time.sleep(_SETTLE_S)
        check_revived(site, topic, count)
    return found


# --- The run ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def brokers(home: Path, *, is_merged: bool, with_java: bool) -> Iterator[list[Site]]:
    """Start one broker of each kind."""
    settings = {"enablePopBufferMerge": "true" if is_merged else "false"}
    with contextlib.ExitStack() as stack:
        ours = stack.enter_context(our_broker(home / "ours", flush="async", settings=settings))
        sites = [Site(ours, home / "ours" / "store")]
        if with_java:
            more = {**settings, "brokerFastFailureEnable": "false", "osPageCacheBusyTimeOutMills": "60000"}
            start = java_broker(home / "java", flush="async", heap_mib=_JAVA_HEAP_MIB, settings=more)
            sites.append(Site(stack.enter_context(start), home / "java" / "store"))
        yield sites


def wire_rows(console: Console, home: Path, arguments: argparse.Namespace, *, with_java: bool) -> Iterator[Row]:
    """Every row of the wire."""

    def wanted(scenarios: Sequence[Acked]) -> list[Acked]:
        return [one for one in scenarios if is_wanted(arguments, one.name)]

    runs = AckedRuns(console, arguments)
    with brokers(home / "merged", is_merged=True, with_java=with_java) as sites:
        if is_wanted(arguments, LEFT):
            found = {site.server.name: left_figures(console, site, quick=arguments.quick) for site in sites}
            yield {"name": LEFT, "load": load()} | found
        if wanted(ACKED):
            runs.warm_up(sites)
            yield from runs.rows(sites, wanted(ACKED))
        if wanted(STORED):
            with brokers(home / "stored", is_merged=False, with_java=with_java) as others:
                runs.warm_up(others)
                yield from runs.rows(others, wanted(STORED))
                runs.check_nothing_came_back()
        else:
            runs.check_nothing_came_back()


def is_wanted(arguments: argparse.Namespace, title: str) -> bool:
    """Tell whether a row was asked for."""
    return not arguments.only or any(text in title for text in arguments.only)


class PythonRuns:
    """The scenarios of Python clients, run as ``make bench-client`` does."""

    def __init__(self, console: Console, arguments: argparse.Namespace) -> None:
        self._console = console
        self._arguments = arguments
        self._scenarios = [one for one in SHARED_SCENARIOS if is_wanted(arguments, one.name)]
        self.lines: list[str] = []
        self.failed: dict[str, str] = {}

    def figures(self, home: Path) -> list[Figure]:
        """Return every client's figures, each scenario's in turn."""
        figures: list[Figure] = []
        if not self._scenarios:
            return figures
        with Rig(home, self._console, self._arguments, SHARED_SYSTEMS) as rig:
            run = Run(self._console, rig, self._arguments)
            for scenario in self._scenarios:
                figures += run.rates(scenario, scenario.sizes[0], f"{scenario.name}/{scenario.sizes[0]}B")
            self.lines = settings_lines(rig, self._scenarios, is_latency_wanted=False)
            self.failed = run.failed
        add_ratios(figures)
        return figures


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: checks results, figures mean nothing")
    parser.add_argument("--only", nargs="+", default=[], metavar="TEXT", help="rows whose name has this")
    parser.add_argument("--systems", nargs="+", default=[], metavar="TEXT", help="Python clients whose name has this")
    parser.add_argument("--rounds", type=int, default=0, metavar="N", help="times each; 3, or 1 with --quick")
    parser.add_argument("--seconds", type=float, default=0.6, metavar="S", help="how long a Python round takes [0.6]")
    parser.add_argument("--without-java", action="store_true", help="no Java broker on the wire")
    parser.add_argument("--json", action="store_true", help="print the document instead of the tables")
    arguments = parser.parse_args()
    arguments.rounds = arguments.rounds or (1 if arguments.quick else 3)
    if arguments.rounds < 1 or arguments.seconds <= 0:
        parser.error("--rounds and --seconds are positive")
    return arguments


def main() -> int:
    arguments = parse()
    # Ending this run ends the servers with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
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
    begin, machine, when = time.monotonic(), facts(parent), time.strftime("%Y-%m-%d-%H%M%S")
    document: dict[str, Any] = {"java": PEER_VERSION if with_java else None}
    rows: list[Row] = []
    figures: list[Figure] = []

    def save() -> Path:
        found = [*figures_of_rows("pop", rows), *figures]
        return save_result("pop", when, machine, found, is_quick=arguments.quick, **document)

    home = Path(tempfile.mkdtemp(prefix="pop-", dir=parent))
    python = PythonRuns(console, arguments)
    try:
        # Saved after each row: a run that ends early has not measured for nothing.
        for row in wire_rows(console, home, arguments, with_java=with_java):
            rows.append(row)
            save()
        figures += python.figures(home / "python")
    finally:
        shutil.rmtree(home)
    document |= {"settings": python.lines, "failed": python.failed}
    saved = save()
    if not rows and not figures:
        raise SystemExit("nothing was measured: no row has that in its name, or all failed")
    if arguments.json:
        print(saved.read_text(encoding="utf-8"))
    else:
        print_document(console, {**document, "quick": arguments.quick, "rows": rows, "figures": figures})
        took = f"{time.monotonic() - begin:.0f} s; load was {machine['load_at_start']:.1f} at the start"
        console.print(f"saved as {saved}; took {took}", highlight=False)
    if python.failed:
        console.print(f"failed, with traces in that file: {'; '.join(python.failed)}", highlight=False, markup=False)
    return 1 if python.failed else 0


def print_document(console: Console, document: dict[str, Any]) -> None:
    """Print the tables, and how all was set."""
    if document["quick"]:
        console.print("QUICK: these figures mean nothing")
    if document["rows"]:
        print_rows(console, document["rows"])
    if document["figures"]:
        print_figures(console, document["figures"], "from Python, 128 B")
    for line in document["settings"]:
        console.print(line, highlight=False, markup=False)


if __name__ == "__main__":
    sys.exit(main())
