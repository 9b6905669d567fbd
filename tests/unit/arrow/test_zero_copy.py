"""Checks: bodies are not copied, by address and by memory, with a copying control that the same test catches; and what
points into the log outlives the store, its files, and the thread that made it.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from cometmq import Store
from support.any_disk import retention_on_request
from support.small_store import open_small

BODY = b"a body that no view has room for "
COUNT = 5000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_small(tmp_path / "store") as opened:
        opened.append_many("t", [BODY + b"%d" % number for number in range(COUNT)])
        yield opened


def bodies() -> list[bytes]:
    return [BODY + b"%d" % number for number in range(COUNT)]


def log_maps(folder: Path) -> list[tuple[int, int]]:
    """Where this process has files of the store's log mapped."""
    found = []
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        if str(folder / "commitlog") in line:
            begin, end = line.split()[0].split("-")
            found.append((int(begin, 16), int(end, 16)))
    return found


def body_buffers(table: pa.Table) -> list[pa.Buffer]:
    """The buffers that hold the bytes of long bodies."""
    return [
        buffer
        for chunk in table.column("body").chunks
        for buffer in chunk.buffers()[2 if chunk.type == pa.binary_view() else -1 :]
        if buffer is not None and buffer.size
    ]


def inside(buffers: list[pa.Buffer], maps: list[tuple[int, int]]) -> bool:
    return all(
        any(begin <= buffer.address and buffer.address + buffer.size <= end for begin, end in maps)
        for buffer in buffers
    )


def test_views_lie_in_the_mapped_log(store: Store) -> None:
    scan = store.scan("t")
    for table in (scan.to_table(), pa.table(scan), pa.table(scan.to_table())):
        buffers = body_buffers(table)
        assert buffers
        assert inside(buffers, log_maps(store.path))
        assert table.column("body").to_pylist() == bodies()
    # The control: the same test catches a gathered column.
    gathered = body_buffers(store.scan("t", body="binary").to_table())
    assert gathered
    assert not inside(gathered, log_maps(store.path))


def test_polars_keeps_them_there(store: Store) -> None:
    pytest.importorskip("polars", reason="polars is not installed")
    frame = store.scan("t").to_polars()
    back = pa.table(frame.select("body"))
    assert inside(body_buffers(back), log_maps(store.path))
    assert back.column("body").to_pylist() == bodies()


def test_short_and_empty_bodies_need_no_buffer(store: Store) -> None:
    store.append_many("short", [b"", b"x", b"y" * 12])
    table = store.scan("short").to_table()
    assert body_buffers(table) == []
    assert table.column("body").to_pylist() == [b"", b"x", b"y" * 12]


MEMORY = """
import gc, sys
import cometmq

def anonymous_kib():
    text = open("/proc/self/status", encoding="utf-8").read()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("RssAnon"))

with cometmq.open(sys.argv[1], mode="r") as store:
    store.scan("t", limit=10, body=sys.argv[2]).to_table()
    gc.collect()
    before = anonymous_kib()
    table = store.scan("t", columns=["body"], body=sys.argv[2]).to_table()
    bytes_read = sum(len(memoryview(body.as_buffer())) for body in table.column("body"))
    print(anonymous_kib() - before, bytes_read)
"""


def test_memory(tmp_path: Path) -> None:
    """40 MB of bodies: views take 16 bytes each, gathered ones all of it."""
    count, size = 40_000, 1024
    with open_small(tmp_path / "store") as opened:
        for _ in range(10):
            opened.append_many("t", [b"%d" % number * (size // 5) for number in range(10_000, 10_000 + count // 10)])
    grown = {}
    for body in ("view", "binary"):
        command = [sys.executable, "-c", MEMORY, str(tmp_path / "store"), body]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        kib, bytes_read = map(int, done.stdout.split())
        assert bytes_read == count * (size // 5) * 5
        grown[body] = kib * 1024
    assert grown["view"] < count * size // 5, grown
    assert grown["binary"] > count * size * 9 // 10, grown


def test_the_table_outlives_store_files_and_thread(tmp_path: Path) -> None:
    tables: list[pa.Table] = []

    def make() -> None:
        with open_small(tmp_path / "store") as opened:
            opened.append_many("t", [BODY + b"%d" % number for number in range(COUNT)])
            tables.append(opened.scan("t").to_table())

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    for path in (tmp_path / "store" / "commitlog").iterdir():
        path.unlink()
    gc.collect()
    (table,) = tables
    assert table.column("body").to_pylist() == bodies()
    part = table.slice(COUNT - 2).column("body")
    del table
    tables.clear()
    gc.collect()
    assert part.to_pylist() == bodies()[-2:]
    assert log_maps(tmp_path / "store")
    del part
    gc.collect()
    assert not log_maps(tmp_path / "store")


def test_the_table_outlives_retention(tmp_path: Path) -> None:
    path = tmp_path / "store"
    old = time.time() - 100 * 3600
    long_bodies = [BODY * 10 + b"%d" % number for number in range(COUNT)]
    with open_small(path) as opened:
        opened.append_many("t", long_bodies)
    for segment in (path / "commitlog").iterdir():
        os.utime(segment, (old, old))
    with open_small(path, retention=retention_on_request(72)) as opened:
        table = opened.scan("t").to_table()
        assert opened.expire() >= 1
        left = opened.max_offset("t") - opened.min_offset("t")
        assert 0 < left < COUNT
        assert opened.scan("t").to_table().num_rows == opened.scan("t").count() == left
        assert table.column("body").to_pylist() == long_bodies
