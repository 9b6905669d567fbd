"""One session of DuckDB and Polars in one process: ``python -m query.local_main DATASET [--quick]``.

All questions are asked once to warm up, then several times in turn: engine by engine, source by source, so that what
else the machine does falls on all of them. Each answer must be the same whatever it was read from.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import duckdb
import polars as pl

import cometmq
from bench_support import Figure, figure, new_directory
from query.data import FULL, QUICK, TOPIC, DataSet, Sources, make
from query.engines import Answer, Ask, duckdb_asks, polars_asks, questions

ROUNDS = 7
FIXED = ("queue_id", "queue_offset", "born_timestamp", "store_timestamp", "physical_offset")

Key = tuple[str, str, str]


def all_asks(connection: duckdb.DuckDBPyConnection, store: cometmq.Store, sources: Sources) -> dict[Key, Ask]:
    """Every question by (name, engine, source)."""
    found: dict[Key, Ask] = {}
    for question in questions(store, sources):
        for engine, asks in (
            ("duckdb", duckdb_asks(connection, store, sources, question)),
            ("polars", polars_asks(store, sources, question)),
        ):
            for source, ask in asks.items():
                found[question.name, engine, source] = ask
    return found


def check(answers: dict[Key, Answer], data: DataSet) -> None:
    """Hold every answer against the others', and the counts against what is known."""
    by_question: dict[tuple[str, str], set[Answer]] = defaultdict(set)
    for (name, engine, _), answer in answers.items():
        by_question[name, engine].add(answer)
    for (name, engine), found in by_question.items():
        if len(found) != 1:
            raise SystemExit(f"{engine}, {name}: the sources differ: {found}")
        count = next(iter(found))[0]
        expected = {"tag, 1 %": data.messages // 100, "one key": 1}.get(name, data.messages)
        if count != expected and not name.startswith("time range"):
            raise SystemExit(f"{engine}, {name}: {count} messages instead of {expected}")


@dataclass
class Taken:
    """The times of a question, round by round."""

    wall_ms: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    """Of all threads: tells more than the clock where others use the machine."""


def measure(asks: dict[Key, Ask], data: DataSet, rounds: int) -> dict[Key, Taken]:
    """Ask everything, several times in turn."""
    check({key: ask() for key, ask in asks.items()}, data)
    taken: dict[Key, Taken] = defaultdict(Taken)
    for number in range(rounds):
        print(f"{data.name}: round {number + 1} of {rounds}", file=sys.stderr, flush=True)
        answers = {}
        for key, ask in asks.items():
            begin, cpu = time.perf_counter(), time.process_time()
            answers[key] = ask()
            taken[key].wall_ms.append((time.perf_counter() - begin) * 1000)
            taken[key].cpu_ms.append((time.process_time() - cpu) * 1000)
        check(answers, data)
    return taken


def figures(taken: dict[Key, Taken], sources: Sources) -> list[Figure]:
    """Milliseconds; ratios are how many times as fast as uncompressed Parquet, by the clock and by processor time."""
    data = sources.data
    shape = {
        "columns": "body, tags, keys, queue, offset, 2 times",
        "gib": round(data.messages * data.body_bytes / 2**30, 2),
        "versions": f"duckdb {duckdb.__version__}, polars {pl.__version__}",
    }
    found = []
    for (name, engine, source), values in taken.items():
        cpu_ms = median(values.cpu_ms)
        one = figure(f"query/{data.name}/{name}/{engine}/{source}", "ms", values.wall_ms, cpu_ms=cpu_ms, **shape)
        if source != "parquet none":
            base = taken[name, engine, "parquet none"]
            floor = median(base.wall_ms)
            one |= {"floor": "parquet none, ms", "floor_value": floor, "ratio": floor / one["value"]}
            one |= {"cpu_ratio": median(base.cpu_ms) / max(cpu_ms, 1e-6)}
        found.append(one)
    return found


def scan_figures(store: cometmq.Store, data: DataSet, rounds: int) -> list[Figure]:
    """The scan alone: rows a second that become Arrow arrays, released at once."""
    forms = {
        "body views and five columns": {"columns": ("body", *FIXED)},
        "body views": {"columns": ("body",)},
        "bodies gathered and five columns": {"columns": ("body", *FIXED), "body": "binary"},
        "five columns": {"columns": FIXED},
        "default columns": {},
    }
    rates: dict[str, list[float]] = defaultdict(list)
    for number in range(rounds + 1):
        for name, options in forms.items():
            begin = time.perf_counter()
            rows = sum(batch.num_rows for batch in store.scan(TOPIC, **options))  # type: ignore[arg-type]
            taken = time.perf_counter() - begin
            if rows != data.messages:
                raise SystemExit(f"{name}: {rows} rows instead of {data.messages}")
            if number > 0:
                rates[name].append(rows / taken)
    return [figure(f"scan/{data.name}/{name}", "msg/s", values) for name, values in rates.items()]


def main() -> None:
    """Print figures, one a line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", choices=[data.name for data in FULL])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="", help="questions with this in their name")
    arguments = parser.parse_args()
    data = next(one for one in (QUICK if arguments.quick else FULL) if one.name == arguments.dataset)
    rounds = 1 if arguments.quick else ROUNDS
    with new_directory() as folder:
        sources = make(data, Path(folder))
        with cometmq.open(sources.store, mode="r") as store, duckdb.connect() as connection:
            asks = {key: ask for key, ask in all_asks(connection, store, sources).items() if arguments.only in key[0]}
            found = scan_figures(store, data, rounds) + figures(measure(asks, data, rounds), sources)
    for one in found:
        print(json.dumps(one))


if __name__ == "__main__":
    main()
