"""Runs the query benchmarks and prints one table: ``make bench-query``, or

    python benchmarks/run_query.py [--quick] [--only TEXT ...] [--gib N] [--goals] [--json]

DuckDB, Polars and Spark over the live log, against Parquet of the same rows, uncompressed and ZSTD, in one warmed
session per data set (100 B and 1 KiB bodies); Spark's also streams, writes, the way through a broker, and, where Maven
gets its jars, Spark's Kafka source over a Kafka broker with the same rows. ``--goals`` measures only what the goals of
the engine in Spark's JVM need. ``--only``
takes parts of steps' names (local/100B, spark); ``local=hash`` asks only questions with that in their name. ``--gib``
sets how many GiB of bodies Spark gets in each data set. Results, directories and the file of figures are as of
``run_store.py``.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from bench_goals import goal_of
from bench_machine import ROOT, commit, facts
from bench_results import save_result
from bench_support import Figure
from bench_table import number, table_console
from cometmq.spark.requirements import missing
from query.data import FULL, ROW_GROUP_ROWS
from run_store import Run, Step, wanted_steps


def local_steps(quick: bool) -> Iterator[Step]:
    """Engines in the process that reads the log."""
    for data in FULL:
        command = [sys.executable, "-m", "query.local_main", data.name]
        yield Step(f"local/{data.name}", [*command, *(["--quick"] if quick else [])])


def spark_steps(quick: bool, gib: float | None, goals: bool) -> Iterator[Step]:
    """Spark's sessions, in a JVM and Python workers."""
    for data in FULL:
        command = [sys.executable, "-m", "query.spark_main", data.name]
        size = [] if gib is None else ["--gib", str(gib)]
        flags = [flag for flag, is_set in (("--quick", quick), ("--goals", goals)) if is_set]
        yield Step(f"spark/{data.name}", [*command, *flags, *size])
        yield Step(f"kafka/{data.name}", [*command, *flags, *size, "--only", "kafka"], takes_only=False)


def all_steps(quick: bool, gib: float | None, goals: bool) -> Iterator[Step]:
    """Every session."""
    if not goals:
        yield from local_steps(quick)
    yield from spark_steps(quick, gib, goals)


# --- The table --------------------------------------------------------------------------------------------------------

SOURCES = ("cometmq", "parquet none", "parquet zstd")


def print_queries(console: Console, figures: list[Figure], title: str) -> None:
    """Print a line per question and engine: milliseconds, and how many times as fast the log is.

    By the clock against both files, and by processor time against uncompressed Parquet.
    """
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("question")
    for column in ("log, ms", "Parquet, ms", "ZSTD, ms", "to Parquet", "to ZSTD", "by CPU", "goal"):
        table.add_column(column, justify="right")
    by_name = {figure["name"]: figure for figure in figures}
    for figure in figures:
        name, _, source = figure["name"].rpartition("/")
        if not name.startswith("query/") or source not in ("cometmq", "cometmq jvm"):
            continue
        values = (by_name.get(f"{name}/{one}", {}).get("value") for one in (source, *SOURCES[1:]))
        ours, none, zstd = values
        goal = goal_of(figure)
        reached = None if goal is None else goal.judge(figure, by_name)
        judged = "" if goal is None else f"{goal.text}: {'yes' if reached else 'no'}"
        row = [
            *("" if value is None else number(value) for value in (ours, none, zstd)),
            *("" if value is None else f"{value / ours:.2f}x" for value in (none, zstd)),
            f"{figure['cpu_ratio']:.2f}x",
            judged,
        ]
        table.add_row(f"{name.removeprefix('query/')}{source.removeprefix('cometmq')}", *row)
    if table.row_count:
        console.print(table)


def print_scans(console: Console, figures: list[Figure]) -> None:
    """Print the rates of the scan alone."""
    table = Table(
        title="the scan alone, one thread, batches released at once", box=box.SIMPLE_HEAD, title_justify="left"
    )
    table.add_column("columns")
    for column in ("rows/s", "ns/row", "goal"):
        table.add_column(column, justify="right")
    by_name = {figure["name"]: figure for figure in figures}
    for figure in figures:
        if figure["name"].startswith("scan/"):
            goal = goal_of(figure)
            judged = "" if goal is None else f"{goal.text}: {'yes' if goal.judge(figure, by_name) else 'no'}"
            rate = figure["value"]
            table.add_row(figure["name"].removeprefix("scan/"), number(rate), number(1e9 / rate), judged)
    console.print(table)


def print_spark(console: Console, figures: list[Figure]) -> None:
    """Print Spark's other figures: filters against reading all, tuples, streams, writes, the wire."""
    table = Table(title="Spark: rates, and milliseconds", box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("figure")
    for column in ("value", "against", "times as good", "goal"):
        table.add_column(column, justify="right")
    by_name = {figure["name"]: figure for figure in figures}
    for figure in figures:
        if figure["name"].startswith("spark/"):
            goal = goal_of(figure)
            judged = "" if goal is None else f"{goal.text}: {'yes' if goal.judge(figure, by_name) else 'no'}"
            value = f"{number(figure['value'])}{'/s' if figure['unit'] == 'msg/s' else ' ms'}"
            held = "ratio" in figure
            floor = f"{figure['floor']}: {number(figure['floor_value'])}" if held else ""
            ratio = f"{figure['ratio']:.2f}x" if held else ""
            table.add_row(figure["name"].removeprefix("spark/"), value, floor, ratio, judged)
    if table.row_count:
        console.print(table)


# --- The command ------------------------------------------------------------------------------------------------------


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: proves that all works")
    parser.add_argument("--only", action="append", default=[], metavar="TEXT", help="steps with this in their name")
    parser.add_argument("--gib", type=float, help="GiB of bodies in each of Spark's data sets, instead of 0.2 to 0.3")
    parser.add_argument("--goals", action="store_true", help="only the goals of the engine in Spark's JVM")
    parser.add_argument("--json", action="store_true", help="print the document instead of the table")
    return parser.parse_args()


def possible_steps(steps: list[Step], console: Console) -> list[Step]:
    """Return the steps whose programs are there; what others lack is printed."""
    spark, kafka = (any(step.name.startswith(part) for step in steps) for part in ("spark/", "kafka/"))
    lacking = missing() if spark or kafka else None
    if lacking is not None:
        console.print(f"Spark's part is left out: {lacking}", highlight=False)
        return [step for step in steps if not step.name.startswith(("spark/", "kafka/"))]
    if kafka:
        from query import spark_kafka

        lacking = spark_kafka.missing()
        if lacking is not None:
            console.print(f"Kafka's part is left out: {lacking}", highlight=False)
            return [step for step in steps if not step.name.startswith("kafka/")]
    return steps


def main() -> None:
    """Run what was asked for."""
    arguments = parse()
    console = table_console(stderr=arguments.json)
    directory = Path(os.environ.get("CMQ_BENCH_DIR", ROOT / "build" / "bench" / "data"))
    directory.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"CMQ_BENCH_DIR": str(directory), "PYTHONPATH": str(ROOT / "benchmarks")}
    machine, when = facts(directory), time.strftime("%Y-%m-%d-%H%M%S")
    run = Run(console, environment)
    steps = wanted_steps(all_steps(arguments.quick, arguments.gib, arguments.goals), arguments.only)
    steps = possible_steps(steps, console)

    def save() -> Path:
        return save_result("query", when, machine, run.figures, is_quick=arguments.quick)

    run.all(steps, save)
    path = save()
    if arguments.json:
        print(path.read_text(encoding="utf-8"))
        raise SystemExit(1 if run.failed else 0)
    title = f"{when}, commit {commit()}, {machine['processor']}, {machine['processors']} cores"
    print_queries(console, run.figures, title + (": QUICK, these figures mean nothing" if arguments.quick else ""))
    if any(figure["name"].startswith("scan/") for figure in run.figures):
        print_scans(console, run.figures)
    print_spark(console, run.figures)
    for versions in sorted({figure["versions"] for figure in run.figures if "versions" in figure}):
        console.print(f"{versions}; Parquet by pyarrow, row groups of {ROW_GROUP_ROWS:,}", highlight=False)
    console.print(f"saved as {path}; load was {machine['load_at_start']:.1f} at the start", highlight=False)
    raise SystemExit(1 if run.failed else 0)


if __name__ == "__main__":
    main()
