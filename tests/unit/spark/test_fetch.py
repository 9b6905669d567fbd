"""Checks: a task's rows, without Spark: types, limits of batches, damage, what has expired, a missing path."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cometmq import CorruptRecord
from cometmq._engine import StoreHandle
from cometmq.spark import fetch
from cometmq.spark.catalog import StoreCatalog
from cometmq.spark.errors import DataLoss, OptionError, PathMissing
from cometmq.spark.fetch import ReadPlan, RecordScan, record_batches
from cometmq.spark.options import OptionMap, ReadOptions
from cometmq.spark.planning import QueueRange
from cometmq.spark.schema import chosen_columns, spark_arrow_schema
from support.small_store import open_small, spoil


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with open_small(tmp_path / "store") as store:
        store.create_topic("t", queues=2)
        store.append_many(
            "t", [b"%d" % number for number in range(200)], queue=[0, 1] * 100, tags=["a", "b", None, "a"] * 50
        )
    return tmp_path / "store"


def plan(path: Path, **options: str) -> ReadPlan:
    found = ReadOptions.of(OptionMap({"path": str(path), "topic": "t", **options}))
    return ReadPlan(
        path=found.path,
        config=None,
        columns=chosen_columns(found),
        tags=found.tags,
        where=found.where,
        keys=found.keys,
        time_low_ms=None,
        time_high_ms=None,
        batch_rows=found.batch_rows,
        batch_bytes=found.batch_bytes,
        skip_corrupt=found.skip_corrupt,
        fail_on_data_loss=found.fail_on_data_loss,
    )


BOTH = [QueueRange("t", 0, 0, 100), QueueRange("t", 1, 0, 100)]


def bodies(batches: list[pa.RecordBatch]) -> list[int]:
    return sorted(int(body) for batch in batches for body in batch.column("body").to_pylist())


def test_rows(path: Path) -> None:
    one = plan(path)
    batches = list(record_batches(one, BOTH))
    assert bodies(batches) == list(range(200))
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema.equals(spark_arrow_schema(one.columns))


def test_ranges_and_tags(path: Path) -> None:
    batches = list(record_batches(plan(path, tags="b"), [QueueRange("t", 1, 10, 14), QueueRange("t", 0, 0, 100)]))
    assert bodies(batches) == [21, 25]


def test_bounds_of_time_belong_to_the_range(path: Path) -> None:
    with open_small(path, mode="r") as store:
        first, last = (store.get("t", queue, offset) for queue, offset in ((0, 0), (1, 99)))
    low, high = (message.store_timestamp_ms for message in (first, last))
    for bounds in ((low, high), (low, None), (None, high)):
        whole = replace(plan(path), time_low_ms=bounds[0], time_high_ms=bounds[1])
        assert bodies(list(record_batches(whole, BOTH))) == list(range(200))
    before = replace(plan(path), time_high_ms=low - 1)
    assert bodies(list(record_batches(before, BOTH))) == []


def test_expressions_over_properties(path: Path) -> None:
    assert bodies(list(record_batches(plan(path, where="TAGS IN ('b', 'c')"), BOTH))) == list(range(1, 200, 4))
    assert bodies(list(record_batches(plan(path, where="TAGS IS NULL", tags="a"), BOTH))) == []
    ranges = [QueueRange("t", 1, 10, 14)]
    assert bodies(list(record_batches(plan(path, where="TAGS = 'b'"), ranges))) == [21, 25]
    with pytest.raises(OptionError, match=r"option where: .*byte 6: .*the expression ends") as caught:
        plan(path, where="TAGS =")
    assert caught.value.option == "where"


def test_limits_of_batches(path: Path) -> None:
    assert {batch.num_rows for batch in record_batches(plan(path, batchRows="50"), BOTH)} == {50}
    sizes = [batch.num_rows for batch in record_batches(plan(path, batchBytes="100"), BOTH)]
    assert sum(sizes) == 200
    assert max(sizes) <= 100


def test_damage(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    offset = spoil(path, "t", 1, 50)
    with pytest.raises(CorruptRecord, match=rf"{offset}.*option onCorrupt=skip"):
        list(record_batches(plan(path), BOTH))
    with caplog.at_level(logging.WARNING, "cometmq.spark"):
        assert bodies(list(record_batches(plan(path, onCorrupt="skip"), BOTH))) == sorted({*range(200)} - {101})
    assert (
        f"passed over 1 damaged records while reading t/0, t/1 of {path}, at the physical offsets {offset}"
        in caplog.text
    )


def test_deleted_data_is_reported(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    beyond = [QueueRange("t", 0, 90, 110)]
    with pytest.raises(DataLoss, match=r"the messages 90 to 109 of queue 0 .* failOnDataLoss=false"):
        list(record_batches(plan(path), beyond))
    with caplog.at_level(logging.WARNING, "cometmq.spark"):
        assert len(bodies(list(record_batches(plan(path, failOnDataLoss="false"), beyond)))) == 10
    assert "not all there any more" in caplog.text


def test_rows_that_do_not_come_are_counted(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An offset without a message, as a crash or a repair leaves it, or a mistake of ours."""
    opened = fetch._open_scan

    def without_the_last(handle: StoreHandle, one: ReadPlan, ranges: Sequence[QueueRange]) -> RecordScan:
        return opened(handle, one, [replace(each, end=each.end - 1) for each in ranges])

    monkeypatch.setattr(fetch, "_open_scan", without_the_last)
    with pytest.raises(DataLoss, match=r"2 of the planned messages of t/0, t/1 did not come.*failOnDataLoss=false"):
        list(record_batches(plan(path), BOTH))
    with caplog.at_level(logging.WARNING, "cometmq.spark"):
        assert len(bodies(list(record_batches(plan(path, failOnDataLoss="false"), BOTH)))) == 198
    assert "did not come" in caplog.text
    assert len(bodies(list(record_batches(plan(path, tags="a"), BOTH)))) == 99


def test_messages_that_expire_while_they_are_read_are_a_loss(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    opened = fetch._open_scan

    class Expiring:
        def __init__(self, scan: RecordScan) -> None:
            self.next_batch, self.close, self._skipped = scan.next_batch, scan.close, scan.skipped

        def skipped(self) -> Mapping[str, Any]:
            return {**self._skipped(), "expired": 2}

    def expiring(handle: StoreHandle, one: ReadPlan, ranges: Sequence[QueueRange]) -> RecordScan:
        return Expiring(opened(handle, one, [replace(each, start=each.start + 1) for each in ranges]))

    monkeypatch.setattr(fetch, "_open_scan", expiring)
    with pytest.raises(DataLoss, match=r"2 messages of t/0, t/1 expired before they were read.*failOnDataLoss=false"):
        list(record_batches(plan(path), BOTH))
    with caplog.at_level(logging.WARNING, "cometmq.spark"):
        assert len(bodies(list(record_batches(plan(path, failOnDataLoss="false"), BOTH)))) == 198
    assert "expired before they were read" in caplog.text
    assert "did not come" not in caplog.text


def test_times_outside_the_calendar_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with open_small(tmp_path / "far") as store:
        store.append_many("t", [b"1", b"2"], born_timestamps_ms=[1 << 62, 5])
    with caplog.at_level(logging.WARNING, "cometmq.spark"):
        batches = list(record_batches(plan(tmp_path / "far"), [QueueRange("t", 0, 0, 2)]))
    assert bodies(batches) == [1, 2]
    assert "1 times of t/0 are outside 0001-01-02 to 9999-12-30" in caplog.text


def test_no_path(path: Path) -> None:
    gone = replace(plan(path), path=str(path / "nowhere"))
    with pytest.raises(PathMissing, match=r"option path: .*nowhere is not there on the executor"):
        list(record_batches(gone, BOTH))


def test_cost_of_reading_a_message(path: Path) -> None:
    everything = QueueRange("t", 0, 0, 100)
    with StoreCatalog(str(path)) as catalog:
        mean = catalog.row_bytes(everything)
        assert 90 < mean < 200
        # Tag a has half of queue 0, and nothing has tag c: then every unit is read, and as good as nothing of the log.
        assert catalog.row_bytes(everything, ["a"]) == pytest.approx(20 + mean / 2, rel=0.1)
        assert 20 < catalog.row_bytes(everything, ["c"]) < 20 + mean / 10
        assert catalog.row_bytes(everything, ["a", "b"]) <= 20 + mean
