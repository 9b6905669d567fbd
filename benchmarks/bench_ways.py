"""The command line of benchmarks that measure several ways to do one thing: options, the folder, the table."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from bench_machine import ROOT, facts, load
from bench_results import figures_of_rows, save_result
from bench_table import number, table_console

__all__ = ["medians", "parser_of", "run_and_print"]

_BODY_BYTES_MIN = 8


def parser_of(description: str | None, ways: Sequence[str]) -> argparse.ArgumentParser:
    """Return a parser with the options that all have; more may be added."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", nargs="+", choices=ways, default=ways, metavar="WAY", help=", ".join(ways))
    parser.add_argument("--body-bytes", type=int, default=128, metavar="N")
    parser.add_argument("--flush", choices=("async", "sync"), default="async", help="the broker's")
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    return parser


def medians(runs: Mapping[str, Sequence[Mapping[str, float]]]) -> list[dict[str, Any]]:
    """Return a row for each way: the medians of its rounds."""
    return [
        {"way": way} | {name: statistics.median(one[name] for one in found) for name in found[0]}
        for way, found in runs.items()
    ]


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in row.items() if name != "way"}


def run_and_print(
    parser: argparse.ArgumentParser,
    run: Callable[[Path, argparse.Namespace], list[dict[str, Any]]],
    *,
    prefix: str,
) -> int:
    """Run with what the command line says, and print the rows.

    Args:
        parser: from :func:`parser_of`.
        run: gets an empty folder and the arguments, and returns the rows.
        prefix: the folder's name begins with it.
    """
    arguments = parser.parse_args()
    if arguments.body_bytes < _BODY_BYTES_MIN:
        parser.error(f"a body has at least {_BODY_BYTES_MIN} bytes")
    parent = Path(os.environ.get("CMQ_BENCH_DIR", ROOT / "build" / "bench" / "data"))
    parent.mkdir(parents=True, exist_ok=True)
    before, when, machine = load(), time.strftime("%Y-%m-%d-%H%M%S"), facts(parent)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=parent) as home:
        rows = run(Path(home), arguments)
    benchmark, program = prefix.rstrip("-"), Path(parser.prog).name
    named = [{"name": f"{arguments.body_bytes}B", row["way"]: _numbers(row)} for row in rows]
    figures = figures_of_rows(benchmark, named)
    save_result(benchmark, when, machine, list(figures), command=f"python benchmarks/{program}", flush=arguments.flush)
    if arguments.json:
        print(json.dumps({"load": before, "flush": arguments.flush, "rows": rows}, indent=1))
        return 0
    table = Table(box=box.SIMPLE, title=f"{arguments.body_bytes} B, {arguments.flush} flush; load before {before}")
    names = list(dict.fromkeys(name for row in rows for name in row))
    for name in names:
        table.add_column(name, justify="left" if name == "way" else "right")
    for row in rows:
        cells = (row.get(name, "") for name in names)
        table.add_row(*(cell if isinstance(cell, str) else number(cell) for cell in cells))
    table_console().print(table)
    return 0
