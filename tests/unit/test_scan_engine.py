"""Checks: the compiled ColumnScan: its columns are valid Arrow; streams and batches end, fail, close as they should."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cometmq import _engine, errors

BODY = [("body", None, "body", None)]
PROPERTIES = {"property": "region", "constant": "broker-ä"}
FORMS = {
    "topic": ["plain", "dictionary"],
    "body": ["view", "plain"],
    "tags": ["plain", "dictionary"],
    "property": ["plain", "dictionary"],
    "born_timestamp": ["ms", "us"],
    "store_timestamp": ["ms", "us"],
}
COUNT = 600


def open_handle(path: Path, **options: Any) -> _engine.StoreHandle:
    return _engine.StoreHandle(path, segment_bytes=1 << 15, queue_file_bytes=20 * 100, sync_flush=False, **options)


def fill(handle: _engine.StoreHandle, count: int = COUNT) -> None:
    for number in range(count):
        handle.append(
            "orders",
            b"body-%d" % number + b"." * (number % 40),
            tags=f"tag{number % 3}" if number % 4 else None,
            keys=f"k{number} g{number % 7}" if number % 5 else None,
            properties=_engine.encode_properties({"region": f"r{number % 2}", "ü": "é"} if number % 3 else None),
            queue_id=number % 4,
        )


@pytest.fixture
def handle(tmp_path: Path) -> Iterator[_engine.StoreHandle]:
    opened = open_handle(tmp_path / "store")
    fill(opened)
    yield opened
    opened.close()


def scan(handle: _engine.StoreHandle, **options: Any) -> _engine.ColumnScan:
    if not {"topics", "ranges"} & options.keys():
        options["topics"] = ["orders"]
    return _engine.ColumnScan(handle, **{"columns": BODY, **options})


def read(opened: _engine.ColumnScan) -> pa.Table:
    return pa.RecordBatchReader.from_stream(opened).read_all()


def batches(opened: _engine.ColumnScan) -> Iterator[pa.RecordBatch]:
    while (capsules := opened.next_batch()) is not None:
        yield pa.RecordBatch._import_from_c_capsule(*capsules)


def test_every_kind_in_every_form_is_valid_and_right(handle: _engine.StoreHandle) -> None:
    columns = [
        (kind, form, f"{kind}/{form}", PROPERTIES.get(kind))
        for kind in _engine.SCAN_KINDS
        for form in FORMS.get(kind, ["default"])
    ]
    for options in ({}, {"batch_rows": 37}, {"batch_bytes": 500}):
        table = read(scan(handle, columns=columns, **options))
        table.validate(full=True)
        assert table.num_rows == COUNT
        for row, message in zip(table.to_pylist(), _engine.Reader(handle, topics=["orders"]), strict=True):
            assert row["body/view"] == row["body/plain"] == bytes(message)
            assert row["tags/plain"] == row["tags/dictionary"] == message.tags
            assert tuple((row["keys/default"] or "").split()) == message.keys
            assert row["topic/plain"] == row["topic/dictionary"] == "orders"
            assert dict(row["properties/default"]) == message.properties
            assert row["property/plain"] == row["property/dictionary"] == message.properties.get("region")
            assert row["message_id/default"] == message.message_id
            assert row["queue_id/default"] == message.queue_id
            assert row["queue_offset/default"] == message.queue_offset
            assert row["physical_offset/default"] == message.physical_offset
            assert row["store_timestamp/ms"] == row["store_timestamp/us"]
            assert round(row["store_timestamp/us"].timestamp() * 1000) == message.store_timestamp_ms
            assert row["body_crc/default"] & 0xFFFFFFFF == message.body_crc
            assert row["constant/default"] == "broker-ä"


def test_batches_one_by_one(handle: _engine.StoreHandle) -> None:
    opened = scan(handle, batch_rows=100)
    found = list(batches(opened))
    assert [batch.num_rows for batch in found] == [100] * 6
    assert opened.next_batch() is None
    assert opened.skipped() == {"records": 0, "offsets": [], "invalid_texts": 0, "clamped_times": 0, "expired": 0}
    opened.close()
    handle.close()
    assert pa.Table.from_batches(found).column("body")[599].as_py().startswith(b"body-599")


def test_capsules_that_nobody_took_are_released(handle: _engine.StoreHandle) -> None:
    opened = scan(handle, batch_rows=10)
    for _ in range(5):
        assert opened.next_batch() is not None
    opened.__arrow_c_schema__()
    opened.__arrow_c_stream__()


def test_a_scan_is_a_stream_once(handle: _engine.StoreHandle) -> None:
    opened = scan(handle)
    assert read(opened).num_rows == COUNT
    with pytest.raises(errors.InvalidArgument, match="streamed already"):
        opened.__arrow_c_stream__()


def test_ranges(handle: _engine.StoreHandle) -> None:
    columns = [("queue_id", None, "q", None), ("queue_offset", None, "o", None)]
    ranges = [("orders", 0, 5, 7), ("orders", 3, 148, None), ("orders", 1, 9, 9)]
    rows = read(scan(handle, columns=columns, ranges=ranges)).to_pylist()
    assert [(row["q"], row["o"]) for row in rows] == [(0, 5), (0, 6), (3, 148), (3, 149)]
    with pytest.raises(errors.NotFound, match="queue 9"):
        scan(handle, ranges=[("orders", 9, 0, 1)])
    assert scan(handle, ranges=[]).next_batch() is None


def test_keys_equal_filtering(handle: _engine.StoreHandle) -> None:
    columns = [("physical_offset", None, "p", None)]
    for keys in (["k1"], ["g3"], ["g3", "k8"], ["none"]):
        expected = [m.physical_offset for m in _engine.Reader(handle, topics=["orders"]) if set(keys) & set(m.keys)]
        assert read(scan(handle, columns=columns, keys=keys)).column("p").to_pylist() == expected


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ([], "at least one"),
        ([("colour", None, "c", None)], "no kind 'colour'"),
        ([("body", "round", "b", None)], "in form 'round'"),
        ([("queue_id", "dictionary", "q", None)], "column q"),
        ([("body", None, "b", None), ("tags", None, "b", None)], "two columns"),
        ([("property", None, "p", None)], "of which property"),
        ([("body", None, "a\0b", None)], "NUL"),
    ],
)
def test_bad_columns(handle: _engine.StoreHandle, columns: list[Any], text: str) -> None:
    with pytest.raises(errors.InvalidArgument, match=text):
        scan(handle, columns=columns)


def test_a_closed_store_ends_stream_and_batches(tmp_path: Path) -> None:
    handle = open_handle(tmp_path / "store")
    fill(handle)
    opened = scan(handle, batch_rows=100)
    stream = pa.RecordBatchReader.from_stream(opened)
    first = stream.read_next_batch()
    handle.close()
    assert opened.closed
    with pytest.raises(OSError, match="is closed"):
        stream.read_next_batch()
    assert isinstance(opened.failure, errors.StoreClosed)
    with pytest.raises(errors.StoreClosed):
        opened.next_batch()
    first.validate(full=True)
    assert first.column(0)[99].as_py().startswith(b"body-99")


def until_refused(opened: _engine.ColumnScan) -> None:
    while True:
        opened.__arrow_c_schema__()


def test_close_ends_a_stream_that_waits(tmp_path: Path) -> None:
    handle = open_handle(tmp_path / "store")
    fill(handle, 10)
    opened = scan(handle, follow=True)
    stream = pa.RecordBatchReader.from_stream(opened)
    assert stream.read_next_batch().num_rows == 10
    outcome: list[BaseException] = []

    def wait() -> None:
        try:
            stream.read_next_batch()
        except OSError as error:
            outcome.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    with pytest.raises(errors.StoreBusy):  # as soon as the thread is inside
        until_refused(opened)
    handle.close()
    thread.join(10)
    assert "is closed" in str(outcome[0])


def test_follow(handle: _engine.StoreHandle) -> None:
    opened = scan(handle, follow=True, timeout_ms=50)
    assert sum(batch.num_rows for batch in batches(opened)) == COUNT
    fill(handle, 3)
    assert sum(batch.num_rows for batch in batches(opened)) == 3


def test_an_error_of_the_callers_thread(handle: _engine.StoreHandle) -> None:
    opened = scan(handle, batch_rows=1)
    problems: list[BaseException] = []

    def use() -> None:
        try:
            while opened.next_batch() is not None:
                pass
        except errors.StoreBusy as error:
            problems.append(error)

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all("another thread" in str(problem) for problem in problems)


def test_a_forked_child_has_no_scan(handle: _engine.StoreHandle) -> None:
    opened = scan(handle, batch_rows=10)
    held = next(batches(opened))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            opened.next_batch()
        except errors.StoreClosed:
            code = 0 if held.column(0)[3].as_py().startswith(b"body-3") else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert opened.next_batch() is not None
