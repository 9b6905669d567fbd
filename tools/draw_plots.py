"""Draws benchmark figures as SVG: ``make plots``.

    python tools/draw_plots.py                          docs/pictures, from benchmarks/results/published
    python tools/draw_plots.py --to DIR RESULT.json ... the same pictures of other runs

Rates, times and CPU differ by orders of magnitude, so every axis is logarithmic and a value is a dot, not a bar. A
picture is left out where the results have none of its figures.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from svg_page import Page

ROOT = Path(__file__).resolve().parent.parent
PUBLISHED = ROOT / "benchmarks" / "results" / "published"
PICTURES = ROOT / "docs" / "pictures"

Figures = Mapping[str, Mapping[str, Any]]
"""Figures by name."""

_WIDTH, _LABELS, _ROW = 960, 300, 27
_TOP = 104
"""Where the first row begins, below title, legend and the panels' titles."""
_LETTERS = ((1e6, "M"), (1e3, "k"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One axis: ``values`` by row and series, ``None`` where there is no figure."""

    title: str
    values: Sequence[Sequence[float | None]]
    format: Callable[[float], str]


def _rate(value: float) -> str:
    for size, letter in _LETTERS:
        if value >= size:
            return f"{value / size:.3g} {letter}/s"
    return f"{value:.3g}/s"


def _time_us(value: float) -> str:
    return f"{value / 1000:.3g} ms" if value >= 1000 else f"{value:.3g} us"


def _time_ns(value: float) -> str:
    return _time_us(value / 1000) if value >= 1000 else f"{value:.3g} ns"


def _chart(title: str, note: str, rows: Sequence[str], series: Sequence[str], panels: Sequence[Panel]) -> str | None:
    """Return a picture of rows with a dot for each series in each panel; nothing without figures."""
    if not any(value is not None for panel in panels for row in panel.values for value in row):
        return None
    height = _TOP + len(rows) * _ROW + 56
    page = Page(_WIDTH, height, title, f"{title}. {note}. Rows: {'; '.join(rows)}. Series: {', '.join(series)}.")
    page.words(24, 34, title, "title")
    x = 24.0
    for index, name in enumerate(series):
        page.dot(x + 5, 54, index)
        page.words(x + 15, 58, name)
        x += 15 + 6.9 * len(name) + 22
    for index, row in enumerate(rows):
        page.words(24, _TOP + index * _ROW + 18, row)
    width = (_WIDTH - _LABELS - 24) / len(panels)
    for index, panel in enumerate(panels):
        _draw_panel(page, panel, _LABELS + index * width, width - 24, len(rows))
    page.words(24, height - 14, note, "note")
    return page.text()


def _draw_panel(page: Page, panel: Panel, left: float, width: float, rows: int) -> None:
    found = [value for row in panel.values for value in row if value]
    if not found:
        return
    pair = len(panel.values[0]) == 2
    axis = width - (48 if pair else 0)  # a column at the end for the ratio of the two
    low, high = math.log10(min(found)) - 0.15, math.log10(max(found)) + 0.15
    if math.floor(high) - math.ceil(low) < 1:  # at least two marks
        low, high = math.floor(low), math.ceil(high)
    powers = range(math.ceil(low), math.floor(high) + 1)
    every = 1 if len(powers) <= 5 else 2

    def place(value: float) -> float:
        return left + (math.log10(value) - low) / (high - low) * axis

    bottom = _TOP + rows * _ROW
    page.words(left, _TOP - 14, panel.title, "head")
    for power in powers:
        at = place(10.0**power)
        page.line([(at, _TOP - 4), (at, bottom)], "grid")
        if (power - powers[0]) % every == 0:
            anchor = "start" if at < left + 20 else "end" if at > left + width - 20 else "middle"
            page.words(at, bottom + 18, panel.format(10.0**power), "note", anchor)
    for index, row in enumerate(panel.values):
        y = _TOP + index * _ROW + 13.5
        places = [place(value) for value in row if value]
        if len(places) > 1:
            page.line([(min(places), y), (max(places), y)])
        for series, value in reversed(list(enumerate(row))):
            if value:
                page.dot(place(value), y, series)
        if pair and row[0] and row[1]:
            ratio = max(row[0] / row[1], row[1] / row[0])
            page.words(left + width, y + 4.5, f"{ratio:.2g}x", "note", "end")


# --- The pictures -----------------------------------------------------------------------------------------------------


def _values(figures: Figures, names: Sequence[Sequence[str]], member: str = "value") -> list[list[float | None]]:
    return [[figures.get(name, {}).get(member) for name in row] for row in names]


_PEERS = ("CometMQ", "Apache RocketMQ 5.3.3")
_SIDES = ("ours", "Java")


def _broker(figures: Figures) -> str | None:
    rows = (
        *("send 128 B, 1 connection, 1 in flight", "send 128 B, 16 connections, 1 in flight"),
        *("send 128 B, 64 connections, 1 in flight", "send 128 B, 1 connection, 64 in flight"),
        *("send 128 B, 4 connections, 256 in flight", "send 1 KiB, 4 connections, 64 in flight"),
        "send 128 B, batches of 32, 4 connections, 8 in flight",
        *("consume 128 B, 4 connections", "consume 1 KiB, 4 connections"),
    )

    def panel(title: str, number: str, form: Callable[[float], str]) -> Panel:
        names = [[f"broker/sync: {row}/{number}/{side}" for side in _SIDES] for row in rows]
        return Panel(title=title, values=_values(figures, names), format=form)

    labels = [row.replace(" connections", " conn.").replace(" connection", " conn.") for row in rows]
    return _chart(
        "Broker: rate and CPU, durable sends",
        "make bench-broker: synchronous flush, one load generator for both on the same two cores; medians of 3 rounds",
        [label.replace("batches of 32, 4 conn., 8 in flight", "batches of 32, 4 conn.") for label in labels],
        _PEERS,
        [
            panel("messages per second", "messages/s", _rate),
            panel("broker CPU per message", "CPU us/message", _time_us),
        ],
    )


def _pop(figures: Figures) -> str | None:
    rows = [
        f"{consumers} consumers, {queues} queues, {how}"
        for queues in (8, 1)
        for consumers in (1, 16, 64)
        for how in ("an ack each", "one ack for 32")
    ]

    def panel(title: str, number: str, form: Callable[[float], str]) -> Panel:
        names = [[f"pop/pop and ack, {row}/{number}/{side}" for side in _SIDES] for row in rows]
        return Panel(title=title, values=_values(figures, names), format=form)

    return _chart(
        "POP: messages popped and acknowledged",
        "make bench-pop: 128 B, popped by 32, 4 pops in flight a connection, asynchronous flush; medians of 3 rounds",
        [row.replace("1 consumers", "1 consumer").replace(" 1 queues", " 1 queue") for row in rows],
        _PEERS,
        [
            panel("messages per second", "messages/s", _rate),
            panel("broker CPU per message", "CPU us/message", _time_us),
        ],
    )


_CLIENTS = {
    "cometmq.client, our broker": "cometmq.client",
    "cometmq.aio, our broker": "cometmq.aio",
    "Java client, our broker": "Java client",
    "confluent-kafka, Kafka": "confluent-kafka",
    "nats-py, NATS": "nats-py",
    "redis-py, Redis": "redis-py",
}


def _clients(figures: Figures) -> str | None:
    rows = (
        *("send, one by one", "send, pipelined", "send, accumulated"),
        *("consume, listener", "consume, batch listener", "consume, poll"),
    )
    names = [[f"client/{row}/128B/{client}" for client in _CLIENTS] for row in rows]
    return _chart(
        "Clients: rate and CPU, 128 B",
        "make bench-client: each client at its own server, RocketMQ's three at CometMQ's; page cache; median of 3",
        rows,
        list(_CLIENTS.values()),
        [
            Panel(title="messages per second", values=_values(figures, names), format=_rate),
            Panel(title="client CPU per message", values=_values(figures, names, "cpu_ns"), format=_time_ns),
        ],
    )


def _latency(figures: Figures) -> str | None:
    points = ("p50", "p99", "p99.9")
    rows, names = [], []
    for flush in ("async", "sync"):
        for side, peer in zip(_SIDES, ("CometMQ", "Apache 5.3.3"), strict=True):
            rows.append(f"broker, {flush} flush: {peer}")
            title = f"broker/{flush}: produce to consume, held pull, 1,000/s"
            names.append([f"{title}/{point} us/{side}" for point in points])
    for client, label in _CLIENTS.items():
        rows.append(f"client and server: {label}")
        names.append([f"client/latency, send to listener/128B/{point}/{client}" for point in points])
    return _chart(
        "Latency: from send to consumer, 1,000 messages per second",
        "make bench-broker (pulls by the load generator) and make bench-client (listeners, page cache), 128 B",
        rows,
        points,
        [Panel(title="from send to consumer", values=_values(figures, names), format=_time_us)],
    )


def _cost(figures: Figures) -> str | None:
    series = {"128 B, warm": ("128B", "warm"), "128 B, fresh": ("128B", "fresh")}
    series |= {"1 KiB, warm": ("1024B", "warm"), "1 KiB, fresh": ("1024B", "fresh")}
    batches, keys = (1, 32, 1000, 4000), ("no key", "1 key")

    def panel(key: str) -> Panel:
        names = [
            [f"append/async/{size}/batch-{batch}/{key}/{pages}" for size, pages in series.values()] for batch in batches
        ]
        return Panel(title=f"CPU per message, {key}", values=_values(figures, names, "cpu_ns"), format=_time_ns)

    return _chart(
        "Append: cost against size of message and batch",
        "make bench-store: in C, asynchronous flush; fresh: on pages of a new store, warm: on pages made before",
        [f"{batch:,} per call" for batch in batches],
        list(series),
        [panel(key) for key in keys],
    )


def _embedded(figures: Figures) -> str | None:
    engines = ("cometmq", "lmdb", "persist-queue (SQLite)", "litequeue (SQLite)")
    rows = ("append, one a call", "append, 1,000 a call", "read all")

    def panel(mode: str) -> Panel:
        names = [[f"rivals/{mode}/128B/{row}/{engine}" for engine in engines] for row in rows]
        return Panel(title=f"messages per second, {mode}", values=_values(figures, names), format=_rate)

    return _chart(
        "Embedded queues from Python, 128 B",
        "make bench-store: one process, one thread, one round, a busy machine; durable: on disk before a call returns",
        [row.replace(" a call", " per call").replace("one per", "1 per") for row in rows],
        engines,
        [panel("durable"), panel("relaxed")],
    )


_SIZES = {"100 B": "100B", "1 KiB": "1024B"}


def _time_ms(value: float) -> str:
    return f"{value / 1000:.3g} s" if value >= 1000 else f"{value:.3g} ms"


def _spark(figures: Figures) -> str | None:
    rows = (
        *("five columns", "hash every byte", "noop sink", "count", "lowest and highest offset"),
        *("tag, 1 %", "time range, 1 %"),
    )

    def panel(title: str, size: str) -> Panel:
        sources = ("cometmq jvm", "parquet none")
        names = [[f"query/{size}/{row}/spark/{source}" for source in sources] for row in rows]
        return Panel(title=f"time of a query, {title}", values=_values(figures, names), format=_time_ms)

    return _chart(
        "Spark: the live log against Parquet",
        "make bench-query BENCH_ARGS=--goals: the engine in Spark's JVM, Parquet of the same rows, two cores",
        rows,
        ("CometMQ", "Parquet, uncompressed"),
        [panel(title, size) for title, size in _SIZES.items()],
    )


def _spark_kafka(figures: Figures) -> str | None:
    rows = ("hash every byte", "noop sink", "catch-up")

    def panel(title: str, size: str) -> Panel:
        found = [figures.get(f"spark/{size}/against Kafka: {row}", {}) for row in rows]
        values = [[one.get("value"), one.get("floor_value")] for one in found]
        return Panel(title=f"rows per second, {title}", values=values, format=_rate)

    return _chart(
        "Spark: the live log against Spark's Kafka source",
        "make bench-query BENCH_ARGS=--goals: the same rows in a Kafka broker on the same two cores",
        ["batch, hash every byte", "batch, noop sink", "stream, catch up"],
        ("CometMQ", "Kafka source"),
        [panel(title, size) for title, size in _SIZES.items()],
    )


DRAWINGS: Mapping[str, Callable[[Figures], str | None]] = {
    "broker.svg": _broker,
    "clients.svg": _clients,
    "cost.svg": _cost,
    "embedded.svg": _embedded,
    "latency.svg": _latency,
    "pop.svg": _pop,
    "spark.svg": _spark,
    "spark_kafka.svg": _spark_kafka,
}


def read_results(paths: Sequence[Path]) -> dict[str, Mapping[str, Any]]:
    """Return the figures of result documents by name; those of later documents replace earlier ones."""
    return {
        figure["name"]: figure for path in paths for figure in json.loads(path.read_text(encoding="utf-8"))["figures"]
    }


def draw(paths: Sequence[Path]) -> dict[str, str]:
    """Return the pictures by file name."""
    figures = read_results(paths)
    drawn = ((name, drawing(figures)) for name, drawing in DRAWINGS.items())
    return {name: text for name, text in drawn if text is not None}


def main() -> None:
    """Draw what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="*", type=Path, metavar="RESULT.json", help="result files (default published)")
    parser.add_argument("--to", type=Path, default=None, metavar="DIR", help="folder of the pictures")
    arguments = parser.parse_args()
    if arguments.results and arguments.to is None:
        parser.error("--to is needed with results of your own: docs/pictures shows the published ones")
    folder = arguments.to or PICTURES
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in draw(arguments.results or sorted(PUBLISHED.glob("*.json"))).items():
        (folder / name).write_text(text, encoding="utf-8")
        print(f"plots: wrote {folder / name}")


if __name__ == "__main__":
    main()
