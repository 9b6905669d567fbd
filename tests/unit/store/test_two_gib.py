"""Checks: segments of the largest size, bodies of 1 GiB, and batches of more bodies than 32-bit offsets reach.

Without ``CMQ_LONG=1`` bodies have a thousandth of their size, and segments with them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa

import cometmq

LONG = bool(os.environ.get("CMQ_LONG"))
PAGE = 4096
SEGMENT = ((1 << 31) - 1) // PAGE * PAGE if LONG else (2 << 20) - PAGE
BODY = 1 << 30 if LONG else 1 << 20


def test_segments_and_batches_of_two_gib(tmp_path: Path) -> None:
    large = bytes(BODY)
    lengths = [BODY, SEGMENT - BODY - 1500, *[1] * 20, BODY, 1]
    options: dict[str, Any] = {"segment_bytes": SEGMENT, "body_bytes_max": BODY}
    with cometmq.open(tmp_path, flush="async", **options) as store:
        for number, length in enumerate(lengths):
            last = store.append("t", memoryview(large)[:length], keys=f"k{number}")
        assert last.physical_offset > SEGMENT, "the first segment is full"
        assert [len(message.body) for message in store.read("t")] == lengths
        assert [len(message.body) for message in store.find("t", "k21")] == [1]
        table = store.scan("t", columns=["body"]).to_table()
        assert sum(len(body) for body in table.column("body").cast(pa.large_binary()).iterchunks()) == len(lengths)
        assert table.column("body").nbytes > 2 * BODY
    with cometmq.open(tmp_path, **options) as store:
        assert [len(message.body) for message in store.read("t", backwards=True)] == lengths[::-1]
