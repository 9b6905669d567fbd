"""Checks: both engines read the same numbers and times of options, and the same samples of a queue."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cometmq.spark.catalog import StoreCatalog
from cometmq.spark.errors import OptionError
from cometmq.spark.options import OptionMap, ReadOptions
from cometmq.spark.ranges import QueueRange
from support.jvm import SOURCES, compiled, spark_jars
from support.small_store import open_small

pytest.importorskip("pyspark", reason="pyspark is not installed")

FIELDS = {
    "minPartitions": "min_partitions",
    "batchRows": "batch_rows",
    "maxOffsetsPerTrigger": "max_offsets_per_trigger",
    "maxTriggerDelay": "max_trigger_delay_ms",
    "startingTimestamp": "starting_timestamp_ms",
}
TIMES = (
    "T10",
    "T10Z",
    "T10:00",
    "T10:30z",
    " 10:30:15",
    "T10:00:00-01:30",
    "T10:00:61",
    "T25:00",
    "T10:00+1",
    "T10::00",
)
TIMES_SINCE_3_11 = ("T10+01", "T10:00:00+0100", "T10:00:00.25+00:00")
CASES = (
    *(f"minPartitions {value}" for value in ("1", "+007", "9999999999", "0", "-1", "1.5", "")),
    *(f"batchRows {value}" for value in ("17", "1048576", "1048577", "99999999999")),
    *(f"maxOffsetsPerTrigger {value}" for value in (2**63 - 1, 10**18, 10**30, "ten")),
    *(f"maxTriggerDelay {value}" for value in ("30s", "15 m", "1234567890123ms", "99999999999999999999h", "s", "1d")),
    *(f"startingTimestamp {value}" for value in ("1700000000000", "-5", "x", "2026-11-21", "2026-13-01")),
    *(f"startingTimestamp 2026-11-21{value}" for value in TIMES),
    *(f"startingTimestamp 2026-11-21{value}" for value in TIMES_SINCE_3_11 if sys.version_info >= (3, 11)),
)


def number(case: str) -> str:
    name, value = case.split(" ", 1)
    try:
        options = ReadOptions.of(OptionMap({"path": "/", "topic": "t", name: value}))
    except OptionError:
        return "refused"
    return str(min(getattr(options, FIELDS[name]), 2**63 - 1))


def test_options_and_samples_are_read_alike(tmp_path: Path) -> None:
    java, *options = compiled([SOURCES / "spark" / "OptionCases.java"], tmp_path / "classes", *spark_jars())
    with open_small(tmp_path / "store") as store:
        store.create_topic("t", queues=1)
        store.append_many("t", [b"x"] * 3 + [b"y" * 1000] * 100)
    ends = (1, 3, 8, 17, 50, 103)
    with StoreCatalog(str(tmp_path / "store"), None) as catalog:
        expected = [catalog.row_bytes(QueueRange("t", 0, 0, end)) for end in ends]
    done = subprocess.run(
        [java, *options, "cometmq.spark.OptionCases", tmp_path / "store", *map(str, ends)],
        input="\n".join(CASES) + "\n",
        capture_output=True,
        text=True,
        check=True,
    )
    found = done.stdout.splitlines()
    assert dict(zip(CASES, found, strict=False)) == {case: number(case) for case in CASES}, done.stderr
    assert [float(line) for line in found[len(CASES) :]] == expected
