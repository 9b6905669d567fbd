"""Runs the benchmarks of the store and prints one table: ``make bench-store``, or

    python benchmarks/run_store.py [--quick] [--only TEXT ...] [--json]
    python benchmarks/run_store.py --scale [--keep]          1 million against 100 million messages

``--only`` takes parts of steps' names (bench_append, api, rivals/lmdb); ``bench_append=async warm`` also passes
``--only`` to the C program. Every step verifies its own results and fails rather than print a wrong figure; the others
go on, and the command ends with 1. The figures are saved after each step in ``CMQ_BENCH_RESULTS``, by default
``benchmarks/results``, with the machine's facts and the load.
Stores are made in ``CMQ_BENCH_DIR``, by default ``build/bench/data``: it should lie on the disk to measure.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from bench_machine import ROOT, commit, facts, load
from bench_results import save_result
from bench_support import Figure, figure
from bench_table import print_table, table_console

RIVAL_ROUNDS = 3
SCALE_MESSAGES = 100_000_000
SCALE_BYTES = SCALE_MESSAGES * 270  # records, queue units and some room


@dataclass(frozen=True)
class Step:
    """One program to run. Its standard error says what it is at; its standard output is figures, one a line."""

    name: str
    command: list[str]
    collect: Callable[[], list[Figure]] | None = None
    """Where its figures are, if not on its standard output."""
    takes_only: bool = True
    """Whether it has an ``--only`` of its own."""


class Run:
    """Runs steps, shows how far it is, and keeps the figures."""

    def __init__(self, console: Console, environment: dict[str, str]) -> None:
        self._console = console
        self._environment = environment
        self.figures: list[Figure] = []
        self.failed: list[str] = []

    def all(self, steps: list[Step], after_each: Callable[[], object]) -> None:
        for number, step in enumerate(steps, 1):
            begin, before = time.monotonic(), load()
            found = self._one(step, f"[{number}/{len(steps)}] {step.name}")
            for one in found:
                one |= {"step": step.name, "load_before": before, "load_after": load()}
            self.figures += found
            after_each()
            seconds = time.monotonic() - begin
            if not found:
                continue
            self._console.print(
                f"[{number}/{len(steps)}] {step.name}: {len(found)} figures in {seconds:.0f} s, load {load():.1f}",
                highlight=False,
                markup=False,
            )

    def _one(self, step: Step, title: str) -> list[Figure]:
        lines: list[str] = []
        with (
            tempfile.TemporaryFile("w+", encoding="utf-8") as output,
            self._console.status(title, spinner="line") as status,
            subprocess.Popen(
                step.command, stdout=output, stderr=subprocess.PIPE, text=True, env=self._environment, cwd=ROOT
            ) as process,
        ):
            assert process.stderr is not None
            for line in process.stderr:
                lines.append(line)
                status.update(f"{title}: {line.strip()}")
            process.wait()
            output.seek(0)
            text = output.read()
        if process.returncode != 0:
            self._console.print("".join(lines[-30:]) + text[-4000:], highlight=False, markup=False)
            self._console.print(f"{title} failed: see above. No figure of it is kept.", highlight=False, markup=False)
            self.failed.append(step.name)
            return []
        if step.collect is not None:
            return step.collect()
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


# --- Steps ------------------------------------------------------------------------------------------------------------


def micro_steps(build: Path, quick: bool, directory: Path) -> Iterator[Step]:
    """Every C program but the one for millions of messages."""
    programs = sorted(path for path in build.glob("bench_*") if path.is_file() and os.access(path, os.X_OK))
    if not programs:
        raise SystemExit(f"there are no C benchmarks in {build}: `make bench-store` builds them")
    for program in programs:
        if program.name != "bench_scale":
            # bench_queues takes its directory as an argument.
            place = [str(directory)] if program.name == "bench_queues" else []
            yield Step(f"micro/{program.name}", [str(program), *(["--quick"] if quick else []), *place])


def api_steps(folder: Path) -> Iterator[Step]:
    """The programs of pytest-benchmark, one process each."""
    for source in sorted((ROOT / "benchmarks" / "api").glob("bench_*.py")):
        results = folder / f"{source.stem}.json"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            f"--benchmark-json={results}",
            "--benchmark-disable-gc",
            str(source),
        ]
        yield Step(
            f"api/{source.stem}",
            command,
            lambda results=results: list(_from_pytest(results)),  # type: ignore[misc]
            takes_only=False,
        )


def _from_pytest(results: Path) -> Iterator[Figure]:
    """Figures from pytest-benchmark's file: seconds per round, and what the Meter noted."""
    per = {"ns": 1e9, "us": 1e6, "ms": 1e3}
    for one in json.loads(results.read_text(encoding="utf-8"))["benchmarks"]:
        info: dict[str, Any] = one["extra_info"]
        name, unit, operations = info.pop("name"), info.pop("unit"), info.pop("operations")
        rounds = one["stats"]["data"]
        values = [operations / s if unit == "msg/s" else s * per[unit] / operations for s in rounds]
        yield figure(name, unit, values, operations=operations, **info)


def rival_steps(quick: bool) -> Iterator[Step]:
    """Engines in turn, several times over, each in a process of its own."""
    from rivals.engines import ENGINES

    for _ in range(1 if quick else RIVAL_ROUNDS):
        for body_bytes in (128, 1024):
            for mode in ("durable", "relaxed"):
                for engine, kind in ENGINES.items():
                    if mode == "durable" and not kind.durable_setting:
                        continue
                    command = [sys.executable, "-m", "rivals.rival_main", engine, mode, str(body_bytes)]
                    name = f"rivals/{engine}/{mode}/{body_bytes}B"
                    yield Step(name, [*command, *(["--quick"] if quick else [])], takes_only=False)


def wanted_steps(steps: Iterable[Step], only: list[str]) -> list[Step]:
    """Keep the steps that are asked for."""
    if not only:
        return list(steps)
    found = []
    for step in steps:
        for text in only:
            part, _, inside = text.partition("=")
            if part in step.name and (not inside or step.takes_only):
                found.append(replace(step, command=[*step.command, *(["--only", inside] if inside else [])]))
                break
    if not found:
        raise SystemExit(f"no step has any of {', '.join(only)} in its name")
    return found


# --- Figures ----------------------------------------------------------------------------------------------------------


def join_rounds(figures: list[Figure]) -> list[Figure]:
    """Make one figure of those with the same name."""
    by_name: dict[str, list[Figure]] = {}
    for one in figures:
        by_name.setdefault(one["name"], []).append(one)
    return [same[0] if len(same) == 1 else {**same[-1], **_joined(same)} for same in by_name.values()]


def _joined(same: list[Figure]) -> Figure:
    return figure(same[0]["name"], same[0]["unit"], [one["value"] for one in same])


def add_ratios(figures: list[Figure]) -> None:
    """Hold Python against the C core, and CometMQ against each rival, within this run."""
    by_name = {one["name"]: one for one in figures}
    for one in figures:
        core = by_name.get(one.pop("core", ""))
        if core is not None:
            one |= {"floor": "the C core alone", "floor_value": core["value"], "ratio": one["value"] / core["value"]}
        if one["name"].startswith("rivals/") and not one["name"].endswith("/cometmq"):
            ours = by_name.get(one["name"].rpartition("/")[0] + "/cometmq")
            if ours is not None:
                one |= {"floor": "cometmq", "floor_value": ours["value"], "ratio": one["value"] / ours["value"]}


# --- 100 million ------------------------------------------------------------------------------------------------------


def scale_steps(build: Path, quick: bool, directory: Path, keep: bool, console: Console) -> list[Step]:
    """1 million, then 100 million. An interrupted fill goes on where it stopped."""
    program = str(build / "bench_scale")
    if quick:
        return [Step("micro/bench_scale", [program, "--quick"])]
    store = directory / "scale-100m"
    there = sum(path.stat().st_blocks * 512 for path in store.rglob("*") if path.is_file()) if store.exists() else 0
    need, free = max(SCALE_BYTES - there, 0), shutil.disk_usage(directory).free
    console.print(
        f"100 million messages take {SCALE_BYTES / 2**30:.0f} GiB in {store}; {there / 2**30:.1f} GiB are there, "
        f"{free / 2**30:.0f} GiB are free. {'Kept' if keep else 'Removed'} at the end.",
        highlight=False,
    )
    if need + 2 * 2**30 > free:
        raise SystemExit(f"{need / 2**30:.0f} GiB more are needed, and 2 to spare: set CMQ_BENCH_DIR to a larger disk")
    large = [program, "--messages", str(SCALE_MESSAGES), "--directory", str(store), *(["--keep"] if keep else [])]
    return [Step("micro/bench_scale, 1 million", [program]), Step("micro/bench_scale, 100 million", large)]


# --- The command ------------------------------------------------------------------------------------------------------


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes: proves that all works; figures without meaning"
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="TEXT", help="steps with this in their name; several"
    )
    parser.add_argument("--json", action="store_true", help="print the document instead of the table")
    parser.add_argument("--scale", action="store_true", help="1 million against 100 million messages")
    parser.add_argument("--keep", action="store_true", help="with --scale: leave the large store")
    parser.add_argument("--build-dir", type=Path, default=ROOT / "build" / "release", help="where the C programs are")
    return parser.parse_args()


def all_steps(arguments: argparse.Namespace, build: Path, directory: Path, folder: Path) -> Iterator[Step]:
    """Everything but 100 million messages; the C programs are asked for only where they are wanted."""
    only = arguments.only
    if not only or any(
        text.partition("=")[0] in "micro/bench_" or text.startswith(("micro", "bench_")) for text in only
    ):
        yield from micro_steps(build, arguments.quick, directory)
    yield from api_steps(folder)
    yield from rival_steps(arguments.quick)


def report_failures(run: Run) -> None:
    """End with 1 where a step failed."""
    if run.failed:
        raise SystemExit(f"failed: {', '.join(run.failed)}")


def main() -> None:
    """Run what was asked for."""
    arguments = parse()
    console = table_console(stderr=arguments.json)
    directory = Path(os.environ.get("CMQ_BENCH_DIR", ROOT / "build" / "bench" / "data"))
    directory.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"CMQ_BENCH_DIR": str(directory), "PYTHONPATH": str(ROOT / "benchmarks")}
    if arguments.quick:
        environment["CMQ_BENCH_QUICK"] = "1"
    build = arguments.build_dir / "benchmarks"
    machine, when = facts(directory), time.strftime("%Y-%m-%d-%H%M%S")
    run = Run(console, environment)

    def save() -> Path:
        name = "100m" if arguments.scale else "store"
        return save_result(name, when, machine, run.figures, is_quick=arguments.quick)

    with tempfile.TemporaryDirectory() as folder:
        if arguments.scale:
            steps = scale_steps(build, arguments.quick, directory, arguments.keep, console)
        else:
            steps = wanted_steps(all_steps(arguments, build, directory, Path(folder)), arguments.only)
        # After each step: a run that is interrupted keeps what it has.
        run.all(steps, save)
    run.figures = join_rounds(run.figures)
    add_ratios(run.figures)
    path = save()
    if arguments.json:
        print(path.read_text(encoding="utf-8"))
        report_failures(run)
        return
    title = (
        f"{when}, commit {commit()}, {machine['processor']}, {machine['processors']} cores, {machine['file_system']}"
    )
    print_table(console, run.figures, title + (": QUICK, these figures mean nothing" if arguments.quick else ""))
    console.print(f"saved as {path}; load was {machine['load_at_start']:.1f} at the start", highlight=False)
    report_failures(run)


if __name__ == "__main__":
    main()
