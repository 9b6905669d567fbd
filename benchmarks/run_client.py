"""Runs the benchmarks of the client and prints one table: ``make bench-client``, or

    python benchmarks/run_client.py [--quick] [--only TEXT ...] [--systems TEXT ...] [--rounds N] [--seconds S] [--json]

Our client, blocking and for asyncio, and Apache RocketMQ's Java client 5.3.3, each at our broker and at Apache's; and
other libraries of Python programs: confluent-kafka, nats-py and redis-py, each with its server. All servers run side by
side, idle but for the one that is measured; each scenario goes to one client after the other, as many times as there
are rounds, in turned order every other time, so that a noisy machine disturbs all of them. Clients are processes that
live through the run; before a scenario's first round each is warmed up, and how many messages it gets is taken from
that, so that a round takes ``--seconds``.

Nothing unverified is printed. Sent messages are read back: each message once with its bytes, one-by-one sends in order.
Consumed messages are checked likewise, in order where one call gets a queue's messages. A failed run gives no figure
and prints its reason, and the command exits with 1. A rival that this machine lacks is left out with the reason.
CPU is the client's process, all threads; its server's beside it.

Figures are medians over the rounds, saved after each scenario in ``CMQ_BENCH_RESULTS``, by default
``benchmarks/results``. Servers keep their files in ``CMQ_BENCH_DIR``, by default ``build/bench/data``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from bench_goals import goal_of
from bench_machine import ROOT, commit, facts, load
from bench_results import save_result
from bench_support import Figure, figure
from bench_table import number, table_console
from clients.jobs import LATENCY, SCENARIOS, SYSTEMS, Kind, Scenario, System, why_not
from clients.processes import JAVA_SETTINGS, WorkerFailed, WorkerProcess, worker_process
from clients.servers import SITES
from clients.worker import LATENCY_BODY_BYTES, How
from system.peers import PeerMissing, Server

SIZES = (128, 1024)
PERCENTILES = ((50.0, "p50"), (99.0, "p99"), (99.9, "p99.9"))
QUICK_COUNT = 300
QUICK_LATENCIES = 60
_DATA_SET_MAX = 1_600_000
_BODIES_BYTES_MAX = 256 << 20


class Rig:
    """Servers and workers that are up, and the topics in them."""

    def __init__(
        self, home: Path, console: Console, arguments: argparse.Namespace, systems: Sequence[System] = SYSTEMS
    ) -> None:
        self._wanted = systems
        self._home = home
        self._console = console
        self._arguments = arguments
        self._life = contextlib.ExitStack()
        self._servers: dict[str, Server] = {}
        self._workers: dict[str, WorkerProcess] = {}
        self._data_sets: dict[tuple[str, int, int], str] = {}
        self._serial = 0
        self.systems: list[System] = []
        self.left_out: dict[str, str] = {}
        """Systems that cannot be had, and why."""
        self._missing: dict[str, str] = {}

    def __enter__(self) -> Rig:
        with contextlib.ExitStack() as life:
            for system in self._wanted:
                if not self._arguments.systems or any(text in system.name for text in self._arguments.systems):
                    self._start(life, system)
            self._life = life.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._life.close()

    def _start(self, life: contextlib.ExitStack, system: System) -> None:
        if system.site not in self._missing and system.site not in self._servers:
            with self._console.status(f"starting {system.site}", spinner="line"):
                try:
                    start = SITES[system.site].start(self._home / system.site)
                    self._servers[system.site] = life.enter_context(start)
                except PeerMissing as missing:
                    self._missing[system.site] = str(missing)
        if system.site in self._missing:
            self.left_out[system.name] = self._missing[system.site]
            return
        try:
            for kind in {system.worker, system.keeper} - self._workers.keys():
                self._workers[kind] = life.enter_context(worker_process(kind, self._home / f"worker-{kind}"))
        except PeerMissing as missing:
            self.left_out[system.name] = str(missing)
            return
        self.systems.append(system)

    def _ask(self, kind: str, system: System, op: str, **arguments: object) -> dict[str, Any]:
        return self._workers[kind].ask(op, servers=self._servers[system.site].address, **arguments)

    def _timed(self, system: System, op: str, **arguments: object) -> dict[str, float]:
        """Ask a client for a run; with the CPU seconds that its server took meanwhile."""
        server = self._servers[system.site]
        begin = server.cpu_s()
        taken: dict[str, float] = self._ask(system.worker, system, op, **arguments)
        return {**taken, "server_cpu_s": server.cpu_s() - begin}

    def _new_topic(self, system: System) -> str:
        self._serial += 1
        topic = f"bench_{self._serial}"
        self._ask(system.keeper, system, "create", topic=topic)
        return topic

    # --- One run ------------------------------------------------------------------------------------------------------

    def produce(self, system: System, how: How, count: int, body_bytes: int) -> dict[str, float]:
        """Send so many messages to a new topic, and read them back."""
        topic = self._new_topic(system)
        size = {"topic": topic, "count": count, "body_bytes": body_bytes}
        taken = self._timed(system, "bench_produce", how=how.value, **size)
        self._ask(system.keeper, system, "read_back", ordered=how is How.ONE_BY_ONE, **size)
        self._ask(system.keeper, system, "delete", topic=topic)
        return taken

    def consume(self, system: System, how: How, count: int, body_bytes: int) -> dict[str, float]:
        """Consume so many messages, which lie there, as a new group."""
        topic = self._data_set(system, count, body_bytes)
        self._serial += 1
        group = f"bench_group_{self._serial}"
        size = {"topic": topic, "count": count, "body_bytes": body_bytes}
        return self._timed(system, "bench_consume", how=how.value, group=group, **size)

    def _data_set(self, system: System, count: int, body_bytes: int) -> str:
        """Return a topic with so many messages; systems of one site share it."""
        key = system.site, count, body_bytes
        if key not in self._data_sets:
            topic = self._new_topic(system)
            self._ask(system.keeper, system, "load", topic=topic, count=count, body_bytes=body_bytes)
            self._data_sets[key] = topic
        return self._data_sets[key]

    def drop_data_sets(self) -> None:
        """Remove what was there to be consumed.

        Raises:
            WorkerFailed: a worker is no more.
        """
        dropped, self._data_sets = self._data_sets, {}
        for (site, _, _), topic in dropped.items():
            system = next(one for one in self.systems if one.site == site)
            self._ask(system.keeper, system, "delete", topic=topic)

    def latencies_us(self, system: System, ahead: int, count: int) -> list[float]:
        """Send 1,000 a second to a listener, and return the times of all but the first."""
        topic = self._new_topic(system)
        self._serial += 1
        group = f"bench_group_{self._serial}"
        sizes = {"topic": topic, "group": group, "ahead": ahead, "count": ahead + count, "per_s": LATENCY.per_s}
        found: list[float] = self._ask(system.worker, system, "bench_latency", **sizes)["us"]
        self._ask(system.keeper, system, "delete", topic=topic)
        return found


# --- How much ---------------------------------------------------------------------------------------------------------


def _rounded(value: float) -> int:
    """Two digits are enough."""
    unit = 10 ** max(len(str(int(value))) - 2, 0)
    return max(int(value) // unit * unit, 1)


def _data_set_size(value: float, least: int) -> int:
    """The data set of that size or the next smaller one; they are few, so that clients can share them."""
    size = least
    while size * 4 <= min(value * 2, _DATA_SET_MAX):
        size *= 4
    return size


def warmed_count(rig: Rig, system: System, scenario: Scenario, body_bytes: int, seconds: float) -> int:
    """Warm a client up, and return how many messages take it so many seconds."""
    count = scenario.first_count
    for part in (0.5, 1.0) if system.worker == "java" else (1.0,):
        run = rig.produce if scenario.kind is Kind.PRODUCE else rig.consume
        taken = run(system, scenario.how, count, body_bytes)
        wanted = min(taken["messages"] / taken["seconds"] * seconds * part, _BODIES_BYTES_MAX / body_bytes)
        count = (
            max(_rounded(wanted), scenario.first_count // 5)
            if scenario.kind is Kind.PRODUCE
            else _data_set_size(wanted, scenario.first_count)
        )
    return count


# --- Scenarios --------------------------------------------------------------------------------------------------------


class Run:
    """The results so far."""

    def __init__(self, console: Console, rig: Rig, arguments: argparse.Namespace) -> None:
        self._console = console
        self._rig = rig
        self._arguments = arguments
        self.failed: dict[str, str] = {}
        """Scenarios without a figure, with the reason."""

    def figures(self) -> Iterator[list[Figure]]:
        """Yield each scenario's figures; one failing system leaves the others going on."""
        for body_bytes in SIZES:
            for scenario in SCENARIOS:
                title = f"{scenario.name}/{body_bytes}B"
                if self._is_wanted(title) and body_bytes in scenario.sizes:
                    yield self.rates(scenario, body_bytes, title)
            try:
                self._rig.drop_data_sets()
            except WorkerFailed as error:
                self.failed[f"removal of what was consumed, {body_bytes}B"] = str(error)
        if self.is_latency_wanted:
            yield self._latencies()

    def is_wanted(self, scenario: Scenario) -> bool:
        """Tell whether a scenario was asked for, with bodies of any length."""
        return any(self._is_wanted(f"{scenario.name}/{body_bytes}B") for body_bytes in scenario.sizes)

    @property
    def is_latency_wanted(self) -> bool:
        """Whether latencies were asked for."""
        return self._is_wanted(LATENCY.name)

    def _is_wanted(self, title: str) -> bool:
        return not self._arguments.only or any(text in title for text in self._arguments.only)

    def _in_turns(self, systems: Sequence[System], title: str) -> Iterator[System]:
        """Yield the systems round by round, each with a word of what is going on."""
        for round_number in range(self._arguments.rounds):
            for system in systems if round_number % 2 == 0 else list(reversed(systems)):
                with self._console.status(f"{title}, {system.name}, round {round_number + 1}", spinner="line"):
                    yield system

    @contextlib.contextmanager
    def _failing(self, title: str, system: System) -> Iterator[None]:
        """Note that there is no figure where what is done here fails."""
        try:
            yield
        except WorkerFailed as error:
            self.failed[f"{title}/{system.name}"] = f"{error}\n{error.trace}"
            self._console.print(f"{title}, {system.name}: no figure, {error}", markup=False, highlight=False)

    def rates(self, scenario: Scenario, body_bytes: int, title: str) -> list[Figure]:
        """Return each system's rate of a scenario."""
        begin, before = time.monotonic(), load()
        counts: dict[System, int] = {}
        for system in self._rig.systems:
            if why_not(system, scenario.how) is not None:
                continue
            status = self._console.status(f"{title}, {system.name}, warming up", spinner="line")
            with status, self._failing(title, system):
                counts[system] = (
                    QUICK_COUNT
                    if self._arguments.quick
                    else warmed_count(self._rig, system, scenario, body_bytes, self._arguments.seconds)
                )
        rows: dict[System, list[dict[str, float]]] = {system: [] for system in counts}
        for system in self._in_turns(list(counts), title):
            run = self._rig.produce if scenario.kind is Kind.PRODUCE else self._rig.consume
            with self._failing(title, system):
                rows[system].append(run(system, scenario.how, counts[system], body_bytes))
        found = [
            figure(
                f"client/{title}/{system.name}",
                "msg/s",
                [row["messages"] / row["seconds"] for row in of_system],
                cpu_ns=statistics.median(row["cpu_s"] * 1e9 / row["messages"] for row in of_system),
                server_cpu_ns=statistics.median(row["server_cpu_s"] * 1e9 / row["messages"] for row in of_system),
                messages=counts[system],
                system=system.name,
                site=system.site,
                load_before=before,
            )
            for system, of_system in rows.items()
            if len(of_system) == self._arguments.rounds
        ]
        self._note(title, found, begin)
        return found

    def _latencies(self) -> list[Figure]:
        begin, before = time.monotonic(), load()
        count = QUICK_LATENCIES if self._arguments.quick else LATENCY.count
        ahead = QUICK_LATENCIES if self._arguments.quick else LATENCY.ahead
        rows: dict[System, list[list[float]]] = {system: [] for system in self._rig.systems}
        for system in self._in_turns(self._rig.systems, LATENCY.name):
            with self._failing(LATENCY.name, system):
                rows[system].append(sorted(self._rig.latencies_us(system, ahead, count)))
        found = [
            figure(
                f"client/{LATENCY.name}/{LATENCY_BODY_BYTES}B/{label}/{system.name}",
                "us",
                [row[min(int(len(row) * percent / 100), len(row) - 1)] for row in of_system],
                messages=count,
                system=system.name,
                site=system.site,
                load_before=before,
            )
            for percent, label in PERCENTILES
            for system, of_system in rows.items()
            if len(of_system) == self._arguments.rounds
        ]
        self._note(LATENCY.name, found, begin)
        return found

    def _note(self, title: str, found: Sequence[Figure], begin: float) -> None:
        seconds = time.monotonic() - begin
        self._console.print(f"{title}: {len(found)} figures in {seconds:.0f} s, load {load():.1f}", highlight=False)


def add_ratios(figures: Sequence[Figure]) -> None:
    """Hold each figure against our blocking client's, at Apache's broker where it is one of that, else at ours."""
    by_name = {one["name"]: one for one in figures}
    for one in figures:
        site = one["site"] if one["site"] == "Java" else "ours"
        base = next(system.name for system in SYSTEMS if (system.worker, system.site) == ("sync", site))
        ours = by_name.get(f"{one['name'].rpartition('/')[0]}/{base}")
        if ours is not None and ours is not one:
            one |= {"floor": base, "floor_value": ours["value"], "ratio": one["value"] / ours["value"]}


# --- The table --------------------------------------------------------------------------------------------------------


def print_figures(console: Console, figures: Sequence[Figure], title: str) -> None:
    """Print a block of lines for each scenario, a line for each client."""
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("client, server")
    for column in ("messages/s, or us", "range", "to ours", "CPU/msg", "server's", "goal"):
        table.add_column(column, justify="right", no_wrap=True)
    by_name = {one["name"]: one for one in figures}
    block = ""
    for one in figures:
        this = one["name"].removeprefix("client/").rpartition("/")[0]
        if this != block:
            table.add_section()
            table.add_row(f"[bold]{this}[/]")
            block = this
        goal = goal_of(one)
        reached = None if goal is None else goal.judge(one, by_name)
        table.add_row(
            f"  {one['system']}",
            number(one["value"]),
            f"{number(one['min'])} .. {number(one['max'])}" if one["repeats"] > 1 else "",
            f"{one['ratio']:.2f}x" if "ratio" in one else "",
            *(f"{number(one[cpu] / 1000)} us" if cpu in one else "" for cpu in ("cpu_ns", "server_cpu_ns")),
            "" if goal is None or reached is None else f"{goal.text}: {'yes' if reached else 'no'}",
        )
    console.print(table)


def settings_lines(rig: Rig, scenarios: Sequence[Scenario], *, is_latency_wanted: bool) -> list[str]:
    """Say how all was set, and what is not there, and why."""
    lines = [SITES[site].settings() for site in dict.fromkeys(system.site for system in rig.systems)]
    if any(system.worker == "java" for system in rig.systems):
        lines.append(JAVA_SETTINGS)
    lines += [scenario.settings for scenario in scenarios]
    if is_latency_wanted:
        lines.append(LATENCY.settings)
    for system in rig.systems:
        for scenario in scenarios:
            reason = why_not(system, scenario.how)
            if reason is not None:
                lines.append(f"no line for {system.name} under {scenario.name}: {reason}")
    lines += [f"left out: {name}: {reason}" for name, reason in rig.left_out.items()]
    return lines


# --- The command ------------------------------------------------------------------------------------------------------


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: checks results, figures mean nothing")
    parser.add_argument("--only", nargs="+", default=[], metavar="TEXT", help="scenarios whose name has this")
    parser.add_argument("--systems", nargs="+", default=[], metavar="TEXT", help="clients whose name has this")
    parser.add_argument("--rounds", type=int, default=0, metavar="N", help="times each; 3, or 1 with --quick")
    parser.add_argument("--seconds", type=float, default=0.6, metavar="S", help="how long a round is to take [0.6]")
    parser.add_argument("--json", action="store_true", help="print the document instead of the table")
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
    parent = Path(os.environ.get("CMQ_BENCH_DIR", ROOT / "build" / "bench" / "data"))
    parent.mkdir(parents=True, exist_ok=True)
    when, machine, figures = time.strftime("%Y-%m-%d-%H%M%S"), facts(parent), list[Figure]()
    begin, saved = time.monotonic(), Path()
    home = Path(tempfile.mkdtemp(prefix="client-", dir=parent))
    try:
        with Rig(home, console, arguments) as rig:
            run = Run(console, rig, arguments)
            wanted = [scenario for scenario in SCENARIOS if run.is_wanted(scenario)]
            lines = settings_lines(rig, wanted, is_latency_wanted=run.is_latency_wanted)
            # Saved after each scenario: a run that ends early has not measured for nothing.
            for found in run.figures():
                figures += found
                add_ratios(found)
                more = {"settings": lines, "failed": run.failed}
                saved = save_result("client", when, machine, figures, is_quick=arguments.quick, **more)
    finally:
        shutil.rmtree(home)
    if not figures:
        raise SystemExit("nothing was measured: no scenario or no client has that in its name, or all failed")
    if arguments.json:
        print(saved.read_text(encoding="utf-8"))
    else:
        title = f"{when}, commit {commit()}, {machine['processor']}, {machine['processors']} cores"
        print_figures(console, figures, title + (": QUICK, these figures mean nothing" if arguments.quick else ""))
        for line in lines:
            console.print(line, highlight=False, markup=False)
        took = f"{time.monotonic() - begin:.0f} s; load was {machine['load_at_start']:.1f} at the start"
        console.print(f"saved as {saved}; took {took}", highlight=False)
    if run.failed:
        console.print(f"failed, with traces in that file: {'; '.join(run.failed)}", highlight=False, markup=False)
    return 1 if run.failed else 0


if __name__ == "__main__":
    sys.exit(main())
