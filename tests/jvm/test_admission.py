"""Checks: both engines share a micro-batch's limit out to the same messages."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path

import pytest

from cometmq.spark.admission import limit_bytes, limit_rows
from cometmq.spark.offsets import Position, QueueKey, encode_stream_offset
from support.jvm import SOURCES, compiled, spark_jars

pytest.importorskip("pyspark", reason="pyspark is not installed")

CASES = 3000


def text(position: Position) -> str:
    return ",".join(f"{key}={offset}" for key, offset in position.items()) or "-"


def test_limits_are_shared_out_alike(tmp_path: Path) -> None:
    java, *options = compiled([SOURCES / "spark" / "AdmissionCases.java"], tmp_path / "classes", *spark_jars())
    chosen = random.Random(20)
    lines, expected = [], []
    for number in range(CASES):
        keys = [QueueKey(chosen.choice(("a", "b-c")), chosen.randrange(40)) for _ in range(chosen.randint(1, 30))]
        longest = chosen.choice((3, 50, 1000, 10**12))
        start = {key: chosen.randrange(longest) for key in keys if chosen.random() < 0.9}
        end = {key: start.get(key, 0) + chosen.randrange(longest) for key in keys}
        most = chosen.choice((1, 2, 7, 100, 10**6, 10**15))
        if number % 3:
            lines.append(f"rows {most} {text(start)} {text(end)}")
            found = limit_rows(start, end, most)
        else:
            lines.append(f"bytes {most} {text(start)} {text(end)}")
            found = limit_bytes(start, end, most, lambda key, _low, _high: key.queue_id + 1.0)
        expected.append(json.dumps(encode_stream_offset(found)))
    done = subprocess.run(
        [java, *options, "cometmq.spark.AdmissionCases"],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        check=True,
    )
    for line, ours, theirs in zip(lines, expected, done.stdout.splitlines(), strict=True):
        assert theirs == ours, line
