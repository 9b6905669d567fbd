"""One warmed session of Spark: ``python -m query.spark_main DATASET [--quick] [--gib N] [--only TEXT] [--goals]``.

Everything is done once to warm up, then several times in turn, source by source, so that what else the machine does
falls on all of them. Each answer must be the same whatever it was read from.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import pyspark
from pyspark.sql import SparkSession

from bench_support import Figure, figure, new_directory
from cometmq.spark import jars
from query.data import QUEUES, QUICK, DataSet, Sources, make
from query.spark_kafka import KAFKA, kafka_asks, kafka_jars, kafka_streams, kafka_topic
from query.spark_reads import (
    EMPTY,
    FILTERED,
    FIVE,
    JVM,
    NARROW,
    PARQUET,
    PLANNED,
    WHOLE,
    Answer,
    Ask,
    all_asks,
    from_parquet,
    tuple_asks,
)
from query.spark_session import CONF, cpu_s, spark_session
from query.spark_streams import (
    FLOOR_ROWS,
    TRIGGER_ROWS,
    catch_up,
    log_stream,
    micro_batch_ms,
    rate_stream,
    write,
)
from query.spark_wire import LIMITS, served, wire_asks

SIZES = (DataSet("100B", 2_000_000, 100), DataSet("1024B", 300_000, 1024))
ROUNDS = 3
ENGINES = {"cometmq": "", JVM: " by the JVM"}
"""What the figures of an engine end with."""


@dataclass
class Taken:
    """The times of a question, round by round."""

    wall_ms: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    """Of the JVM and all Python processes."""


@dataclass(frozen=True)
class Session:
    """The context that all parts share."""

    spark: SparkSession
    sources: Sources
    folder: Path
    quick: bool
    only_goals: bool
    shape: dict[str, Any]
    whole: Answer
    """Rows and hash of all bodies."""

    @property
    def rounds(self) -> int:
        return 1 if self.quick else ROUNDS

    def numbers(self) -> range:
        """The rounds, beginning with 0, which warms up, and which a quick run does without."""
        return range(1 if self.quick else 0, self.rounds + 1)

    def engines(self) -> list[str]:
        """The engines that are measured."""
        return [one for one in ENGINES if (one == JVM and jars()) or (one != JVM and not self.only_goals)]

    @property
    def prefix(self) -> str:
        return f"spark/{self.sources.data.name}"

    def say(self, text: str) -> None:
        print(f"Spark, {self.sources.data.name}: {text}", file=sys.stderr, flush=True)


def against(one: Figure, floor: str, floor_value: float, ratio: float) -> Figure:
    """Hold a figure against a rival's."""
    return one | {"floor": floor, "floor_value": floor_value, "ratio": ratio}


# --- Batches ----------------------------------------------------------------------------------------------------------


def reads(session: Session, only: str) -> list[Figure]:
    """Questions in milliseconds, against Parquet; filters also against reading all."""
    asks = {
        key: ask
        for key, ask in all_asks(session.spark, session.sources, only_goals=session.only_goals).items()
        if only in key[0] or key[0] == EMPTY or (key[0] == WHOLE and key[1] in ENGINES)
    }
    answers: dict[tuple[str, str], Answer] = {}
    taken: dict[tuple[str, str], Taken] = defaultdict(Taken)
    for number in session.numbers():
        session.say(f"reads, round {number} of {session.rounds}")
        for key, ask in asks.items():
            answer = timed(ask, taken[key], counts=number > 0)
            if answer != answers.setdefault(key, answer):
                raise SystemExit(f"{key}: {answer} instead of {answers[key]}")
    check({key: answer for key, answer in answers.items() if key[0] != EMPTY}, session.sources.data)
    found = [*_read_figures(session, taken, only), *_filter_figures(session, taken), *_planned_figures(session, taken)]
    return found if session.only_goals else [*found, *_tuples(session, taken, only)]


def check(answers: dict[tuple[str, str], Answer], data: DataSet) -> None:
    """Hold every answer against the other sources', and the counts against what is known."""
    by_question: dict[str, set[Answer]] = defaultdict(set)
    for (name, _), answer in answers.items():
        by_question[name].add(answer)
    hundredth = (data.messages // QUEUES * 505 // 1000 - data.messages // QUEUES * 495 // 1000) * QUEUES
    known = {"tag, 1 %": data.messages // 100, "one key": 1, "offset range, 1 %": hundredth}
    for name, found in by_question.items():
        if len(found) != 1:
            raise SystemExit(f"{name}: the sources differ: {found}")
        count = next(iter(found))[0]
        right = count > 0 if name.startswith("time range") else count == known.get(name, data.messages)
        if not right:
            raise SystemExit(f"{name}: {count} messages")


def _read_figures(session: Session, taken: dict[tuple[str, str], Taken], only: str) -> list[Figure]:
    found = []
    for (name, source), values in taken.items():
        if only not in name or name == EMPTY:
            continue
        cpu_ms = median(values.cpu_ms)
        one = figure(
            f"query/{session.sources.data.name}/{name}/spark/{source}",
            "ms",
            values.wall_ms,
            cpu_ms=cpu_ms,
            **session.shape | {"columns": NARROW.get(name, FIVE)},
        )
        if source != PARQUET:
            base = taken[name, PARQUET]
            floor = median(base.wall_ms)
            one = against(one, "parquet none, ms", floor, floor / one["value"])
            one["cpu_ratio"] = median(base.cpu_ms) / max(cpu_ms, 1e-6)
        found.append(one)
    return found


def _filter_figures(session: Session, taken: dict[tuple[str, str], Taken]) -> list[Figure]:
    found = []
    for engine, more in ENGINES.items():
        for name in FILTERED:
            if (name, engine) in taken:
                whole_ms = median(taken[WHOLE, engine].wall_ms)
                one = figure(f"{session.prefix}/{name}{more}", "ms", taken[name, engine].wall_ms, **session.shape)
                found.append(against(one, "all rows, ms", whole_ms, whole_ms / one["value"]))
    return found


def _planned_figures(session: Session, taken: dict[tuple[str, str], Taken]) -> list[Figure]:
    """What costs the same for any size, against a job without rows."""
    empty = figure(f"{session.prefix}/{EMPTY}", "ms", taken[EMPTY, "spark"].wall_ms, **session.shape)
    found = [empty]
    for name in PLANNED:
        if (name, JVM) in taken:
            one = figure(f"{session.prefix}/planned: {name}", "ms", taken[name, JVM].wall_ms, **session.shape)
            found.append(against(one, "empty job, ms", empty["value"], empty["value"] / one["value"]))
    return found


def _tuples(session: Session, taken: dict[tuple[str, str], Taken], only: str) -> list[Figure]:
    """Rows a second through Arrow, all of them, against a source of tuples, a part of them."""
    if only not in "tuples":
        return []
    messages = session.sources.data.messages
    rows = max(messages // 20, min(messages, 20_000)) // QUEUES * QUEUES
    through_tuples, through_log = tuple_asks(session.spark, session.sources, rows)
    if through_tuples() != through_log():
        raise SystemExit("tuples: the rows differ from the log's")
    rates = []
    for number in range(session.rounds):
        session.say(f"tuples, round {number + 1} of {session.rounds}")
        begin = time.perf_counter()
        through_tuples()
        rates.append(rows / (time.perf_counter() - begin))
    arrow = [messages / (ms / 1000) for ms in taken[WHOLE, "cometmq"].wall_ms]
    tuples = figure(f"{session.prefix}/rows as tuples", "msg/s", rates, rows=rows, **session.shape)
    one = figure(f"{session.prefix}/rows by Arrow", "msg/s", arrow, **session.shape)
    return [tuples, against(one, "tuples/s", tuples["value"], one["value"] / tuples["value"])]


# --- Streams and writing ----------------------------------------------------------------------------------------------


def streams(session: Session) -> list[Figure]:
    """Catching up, and the least that a micro-batch takes, by each engine."""
    rates: dict[str, list[float]] = defaultdict(list)
    ours: dict[str, list[float]] = defaultdict(list)
    rate_source = []
    batches = 2 if session.quick else 20
    spark, folder = session.spark, session.folder
    for number in session.numbers():
        session.say(f"streams, round {number} of {session.rounds}")
        for engine in session.engines():
            stream = partial(log_stream, spark, session.sources, "jvm" if engine == JVM else "python")
            seconds, answer = catch_up(stream(TRIGGER_ROWS), folder)
            if answer != session.whole:
                raise SystemExit(f"stream: {answer} instead of {session.whole}")
            log_ms = micro_batch_ms(stream(FLOOR_ROWS), folder, batches)
            if number > 0:  # the first warms up
                rates[engine].append(session.sources.data.messages / seconds)
                ours[engine].append(log_ms)
        rate_ms = micro_batch_ms(rate_stream(spark), folder, batches)
        if number > 0:
            rate_source.append(rate_ms)
    shape = session.shape | {"trigger_rows": TRIGGER_ROWS}
    floor = median(rate_source)
    found = []
    for engine in session.engines():
        more = ENGINES[engine]
        one = figure(f"{session.prefix}/micro-batch{more}", "ms", ours[engine], **session.shape)
        found.append(figure(f"{session.prefix}/catch-up{more}", "msg/s", rates[engine], **shape))
        found.append(against(one, "rate source, ms", floor, floor / one["value"]))
    return found


def writes(session: Session) -> list[Figure]:
    """Bodies into a new store, durably, against uncompressed Parquet files, which Spark does not sync."""
    bodies = from_parquet(session.spark, session.sources.parquet_none).select("body")
    rates: dict[str, list[float]] = defaultdict(list)
    for number in session.numbers():
        session.say(f"writes, round {number} of {session.rounds}")
        for sink in (*session.engines(), "parquet"):
            seconds, answer = write(session.spark, bodies, sink, session.folder)
            if answer != session.whole:
                raise SystemExit(f"{sink} written: {answer} instead of {session.whole}")
            if number > 0:
                rates[sink].append(session.sources.data.messages / seconds)
    floor = median(rates["parquet"])
    found = []
    for engine in session.engines():
        one = figure(f"{session.prefix}/write{ENGINES[engine]}", "msg/s", rates[engine], **session.shape)
        found.append(against(one, "Parquet, msg/s", floor, one["value"] / floor))
    return found


# --- Kafka ------------------------------------------------------------------------------------------------------------


def kafka(session: Session) -> list[Figure]:
    """Rows a second of everything, in turn with Spark's Kafka source over the same rows, whose broker's time counts."""
    found = []
    messages = session.sources.data.messages
    with kafka_topic(session.spark, session.sources, session.folder / "kafka") as servers:
        asks = kafka_asks(session.spark, session.sources, servers)
        taken: dict[tuple[str, str], Taken] = defaultdict(Taken)
        catching: dict[str, list[float]] = defaultdict(list)
        for number in session.numbers():
            session.say(f"Kafka, round {number} of {session.rounds}")
            for key, ask in asks.items():
                answer = timed(ask, taken[key], counts=number > 0)
                if answer[0] != messages or answer[1] not in (None, session.whole[1]):
                    raise SystemExit(f"{key}: {answer} instead of {session.whole}")
            for source, stream in kafka_streams(session.spark, session.sources, servers).items():
                seconds, answer = catch_up(stream, session.folder)
                if answer != session.whole:
                    raise SystemExit(f"stream of {source}: {answer} instead of {session.whole}")
                if number > 0:
                    catching[source].append(messages / seconds)
    for name in dict.fromkeys(name for name, _ in asks):
        ours, theirs = taken[name, JVM], taken[name, KAFKA]
        rates = {
            source: [messages / (ms / 1000) for ms in one.wall_ms] for source, one in ((JVM, ours), (KAFKA, theirs))
        }
        floor, cpu_ms = median(rates[KAFKA]), median(ours.cpu_ms)
        one = figure(f"{session.prefix}/against Kafka: {name}", "msg/s", rates[JVM], cpu_ms=cpu_ms, **session.shape)
        one = against(one, "Kafka source, msg/s", floor, one["value"] / floor)
        one["cpu_ratio"] = median(theirs.cpu_ms) / max(cpu_ms, 1e-6)
        found.append(one)
    one = figure(f"{session.prefix}/against Kafka: catch-up", "msg/s", catching[JVM], **session.shape)
    floor = median(catching[KAFKA])
    return [*found, against(one, "Kafka source, msg/s", floor, one["value"] / floor)]


# --- Through a broker -------------------------------------------------------------------------------------------------


def wire(session: Session) -> list[Figure]:
    """Rows a second of everything through a broker, whose processor time counts, in turn with the same from files."""
    found = []
    for limits, settings in LIMITS.items():
        taken = {"wire": Taken(), "files": Taken()}
        with served(session.sources, settings, session.folder / "served.log") as name_server:
            asks = dict(zip(taken, wire_asks(session.spark, session.sources, name_server), strict=True))
            for number in session.numbers():
                session.say(f"wire, {limits}, round {number} of {session.rounds}")
                answers = {name: timed(ask, taken[name], counts=number > 0) for name, ask in asks.items()}
                if len(set(answers.values())) != 1 or answers["wire"][0] != session.sources.data.messages:
                    raise SystemExit(f"wire: the rows differ from the files': {answers}")
        rates = {
            name: [session.sources.data.messages / (ms / 1000) for ms in one.wall_ms] for name, one in taken.items()
        }
        floor, cpu_ms = median(rates["files"]), median(taken["wire"].cpu_ms)
        one = figure(f"{session.prefix}/wire, {limits}", "msg/s", rates["wire"], cpu_ms=cpu_ms, **session.shape)
        one = against(one, "files, msg/s", floor, one["value"] / floor)
        one["cpu_ratio"] = median(taken["files"].cpu_ms) / max(cpu_ms, 1e-6)
        found.append(one)
    return found


def timed(ask: Ask, taken: Taken, *, counts: bool) -> Answer:
    """Ask, and note what it took, unless it warms up."""
    cpu, begin = cpu_s(), time.perf_counter()
    answer = ask()
    if counts:
        taken.wall_ms.append((time.perf_counter() - begin) * 1000)
        taken.cpu_ms.append((cpu_s() - cpu) * 1000)
    return answer


# --- The command ------------------------------------------------------------------------------------------------------


def run(data: DataSet, folder: Path, quick: bool, only: str, only_goals: bool) -> list[Figure]:
    """Make the data, then everything that has ``only`` in its name; Kafka's part where it alone is asked for."""
    sources = make(data, folder)
    shape = {
        "columns": FIVE,
        "gib": round(data.messages * data.body_bytes / 2**30, 2),
        "versions": f"pyspark {pyspark.__version__}, {CONF}",
    }
    with spark_session(folder, kafka_jars() if only == "kafka" else []) as spark:
        row = from_parquet(spark, sources.parquet_none).selectExpr("count(*)", "bit_xor(xxhash64(body))").collect()[0]
        session = Session(spark, sources, folder, quick, only_goals, shape, tuple(row))
        if only == "kafka":
            return kafka(session)
        found = []
        if not only or only not in "streams writes wire":
            found += reads(session, only)
        if only in "streams":
            found += streams(session)
        if only in "writes":
            found += writes(session)
        if only in "wire" and not only_goals:
            found += wire(session)
    return found


def main() -> None:
    """Print figures, one a line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", choices=[data.name for data in SIZES])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--gib", type=float, help="GiB of bodies instead of 0.2 to 0.3")
    parser.add_argument(
        "--only", default="", help="questions with this in their name; or tuples, streams, writes, kafka, wire"
    )
    parser.add_argument("--goals", action="store_true", help="only what the goals of the engine in the JVM need")
    arguments = parser.parse_args()
    data = next(one for one in (QUICK if arguments.quick else SIZES) if one.name == arguments.dataset)
    if arguments.gib is not None:
        # Thousands of messages in each queue, so that a hundredth of them is a whole number.
        data = replace(data, messages=max(1, int(arguments.gib * 2**30 / data.body_bytes) // 20_000) * 20_000)
    with new_directory() as folder:
        for one in run(data, folder, arguments.quick, arguments.only, arguments.goals):
            print(json.dumps(one))


if __name__ == "__main__":
    main()
