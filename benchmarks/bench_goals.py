"""The goals that figures are held against, by the figures' names."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bench_support import Figure

Judge = Callable[[Figure, Mapping[str, Figure]], "bool | None"]


@dataclass(frozen=True)
class Goal:
    """A goal: for which figures, in words, and whether a figure reaches it (None: unknown)."""

    names: re.Pattern[str]
    text: str
    judge: Judge


def _at_least(value: float) -> Judge:
    return lambda figure, _: figure["value"] >= value


def _at_most(value: float) -> Judge:
    return lambda figure, _: figure["value"] <= value


def _ratio(value: float) -> Judge:
    return lambda figure, _: figure["ratio"] >= value if "ratio" in figure else None


def _ratio_at_most(value: float) -> Judge:
    return lambda figure, _: figure["ratio"] <= value if "ratio" in figure else None


def _at_most_ratio(value: float) -> Judge:
    return lambda figure, _: figure["ratio"] <= value if "ratio" in figure else None


def _share_of(part: str, other: str, share: float) -> Judge:
    """At least so much of the figure whose name has ``other`` in place of ``part``."""

    def judge(figure: Figure, all_figures: Mapping[str, Figure]) -> bool | None:
        base = all_figures.get(figure["name"].replace(part, other))
        return None if base is None else figure["value"] >= share * base["value"]

    return judge


def _as_with(smaller: str, factor: float) -> Judge:
    """At most so many times the figure of the smaller store."""

    def judge(figure: Figure, all_figures: Mapping[str, Figure]) -> bool | None:
        base = all_figures.get(re.sub(r"^scale/[^/]+/", f"scale/{smaller}/", figure["name"]))
        return None if base is None else figure["value"] <= factor * base["value"]

    return judge


GOALS = [
    Goal(re.compile(names), text, judge)
    for names, text, judge in [
        (r"append/async/128B/batch-4000/no key/warm", "20 M/s", _at_least(20e6)),
        (r"append/async/1024B/batch-4000/no key/warm", "9 M/s", _at_least(9e6)),
        (r"python/append/async/128B/batch-4000/no key/.*", "8 M/s", _at_least(8e6)),
        (r"python/append/async/1024B/batch-4000/no key/.*", "4 M/s", _at_least(4e6)),
        (r".*append/async/.*/batch-4000/1 key/(?!sustained).*", "60 % of no key", _share_of("1 key", "no key", 0.6)),
        (r"append/sync/.*/(batch-1000|batch-4000|appenders-64)/.*", "80 % of floor", _ratio(0.8)),
        (r"read/tag scan/.*", "0.75 ns", _at_most(0.75)),
        (r"python/read/tag scan, (none|1 of 1000),.*", "2 ns", _at_most(2)),
        (r"follow/async/p99", "100 us", _at_most(100)),
        (r"follow/sync/p99", "350 us", _at_most(350)),
        (r"recover/crash/.*", "0.2 s/GiB", _at_most(0.2)),
        (r"recover/crash, cold/.*", "0.45 s/GiB", _at_most(0.45)),
        (r"queues/50,000: memory when idle.*", "16 MiB", _at_most(16)),
        (r"queues/50,000: memory after the restart", "16 MiB", _at_most(16)),
        (r"queues/50,000: (make and put|first flush|restart).*", "seconds", _at_most(10)),
        (r"query/1024B/hash every byte/(duckdb|polars)/cometmq", "2x Parquet", _ratio(2)),
        (r"query/100B/hash every byte/(duckdb|polars)/cometmq", "1x Parquet", _ratio(1)),
        (r"query/1024B/five columns/spark/cometmq", "0.7x Parquet", _ratio(0.7)),
        (r"spark/.*/(tag|offset range|time range), 1 %|spark/.*/one key", "10x all rows", _ratio(10)),
        (r"spark/100B/rows by Arrow", "25x tuples", _ratio(25)),
        (r"spark/100B/catch-up", "3 M/s", _at_least(3e6)),
        (r"spark/.*/micro-batch", "within 10 %", _ratio(1 / 1.1)),
        (r"query/1024B/hash every byte/spark/cometmq jvm", "2.5x Parquet", _ratio(2.5)),
        (r"query/100B/hash every byte/spark/cometmq jvm", "2x Parquet", _ratio(2)),
        (r"query/1024B/noop sink/spark/cometmq jvm", "4x Parquet", _ratio(4)),
        (r"query/100B/noop sink/spark/cometmq jvm", "2x Parquet", _ratio(2)),
        (r"spark/1024B/write by the JVM", "1x Parquet", _ratio(1)),
        (r"spark/.*/planned: .*", "2x empty job", _ratio(1 / 2)),
        (r"spark/.*/tag, 1 % by the JVM", "10x all rows", _ratio(10)),
        (r"spark/100B/catch-up by the JVM", "3 M/s", _at_least(3e6)),
        (r"spark/.*/micro-batch by the JVM", "within 10 %", _ratio(1 / 1.1)),
        (r"spark/1024B/against Kafka: (hash every byte|noop sink)", "5x Kafka", _ratio(5)),
        (r"scan/1024B/body views and five columns", "20 M/s", _at_least(20e6)),
        (r"async: send .* (16|64|256) in flight: CPU us/message", "1/10 of Java", _ratio_at_most(0.1)),
        (r"async: send .*batches of 32.*: CPU us/message", "1/10 of Java", _ratio_at_most(0.1)),
        (r"async: send .* connections?, 1 in flight: CPU us/message", "1/6 of Java", _ratio_at_most(1 / 6)),
        (r"async: send 128 B, 4 connections, 256 in flight: messages/s", "1.2 M/s", _at_least(1.2e6)),
        (r"async: send .*batches of 32.*: messages/s", "4.5 M/s", _at_least(4.5e6)),
        (r"async: produce to consume.*: p99 us", "100 us", _at_most(100)),
        (r"sync: produce to consume.*: p99 us", "350 us", _at_most(350)),
        (r"(a)?sync: send .*Python busy.*: p99 us", "2 ms", _at_most(2000)),
        (r"pop and ack, .*: messages/s", "300 k/s", _at_least(300e3)),
        (r"(stored: )?pop and ack, .*: CPU us/message", "1/10 of Java", _ratio_at_most(0.1)),
        (r"1 million popped by 32, .*: bytes/message in memory", "4 B", _at_most(4)),
        (r"async: transactions .*: CPU us/message", "1/10 of Java", _ratio_at_most(0.1)),
        (r"async: transactions .*: messages/s", "5x Java", _ratio(5)),
        (r"async: SQL92 pulls.*: CPU us/message", "1/10 of Java", _ratio_at_most(0.1)),
        (r"async: request and reply.*: p50 us", "1/2 of Java", _ratio_at_most(0.5)),
        (r"selector/three comparisons", "60 ns", _at_most(60)),
        (r"async: 50,000 queues: MiB more", "16 MiB", _at_most(16)),
        (
            r"scale/100 million/(append of one|.*random reads, newest).*",
            "as with 1 million",
            _as_with("1 million", 1.5),
        ),
        (r"scale/100 million/(open after|memory|descriptors).*", "as with 1 million", _as_with("1 million", 1.5)),
        (r"client/send, pipelined/128B/cometmq.*, our broker", "200 k/s", _at_least(200e3)),
        (r"client/send, accumulated/128B/cometmq.*, our broker", "1 M/s", _at_least(1e6)),
        (r"client/consume, listener/128B/cometmq.*, our broker", "250 k/s", _at_least(250e3)),
        (r"client/consume, batch listener/128B/cometmq.*, our broker", "1 M/s", _at_least(1e6)),
        (r"client/latency, .*/p99/cometmq.*, our broker", "300 us", _at_most(300)),
        (r"client/(send|consume|receive), .*/(?!cometmq)[^/]*", "ours faster", _at_most_ratio(1)),
        (r"client/latency, .*/p(50|99)/(?!cometmq)[^/]*", "ours faster", _ratio(1)),
    ]
]


def goal_of(figure: Figure) -> Goal | None:
    """Return the goal of a figure, if it has one."""
    for goal in GOALS:
        if goal.names.fullmatch(figure["name"]):
            return goal
    return None
