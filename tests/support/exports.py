"""A store to export, exports of it in small parts, and the rows that they wrote."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow.parquet as pq

import cometmq
from cometmq.arrow.columns import plain
from cometmq.arrow.exporting import STATE_NAME, Exporter, ExportReport, PartitionBy
from cometmq.arrow.writing import BytesAs, FileFormat, FileKind
from support.command_line import run
from support.small_store import open_small

__all__ = [
    "COUNT",
    "Export",
    "all_rows",
    "append_orders_and_others",
    "check_refused",
    "expected",
    "export_orders",
    "names",
    "stop_after",
]

COUNT = 500

Export: TypeAlias = Callable[..., ExportReport]


def append_orders_and_others(path: Path) -> Path:
    """500 orders in three queues, two tags; a few others that are no text."""
    with open_small(path) as store:
        store.create_topic("orders", queues=3)
        store.append_many(
            "orders",
            [b"order %d, \xc3\xbc" % number for number in range(COUNT)],
            tags=["paid" if number % 2 else "open" for number in range(COUNT)],
            keys=[f"o-{number} every" for number in range(COUNT)],
            properties=[{"region": f"r{number % 5}"} for number in range(COUNT)],
            queue=[number % 3 for number in range(COUNT)],
        )
        store.append_many("others", [b"\xff\x00", b"", b'a "quoted", line\nand another'])
    return path


def export_orders(
    path: Path,
    out: Path,
    stopped: Callable[[], bool],
    *,
    since_last: bool = False,
    partition_by: Sequence[PartitionBy] = (),
    **more: Any,
) -> ExportReport:
    """Begin an export in parts of at most 4,000 bytes, or continue it."""
    with cometmq.open(path, mode="r") as store:
        query = store.scan("orders", body="binary", **more).query
        exporter = Exporter(
            store.handle,
            replace(query, columns=plain(query.columns)),
            FileKind(FileFormat.PARQUET, "none"),
            bytes_as=BytesAs.BINARY,
            part_bytes=4000,
            partition_by=partition_by,
            stopped=stopped,
        )
        return exporter.to_folder(out, resume=not since_last and (out / STATE_NAME).exists(), since_last=since_last)


def stop_after(calls: int) -> Callable[[], bool]:
    """Return a function that asks to stop after so many calls."""
    left = iter(range(calls))
    return lambda: next(left, None) is None


def all_rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of a folder's parts, in order."""
    return [row for part in sorted(folder.glob("part-*")) for row in pq.read_table(part).to_pylist()]


def expected(path: Path, topic: str | None = "orders", **options: Any) -> list[dict[str, Any]]:
    """The rows of a scan."""
    with cometmq.open(path, mode="r") as store:
        rows: list[dict[str, Any]] = store.scan(topic, **options).to_table().to_pylist()
    return rows


def names(folder: Path) -> set[str]:
    """The names in a folder."""
    return {entry.name for entry in folder.iterdir()}


def check_refused(path: Path, arguments: Sequence[str], code: int, text: str) -> None:
    """Run ``cometmq export`` in the folder of the store, which must end with this code and text and write nothing."""
    outcome = run("export", path, *arguments)
    assert outcome.code == code
    assert text in " ".join(outcome.err.split())
    assert names(path.parent) == {"store"}
